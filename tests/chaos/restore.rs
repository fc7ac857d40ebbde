//! The restore matrix, on real processes: streams and buckets put back alone, each to an older state, emptied, or made
//! anew. Whatever is accepted is answered once, or held where `nexus recover list` shows it; nothing that was sent before
//! arrives at the receiver again; and what the position of somebody says is void is said by the product itself (`said`). So it
//! is with what is held beside conversations (`stock`): a schedule, intents, approvals, a destination that fails, a dead letter.
//!
//! The long form takes everything that a server keeps, every way, 2,000 events older, after the server's duplicate windows
//! have forgotten the ids; and what counts with places also with a spool that is larger than what was lost, which the
//! adapter publishes before any other service runs, so that every sequence is given out again. Each case begins with the
//! same whole state, in which one stream is put back: losses do not add up. `NEXUS_CHAOS_CASES` chooses cases
//! (`cases::chosen`).

mod cases;
mod said;
mod stock;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventId};
use shared::model::origin::EventOrigin;
use shared::model::reply::Reply;
use shared::wire::envelope::decode;
use shared::wire::headers::{CAUSATION, Headers};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::topology::buckets::POSITIONS;
use shared::wire::topology::streams::{EVENTS, LEDGER, RECEIPTS};
use shared::wire::topology::topology;
use shared::wire::witness::WitnessedPosition;
use tests::eventually::eventually;
use tests::world::{Setup, World, token};

use crate::kills::{SETTLE, is_long, setup};
use cases::{Case, Way};
use stock::Stock;

/// Conversations of the load.
const PEERS: u64 = 4;
/// How long the server remembers ids at most, of dispatches and deliveries.
const WINDOW: Duration = Duration::from_secs(125);
/// Events that are posted at once while the server is away.
const POSTED_AT_ONCE: usize = 32;

/// What a card says and no answer does.
const CARD: &str = "Reply: approve";

/// What arrived at the receiver: how often, by the event that it answers.
pub(crate) type Arrived = Arc<Mutex<BTreeMap<String, usize>>>;

/// Listens as the receiver does.
pub(crate) async fn receive(bus: &Bus) -> Arrived {
    let arrived = Arrived::default();
    let mut parts = bus.core_subscribe("nexus.out.chaos.>").await.expect("subscribed");
    let noted = Arc::clone(&arrived);

    tokio::spawn(async move {
        while let Some(part) = parts.next().await {
            // A card is no answer, and one that is asked for again may come again.
            if String::from_utf8_lossy(&part.payload).contains(CARD) {
                continue;
            }
            let answers = part.headers.get(CAUSATION).unwrap_or_default().to_owned();
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            *noted.entry(answers).or_default() += 1;
        }
    });

    bus.flush().await.expect("flushed");
    arrived
}

/// The event that held message is about.
fn event_of(held: &HeldMessage) -> String {
    let headers: Headers = held
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let payload = held.payload_bytes().expect("base64");
    match held.kind {
        HeldKind::Dispatch => {
            let dispatch: Dispatch = decode(&headers, &payload).expect("a dispatch");
            dispatch.causation.event.to_string()
        }
        HeldKind::Delivery => {
            let reply: Reply = decode(&headers, &payload).expect("a reply");
            reply.causation.event.to_string()
        }
    }
}

/// A Nexus whose streams are put back, and what it was given.
struct Bench {
    world: World,
    arrived: Arrived,
    /// What had arrived when the state that cases begin with was kept.
    arrived_before: BTreeMap<String, usize>,
    stock: Option<Stock>,
    next: u64,
    /// Streams as they were before the gap, by name.
    older: tempfile::TempDir,
    /// Everything as it was after it.
    whole: tempfile::TempDir,
}

