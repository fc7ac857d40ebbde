//! A copy of the read model of many events: a replica that is replaced goes on from its volume and is soon ready, all its
//! processes together have less memory than its pod may have, however many processors the node has, and a further replica
//! fetches the file.
//!
//! The bounds are those of `k8s/base`. `e2e::pods` replaces such a pod in good order, with few events.

mod load;
mod pod;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cli::launch::SERVICES;
use cli::launch::programs::{BUN_MINIMUM, tool};
use cli::launch::service::Running;
use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::wire::headers::Headers;
use shared::wire::rights::BusRole;
use shared::wire::subject::token;
use shared::wire::topology::objects::SNAPSHOTS;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};
use tests::eventually::{WorkLeft, eventually, eventually_while_progressing};
use tests::prometheus::{Sample, parse};
use tests::world::{Setup, World};
use tokio::process::Command;

use crate::kills::{SETTLE, is_long, told_number};
use load::{CONVERSATIONS, event, peer};
use pod::{PodBounds, PodMemory};

const SERVICE: &str = "hook-svc";
/// Variable that says how many events the long form stores.
const EVENTS_TOLD: &str = "NEXUS_CHAOS_EVENTS";
/// Events of the long form, if the variable says nothing, and of the short one.
const MANY: u64 = 2_000_000;
const FEW: u64 = 400;
/// Publishes in flight. Divides [`CONVERSATIONS`], so that the events of one are published one after the other.
const LANES: usize = 250;
/// Memory of the server of the long form: it knows each record of an evaluation by a subject of its own, and each event's id
/// for an hour.
const SERVER_MEMORY: &str = "4GiB";
/// Longest time until a replica with a copy on its volume is ready.
const READY: Duration = Duration::from_secs(60);
/// Least bytes a second at which a file is fetched: at it a loan of a file of 28 GiB does not end before it is read.
const LEAST_RATE: u64 = 8 << 20;
/// Size in bytes of the file for which the time to fetch it is printed.
const LARGEST: f64 = 25e9;
/// Workers and threads that hook-svc gives itself on 64 processors and with the memory of its pod, if the manifest does not say
/// how many: one for each processor, as many as the memory holds, and half the processors.
const WORKERS_OF_64: u64 = 9;
const THREADS_OF_64: u64 = 32;
/// How long one question to a copy may take.
const ANSWERED: Duration = Duration::from_secs(10);
/// An answer of a copy: a byte that is 0 before rows, eight bytes of its position, JSON.
const ROWS_FOLLOW: u8 = 0;
const HEAD: usize = 9;
/// Most rows of a conversation that are compared.
const COMPARED: u64 = 100;

/// A hook that looks at every event and does nothing.
const WATCH: &str = "/** @name watch */\nexport default ({ event }) => ({ fire: event.content === '' });\n";

/// Prints what a copy holds: rows of each table that the load fills, and sums over the events.
const CONTENTS: &str = r#"import { Database } from "bun:sqlite";
const model = new Database(process.env.MODEL, { readonly: true });
const row = (sql) => model.query(sql).values()[0];
const tables = ["events", "nexus_evaluations", "hook_invocations", "contacts", "contact_identifiers", "threads",
  "event_participants", "events_fts_docsize"];
const counts = Object.fromEntries(tables.map((table) => [table, row(`SELECT count(*) FROM ${table}`)[0]]));
const sums = row("SELECT sum(sequence), sum(length(content)), min(published_at), max(published_at) FROM events");
console.log(JSON.stringify({ counts, sums }));
"#;

/// How many events of a conversation there are, and the last ones with their evaluations.
const COUNT: &str = "SELECT count(*) FROM events WHERE channel = 'webchat' AND account = 'default' AND peer_id = ?1";
const LAST: &str = "SELECT e.sequence, e.id, e.content, e.published_at, v.evaluated_by, v.finished_at \
    FROM events e LEFT JOIN nexus_evaluations v ON v.event_id = e.id \
    WHERE e.channel = 'webchat' AND e.account = 'default' AND e.peer_id = ?1 ORDER BY e.sequence DESC LIMIT 100";

