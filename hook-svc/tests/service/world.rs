//! A server, some replicas of the service, and what tests ask of them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage, RequestError, StoredMessage};
use shared::model::channel::{ConfiguredChannels, DELIVERED};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventId};
use shared::model::hook::{HookRecord, HookState};
use shared::model::invocation::{EventInvocations, HookInvocation};
use shared::model::order::SessionOrder;
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::testing::{TestProcess, eventually, says, trust_section};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::headers::{Headers, MSG_ID, SCHEMA};
use shared::wire::session_mark::PartitionFloors;
use shared::wire::subject;
use shared::wire::topology::streams::{DISPATCHES, DLQ, EVENTS, INVOCATIONS};
use shared::wire::topology::{PARTITIONS, buckets, partition_filter, topology};

/// Longest wait for anything, generous for a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// The server, the hooks directory, and the replicas.
pub(crate) struct World {
    /// Replicas by name, the last started last.
    replicas: Vec<(String, TestProcess)>,
    /// Further sections of the configuration of replicas that start from now on.
    pub(crate) sections: String,
    /// `hooks.sandbox` of replicas that start from now on.
    pub(crate) sandbox: &'static str,
    /// Where replicas that start from now on log to; none = where the test does.
    pub(crate) log: Option<PathBuf>,
    /// Control group that replicas start in from now on; none = the test's.
    pub(crate) group: Option<PathBuf>,
    pub(crate) bus: Bus,
    pub(crate) nats: NatsServer,
    folder: tempfile::TempDir,
}

impl World {
    /// A server and `hooks` (path, text) in the directory; no replica yet.
    pub(crate) async fn new(hooks: &[(&str, &str)]) -> Self {
        Self::on(NatsServer::start().await, hooks).await
    }

    /// As [`World::new`], on a server that runs already.
    pub(crate) async fn on(nats: NatsServer, hooks: &[(&str, &str)]) -> Self {
        let bus = shared::testing::connect_to(&nats.url(), "test").await;
        bus.ensure_topology(&topology(1), false)
            .await
            .expect("the topology stands");
        let folder = tempfile::tempdir().expect("a folder");

        // Hooks may be another user's, who has to reach the read model.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("opened");
        std::fs::create_dir_all(folder.path().join("hooks")).expect("made");

        let world = Self {
            replicas: Vec::new(),
            sections: String::new(),
            sandbox: "degraded",
            log: None,
            group: None,
            bus,
            nats,
            folder,
        };

        for (path, text) in hooks {
            world.write_hook(path, text);
        }

        world
    }

    /// A server, hooks and one replica that takes part.
    pub(crate) async fn with_one_replica(hooks: &[(&str, &str)]) -> Self {
        let mut world = Self::new(hooks).await;
        world.start("a");
        world.wait_for_members(1).await;
        world
    }

    /// Returns whether hooks are confined whole on this machine. If not, which `NEXUS_SANDBOX=absent` has to say, hook-svc must
    /// not start with `enforce`.
    pub(crate) async fn is_confined_whole() -> bool {
        if !says("NEXUS_SANDBOX", "absent") {
            return true;
        }

        let mut world = Self::new(&[]).await;
        world.sandbox = "enforce";
        let log = world.write_file("hook-svc.log", "");
        world.log = Some(log.clone());
        world.start("a");
        world.wait_refused("a").await;
        let said = std::fs::read_to_string(log).expect("readable");
        assert!(said.contains("hooks cannot be confined on this machine"), "{said}");
        println!("SKIPPED: NEXUS_SANDBOX=absent, and hook-svc does not start with `enforce`");
        false
    }

    /// Says that delivery-svc has these accounts, each `channel:account`.
    pub(crate) async fn configure_channels(&self, needs: &[&str]) {
        let mut there = ConfiguredChannels::default();
        for (channel, account) in needs.iter().filter_map(|need| need.split_once(':')) {
            let accounts = there.accounts.entry(channel.to_owned()).or_default();
            accounts.insert(account.to_owned());
        }
        let kv = self.bus.kv::<ConfiguredChannels>(buckets::CHANNELS);
        kv.put(DELIVERED, &there).await.expect("written");
    }

    pub(crate) fn hooks_dir(&self) -> PathBuf {
        self.folder.path().join("hooks")
    }

    /// Replicas that start from now on read it; those that were started with one follow it.
    pub(crate) fn write_identities(&self, text: &str) {
        self.write_file("identities.yaml", text);
    }

    /// A file beside the hooks directory.
    pub(crate) fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    /// Where the read model of replica `name` lies.
    pub(crate) fn read_model(&self, name: &str) -> PathBuf {
        self.folder.path().join("data").join(name).join("read-model.sqlite")
    }

