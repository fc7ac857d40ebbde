//! Definition of a fire, the owner of its event, and the session it belongs to if the hook names none. *Pure.*
//!
//! Used for both rights and dispatches. Source: seed 001 §4; `docs/design/trust.md` §1.

pub mod bindings;
pub mod prefilter;

use std::collections::BTreeMap;

use shared::model::event::Event;
use shared::model::hook::{HookResult, HookRouting};
use shared::model::identity::Identities;
use shared::model::origin::{EventOrigin, WEBCHAT};
use shared::model::permission::{PermissionLevel, PermissionPresets};
use shared::model::session::{DmScope, session_key};
use shared::model::time::UnixMillis;
use shared::platform::group_prompts::GroupPrompts;

use crate::registry::active_hooks::HookTraits;

/// Channel of the command line.
const CLI: &str = "cli";
/// Channel of timer events.
const TIMER_CHANNEL: &str = "timer";

/// Conversations beyond its own in which an agent's hook may answer, by hook id: `{channel}:{peer}` or `{channel}:*`.
pub type DeliveryGrants = BTreeMap<String, Vec<String>>;

/// Configuration for building dispatches; it follows its files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoutingRules {
    /// Persons, groups and the owner (`identities.yaml`).
    pub identities: Identities,
    /// Tool rules by level (`permission_levels` in `personas.yaml`).
    pub presets: PermissionPresets,
    /// Selects the direct conversations that share one session.
    pub dm_scope: DmScope,
    /// Whether the chat page is used only at this machine: it then belongs to the owner while no address of the owner
    /// is known.
    pub is_chat_local: bool,
    /// Conversations in which agents' hooks may answer beyond their own.
    pub deliveries: DeliveryGrants,
    /// Instructions for agents by group (`channels.yaml`).
    pub group_prompts: GroupPrompts,
}

/// One fire: the hook, its event, and its result.
#[derive(Debug, Clone, Copy)]
pub struct HookFire<'a> {
    /// Event for which the hook fired.
    pub event: &'a Event,
    /// Sequence of the event in `EVENTS`.
    pub event_seq: u64,
    /// Id of the hook.
    pub hook_id: &'a str,
    /// Traits of the hook.
    pub traits: &'a HookTraits,
    /// Result of the hook.
    pub result: &'a HookResult,
    /// Time of the evaluation.
    pub evaluated_at: UnixMillis,
}

/// Returns whether the owner wrote `event`, in a direct conversation.
#[must_use]
pub fn is_owners(event: &Event, identities: &Identities) -> bool {
    identities.default_permissions(event).level == PermissionLevel::Full
}

/// Resolves `dm_scope = "auto"` for `event`: the owner's conversations and timer events use `main`; every other person
/// has a session of their own per channel. While no address of the owner is known, the person at this machine is
/// treated as the owner: on the command line, and on the chat page if it is for this machine alone.
fn scope_of(event: &Event, rules: &RoutingRules) -> DmScope {
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
    // A local page or terminal counts as the owner's only while the owner has no address.
    let is_local = event.origin.speaks_on(event) && (event.channel == CLI || is_page);

    let is_timer = event.origin == EventOrigin::System && event.channel == TIMER_CHANNEL;
    if is_timer || is_owners(event, identities) || (is_local && !has_address) {
        DmScope::Main
    } else {
        DmScope::PerChannelPeer
    }
}

/// Returns the session of `event` if the hook names none: by conversation, and by the hook's thread if it names one.
#[must_use]
pub fn derive_session(event: &Event, routing: &HookRouting, rules: &RoutingRules) -> String {
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

/// Samples shared by the tests of rights and of dispatches.
#[cfg(test)]
pub(crate) mod samples {
    use shared::model::identity::KnownPerson;

    use super::*;

    /// Returns rules with Casey (1) as the owner and mom (2) as a known person; every other sender is a stranger.
    pub(crate) fn rules() -> RoutingRules {
        let person = |id: &str, address: &str| KnownPerson {
            id: id.to_owned(),
            addresses: BTreeMap::from([("telegram".to_owned(), vec![address.to_owned()])]),
            ..KnownPerson::default()
        };

        RoutingRules {
            identities: Identities {
                owner: Some("casey".to_owned()),
                persons: vec![person("casey", "1"), person("mom", "2")],
                groups: BTreeMap::new(),
            },
            ..RoutingRules::default()
        }
    }
}
