//! What follows from a schedule's record at an instant. *Pure.* Source: `docs/design/schedules.md` §2.4 (policies).

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};
use shared::model::schedule::{
    ActiveHours, BufferedFiring, LastFiring, Missed, NextFiring, ONE_SHOT_WINDOW_MS, Overlap, RECURRING_WINDOW_MS,
    ScheduleRecord, ScheduleSpec, ScheduleTarget,
};
use shared::model::time::UnixMillis;
use shared::schedule::{Schedule, next_after};

/// How late a firing may be and still count as on time, milliseconds.
pub const GRACE_MS: i64 = 60_000;
/// Missed firings that are made up for at once, at most (`missed = all`).
pub const MAX_MADE_UP: usize = 10;
/// How long a waiting firing waits before it is looked again, milliseconds.
pub const LOOK_AGAIN_MS: i64 = 10_000;
/// How long a firing counts as under way at most, milliseconds: one hour. So long, too, where nobody can tell: what runs
/// twice costs more than what runs late, and hook-svc, who tells, is also the one who would evaluate the next firing.
pub const MAX_UNDER_WAY_MS: i64 = 3_600_000;
/// How many nominal times one look walks over.
const MAX_WALK: usize = 2_000;

/// A schedule with what is needed to know when it fires.
#[derive(Debug)]
pub struct Plan<'s> {
    /// What its owner says.
    pub spec: &'s ScheduleSpec,
    /// Its text, read.
    pub schedule: Schedule,
    /// Its zone.
    pub zone: TimeZone,
}

/// Whether the last firing is under way, or the persona's session busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderWay {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// Who could tell does not answer. The last firing counts as under way while it is fresh, then as over.
    Unknown,
}

impl UnderWay {
    /// Whether it holds the next firing of `record` back at `now`.
    fn holds_back(self, record: &ScheduleRecord, now: UnixMillis) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            Self::Unknown => fresh_last(record, now).is_some(),
        }
    }
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing has changed.
    Nothing,
    /// Whether the last firing is still under way, or the persona's session busy, is to be found out first.
    Ask,
    /// The record is to become this one.
    Write(Box<ScheduleRecord>),
}

impl Plan<'_> {
    /// How much later than its nominal time the firing of `nominal` is due, milliseconds: the same on every replica.
    #[must_use]
    pub fn jitter(&self, nominal: UnixMillis) -> i64 {
        let Ok(bound) = i64::try_from(self.spec.policies.jitter_ms) else {
            return 0;
        };
        if bound == 0 {
            return 0;
        }

        let mut hash = Sha256::new();
        hash.update(self.spec.id.as_bytes());
        hash.update(nominal.0.to_be_bytes());
        let mut head = [0_u8; 8];
        head.copy_from_slice(&hash.finalize()[..8]);

        i64::try_from(u64::from_be_bytes(head) % bound.unsigned_abs()).unwrap_or(0)
    }

    /// The first firing whose nominal time lies after `after`.
    #[must_use]
    pub fn next(&self, after: UnixMillis) -> Option<NextFiring> {
        let mut at = after;
        for _ in 0..MAX_WALK {
            at = next_after(&self.schedule, at)?;

            if self.is_active(at) {
                return Some(NextFiring {
                    nominal: at,
                    due: at.plus(self.jitter(at)),
                });
            }
        }

        None
    }

    /// The first firings with nominal times after `after`, at most `count`.
    #[must_use]
    pub fn preview(&self, after: UnixMillis, count: usize) -> Vec<NextFiring> {
        std::iter::successors(self.next(after), |last| self.next(last.nominal))
            .take(count)
            .collect()
    }

    fn is_active(&self, at: UnixMillis) -> bool {
        let Some(hours) = &self.spec.active_hours else {
            return true;
        };
        let Ok(at) = Timestamp::from_millisecond(at.0) else {
            return false;
        };
        let local = self.zone.to_datetime(at);
        let minute = u16::from(local.hour().unsigned_abs()) * 60 + u16::from(local.minute().unsigned_abs());
        holds(hours, minute)
    }

    fn window_ms(&self) -> i64 {
        let default = if self.schedule.is_recurring() {
            RECURRING_WINDOW_MS
        } else {
            ONE_SHOT_WINDOW_MS
        };
        i64::try_from(self.spec.policies.catchup_window_ms.unwrap_or(default)).unwrap_or(i64::MAX)
    }
}

