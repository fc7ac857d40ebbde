//! Sessions: keys and queue modes. *Pure.* Source: `wire.md` "Session key"; `sessions.md` "Queue modes".

use serde::{Deserialize, Serialize};

use super::event::{DEFAULT_ACCOUNT, Event, PeerKind};

/// How a dispatch meets a session that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueMode {
    /// A turn of its own afterwards, in order.
    #[default]
    #[serde(alias = "queue")]
    Followup,
    /// Buffered; one turn for all with the same target.
    Collect,
    /// Injected into the running turn before its next model call.
    Steer,
    /// The running turn is cancelled, the newest runs.
    Interrupt,
    /// Steer, and a turn of its own afterwards as well.
    #[serde(rename = "steer-backlog", alias = "steer_backlog", alias = "steerBacklog")]
    SteerBacklog,
}

/// What becomes of dispatches for which a session's queue has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// The oldest is dropped, and a line about it stands in the next turn's context.
    #[default]
    Summarize,
    /// The oldest is dropped.
    Old,
    /// The newest is dropped.
    New,
}

/// Settings of a session's queue; what is absent is as the next wider settings say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// How a dispatch that does not say so meets a busy session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<QueueMode>,
    /// How long after the last arrival a `collect` turn begins, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce_ms: Option<u64>,
    /// Dispatches that may wait behind a running turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<u32>,
    /// What becomes of those beyond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
}

impl QueueSettings {
    /// These, and where they say nothing what `wider` says.
    #[must_use]
    pub fn or(self, wider: Self) -> Self {
        Self {
            mode: self.mode.or(wider.mode),
            debounce_ms: self.debounce_ms.or(wider.debounce_ms),
            cap: self.cap.or(wider.cap),
            overflow: self.overflow.or(wider.overflow),
        }
    }
}

/// The key of the owner's session.
pub const MAIN: &str = "main";

/// Which direct conversations share one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DmScope {
    /// The owner's: `main`. Everybody else has [`DmScope::PerChannelPeer`].
    #[default]
    Auto,
    /// All of them: `main`.
    Main,
    /// `dm:{peer}`.
    PerPeer,
    /// `{channel}:dm:{peer}`.
    PerChannelPeer,
    /// `{channel}:{account}:dm:{peer}`.
    PerAccountChannelPeer,
}

/// One agent's line of conversation: a persona and a key within it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRef {
    /// The agent persona.
    pub persona: String,
    /// The session's key within the persona.
    pub session: String,
}

impl std::fmt::Display for SessionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.persona, self.session)
    }
}

/// The key of the session that an event belongs to, where its hook names none.
///
/// dm → `main` or by `scope`; group → `{channel}:group:{peer}`; channel → `{channel}:channel:{peer}`; a
/// thread appends `:thread:{thread}`; a non-default account stands after the channel. `peer` is the
/// conversation's id, or the canonical person where an identity link replaces it.
#[must_use]
pub fn session_key(event: &Event, scope: DmScope, peer: &str) -> String {
    let channel = match event.account() {
        DEFAULT_ACCOUNT => event.channel.clone(),
        account => format!("{}:{account}", event.channel),
    };
    let base = match event.peer.kind {
        PeerKind::Dm => match scope {
            DmScope::Main => MAIN.to_owned(),
            DmScope::PerPeer => format!("dm:{peer}"),
            // The caller knows who the owner is, and gives them `Main`; everybody else has a session of their own.
            DmScope::Auto | DmScope::PerChannelPeer => format!("{}:dm:{peer}", event.channel),
            DmScope::PerAccountChannelPeer => format!("{}:{}:dm:{peer}", event.channel, event.account()),
        },
        PeerKind::Group => format!("{channel}:group:{peer}"),
        PeerKind::Channel => format!("{channel}:channel:{peer}"),
    };
    match &event.thread_id {
        Some(thread) => format!("{base}:thread:{thread}"),
        None => base,
    }
}
