//! Whether a worker makes progress, by the host's own clocks. *Pure but for [`ProcessTimes::of_process`],
//! [`has_unread_bytes`] and [`memory_mb`].*
//!
//! Everything that the process itself writes may be forged by a script in it: its note, and frames that end nothing.
//! Only the kernel's figures count, and that a requested evaluation or load has ended:
//!
//! - *Processor time* of all its threads between two such ends. Its limit grows with the number of hooks that one event
//!   calls, and by a twentieth of the time that passes, for scripts that wait and check now and then.
//! - *Standstill*: a ping is not answered, although the process neither computed nor waited for a processor, and the
//!   host has read all that it wrote. A pong proves only that its thread is free.
//! - *Terms* (`worker/terms.rs`): each evaluation has a deadline, even if the process looks lively.
//!
//! A machine that is busy elsewhere stops innocent workers for longer than any budget, so time in which a process
//! waited for a processor does not count. The kernel adds the time of a wait only when it is over; until then the
//! thread's state tells that it waits. Between two looks at most two fifths of a budget count: if the looks themselves
//! are late, the machine was stalled, and the processor time of the process is not reliable.
//!
//! The host can be the one that gets no processor. A look that comes late counts as one look, and silence does not
//! count while the host has bytes of the process to read. Neither prolongs the other limits: a process that writes
//! without end computes, and the terms count the time that passes for the process.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Number of looks per hard budget.
pub(super) const LOOKS_PER_BUDGET: u32 = 5;

/// Most parts of a budget, of which each look is one, that count between two looks.
const COUNTED_PER_LOOK: u32 = 2;

/// Budgets without an answer to a ping, for a process that neither computes nor waits for a processor. One would be
/// enough for a script that blocks; the other is for pages that come from a slow disk.
const STILL_BUDGETS: u32 = 2;

/// Budgets of processor time per minute of a process without work.
const IDLE_BUDGETS: u32 = 8;
const IDLE_PERIOD: Duration = Duration::from_mins(1);

/// Processor time for loading a set, and in addition for each of its hooks.
const LOADING: Duration = Duration::from_secs(2);
const LOADING_HOOK: Duration = Duration::from_millis(5);

/// Processor time that each hook adds to the budget of the events that it sees.
const CALLING_HOOK: Duration = Duration::from_millis(1);

/// Divisor of the time between two answers: that part of it may be computed beyond the budget.
const SPARE: u32 = 20;

/// Time limit for a process to come up, and for a set to be loaded, regardless of processor time.
const START: Duration = Duration::from_secs(20);

/// One tick of `/proc/PID/stat`: user space sees 100 a second on every architecture of Linux.
const TICK: Duration = Duration::from_millis(10);

/// Index of the user and system times among the fields of `/proc/PID/stat` that follow the name.
const USER_TICKS: usize = 11;

/// Work that a worker is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerTask {
    /// Starting the process.
    Starting,
    /// Loading a set with this number of hooks.
    Loading(usize),
    /// Evaluating events, each against at most this number of hooks.
    Evaluating(usize),
    /// No work at all.
    Nothing,
}

impl WorkerTask {
    /// Returns whether the work is of the same kind; another count of hooks resets no measurement.
    const fn is_as(self, other: Self) -> bool {
        match (self, other) {
            (Self::Starting, Self::Starting)
            | (Self::Loading(_), Self::Loading(_))
            | (Self::Evaluating(_), Self::Evaluating(_))
            | (Self::Nothing, Self::Nothing) => true,
            (Self::Starting | Self::Loading(_) | Self::Evaluating(_) | Self::Nothing, _) => false,
        }
    }
}

/// The host's knowledge of a worker at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkerSnapshot {
    /// Work that the worker is asked to do.
    pub(super) work: WorkerTask,
    /// Number of requested evaluations and loads that have ended.
    pub(super) ended: u64,
    /// Number of pings that it has answered.
    pub(super) pongs: u64,
    /// Whether the host owes it an answer for which it blocks.
    pub(super) waits_for_host: bool,
    /// Whether it was pinged and the host has read no answer.
    pub(super) is_pinged: bool,
    /// Whether it has written bytes that the host has not read.
    pub(super) has_unread: bool,
}

/// Processor times of a process, as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessTimes {
    /// Processor time of all its threads, including ended ones.
    computed: Duration,
    /// Times of the thread that runs the scripts, if the kernel counts them.
    thread: Option<ThreadTimes>,
    /// Activity of the busiest thread that was looked at.
    busiest: ThreadActivity,
}

/// Activity of a thread at one moment, in the order in which it excuses silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadActivity {
    /// The thread waits for an event, a lock or a time.
    Asleep,
    /// The thread waits for a disk, for example for a page of its memory.
    OnDisk,
    /// The thread computes or waits for a processor.
    Runnable,
}

