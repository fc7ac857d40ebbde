//! What a fire is, whom its event is of, and in which session it belongs where the hook names none. *Pure.*
//!
//! Rights and dispatches both read it. Source: seed 001 §4; `docs/design/trust.md` §1.

use std::collections::BTreeMap;

use shared::model::event::Event;
use shared::model::hook::{HookResult, Routing};
use shared::model::identity::{Identities, PermissionPresets};
use shared::model::origin::{Origin, WEBCHAT};
use shared::model::permission::Level;
use shared::model::session::{DmScope, session_key};
use shared::model::time::UnixMillis;

use crate::roster::Traits;

/// The channel of the command line.
const CLI: &str = "cli";
/// The channel of timers.
const TIMER_CHANNEL: &str = "timer";

/// Conversations beyond its own in which an agent's hook may answer, by hook id: `{channel}:{peer}` or `{channel}:*`.
pub type Deliveries = BTreeMap<String, Vec<String>>;

/// What is configured about building dispatches; it follows its files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// Who is who (`identities.yaml`).
    pub identities: Identities,
    /// Tools by level (`permission_levels` in `personas.yaml`).
    pub presets: PermissionPresets,
    /// Which direct conversations share one session.
    pub dm_scope: DmScope,
    /// Whether the chat page is for whoever sits at this machine: then it is the owner's while nobody is known as them.
    pub is_chat_local: bool,
    /// Where agents' hooks may answer beyond their own conversations.
    pub deliveries: Deliveries,
}

/// One fire: which hook, upon which event, and what it answered.
#[derive(Debug, Clone, Copy)]
pub struct Fire<'a> {
    /// The event.
    pub event: &'a Event,
    /// Its sequence in `EVENTS`.
    pub event_seq: u64,
    /// The hook's id.
    pub hook_id: &'a str,
    /// What is known of the hook.
    pub traits: &'a Traits,
    /// What it answered.
    pub result: &'a HookResult,
    /// Evaluation time.
    pub evaluated_at: UnixMillis,
}

/// Whether the owner wrote `event`, in a direct conversation.
#[must_use]
pub fn is_owners(event: &Event, identities: &Identities) -> bool {
    identities.default_permissions(event).level == Level::Full
}

/// What `dm_scope = "auto"` means for `event`: the owner's conversations, and what timers say, are `main`; everybody else
/// has a session of their own per channel. As long as no address of the owner is known, whoever sits at this machine is
/// taken for them: the command line, and the chat page where that is for this machine alone.
fn scope_of(event: &Event, rules: &Rules) -> DmScope {
    match rules.dm_scope {
        DmScope::Auto => {}
        scope @ (DmScope::Main | DmScope::PerPeer | DmScope::PerChannelPeer | DmScope::PerAccountChannelPeer) => {
            return scope;
        }
    }

    let identities = &rules.identities;
    let owner = identities.owner.as_ref();
    let owner = owner.and_then(|id| identities.persons.iter().find(|person| person.id == *id));
    let has_address = owner.is_some_and(|owner| owner.addresses.values().any(|ids| !ids.is_empty()));
    let is_page = event.channel == WEBCHAT && event.origin.is_verified() && rules.is_chat_local;
    let is_local = event.origin.speaks_on(event) && (event.channel == CLI || is_page);

    let is_timer = event.origin == Origin::System && event.channel == TIMER_CHANNEL;
    if is_timer || is_owners(event, identities) || (is_local && !has_address) {
        DmScope::Main
    } else {
        DmScope::PerChannelPeer
    }
}

/// The session of `event` where the hook names none: by conversation, and by the hook's thread if it names one.
#[must_use]
pub fn derive_session(event: &Event, routing: &Routing, rules: &Rules) -> String {
    let peer = rules.identities.canonical_peer(event);
    match &routing.thread {
        None => session_key(event, scope_of(event, rules), &peer),
        Some(thread) => {
            let threaded = Event {
                thread_id: Some(thread.clone()),
                ..event.clone()
            };
            session_key(&threaded, scope_of(event, rules), &peer)
        }
    }
}

/// What tests of rights and of dispatches share.
#[cfg(test)]
pub(crate) mod samples {
    use shared::model::identity::Person;

    use super::*;

    /// Casey (1) owns it, mom (2) is known, anybody else is a stranger.
    pub(crate) fn rules() -> Rules {
        let person = |id: &str, address: &str| Person {
            id: id.to_owned(),
            addresses: BTreeMap::from([("telegram".to_owned(), vec![address.to_owned()])]),
            ..Person::default()
        };

        Rules {
            identities: Identities {
                owner: Some("casey".to_owned()),
                persons: vec![person("casey", "1"), person("mom", "2")],
                groups: BTreeMap::new(),
            },
            ..Rules::default()
        }
    }
}
