//! `nexus backfill … --follow`: how it ends, and what a terminal shows of it. The test is the replica that reads.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use adapter_svc::backfill::accounts::BackfillAccounts;
use adapter_svc::backfill::desk;
use adapter_svc::source::port::history::{AccountHistory, FoundConversations, HistoryPage, HistorySpan};
use adapter_svc::source::port::history_calls::{HistoryCalls, HistoryRefused};
use async_trait::async_trait;
use serde_json::Value;
use shared::bus::{Bus, Kv, ServiceHandle};
use shared::clock::{SharedClock, SharedIds, SystemClock, SystemIds};
use shared::platform::policy::DirectPolicy;
use shared::testing::eventually_some;
use shared::testing::nats::NatsServer;
use shared::wire::operator::backfill::{BackfillJob, BackfillState, backfill_key};
use shared::wire::topology::buckets;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout, Command};

/// Longest wait for anything that a terminal shows.
const DEADLINE: Duration = Duration::from_secs(60);

/// An account whose history nobody here reads.
struct Unread(String);

#[async_trait]
impl AccountHistory for Unread {
    fn channel(&self) -> &'static str {
        "slack"
    }

    fn account(&self) -> &str {
        &self.0
    }

    fn direct_policy(&self) -> DirectPolicy {
        DirectPolicy::Open
    }

    fn is_conversation(&self, _: &str) -> bool {
        true
    }

    async fn find_conversations(&self, _: HistorySpan, _: &HistoryCalls) -> Result<FoundConversations, HistoryRefused> {
        Ok(FoundConversations::default())
    }

    async fn read_page(
        &self,
        _: &str,
        _: &Value,
        _: HistorySpan,
        _: &HistoryCalls,
    ) -> Result<HistoryPage, HistoryRefused> {
        Ok(HistoryPage::default())
    }
}

/// Output of a command, and its exit code.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

/// A server, the service for orders, and a directory for the command.
struct World {
    server: NatsServer,
    bus: Bus,
    jobs: Kv<BackfillJob>,
    directory: TempDir,
    service: Option<ServiceHandle>,
}

impl World {
    async fn start() -> Self {
        let (server, bus) = shared::testing::world().await;
        let mut world = Self {
            server,
            jobs: bus.kv(buckets::BACKFILLS),
            bus,
            directory: tempfile::tempdir().expect("a directory"),
            service: None,
        };
        world.serve().await;
        world
    }

    /// Answers orders from now on.
    async fn serve(&mut self) {
        let (clock, ids): (SharedClock, SharedIds) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let accounts = BackfillAccounts::new([Arc::new(Unread("main".to_owned())) as Arc<dyn AccountHistory>], []);
        let spec = desk::service_spec(&self.bus, &accounts, &clock, &ids);
        self.service = Some(self.bus.serve(spec).await.expect("served"));
    }

    /// Answers no order from now on.
    async fn fall_silent(&mut self) {
        self.service.take().expect("it is served").stop().await;
    }

