//! Whether a worker still moves. *Pure but for [`cpu_time`] and [`memory_mb`].*
//!
//! A worker that has something to do must either call hooks (its note counts) or say something (frames); where it
//! merely waits for `await`s of its scripts it answers a ping. If nothing of this happens for the hard budget *of
//! its own processor time*, a script loops. Processor time, because a machine that is busy elsewhere stops innocent
//! workers for longer than any budget; wall time ends it all the same in the end, for scripts that block in a call.
//! Between two looks no more than two fifths of a budget count: where the looks themselves come late, the machine stood
//! still, and what a process seems to have computed then is not its own.

use std::time::{Duration, Instant};

/// Looks per hard budget.
pub(super) const LOOKS_PER_BUDGET: u32 = 5;

/// How many parts of a budget, of which each look is one, count between two looks at most.
const COUNTED_PER_LOOK: u32 = 2;

/// A worker that does not move is dead after so many budgets of wall time, however little it computed.
const WALL_BUDGETS: u32 = 8;

/// Wall time that a process may take to come up.
const START: Duration = Duration::from_secs(20);

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It moves, or has nothing to do.
    Moving,
    /// Nothing moved since the last look: ask for a sign of life.
    Ask,
    /// Nothing has moved for so long, in which it computed.
    Stuck(Duration),
    /// Nothing has moved for so long, and it may be that the machine is to blame.
    Still(Duration),
}

/// What was seen of one worker.
#[derive(Debug)]
pub(super) struct Pulse {
    budget: Duration,
    pid: u32,
    seen: Option<Still>,
}

#[derive(Debug, Clone, Copy)]
struct Still {
    sign: (u32, u64),
    since: Instant,
    /// The last look, and the processor time that it saw.
    looked: Instant,
    cpu: Option<Duration>,
    /// What was computed since then, as far as it counts.
    computed: Duration,
}

impl Pulse {
    /// Nothing seen yet of process `pid`.
    pub(super) const fn new(budget: Duration, pid: u32) -> Self {
        Self {
            budget,
            pid,
            seen: None,
        }
    }

    /// Judges `sign` (steps, frames), seen `now`.
    pub(super) fn look(&mut self, is_busy: bool, is_up: bool, sign: (u32, u64), now: Instant) -> Look {
        if !is_busy {
            self.seen = None;
            return Look::Moving;
        }
        let cpu = cpu_time(self.pid);
        let Some(mut still) = self.seen.filter(|still| still.sign == sign) else {
            self.seen = Some(Still {
                sign,
                since: now,
                looked: now,
                cpu,
                computed: Duration::ZERO,
            });
            return Look::Ask;
        };
        let computed = match (cpu, still.cpu) {
            (Some(cpu), Some(before)) => cpu.saturating_sub(before),
            (_, _) => now.saturating_duration_since(still.looked),
        };
        still.computed += computed.min(self.budget * COUNTED_PER_LOOK / LOOKS_PER_BUDGET);
        (still.looked, still.cpu) = (now, cpu);
        self.seen = Some(still);
        let wall = now.saturating_duration_since(still.since);
        let limit = if is_up { self.budget * WALL_BUDGETS } else { START };
        let is_over_budget = is_up && wall >= self.budget && still.computed >= self.budget;
        if is_over_budget {
            Look::Stuck(wall)
        } else if wall >= limit {
            Look::Still(wall)
        } else {
            Look::Moving
        }
    }
}

/// Processor time of the main thread of `pid`, which runs the scripts; `None` where the kernel does not tell.
fn cpu_time(pid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    text.split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

/// Memory that `pid` holds, in MiB; `None` where the kernel does not tell.
pub(super) fn memory_mb(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let held = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = held.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::clock::{Clock as _, SystemClock};

    const BUDGET: Duration = Duration::from_millis(250);

    // Process 0 does not exist: processor time is unknown, wall time stands for it.
    fn looks(signs: &[(u64, (u32, u64))], is_up: bool) -> Vec<Look> {
        let start = SystemClock.monotonic();
        let mut pulse = Pulse::new(BUDGET, 0);
        signs
            .iter()
            .map(|(at, sign)| pulse.look(true, is_up, *sign, start + Duration::from_millis(*at)))
            .collect()
    }

    #[test]
    fn what_moves_lives() {
        let seen = looks(&[(0, (1, 1)), (200, (2, 1)), (400, (2, 2)), (600, (2, 2))], true);
        assert_eq!(seen, [Look::Ask, Look::Ask, Look::Ask, Look::Moving]);
    }

    #[test]
    fn what_stands_still_for_the_budget_is_stuck() {
        let seen = looks(&[0, 50, 150, 200, 250].map(|at| (at, (1, 1))), true);
        assert_eq!(seen[..4], [Look::Ask, Look::Moving, Look::Moving, Look::Moving]);
        assert_eq!(seen[4], Look::Stuck(BUDGET));
    }

    #[test]
    fn what_passes_while_nobody_looks_is_not_counted_whole() {
        let seen = looks(&[0, 50, 1_000, 1_050, 1_100].map(|at| (at, (1, 1))), true);
        assert_eq!(seen[..4], [Look::Ask, Look::Moving, Look::Moving, Look::Moving]);
        assert_eq!(seen[4], Look::Stuck(Duration::from_millis(1_100)));
    }

    #[test]
    fn what_does_not_move_for_so_many_budgets_is_still_whoever_looks() {
        let seen = looks(&[(0, (1, 1)), (50, (1, 1)), (2_000, (1, 1))], true);
        assert_eq!(seen, [Look::Ask, Look::Moving, Look::Still(Duration::from_secs(2))]);
    }

    #[test]
    fn a_process_that_comes_up_has_more_time() {
        let seen = looks(&[(0, (0, 0)), (5_000, (0, 0)), (20_000, (0, 0))], false);
        assert_eq!(seen, [Look::Ask, Look::Moving, Look::Still(START)]);
    }

    #[test]
    fn nothing_to_do_is_no_standstill() {
        let start = SystemClock.monotonic();
        let mut pulse = Pulse::new(BUDGET, 0);
        for seconds in [0, 10, 20] {
            assert_eq!(
                pulse.look(false, true, (0, 0), start + Duration::from_secs(seconds)),
                Look::Moving
            );
        }
    }
}
