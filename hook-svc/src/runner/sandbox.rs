//! Confinement of worker processes through `nexus-jail`, tested before any hook runs.
//!
//! At start a probe runs in the jail and attempts everything that a hook must not do, and checks whether its code is
//! compiled at all: a memory limit that is too small for the compiler's reservation makes Bun interpret, silently and
//! ten times slower. What the probe finds decides, not the version of the kernel: an older Landlock confines hooks as well,
//! since the filter of system calls denies the rest. If anything is missing, [`SandboxMode::Enforce`] refuses to start;
//! [`SandboxMode::Degraded`] runs with the rest and reports it. Running hooks as another user counts as missing only if that was configured: a root without
//! other users has no user to run them as.

use std::io::PipeReader;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};

use super::author_slots::MAX_AUTHORS;
use super::control_groups::{AuthorGroup, GroupOwner, WorkersGroup};
use super::crash_journal::NoteFile;
use super::user::{self, UnixUser};
use super::{PoolConfig, spawner};

/// Seat of the last author: if hooks can run as that user, they can run as those of all others.
const LAST_SEAT: u32 = MAX_AUTHORS as u32 - 1;

/// Most processes of a pool beside those that take events: a standby and one for suspects.
const WORKERS_BESIDE: usize = 2;

/// File name of the launcher, beside the program or one directory above it.
const LAUNCHER: &str = "nexus-jail";

/// Data memory of a worker in MiB. Bun reserves 350 of them before any hook is loaded, of which it holds a tenth; with
/// a thousand hooks it is 490 (measured, 1.4.5), and beyond the limit a good hook's process dies with the greedy one's.
const DATA_MB: u32 = 768;

/// Largest file that a worker may write (its own note) in MiB, and most open files.
const FILE_MB: u32 = 1;
const OPEN_FILES: u32 = 128;

/// Processor seconds of one worker, which end a loop whose supervisor was killed.
const CPU_S: u32 = 4 * 3_600;

/// Environment of Bun: a reservation that fits [`DATA_MB`], and no third compiler, which costs more than it gains here.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("BUN_JSC_jitMemoryReservationSize", "67108864"),
    ("BUN_JSC_useFTLJIT", "false"),
    // Files in memory are refused: their pages are not charged to any process.
    ("BUN_FEATURE_FLAG_DISABLE_MEMFD", "1"),
];

/// Further environment if a suspect runs in the process: many crashes that scripts can cause are in the compilers.
const NOT_COMPILED: [(&str, &str); 1] = [("BUN_JSC_useJIT", "false")];

/// Paths that Bun itself reads, if they exist.
const SYSTEM: [&str; 5] = [
    "/proc/self",
    "/dev/null",
    "/dev/urandom",
    "/etc/localtime",
    "/usr/share/zoneinfo",
];
const LIBRARIES: [&str; 3] = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"];

/// Line by which the launcher reports that the kernel's Landlock is older than its rules.
const OLDER_LANDLOCK: &str = "older: Landlock";

/// Time limit of the probe.
const PROBE: Duration = Duration::from_secs(30);

/// Strictness of the sandbox (`hooks.sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// Every confinement is required, or hook-svc does not start.
    #[default]
    Enforce,
    /// The available confinements are used; missing ones are reported in the log and in `/readyz`.
    Degraded,
    /// No confinement, to measure its cost; cannot be configured.
    #[serde(skip)]
    Absent,
}

/// How far hooks are confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxLevel {
    /// By all mechanisms.
    Full,
    /// The kernel's Landlock is older than the rules, and the filter of system calls denies the rest: the probe has tried it.
    Covered,
    /// Some confinement is missing.
    Degraded,
}

impl SandboxLevel {
    /// All levels, the strongest first.
    pub const ALL: [Self; 3] = [Self::Full, Self::Covered, Self::Degraded];

    /// Returns the level's name in metrics and in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Covered => "covered",
            Self::Degraded => "degraded",
        }
    }
}

/// Error for a sandbox that lacks a required confinement.
#[derive(Debug, thiserror::Error)]
#[error(
    "hooks cannot be confined on this machine: {}; `hooks.sandbox = \"degraded\"` runs them with the restrictions that work",
    missing.join("; ")
)]
pub struct CheckSandboxError {
    /// Descriptions of the missing confinements.
    pub missing: Vec<String>,
}