    /// `nexus` on the server.
    fn nexus(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nexus"));
        command
            .args(["--server", &self.server.url()])
            .args(arguments)
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        let output = self.nexus(arguments).output().await.expect("nexus runs");
        Ended {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// The job as the operator ordered it, once it is there.
    async fn job(&self) -> BackfillJob {
        eventually_some("the job", async || {
            let found = self.jobs.get(&backfill_key("slack", "main")).await;
            found.expect("KV answers").map(|entry| entry.value)
        })
        .await
    }

    /// Changes the job, as the replica that reads it does.
    async fn change(&self, change: impl FnOnce(&mut BackfillJob)) {
        let mut job = self.job().await;
        change(&mut job);
        let written = self.jobs.put(&backfill_key("slack", "main"), &job).await;
        written.expect("it is written");
    }

    /// Starts a backfill and does not follow it.
    async fn begin(&self) {
        let started = self.run(&["backfill", "start", "slack/main", "--since", "2d"]).await;
        assert_eq!(started.code, Some(0), "{started:?}");
    }

    /// Follows the backfill that runs, while the test does `meanwhile`.
    async fn followed(&self, meanwhile: impl Future<Output = ()>) -> Ended {
        let (ended, ()) = tokio::join!(self.run(&["backfill", "show", "slack/main", "--follow"]), meanwhile);
        ended
    }
}

fn end(job: &mut BackfillJob, state: BackfillState, reason: Option<&str>) {
    job.state = state;
    job.reason = reason.map(str::to_owned);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_is_followed_from_its_order_to_its_end() {
    let world = World::start().await;
    let order = ["--json", "backfill", "start", "slack/main", "--since", "2d", "--follow"];
    let reads = async {
        world
            .change(|job| {
                job.read_by = Some("adapter-1".to_owned());
                job.found = Some(2);
                job.finished = 1;
                job.events = 500;
            })
            .await;
        world
            .change(|job| {
                job.finished = 2;
                job.events = 1_000;
                end(job, BackfillState::Done, None);
            })
            .await;
    };

    let (ended, ()) = tokio::join!(world.run(&order), reads);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let job: BackfillJob = serde_json::from_str(&ended.out).expect("the job as it ended");
    assert_eq!((job.state, job.events), (BackfillState::Done, 1_000));

    // One that is over is shown at once.
    let ended = world.followed(async {}).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("2 of 2"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_told_of_an_end_that_is_none() {
    let world = World::start().await;
    world.begin().await;
    let failed = world.followed(world.change(|job| end(job, BackfillState::Failed, Some("not_in_channel"))));
    let failed = failed.await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(
        failed.err.contains("the backfill is failed: not_in_channel"),
        "{failed:?}"
    );

    world.begin().await;
    let stops = async {
        let stopped = world.run(&["backfill", "stop", "slack/main"]).await;
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
    };
    let stopped = world.followed(stops).await;
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(stopped.err.contains("the backfill is stopped"), "{stopped:?}");
}

/// A command on a terminal of its own.
struct Terminal {
    child: Child,
    out: ChildStdout,
    shown: Vec<u8>,
}

impl Terminal {
    /// Runs `nexus` with `arguments` on a terminal with 120 columns, by `script`.
    fn open(world: &World, arguments: &str) -> Self {
        let nexus = format!("{} --server {}", env!("CARGO_BIN_EXE_nexus"), world.server.url());
        let command = format!("stty cols 120 rows 24; exec {nexus} {arguments}");
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
            .current_dir(world.directory.path())
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("script runs");
        let out = child.stdout.take().expect("an output");
        Self {
            child,
            out,
            shown: Vec::new(),
        }
    }

    /// Reads on; returns whether there was more.
    async fn read(&mut self) -> bool {
        let mut bytes = [0; 4_096];
        let reading = tokio::time::timeout(DEADLINE, self.out.read(&mut bytes)).await;
        let read = reading.expect("more within the deadline").expect("readable");
        self.shown.extend_from_slice(&bytes[..read]);
        read > 0
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// Waits until the terminal has shown `text`.
    async fn until(&mut self, text: &str) {
        while !self.text().contains(text) {
            assert!(self.read().await, "{text} is not shown: {}", self.text());
        }
    }

    /// Waits for the end of the command. Returns its exit code.
    async fn end(&mut self) -> Option<i32> {
        while self.read().await {}
        self.child.wait().await.expect("it ends").code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_how_far_it_is_and_what_it_waits_for() {
    let mut world = World::start().await;
    world.begin().await;
    let mut terminal = Terminal::open(&world, "backfill show slack/main --follow");
    terminal.until("0 messages, waits for a replica").await;

    world
        .change(|job| {
            job.read_by = Some("adapter-1".to_owned());
            job.found = Some(12);
            job.finished = 5;
            job.events = 500;
        })
        .await;
    terminal.until("5/12 conversations").await;
    terminal.until("500 messages").await;
    world.change(|job| job.reason = Some("ratelimited".to_owned())).await;
    terminal.until("500 messages, waits: ratelimited").await;

    // The only replica restarts; another one is asked, and the command goes on.
    world.fall_silent().await;
    terminal.until("adapter-svc does not answer").await;
    world
        .change(|job| {
            job.finished = 6;
            job.reason = None;
        })
        .await;
    world.serve().await;
    terminal.until("6/12 conversations").await;

    world
        .change(|job| {
            job.finished = 12;
            end(job, BackfillState::Done, None);
        })
        .await;
    assert_eq!(terminal.end().await, Some(0), "{}", terminal.text());
    let text = terminal.text();
    let result = text.rfind("slack/main").map(|at| &text[at..]);
    assert!(result.is_some_and(|result| result.contains("12 of 12")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_does_not_take_the_next_backfill_for_its_own() {
    let world = World::start().await;
    world.begin().await;
    let mut terminal = Terminal::open(&world, "backfill show slack/main --follow");
    terminal.until("waits for a replica").await;

    // Between two looks one ends and another begins.
    let ids: SharedIds = Arc::new(SystemIds);
    world.change(|job| job.id = ids.ulid()).await;
    assert_eq!(terminal.end().await, Some(1), "{}", terminal.text());
    let text = terminal.text();
    assert!(text.contains("another backfill of the account has begun"), "{text}");
}
