//! A whole Nexus in a temporary directory: real nats-server, real Bun, real processes, free ports.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::auth::folder::AuthFolder;
use cli::launch::{Plan, READY_DEADLINE, Stack, keys, users};
use sha2::{Digest as _, Sha256};
use shared::bus::Bus;
use shared::testing::{ProcessClock, says};
use shared::wire::rights::BusRole;
use tempfile::TempDir;

use crate::command::nexus;
use crate::subject_record::{UsedSubjects, read_used, read_violations, unused_rights};

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("/"))
        .to_owned()
}

/// The text of `deploy/hooks/{name}`.
#[must_use]
pub fn shipped_hook(name: &str) -> String {
    let path = root().join("deploy/hooks").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of `deploy/examples/{name}`.
#[must_use]
pub fn example_hook(name: &str) -> String {
    shipped_hook(&format!("../examples/{name}"))
}

/// How long a replica may take to end what it has in hand.
const DRAINED: Duration = Duration::from_secs(60);
/// Variable that names the directory of the services' programs.
const BINARIES: &str = "NEXUS_BIN";
/// Sources of the events that tests post, each with a token of its own, and the channels of that token.
const SOURCES: [(&str, &[&str]); 3] = [
    ("e2e", &["e2e"]),
    ("chaos", &["chaos"]),
    ("operator", &["e2e", "greet", "moody", "other", "quiet"]),
];

/// Value of the variable `name`.
fn told(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "a test binary is told by variables")]
    std::env::var(name).ok()
}

/// The directory of the services' programs that `NEXUS_BIN` names, in place of those of this build: those of a release build
/// bear a load that those of this one do not.
///
/// # Panics
/// Where the directory is not there.
#[must_use]
pub fn told_binaries() -> Option<PathBuf> {
    let directory = told(BINARIES).filter(|directory| !directory.is_empty())?;
    let found = Path::new(&directory).canonicalize();
    Some(found.unwrap_or_else(|error| panic!("{BINARIES}={directory}: {error}")))
}

/// The bearer token of `source` in every world.
#[must_use]
pub fn token(source: &str) -> String {
    format!("token of {source} in the tests")
}

/// Returns `[[adapter.http.tokens]]`: each posts on its channels, and none speaks for a person.
#[must_use]
pub fn tokens() -> String {
    let entry = |(source, channels): &(&str, &[&str])| {
        let hash: String = Sha256::digest(token(source))
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!(
            "[[adapter.http.tokens]]\nname = \"{source}\"\nsha256 = \"{hash}\"\nsource = \"{source}\"\n\
             channels = {channels:?}\n"
        )
    };

    SOURCES.iter().map(entry).collect()
}

/// A variable of the services with which the scheduler publishes no events of its own.
#[must_use]
pub fn without_ticks() -> (String, String) {
    ("NEXUS__SCHEDULER__TICKS".to_owned(), "false".to_owned())
}

/// What a world is made of.
#[derive(Debug, Default)]
pub struct Setup {
    /// Replicas of each service.
    pub replicas: u16,
    /// Servers: 1 or 3.
    pub servers: usize,
    /// Hook files: name and text.
    pub hooks: Vec<(&'static str, String)>,
    /// Content of `[adapter]` besides `listen`.
    pub adapter: String,
    /// `personas.yaml`.
    pub personas: String,
    /// `identities.yaml`.
    pub identities: String,
    /// `channels.yaml`.
    pub channels: String,
    /// Further environment of the services.
    pub environment: Vec<(String, String)>,
    /// Whether the server knows users.
    pub users: bool,
    /// Whether the server writes down every operation of every client.
    pub trace: bool,
    /// A backup that the world begins with.
    pub backup: Option<PathBuf>,
    /// Services that the test starts itself, later.
    pub without: Vec<&'static str>,
    /// Whether the test sets the services' clocks ([`World::clock`]).
    pub sets_clock: bool,
    /// Directory of the services' programs, of another build; none = that of [`told_binaries`], or this build's.
    pub binaries: Option<PathBuf>,
    /// Size to which each server's collector keeps its memory, as Go writes it; none = that of a laptop.
    pub server_memory: Option<String>,
}

/// A running Nexus and a connection to it.
#[derive(Debug)]
pub struct World {
    /// The processes.
    pub stack: Stack,
    /// The test's own connection.
    pub bus: Bus,
    _rights: RightsNote,
    directory: TempDir,
}

impl World {
    /// Starts it.
    ///
    /// # Panics
    /// Where something does not start, with the end of its log.
    pub async fn start(setup: Setup) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("nexus-test-")
            .tempdir()
            .expect("a temporary directory");
        if let Some(backup) = &setup.backup {
            let (backup, data) = (backup.display().to_string(), directory.path().display().to_string());
            let said = nexus(directory.path(), &["restore", &backup, "--data", &data]).await;
            assert_eq!(said.code, Some(0), "nexus restore: {}{}", said.out, said.err);
            // A backup holds no secrets; whoever made it has kept the key beside it.
            let made = keys::cluster_key(directory.path()).expect("a key");
            std::fs::copy(Path::new(&backup).with_extension("key"), made).expect("the key is put in place");
        }

