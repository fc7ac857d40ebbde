//! Questions and orders about schedules, as `nexus.svc.schedule.*` takes and gives them. *Pure.*

use serde::{Deserialize, Serialize};

use super::schedule::{NextFiring, ScheduleRecord};
use super::time::UnixMillis;

/// Most firings that one preview tells, or one backfill makes.
pub const MAX_FIRINGS: usize = 100;
/// Firings that a preview tells where nothing else is asked.
pub const PREVIEWED: usize = 10;

/// `list`: schedules whose id begins so, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListSchedules {
    /// How their ids begin; empty = all.
    pub prefix: String,
}

/// The answer to [`ListSchedules`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScheduleList {
    /// In the order of their ids.
    pub schedules: Vec<ScheduleRecord>,
}

/// `show`, `resume`, `fire`: which schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneSchedule {
    /// The schedule.
    pub id: String,
}

/// `next`: what a schedule, or a text that is none yet, will fire.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreviewSchedule {
    /// The schedule; or
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// a text such as `cron 0 9 * * *`,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// with times in this zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// After this instant; none = now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<UnixMillis>,
    /// At most so many; none = [`PREVIEWED`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
}

/// The answer to [`PreviewSchedule`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulePreview {
    /// The zone of the schedule.
    pub zone: String,
    /// In order.
    pub firings: Vec<NextFiring>,
}

/// `pause`: nothing fires until `resume`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseSchedule {
    /// The schedule.
    pub id: String,
    /// Why.
    #[serde(default)]
    pub note: String,
    /// Who.
    #[serde(default)]
    pub by: String,
}

/// `backfill`: fires again what lies in a time past, at once and in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackfillSchedule {
    /// The schedule.
    pub id: String,
    /// From this instant on,
    pub from: UnixMillis,
    /// before this one.
    pub until: UnixMillis,
}

/// The answer to `fire` and `backfill`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleFired {
    /// The ids of the events.
    pub events: Vec<String>,
}