/// A tested way to launch workers.
#[derive(Debug, Clone)]
pub(super) struct Jail {
    bun: PathBuf,
    launcher: Option<PathBuf>,
    /// User that workers run as; `None` means this process's own.
    user: Option<UnixUser>,
    /// Whether the workers of each author run as a user of their own.
    separates: bool,
    is_strict: bool,
    missing: Vec<String>,
    /// Whether the kernel's Landlock is older than the rules.
    has_older_landlock: bool,
    /// Reason why workers run as this process's user although it is root and no user was configured.
    as_own: Option<String>,
    /// Group of all workers, where systemd delegated one.
    groups: Option<Arc<WorkersGroup>>,
    /// Group of the author's workers.
    group: Option<Arc<AuthorGroup>>,
}

/// Findings of the probe: each field is true if that confinement works.
#[derive(Debug, Deserialize)]
struct Found {
    compiled: bool,
    read: bool,
    write: bool,
    truncate: bool,
    spawn: bool,
    signal: bool,
    network: bool,
    user: bool,
    model: bool,
    /// Whether the kernel's Landlock is older than the rules; reported by the launcher.
    #[serde(skip)]
    older_landlock: bool,
}

impl Jail {
    /// Finds the launcher and tests it, with the worker's files in `dir`.
    pub(super) async fn check(bun: &Path, dir: &Path, config: &PoolConfig) -> Result<Self, CheckSandboxError> {
        let mut jail = Self::find(bun, dir, config).await?;

        if jail.launcher.is_some() {
            jail.groups = delegated_groups();
            jail.join_group_of(GroupOwner::Operator, config.workers + WORKERS_BESIDE);
        }

        // A user named by `hooks.user` is used for all authors.
        if config.user.is_empty() && jail.user.is_some() {
            let last = Self {
                user: Some(user::of_author(LAST_SEAT)),
                ..jail.clone()
            };

            match last.look_around(dir, Path::new(&*config.db_path)).await {
                Ok(found) => jail.separates = found.user,
                Err(error) => tracing::info!(error, "hooks of all authors run as one user"),
            }
        }

        Ok(jail)
    }

    /// Returns the jail for the workers of the author in `seat`.
    pub(super) fn of_author(&self, seat: u32) -> Self {
        let mut jail = self.clone();
        jail.join_group_of(GroupOwner::Author(seat), WORKERS_BESIDE);
        if self.separates {
            jail.user = Some(user::of_author(seat));
        }
        jail
    }

    /// Has workers start in the group of `owner`, of whom at most `workers` processes run. Without it, the bounds of each
    /// process hold alone.
    fn join_group_of(&mut self, owner: GroupOwner, workers: usize) {
        let made = self
            .groups
            .as_ref()
            .map(|groups| groups.make_author_group(owner, workers));
        self.group = match made.transpose() {
            Ok(group) => group.map(Arc::new),
            Err(error) => {
                tracing::warn!(?owner, %error, "failed to make a control group for hook workers; they run without one");
                None
            }
        };
    }

    /// Returns whether workers run in control groups of their authors.
    pub(super) const fn has_groups(&self) -> bool {
        self.group.is_some()
    }

    /// As [`Jail::check`], but all workers run as one user.
    async fn find(bun: &Path, dir: &Path, config: &PoolConfig) -> Result<Self, CheckSandboxError> {
        let bun = bun.canonicalize().unwrap_or_else(|_| bun.to_owned());
        let mut jail = Self {
            bun,
            launcher: find_launcher(),
            user: None,
            separates: false,
            is_strict: true,
            missing: Vec::new(),
            has_older_landlock: false,
            as_own: None,
            groups: None,
            group: None,
        };

        if config.sandbox == SandboxMode::Absent {
            return Ok(Self { launcher: None, ..jail });
        }

        let model = Path::new(&*config.db_path);
        let user = user::find(&config.user);
        let first = match &user {
            Ok(user) => {
                jail.user = *user;
                jail.probe_sandbox(dir, model).await
            }
            Err(error) => Err(vec![error.clone()]),
        };

        let mut missing = match first {
            Ok(found) => {
                jail.has_older_landlock = found.older_landlock;
                return Ok(jail);
            }
            Err(missing) => missing,
        };

        if config.user.is_empty() && user != Ok(None) {
            // No user was configured: that another user is impossible, or cannot reach the files hooks need, is how
            // this machine is set up, and everything else confines the hooks as well.
            let own = Self {
                user: None,
                ..jail.clone()
            };
            match own.probe_sandbox(dir, model).await {
                Ok(found) => {
                    return Ok(Self {
                        as_own: Some(missing.join("; ")),
                        has_older_landlock: found.older_landlock,
                        ..own
                    });
                }
                Err(lacks) => missing = lacks,
            }
        }

        match config.sandbox {
            SandboxMode::Enforce => Err(CheckSandboxError { missing }),
            SandboxMode::Degraded | SandboxMode::Absent => Ok(jail.degrade_to(dir, model, missing).await),
        }
    }

