//! Schedules of intents: the time or condition of a firing. *Pure.* Source: `docs/design/schedules.md` §3.3
//! (Schedule).
//!
//! Civil times are stored as local time and zone, never as an offset: a zone's rules may change before the day comes.

use serde::{Deserialize, Serialize};

use crate::model::event::{Event, EventDirection};
use crate::wire::unknown::lenient;

/// Default quiet time after which a conversation has ended, in seconds.
pub const DEFAULT_IDLE_SECONDS: u64 = 30 * 60;
/// Default time for which a condition is checked, in seconds: seven days.
pub const DEFAULT_DEADLINE_SECONDS: u64 = 7 * 24 * 3_600;

const fn default_idle() -> u64 {
    DEFAULT_IDLE_SECONDS
}

const fn default_deadline() -> u64 {
    DEFAULT_DEADLINE_SECONDS
}

/// The time, recurrence or condition of an intent's firing.
///
/// ```
/// use shared::model::intent::schedule::IntentSchedule;
///
/// let once: IntentSchedule = serde_json::from_str(r#"{"type": "after", "seconds": 90}"#)?;
/// assert!(!once.recurs());
/// let daily = r#"{"type": "rrule", "rule": "FREQ=DAILY;COUNT=5", "start": "2026-11-26T08:00", "zone": "Europe/Berlin"}"#;
/// assert!(serde_json::from_str::<IntentSchedule>(daily)?.recurs());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum IntentSchedule {
    /// Fires at a local time.
    At {
        /// Local time such as `2026-11-23T08:00`, with or without seconds.
        local: String,
        /// IANA name of the zone, e.g. `Europe/Berlin`.
        zone: String,
    },
    /// Fires after a delay.
    After {
        /// Delay from the admission, in seconds.
        seconds: u64,
    },
    /// Fires repeatedly by a cron expression, until a local time.
    Cron {
        /// Cron expression of five or six fields.
        expression: String,
        /// IANA name of the zone.
        zone: String,
        /// Last local time at which it may fire.
        until: String,
    },
    /// Fires repeatedly by a recurrence rule of RFC 5545 that ends by COUNT or UNTIL.
    Rrule {
        /// Rule such as `FREQ=DAILY;COUNT=5`.
        rule: String,
        /// DTSTART in local time.
        start: String,
        /// IANA name of the zone.
        zone: String,
    },
    /// Fires once the user has been silent in the conversation for a time.
    UserIdle {
        /// Required silence, in seconds.
        for_seconds: u64,
        /// Time after which the condition is given up, in seconds.
        #[serde(default = "default_deadline")]
        deadline_seconds: u64,
    },
    /// Fires once the conversation has been quiet for a time, or the session was reset.
    ChatEnded {
        /// Required quiet time, in seconds.
        #[serde(default = "default_idle")]
        idle_seconds: u64,
        /// Time after which the condition is given up, in seconds.
        #[serde(default = "default_deadline")]
        deadline_seconds: u64,
    },
    /// Fires once a matching event arrives.
    EventMatches {
        /// Conditions that the event must meet.
        #[serde(rename = "match", deserialize_with = "lenient")]
        matches: EventMatch,
        /// Time after which the condition is given up, in seconds.
        #[serde(default = "default_deadline")]
        deadline_seconds: u64,
    },
}

impl IntentSchedule {
    /// Returns whether it may fire more than once.
    #[must_use]
    pub const fn recurs(&self) -> bool {
        match self {
            Self::Cron { .. } | Self::Rrule { .. } => true,
            Self::At { .. }
            | Self::After { .. }
            | Self::UserIdle { .. }
            | Self::ChatEnded { .. }
            | Self::EventMatches { .. } => false,
        }
    }

    /// Returns the time after which its condition is given up, in seconds; `None` = it has no condition.
    #[must_use]
    pub const fn deadline_seconds(&self) -> Option<u64> {
        match self {
            Self::UserIdle { deadline_seconds, .. }
            | Self::ChatEnded { deadline_seconds, .. }
            | Self::EventMatches { deadline_seconds, .. } => Some(*deadline_seconds),
            Self::At { .. } | Self::After { .. } | Self::Cron { .. } | Self::Rrule { .. } => None,
        }
    }

    /// Returns the required quiet time of the conversation, in seconds; `None` = it does not depend on quiet.
    #[must_use]
    pub const fn quiet_seconds(&self) -> Option<u64> {
        match self {
            Self::UserIdle { for_seconds, .. } => Some(*for_seconds),
            Self::ChatEnded { idle_seconds, .. } => Some(*idle_seconds),
            Self::At { .. }
            | Self::After { .. }
            | Self::Cron { .. }
            | Self::Rrule { .. }
            | Self::EventMatches { .. } => None,
        }
    }
}