fn since(begun: Instant) -> Duration {
    SystemClock.monotonic().saturating_duration_since(begun)
}

/// Size of the file at `path`, in bytes.
fn size(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").len()
}

/// Waits until the file of a copy is at `model`. Returns its size in bytes, and how long it was on the way: since its first part
/// was seen, or since `begun` if none was.
async fn arrive(model: &Path, begun: Instant, within: Duration) -> (u64, Duration) {
    let unfinished = model.with_extension("fetching");
    let mut seen = None;
    eventually("the file of the copy is there", within, async || {
        if model.exists() {
            return Ok((size(model), since(seen.unwrap_or(begun))));
        }
        if seen.is_none() && unfinished.exists() {
            seen = Some(SystemClock.monotonic());
        }
        Err(format!("a part was seen: {}", seen.is_some()))
    })
    .await
}

/// Replicas that keep a copy, and connections that ask them. No other service runs.
#[derive(Debug)]
struct Copies {
    world: World,
    bounds: PodBounds,
    /// Connection of adapter-svc's user.
    adapter: Bus,
    /// Connection of hook-svc's user.
    hook: Bus,
    /// Events so far.
    published: u64,
    /// Events that come while a replica is replaced.
    fresh: u64,
}

impl Copies {
    async fn start(events: u64) -> Self {
        let world = World::start(Setup {
            hooks: vec![("watch.ts", WATCH.to_owned())],
            users: true,
            without: SERVICES.to_vec(),
            server_memory: is_long().then(|| SERVER_MEMORY.to_owned()),
            ..Setup::default()
        })
        .await;
        let adapter = world.stack.bus_as(BusRole::Adapter, "large-copy").await;
        let hook = world.stack.bus_as(BusRole::Hook, "large-copy").await;

        Self {
            bounds: PodBounds::read(),
            adapter: adapter.expect("the server answers"),
            hook: hook.expect("the server answers"),
            published: 0,
            fresh: (events / 100).clamp(100, 20_000),
            world,
        }
    }

    /// Stores `count` further events.
    async fn publish(&mut self, count: u64) {
        let (first, end) = (self.published, self.published + count);
        let mut lanes = Vec::new();
        for begin in (first..end).take(LANES) {
            let bus = self.adapter.clone();
            lanes.push(tokio::spawn(async move {
                for number in (begin..end).step_by(LANES) {
                    let out = OutgoingMessage::event(&event(number), bus.trust());
                    bus.publish(out).await.expect("stored");
                }
            }));
        }
        for lane in lanes {
            lane.await.expect("a sender panicked");
        }
        self.published = end;
    }

    /// Replicas that start from now on have as many workers and threads.
    fn set_processors(&mut self, workers: u64, threads: u64) {
        let stack = &mut self.world.stack;
        stack.set_variable("NEXUS__HOOKS__WORKERS", &workers.to_string());
        stack.set_variable("NEXUS__RUNTIME__THREADS", &threads.to_string());
    }

    /// As the manifest does it, whatever the node has.
    fn set_manifest_processors(&mut self) {
        let processors = self.bounds.processors;
        self.set_processors(processors, processors);
    }

    fn replica(&mut self, number: u16) -> &mut Running {
        self.world.stack.service(SERVICE, number).expect("it was started")
    }

    /// The file of replica `number`.
    fn model(&self, number: u16) -> PathBuf {
        let name = format!("{SERVICE}-{number}");
        let volume = self.world.path().join("data").join(&name);
        volume.join(token(&name)).join("read-model.sqlite")
    }