    /// Returns the jail with the available confinements although some are `missing`, as the user that was found if that
    /// user can reach the files hooks need.
    async fn degrade_to(mut self, dir: &Path, model: &Path, missing: Vec<String>) -> Self {
        self.missing = missing;
        self.is_strict = false;

        if let Some(user) = self.user {
            let unreached = match self.look_around(dir, model).await {
                Ok(found) if found.user => None,
                Ok(_) => Some("it cannot be".to_owned()),
                Err(error) => Some(error),
            };

            if let Some(why) = unreached {
                self.user = None;
                self.missing
                    .push(format!("hooks run as root; running as user {user} failed: {why}"));
            }
        }

        tracing::warn!(missing = self.missing.join("; "), "hooks run in a degraded sandbox");
        self
    }

    /// Returns the user that workers run as; `None` means this process's own.
    pub(super) const fn worker_user(&self) -> Option<UnixUser> {
        self.user
    }

    /// Returns how far hooks are confined.
    pub(super) const fn level(&self) -> SandboxLevel {
        if self.launcher.is_none() || !self.missing.is_empty() {
            SandboxLevel::Degraded
        } else if self.has_older_landlock {
            SandboxLevel::Covered
        } else {
            SandboxLevel::Full
        }
    }

    /// Returns the missing confinements; empty if hooks are fully confined.
    pub(super) fn missing_parts(&self) -> &[String] {
        &self.missing
    }

    /// Returns why workers run as root although nothing else is missing: the error that kept another user from running
    /// them.
    pub(super) fn as_own(&self) -> Option<&str> {
        self.as_own.as_deref()
    }

    /// Launches a worker with none of our environment and no look-up of packages; it is killed when dropped.
    /// `compiles`: its code may be compiled while it runs; `answers` stays open in it.
    pub(super) fn launch_worker(
        &self,
        dir: &Path,
        note: &NoteFile,
        db_path: &str,
        compiles: bool,
        answers: &PipeReader,
    ) -> std::io::Result<Child> {
        let mut note_arg = std::ffi::OsString::from("note=");
        note_arg.push(note.path());
        let answers_number = answers.as_raw_fd();
        let mut command = self.bun_command(dir, Some((note.path(), answers_number)), compiles);

        command
            .args(["--no-install", "run"])
            .arg(dir.join("shim/worker.ts"))
            .arg(note_arg)
            .arg(format!("db={db_path}"))
            .arg(format!("answers={answers_number}"))
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);

