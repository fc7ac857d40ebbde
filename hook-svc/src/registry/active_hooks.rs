//! Roster of the hooks that see events, made from the registry's records and their run-time states. *Pure.*

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use shared::model::channel::ConfiguredChannels;
use shared::model::event::EventId;
use shared::model::hook::{HookMetadata, HookMode, HookRecord, HookState, HookStatus, MadeIn};
use shared::model::hook_api::OPERATOR;
use shared::model::time::UnixMillis;

use crate::registry::one_shot::StoredFire;
use crate::routing::prefilter::MatchRule;
use crate::runner::{HookScope, HookSet, HookSource, reads_counters};

/// Author of a hook, on whose authority it acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookAuthor {
    /// An operator wrote the hook.
    Operator,
    /// An agent, or another person who is no operator, wrote the hook.
    Agent {
        /// Name of the author, from `created_by`.
        name: String,
        /// Turn in which the hook was made; if it is unknown, the hook has the least rights.
        made_in: Option<Box<MadeIn>>,
    },
}

/// Traits of a hook that the runner does not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookTraits {
    /// Priority of its dispatches, from `@priority`.
    pub priority: i32,
    /// Whether it is a `@fallback` hook.
    pub fallback: bool,
    /// Whether it fires once only (`@mode one-shot`).
    pub one_shot: bool,
    /// Author of the hook, which determines its rights.
    pub author: Arc<HookAuthor>,
    /// Whether its source mentions how often or when it fired: each of its fires is then counted before its dispatch is
    /// stored.
    pub reads_counters: bool,
    /// Time of creation, which tells it from another hook of its name.
    pub made_at: UnixMillis,
}

impl Default for HookTraits {
    /// Returns the traits of a hook that the registry no longer has.
    fn default() -> Self {
        Self {
            priority: 50,
            fallback: false,
            one_shot: false,
            author: Arc::new(HookAuthor::Agent {
                name: String::new(),
                made_in: None,
            }),
            reads_counters: false,
            made_at: UnixMillis(0),
        }
    }
}

/// The registry at one instant.
#[derive(Debug, Default)]
pub struct ActiveHooks {
    /// Hooks that see events.
    pub set: Arc<HookSet>,
    traits: HashMap<String, HookTraits>,
    stored: HashMap<EventId, Vec<StoredFire>>,
}

impl ActiveHooks {
    /// Creates the roster of `records` and `states` (by KV key). Its set has the enabled records with a valid source
    /// that are not disabled and whose channels are all in `channels`. Paused hooks are included: their breaker decides
    /// for each event whether they are called.
    ///
    /// A hook with `@schedule` and no `@match` sees only events of its own timer.
    #[must_use]
    pub fn from_records(
        records: &BTreeMap<String, HookRecord>,
        states: &BTreeMap<String, HookState>,
        channels: &ConfiguredChannels,
    ) -> Self {
        // Paused and degraded hooks stay in the set: their breaker decides about each call.
        let sees_events = |(key, record): &(&String, &HookRecord)| {
            let status = states.get(*key).map_or(HookStatus::Active, |state| state.status);
            let runs = match status {
                HookStatus::Active | HookStatus::Degraded | HookStatus::Waiting | HookStatus::Paused => true,
                HookStatus::Disabled | HookStatus::Errored => false,
            };
            record.enabled && runs && !record.source.is_empty() && waits_for(record, channels).is_none()
        };

        let set = HookSet::new(records.iter().filter(sees_events).map(|(_, record)| source_of(record)));
        let traits = records
            .values()
            .map(|record| (record.id.clone(), traits_of(record)))
            .collect();

        // A repeated evaluation finds here which one-shot hooks its event has won.
        let mut stored: HashMap<EventId, Vec<StoredFire>> = HashMap::new();
        for (key, record) in records {
            let fired = states.get(key).and_then(|state| state.fired_once.as_ref());
            if let Some(fired) = fired.filter(|fired| fired.result.fire) {
                let fire = StoredFire {
                    hook_id: record.id.clone(),
                    result: fired.result.clone(),
                };
                stored.entry(fired.event_id.clone()).or_default().push(fire);
            }
        }

        Self {
            set: Arc::new(set),
            traits,
            stored,
        }
    }

    /// Returns the traits of the hook `id`.
    #[must_use]
    pub fn hook_traits(&self, id: &str) -> HookTraits {
        self.traits.get(id).cloned().unwrap_or_default()
    }

    /// Returns the fires of one-shot hooks that the occurrence `key` won, which must be published again if it is
    /// redelivered. Such hooks are disabled and not in the set.
    #[must_use]
    pub fn stored_fires(&self, key: &EventId) -> &[StoredFire] {
        self.stored.get(key).map_or(&[], Vec::as_slice)
    }
}

/// Returns a channel that `record` needs and that is not configured, if any.
#[must_use]
pub fn waits_for<'a>(record: &'a HookRecord, channels: &ConfiguredChannels) -> Option<&'a str> {
    channels.missing_need(&record.metadata.needs_channels)
}

/// Returns the SHA-256 of the source of `record` that is in force, in hex. The record's own hash is of the file as last
/// seen, which may be an invalid one that does not run.
#[must_use]
pub fn source_hash(record: &HookRecord) -> String {
    HEXLOWER.encode(&Sha256::digest(record.source.as_bytes()))
}

