//! More than fifty hooks that want out, under the whole sandbox: innocents of another author notice nothing, those of the
//! same author lose what was under way, and what the hostile ones held is given back.
//!
//! Ten at once, each of an author of its own beside two innocents. `NEXUS_HOOKS=long` (`make chaos`) takes them one by one, and
//! compares what events take with what they take without. The figures are printed.

mod scripts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::hook::{HookRecord, HookStatus};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::testing::says;
use shared::wire::subject::token;
use shared::wire::topology::buckets;

use self::scripts::{Hostile, MEANS, all};
use crate::hostile::of_author;
use crate::world::{World, event};

/// How many events a hostile hook sees at first; it is paused after five errors in a row.
const EVENTS: u32 = 8;

/// How many events are measured without any of them, in the long form.
const ALONE: u32 = 300;

/// From one event to the next.
const PACE: Duration = Duration::from_millis(150);

/// How long a wave may take to be paused whole: some are called apart, one after the other, for a second each and more.
const PAUSED_WITHIN: Duration = Duration::from_secs(90);

/// How long it takes until everything is given back.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(30);

/// What a process of hooks may add to the log in a second, in bytes, and how many there are of each author: one that holds
/// all hooks, and one for suspects.
const LOGGED_A_SECOND: u64 = 64 * 1024;
const WORKERS_OF_AUTHOR: u64 = 2;

/// What hook-svc itself logs of a wave, in bytes: that hooks fail, and are paused.
const LOGGED_BESIDE: u64 = 1024 * 1024;

/// How much the log may grow from one look to the next when everything is given back, in bytes.
const LOGGED_AT_REST: u64 = 2 * 1024;

/// How much memory may stay, MiB: what hook-svc and Bun have allocated, and not the scripts' hundreds.
const KEPT_MB: u64 = 128;

/// What an innocent of the same author may lose, of those that were under way when its process was killed.
const MAX_LOST: usize = 6;

/// An event of an innocent of another author, beside ten hostile hooks on a busy machine.
const SOON_MS: i64 = 8_000;

/// Fires upon each event, each in a session of its own.
const HONEST: &str = "export default ({ event }) => ({ fire: true, routing: { session: `s${event.source_id}` } });\n";
/// The same of an agent, whose hooks may name no session.
const FIRES: &str = "export default () => ({ fire: true });\n";
const PASSES: &str = "export default () => ({ fire: false });\n";

/// What hook-svc and all that it has started hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    processes: usize,
    /// Proportional set, shared memory with it.
    memory_mb: u64,
    /// Shared-memory segments of the whole machine.
    segments: usize,
}

fn held(pid: u32) -> Held {
    let tree = tree(pid);
    let memory_kb: u64 = tree.iter().map(|pid| proportional_kb(*pid)).sum();
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    Held {
        processes: tree.len(),
        memory_mb: memory_kb / 1024,
        segments: segments.lines().count(),
    }
}

/// `pid` and those who descend from it.
fn tree(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let threads = std::fs::read_dir(format!("/proc/{parent}/task"))
            .into_iter()
            .flatten()
            .flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
    }

    found
}