impl ThreadActivity {
    /// Reads the activity from the text of a `stat` file. The name, in parentheses, may contain any character.
    fn from_stat(stat: &str) -> Option<Self> {
        match stat.rsplit(')').next()?.split_ascii_whitespace().next()? {
            "R" => Some(Self::Runnable),
            "D" => Some(Self::OnDisk),
            _ => Some(Self::Asleep),
        }
    }

    /// Returns the activity of the busiest thread of process `pid`. Threads that end meanwhile are left out.
    fn busiest_of(pid: u32) -> Option<Self> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        stats.filter_map(|stat| Self::from_stat(&stat)).max()
    }
}

/// Times of one thread, as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadTimes {
    /// Processor time of the thread.
    computed: Duration,
    /// Time that the thread waited for a processor.
    queued: Duration,
}

impl ProcessTimes {
    /// Reads the times of process `pid`; `None` if the kernel does not report them. All threads are looked at only if
    /// it `is_silent`: the scripts' thread may wait for another one that gets no processor.
    pub(super) fn of_process(pid: u32, is_silent: bool) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let scripts = ThreadActivity::from_stat(&stat)?;
        let others = is_silent.then(|| ThreadActivity::busiest_of(pid)).flatten();
        let mut ticks = stat.rsplit(')').next()?.split_ascii_whitespace().skip(USER_TICKS);
        let (user, system): (u32, u32) = (ticks.next()?.parse().ok()?, ticks.next()?.parse().ok()?);

        Some(Self {
            computed: TICK * user.saturating_add(system),
            thread: ThreadTimes::of_main_thread(pid),
            busiest: others.map_or(scripts, |others| others.max(scripts)),
        })
    }
}

/// Returns whether the pipe `pipe` holds bytes that were not read. False if the kernel does not report it.
pub(super) fn has_unread_bytes(pipe: impl AsFd) -> bool {
    rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0)
}

impl ThreadTimes {
    /// Reads the times of the first thread of process `pid`; not every kernel counts them.
    fn of_main_thread(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        let mut parts = text.split_ascii_whitespace().map(str::parse);
        let (computed, queued) = (parts.next()?.ok()?, parts.next()?.ok()?);
        Some(Self {
            computed: Duration::from_nanos(computed),
            queued: Duration::from_nanos(queued),
        })
    }
}

/// Result of one look at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchResult {
    /// The worker makes progress, or has no work.
    Moving,
    /// No work has ended since the last look: the caller must ping the worker.
    Ask,
    /// The worker has computed for this time and ended no work.
    Stuck(Duration),
    /// The worker neither computed nor answered for this time; the machine may be the cause.
    Still(Duration),
}

/// Measurements of one worker.
#[derive(Debug)]
pub(super) struct WorkerPulse {
    budget: Duration,
    last: Option<Glance>,
    /// Since the last end: time that it computed, and its own time that has passed.
    computed: Duration,
    passed: Duration,
    /// Since the last answer to a ping: time that it stood still while the host waited for an answer.
    still: Duration,
    /// Its own time that has passed since the first look.
    age: Duration,
    /// Whether it computed next to nothing since the look before the last.
    is_quiet: bool,
}

#[derive(Debug, Clone, Copy)]
struct Glance {
    sight: WorkerSnapshot,
    at: Instant,
    times: Option<ProcessTimes>,
}

impl WorkerPulse {
    /// Creates a pulse without measurements.
    pub(super) const fn new(budget: Duration) -> Self {
        Self {
            budget,
            last: None,
            computed: Duration::ZERO,
            passed: Duration::ZERO,
            still: Duration::ZERO,
            age: Duration::ZERO,
            is_quiet: false,
        }
    }

    /// Returns whether the process computed next to nothing between the last two looks. Without work, it need not be watched
    /// closely then.
    pub(super) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Returns the time that has passed for the process, without the time that it waited for a processor or the host
    /// was stalled.
    pub(super) const fn process_age(&self) -> Duration {
        self.age
    }

    /// Judges the worker by `sight` and `times` at `now`.
    pub(super) fn judge_sight(
        &mut self,
        sight: WorkerSnapshot,
        times: Option<ProcessTimes>,
        now: Instant,
    ) -> WatchResult {
        let glance = Glance { sight, at: now, times };
        let Some(last) = self.last.replace(glance) else {
            return WatchResult::Moving;
        };

        let gone = self.gone_since(&last, times, now);
        self.age += gone.passed;
        self.is_quiet = times.is_some() && gone.computed <= TICK;

        let is_next = sight.ended != last.sight.ended || !sight.work.is_as(last.sight.work);
        let is_new_period = sight.work == WorkerTask::Nothing && self.passed >= IDLE_PERIOD;
        if is_next || is_new_period {
            (self.computed, self.passed) = (Duration::ZERO, Duration::ZERO);
        } else {
            self.computed += gone.computed;
            self.passed += gone.passed;
        }

        if is_next || sight.pongs != last.sight.pongs || sight.waits_for_host {
            self.still = Duration::ZERO;
        } else if sight.is_pinged && !sight.has_unread {
            self.still += gone.still;
        }

        self.judge_work(sight.work, is_next)
    }

