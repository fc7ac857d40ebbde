//! Decision that follows from a schedule's record at an instant. *Pure.* Source: `docs/design/schedules.md` §2.4
//! (policies).

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};
use shared::model::schedule::{
    ActiveHours, BufferedFiring, LastFiring, MissedPolicy, NextFiring, ONE_SHOT_WINDOW_MS, OverlapPolicy,
    RECURRING_WINDOW_MS, ScheduleRecord, ScheduleSpec, ScheduleTarget,
};
use shared::model::time::UnixMillis;
use shared::schedule::{Schedule, next_after};

/// Delay up to which a firing counts as on time, in milliseconds.
pub const GRACE_MS: i64 = 60_000;
/// Maximum number of missed firings that are made up for at once (`missed = all`).
pub const MAX_MADE_UP: usize = 10;
/// Time after which a waiting firing is checked again, in milliseconds.
pub const LOOK_AGAIN_MS: i64 = 10_000;
/// Longest time for which a firing counts as in progress, in milliseconds: one hour. It also applies if this is
/// unknown: a run that is doubled costs more than a run that is late, and hook-svc, which is asked, would also be the
/// service to evaluate the next firing.
pub const MAX_UNDER_WAY_MS: i64 = 3_600_000;
/// Maximum number of nominal times that one decision visits.
const MAX_WALK: usize = 2_000;

/// A schedule with everything needed to compute its firings.
#[derive(Debug)]
pub struct SchedulePlan<'s> {
    /// Specification by the schedule's owner.
    pub spec: &'s ScheduleSpec,
    /// Parsed text of the schedule.
    pub schedule: Schedule,
    /// Time zone of the schedule.
    pub zone: TimeZone,
}

/// Whether the last firing is in progress, or the persona's session is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderWay {
    /// It is in progress or busy.
    Yes,
    /// It is neither in progress nor busy.
    No,
    /// The service that knows does not respond. The last firing counts as in progress while it is recent, then as
    /// over.
    Unknown,
}

impl UnderWay {
    /// Returns whether this holds the next firing of `record` back at `now`.
    fn holds_back(self, record: &ScheduleRecord, now: UnixMillis) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            Self::Unknown => fresh_last(record, now).is_some(),
        }
    }
}

/// Decision on a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleDecision {
    /// The record need not change.
    Nothing,
    /// It must first be found out whether the last firing is in progress, or the persona's session is busy.
    Ask,
    /// The record must be replaced by this one.
    Write(Box<ScheduleRecord>),
}