    /// Waits until replica `number`, which was started when it `begun`, is ready. Returns how long that took.
    async fn ready(&mut self, number: u16, begun: Instant, within: Duration) -> Duration {
        let came = self.replica(number).ready(within).await;
        if let Err(error) = came {
            panic!(
                "{SERVICE}-{number} is not ready within {within:?}: {error:#}\n{}",
                self.world.logs()
            );
        }
        since(begun)
    }

    /// Asks the copy of replica `number`; returns the rows.
    async fn ask(&self, number: u16, sql: &str, values: &[Value]) -> Result<Value, String> {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        // An asker that has asked before is answered from the same state for a while.
        let asker = format!("large-copy-{}", ASKED.fetch_add(1, Ordering::Relaxed));
        let question = json!({"asker": asker, "query": {"sql": sql, "values": values}, "at_least": 0});
        let payload = serde_json::to_vec(&question).expect("JSON").into();
        let subject = format!("nexus.svc.model.{}.query", token(&format!("{SERVICE}-{number}")));
        let headers = Headers::new();
        let asked = self.hook.request_bytes(&subject, &headers, payload, ANSWERED);
        let answer = asked.await.map_err(|error| error.to_string())?.payload;

        let (head, body) = answer.split_at_checked(HEAD).ok_or("no answer of a copy")?;
        if head[0] != ROWS_FOLLOW {
            return Err(format!("kind {}: {}", head[0], String::from_utf8_lossy(body)));
        }
        let mut page: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        Ok(page["page"]["rows"].take())
    }

    /// How far the copy of replica `number` is in the streams of events and of their records.
    async fn positions(&self, number: u16) -> Result<[u64; 2], String> {
        let of = |stream: &str| format!("(SELECT sequence FROM nexus_positions WHERE stream = '{stream}')");
        let sql = format!("SELECT {}, {}", of(EVENTS), of(INVOCATIONS));
        let rows = self.ask(number, &sql, &[]).await?;
        Ok([0_usize, 1].map(|column| rows[0][column].as_u64().unwrap_or(0)))
    }

    /// Waits until the copy of replica `number` has every event, each evaluated, and every record.
    async fn catch_up(&self, number: u16) {
        let wanted = self.published;
        eventually_while_progressing("the copy has everything", SETTLE, async || {
            let reached = self.positions(number).await;
            let reached = reached.map_err(|why| WorkLeft {
                count: u64::MAX,
                why: format!("{why}\n{}", self.world.logs()),
            })?;
            let left: u64 = reached.iter().map(|position| wanted.saturating_sub(*position)).sum();
            if left == 0 {
                return Ok(());
            }
            Err(WorkLeft {
                count: left,
                why: format!("it is at {reached:?} of {wanted}\n{}", self.world.logs()),
            })
        })
        .await;
    }

    /// Messages of `stream` that the process of replica `number` has taken into its copy since it began.
    async fn taken_in(&self, number: u16, stream: &str) -> u64 {
        let mut services = self.world.stack.services.iter();
        let running = services.find(|running| running.name == SERVICE && running.replica == number);
        let address = running.expect("it runs").address("http").expect("announced");
        let client = cli::http::client().expect("an HTTP client");
        let answer = client.get(format!("http://{address}/metrics")).send().await;
        let page = answer.expect("it answers").text().await.expect("a page");

        let samples = parse(&page).expect("metrics");
        let is_wanted = |sample: &&Sample| {
            sample.name == "nexus_projection_messages_total" && sample.labels.iter().any(|(_, value)| value == stream)
        };
        samples.iter().filter(is_wanted).map(|sample| sample.value as u64).sum()
    }

    /// Compares the memory of replica `number` with its pod's limit.
    fn check_memory(&mut self, number: u16) -> PodMemory {
        let memory = PodMemory::of(self.replica(number).pid());
        let limit = self.bounds.memory;
        assert!(memory.peak < limit, "{} of {} MiB", memory.describe(), limit >> 20);
        memory
    }

