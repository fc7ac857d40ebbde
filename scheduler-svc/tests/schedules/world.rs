//! A server, schedulers as processes, and what they published.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use shared::bus::{Bus, StoredMessage};
use shared::clock::pause;
use shared::model::event::Event;
use shared::model::schedule::{SchedulePolicies, ScheduleRecord, ScheduleSpec, ScheduleTarget};
use shared::schedule::book::ScheduleBook;
use shared::testing::eventually_some;
use shared::testing::nats::NatsServer;
use shared::wire::topology::streams;
use tempfile::TempDir;
use tokio::process::{Child, Command};

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const PERSONAS: &str = "personas.yaml";

/// A hook's schedule, as hook-svc says it.
pub(crate) fn spec(id: &str, schedule: &str) -> ScheduleSpec {
    ScheduleSpec {
        id: id.to_owned(),
        schedule: schedule.to_owned(),
        zone: "Europe/Berlin".to_owned(),
        target: ScheduleTarget::Hook("a/b".to_owned()),
        policies: SchedulePolicies::default(),
        active_hours: None,
        content: String::new(),
        metadata: serde_json::Map::new(),
    }
}

pub(crate) struct World {
    pub(crate) server: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) directory: TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        let (server, bus) = shared::testing::world().await;
        Self {
            server,
            bus,
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    /// Writes the configuration: `[scheduler]` and its jobs (name, keys).
    pub(crate) fn configure(&self, scheduler: &str, jobs: &[(String, String)]) {
        let mut text = format!(
            "{}[nats]\nservers = [\"{}\"]\n[scheduler]\nticks = false\n{scheduler}\n",
            shared::testing::trust_section(),
            self.server.url()
        );

        for (name, keys) in jobs {
            let _ = writeln!(text, "[scheduler.jobs.{name}]\n{keys}");
        }

        let personas = self.directory.path().join(PERSONAS);
        if personas.exists() {
            let _ = writeln!(text, "[files]\npersonas = {personas:?}");
        }

        std::fs::write(self.directory.path().join("nexus.toml"), text).expect("the configuration is written");
    }

    /// Writes what the schedulers' configuration names from now on.
    pub(crate) fn personas(&self, text: &str) {
        std::fs::write(self.directory.path().join(PERSONAS), text).expect("it is written");
    }

    /// Starts a scheduler; it ends when the handle does.
    pub(crate) fn scheduler(&self) -> Child {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.path().join("scheduler.log"))
            .expect("a log");

        Command::new(env!("CARGO_BIN_EXE_scheduler-svc"))
            .arg("--config")
            .arg(self.directory.path().join("nexus.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the scheduler starts")
    }

    /// What the schedulers said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("scheduler.log")).unwrap_or_default()
    }

    /// Events by schedule, or `intent:` and the intent: their nominal times, in the order of the stream, duplicates and all.
    pub(crate) async fn fired(&self) -> BTreeMap<String, Vec<i64>> {
        let mut fired: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let mut from = 1;
        loop {
            let page = self.page(from).await;
            let Some(last) = page.last() else { return fired };
            from = last.sequence + 1;

            for stored in &page {
                let event: Event = stored.decode().expect("an event");
                let of = |mark: Option<&Value>| Some(mark?.as_str()?.to_owned());
                let schedule = event.metadata.get("schedule").and_then(|mark| mark.get("id"));
                let intent = of(event.metadata.get("intent")).map(|intent| format!("intent:{intent}"));
                let id = of(schedule).or(intent).expect("a schedule, or an intent");
                fired.entry(id).or_default().push(event.timestamp.0);
            }
        }
    }

    /// Events from sequence `from` on; a server that is just back may not answer at once.
    async fn page(&self, from: u64) -> Vec<StoredMessage> {
        eventually_some("the stream is read", async || {
            let read = self.bus.read_history(streams::EVENTS, "nexus.ev.>", from, 1_000).await;
            read.ok()
        })
        .await
    }

    pub(crate) async fn record(&self, id: &str) -> Option<ScheduleRecord> {
        let entry = ScheduleBook::new(&self.bus).get(id).await.expect("the bucket is read");
        entry.map(|entry| entry.value)
    }

    /// Waits until the record of `id` is as `wanted`.
    pub(crate) async fn until_record(&self, id: &str, wanted: impl Fn(&ScheduleRecord) -> bool) -> ScheduleRecord {
        let waited = tokio::time::timeout(DEADLINE, async {
            loop {
                if let Some(record) = self.record(id).await.filter(&wanted) {
                    return record;
                }
                pause(Duration::from_millis(25)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{id} in time:\n{}", self.log()))
    }
}
