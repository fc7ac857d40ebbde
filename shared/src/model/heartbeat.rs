//! A persona's heartbeat: it is woken at intervals, with nobody having said anything. *Pure.* Source:
//! `docs/design/schedules.md` §2.6; seed 003 §4.

use serde::{Deserialize, Serialize};

use super::dispatch::DeliveryContext;

/// What a persona answers to a heartbeat where it has nothing to say: not delivered.
pub const QUIET: &str = "HEARTBEAT_OK";
/// How the ids of heartbeats' events begin.
pub const EVENT_PREFIX: &str = "timer:persona:";

/// `heartbeat` of a persona in `personas.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Heartbeat {
    /// How often: `30m`.
    pub every: String,
    /// The zone of the active hours.
    pub time_zone: String,
    /// `08:00-22:00`, local time: it does not beat outside; empty = always.
    pub active_hours: String,
    /// What it is told.
    pub prompt: String,
    /// The session that it is told in; a beat is left out while that is busy.
    pub session: String,
    /// Where its answer goes; nowhere where there is none.
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

/// `metadata.heartbeat` of a heartbeat's event: where it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatMark {
    /// The session of the persona.
    pub session: String,
    /// Where the answer goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<DeliveryContext>,
}