fn holds(hours: &ActiveHours, minute: u16) -> bool {
    if hours.from_minute <= hours.until_minute {
        (hours.from_minute..hours.until_minute).contains(&minute)
    } else {
        minute >= hours.from_minute || minute < hours.until_minute
    }
}

/// What follows from `record` at `now`; `under_way` says whether its last firing is, where that is known.
#[must_use]
pub fn decide(record: &ScheduleRecord, plan: &Plan<'_>, now: UnixMillis, under_way: Option<UnderWay>) -> Decision {
    if record.paused.is_some() {
        return put_away(record);
    }

    let next = plan.next(record.decided_until);
    let is_due = next.is_some_and(|next| next.due <= now);
    let waits = record.buffered.filter(|buffered| is_due || buffered.look_at <= now);
    if !is_due && waits.is_none() {
        if record.next == next {
            return Decision::Nothing;
        }
        // New, changed, or the zone's data are others now.
        return written(ScheduleRecord { next, ..step(record) });
    }

    let overdue = if is_due {
        overdue(record, plan, now)
    } else {
        Overdue::default()
    };
    let mut wish = overdue.fires;
    if let Some(buffered) = waits {
        wish.insert(0, buffered.nominal);
    }

    // A persona's session may be busy whether its heart has beaten lately or not.
    let may_be = fresh_last(record, now).is_some() || matches!(record.spec.target, ScheduleTarget::Persona(_));
    let under_way = match (record.spec.policies.overlap, under_way) {
        _ if wish.is_empty() || !may_be => false,
        (Overlap::Allow, _) => false,
        (Overlap::Skip | Overlap::BufferOne, Some(under_way)) => under_way.holds_back(record, now),
        (Overlap::Skip | Overlap::BufferOne, None) => return Decision::Ask,
    };

    let decided_until = overdue.until.unwrap_or(record.decided_until);
    let mut after = ScheduleRecord {
        next: plan.next(decided_until),
        decided_until,
        buffered: record.buffered.filter(|_| waits.is_none()),
        skipped: record.skipped + overdue.left_out,
        ..step(record)
    };

    // What has waited is under way from now on: what is due with it waits for it in turn.
    let now_fire = match (under_way, waits, record.spec.policies.overlap) {
        (true, _, _) => 0,
        (false, Some(_), Overlap::Skip | Overlap::BufferOne) => 1,
        (false, Some(_), Overlap::Allow) | (false, None, _) => wish.len(),
    };
    let (fires, held_back) = wish.split_at(now_fire);
    if let Some(last) = fires.last() {
        after.last = Some(LastFiring {
            nominal: *last,
            at: now,
        });
        after.fired += fires.len() as u64;
        after.firing = fires.to_vec();
    }

    if !held_back.is_empty() {
        hold_back(&mut after, held_back, now);
    }

    written(after)
}

/// Whether `after` fires what was held back behind a firing that is over only because its hour has passed.
#[must_use]
pub fn gives_up_waiting(before: &ScheduleRecord, after: &ScheduleRecord, now: UnixMillis) -> bool {
    let held_back = before.buffered.is_some() || before.last.is_some_and(|last| last.nominal < before.decided_until);
    let can_hold_back = match before.spec.policies.overlap {
        Overlap::Skip | Overlap::BufferOne => true,
        Overlap::Allow => false,
    };
    let is_stale = before.last.is_some() && fresh_last(before, now).is_none();
    can_hold_back && held_back && is_stale && !after.firing.is_empty()
}

