//! Schedules of the heartbeats in `personas.yaml`. *Pure.*

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, json};
use shared::model::heartbeat::{Heartbeat, HeartbeatMark};
use shared::model::schedule::{ActiveHours, SchedulePolicies, ScheduleSpec, ScheduleTarget};
use shared::model::time::UnixMillis;
use shared::schedule::admission::admit;

/// Prefix of the ids of heartbeats.
pub const PREFIX: &str = "persona:";

/// Reason why the heartbeats of a `personas.yaml` make no schedules.
#[derive(Debug, thiserror::Error)]
pub enum ReadHeartbeatsError {
    /// The file is not YAML of this form.
    #[error("personas: not the expected YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// A heartbeat is not valid.
    #[error("personas.{persona}.heartbeat.{what}")]
    Heartbeat {
        /// Name of the persona.
        persona: String,
        /// Key, and the reason why its value is not valid.
        what: String,
    },
}

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
/// Returns [`ReadHeartbeatsError`] with the persona and the key.
pub fn heartbeats(text: &str, now: UnixMillis) -> Result<Vec<ScheduleSpec>, ReadHeartbeatsError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let file: File = serde_yaml_ng::from_str(text)?;
    let beats = file
        .personas
        .into_iter()
        .filter_map(|(name, persona)| Some((name, persona.heartbeat?)));
    beats.map(|(name, beat)| spec(&name, beat, now)).collect()
}

fn spec(persona: &str, beat: Heartbeat, now: UnixMillis) -> Result<ScheduleSpec, ReadHeartbeatsError> {
    let wrong = |what: String| ReadHeartbeatsError::Heartbeat {
        persona: persona.to_owned(),
        what,
    };
    let schedule = format!("every {}", beat.every);
    admit(&schedule, &beat.time_zone, now).map_err(|error| wrong(format!("every: {error}")))?;

    let hours = match beat.active_hours.trim() {
        "" => None,
        text => {
            let hours = active_hours(text);
            Some(hours.ok_or_else(|| wrong(format!("active_hours: `{text}`: expected 08:00-22:00")))?)
        }
    };

    let mark = HeartbeatMark {
        session: beat.session,
        deliver: beat.deliver,
    };
    let metadata = Map::from_iter([("heartbeat".to_owned(), json!(mark))]);

    Ok(ScheduleSpec {
        id: format!("{PREFIX}{persona}"),
        schedule,
        zone: beat.time_zone,
        target: ScheduleTarget::Persona(persona.to_owned()),
        policies: SchedulePolicies::default(),
        active_hours: hours,
        content: beat.prompt,
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
        heartbeats(&text, UnixMillis(1_780_000_000_000)).map_err(|error| error.to_string())
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
            ("{time_zone: Mars}", "personas.atlas.heartbeat.every: time zone `Mars`"),
        ] {
            let error = check(heartbeat).expect_err("it is wrong");
            assert!(error.starts_with(said), "{error}");
        }

        assert!(check("{evry: 5m}").is_err());
        assert_eq!(heartbeats("", UnixMillis(0)).expect("an empty file"), []);
    }
}