    /// Returns the time that has passed since `last`, as far as it counts.
    fn gone_since(&self, last: &Glance, times: Option<ProcessTimes>, now: Instant) -> Gone {
        let look = self.budget / LOOKS_PER_BUDGET;
        let most = look * COUNTED_PER_LOOK;
        let between = now.saturating_duration_since(last.at);
        let wall = between.min(most);
        // A late look says that the host was not there to ask and to read.
        let watched = if between > most { look } else { between };
        let busiest = times.map_or(ThreadActivity::Asleep, |times| times.busiest);
        let computed = match (times, last.times) {
            (Some(now), Some(before)) => now.computed.saturating_sub(before.computed).min(most),
            (_, _) => Duration::ZERO,
        };

        let thread = |times: Option<ProcessTimes>| times.and_then(|times| times.thread);
        let (Some(now), Some(before)) = (thread(times), thread(last.times)) else {
            // Without its times, a thread that stands still looks like one that gets no processor: a quarter of the
            // time counts.
            return Gone {
                computed,
                passed: wall,
                still: still_time(watched / 4, busiest),
            };
        };

        let queued = now.queued.saturating_sub(before.queued);
        let script = now.computed.saturating_sub(before.computed);

        Gone {
            computed,
            // A script that yields all the time waits much; at least a quarter counts.
            passed: wall.saturating_sub(queued).max(wall / 4),
            still: still_time(watched.saturating_sub(queued).saturating_sub(script), busiest),
        }
    }

    fn judge_work(&self, work: WorkerTask, is_next: bool) -> WatchResult {
        let hooks = |hooks: usize, each: Duration| each * u32::try_from(hooks).unwrap_or(u32::MAX);
        // Processor time bounds a loop; the number of hooks adds to it, because each of them has its share.
        let most = match work {
            WorkerTask::Starting => Duration::MAX,
            WorkerTask::Loading(count) => LOADING + hooks(count, LOADING_HOOK),
            WorkerTask::Evaluating(count) => self.budget + hooks(count, CALLING_HOOK) + self.passed / SPARE,
            WorkerTask::Nothing => self.budget * IDLE_BUDGETS,
        };

        if self.computed >= most {
            return WatchResult::Stuck(self.computed);
        }

        // A process that starts or loads may wait for the disk without using the processor.
        let has_begun = match work {
            WorkerTask::Starting => {
                return if self.passed >= START {
                    WatchResult::Still(self.passed)
                } else {
                    WatchResult::Moving
                };
            }
            WorkerTask::Loading(_) if self.passed >= START => return WatchResult::Still(self.passed),
            WorkerTask::Loading(_) | WorkerTask::Evaluating(_) => !is_next,
            WorkerTask::Nothing => false,
        };

        // Silence alone proves nothing: the process is asked first whether its thread is free.
        if has_begun && self.still >= self.budget * STILL_BUDGETS {
            WatchResult::Still(self.still)
        } else if has_begun {
            WatchResult::Ask
        } else {
            WatchResult::Moving
        }
    }
}

/// Returns the part of `idle`, in which a process neither computed nor waited for a processor as far as the kernel has
/// counted, that counts as standstill if its busiest thread does this at the end.
fn still_time(idle: Duration, busiest: ThreadActivity) -> Duration {
    match busiest {
        ThreadActivity::Asleep => idle,
        // A disk of a busy machine is slow, but a script can keep it waiting.
        ThreadActivity::OnDisk => idle / 4,
        // It gets no processor; if it does, its computing has a limit of its own.
        ThreadActivity::Runnable => Duration::ZERO,
    }
}

/// The part of the time between two looks that counts.
#[derive(Debug, Clone, Copy)]
struct Gone {
    computed: Duration,
    passed: Duration,
    still: Duration,
}

/// Returns the memory that `pid` holds in MiB, including swap; `None` if the kernel does not report it.
pub(super) fn memory_mb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(held_kib(&status)? / 1024)
}

/// Returns the resident set and the part of it in swap in KiB, from the text of `/proc/PID/status`. Shared pages count
/// fully: two workers share none that hooks can write.
fn held_kib(status: &str) -> Option<u64> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };

    let resident = field("VmRSS:")?;
    // A kernel without swap has no such line.
    Some(resident.saturating_add(field("VmSwap:").unwrap_or_default()))
}

#[cfg(test)]
mod tests;