/// The last firing of `record`, unless it is so long ago at `now` that it counts as over.
#[must_use]
pub fn fresh_last(record: &ScheduleRecord, now: UnixMillis) -> Option<LastFiring> {
    record.last.filter(|last| now.since(last.at) <= MAX_UNDER_WAY_MS)
}

/// The record of the next decision, which fires nothing so far.
fn step(record: &ScheduleRecord) -> ScheduleRecord {
    ScheduleRecord {
        firing: Vec::new(),
        generation: record.generation + 1,
        ..record.clone()
    }
}

fn written(record: ScheduleRecord) -> Decision {
    Decision::Write(Box::new(record))
}

/// Nothing is next while a schedule is paused.
fn put_away(record: &ScheduleRecord) -> Decision {
    if record.next.is_none() && record.buffered.is_none() {
        return Decision::Nothing;
    }
    written(ScheduleRecord {
        next: None,
        buffered: None,
        ..step(record)
    })
}

/// While the one before is under way: one may wait, the others are left out.
fn hold_back(record: &mut ScheduleRecord, wish: &[UnixMillis], now: UnixMillis) {
    let waiting = match record.spec.policies.overlap {
        Overlap::BufferOne => record
            .buffered
            .map(|buffered| buffered.nominal)
            .or_else(|| wish.first().copied()),
        Overlap::Skip | Overlap::Allow => None,
    };

    let held = usize::from(waiting.is_some_and(|waiting| wish.contains(&waiting)));
    record.buffered = waiting.map(|nominal| BufferedFiring {
        nominal,
        look_at: now.plus(LOOK_AGAIN_MS),
    });

    record.skipped += (wish.len() - held) as u64;
}

/// What is overdue: which of it fires by the policy, how much does not, and up to which nominal time it goes.
#[derive(Debug, Default)]
struct Overdue {
    fires: Vec<UnixMillis>,
    left_out: u64,
    until: Option<UnixMillis>,
}

fn overdue(record: &ScheduleRecord, plan: &Plan<'_>, now: UnixMillis) -> Overdue {
    let all = std::iter::successors(plan.next(record.decided_until), |last| plan.next(last.nominal));
    let mut all: Vec<NextFiring> = all.take_while(|firing| firing.due <= now).take(MAX_WALK).collect();
    if all.len() == MAX_WALK {
        // Out for so long that the walk does not reach the present: what lies before the window is left out unseen.
        let since = now.plus(-plan.window_ms().min(ONE_SHOT_WINDOW_MS.cast_signed()) - plan.jitter_bound());
        let recent = std::iter::successors(plan.next(since), |last| plan.next(last.nominal));
        all.extend(recent.take_while(|firing| firing.due <= now).take(MAX_WALK));
        all.sort_by_key(|firing| firing.nominal);
        all.dedup();
    }

    let until = all.last().map(|firing| firing.nominal);
    let late = |firing: &NextFiring| now.since(firing.due);
    let keep = |bound: i64, most: usize| {
        let kept: Vec<UnixMillis> = all
            .iter()
            .filter(|firing| late(firing) <= bound)
            .map(|firing| firing.nominal)
            .collect();
        kept[kept.len().saturating_sub(most)..].to_vec()
    };

    let fires = match plan.spec.policies.missed {
        Missed::Skip => keep(GRACE_MS, MAX_MADE_UP),
        Missed::FireOnce => keep(plan.window_ms(), 1),
        Missed::All => keep(plan.window_ms(), MAX_MADE_UP),
    };

    Overdue {
        left_out: (all.len() - fires.len()) as u64,
        fires,
        until,
    }
}

impl Plan<'_> {
    fn jitter_bound(&self) -> i64 {
        i64::try_from(self.spec.policies.jitter_ms).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
