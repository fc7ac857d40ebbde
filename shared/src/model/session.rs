//! Sessions: keys and queue modes. *Pure.* Source: `docs/design/wire.md` §1.4; `docs/design/sessions.md` §2.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::event::{DEFAULT_ACCOUNT, Event, PeerKind};

/// The behavior of a dispatch for a session that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueMode {
    /// The dispatch gets a turn of its own afterwards, in order.
    #[default]
    #[serde(alias = "queue")]
    Followup,
    /// The dispatch is buffered; one turn handles all with the same target.
    Collect,
    /// The message is injected into the running turn before its next model call.
    Steer,
    /// The running turn is canceled, and the newest dispatch runs.
    Interrupt,
    /// The message is injected as with `Steer`, and the dispatch gets a turn of its own afterwards as well.
    #[serde(rename = "steer-backlog", alias = "steer_backlog", alias = "steerBacklog")]
    SteerBacklog,
}

/// The behavior for dispatches that do not fit into a session's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverflowPolicy {
    /// The oldest dispatch is dropped, and the next turn's context contains a line about it.
    #[default]
    Summarize,
    /// The oldest dispatch is dropped.
    Old,
    /// The newest dispatch is dropped.
    New,
}

/// Settings of a session's queue. An absent value is taken from the next wider settings.
///
/// ```
/// use shared::model::session::{QueueMode, QueueSettings};
///
/// let session = QueueSettings { cap: Some(5), ..QueueSettings::default() };
/// let persona = QueueSettings { mode: Some(QueueMode::Collect), cap: Some(20), ..QueueSettings::default() };
/// let merged = session.or(persona);
/// assert_eq!((merged.mode, merged.cap), (Some(QueueMode::Collect), Some(5)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// Mode for dispatches that set none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<QueueMode>,
    /// Time from the last arrival to the start of a `collect` turn, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce_ms: Option<u64>,
    /// Maximum number of dispatches that wait behind a running turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<u32>,
    /// Behavior for dispatches beyond `cap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<OverflowPolicy>,
}

impl QueueSettings {
    /// Returns these settings, with absent values taken from `wider`.
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

/// Key of the owner's session.
pub const MAIN: &str = "main";

/// The direct conversations that share one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DmScope {
    /// The owner's conversations share `main`; all others use [`DmScope::PerChannelPeer`].
    #[default]
    Auto,
    /// All direct conversations share `main`.
    Main,
    /// One session per peer: `dm:{peer}`.
    PerPeer,
    /// One session per channel and peer: `{channel}:dm:{peer}`.
    PerChannelPeer,
    /// One session per channel, account and peer: `{channel}:{account}:dm:{peer}`.
    PerAccountChannelPeer,
}

/// A session: a persona and a key within it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRef {
    /// Name of the agent persona.
    pub persona: String,
    /// Key of the session within the persona.
    pub session: String,
}

impl std::fmt::Display for SessionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.persona, self.session)
    }
}

/// The peer's part of a session key: a person in a direct conversation, or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerName<'a> {
    /// A configured person, who is the same on every account and at every address.
    Person(Cow<'a, str>),
    /// An id that has a meaning on one account of one channel only.
    Address(Cow<'a, str>),
}

impl PeerName<'_> {
    /// Returns the name without its kind.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Person(name) | Self::Address(name) => name,
        }
    }
}

/// Returns the key of the session to which an event belongs, if its hook names none.
///
/// The key is `main` or follows `scope` for a direct conversation, `{channel}:group:{peer}` for a group and
/// `{channel}:channel:{peer}` for a channel. A thread appends `:thread:{thread}`. The name of a non-default account
/// follows the channel, except for a person, who is the same on all accounts. An address always has its channel,
/// whatever the scope: `7` on two channels is two strangers.
///
/// Two conversations never have the same key. Strangers choose the ids of peers, so words of a key within an id are
/// marked with `~`.
#[must_use]
pub fn session_key(event: &Event, scope: DmScope, peer: &PeerName<'_>) -> String {
    let channel = &event.channel;
    // An account with the name of a kind would make keys that mean another conversation.
    let account = match event.account() {
        account if is_marked(account, &["dm", "group", "channel"]) => Cow::Owned(format!("~{account}")),
        account => Cow::Borrowed(account),
    };

    // The default account is left out: most installations have no other.
    let on_account = match event.account() {
        DEFAULT_ACCOUNT => channel.clone(),
        _other => format!("{channel}:{account}"),
    };
    let name = marked_peer(peer.as_str());

    let base = match event.peer.kind {
        PeerKind::Dm => match (scope, peer) {
            (DmScope::Main, PeerName::Person(_) | PeerName::Address(_)) => MAIN.to_owned(),
            (DmScope::PerPeer, PeerName::Person(_)) => format!("dm:{name}"),
            // The caller passes `Main` for the owner; every other person has a session of their own.
            (DmScope::Auto | DmScope::PerChannelPeer, PeerName::Person(_)) => format!("{channel}:dm:{name}"),
            (DmScope::Auto | DmScope::PerPeer | DmScope::PerChannelPeer, PeerName::Address(_)) => {
                format!("{on_account}:dm:{name}")
            }
            (DmScope::PerAccountChannelPeer, PeerName::Person(_) | PeerName::Address(_)) => {
                format!("{channel}:{account}:dm:{name}")
            }
        },
        PeerKind::Group => format!("{on_account}:group:{name}"),
        PeerKind::Channel => format!("{on_account}:channel:{name}"),
    };

    match &event.thread_id {
        Some(thread) => format!("{base}:thread:{thread}"),
        None => base,
    }
}