        let plan = plan(directory.path(), setup);
        let stack = Stack::start(plan)
            .await
            .unwrap_or_else(|error| panic!("the world does not start: {error:#}"));
        let bus = stack.bus("test").await.expect("the server answers");

        Self {
            stack,
            bus,
            _rights: RightsNote {
                directory: directory.path().to_owned(),
            },
            directory,
        }
    }

    /// Base address of the gateway.
    ///
    /// # Panics
    /// Where no adapter runs.
    #[must_use]
    pub fn gateway(&self) -> String {
        self.stack.gateway().expect("an adapter runs")
    }

    /// Base addresses of all adapters that are announced at this moment.
    #[must_use]
    pub fn gateways(&self) -> Vec<String> {
        let adapters = self
            .stack
            .services
            .iter()
            .filter(|running| running.name == "adapter-svc");
        adapters
            .filter_map(|running| running.address("gateway").ok())
            .map(|a| format!("http://{a}"))
            .collect()
    }

    /// The end of every service's log, for a failing test.
    #[must_use]
    pub fn logs(&self) -> String {
        let logs: Vec<String> = self
            .stack
            .services
            .iter()
            .map(|s| format!("--- {}\n{}", s.instance, s.log_tail()))
            .collect();
        logs.join("\n")
    }

    /// The whole log of replica `instance`.
    #[must_use]
    pub fn log(&self, instance: &str) -> String {
        let text = std::fs::read(self.path().join("log").join(format!("{instance}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Replicas that have ended by themselves.
    pub fn ended(&mut self) -> Vec<String> {
        let ended = self
            .stack
            .services
            .iter_mut()
            .filter_map(|running| running.has_ended().then_some(&running.instance));
        ended.cloned().collect()
    }

    /// How many replicas of `name` there are.
    #[must_use]
    pub fn replicas(&self, name: &str) -> u16 {
        let running = self.stack.services.iter().filter(|running| running.name == name);
        u16::try_from(running.count()).unwrap_or(u16::MAX)
    }

    /// Starts replicas of `name`, or ends those with the highest numbers in good order, until there are `count`. The new ones
    /// need not be ready afterwards.
    ///
    /// # Panics
    /// Where one does not start, does not become ready before it is asked to end, or does not end in good order.
    pub async fn scale(&mut self, name: &'static str, count: u16) {
        for replica in self.replicas(name)..count {
            self.stack.launch(name, replica).expect("it starts");
        }

        for replica in (count..self.replicas(name)).rev() {
            let running = self
                .stack
                .service(name, replica)
                .expect("replicas have successive numbers");
            let came = running.ready(READY_DEADLINE).await;
            came.unwrap_or_else(|error| panic!("{}: {error:#}\n{}", running.instance, running.log_tail()));

            let log = running.instance.clone();
            let code = self.stack.stop_replica(name, replica, DRAINED).await;
            assert_eq!(code, Some(0), "{name}-{replica} ends in good order\n{}", self.log(&log));
        }
    }

    /// A file with the token of `source`.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn token_file(&self, source: &str) -> PathBuf {
        let path = self.path().join(format!("token-{source}"));
        std::fs::write(&path, token(source)).expect("a token's file");
        path
    }

    /// The services' clocks, for a world with `sets_clock`.
    #[must_use]
    pub fn clock(&self) -> ProcessClock {
        clock_of(self.path())
    }

    /// Where everything lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Writes down at the end of a world which rights were used in it, and what was refused, if `NEXUS_TEST_RIGHTS` names a file.
#[derive(Debug)]
struct RightsNote {
    /// Where the world lies.
    directory: PathBuf,
}

impl RightsNote {
    fn log(&self) -> String {
        let text = std::fs::read(self.directory.join("log/nats-0.log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// What the users of each role have used, as the server has traced it.
    fn used_subjects(&self) -> BTreeMap<BusRole, UsedSubjects> {
        let folder = AuthFolder::open(&users::folder(&self.directory), false).expect("the users");
        let users = folder.registry().users.values();
        let roles = users.map(|user| (user.public.clone(), user.role)).collect();
        read_used(&self.log(), &roles)
    }

    fn lines(&self) -> String {
        let mut lines = String::new();
        for (role, used) in self.used_subjects() {
            let unused = unused_rights(role, &used);
            for right in role.rights().iter().filter(|right| !unused.contains(right)) {
                lines.push_str(&format!("{} {right:?}\n", role.name()));
            }
        }
        for refused in read_violations(&self.log()) {
            lines.push_str(&format!("refused {refused}\n"));
        }
        lines
    }
}

impl Drop for RightsNote {
    fn drop(&mut self) {
        let has_users = self.directory.join("auth/users.json").is_file();
        // A test that fails says so by itself.
        if let Some(path) = told("NEXUS_TEST_RIGHTS").filter(|_| has_users && !std::thread::panicking()) {
            let file = std::fs::File::options().append(true).create(true).open(path);
            file.and_then(|mut file| file.write_all(self.lines().as_bytes()))
                .expect("noted");
        }
    }
}

fn clock_of(directory: &Path) -> ProcessClock {
    ProcessClock::at(&directory.join("test-clock"))
}

fn plan(directory: &Path, setup: Setup) -> Plan {
    let hooks = directory.join("hooks");
    std::fs::create_dir_all(&hooks).expect("a hooks directory");

    for (name, text) in &setup.hooks {
        let path = hooks.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of hooks");
        std::fs::write(path, text).expect("a hook file");
    }

    let mut files = String::new();
    let given = [
        ("personas", &setup.personas),
        ("identities", &setup.identities),
        ("channels", &setup.channels),
    ];

    for (key, text) in given {
        if !text.is_empty() {
            let path = directory.join(format!("{key}.yaml"));
            std::fs::write(&path, text).expect("a configuration file");
            files.push_str(&format!("{key} = {path:?}\n"));
        }
    }

    let mut plan = Plan::all(directory, setup.replicas.max(1));
    plan.servers = setup.servers.max(1);
    plan.environment = setup.environment;
    plan.binaries = setup.binaries.or_else(told_binaries);
    plan.server_memory = setup.server_memory;

    if setup.sets_clock {
        plan.environment.push(clock_of(directory).variable());
    }

    // What `nexus restore` brings is in the account of a server with users.
    plan.users = setup.users || setup.backup.is_some() || says("NEXUS_TEST_USERS", "all");
    plan.trace = setup.trace || says("NEXUS_TEST_USERS", "all");
    plan.services.retain(|(name, _)| !setup.without.contains(name));

    // Two cores carry up to ten services and three servers: a hook that waits for the processor is not looping.
    plan.config = format!(
        "[telemetry]\nlisten = \"127.0.0.1:0\"\n\n[files]\n{files}\n[adapter]\nlisten = \"127.0.0.1:0\"\n{}\n\
         [hooks]\ndir = {hooks:?}\nsandbox = \"degraded\"\nworkers = 1\nhard_budget_ms = 10000\n{}",
        setup.adapter,
        tokens()
    );

    plan
}
