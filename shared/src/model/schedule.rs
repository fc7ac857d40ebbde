//! Schedules: what fires when, for whom, and how far it has come. *Pure.* Source: `docs/design/schedules.md` §2;
//! seed 003 §4, §15.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::time::UnixMillis;

/// Longest note of a pause, in bytes.
pub const MAX_NOTE_BYTES: usize = 1_024;
/// How late a firing of a recurring schedule may be made up for, where nothing else is said: 10 minutes, in milliseconds.
pub const RECURRING_WINDOW_MS: u64 = 600_000;
/// How late the firing of a one-shot schedule may be made up for, where nothing else is said: 24 hours, in milliseconds.
pub const ONE_SHOT_WINDOW_MS: u64 = 86_400_000;

/// For whom a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", content = "id", rename_all = "snake_case")]
pub enum ScheduleTarget {
    /// The hook with this id: it sees the event, whatever it matches.
    Hook(String),
    /// The heartbeat of this persona.
    Persona(String),
    /// Nobody by name: a job of the configuration, with this name; any hook may match its events.
    Config(String),
}

impl ScheduleTarget {
    /// `hook`, `persona` or `config`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Hook(_) => "hook",
            Self::Persona(_) => "persona",
            Self::Config(_) => "config",
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Hook(id) | Self::Persona(id) | Self::Config(id) => id,
        }
    }
}

/// What a firing does while the one before it is still under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is left out.
    #[default]
    Skip,
    /// One waits until the other has ended; further ones are left out.
    BufferOne,
    /// It fires.
    Allow,
}

/// What becomes of firings that nobody was there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing.
    Skip,
    /// The last of them fires, if it is within the window.
    #[default]
    FireOnce,
    /// The last ten at most of those within the window fire, in order.
    All,
}

/// How a schedule behaves where not all goes as planned.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulePolicies {
    /// While the firing before is still under way.
    pub overlap: Overlap,
    /// Where nobody was there to fire.
    pub missed: Missed,
    /// How late a firing may still be made up for, milliseconds; none = 10 minutes, of a one-shot schedule 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catchup_window_ms: Option<u64>,
    /// Firings are put off by up to so many milliseconds, each by an amount of its own that is always the same.
    pub jitter_ms: u64,
}

/// The part of the day in which a persona's heartbeat beats, local time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveHours {
    /// From this minute of the day on.
    pub from_minute: u16,
    /// Until this minute, exclusive; one before `from_minute` lies on the next day.
    pub until_minute: u16,
}

/// A schedule, as whoever owns it says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// `hook:{id}:{n}`, `persona:{id}`, `config:{name}`: names its owner, and never changes.
    pub id: String,
    /// `every 30m`, `cron …`, `rrule …` or `at …` (see [`crate::schedule::Schedule::parse`]).
    pub schedule: String,
    /// The IANA zone of its times.
    pub zone: String,
    /// For whom it fires.
    pub target: ScheduleTarget,
    /// How it behaves.
    #[serde(default)]
    pub policies: SchedulePolicies,
    /// When it may fire at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_hours: Option<ActiveHours>,
    /// What its events say: the text of an event's content.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// What else its events carry, beside `metadata.schedule`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Why nothing fires at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// What whoever paused it said.
    pub note: String,
    /// Who.
    pub by: String,
    /// When.
    pub at: UnixMillis,
}

/// A firing that is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextFiring {
    /// The instant that it stands for.
    pub nominal: UnixMillis,
    /// When it fires: the nominal instant and its jitter.
    pub due: UnixMillis,
}

/// A firing that was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastFiring {
    /// The instant that it stands for.
    pub nominal: UnixMillis,
    /// When it was decided on.
    pub at: UnixMillis,
}

/// A firing that waits for the one before it to end (overlap `buffer_one`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferedFiring {
    /// The instant that it stands for.
    pub nominal: UnixMillis,
    /// When it is looked again whether the other has ended.
    pub look_at: UnixMillis,
}

/// A schedule in KV `schedules`. Every change is a compare-and-set of the whole record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRecord {
    /// What its owner says.
    pub spec: ScheduleSpec,
    /// Set while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// Every nominal instant up to this one is decided on.
    pub decided_until: UnixMillis,
    /// What comes next; none = it is over or paused, or nobody has looked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextFiring>,
    /// What was fired last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastFiring>,
    /// What the last decision fires, in order. Its events are published before the timer of this generation is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub firing: Vec<UnixMillis>,
    /// A firing that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<BufferedFiring>,
    /// How many fired.
    #[serde(default)]
    pub fired: u64,
    /// How many were left out: missed, or while another was under way.
    #[serde(default)]
    pub skipped: u64,
    /// Counts the decisions, from the milliseconds of its making on (so that what is removed and made anew does not count
    /// from the same); a timer belongs to one of them.
    #[serde(default)]
    pub generation: u64,
    /// When it was made.
    pub created_at: UnixMillis,
    /// When its owner changed it last.
    pub updated_at: UnixMillis,
}

impl ScheduleRecord {
    /// The record of a new schedule. The scheduler computes what is next as soon as it sees it.
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

    /// When its timer is due: at the next firing, or at the next look whether a waiting one may fire.
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

/// What fired: `metadata.schedule` of the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleMark {
    /// The schedule.
    pub id: String,
    /// For whom.
    pub target: ScheduleTarget,
}

/// The payload of a schedule's timer, set and fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleTimer {
    /// The schedule.
    pub id: String,
    /// The instant that it stands for.
    pub nominal: UnixMillis,
    /// Which generation of the record it belongs to.
    pub generation: u64,
}
