//! Schedules: their timing, target, policies and progress. *Pure.* Source: `docs/design/schedules.md` §2; seed 003
//! §4, §15.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::time::UnixMillis;

/// Maximum length of a pause's note, in bytes.
pub const MAX_NOTE_BYTES: usize = 1_024;
/// Default catch-up window of a recurring schedule: 10 minutes, in milliseconds.
pub const RECURRING_WINDOW_MS: u64 = 600_000;
/// Default catch-up window of a one-shot schedule: 24 hours, in milliseconds.
pub const ONE_SHOT_WINDOW_MS: u64 = 86_400_000;

/// The receiver of a schedule's events.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", content = "id", rename_all = "snake_case")]
pub enum ScheduleTarget {
    /// The hook with this id. It receives the event even if its `@match` does not match.
    Hook(String),
    /// The heartbeat of the persona with this id.
    Persona(String),
    /// A job of the configuration, with this name. It has no receiver of its own: any hook may match its events.
    Config(String),
}

impl ScheduleTarget {
    /// Returns `hook`, `persona` or `config`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Hook(_) => "hook",
            Self::Persona(_) => "persona",
            Self::Config(_) => "config",
        }
    }

    /// Returns the id or name of the target.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Hook(id) | Self::Persona(id) | Self::Config(id) => id,
        }
    }
}

/// The behavior of a firing while the one before it is still running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlapPolicy {
    /// The new firing is skipped.
    #[default]
    Skip,
    /// One firing waits until the other has ended; further ones are skipped.
    BufferOne,
    /// The new firing runs at the same time.
    Allow,
}

/// The behavior for firings that were missed because no scheduler was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// No missed firing is made up for.
    Skip,
    /// The last missed firing runs if it is within the window.
    #[default]
    FireOnce,
    /// The last ten missed firings at most run, in order, if they are within the window.
    All,
}

/// The behavior of a schedule when firings overlap, are missed or coincide.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulePolicies {
    /// Behavior while the previous firing is still running.
    pub overlap: OverlapPolicy,
    /// Behavior for missed firings.
    pub missed: MissedPolicy,
    /// Maximum delay with which a missed firing still runs, in milliseconds; absent = 10 minutes, or 24 hours for a
    /// one-shot schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catchup_window_ms: Option<u64>,
    /// Maximum jitter, in milliseconds. Each firing has a delay of its own up to this, which is the same in every
    /// computation.
    pub jitter_ms: u64,
}

/// The part of the day in which a persona's heartbeat is active, in local time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveHours {
    /// First minute of the day, inclusive.
    pub from_minute: u16,
    /// End, as a minute of the day, exclusive. A value before `from_minute` is on the next day.
    pub until_minute: u16,
}

/// A schedule as its owner defines it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Permanent id, which names the owner: `hook:{id}:{n}`, `persona:{id}`, `config:{name}`.
    pub id: String,
    /// Text of the schedule: `every 30m`, `cron …`, `rrule …` or `at …` (see [`crate::schedule::Schedule::parse`]).
    pub schedule: String,
    /// IANA time zone of its local times.
    pub zone: String,
    /// Receiver of its events.
    pub target: ScheduleTarget,
    /// Behavior if firings overlap or are missed.
    #[serde(default)]
    pub policies: SchedulePolicies,
    /// Part of the day in which it may fire; absent = the whole day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_hours: Option<ActiveHours>,
    /// Text of the `content` of its events.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Metadata of its events beside `metadata.schedule`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// A pause of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulePause {
    /// Note of the operator, for people.
    pub note: String,
    /// Name of the operator that paused it.
    pub by: String,
    /// Time of the pause.
    pub at: UnixMillis,
}

/// A firing in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextFiring {
    /// Nominal instant of the firing.
    pub nominal: UnixMillis,
    /// Time it fires: the nominal instant plus its jitter.
    pub due: UnixMillis,
}

/// A firing that was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastFiring {
    /// Nominal instant of the firing.
    pub nominal: UnixMillis,
    /// Time at which the scheduler decided to fire.
    pub at: UnixMillis,
}

/// A firing that waits until the one before it ends (overlap `buffer_one`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferedFiring {
    /// Nominal instant of the firing.
    pub nominal: UnixMillis,
    /// Time of the next check whether the other firing has ended.
    pub look_at: UnixMillis,
}

/// A schedule in KV `schedules`. Every change is a compare-and-set of the whole record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRecord {
    /// Definition by the schedule's owner.
    pub spec: ScheduleSpec,
    /// The pause, while the schedule is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<SchedulePause>,
    /// Instant up to which every nominal firing is decided.
    pub decided_until: UnixMillis,
    /// Next firing; absent = the schedule is over or paused, or the scheduler has not computed it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextFiring>,
    /// Last firing; absent = it has not fired yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastFiring>,
    /// Nominal instants that the last decision fires, in order. Their events are published before the timer of this
    /// generation is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub firing: Vec<UnixMillis>,
    /// Firing that waits for another to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<BufferedFiring>,
    /// Number of firings so far.
    #[serde(default)]
    pub fired: u64,
    /// Number of firings that were skipped: missed, or while another was running.
    #[serde(default)]
    pub skipped: u64,
    /// Number of the last decision. The count starts at the creation time in milliseconds, so that a schedule that is
    /// removed and created again does not repeat numbers. A timer belongs to one generation.
    #[serde(default)]
    pub generation: u64,
    /// Time the schedule was created.
    pub created_at: UnixMillis,
    /// Time of the last change by its owner.
    pub updated_at: UnixMillis,
}

impl ScheduleRecord {
    /// Returns the record of a new schedule. The scheduler computes the next firing as soon as it sees the record.
    #[must_use]
    pub fn new(spec: ScheduleSpec, now: UnixMillis) -> Self {
        Self {
            spec,
            paused: None,
            decided_until: now,
            next: None,
            last: None,
            firing: Vec::new(),
            buffered: None,
            fired: 0,
            skipped: 0,
            generation: u64::try_from(now.0).unwrap_or(0),
            created_at: now,
            updated_at: now,
        }
    }

    /// Returns the time of the schedule's timer: the next firing, or the next check of a waiting one.
    #[must_use]
    pub fn timer_due(&self) -> Option<UnixMillis> {
        let next = self.next.map(|next| next.due);
        let look = self.buffered.map(|buffered| buffered.look_at);
        match (next, look) {
            (Some(next), Some(look)) => Some(next.min(look)),
            (one, other) => one.or(other),
        }
    }
}

/// The value of `metadata.schedule` in an event: the schedule that fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleMark {
    /// Id of the schedule.
    pub id: String,
    /// Receiver of the event.
    pub target: ScheduleTarget,
}

/// The payload of a schedule's timer message, both when it is set and when it fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleTimer {
    /// Id of the schedule.
    pub id: String,
    /// Nominal instant of the firing.
    pub nominal: UnixMillis,
    /// Generation of the record to which the timer belongs.
    pub generation: u64,
}
