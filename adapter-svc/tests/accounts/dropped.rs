//! The end of a process at every point, as far as a source can tell: it is dropped at each of its waits in turn, and the next
//! run of it goes on. The laws are those of [`crate::contract`]; `process.rs` and its like kill real processes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;

use adapter_svc::source::port::{SinkContext, Source, SourceEnd, SourceSink};
use shared::bus::{AccountLease, AccountLeases};
use shared::process::Health;
use shared::testing::{eventually, eventually_some};
use shared::wire::watermark::SourceWatermark;
use tokio::task::JoinHandle;

use crate::contract::{Platform, ids};
use crate::world::{START, World, says};

/// Number of waits after which no source is dropped any more: far more than one message takes.
const MOST_WAITS: usize = 2_000;

/// Number of runs one behind the other that confirm everything before they are dropped, after which all waits were tried.
const WHOLE_RUNS: usize = 4;

/// When a source is dropped.
#[derive(Debug, Clone, Copy)]
enum Leave {
    /// As soon as it waits: the answer is on its way.
    Waiting,
    /// Once the answer is there, and before the source has seen it.
    Answered,
}

/// The runs of one source, one after the other.
struct Runs {
    source: Arc<dyn Source>,
    context: SinkContext,
    lease: AccountLease,
}

impl Runs {
    /// Begins a run that is dropped after `waits` waits.
    async fn begin(&mut self, waits: usize, leave: Leave) -> JoinHandle<Option<SourceEnd>> {
        let mut held = None;
        eventually("the account is held", async || {
            held = self.lease.hold().await.expect("asked");
            held.is_some()
        })
        .await;

        let (source, context, hold) = (&self.source, &self.context, held.expect("held"));
        let (sink, from) = eventually_some("the watermark is read", async || {
            let opened = SourceSink::open(context.clone(), source.as_ref(), hold.clone()).await;
            opened.ok()
        })
        .await;
        tokio::spawn(run(Arc::clone(source), sink, from, waits, leave))
    }
}

/// Runs `source` until it has waited `waits` times; its end, if it ends before.
async fn run(
    source: Arc<dyn Source>,
    sink: SourceSink,
    from: Option<SourceWatermark>,
    waits: usize,
    leave: Leave,
) -> Option<SourceEnd> {
    let (mut running, mut left) = (source.run(from, &sink), waits);
    std::future::poll_fn(move |task| {
        if left == 0 {
            return Poll::Ready(None);
        }
        let polled = running.as_mut().poll(task).map(Some);
        left -= usize::from(polled.is_pending());
        match leave {
            Leave::Waiting if left == 0 => Poll::Ready(None),
            Leave::Waiting | Leave::Answered => polled,
        }
    })
    .await
}

/// Ends `run`, wherever it is.
async fn end(run: JoinHandle<Option<SourceEnd>>) {
    run.abort();
    match run.await {
        // On a machine that is slow for some seconds the account is lost.
        Ok(None | Some(SourceEnd::Fenced)) => {}
        Ok(Some(SourceEnd::Stopped { reason, .. })) => panic!("it stopped: {reason}"),
        Err(error) => assert!(error.is_cancelled(), "{error}"),
    }
}

/// Drops the source of the stand-in that `make` starts at each of its waits, and checks that each message is one event, and
/// that none was confirmed before it was stored.
pub(crate) async fn check_dropped<P: Platform>(make: impl AsyncFn(&World) -> P) {
    let world = World::start().await;
    let platform = make(&world).await;
    let health = Health::default();
    let context = world.sink_context(&world, &health);
    let leases = AccountLeases::watch(&context.bus, "adapter-svc-0".to_owned(), context.clock.clone());
    let mut runs = Runs {
        source: platform.source(&world),
        lease: leases.of_account(platform.channel(), "main"),
        context,
    };

    let mut expected = BTreeSet::new();
    let mut number = 0;
    let mut say = |expected: &mut BTreeSet<String>| {
        number += 1;
        expected.insert(platform.say("main", number, START));
    };
    let is_confirmed = |expected: &BTreeSet<String>| platform.confirmed("main") == expected.len();

    // An account without earlier messages is read from its first connection on.
    let first = runs.begin(usize::MAX, Leave::Waiting).await;
    let part = format!("{}/main", platform.channel());
    says(&health, &part, platform.reading()).await;
    say(&mut expected);
    eventually("the first message is confirmed", async || is_confirmed(&expected)).await;
    end(first).await;

    let (mut waits, mut whole) = (1, 0);
    while whole < WHOLE_RUNS && waits <= MOST_WAITS {
        for leave in [Leave::Waiting, Leave::Answered] {
            say(&mut expected);
            let run = runs.begin(waits, leave).await;
            eventually("it is dropped, or has confirmed everything", async || {
                run.is_finished() || is_confirmed(&expected)
            })
            .await;
            whole = if run.is_finished() { 0 } else { whole + 1 };
            end(run).await;
        }
        // Each of the first ones, and some of those of a long run.
        waits += 1 + waits / 40;
    }
    println!("{}: dropped after 1 to {waits} waits", platform.channel());
    assert!(whole >= WHOLE_RUNS, "not everything is confirmed after {waits} waits");

    let last = runs.begin(usize::MAX, Leave::Waiting).await;
    eventually("everything is confirmed", async || is_confirmed(&expected)).await;
    end(last).await;
    let mut events = world.events().await;
    events.retain(|event| event.id.adapter() != "gap");
    assert_eq!((events.len(), ids(&events)), (expected.len(), expected));
    assert_eq!(platform.early("main"), Vec::<String>::new());
}