fn proportional_kb(pid: u32) -> u64 {
    let rollup = Path::new("/proc").join(pid.to_string()).join("smaps_rollup");
    let rollup = std::fs::read_to_string(rollup).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// What is looked at.
struct Watched {
    world: World,
    pid: u32,
    before: Held,
    published: u32,
    log: PathBuf,
    /// Open here, and left open for hook-svc.
    _inherited: std::fs::File,
}

impl Watched {
    async fn start() -> Self {
        let mut world = World::new(&[("honest.ts", HONEST), ("honest2.ts", HONEST)]).await;
        world.sandbox = "enforce";
        let log = world.write_file("hook-svc.log", "");
        world.log = Some(log.clone());
        let secret = world.write_file("secret", "the secret of another author");
        let inherited = std::fs::File::open(secret).expect("opened");
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).expect("left open");
        world.start("a");
        world.wait_for_members(1).await;
        let pid = world.replica("a").pid();

        let mut watched = Self {
            world,
            pid,
            before: held(pid),
            published: 0,
            log,
            _inherited: inherited,
        };

        watched.publish(10).await;
        watched.world.wait_for_records(10).await;
        watched.before = held(pid);

        watched
    }

    async fn publish(&mut self, count: u32) {
        for _ in 0..count {
            let number = self.published;
            self.published += 1;
            self.world.publish(&event(&format!("v{number}"), number, "hello")).await;
            pause(PACE).await;
        }
    }

    /// Shows events to `wave` until all are paused who are to be, and takes them away again.
    async fn look(&mut self, wave: &[Hostile]) -> Vec<String> {
        let kv = self.world.bus.kv::<HookRecord>(buckets::HOOKS);
        let mut hooks: Vec<HookRecord> = Vec::new();
        for (author, script, _) in wave {
            let hostile = format!("{MEANS}{script}");
            for (name, source) in [("a", FIRES), ("bad", hostile.as_str()), ("z", PASSES)] {
                hooks.push(of_author(author, &format!("{author}.{name}"), source));
            }
        }

        for hook in &hooks {
            kv.create(&token(&hook.id), hook).await.expect("stored");
        }

        let (first, logged) = (self.published, self.logged());
        let begun = SystemClock.monotonic();
        let since = || SystemClock.monotonic().duration_since(begun);
        let reasons = self.until_paused(wave).await;
        let paused = since();
        self.world.wait_for_records(u64::from(self.published)).await;

        for hook in &hooks {
            kv.delete(&token(&hook.id), None).await.expect("deleted");
        }

        let mut faults = unexpected(wave, &reasons);
        faults.extend(self.losses(wave, first).await);
        let settled = since();
        faults.extend(self.kept().await.map(|kept| format!("{reasons:?}: {kept}")));

        let events = self.published - first;
        let (took, logged) = (since(), self.logged() - logged);
        let workers = WORKERS_OF_AUTHOR * (wave.len() as u64 + 1);
        let bound = LOGGED_A_SECOND * workers * (took.as_secs() + 1) + LOGGED_BESIDE;
        if logged > bound {
            faults.push(format!(
                "{logged} bytes are logged in {took:.1?}, {bound} at most: {reasons:?}"
            ));
        }
        println!(
            "{events} events, {} KiB logged, paused after {paused:.1?}, settled {settled:.1?}, given back {took:.1?}: {reasons:#?}",
            logged / 1024
        );

        faults
    }

    /// The reason of each that is paused, once all are who are to be, or none is any more for too long.
    async fn until_paused(&mut self, wave: &[Hostile]) -> BTreeMap<String, String> {
        let begun = SystemClock.monotonic();
        let mut reasons = BTreeMap::new();
        self.publish(EVENTS).await;

        loop {
            for (author, ..) in wave {
                let state = self.world.hook_state(&format!("{author}.bad")).await;
                let paused = state.filter(|state| state.status == HookStatus::Paused);
                if let Some(reason) = paused.and_then(|state| state.last_error) {
                    reasons.insert((*author).to_owned(), reason);
                }
            }

            let is_paused = |(author, _, reason): &Hostile| reason.is_none() || reasons.contains_key(*author);
            let waited = SystemClock.monotonic().duration_since(begun);
            if wave.iter().all(is_paused) || waited > PAUSED_WITHIN {
                return reasons;
            }

            self.publish(1).await;
            pause(3 * PACE).await;
        }
    }

    /// What innocents have lost upon events from number `first` on that they may not.
    async fn losses(&self, wave: &[Hostile], first: u32) -> Vec<String> {
        let records = self.world.invocations().await;
        let records: Vec<&EventInvocations> = records.iter().skip(first as usize).collect();
        // An innocent that is passed over is as lost as one that is killed.
        let lost = |id: &str| {
            let is_lost = |record: &&&EventInvocations| {
                let of = record.hooks.iter().find(|hook| hook.hook_id == id);
                of.is_some_and(|hook| match hook.outcome {
                    HookOutcome::Failed { .. } | HookOutcome::Skipped { .. } => true,
                    HookOutcome::Passed
                    | HookOutcome::Fired { .. }
                    | HookOutcome::Suppressed { .. }
                    | HookOutcome::Deferred => false,
                })
            };
            records.iter().filter(is_lost).count()
        };

        let of_same = wave
            .iter()
            .flat_map(|(author, ..)| [format!("{author}.a"), format!("{author}.z")]);
        let others = ["honest", "honest2"].map(|id| (id.to_owned(), 0));

        let (mut faults, mut lost_of_same) = (Vec::new(), 0);
        for (id, bound) in of_same.map(|id| (id, MAX_LOST)).chain(others) {
            let lost = lost(&id);
            lost_of_same += lost;
            if lost > bound {
                let events = records.len();
                faults.push(format!("{id} lost {lost} events of {events}, {bound} at most"));
            }

            let state = self.world.hook_state(&id).await;
            if let Some(state) = state.filter(|state| state.status == HookStatus::Paused) {
                faults.push(format!("the innocent {id} is paused: {:?}", state.last_error));
            }
        }

        println!("innocents of the same authors lost {lost_of_same} evaluations");
        faults
    }

    /// How long the log is, in bytes.
    fn logged(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |metadata| metadata.len())
    }

    /// What is not given back in time.
    async fn kept(&self) -> Option<String> {
        let begun = SystemClock.monotonic();
        let mut logged = self.logged();
        loop {
            let now = held(self.pid);
            let grown = self.logged() - std::mem::replace(&mut logged, self.logged());
            let Held {
                processes,
                memory_mb,
                segments,
            } = self.before;

            let is_back =
                now.processes <= processes && now.memory_mb <= memory_mb + KEPT_MB && now.segments <= segments;
            if is_back && grown <= LOGGED_AT_REST {
                return None;
            }

            if SystemClock.monotonic().duration_since(begun) > GIVEN_BACK_WITHIN {
                return Some(format!(
                    "{now:?} is held, {:?} before, and {grown} bytes logged at last",
                    self.before
                ));
            }

            pause(Duration::from_millis(200)).await;
        }
    }

    /// From the storing of each event behind the first so many to that of its dispatches, ms.
    async fn latencies(&self, behind: u32) -> Latencies {
        let mut events = BTreeMap::new();
        for sequence in u64::from(behind) + 1..=u64::from(self.published) {
            let stored = self.world.bus.at_sequence("EVENTS", sequence).await.expect("readable");
            events.insert(sequence, stored.expect("stored").published_at.0);
        }

        let state = self.world.bus.stream_state("DISPATCHES").await.expect("its state");
        let mut took = Latencies::default();
        for sequence in 1..=state.last {
            let stored = self
                .world
                .bus
                .at_sequence("DISPATCHES", sequence)
                .await
                .expect("readable");

            let stored = stored.expect("stored");
            let dispatch: shared::model::dispatch::Dispatch = stored.decode().expect("a dispatch");
            let event = events.get(&dispatch.event_seq);
            let of_event = event.map(|at| stored.published_at.0 - at);
            if dispatch.hook_id == "honest" {
                took.of_another.extend(of_event);
            } else if dispatch.hook_id.contains('.') {
                took.of_same.extend(of_event);
            }
        }

        took.of_another.sort_unstable();
        took.of_same.sort_unstable();
        took
    }
}

