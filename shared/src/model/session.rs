//! Sessions: keys and queue modes. *Pure.* Source: `docs/design/wire.md` §1.4; `docs/design/sessions.md` §2.

use std::borrow::Cow;

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

/// Whose direct conversation it is, or which group: what stands for the peer in the key of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerName<'a> {
    /// A configured person: one on every account, whichever address they write from.
    Person(Cow<'a, str>),
    /// An id that means something on one account of one channel only.
    Address(Cow<'a, str>),
}

impl PeerName<'_> {
    /// The name without what kind it is.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Person(name) | Self::Address(name) => name,
        }
    }
}

/// The key of the session that an event belongs to, where its hook names none.
///
/// dm → `main` or by `scope`; group → `{channel}:group:{peer}`; channel → `{channel}:channel:{peer}`; a thread appends
/// `:thread:{thread}`; a non-default account stands after the channel, except for a person, who is one on all accounts.
/// An address is never without its channel, whatever the scope: `7` on two channels is two strangers.
///
/// Two conversations never have one key: ids of peers are what strangers choose, so that words of a key in them are marked
/// with `~`.
#[must_use]
pub fn session_key(event: &Event, scope: DmScope, peer: &PeerName<'_>) -> String {
    let channel = &event.channel;
    let account = match event.account() {
        account if is_marked(account, &["dm", "group", "channel"]) => Cow::Owned(format!("~{account}")),
        account => Cow::Borrowed(account),
    };

    let on_account = match event.account() {
        DEFAULT_ACCOUNT => channel.clone(),
        _other => format!("{channel}:{account}"),
    };
    let name = marked_peer(peer.as_str());

    let base = match event.peer.kind {
        PeerKind::Dm => match (scope, peer) {
            (DmScope::Main, PeerName::Person(_) | PeerName::Address(_)) => MAIN.to_owned(),
            (DmScope::PerPeer, PeerName::Person(_)) => format!("dm:{name}"),
            // The caller knows who the owner is, and gives them `Main`; everybody else has a session of their own.
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

/// Whether `word` is one of `words`, marked with `~` or not.
fn is_marked(word: &str, words: &[&str]) -> bool {
    words.contains(&word.trim_start_matches('~'))
}

/// `peer` with each later part that reads `thread` marked with one more `~`: the key's own `:thread:` is the first one.
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

    /// Every mixture of the words that keys are made of, as ids that strangers and operators may choose.
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
