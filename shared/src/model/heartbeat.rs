//! Heartbeats: a persona is woken at intervals although no message has arrived. *Pure.* Source:
//! `docs/design/schedules.md` §2.6; seed 003 §4.

use serde::{Deserialize, Serialize};

use super::dispatch::DeliveryContext;

/// Reply with which a persona says that a heartbeat found nothing to report. Nexus does not deliver it.
pub const QUIET: &str = "HEARTBEAT_OK";
/// Prefix of the ids of heartbeat events.
pub const EVENT_PREFIX: &str = "timer:persona:";

/// The `heartbeat` section of a persona in `personas.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Heartbeat {
    /// Interval between two beats, as a duration such as `30m`.
    pub every: String,
    /// IANA time zone of the active hours.
    pub time_zone: String,
    /// Part of the day in which the heartbeat is active, in local time, such as `08:00-22:00`; empty = the whole day.
    pub active_hours: String,
    /// Prompt that the persona receives with each beat.
    pub prompt: String,
    /// Key of the session that receives the prompt. A beat is skipped if this session is busy.
    pub session: String,
    /// Destination of the persona's replies; `None` = they are not delivered.
    pub deliver: Option<DeliveryContext>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            every: "30m".to_owned(),
            time_zone: "UTC".to_owned(),
            active_hours: String::new(),
            prompt: format!("Heartbeat: look whether anything needs you. If nothing does, answer {QUIET}."),
            session: "main".to_owned(),
            deliver: None,
        }
    }
}

/// The value of `metadata.heartbeat` in a heartbeat's event: its session, and the destination of the reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatMark {
    /// Key of the persona's session.
    pub session: String,
    /// Destination of the reply; `None` = it is not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<DeliveryContext>,
}