    pub(crate) fn agent_dir(&self) -> PathBuf {
        self.folder.path().join("agents")
    }

    /// Asks `nexus.svc.hook.{name}`.
    pub(crate) async fn ask(&self, name: &str, question: serde_json::Value) -> Result<serde_json::Value, RequestError> {
        let subject = format!("nexus.svc.hook.{name}");
        self.bus.request(&subject, Headers::new(), &question, DEADLINE).await
    }

    pub(crate) fn write_hook(&self, path: &str, text: &str) {
        let path = self.hooks_dir().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    pub(crate) fn start(&mut self, name: &str) {
        let config = self.folder.path().join(format!("{name}.toml"));
        let text = format!(
            "{}[nats]\nservers = [\"{}\"]\n[telemetry]\nlevel = \"info\"\n[hooks]\ndir = \"{}\"\ndata_dir = \"{}\"\nagent_dir = \"{}\"\nworkers = 1\nsandbox = \"{}\"\n{}",
            trust_section(),
            self.nats.url(),
            self.hooks_dir().display(),
            self.folder.path().join("data").display(),
            self.agent_dir().display(),
            self.sandbox,
            self.sections,
        );

        let identities = self.folder.path().join("identities.yaml");
        let files = if identities.exists() {
            format!("[files]\nidentities = \"{}\"\n", identities.display())
        } else {
            String::new()
        };

        std::fs::write(&config, text + &files).expect("written");
        let program = env!("CARGO_BIN_EXE_hook-svc");
        let mut command = match &self.group {
            None => Command::new(program),
            Some(group) => {
                let mut shell = Command::new("sh");
                let enters = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
                shell.args(["-c", enters]).arg(group).arg(program);
                shell
            }
        };
        command
            .arg("--config")
            .arg(&config)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .env("NEXUS_INSTANCE", name);

        if let Some(log) = &self.log {
            let log = std::fs::File::options().append(true).open(log).expect("a log");
            command.stdout(log.try_clone().expect("a second")).stderr(log);
        }

        self.replicas.push((name.to_owned(), TestProcess::start(&mut command)));
    }

    pub(crate) fn replica(&mut self, name: &str) -> &mut TestProcess {
        let mut newest_first = self.replicas.iter_mut().rev();
        let found = newest_first.find(|(other, _)| other == name);
        &mut found.expect("a replica of that name").1
    }

    /// Waits until the replica `name` has refused to start.
    pub(crate) async fn wait_refused(&mut self, name: &str) {
        let mut ended = None;
        eventually("it refuses to start", async || {
            ended = self.replica(name).ended();
            ended.is_some()
        })
        .await;

        assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
    }

    /// Waits until `count` replicas take part and every partition is held.
    pub(crate) async fn wait_for_members(&self, count: usize) {
        let members = self.bus.kv::<shared::wire::session_mark::GroupMember>(buckets::MEMBERS);
        let leases = self.bus.kv::<shared::wire::session_mark::LeaseRecord>(buckets::LEASES);
        eventually("the replicas share all partitions", async || {
            let members = members.entries().await.unwrap_or_default();
            let leases = leases.entries().await.unwrap_or_default();
            let of_partition = |key: &str| key.starts_with("hook.") && !key.starts_with("hook.session.");
            let held: Vec<_> = leases.iter().filter(|(key, _)| of_partition(key)).collect();
            let holders: std::collections::BTreeSet<_> = held.iter().map(|(_, lease)| &lease.value.holder).collect();
            members.len() == count && holders.len() == count && held.len() == 64
        })
        .await;
    }

    pub(crate) async fn publish(&self, event: &Event) -> u64 {
        let out = OutgoingMessage::event(event, self.bus.trust());
        self.bus.publish(out).await.expect("published").sequence
    }

    /// Publishes many events without waiting for each.
    pub(crate) async fn publish_all(&self, events: &[Event]) {
        let trust = self.bus.trust();
        let publishing = events
            .iter()
            .map(|event| self.bus.publish(OutgoingMessage::event(event, trust)));
        for published in futures_util::future::join_all(publishing).await {
            published.expect("published");
        }
    }

    /// Publishes without a message id, so that the server cannot tell a repetition.
    pub(crate) async fn publish_anonymously(&self, event: &Event) -> u64 {
        let mut out = OutgoingMessage::event(event, self.bus.trust());
        out.headers.remove(MSG_ID);
        self.bus.publish(out).await.expect("published").sequence
    }

    /// Everything on `stream`, decoded.
    pub(crate) async fn all<T: WireMessage>(&self, stream: &str) -> Vec<T> {
        let state = self.bus.stream_state(stream).await.expect("its state");
        let mut found = Vec::new();
        for sequence in state.first.max(1)..=state.last {
            if let Some(stored) = self.bus.at_sequence(stream, sequence).await.expect("readable") {
                found.push(stored.decode().expect("it decodes"));
            }
        }
        found
    }

    /// The dispatches. Orders, which are on the same stream, are [`Self::orders`].
    pub(crate) async fn dispatches(&self) -> Vec<Dispatch> {
        self.all_of_kind(DISPATCHES).await
    }

    /// The orders to sessions.
    pub(crate) async fn orders(&self) -> Vec<SessionOrder> {
        self.all_of_kind(DISPATCHES).await
    }

    /// The messages on `stream` that are of one kind, decoded.
    async fn all_of_kind<T: WireMessage>(&self, stream: &str) -> Vec<T> {
        let state = self.bus.stream_state(stream).await.expect("its state");
        let mut found = Vec::new();
        for sequence in state.first.max(1)..=state.last {
            let stored = self.bus.at_sequence(stream, sequence).await.expect("readable");
            let kind = |stored: &StoredMessage| stored.headers.get(SCHEMA)?.split('/').next().map(str::to_owned);
            let stored = stored.filter(|stored| kind(stored).as_deref() == Some(T::SCHEMA));
            found.extend(stored.map(|stored| stored.decode().expect("it decodes")));
        }
        found
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.all(DLQ).await
    }

    pub(crate) async fn invocations(&self) -> Vec<EventInvocations> {
        self.all(INVOCATIONS).await
    }

    /// Waits for the record of `event`.
    pub(crate) async fn record(&self, event: &Event) -> EventInvocations {
        let mut found = None;
        eventually(&format!("the record of {}", event.id), async || {
            found = self
                .invocations()
                .await
                .into_iter()
                .find(|record| record.event_id == event.id);
            found.is_some()
        })
        .await;

        found.expect("found")
    }

    /// Waits until `count` records are stored.
    pub(crate) async fn wait_for_records(&self, count: u64) {
        eventually(&format!("{count} records"), async || {
            self.bus
                .stream_state(INVOCATIONS)
                .await
                .is_ok_and(|state| state.messages >= count)
        })
        .await;
    }

    /// Waits until every event of every partition is settled, and stored to be.
    pub(crate) async fn wait_until_acked(&self) {
        let kv = self.bus.kv::<PartitionFloors>(buckets::ATTEMPTS);
        eventually("every event is settled", async || {
            // What somebody wrote over them is no floor; their owners write them anew.
            let stored = kv.get("floors.hook").await.ok().flatten();
            let floors = stored.map(|entry| entry.value.floors).unwrap_or_default();
            for partition in 0..PARTITIONS {
                let subject = partition_filter(EVENTS, partition);
                let last = self.bus.last_on_subject(EVENTS, &subject).await.expect("readable");
                let floor = floors.get(usize::from(partition)).copied().unwrap_or(0);
                if last.is_some_and(|last| last.sequence > floor) {
                    return false;
                }
            }

            true
        })
        .await;
    }

    pub(crate) async fn hook(&self, id: &str) -> Option<HookRecord> {
        let kv = self.bus.kv::<HookRecord>(buckets::HOOKS);
        kv.get(&subject::token(id))
            .await
            .expect("readable")
            .map(|entry| entry.value)
    }

    /// The partition in which the event at `sequence` is stored.
    pub(crate) async fn partition(&self, sequence: u64) -> u16 {
        let stored = self
            .bus
            .at_sequence(EVENTS, sequence)
            .await
            .expect("readable")
            .expect("stored");
        subject::parse_event(&stored.subject).expect("an event").partition
    }

    pub(crate) async fn hook_state(&self, id: &str) -> Option<HookState> {
        let kv = self.bus.kv::<HookState>(buckets::HOOK_STATE);
        kv.get(&subject::token(id))
            .await
            .expect("readable")
            .map(|entry| entry.value)
    }
}

/// A message of `peer` with `content`.
pub(crate) fn event(peer: &str, number: u32, content: &str) -> Event {
    let id = EventId::parse(format!("webchat:{peer}/{number}")).expect("valid");
    let mut event = Event::new(id, "webchat", peer, UnixMillis(1_700_000_000_000 + i64::from(number)));
    event.from.id = peer.to_owned();
    event.origin = EventOrigin::visitor("default", peer);
    event.content = content.to_owned();
    event
}

/// What hook `id` did.
pub(crate) fn of<'a>(record: &'a EventInvocations, id: &str) -> &'a HookInvocation {
    let found = record.hooks.iter().find(|hook| hook.hook_id == id);
    found.unwrap_or_else(|| panic!("{id} is not in {record:?}"))
}
