//! Requests to and responses of `nexus.svc.schedule.*`. *Pure.*

use serde::{Deserialize, Serialize};

use super::schedule::{NextFiring, ScheduleRecord};
use super::time::UnixMillis;

/// Maximum number of firings that one preview returns or one backfill makes.
pub const MAX_FIRINGS: usize = 100;
/// Number of firings in a preview if the request names none.
pub const PREVIEWED: usize = 10;

/// `list`: returns the schedules whose id starts with a prefix, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListSchedules {
    /// Prefix of the schedule ids; empty = all schedules.
    pub prefix: String,
}

/// The response to [`ListSchedules`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScheduleList {
    /// The schedules found, in the order of their ids.
    pub schedules: Vec<ScheduleRecord>,
}

/// `show`, `resume`, `fire`: a request about one schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneSchedule {
    /// Id of the schedule.
    pub id: String,
}

/// `next`: returns the coming firings of a stored schedule, or of a schedule text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreviewSchedule {
    /// Id of a stored schedule; absent if the request has a text instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Text of a schedule, such as `cron 0 9 * * *`; absent if the request names a stored one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// IANA time zone of the text's times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Instant after which firings are listed; absent = now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<UnixMillis>,
    /// Maximum number of firings; absent = [`PREVIEWED`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
}

/// The response to [`PreviewSchedule`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulePreview {
    /// IANA time zone of the schedule.
    pub zone: String,
    /// The coming firings, earliest first.
    pub firings: Vec<NextFiring>,
}

/// `pause`: stops all firings of a schedule until `resume`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseSchedule {
    /// Id of the schedule.
    pub id: String,
    /// Reason for the pause, for people.
    #[serde(default)]
    pub note: String,
    /// Name of the operator that pauses it.
    #[serde(default)]
    pub by: String,
}

/// `backfill`: repeats the firings of a past period at once and in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackfillSchedule {
    /// Id of the schedule.
    pub id: String,
    /// First instant of the period, inclusive.
    pub from: UnixMillis,
    /// End of the period, exclusive.
    pub until: UnixMillis,
}

/// The response to `fire` and `backfill`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleFired {
    /// Ids of the published events.
    pub events: Vec<String>,
}
