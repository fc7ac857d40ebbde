//! A backlog, the metric that tells it, a real Prometheus, the ScaledObject's own query and its arithmetic: replicas of
//! hook-svc come and go with the work, no event is lost, doubled or out of order, and a lost metric scales nothing to its
//! limits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;
use tests::autoscaler::Autoscaler;
use tests::eventually::eventually;
use tests::load::{Gateways, Load, send};
use tests::world::{Setup, World, root};

use crate::killer::tell;
use crate::kills::{SETTLE, is_long, settled};
use crate::scale::{all_heard, check_order, listen};

/// The ScaledObject that is judged.
const SCALED_OBJECT: &str = "k8s/components/keda/hook-svc.yaml";
const SERVICE: &str = "hook-svc";
/// Interval at which the autoscaler looks, by its own time.
const LOOK: Duration = Duration::from_secs(15);
/// The same by the test's clock: minutes of stabilization pass in seconds.
const LOOK_IN_TEST: Duration = Duration::from_millis(750);
/// Time in which Prometheus answers; later counts as no answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest time until the load of the long form is worked off: debug builds on a slow machine evaluate some 80 events a second.
const WORKED_OFF: Duration = Duration::from_secs(900);
/// Conversations of the load.
const KEYS: u64 = 200;

/// Time in which the load of the long form comes, from the world's start on: the sender needs the processors then.
const LOAD_COMES_WITHIN: Duration = Duration::from_secs(100);

/// Returns a hook that takes its time, so that events wait; the conversation's next one waits for it. Before `busy_until` it
/// takes three seconds.
fn slow_hook(busy_until: UnixMillis) -> String {
    let text = r#"/** @name answer */
export default async (ctx) => {
  const e = ctx.event;
  if (e.channel !== "chaos" || e.direction !== "received") return { fire: false };
  await new Promise((done) => setTimeout(done, Date.now() < BUSY_UNTIL ? 3000 : 150));
  return { fire: true, routing: { session: "s-" + e.peer.id },
    deliveryContext: { channel: "nats", accountId: "chaos", peerId: e.peer.id, replyToId: e.id } };
};
"#;
    text.replace("BUSY_UNTIL", &busy_until.0.to_string())
}

/// A Prometheus that scrapes the replicas in a file, each second.
#[derive(Debug)]
struct Prometheus {
    process: Option<Child>,
    address: String,
    targets: PathBuf,
}

