//! What the file may say. *Pure.*

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use shared::model::event::PeerKind;
use shared::model::session::QueueMode;
use shared::process::config::KeyFault;

/// The bindings file is not as it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct LoadBindingsError {
    /// Which file.
    pub path: PathBuf,
    /// Each names the entry, or the line, and what is expected.
    pub faults: Vec<KeyFault>,
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    /// Priority of the dispatches.
    pub(super) priority: Option<i32>,
    /// Fires only where no other hook routed the event.
    pub(super) fallback: bool,
    pub(super) mappings: Vec<Mapping>,
    pub(super) bindings: Vec<Binding>,
}

/// `match` → persona.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Binding {
    #[serde(alias = "agentId", alias = "agent_id")]
    pub(super) persona: String,
    pub(super) session: Option<String>,
    #[serde(alias = "queueMode")]
    pub(super) queue_mode: Option<QueueMode>,
    #[serde(default, rename = "match")]
    pub(super) matches: Match,
}

/// All fields that are given must match.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Match {
    pub(super) channel: Option<OneOrMore>,
    #[serde(alias = "accountId", alias = "account_id")]
    pub(super) account: Option<OneOrMore>,
    pub(super) peer: Option<PeerMatch>,
    #[serde(alias = "parentPeer")]
    pub(super) parent_peer: Option<PeerMatch>,
    #[serde(alias = "guildId", alias = "guild_id")]
    pub(super) guild: Option<OneOrMore>,
    pub(super) roles: Option<OneOrMore>,
    #[serde(alias = "teamId", alias = "team_id")]
    pub(super) team: Option<OneOrMore>,
}

/// A conversation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerMatch {
    pub(super) kind: Option<PeerKind>,
    pub(super) id: OneOrMore,
}

/// A webhook → persona, session and text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mapping {
    /// The webhook source's name.
    pub(super) source: Option<OneOrMore>,
    /// The path it is called at; its last part is the source's name.
    pub(super) path: Option<String>,
    /// Fields of the event's metadata (`event_type`, `payload.data.id`) and what they must be.
    #[serde(default, rename = "match")]
    pub(super) matches: BTreeMap<String, Value>,
    #[serde(alias = "agentId", alias = "agent_id")]
    pub(super) persona: Option<String>,
    /// A template.
    pub(super) session: Option<String>,
    #[serde(alias = "queueMode")]
    pub(super) queue_mode: Option<QueueMode>,
    /// A template: what the agent is told.
    pub(super) text: Option<String>,
}

/// A value, or alternatives; `*` in them stands for anything.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore {
    One(Plain),
    More(Vec<Plain>),
}

/// Ids are often written as numbers.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Plain {
    Text(String),
    Number(i64),
}

impl OneOrMore {
    pub(super) fn texts(&self) -> Vec<String> {
        let text = |plain: &Plain| match plain {
            Plain::Text(text) => text.clone(),
            Plain::Number(number) => number.to_string(),
        };
        match self {
            Self::One(plain) => vec![text(plain)],
            Self::More(plains) => plains.iter().map(text).collect(),
        }
    }
}