        spawner::start(command, answers)
    }

    /// Returns the command that runs Bun confined; the caller adds its arguments. `worker`: the note that a worker
    /// writes, and the descriptor that it has open beside its three pipes.
    fn bun_command(&self, dir: &Path, worker: Option<(&Path, RawFd)>, compiles: bool) -> Command {
        let environment = ENVIRONMENT.iter().chain(NOT_COMPILED.iter().filter(|_| !compiles));
        // Without the launcher, which only degraded mode allows, the environment is all that can be restricted.
        let Some(launcher) = &self.launcher else {
            let mut command = Command::new(&self.bun);
            command.env_clear().envs(environment.copied());
            return command;
        };

        let mut command = Command::new(launcher);
        // Nothing of the service's environment is passed on: it may contain secrets.
        command.env_clear();
        command.arg(if self.is_strict { "strict=1" } else { "strict=0" });
        command.args(self.user.map(|user| format!("user={user}")));
        if let Some(group) = &self.group {
            let mut argument = std::ffi::OsString::from("group=");
            argument.push(group.path());
            command.arg(argument);
        }
        let read = [("ro", dir)].into_iter();
        let system = SYSTEM.iter().map(|path| ("ro", Path::new(path)));
        let run = LIBRARIES.iter().map(|path| ("rx", Path::new(path)));

        let own = [("rx", self.bun.as_path())]
            .into_iter()
            .chain(worker.map(|(note, _)| ("wf", note)));
        for (key, path) in read.chain(system).chain(run).chain(own) {
            let mut argument = std::ffi::OsString::from(format!("{key}="));
            argument.push(path);
            command.arg(argument);
        }

        for (name, value) in environment {
            command.arg(format!("env={name}:{value}"));
        }

        for (name, most) in [
            ("data_mb", DATA_MB),
            ("file_mb", FILE_MB),
            ("files", OPEN_FILES),
            ("cpu_s", CPU_S),
        ] {
            command.arg(format!("{name}={most}"));
        }

        // The launcher ends with this process, and closes all descriptors but the named one. A worker's standard error is
        // the hooks' output, so only the probe's launcher reports there.
        match worker {
            Some((_, open)) => {
                command.arg(format!("parent={}", std::process::id()));
                command.arg(format!("keep={open}"));
            }
            None => {
                command.arg("report=1");
            }
        }

        command.arg("--").arg(&self.bun);
        command
    }

    /// Tests every confinement once. Returns the findings, or the missing confinements as the error.
    async fn probe_sandbox(&self, dir: &Path, model: &Path) -> Result<Found, Vec<String>> {
        let found = self.look_around(dir, model).await.map_err(|error| vec![error])?;
        let missing: Vec<String> = [
            (found.compiled, "the just-in-time compiler does not work"),
            (found.read, "files can be read"),
            (found.write, "files can be written"),
            (found.truncate, "files that may be read can be emptied"),
            (found.spawn, "processes can be started"),
            (found.signal, "signals can be sent"),
            (found.network, "the network can be reached"),
            (found.user, "the user cannot be changed, or can be changed back"),
            (found.model, "the read model can be read"),
        ]
        .into_iter()
        .filter(|(is_right, _)| !is_right)
        .map(|(_, what)| what.to_owned())
        .collect();

        if missing.is_empty() { Ok(found) } else { Err(missing) }
    }

    /// Runs the probe and returns its findings. The read model at `model` is tried, or the nearest existing folder
    /// above it. Returns the reason if the probe fails.
    async fn look_around(&self, dir: &Path, model: &Path) -> Result<Found, String> {
        if self.launcher.is_none() {
            return Err(format!("{LAUNCHER} is not beside the program"));
        }

        let nearest = model.ancestors().find(|path| path.exists());
        let mut command = self.bun_command(dir, None, true);
        command
            .args(["--no-install", "run"])
            .arg(dir.join("shim/probe.ts"))
            .arg(nearest.unwrap_or_else(|| Path::new("")))
            .arg(self.user.map_or(0, |user| user.uid).to_string())
            .current_dir(dir)
            .stdin(Stdio::null())
            .kill_on_drop(true);

        let output = match tokio::time::timeout(PROBE, command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(format!("{LAUNCHER} does not run: {error}")),
            Err(_) => return Err("the probe did not end".to_owned()),
        };

        // A probe that failed writes no JSON; its first line of errors says more than the parser would.
        let said = String::from_utf8_lossy(&output.stderr);
        let found = serde_json::from_slice(&output.stdout).map_err(|_| {
            let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            format!("{}: {line}", output.status)
        });

        found.map(|found| Found {
            older_landlock: said.lines().any(|line| line == OLDER_LANDLOCK),
            ..found
        })
    }
}

/// Returns the group of all workers, if systemd delegated one that can be divided.
fn delegated_groups() -> Option<Arc<WorkersGroup>> {
    match WorkersGroup::take_delegated() {
        Ok(groups) => groups.map(Arc::new),
        Err(error) => {
            tracing::warn!(%error, "hooks run without control groups; no other process may be in the delegated group");
            None
        }
    }
}

/// Returns the path of the launcher beside the running program; that of tests is one directory deeper.
fn find_launcher() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let mut candidates = program.ancestors().skip(1).take(2).map(|folder| folder.join(LAUNCHER));
    candidates.find(|path| path.is_file())
}
