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
    let mut watched = Watched::new(WorkerTask::Evaluating(0));
    watched.times.busiest = ThreadActivity::Runnable;
    for _ in 0..200 {
        assert_eq!(watched.pass(0, 0), WatchResult::Ask, "it waits");
    }

    // Its wait is over, and the kernel counts it.
    watched.times.busiest = ThreadActivity::Asleep;
    assert_eq!(watched.pass(0, 200 * LOOK), WatchResult::Ask);
    let (looks, look) = watched.lives(0, 0, |_| {}).expect("it is found out");
    assert!((10..=11).contains(&looks), "{looks}");
    assert!(matches!(look, WatchResult::Still(_)), "{look:?}");
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
        "its answer may be among the unread bytes"
    );

    // Neither do the bytes that it writes prolong its time to compute.
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

#[test]
fn a_process_is_quiet_while_it_computes_next_to_nothing() {
    let mut watched = Watched::new(WorkerTask::Nothing);
    assert!(!watched.pulse.is_quiet(), "of one look nothing is known");
    for (computed, quiet) in [(0, true), (10, true), (20, false), (50, false), (0, true)] {
        watched.pass(computed, 0);
        assert_eq!(watched.pulse.is_quiet(), quiet, "{computed} ms");
    }

    // Without the kernel's figures it is not known.
    watched.at += ms(LOOK);
    watched.pulse.judge_sight(watched.sight, None, watched.at);
    assert!(!watched.pulse.is_quiet());
}

#[test]
fn a_process_that_computes_without_work_is_found_although_it_rested() {
    let mut watched = Watched::new(WorkerTask::Nothing);
    watched.pass(0, 0);
    let begun = watched.at;
    // As the watch does: a second more before a look at a process that was quiet.
    let stuck = loop {
        let rest = if watched.pulse.is_quiet() { 1_000 } else { 0 };
        watched.at += ms(rest);
        if let WatchResult::Stuck(computed) = watched.pass(LOOK + rest, 0) {
            break computed;
        }
    };
    assert!(stuck >= BUDGET * IDLE_BUDGETS);
    let took = watched.at.duration_since(begun);
    assert!(took <= ms(3_500), "{took:?}");
}
