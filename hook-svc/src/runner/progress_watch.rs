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
//! without end computes, and the terms count what passes for the process.

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
    /// Activity of the thread that runs the scripts.
    scripts: ThreadActivity,
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
            scripts,
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
        }
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

        let scripts = times.map_or(ThreadActivity::Asleep, |times| times.scripts);

        let queued = now.queued.saturating_sub(before.queued);
        let script = now.computed.saturating_sub(before.computed);
        // Its wait for a processor is not over, and not in the figures yet.
        let is_starved = scripts == ThreadActivity::Runnable && script.is_zero();
        let ran = if is_starved {
            Duration::ZERO
        } else {
            wall.saturating_sub(queued)
        };

        Gone {
            computed,
            // A script that yields all the time waits much; at least a quarter counts.
            passed: ran.max(wall / 4),
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
        // It gets no processor; if it does, what it computes has a limit of its own.
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
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use shared::clock::{Clock as _, SystemClock};

    const BUDGET: Duration = Duration::from_millis(250);
    const LOOK: u64 = 50;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A process that is looked at every 50 ms and does the same between any two looks.
    struct Watched {
        pulse: WorkerPulse,
        at: Instant,
        times: ProcessTimes,
        sight: WorkerSnapshot,
    }

    impl Watched {
        fn new(work: WorkerTask) -> Self {
            let nothing = Duration::ZERO;
            let mut watched = Self {
                pulse: WorkerPulse::new(BUDGET),
                at: SystemClock.monotonic(),
                times: ProcessTimes {
                    computed: nothing,
                    thread: Some(ThreadTimes {
                        computed: nothing,
                        queued: nothing,
                    }),
                    scripts: ThreadActivity::Asleep,
                    busiest: ThreadActivity::Asleep,
                },
                sight: WorkerSnapshot {
                    work,
                    ended: 0,
                    pongs: 0,
                    waits_for_host: false,
                    is_pinged: false,
                    has_unread: false,
                },
            };

            watched.look();
            watched
        }

        /// Looks at it, and pings it if that is asked for.
        fn look(&mut self) -> WatchResult {
            let look = self.pulse.judge_sight(self.sight, Some(self.times), self.at);
            self.sight.is_pinged |= look == WatchResult::Ask;
            look
        }

        /// Passes the time of one look, in which the process computes and waits for a processor for these milliseconds.
        fn pass(&mut self, computed: u64, queued: u64) -> WatchResult {
            self.at += ms(LOOK);
            self.times.computed += ms(computed);
            if let Some(thread) = &mut self.times.thread {
                thread.computed += ms(computed);
                thread.queued += ms(queued);
            }
            self.look()
        }

        /// Returns the number of looks that the process survives, doing that.
        fn lives(
            &mut self,
            computed: u64,
            queued: u64,
            then: impl Fn(&mut WorkerSnapshot),
        ) -> Option<(usize, WatchResult)> {
            (1..4_000).find_map(|count| {
                then(&mut self.sight);
                let look = self.pass(computed, queued);
                match look {
                    WatchResult::Moving | WatchResult::Ask => None,
                    WatchResult::Stuck(_) | WatchResult::Still(_) => Some((count, look)),
                }
            })
        }
    }

    #[test]
    fn who_computes_for_the_budget_is_stuck_whatever_it_says() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        let pongs = |sight: &mut WorkerSnapshot| sight.pongs += 1;
        let (looks, look) = watched.lives(50, 0, pongs).expect("it is found out");
        assert!((5..=6).contains(&looks), "{looks}");
        assert!(matches!(look, WatchResult::Stuck(_)), "{look:?}");
    }

    #[test]
    fn many_hooks_have_more_time_for_an_event_and_a_set_has_more_yet() {
        let looks = |work| Watched::new(work).lives(50, 0, |_| {}).expect("it ends").0;
        assert!(
            (25..=28).contains(&looks(WorkerTask::Evaluating(1_000))),
            "{}",
            looks(WorkerTask::Evaluating(1_000))
        );
        assert!((40..=41).contains(&looks(WorkerTask::Loading(0))));
    }

    #[test]
    fn who_ends_what_it_was_asked_lives() {
        let ends = |sight: &mut WorkerSnapshot| sight.ended += 1;
        assert_eq!(Watched::new(WorkerTask::Evaluating(0)).lives(50, 0, ends), None);
    }

    #[test]
    fn who_waits_and_answers_pings_lives() {
        let pongs = |sight: &mut WorkerSnapshot| sight.pongs += 1;
        assert_eq!(Watched::new(WorkerTask::Evaluating(0)).lives(2, 0, pongs), None);
        let waits = |sight: &mut WorkerSnapshot| sight.waits_for_host = true;
        assert_eq!(Watched::new(WorkerTask::Evaluating(0)).lives(0, 0, waits), None);
    }

    #[test]
    fn who_blocks_without_computing_is_still() {
        let (looks, look) = Watched::new(WorkerTask::Evaluating(0))
            .lives(0, 0, |_| {})
            .expect("it is found out");
        assert!((10..=11).contains(&looks), "{looks}");
        assert!(matches!(look, WatchResult::Still(_)), "{look:?}");
    }

    #[test]
    fn a_busy_machine_is_nobodys_standstill() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        for _ in 0..100 {
            assert_eq!(watched.pass(1, 49), WatchResult::Ask, "it waits for a processor");
        }
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_is_not_still_before_the_kernel_counts_its_wait() {
        for busy in ["the scripts' thread", "another thread"] {
            let mut watched = Watched::new(WorkerTask::Evaluating(0));
            watched.times.busiest = ThreadActivity::Runnable;
            if busy == "the scripts' thread" {
                watched.times.scripts = ThreadActivity::Runnable;
            }
            for _ in 0..200 {
                assert_eq!(watched.pass(0, 0), WatchResult::Ask, "{busy} waits");
            }

            // Its wait is over, and the kernel counts it.
            watched.times.busiest = ThreadActivity::Asleep;
            watched.times.scripts = ThreadActivity::Asleep;
            assert_eq!(watched.pass(0, 200 * LOOK), WatchResult::Ask);
            let (looks, look) = watched.lives(0, 0, |_| {}).expect("it is found out");
            assert!((10..=11).contains(&looks), "{looks}");
            assert!(matches!(look, WatchResult::Still(_)), "{look:?}");
        }
    }

    #[test]
    fn the_term_of_a_thread_that_gets_no_processor_goes_on_at_a_quarter() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        watched.times.scripts = ThreadActivity::Runnable;
        watched.times.busiest = ThreadActivity::Runnable;
        for _ in 0..100 {
            watched.pass(0, 0);
        }
        assert_eq!(watched.pulse.process_age(), ms(100 * LOOK / 4));
    }

    #[test]
    fn who_waits_for_a_slow_disk_has_four_times_as_long() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        watched.times.busiest = ThreadActivity::OnDisk;
        let (looks, look) = watched.lives(0, 0, |_| {}).expect("it is found out");
        assert!((40..=42).contains(&looks), "{looks}");
        assert!(matches!(look, WatchResult::Still(_)), "{look:?}");
    }

    #[test]
    fn silence_counts_only_while_the_host_has_read_everything() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        let unread = |sight: &mut WorkerSnapshot| sight.has_unread = true;
        assert_eq!(
            watched.lives(0, 0, unread),
            None,
            "its answer may be among what is not read"
        );

        // Neither does what it writes prolong what it may compute.
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        let (looks, look) = watched.lives(50, 0, unread).expect("it is found out");
        assert!((5..=6).contains(&looks), "{looks}");
        assert!(matches!(look, WatchResult::Stuck(_)), "{look:?}");

        // Nor the time that passes for it, by which its terms are judged.
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        for _ in 0..100 {
            watched.sight.has_unread = true;
            watched.pass(0, 0);
        }
        assert_eq!(watched.pulse.process_age(), ms(100 * LOOK));
    }

    #[test]
    fn time_before_the_host_has_pinged_is_no_standstill() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        for _ in 0..100 {
            watched.sight.is_pinged = false;
            assert_eq!(watched.pass(0, 0), WatchResult::Ask);
        }
    }

    #[test]
    fn a_look_that_comes_late_counts_as_one() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        let late = (1..4_000).find_map(|count| {
            watched.at += ms(1_000);
            match watched.look() {
                WatchResult::Moving | WatchResult::Ask => None,
                look @ (WatchResult::Stuck(_) | WatchResult::Still(_)) => Some((count, look)),
            }
        });
        assert_eq!(late, Some((11, WatchResult::Still(BUDGET * STILL_BUDGETS))));
    }

    #[test]
    fn what_passes_while_nobody_looks_is_not_counted_whole() {
        let mut watched = Watched::new(WorkerTask::Evaluating(0));
        watched.at += ms(10_000);
        watched.times.computed += ms(10_000);
        assert_eq!(watched.look(), WatchResult::Ask);
        assert_eq!(
            watched.pulse.process_age(),
            BUDGET * COUNTED_PER_LOOK / LOOKS_PER_BUDGET
        );
    }

    #[test]
    fn a_process_that_comes_up_or_loads_has_its_time() {
        for work in [WorkerTask::Starting, WorkerTask::Loading(1)] {
            let pongs = |sight: &mut WorkerSnapshot| sight.pongs += 1;
            let (looks, look) = Watched::new(work).lives(0, 0, pongs).expect("it ends");
            assert!((400..=401).contains(&looks), "{work:?} {looks}");
            assert!(matches!(look, WatchResult::Still(_)), "{look:?}");
        }
    }

    #[test]
    fn who_is_asked_nothing_may_compute_a_little() {
        assert_eq!(Watched::new(WorkerTask::Nothing).lives(1, 0, |_| {}), None);
        let (looks, _) = Watched::new(WorkerTask::Nothing).lives(40, 0, |_| {}).expect("it ends");
        assert!(looks < 60, "{looks}");
    }

    #[test]
    fn where_the_kernel_counts_no_threads_who_waits_lives_and_who_loops_does_not() {
        let begin = || {
            let mut watched = Watched::new(WorkerTask::Evaluating(0));
            watched.times.thread = None;
            watched
        };
        assert_eq!(begin().lives(2, 0, |sight| sight.pongs += 1), None);
        let ended = |computed| begin().lives(computed, 0, |_| {}).expect("it ends");
        assert!(matches!(ended(50), (5..=6, WatchResult::Stuck(_))), "{:?}", ended(50));
        assert!(matches!(ended(0), (39..=41, WatchResult::Still(_))), "{:?}", ended(0));
    }

    #[test]
    fn memory_in_swap_is_held_too() {
        let status = "Name:\tbun\nVmRSS:\t  204800 kB\nVmSwap:\t  512000 kB\n";
        assert_eq!(held_kib(status), Some(716_800));
        assert_eq!(held_kib("VmRSS:\t  1024 kB\n"), Some(1_024));
        assert_eq!(held_kib("Name:\tbun\n"), None, "a process that has ended");
        assert!(memory_mb(std::process::id()).is_some_and(|held| held > 0));
    }

    #[test]
    fn this_process_has_times() {
        for is_silent in [false, true] {
            assert!(ProcessTimes::of_process(std::process::id(), is_silent).is_some());
            assert_eq!(ProcessTimes::of_process(0, is_silent), None);
        }
    }

    /// Waits until the busiest thread of a shell that runs `script` does this.
    fn check_activity(script: &str, expected: ThreadActivity) {
        let shell = std::process::Command::new("sh").args(["-c", script]).spawn();
        let mut shell = shell.expect("a shell");
        let begun = SystemClock.monotonic();

        let seen = loop {
            let seen = ThreadActivity::busiest_of(shell.id());
            let passed = SystemClock.monotonic().duration_since(begun);
            if seen == Some(expected) || passed > Duration::from_secs(30) {
                break seen;
            }
            std::thread::yield_now();
        };

        shell.kill().expect("it lives");
        shell.wait().expect("it ends");
        assert_eq!(seen, Some(expected), "{script}");
    }

    #[test]
    fn a_process_that_computes_is_runnable_and_one_that_waits_is_asleep() {
        check_activity("while :; do :; done", ThreadActivity::Runnable);
        check_activity("read line", ThreadActivity::Asleep);
        check_activity("exec sleep 60", ThreadActivity::Asleep);
    }

    #[test]
    fn a_name_is_no_activity() {
        let of = |stat| ThreadActivity::from_stat(stat);
        assert_eq!(of("7 (a) D (b) R) S 1 7"), Some(ThreadActivity::Asleep));
        assert_eq!(of("7 (bun) R 1 7"), Some(ThreadActivity::Runnable));
        assert_eq!(of("7 (S) D 1 7"), Some(ThreadActivity::OnDisk));
        assert_eq!(of(""), None);
    }

    #[test]
    fn a_pipe_holds_bytes_until_they_are_read() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        assert!(!has_unread_bytes(&reader));
        writer.write_all(b"pong").expect("written");
        assert!(has_unread_bytes(&reader));
        reader.read_exact(&mut [0; 4]).expect("read");
        assert!(!has_unread_bytes(&reader));
    }
}
