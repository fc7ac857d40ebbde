//! Format of the bindings file. *Pure.*

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use shared::model::event::PeerKind;
use shared::model::session::QueueMode;
use shared::process::config::KeyFault;

/// Error for an invalid bindings file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct LoadBindingsError {
    /// Path of the file.
    pub path: PathBuf,
    /// Faults, each with the entry or the line and the expectation.
    pub faults: Vec<KeyFault>,
}

/// Content of the whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BindingsFile {
    /// Priority of the dispatches.
    pub(super) priority: Option<i32>,
    /// Whether it fires only if no other hook routed the event.
    pub(super) fallback: bool,
    pub(super) mappings: Vec<WebhookMapping>,
    pub(super) bindings: Vec<PersonaBinding>,
}

/// One binding: `match` → persona.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PersonaBinding {
    #[serde(alias = "agentId", alias = "agent_id")]
    pub(super) persona: String,
    pub(super) session: Option<String>,
    #[serde(alias = "queueMode")]
    pub(super) queue_mode: Option<QueueMode>,
    #[serde(default, rename = "match")]
    pub(super) matches: BindingMatch,
}

/// Condition of a binding: all given fields must match.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BindingMatch {
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

/// Condition on a conversation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerMatch {
    pub(super) kind: Option<PeerKind>,
    pub(super) id: OneOrMore,
}

/// One webhook mapping: webhook → persona, session and text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookMapping {
    /// Name of the webhook source.
    pub(super) source: Option<OneOrMore>,
    /// Path at which it is called; its last part is the name of the source.
    pub(super) path: Option<String>,
    /// Required values by field of the event's metadata (`event_type`, `payload.data.id`).
    #[serde(default, rename = "match")]
    pub(super) matches: BTreeMap<String, Value>,
    #[serde(alias = "agentId", alias = "agent_id")]
    pub(super) persona: Option<String>,
    /// Template of the session.
    pub(super) session: Option<String>,
    #[serde(alias = "queueMode")]
    pub(super) queue_mode: Option<QueueMode>,
    /// Template of the text for the agent.
    pub(super) text: Option<String>,
}

/// One value, or alternatives; `*` in them matches any text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore {
    One(ScalarId),
    More(Vec<ScalarId>),
}

/// An id, which is often written as a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ScalarId {
    Text(String),
    Number(i64),
}

impl OneOrMore {
    pub(super) fn all_texts(&self) -> Vec<String> {
        let text = |plain: &ScalarId| match plain {
            ScalarId::Text(text) => text.clone(),
            ScalarId::Number(number) => number.to_string(),
        };
        match self {
            Self::One(plain) => vec![text(plain)],
            Self::More(plains) => plains.iter().map(text).collect(),
        }
    }
}
