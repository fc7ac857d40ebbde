//! Schedules of hooks (`@schedule`) as entries in KV `schedules`. *Pure.*
//!
//! Every replica computes the same entries from the same registry, so every replica may write them. A hook that is
//! disabled, or waits for a channel, has no schedules; an invalid `@schedule` is logged and left out, without effect on
//! others. Source: `docs/design/hooks.md` §1; `docs/design/schedules.md` §2.

use std::collections::BTreeMap;

use shared::model::channel::ConfiguredChannels;
use shared::model::hook::{HookRecord, HookState, HookStatus};
use shared::model::schedule::{SchedulePolicies, ScheduleSpec, ScheduleTarget};
use shared::model::time::UnixMillis;
use shared::schedule::admission;

use crate::registry::active_hooks::waits_for;
use crate::registry::metadata::MAX_SCHEDULES;

/// Prefix of the ids of hooks' schedules.
pub const PREFIX: &str = "hook:";

/// Returns the schedules of all hooks that run, and the errors of invalid ones (hook id and reason). Times without a
/// zone of their own are in `zone`.
#[must_use]
pub fn timer_specs(
    records: &BTreeMap<String, HookRecord>,
    states: &BTreeMap<String, HookState>,
    channels: &ConfiguredChannels,
    zone: &str,
) -> (Vec<ScheduleSpec>, Vec<(String, String)>) {
    let (mut specs, mut wrong) = (Vec::new(), Vec::new());
    // An errored hook keeps its schedules: its last good version is in force.
    let runs = |key: &String, record: &HookRecord| {
        let status = states.get(key).map_or(HookStatus::Active, |state| state.status);
        record.enabled
            && !record.source.is_empty()
            && status != HookStatus::Disabled
            && waits_for(record, channels).is_none()
    };

    for (key, record) in records {
        if !runs(key, record) {
            continue;
        }

        for (number, schedule) in record.metadata.schedules.iter().take(MAX_SCHEDULES).enumerate() {
            let zone = record.metadata.timezone.as_deref().unwrap_or(zone);
            // The file was checked when it was read, but an entry may be older than the present rules.
            if let Err(error) = admission::check(schedule, zone, UnixMillis(0)) {
                wrong.push((record.id.clone(), error.to_string()));
                continue;
            }

            specs.push(ScheduleSpec {
                id: format!("{PREFIX}{}:{number}", record.id),
                schedule: schedule.clone(),
                zone: zone.to_owned(),
                target: ScheduleTarget::Hook(record.id.clone()),
                policies: SchedulePolicies::default(),
                active_hours: None,
                content: String::new(),
                metadata: serde_json::Map::new(),
            });
        }
    }

    (specs, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::sync::tests::record;

    fn timed(id: &str, schedules: &[&str]) -> HookRecord {
        let mut record = record(id);
        record.metadata.schedules = schedules.iter().map(ToString::to_string).collect();
        record
    }

    #[test]
    fn hooks_that_run_have_their_schedules() {
        let off = HookRecord {
            enabled: false,
            ..timed("off", &["every 1h"])
        };
        let mut here = timed("here", &["every 30m", "cron 0 9 * * MON-FRI"]);
        here.metadata.timezone = Some("America/Chicago".to_owned());
        let records = [here, off, timed("wrong", &["every 1s", "every 2h"])];
        let records = records.into_iter().map(|record| (record.id.clone(), record)).collect();
        let (specs, wrong) = timer_specs(&records, &BTreeMap::new(), &ConfiguredChannels::default(), "UTC");
        let told: Vec<_> = specs
            .iter()
            .map(|spec| (spec.id.as_str(), spec.zone.as_str()))
            .collect();

        assert_eq!(
            told,
            [
                ("hook:here:0", "America/Chicago"),
                ("hook:here:1", "America/Chicago"),
                ("hook:wrong:1", "UTC"),
            ]
        );
        assert_eq!((wrong.len(), wrong[0].0.as_str()), (1, "wrong"));
    }
}
