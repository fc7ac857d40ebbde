//! Schedules of the heartbeats in `personas.yaml`. *Pure.*

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, json};
use shared::model::heartbeat::{Heartbeat, HeartbeatMark};
use shared::model::schedule::{ActiveHours, SchedulePolicies, ScheduleSpec, ScheduleTarget};
use shared::model::time::UnixMillis;
use shared::process::config::{KeyFault, read_yaml};
use shared::schedule::admission::admit_schedule;

/// Prefix of the ids of heartbeats.
pub const PREFIX: &str = "persona:";

/// The heartbeats of a `personas.yaml` make no schedules; it names every fault, at least one.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ReadHeartbeatsError(pub Vec<KeyFault>);

/// Part of the file that is read here; the rest is for the broker.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    personas: BTreeMap<String, Persona>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Persona {
    heartbeat: Option<Heartbeat>,
}

/// Returns the schedules of the heartbeats in `text`.
///
/// # Errors
/// Returns [`ReadHeartbeatsError`] with the persona and the key of each fault.
pub fn heartbeat_specs(text: &str, now: UnixMillis) -> Result<Vec<ScheduleSpec>, ReadHeartbeatsError> {
    let mut specs = Vec::new();
    let read = read_yaml(text, |file: &File| add_specs(file, now, &mut specs));
    read.map(|_| specs).map_err(ReadHeartbeatsError)
}

/// Adds the schedules of `file` to `specs`; returns their faults.
fn add_specs(file: &File, now: UnixMillis, specs: &mut Vec<ScheduleSpec>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    for (name, persona) in &file.personas {
        let Some(beat) = &persona.heartbeat else { continue };
        match heartbeat_spec(name, beat, now) {
            Ok(spec) => specs.push(spec),
            Err(found) => faults.extend(found),
        }
    }

    faults
}

fn heartbeat_spec(persona: &str, beat: &Heartbeat, now: UnixMillis) -> Result<ScheduleSpec, Vec<KeyFault>> {
    let mut faults = Vec::new();
    let mut fault = |key: &str, problem: String| {
        faults.push(KeyFault::new(format!("personas.{persona}.heartbeat.{key}"), problem));
    };

    let schedule = format!("every {}", beat.every);
    if let Err(error) = admit_schedule(&schedule, &beat.time_zone, now) {
        fault("every", error.to_string());
    }

    let hours = match beat.active_hours.trim() {
        "" => None,
        text => {
            let hours = active_hours(text);
            if hours.is_none() {
                fault("active_hours", format!("`{text}`: expected 08:00-22:00"));
            }
            hours
        }
    };

    if !faults.is_empty() {
        return Err(faults);
    }

    let mark = HeartbeatMark {
        session: beat.session.clone(),
        deliver: beat.deliver.clone(),
    };
    let metadata = Map::from_iter([("heartbeat".to_owned(), json!(mark))]);

    Ok(ScheduleSpec {
        id: format!("{PREFIX}{persona}"),
        schedule,
        zone: beat.time_zone.clone(),
        target: ScheduleTarget::Persona(persona.to_owned()),
        policies: SchedulePolicies::default(),
        active_hours: hours,
        content: beat.prompt.clone(),
        metadata,
    })
}

/// Parses hours such as `08:00-22:00`. Equal ends are no hours: the heartbeat would never fire.
fn active_hours(text: &str) -> Option<ActiveHours> {
    let (from, until) = text.split_once('-')?;
    let minute = |text: &str| {
        let (hours, minutes) = text.trim().split_once(':')?;
        let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
        (hours < 24 && minutes < 60 || (hours, minutes) == (24, 0)).then_some(hours * 60 + minutes)
    };

    let hours = ActiveHours {
        from_minute: minute(from)?,
        until_minute: minute(until)?,
    };

    (hours.from_minute != hours.until_minute).then_some(hours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(heartbeat: &str) -> Result<Vec<ScheduleSpec>, String> {
        let text = format!("personas:\n  default: {{runner: echo}}\n  atlas: {{heartbeat: {heartbeat}}}\n");
        heartbeat_specs(&text, UnixMillis(1_780_000_000_000)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_heartbeat_is_a_schedule_of_its_persona() {
        let specs = check("{every: 15m, active_hours: '08:00-22:30', session: inner}").expect("a heartbeat");
        let [spec] = specs.as_slice() else {
            panic!("one schedule")
        };

        assert_eq!(
            (spec.id.as_str(), spec.schedule.as_str()),
            ("persona:atlas", "every 15m")
        );

        let hours = ActiveHours {
            from_minute: 480,
            until_minute: 1_350,
        };
        assert_eq!(spec.active_hours, Some(hours));
        assert_eq!(spec.metadata["heartbeat"], json!({"session": "inner"}));
    }

    #[test]
    fn faults_name_persona_and_key() {
        for (heartbeat, said) in [
            ("{every: soon}", "personas.atlas.heartbeat.every: every: `soon`"),
            ("{every: 5s}", "personas.atlas.heartbeat.every: fires more often"),
            (
                "{active_hours: morning}",
                "personas.atlas.heartbeat.active_hours: `morning`",
            ),
            (
                "{active_hours: '08:00-08:00'}",
                "personas.atlas.heartbeat.active_hours: `08:00-08:00`",
            ),
            (
                "{time_zone: Mars}",
                "personas.atlas.heartbeat.every: unknown time zone `Mars`",
            ),
        ] {
            let error = check(heartbeat).expect_err("it is wrong");
            assert!(error.starts_with(said), "{error}");
        }

        let both = check("{every: soon, active_hours: morning}").expect_err("two faults");
        assert!(
            both.contains("heartbeat.every") && both.contains("heartbeat.active_hours"),
            "{both}"
        );

        assert!(check("{evry: 5m}").is_err());
        assert_eq!(heartbeat_specs("", UnixMillis(0)).expect("an empty file"), []);
    }
}