    /// Stores `events`, and lets a replica build its copy of them.
    async fn build(&mut self, events: u64) {
        let begun = SystemClock.monotonic();
        self.publish(events).await;
        let took = since(begun).as_secs_f64();
        let stored = self.world.bus.stream_state(EVENTS).await.expect("its state");
        assert_eq!(stored.last, events);
        println!(
            "{events} events of {} bytes were stored in {took:.1} s",
            stored.bytes / events
        );

        self.set_manifest_processors();
        let begun = SystemClock.monotonic();
        self.world.stack.launch(SERVICE, 0).expect("it starts");
        self.catch_up(0).await;
        let built = since(begun).as_secs_f64();
        self.ready(0, begun, SETTLE).await;
        // What the other parts rely upon counts.
        eventually("the metric counts what is taken in", SETTLE, async || {
            let taken = self.taken_in(0, EVENTS).await;
            (taken > events / 2).then_some(()).ok_or_else(|| format!("{taken}"))
        })
        .await;

        let bytes = size(&self.model(0));
        let memory = self.check_memory(0);
        println!(
            "all were evaluated and in the copy after {built:.1} s, {:.0}/s: {} MiB, {} bytes an event; {}",
            events as f64 / built,
            bytes >> 20,
            bytes / events,
            memory.describe()
        );
    }

    /// Starts replica 0 again on its volume: it is soon ready, and reads no more than what came since the copy had everything.
    async fn come_again(&mut self, after: &str) {
        let begun = SystemClock.monotonic();
        self.world.stack.launch(SERVICE, 0).expect("it starts");
        let ready = self.ready(0, begun, READY).await;
        self.catch_up(0).await;
        let caught_up = since(begun);

        let mut taken = Vec::new();
        for stream in [EVENTS, INVOCATIONS] {
            let count = self.taken_in(0, stream).await;
            assert!(
                count <= self.fresh,
                "{after}: {count} messages of {stream} were read, and {} are new",
                self.fresh
            );
            taken.push(count);
        }
        println!(
            "{after}: ready after {:.1} s, has everything after {:.1} s; read {} events and {} records, of {}",
            ready.as_secs_f64(),
            caught_up.as_secs_f64(),
            taken[0],
            taken[1],
            self.published
        );
    }

    /// Replaces replica 0 as a rollout does.
    async fn roll(&mut self) {
        self.publish(self.fresh / 2).await;
        let grace = self.bounds.grace;
        let begun = SystemClock.monotonic();
        let running = self.replica(0);
        running.terminate();
        let code = running.ended(grace).await;
        let took = since(begun).as_secs_f64();
        assert_eq!(code, Some(0), "it ends within {grace:?}\n{}", self.world.logs());

        self.publish(self.fresh - self.fresh / 2).await;
        self.come_again(&format!("SIGTERM, which took {took:.1} s")).await;
        println!("{}", self.check_memory(0).describe());
    }

    /// Kills replica 0, and starts it again on a node that counts as one with 64 processors, without the manifest's numbers.
    async fn kill(&mut self) {
        self.publish(self.fresh / 2).await;
        self.replica(0).kill();
        self.publish(self.fresh - self.fresh / 2).await;

        self.set_processors(WORKERS_OF_64, THREADS_OF_64);
        self.come_again("kill -9").await;

        let pid = self.replica(0).pid();
        eventually("every worker is up", SETTLE, async || {
            let processes = PodMemory::of(pid).processes as u64;
            (processes > WORKERS_OF_64)
                .then_some(())
                .ok_or_else(|| format!("{processes} processes"))
        })
        .await;
        if is_long() {
            // Each worker has had work.
            self.publish(self.fresh).await;
            self.catch_up(0).await;
        }
        println!(
            "{WORKERS_OF_64} workers, {THREADS_OF_64} threads: {}",
            self.check_memory(0).describe()
        );
    }