impl Prometheus {
    /// Starts Debian's `prometheus` in `directory`; none, aloud, where there is none.
    fn start(directory: &Path) -> Option<Self> {
        #[expect(clippy::disallowed_methods, reason = "the environment says what a CI may leave out")]
        let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
        let is_left_out = is("NEXUS_PROMETHEUS", "absent");
        if is_left_out || Command::new("prometheus").arg("--version").output().is_err() {
            let must_be_there = is("CI", "true") && !is_left_out;
            assert!(!must_be_there, "no prometheus on the PATH (Debian: prometheus)");
            println!("SKIPPED: no prometheus on the PATH (Debian: prometheus)");
            return None;
        }

        let targets = directory.join("targets.json");
        std::fs::write(&targets, "[]").expect("written");
        let config = directory.join("prometheus.yml");
        let text = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "900ms"},
            "scrape_configs": [{
                "job_name": "nexus", "honor_labels": true,
                "file_sd_configs": [{"files": [targets.display().to_string()], "refresh_interval": "1s"}],
            }],
        });
        std::fs::write(&config, text.to_string()).expect("written");

        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let mut this = Self {
            process: None,
            address,
            targets,
        };
        this.launch(directory, &config);
        Some(this)
    }

    fn launch(&mut self, directory: &Path, config: &Path) {
        let log = std::fs::File::create(directory.join("prometheus.log")).expect("a log");
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("tsdb").display()))
            .arg(format!("--web.listen-address={}", self.address))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(process.expect("it starts"));
    }

    /// Lets it scrape the replicas of hook-svc that run now, with the label that the ServiceMonitor's target has.
    fn scrape(&self, world: &World) {
        let replicas = world.stack.services.iter().filter(|running| running.name == SERVICE);
        let targets: Vec<String> = replicas.filter_map(|running| running.address("http").ok()).collect();
        self.scrape_only(&targets);
    }

    fn scrape_only(&self, targets: &[String]) {
        let text = json!([{"targets": targets, "labels": {"namespace": "nexus"}}]).to_string();
        // Renamed, so that it never reads half of it.
        let part = self.targets.with_extension("part");
        std::fs::write(&part, text).expect("written");
        std::fs::rename(&part, &self.targets).expect("renamed");
    }

    /// Returns the value of `query`, as KEDA reads it: none without exactly one element.
    async fn value(&self, query: &str) -> Option<f64> {
        let client = cli::http::client().expect("an HTTP client");
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let url = format!("http://{}/api/v1/query?query={query}", self.address);
        let answer = client.get(url).timeout(ANSWER_WITHIN).send().await.ok()?;
        let answer: Value = answer.json().await.ok()?;
        let [one] = answer["data"]["result"].as_array()?.as_slice() else {
            return None;
        };
        one["value"][1].as_str()?.parse().ok()
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is killed");
            process.wait().expect("it ends");
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The autoscaler at work on the world.
struct Scaling {
    scaler: Autoscaler,
    prometheus: Prometheus,
    time: Duration,
    /// Numbers of replicas, each after the one before.
    course: Vec<u32>,
    most: f64,
}

impl Scaling {
    fn replicas(&self) -> u32 {
        *self.course.last().expect("it began with some")
    }

    /// Looks once, and does what comes of it.
    async fn look(&mut self, world: &mut World) -> Option<f64> {
        self.prometheus.scrape(world);
        let metric = self.prometheus.value(&self.scaler.query).await;
        self.apply(world, metric).await;
        metric
    }

    async fn apply(&mut self, world: &mut World, metric: Option<f64>) {
        self.most = self.most.max(metric.unwrap_or_default());
        self.time += LOOK;
        let next = self.scaler.look(metric, self.replicas(), self.time);
        if next != self.replicas() {
            self.course.push(next);
            world.scale(SERVICE, u16::try_from(next).expect("few")).await;
        }
        pause(LOOK_IN_TEST).await;
    }

    /// Looks until `is_so` of the metric.
    async fn look_until(&mut self, world: &mut World, what: &str, is_so: impl Fn(&Self, Option<f64>) -> bool) {
        let until = SystemClock.monotonic() + WORKED_OFF;
        loop {
            let metric = self.look(world).await;
            if is_so(self, metric) {
                return;
            }
            assert!(
                SystemClock.monotonic() < until,
                "not within {WORKED_OFF:?}: {what}; metric {metric:?}, replicas {:?}\n{}",
                self.course,
                world.logs()
            );
        }
    }

    /// Looks for `minutes` of its time without the metric, and returns the numbers of replicas that there were.
    async fn look_without(&mut self, world: &mut World, minutes: u32) -> BTreeSet<u32> {
        let from = self.course.len() - 1;
        for _ in 0..minutes * 4 {
            let metric = self.prometheus.value(&self.scaler.query).await;
            assert_eq!(metric, None, "the metric is lost");
            self.apply(world, None).await;
        }
        self.course[from..].iter().copied().collect()
    }
}

fn scaled_object() -> Autoscaler {
    let text = std::fs::read_to_string(root().join(SCALED_OBJECT)).expect("the manifest");
    Autoscaler::of_scaled_object(&serde_yaml_ng::from_str(&text).expect("YAML"))
}

/// Every copy of the read model tells the same.
async fn all_copies_tell(world: &World, prometheus: &Prometheus, backlog: f64) {
    eventually("both copies tell the backlog", SETTLE, async || {
        prometheus.scrape(world);
        let copies = prometheus.value("count(nexus_hook_backlog_events)").await;
        let least = prometheus.value("min(nexus_hook_backlog_events)").await;
        let most = prometheus.value("max(nexus_hook_backlog_events)").await;
        if (copies, least, most) == (Some(2.0), Some(backlog), Some(backlog)) {
            Ok(())
        } else {
            Err(format!("{copies:?} copies, {least:?} to {most:?}\n{}", world.logs()))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_the_backlog_and_a_lost_metric_scales_to_no_limit() {
    let (events, load_comes_within) = if is_long() {
        (20_000, LOAD_COMES_WITHIN)
    } else {
        (2_000, Duration::ZERO)
    };
    let directory = tempfile::tempdir().expect("a directory");
    let Some(prometheus) = Prometheus::start(directory.path()) else {
        return;
    };
    let mut scaler = scaled_object();
    // A tenth of the work for a tenth of the backlog, so that the arithmetic is the same.
    scaler.threshold *= events as f64 / 20_000.0;

    let comes_within_ms = i64::try_from(load_comes_within.as_millis()).expect("minutes");
    let busy_until = SystemClock.now().plus(comes_within_ms);
    let mut world = World::start(Setup {
        hooks: vec![("answer.ts", slow_hook(busy_until))],
        ..Setup::default()
    })
    .await;
    world.scale(SERVICE, 2).await;
    world.stack.ready().await.expect("two replicas start");
    all_copies_tell(&world, &prometheus, 0.0).await;

    let heard = listen(&world.bus).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);
    let load = Load {
        events,
        // Faster than two replicas with that hook.
        rate: 10_000,
        sessions: KEYS,
        copies: 1,
    };
    let sending = tokio::spawn(send(load, gateways));
    let mut scaling = Scaling {
        scaler,
        prometheus,
        time: Duration::ZERO,
        course: vec![2],
        most: 0.0,
    };

    scaling
        .look_until(&mut world, "four replicas", |scaling, _| scaling.replicas() == 4)
        .await;
    let accepted = sending.await.expect("the load was sent");
    let is_done = |scaling: &Scaling, metric: Option<f64>| metric == Some(0.0) && scaling.replicas() == 2;
    scaling
        .look_until(&mut world, "no backlog and two replicas", is_done)
        .await;
    // Three on the way up if the autoscaler looks while the backlog still grows.
    let (up, down) = scaling.course.split_at(scaling.course.len().saturating_sub(3));
    let is_straight = matches!(up, [2] | [2, 3]) && down == [4, 3, 2];
    assert!(
        is_straight,
        "{:?}, the most that waited: {}",
        scaling.course, scaling.most
    );

    let record = settled(&world, &accepted).await;
    let told = all_heard(&world, &heard, events).await;
    check_order(&record.tally(), &told, events);
    all_copies_tell(&world, &scaling.prometheus, 0.0).await;
    println!(
        "{events} events, {} waited at most: 2, 4, 3 and 2 replicas, none lost, doubled or out of order",
        scaling.most
    );

    lose_the_metric(&mut world, &mut scaling).await;
}

/// The three ways of losing the metric: one scrape, the series, Prometheus.
async fn lose_the_metric(world: &mut World, scaling: &mut Scaling) {
    // A scrape that fails leaves the other copy's series.
    let targets = [0, 1].map(|replica| {
        let running = world.stack.service(SERVICE, replica).expect("it runs");
        running.address("http").expect("it has announced one")
    });
    scaling
        .prometheus
        .scrape_only(&[targets[0].clone(), "127.0.0.1:1".to_owned()]);
    eventually("one scrape is lost", SETTLE, async || {
        let lost = scaling.prometheus.value("count(up{job=\"nexus\"} == 0)").await;
        if lost == Some(1.0) {
            Ok(())
        } else {
            Err(format!("{lost:?}"))
        }
    })
    .await;
    let query = scaling.scaler.query.clone();
    assert_eq!(
        scaling.prometheus.value(&query).await,
        Some(0.0),
        "the other copy tells it"
    );

    // Without any series: as many as there are, and at least three.
    let (_, max) = scaling.scaler.bounds();
    scaling.prometheus.scrape_only(&[]);
    eventually("no series is left", SETTLE, async || {
        let value = scaling.prometheus.value(&query).await;
        value.map_or(Ok(()), |value| Err(format!("{value}")))
    })
    .await;
    let without_series = scaling.look_without(world, 10).await;
    assert_eq!(without_series, BTreeSet::from([2, 3]), "never fewer, never {max}");

    scaling.prometheus.kill();
    let without_prometheus = scaling.look_without(world, 10).await;
    assert_eq!(without_prometheus, BTreeSet::from([3]), "never fewer, never {max}");
}
