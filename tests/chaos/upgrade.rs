//! A release that writes more fields runs beside one that does not know them, and takes its place and gives it back,
//! under load: each event is dispatched and answered once, and nothing is malformed to either.
//!
//! A variable lets a process of the later release write a further field into each message and each entry of a ledger
//! (`shared::wire::unknown::LATER_RELEASE`). A feature of cargo would build the workspace a second time. The earlier
//! release is the programs in the folder that `NEXUS_BIN_BEFORE` names, which `make chaos` builds from the commit in
//! `tests/earlier-release`; without the variable it is this build.
//!
//! The streams are those of this build, as an operator applies a topology before the services are replaced, and the
//! server has no users: their rights are those of one release.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;
use shared::testing::{eventually_within, says};
use shared::wire::topology::streams::{DISPATCHES, EVENTS, LEDGER, RECEIPTS};
use shared::wire::unknown::LATER_RELEASE;
use tests::load::{Gateways, Load, send};
use tests::stream_walk::for_each;
use tests::world::{Setup, World, told_binaries};

use crate::killer::tell;
use crate::kills::{ANSWER, SETTLE as KEPT, is_long, settled_tally};
use crate::scale::{Times, all_heard, check_order, listen};

/// The order in which operators replace services: who writes first comes last.
const ORDER: [&str; 5] = ["delivery-svc", "broker-svc", "scheduler-svc", "hook-svc", "adapter-svc"];
/// The time in which a replica ends in good order.
const DRAINED: Duration = Duration::from_secs(30);
/// The streams of the steps from an event to its answer.
const WRITTEN: [&str; 4] = [EVENTS, DISPATCHES, LEDGER, RECEIPTS];
/// The time within which each step is done by the later release.
const SETTLE: Duration = Duration::from_secs(60);
/// The field that the later release writes.
const LATER: &[u8] = b"x_later";

/// Variable that names the folder with the programs of the earlier release.
const EARLIER: &str = "NEXUS_BIN_BEFORE";

/// Returns the folder with the programs of the earlier release; `None` if this build stands for both.
fn earlier_binaries() -> Option<PathBuf> {
    #[expect(
        clippy::disallowed_methods,
        reason = "`make chaos` names the programs of the earlier release by a variable"
    )]
    let folder = std::env::var_os(EARLIER);
    let folder = folder.filter(|folder| !folder.is_empty()).map(PathBuf::from)?;

    assert!(
        !says("NEXUS_TEST_USERS", "all"),
        "{EARLIER}: the earlier release may need rights that users no longer have"
    );
    let found = folder.canonicalize();
    Some(found.unwrap_or_else(|error| panic!("{EARLIER}={}: {error}", folder.display())))
}

/// Returns the folder of the program that replica `replica` of `name` runs.
fn folder_of(world: &mut World, name: &str, replica: u16) -> Option<PathBuf> {
    let pid = world.stack.service(name, replica)?.pid();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    program.parent().map(Path::to_owned)
}