/// Returns the source of `record` for the runner.
#[must_use]
pub fn source_of(record: &HookRecord) -> HookSource {
    HookSource {
        id: record.id.clone(),
        name: record.metadata.name.clone(),
        source: record.source.clone(),
        content_hash: source_hash(record),
        timeout_ms: record.metadata.timeout_ms,
        created_at: record.created_at,
        created_by: record.created_by.clone(),
        sees: seen_events(&record.metadata),
        net: record.metadata.allow_net.clone(),
    }
}

/// Returns which events a hook with `metadata` sees.
#[must_use]
pub fn seen_events(metadata: &HookMetadata) -> HookScope {
    let Some(text) = &metadata.match_rule else {
        return if metadata.schedules.is_empty() {
            HookScope::Everything
        } else {
            HookScope::OwnTimer
        };
    };
    // The rule was parsed with the file; a rule that is no longer valid must not match other events.
    MatchRule::parse(text).map_or(HookScope::OwnTimer, HookScope::Matching)
}

fn traits_of(record: &HookRecord) -> HookTraits {
    HookTraits {
        priority: record.metadata.priority,
        fallback: record.metadata.fallback,
        one_shot: matches!(record.metadata.mode, HookMode::OneShot),
        author: Arc::new(author_of(record)),
        reads_counters: reads_counters(&record.source),
        made_at: record.created_at,
    }
}

fn author_of(record: &HookRecord) -> HookAuthor {
    if record.created_by == OPERATOR {
        return HookAuthor::Operator;
    }
    HookAuthor::Agent {
        name: record.created_by.clone(),
        made_in: record.made_in.clone(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use shared::model::hook::{FiredOnce, HookResult};

    use super::*;
    use crate::registry::sync::tests::record;

    pub(crate) fn source(id: &str) -> HookSource {
        source_of(&record(id))
    }

    fn ids(roster: &ActiveHooks) -> Vec<&str> {
        roster.set.hooks().iter().map(|hook| hook.id.as_str()).collect()
    }

    #[test]
    fn a_hook_sees_events_once_the_channel_that_it_needs_is_there() {
        let mut needing = record("needing");
        needing.metadata.needs_channels = vec!["webhook:owner".to_owned()];
        let records = [needing, record("plain")];
        let records = records.into_iter().map(|record| (record.id.clone(), record)).collect();

        let with = |accounts: &[&str]| {
            let accounts = accounts.iter().map(ToString::to_string).collect();
            let there = ConfiguredChannels {
                accounts: [("webhook".to_owned(), accounts)].into(),
            };
            let roster = ActiveHooks::from_records(&records, &BTreeMap::new(), &there);
            ids(&roster).join(" ")
        };

        assert_eq!(with(&["demo"]), "plain");
        assert_eq!(with(&["demo", "owner"]), "needing plain");
    }

    fn check(records: Vec<HookRecord>, states: Vec<(&str, HookState)>) -> ActiveHooks {
        let records = records.into_iter().map(|record| (record.id.clone(), record)).collect();
        ActiveHooks::from_records(
            &records,
            &states.into_iter().map(|(id, state)| (id.to_owned(), state)).collect(),
            &ConfiguredChannels::default(),
        )
    }

    #[test]
    fn disabled_and_sourceless_hooks_see_nothing_and_paused_ones_wait_for_their_probe() {
        let mut timed = record("timed");
        timed.metadata.schedules.push("every 30m".to_owned());
        let paused = HookState {
            status: HookStatus::Paused,
            ..HookState::default()
        };

        let records = vec![
            record("good"),
            HookRecord {
                enabled: false,
                ..record("off")
            },
            HookRecord {
                source: String::new(),
                ..record("broken")
            },
            record("paused"),
            timed,
        ];

        let roster = check(records, vec![("paused", paused)]);
        assert_eq!(ids(&roster), ["good", "paused", "timed"]);
    }

    #[test]
    fn a_hook_that_nobody_knows_is_no_operators() {
        let made = HookRecord {
            created_by: "agent:atlas".to_owned(),
            ..record("made")
        };
        let roster = check(vec![record("filed"), made], vec![]);
        assert_eq!(*roster.hook_traits("filed").author, HookAuthor::Operator);

        for id in ["made", "unknown"] {
            assert!(
                matches!(*roster.hook_traits(id).author, HookAuthor::Agent { made_in: None, .. }),
                "{id}"
            );
        }
    }

    #[test]
    fn the_fire_of_a_one_shot_hook_is_found_by_its_event() {
        let event_id = EventId::parse("webchat:1").expect("valid");
        let result = HookResult {
            fire: true,
            ..HookResult::default()
        };

        let fired_once = Some(FiredOnce {
            event_id: event_id.clone(),
            result,
        });
        let state = HookState {
            status: HookStatus::Disabled,
            fired_once,
            ..HookState::default()
        };

        let roster = check(vec![record("once")], vec![("once", state)]);
        assert_eq!(ids(&roster), [""; 0]);
        assert_eq!(roster.stored_fires(&event_id)[0].hook_id, "once");
        assert!(
            roster
                .stored_fires(&EventId::parse("webchat:2").expect("valid"))
                .is_empty()
        );
    }
}