/// How long innocents' events took, ms, ascending.
#[derive(Debug, Default)]
struct Latencies {
    /// Of the operator's first hook.
    of_another: Vec<i64>,
    /// Of the hooks beside a hostile one of their author.
    of_same: Vec<i64>,
}

/// The percentile of what ascends; 0 where nothing was measured.
fn percentile(took: &[i64], percent: usize) -> i64 {
    took.get(took.len() * percent / 100).copied().unwrap_or_default()
}

/// Median, p99 and the longest.
fn shown(took: &[i64]) -> String {
    let [p50, p99] = [50, 99].map(|percent| percentile(took, percent));
    let longest = took.last().copied().unwrap_or_default();
    format!(
        "p50 {p50} ms, p99 {p99} ms, at most {longest} ms of {} events",
        took.len()
    )
}

/// What is not as [`all`] says of those of `wave`.
fn unexpected(wave: &[Hostile], reasons: &BTreeMap<String, String>) -> Vec<String> {
    let of = |(author, _, wanted): &Hostile| match (wanted, reasons.get(*author)) {
        (Some(wanted), Some(reason)) if wanted.split('|').any(|wanted| reason.contains(wanted)) => None,
        (Some(wanted), reason) => Some(format!("{author} is paused for {reason:?}, `{wanted}` is expected")),
        (None, _) => None,
    };
    wave.iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_hooks_try_others_do_not_pay() {
    if !World::is_confined_whole().await {
        return;
    }

    let is_long = says("NEXUS_HOOKS", "long");
    let hostile = all();
    assert!(hostile.len() >= 50, "{}", hostile.len());

    let mut watched = Watched::start().await;
    watched.publish(if is_long { ALONE } else { 0 }).await;
    watched.world.wait_for_records(u64::from(watched.published)).await;
    let alone = watched.latencies(0).await;

    let (mut faults, first) = (Vec::new(), watched.published);
    for wave in hostile.chunks(if is_long { 1 } else { 10 }) {
        faults.extend(watched.look(wave).await);
    }

    assert!(faults.is_empty(), "{}", faults.join("\n"));

    let took = watched.latencies(first).await;
    assert_eq!(
        took.of_another.len(),
        (watched.published - first) as usize,
        "every event has its dispatch"
    );

    println!("an innocent without hostile hooks: {}", shown(&alone.of_another));
    println!("an innocent of another author: {}", shown(&took.of_another));
    println!("innocents of the same author: {}", shown(&took.of_same));
    let (alone, beside) = (percentile(&alone.of_another, 99), percentile(&took.of_another, 99));
    let bound = if is_long { (2 * alone).max(alone + 20) } else { SOON_MS };

    assert!(
        beside <= bound,
        "p99 {beside} ms, {alone} ms alone: {:?}",
        took.of_another
    );
}