/// A hook that answers each sender by an account of its own, so that both replicas of delivery-svc have some: partitions go
/// by accounts.
fn answer_by_many_accounts() -> String {
    ANSWER.replace(r#"accountId: "chaos""#, r#"accountId: "chaos" + e.peer.id"#)
}

struct Course {
    /// Folder with the programs of the earlier release; none = this build stands for both.
    earlier: Option<PathBuf>,
    /// Replicas of each service that are replaced, of two.
    replaced: BTreeSet<u16>,
    /// Events a second.
    rate: u32,
    /// Time before the first replacement, between the two upgrades, and after the last replacement.
    calm: Duration,
    /// Largest growth of the 99th percentile of the time to a dispatch.
    most: f64,
}

impl Course {
    /// One replica of each service becomes a later one beside the other. The suite runs on busy machines: how long a
    /// dispatch takes there says little.
    fn short() -> Self {
        Self {
            earlier: earlier_binaries(),
            replaced: BTreeSet::from([1]),
            rate: 40,
            calm: Duration::from_secs(4),
            most: f64::INFINITY,
        }
    }

    fn long() -> Self {
        Self {
            earlier: earlier_binaries(),
            replaced: BTreeSet::from([0, 1]),
            rate: 200,
            calm: Duration::from_secs(30),
            most: 3.0,
        }
    }
}

/// Replaces replicas by ones of the later release, or of the earlier one; answers when it began and ended.
async fn roll(world: &mut World, course: &Course, later: bool, gateways: &Gateways) -> (UnixMillis, UnixMillis) {
    let begun = SystemClock.now();
    world.stack.set_variable(LATER_RELEASE, if later { "1" } else { "" });
    let this = told_binaries();
    let binaries = course.earlier.as_deref().filter(|_| !later).or(this.as_deref());
    world.stack.set_binaries(binaries).expect("the programs are there");

    for name in ORDER {
        for replica in &course.replaced {
            let code = world.stack.stop_replica(name, *replica, DRAINED).await;
            assert_eq!(code, Some(0), "{name}-{replica} ends in good order\n{}", world.logs());
            world.stack.launch(name, *replica).expect("it starts");
            world.stack.ready().await.expect("it becomes ready");

            let runs_earlier = folder_of(world, name, *replica) == course.earlier;
            assert!(
                course.earlier.is_none() || runs_earlier != later,
                "{name}-{replica} runs the program of its release"
            );
            tell(world, gateways);
        }
    }
    (begun, SystemClock.now())
}

/// The 99th percentile of `waits`, in milliseconds.
fn p99(mut waits: Vec<i64>) -> i64 {
    waits.sort_unstable();
    waits
        .get((waits.len() * 99).div_ceil(100).saturating_sub(1))
        .copied()
        .unwrap_or(0)
}

/// Messages of `stream` with the field of the later release, and without it.
async fn written_by_either(world: &World, stream: &str) -> (usize, usize) {
    let (mut later, mut earlier) = (0, 0);
    for_each(&world.bus, stream, |message| {
        if message.payload.windows(LATER.len()).any(|part| part == LATER) {
            later += 1;
        } else {
            earlier += 1;
        }
    })
    .await;
    (later, earlier)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_with_more_fields_comes_and_goes_without_a_loss() {
    let course = if is_long() { Course::long() } else { Course::short() };
    let mut world = World::start(Setup {
        replicas: 2,
        hooks: vec![("answer.ts", answer_by_many_accounts())],
        binaries: course.earlier.clone(),
        ..Setup::default()
    })
    .await;
    world.stack.ready().await.expect("two replicas of each start");

    let heard = listen(&world.bus).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);
    // For as long as it takes, and a little longer.
    let seconds = course.calm.as_secs() * 3 + 2 * ORDER.len() as u64 * course.replaced.len() as u64 * 4;
    let load = Load {
        events: u64::from(course.rate) * seconds,
        rate: course.rate,
        sessions: 100,
        copies: 1,
    };
    let sending = tokio::spawn(send(load, gateways.clone()));

    pause(course.calm).await;
    let up = roll(&mut world, &course, true, &gateways).await;
    // A reply takes seconds on a slow machine: the later release stays until it has taken part in each step.
    eventually_within("each stream has messages of the later release", SETTLE, async || {
        for stream in WRITTEN {
            if written_by_either(&world, stream).await.0 == 0 {
                return Err(format!("{stream} has none"));
            }
        }
        Ok(())
    })
    .await;
    pause(course.calm).await;
    let down = roll(&mut world, &course, false, &gateways).await;
    let accepted = sending.await.expect("the load was sent");

    let tally = settled_tally(&world, &accepted, KEPT).await;
    let heard = all_heard(&world, &heard, load.events).await;
    check_order(&tally, &heard, load.events);
    assert!(tally.dead.is_empty(), "dead letters: {:?}", tally.dead);
    for stream in WRITTEN {
        let (later, earlier) = written_by_either(&world, stream).await;
        assert!(
            later > 0 && earlier > 0,
            "{stream}: {later} of the later release, {earlier} of the other"
        );
    }

    let times = Times::of(tally);
    let is_rolling = |at: UnixMillis| [up, down].iter().any(|(begun, ended)| *begun <= at && at <= *ended);
    let waits = times.waits(&times.dispatched);
    let (rolling, calm): (Vec<_>, Vec<_>) = waits.partition(|wait| is_rolling(wait.arrived));
    let of = |waits: Vec<crate::scale::Wait>| p99(waits.iter().map(crate::scale::Wait::ms).collect());
    let (rolling_count, calm_count) = (rolling.len(), calm.len());
    let (rolling, calm) = (of(rolling), of(calm));

    println!(
        "{}: {} events, {} a second, {} replicas replaced twice: none lost, doubled, malformed or out of order; 99 % were \
         dispatched within {rolling} ms while replicas were replaced ({rolling_count} events), and within {calm} ms \
         otherwise ({calm_count})",
        course.earlier.as_deref().map_or_else(
            || "one build stands for both releases".to_owned(),
            |folder| format!("the earlier release is in {}", folder.display())
        ),
        load.events,
        course.rate,
        ORDER.len() * course.replaced.len(),
    );
    assert!(rolling_count > 0 && calm_count > 0);
    assert!(
        rolling as f64 <= course.most * calm.max(1) as f64,
        "{rolling} ms while rolling, {calm} ms otherwise"
    );
}