impl SchedulePlan<'_> {
    /// Returns the delay of the firing of `nominal`, in milliseconds: the same on every replica.
    #[must_use]
    pub fn jitter_ms(&self, nominal: UnixMillis) -> i64 {
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

    /// Returns the first firing whose nominal time is after `after`.
    #[must_use]
    pub fn next(&self, after: UnixMillis) -> Option<NextFiring> {
        let mut at = after;
        for _ in 0..MAX_WALK {
            at = next_after(&self.schedule, at)?;

            if self.is_active(at) {
                return Some(NextFiring {
                    nominal: at,
                    due: at.plus(self.jitter_ms(at)),
                });
            }
        }

        None
    }

    /// Returns the first firings with nominal times after `after`, at most `count`.
    #[must_use]
    pub fn next_firings(&self, after: UnixMillis, count: usize) -> Vec<NextFiring> {
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
        is_active_at(hours, minute)
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

fn is_active_at(hours: &ActiveHours, minute: u16) -> bool {
    if hours.from_minute <= hours.until_minute {
        (hours.from_minute..hours.until_minute).contains(&minute)
    } else {
        minute >= hours.from_minute || minute < hours.until_minute
    }
}

/// Decides the step that follows from `record` at `now`; `under_way` states whether its last firing is in progress, if
/// that is known.
#[must_use]
pub fn decide_next(
    record: &ScheduleRecord,
    plan: &SchedulePlan<'_>,
    now: UnixMillis,
    under_way: Option<UnderWay>,
) -> ScheduleDecision {
    if record.paused.is_some() {
        return put_away(record);
    }

    let next = plan.next(record.decided_until);
    let is_due = next.is_some_and(|next| next.due <= now);
    let waits = record.buffered.filter(|buffered| is_due || buffered.look_at <= now);
    if !is_due && waits.is_none() {
        if record.next == next {
            return ScheduleDecision::Nothing;
        }
        // The schedule is new or has changed, or the time zone's data has changed.
        return write_decision(ScheduleRecord { next, ..step(record) });
    }

    let overdue = if is_due {
        find_overdue(record, plan, now)
    } else {
        Overdue::default()
    };
    let mut wish = overdue.fires;
    if let Some(buffered) = waits {
        wish.insert(0, buffered.nominal);
    }

    // A persona's session may be busy even without a recent heartbeat.
    let may_be = fresh_last(record, now).is_some() || matches!(record.spec.target, ScheduleTarget::Persona(_));
    let under_way = match (record.spec.policies.overlap, under_way) {
        _ if wish.is_empty() || !may_be => false,
        (OverlapPolicy::Allow, _) => false,
        (OverlapPolicy::Skip | OverlapPolicy::BufferOne, Some(under_way)) => under_way.holds_back(record, now),
        (OverlapPolicy::Skip | OverlapPolicy::BufferOne, None) => return ScheduleDecision::Ask,
    };

    let decided_until = overdue.until.unwrap_or(record.decided_until);
    let mut after = ScheduleRecord {
        next: plan.next(decided_until),
        decided_until,
        buffered: record.buffered.filter(|_| waits.is_none()),
        skipped: record.skipped + overdue.left_out,
        ..step(record)
    };

    // A firing that has waited is in progress from now on: the one that is due with it waits in turn.
    let now_fire = match (under_way, waits, record.spec.policies.overlap) {
        (true, _, _) => 0,
        (false, Some(_), OverlapPolicy::Skip | OverlapPolicy::BufferOne) => 1,
        (false, Some(_), OverlapPolicy::Allow) | (false, None, _) => wish.len(),
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

    write_decision(after)
}

/// Returns whether `after` fires one that was held back by a firing which counts as over only because its hour has
/// passed.
#[must_use]
pub fn gives_up_waiting(before: &ScheduleRecord, after: &ScheduleRecord, now: UnixMillis) -> bool {
    let held_back = before.buffered.is_some() || before.last.is_some_and(|last| last.nominal < before.decided_until);
    let can_hold_back = match before.spec.policies.overlap {
        OverlapPolicy::Skip | OverlapPolicy::BufferOne => true,
        OverlapPolicy::Allow => false,
    };
    let is_stale = before.last.is_some() && fresh_last(before, now).is_none();
    can_hold_back && held_back && is_stale && !after.firing.is_empty()
}

/// Returns the last firing of `record`, unless it is so old at `now` that it counts as over.
#[must_use]
pub fn fresh_last(record: &ScheduleRecord, now: UnixMillis) -> Option<LastFiring> {
    record.last.filter(|last| now.since(last.at) <= MAX_UNDER_WAY_MS)
}

/// Returns the record of the next decision, without firings so far.
fn step(record: &ScheduleRecord) -> ScheduleRecord {
    ScheduleRecord {
        firing: Vec::new(),
        generation: record.generation + 1,
        ..record.clone()
    }
}

fn write_decision(record: ScheduleRecord) -> ScheduleDecision {
    ScheduleDecision::Write(Box::new(record))
}

/// Clears the next firing, which a paused schedule does not have.
fn put_away(record: &ScheduleRecord) -> ScheduleDecision {
    if record.next.is_none() && record.buffered.is_none() {
        return ScheduleDecision::Nothing;
    }
    write_decision(ScheduleRecord {
        next: None,
        buffered: None,
        ..step(record)
    })
}

/// Holds firings back while the previous one is in progress: one may wait, the others are skipped.
fn hold_back(record: &mut ScheduleRecord, wish: &[UnixMillis], now: UnixMillis) {
    let waiting = match record.spec.policies.overlap {
        OverlapPolicy::BufferOne => record
            .buffered
            .map(|buffered| buffered.nominal)
            .or_else(|| wish.first().copied()),
        OverlapPolicy::Skip | OverlapPolicy::Allow => None,
    };

    let held = usize::from(waiting.is_some_and(|waiting| wish.contains(&waiting)));
    record.buffered = waiting.map(|nominal| BufferedFiring {
        nominal,
        look_at: now.plus(LOOK_AGAIN_MS),
    });

    record.skipped += (wish.len() - held) as u64;
}

/// Overdue firings: those to fire by the policy, the number of the others, and the last nominal time.
#[derive(Debug, Default)]
struct Overdue {
    fires: Vec<UnixMillis>,
    left_out: u64,
    until: Option<UnixMillis>,
}

fn find_overdue(record: &ScheduleRecord, plan: &SchedulePlan<'_>, now: UnixMillis) -> Overdue {
    let all = std::iter::successors(plan.next(record.decided_until), |last| plan.next(last.nominal));
    let mut all: Vec<NextFiring> = all.take_while(|firing| firing.due <= now).take(MAX_WALK).collect();
    if all.len() == MAX_WALK {
        // The outage was so long that the walk does not reach the present: firings before the window are skipped
        // without being counted.
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
        MissedPolicy::Skip => keep(GRACE_MS, MAX_MADE_UP),
        MissedPolicy::FireOnce => keep(plan.window_ms(), 1),
        MissedPolicy::All => keep(plan.window_ms(), MAX_MADE_UP),
    };

    Overdue {
        left_out: (all.len() - fires.len()) as u64,
        fires,
        until,
    }
}

impl SchedulePlan<'_> {
    fn jitter_bound(&self) -> i64 {
        i64::try_from(self.spec.policies.jitter_ms).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