    /// Starts a further replica, which has an empty volume.
    async fn lend(&mut self) {
        let snapshots = self.world.bus.stream_state(&format!("OBJ_{SNAPSHOTS}")).await;
        let snapshots = snapshots.expect("its state").messages;
        assert_eq!(snapshots, 0, "a stored snapshot would be taken in place of a file");

        self.set_manifest_processors();
        let within = READY + Duration::from_secs(size(&self.model(0)) / LEAST_RATE);
        let model = self.model(1);
        assert!(!model.exists());
        let begun = SystemClock.monotonic();
        self.world.stack.launch(SERVICE, 1).expect("it starts");
        let (ready, (bytes, took)) = tokio::join!(self.ready(1, begun, within), arrive(&model, begun, within));
        self.catch_up(1).await;
        let caught_up = since(begun).as_secs_f64();

        let rate = bytes as f64 / took.as_secs_f64().max(0.001);
        println!(
            "a further replica was ready after {:.1} s and fetched {} MiB in {:.2} s, {:.0} MB/s ({:.0} s for 25 GB); it had \
             everything after {caught_up:.1} s; {}",
            ready.as_secs_f64(),
            bytes >> 20,
            took.as_secs_f64(),
            rate / 1e6,
            LARGEST / rate,
            self.check_memory(1).describe()
        );
        if is_long() {
            assert!(rate >= LEAST_RATE as f64, "{rate} bytes a second");
        }
        for stream in [EVENTS, INVOCATIONS] {
            let count = self.taken_in(1, stream).await;
            assert!(
                count <= self.fresh,
                "{count} messages of {stream} were read beside the file"
            );
        }
    }

    /// Asks both replicas about some conversations. Fails with what they answer otherwise.
    async fn compare_answers(&self) -> Result<(), String> {
        for number in [0, 1, CONVERSATIONS / 4, FEW - 1] {
            let values = [json!(peer(number))];
            let count = (self.published - number).div_ceil(CONVERSATIONS);
            let counted = self.ask(1, COUNT, &values).await?;
            if counted != json!([[count]]) || counted != self.ask(0, COUNT, &values).await? {
                return Err(format!("{counted} events of {}, not {count}", peer(number)));
            }

            let (last, lent) = (self.ask(0, LAST, &values).await?, self.ask(1, LAST, &values).await?);
            let rows = lent.as_array().map_or(0, Vec::len) as u64;
            if lent != last || rows != count.min(COMPARED) {
                return Err(format!("{last}\n{lent}"));
            }
        }
        Ok(())
    }

    /// What the file of replica `number` holds.
    async fn contents(&self, number: u16) -> Value {
        let script = self.world.path().join("contents.js");
        std::fs::write(&script, CONTENTS).expect("written");
        let bun = tool("bun", BUN_MINIMUM).expect("Bun");
        let mut command = Command::new(bun);
        command.arg("run").arg(&script).env("MODEL", self.model(number));
        let output = command.output().await.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Both replicas have the same, and answer the same.
    async fn check_alike(&self) {
        eventually("both copies answer alike", SETTLE, async || {
            self.compare_answers().await
        })
        .await;
        let (first, second) = (self.contents(0).await, self.contents(1).await);
        assert_eq!(first, second);
        assert_eq!(second["counts"]["events"], self.published, "{second}");
        assert_eq!(second["counts"]["nexus_evaluations"], self.published, "{second}");
        println!("both copies have {second}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_copy_goes_on_from_its_volume_and_is_lent_to_a_new_replica() {
    let events = if is_long() { told_number(EVENTS_TOLD, MANY) } else { FEW };
    assert!(events >= FEW, "{EVENTS_TOLD}={events}: {FEW} at least");

    let mut copies = Copies::start(events).await;
    copies.build(events).await;
    if is_long() {
        copies.roll().await;
    }
    copies.kill().await;
    copies.lend().await;
    copies.check_alike().await;
}
