//! Schedulers are killed at random, and the server once: each nominal time makes exactly one event.

use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;
use tokio::process::Child;

use crate::world::{DEADLINE, World};

const ONE_SHOTS: i64 = 60;
const APART_MS: i64 = 200;
/// Time for the schedulers to start and to write the records; the longer one for a machine that is busy elsewhere.
const LEADS_MS: [i64; 2] = [15_000, 60_000];
/// The killing begins so long before the first is due.
const KILLS_BEFORE_MS: u64 = 2_000;
/// The server dies after so many kills: amid the firings.
const SERVER_DIES_AFTER: usize = 12;
const RECURRING: i64 = 15;

fn instant(at: UnixMillis) -> String {
    let at = jiff::Timestamp::from_millisecond(at.0).expect("in range");
    format!("{at:.3}")
}

/// Some of 64 pauses between kills, the same in every run.
fn pauses() -> impl Iterator<Item = Duration> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Duration::from_millis(150 + state % 1_100)
    })
}

/// One-shots from `first` on, and recurring ones.
fn jobs(first: UnixMillis) -> Vec<(String, String)> {
    let mut jobs: Vec<(String, String)> = (0..ONE_SHOTS)
        .map(|n| {
            let at = instant(first.plus(n * APART_MS));
            (
                format!("shot-{n}"),
                format!("schedule = \"at {at}\"\noverlap = \"allow\""),
            )
        })
        .collect();

    for n in 0..RECURRING {
        let from = instant(UnixMillis(n * 60_000 / RECURRING));
        jobs.push((
            format!("minute-{n}"),
            format!("schedule = \"every 1m from {from}\"\noverlap = \"allow\"\nmissed = \"all\""),
        ));
    }

    jobs
}

/// Schedulers that know all their jobs before the first is due.
struct Prepared {
    world: World,
    schedulers: [Child; 2],
    /// Time at which all jobs were known.
    known: UnixMillis,
    /// Time at which the first one-shot is due.
    first: UnixMillis,
}

impl Prepared {
    /// Starts schedulers with jobs that begin in `lead_ms`.
    async fn start(lead_ms: i64) -> Self {
        let world = World::start().await;
        let first = SystemClock.now().plus(lead_ms);
        let jobs = jobs(first);
        world.configure("reconcile_every_ms = 2000", &jobs);
        let schedulers = [world.scheduler(), world.scheduler()];

        for (id, _) in &jobs {
            world
                .until_record(&format!("config:{id}"), |record| {
                    record.next.is_some() || record.fired > 0
                })
                .await;
        }

        Self {
            world,
            schedulers,
            known: SystemClock.now(),
            first,
        }
    }

    /// Returns whether the killing can begin before the first is due.
    fn is_in_time(&self) -> bool {
        self.first.since(self.known) > KILLS_BEFORE_MS.cast_signed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_and_the_server_die_and_each_nominal_time_fires_once() {
    let mut prepared = Prepared::start(LEADS_MS[0]).await;
    if !prepared.is_in_time() {
        prepared = Prepared::start(LEADS_MS[1]).await;
    }

    let in_time = prepared.is_in_time();
    let Prepared {
        mut world,
        mut schedulers,
        known,
        first,
    } = prepared;
    assert!(
        in_time,
        "the records stood too late: the machine is too slow for this test"
    );

    let idle = u64::try_from(first.since(known)).expect("it lies ahead");
    pause(Duration::from_millis(idle.saturating_sub(KILLS_BEFORE_MS))).await;
    let (mut killed, until) = (0_usize, first.plus(ONE_SHOTS * APART_MS));

    let mut pauses = pauses();
    while SystemClock.now() < until || killed < SERVER_DIES_AFTER {
        pause(pauses.next().expect("endless")).await;
        let victim = &mut schedulers[killed % 2];
        victim.start_kill().expect("it is killed");
        victim.wait().await.expect("it is dead");
        killed += 1;

        if killed == SERVER_DIES_AFTER {
            world.server.kill9();
            world.server.restart().await;
        }

        schedulers[(killed - 1) % 2] = world.scheduler();
    }

    let expected = expected(known, until);
    let waited = tokio::time::timeout(DEADLINE, async {
        loop {
            let fired = world.fired().await;
            let missing = expected
                .iter()
                .filter(|(id, at)| !fired.get(id).is_some_and(|all| all.contains(at)));
            if missing.count() == 0 {
                return;
            }
            pause(Duration::from_millis(200)).await;
        }
    });

    let in_time = waited.await.is_ok();
    let fired = world.fired().await;
    let missing: Vec<_> = expected
        .iter()
        .filter(|(id, at)| !fired.get(id).is_some_and(|all| all.contains(at)))
        .collect();

    assert!(in_time, "{killed} kills, missing: {missing:?}\n{}", world.log());

    for (id, all) in &fired {
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len(), "{id} fired twice after {killed} kills: {all:?}");
    }

    println!("{killed} kills, {} firings, each once", expected.len());
}

/// All firings that lie between.
fn expected(known: UnixMillis, until: UnixMillis) -> Vec<(String, i64)> {
    let first = until.plus(-ONE_SHOTS * APART_MS);
    let mut all: Vec<(String, i64)> = (0..ONE_SHOTS)
        .map(|n| (format!("config:shot-{n}"), first.plus(n * APART_MS).0))
        .collect();
    for n in 0..RECURRING {
        let anchor = n * 60_000 / RECURRING;
        let next = anchor + ((known.0 - anchor).div_euclid(60_000) + 1) * 60_000;
        if next < until.0 {
            all.push((format!("config:minute-{n}"), next));
        }
    }

    all
}
