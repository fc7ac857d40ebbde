//! Schedules of the jobs in `[scheduler.jobs.NAME]`. *Pure.* Source: seed 003 §4.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Map;
use shared::model::schedule::{MissedPolicy, OverlapPolicy, SchedulePolicies, ScheduleSpec, ScheduleTarget};
use shared::model::time::UnixMillis;
use shared::schedule::admission::check;
use shared::schedule::duration;

/// Prefix of the ids of jobs.
pub const PREFIX: &str = "config:";
/// Maximum length of a job's name, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Instant from which on it is checked whether a job fires too often.
const SAMPLED_FROM: UnixMillis = UnixMillis(0);

/// A job of the configuration: its events carry `metadata.schedule.target = {kind: "config", id: NAME}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfiguredJob {
    /// Text of the schedule: `every 30m`, `cron 0 9 * * MON-FRI`, `rrule …`, `at …`.
    pub schedule: String,
    /// Time zone of its times; empty for `scheduler.time_zone`.
    pub time_zone: String,
    /// Content of its events.
    pub content: String,
    /// Policy while the previous firing is in progress: `skip`, `buffer_one`, `allow`.
    pub overlap: OverlapPolicy,
    /// Policy for firings that were missed in an outage: `skip`, `fire_once`, `all`.
    pub missed: MissedPolicy,
    /// Maximum delay of a firing that is made up for: `10m`; empty for 10 minutes, or 24 hours for `at`.
    pub catchup_window: String,
    /// Maximum random delay of firings: `30s`; empty for none.
    pub jitter: String,
}

/// Returns the schedules of `jobs`; `zone` is the time zone of those that name none.
///
/// # Errors
/// Returns all faults, as `jobs.NAME.key: problem`.
pub fn job_specs(jobs: &BTreeMap<String, ConfiguredJob>, zone: &str) -> Result<Vec<ScheduleSpec>, Vec<String>> {
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for (name, job) in jobs {
        match job_spec(name, job, zone) {
            Ok(spec) => found.push(spec),
            Err(fault) => faults.push(format!("jobs.{name}.{fault}")),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

fn job_spec(name: &str, job: &ConfiguredJob, zone: &str) -> Result<ScheduleSpec, String> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(format!("name: expected 1 to {MAX_NAME_BYTES} bytes"));
    }

    let zone = if job.time_zone.is_empty() { zone } else { &job.time_zone };
    // Whether it still fires is not checked: a configuration stays valid after the last firing.
    check(&job.schedule, zone, SAMPLED_FROM).map_err(|error| format!("schedule: {error}"))?;

    let millis = |key: &str, text: &str| match text {
        "" => Ok(None),
        text => duration::parse(text)
            .map(|millis| Some(millis.unsigned_abs()))
            .map_err(|error| format!("{key}: {error}")),
    };

    Ok(ScheduleSpec {
        id: format!("{PREFIX}{name}"),
        schedule: job.schedule.clone(),
        zone: zone.to_owned(),
        target: ScheduleTarget::Config(name.to_owned()),
        policies: SchedulePolicies {
            overlap: job.overlap,
            missed: job.missed,
            catchup_window_ms: millis("catchup_window", &job.catchup_window)?,
            jitter_ms: millis("jitter", &job.jitter)?.unwrap_or(0),
        },
        active_hours: None,
        content: job.content.clone(),
        metadata: Map::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(schedule: &str) -> ConfiguredJob {
        ConfiguredJob {
            schedule: schedule.to_owned(),
            ..ConfiguredJob::default()
        }
    }

    #[test]
    fn a_job_is_a_schedule() {
        let mut report = job("cron 0 9 * * MON-FRI");
        report.jitter = "30s".to_owned();
        let jobs = BTreeMap::from([("report".to_owned(), report)]);
        let specs = job_specs(&jobs, "Europe/Berlin").expect("good jobs");
        assert_eq!(
            (specs[0].id.as_str(), specs[0].zone.as_str()),
            ("config:report", "Europe/Berlin")
        );
        assert_eq!(specs[0].policies.jitter_ms, 30_000);
    }

    #[test]
    fn all_faults_are_told() {
        let mut window = job("every 1h");
        window.catchup_window = "long".to_owned();
        let jobs = BTreeMap::from([
            ("a".to_owned(), job("daily")),
            ("b".to_owned(), window),
            ("c".to_owned(), job("every 5s")),
        ]);

        let faults = job_specs(&jobs, "UTC").expect_err("three faults");
        assert!(faults[0].starts_with("jobs.a.schedule: "), "{faults:?}");
        assert!(faults[1].starts_with("jobs.b.catchup_window: "), "{faults:?}");
        assert!(
            faults[2].starts_with("jobs.c.schedule: fires more often than once a minute"),
            "{faults:?}"
        );

        let nowhere = job_specs(&BTreeMap::from([("c".to_owned(), job("every 1h"))]), "Mars").expect_err("no zone");
        assert_eq!(nowhere, ["jobs.c.schedule: unknown time zone `Mars`"]);
    }
}