impl std::fmt::Display for IntentSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At { local, zone } => write!(f, "at {local} {zone}"),
            Self::After { seconds } => write!(f, "after {seconds} s"),
            Self::Cron {
                expression,
                zone,
                until,
            } => write!(f, "cron `{expression}` {zone} until {until}"),
            Self::Rrule { rule, start, zone } => write!(f, "{rule} from {start} {zone}"),
            Self::UserIdle { for_seconds, .. } => write!(f, "user idle for {for_seconds} s"),
            Self::ChatEnded { idle_seconds, .. } => write!(f, "chat ended (idle {idle_seconds} s)"),
            Self::EventMatches { matches, .. } => write!(f, "event matches {matches}"),
        }
    }
}

/// Conditions on an event: all that are present must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventMatch {
    /// Channel of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Id of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Id of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Text that the content contains, compared without ASCII case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
}

impl EventMatch {
    /// Returns whether there is no condition, so that every event would match. An empty text is no condition: every
    /// content contains it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let says_nothing = self.contains.as_ref().is_none_or(String::is_empty);
        self.channel.is_none() && self.peer.is_none() && self.from.is_none() && says_nothing
    }

    /// Returns whether `event` meets the conditions. Events that Nexus sent and timers never do, and a sender or
    /// conversation that the event only claims never does either.
    #[must_use]
    pub fn matches_event(&self, event: &Event) -> bool {
        let ours = match event.direction {
            EventDirection::Sent => true,
            EventDirection::Received
            | EventDirection::Observed
            | EventDirection::Created
            | EventDirection::Updated
            | EventDirection::Deleted => event.channel == "timer",
        };

        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let said = self.contains.as_ref().is_none_or(|wanted| {
            let content = event.content.to_ascii_lowercase();
            content.contains(&wanted.to_ascii_lowercase())
        });

        // Only an origin that speaks for the conversation proves its peer or sender.
        let names_somebody = self.peer.is_some() || self.from.is_some();
        !ours
            && !self.is_empty()
            && (!names_somebody || event.origin.speaks_on(event))
            && is(&self.channel, &event.channel)
            && is(&self.peer, &event.peer.id)
            && is(&self.from, &event.from.id)
            && said
    }
}

impl std::fmt::Display for EventMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            ("channel", &self.channel),
            ("peer", &self.peer),
            ("from", &self.from),
            ("contains", &self.contains),
        ];

        let told: Vec<String> = parts
            .into_iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}={value}")))
            .collect();

        f.write_str(&told.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventId;
    use crate::model::origin::EventOrigin;
    use crate::model::time::UnixMillis;
    use crate::wire::unknown::read_strict;

    fn event(channel: &str, content: &str) -> Event {
        let id = EventId::parse(format!("{channel}:1")).expect("an id");
        let mut event = Event::new(id, channel, "p", UnixMillis(0));
        content.clone_into(&mut event.content);
        event
    }

    #[test]
    fn all_that_is_given_has_to_hold() {
        let wanted = EventMatch {
            channel: Some("email".to_owned()),
            contains: Some("Invoice".to_owned()),
            ..EventMatch::default()
        };
        assert!(wanted.matches_event(&event("email", "your INVOICE is there")));
        assert!(!wanted.matches_event(&event("email", "hello")));
        assert!(!wanted.matches_event(&event("slack", "invoice")));

        let from_peer = EventMatch {
            peer: Some("p".to_owned()),
            ..wanted.clone()
        };
        let mut said = event("email", "invoice");
        assert!(!from_peer.matches_event(&said), "anybody can say so");

        said.origin = EventOrigin::account("email", "default");
        assert!(from_peer.matches_event(&said));
        assert!(
            !EventMatch::default().matches_event(&event("email", "invoice")),
            "nothing is asked for"
        );

        let sent = Event {
            direction: EventDirection::Sent,
            ..event("email", "invoice")
        };
        assert!(!wanted.matches_event(&sent), "our own");
    }

    #[test]
    fn schedules_are_read_strictly() {
        let chat: IntentSchedule = serde_json::from_str(r#"{"type":"chat_ended"}"#).expect("defaults");
        assert_eq!(chat.quiet_seconds(), Some(1_800));

        for bad in [
            r#"{"type":"after","seconds":5,"zone":"UTC"}"#,
            r#"{"type":"after","seconds":-5}"#,
            r#"{"type":"tomorrow"}"#,
            r#"{"type":"event_matches","match":{"colour":"red"}}"#,
        ] {
            let written: serde_json::Value = serde_json::from_str(bad).expect("JSON");
            assert!(read_strict::<IntentSchedule, _>(written).is_err(), "{bad}");
        }
    }
}