impl Bench {
    /// It, with everything that [`Stock`] holds if it is `stocked`.
    async fn start(stocked: bool) -> Self {
        let plain = Setup {
            replicas: 1,
            ..setup(1)
        };
        let (stock, setup) = if stocked {
            let (stock, setup) = Stock::setup(plain).await;
            (Some(stock), setup)
        } else {
            (None, plain)
        };

        let world = World::start(setup).await;
        let arrived = receive(&world.bus).await;
        let mut bench = Self {
            world,
            arrived,
            arrived_before: BTreeMap::new(),
            stock,
            next: 0,
            older: tempfile::tempdir().expect("a directory"),
            whole: tempfile::tempdir().expect("a directory"),
        };

        let ids = bench.publish(12).await;
        bench.handled(&ids, "before").await;

        bench
    }

    fn ids(&mut self, count: u64) -> Vec<(u64, String)> {
        let first = self.next;
        self.next += count;
        let id = |number: u64| format!("chaos:{}/{number}", number % PEERS);
        (first..self.next).map(|number| (number, id(number))).collect()
    }

    /// Publishes so many events.
    async fn publish(&mut self, count: u64) -> Vec<String> {
        let ids = self.ids(count);
        for (number, id) in &ids {
            let id = EventId::parse(id).expect("an id");
            let mut event = Event::new(id, "chaos", &(number % PEERS).to_string(), SystemClock.now());
            event.content = "1".to_owned();
            event.origin = EventOrigin::account("chaos", "default");
            let out = OutgoingMessage::event(&event, self.world.bus.trust());
            self.world.bus.publish(out).await.expect("it is stored");
        }

        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Has the adapter accept so many events while the server is away: they are in its spool.
    async fn spool(&mut self, count: u64) -> Vec<String> {
        let (client, gateway) = (cli::http::client().expect("an HTTP client"), self.world.gateway());
        let ids = self.ids(count);
        let post = |(number, id): &(u64, String)| {
            let event = json!({
                "id": id, "timestamp": SystemClock.now().0, "channel": "chaos",
                "peer": { "kind": "dm", "id": (number % PEERS).to_string() },
                "from": { "id": (number % PEERS).to_string() }, "content": "1", "content_types": ["text"],
            });
            let request = client.post(format!("{gateway}/v1/events")).bearer_auth(token("chaos"));
            async move {
                let answer = request.json(&event).send().await.expect("the adapter answers");
                assert!(answer.status().is_success(), "{}", answer.status());
            }
        };

        let posts: Vec<_> = ids.iter().map(post).collect();
        stream::iter(posts)
            .buffer_unordered(POSTED_AT_ONCE)
            .collect::<Vec<()>>()
            .await;

        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// What waits for an operator's word: the events that it is about.
    async fn held(&self) -> Result<BTreeSet<String>, String> {
        self.held_as(None).await
    }

    /// The same of what is held as `kind` alone, if one is given.
    async fn held_as(&self, kind: Option<HeldKind>) -> Result<BTreeSet<String>, String> {
        let held = self
            .world
            .bus
            .held_bucket()
            .entries()
            .await
            .map_err(|error| error.to_string())?;
        let is_meant =
            |held: &HeldMessage| kind.is_none_or(|kind| held.kind == kind) && held.wanted == HeldUntil::Decided;
        let open = held.iter().filter(|(_, held)| is_meant(&held.value));
        Ok(open.map(|(_, held)| event_of(&held.value)).collect())
    }

    /// Waits until each of `ids` is answered or held, and nothing has arrived twice; answers how many are held.
    async fn handled(&self, ids: &[String], what: &str) -> usize {
        let held = eventually(
            &format!("{what}: everything new is answered or held"),
            SETTLE,
            async || {
                let arrived = self.arrived();
                let missing: Vec<&String> = ids.iter().filter(|id| !arrived.contains_key(*id)).collect();
                if missing.is_empty() {
                    return Ok(0);
                }

                let held = self.held().await?;
                let lost: Vec<&&String> = missing.iter().filter(|id| !held.contains(**id)).collect();
                if lost.is_empty() {
                    return Ok(missing.len());
                }

                let (lost, all) = (lost.len(), ids.len());
                Err(format!("{lost} of {all} are missing\n{}", self.world.logs()))
            },
        )
        .await;

        self.nothing_twice(what);
        held
    }

    /// Nothing has arrived twice.
    fn nothing_twice(&self, what: &str) {
        let arrived = self.arrived();
        let twice: Vec<&String> = arrived
            .iter()
            .filter(|(_, times)| **times > 1)
            .map(|(id, _)| id)
            .collect();

        assert!(
            twice.is_empty(),
            "{what}: {} arrived twice: {twice:?}\n{}\n{}",
            twice.len(),
            self.world.log("delivery-svc-0"),
            self.world.log("broker-svc-0")
        );
    }

    fn arrived(&self) -> BTreeMap<String, usize> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has_arrived(&self, id: &str) -> bool {
        self.arrived().contains_key(id)
    }

    /// Ends all services and the server.
    async fn end(&mut self) {
        for running in &mut self.world.stack.services {
            running.terminate();
        }
        for running in &mut self.world.stack.services {
            running.ended(SETTLE).await;
            running.kill();
        }
        self.world.stack.nats[0].stop().await;
    }

    async fn start_server(&mut self) {
        self.world.stack.launch_server(0).expect("the server starts");
        self.world.stack.nats[0].ready().await.expect("the server answers");
        // The receiver listens before anybody can send.
        eventually("the test is connected", SETTLE, async || self.world.bus.flush().await).await;
    }

    /// Starts all services: the adapter first, the others when `EVENTS` holds `published` more than at its start.
    async fn start_services(&mut self, published: u64) {
        self.world.stack.launch("adapter-svc", 0).expect("it starts");

        if published > 0 {
            eventually("the spool is published", SETTLE, async || {
                let state = self
                    .world
                    .bus
                    .stream_state(EVENTS)
                    .await
                    .map_err(|error| error.to_string())?;

                if state.last >= published {
                    Ok(())
                } else {
                    Err(format!("{} of {published}", state.last))
                }
            })
            .await;
        }

        for name in cli::launch::SERVICES.into_iter().filter(|name| *name != "adapter-svc") {
            self.world.stack.launch(name, 0).expect("it starts");
        }

        self.world.stack.ready().await.expect("everything comes up");
    }

    /// Keeps what the cases begin with: all streams as they are now, and everything as it is `gap` events later, when the
    /// server has forgotten their ids where it `forgets`.
    async fn keep(&mut self, gap: u64, forgets: bool) {
        let mut stock = self.stock.take();
        if let Some(stock) = &mut stock {
            stock.put_in(self).await;
        }

        self.end().await;
        let streams = streams(self.world.path());
        copy(&streams, self.older.path());
        if let Some(stock) = &stock {
            assert!(!stock.has_fired(self), "an intent of the gap fired before it");
        }

        self.start_server().await;
        self.start_services(0).await;
        let ids = self.publish(gap).await;
        self.handled(&ids, "the gap").await;
        if let Some(stock) = &mut stock {
            stock.pass_gap(self).await;
        }
        self.stock = stock;
        self.witnessed().await;

        if forgets {
            pause(WINDOW).await;
        }

        self.end().await;
        copy(&streams, &self.whole.path().join("streams"));
        copy(&self.world.path().join("data"), &self.whole.path().join("data"));
        self.arrived_before = self.arrived();
    }

    /// Waits until the witnesses have seen all: a loss that is younger than they are is not noticed.
    async fn witnessed(&self) {
        let witnesses = self.world.bus.kv::<WitnessedPosition>(POSITIONS);
        for stream in [LEDGER, RECEIPTS] {
            eventually("the witness has seen all", SETTLE, async || {
                let state = self
                    .world
                    .bus
                    .stream_state(stream)
                    .await
                    .map_err(|error| error.to_string())?;

                let seen = witnesses.find(stream).await.map_err(|error| error.to_string())?;
                let seen = seen.0.unwrap_or_default().position.sequence;
                if seen >= state.last {
                    Ok(())
                } else {
                    Err(format!("{seen} of {}", state.last))
                }
            })
            .await;
        }
    }

    /// Everything is as it was kept; nothing runs.
    fn begin(&mut self) {
        *self.arrived.lock().unwrap_or_else(PoisonError::into_inner) = self.arrived_before.clone();
        if let Some(stock) = &mut self.stock {
            stock.begin();
        }

        for (kept, place) in [
            ("streams", streams(self.world.path())),
            ("data", self.world.path().join("data")),
        ] {
            std::fs::remove_dir_all(&place).expect("removed");
            copy(&self.whole.path().join(kept), &place);
        }
    }

    /// Puts the stream of `case` back while nothing runs, and starts the server.
    async fn put_back(&mut self, case: &Case) {
        let streams = streams(self.world.path());
        let directory = streams.join(case.stream);
        match case.way {
            Way::Older => {
                std::fs::remove_dir_all(&directory).expect("removed");
                copy(&self.older.path().join(case.stream), &directory);
            }
            Way::Emptied => {
                for part in ["msgs", "obs"] {
                    let _ = std::fs::remove_dir_all(directory.join(part));
                }
            }
            Way::Anew => {}
        }

        self.start_server().await;

        if case.way == Way::Anew {
            assert!(self.world.bus.delete_stream(case.stream).await.expect("deleted"));
            self.world
                .bus
                .ensure_topology(&topology(1), false)
                .await
                .expect("made anew");
        }
    }

    /// One case, with a spool that is larger than what was lost or none, and so many events `after` it. Nothing runs, before
    /// and afterwards.
    async fn check(&mut self, case: &Case, with_spool: bool, after: u64) {
        let begun: Instant = SystemClock.monotonic();
        let what = format!("{} {:?}, spool: {with_spool}", case.stream, case.way);
        self.begin();

        let mut ids = Vec::new();
        if with_spool {
            self.start_server().await;
            self.start_services(0).await;

            // Each event is answered by at most so many messages of any stream, and its own.
            let last = self.world.bus.stream_state(EVENTS).await.expect("asked").last;
            self.world.stack.nats[0].stop().await;
            ids = self.spool(last + 40).await;
            self.end().await;
        }

        self.put_back(case).await;
        let there = self.world.bus.stream_state(EVENTS).await.expect("asked").last;
        let spooled = ids.len() as u64;
        self.start_services(if spooled > 0 { there + spooled } else { 0 }).await;
        ids.extend(self.publish(after).await);
        let (held, ()) = tokio::join!(self.handled(&ids, &what), said::is_said(&self.world, case, &what));
        let stocked = match &self.stock {
            Some(stock) => Box::pin(stock.check(self, case, &what)).await,
            None => String::new(),
        };
        self.nothing_twice(&what);

        let all = self.held().await.expect("asked").len();
        self.end().await;
        println!(
            "{what}: {} new, {held} of them held, {all} held in all, {} ms; {stocked}",
            ids.len(),
            SystemClock.monotonic().saturating_duration_since(begun).as_millis()
        );
    }
}

/// Where the server keeps its streams.
fn streams(directory: &Path) -> PathBuf {
    let mut open = vec![directory.to_path_buf()];
    while let Some(at) = open.pop() {
        if at.ends_with("streams") && at.join("KV_attempts").is_dir() {
            return at;
        }
        let entries = std::fs::read_dir(&at).into_iter().flatten().flatten();
        open.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    panic!("no streams below {}", directory.display());
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_back_alone_makes_nothing_arrive_twice_and_leaves_nothing_undone() {
    let (cases, gap, after) = match is_long() {
        true => (cases::all(), 2_000, 40),
        false => (cases::worst(), 60, 12),
    };
    let mut bench = Bench::start(true).await;
    bench.keep(gap, is_long()).await;
    for case in &cases::chosen(cases) {
        Box::pin(bench.check(case, false, after)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spool_that_is_larger_than_what_was_lost_hides_nothing() {
    let (cases, gap) = match is_long() {
        true => (cases::counted(), 300),
        false => (vec![cases::case("EVENTS", Way::Older)], 60),
    };
    // What is held beside conversations is put back by the other test in its short form.
    let mut bench = Bench::start(is_long()).await;
    bench.keep(gap, false).await;
    for case in &cases::chosen(cases) {
        Box::pin(bench.check(case, true, 12)).await;
    }
}