/// Returns whether `word` is one of `words`, with or without `~` marks.
fn is_marked(word: &str, words: &[&str]) -> bool {
    words.contains(&word.trim_start_matches('~'))
}

/// Returns `peer` with one more `~` before each later part that is `thread`, so that the key's own `:thread:` is
/// first.
fn marked_peer(peer: &str) -> String {
    let mut marked = String::with_capacity(peer.len());
    for (index, part) in peer.split(':').enumerate() {
        if index > 0 {
            marked.push(':');
            if is_marked(part, &["thread"]) {
                marked.push('~');
            }
        }

        marked.push_str(part);
    }

    marked
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::event::EventId;
    use super::super::time::UnixMillis;
    use super::*;

    fn event(account: &str, kind: PeerKind, thread: Option<&str>) -> Event {
        let mut event = Event::new(EventId::parse("x:1").unwrap(), "webchat", "anna", UnixMillis(1));
        event.account_id = Some(account.to_owned());
        event.peer.kind = kind;
        event.thread_id = thread.map(str::to_owned);
        event
    }

    fn address(id: &str) -> PeerName<'_> {
        PeerName::Address(Cow::Borrowed(id))
    }

    #[test]
    fn a_stranger_is_another_one_on_each_account_and_a_person_is_not() {
        let key =
            |account: &str, scope, peer: &PeerName<'_>| session_key(&event(account, PeerKind::Dm, None), scope, peer);
        for scope in [DmScope::Auto, DmScope::PerPeer, DmScope::PerChannelPeer] {
            assert_eq!(key("default", scope, &address("anna")), "webchat:dm:anna");
            assert_eq!(key("shop", scope, &address("anna")), "webchat:shop:dm:anna");
        }
        let mom = PeerName::Person(Cow::Borrowed("mom"));
        assert_eq!(key("shop", DmScope::Auto, &mom), "webchat:dm:mom");
        assert_eq!(key("shop", DmScope::PerPeer, &mom), "dm:mom");
    }

    /// Returns every mixture of the words of keys, as ids that strangers and operators may choose.
    #[test]
    fn no_two_conversations_have_one_key() {
        let words = ["", "x", "dm", "group", "thread", "~thread", "~dm"];
        let pairs = words.iter().flat_map(|a| words.iter().map(move |b| format!("{a}:{b}")));
        let triples = pairs.clone().map(|pair| format!("{pair}:x"));

        let ids: Vec<String> = words
            .iter()
            .map(|word| (*word).to_owned())
            .chain(pairs)
            .chain(triples)
            .collect();

        let threads = std::iter::once(None).chain(ids.iter().map(|id| Some(id.as_str())));
        let threads: Vec<Option<&str>> = threads.collect();
        for scope in [DmScope::Auto, DmScope::PerPeer, DmScope::PerAccountChannelPeer] {
            let mut seen = BTreeMap::new();
            for account in ["default", "x", "dm", "~dm", "group", "~group", "thread"] {
                for kind in [PeerKind::Dm, PeerKind::Group, PeerKind::Channel] {
                    for (id, thread) in ids
                        .iter()
                        .flat_map(|id| threads.iter().map(move |thread| (id, *thread)))
                    {
                        let key = session_key(&event(account, kind, thread), scope, &address(id));
                        let here = (account, kind, id, thread);
                        if let Some(other) = seen.insert(key.clone(), here) {
                            panic!("`{key}` is that of {other:?} and of {here:?}");
                        }
                    }
                }
            }
        }
    }
}
