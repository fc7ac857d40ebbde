//! How a worker process is confined: through `nexus-jail`, tried out before any hook runs.
//!
//! At start a probe runs in the jail and tries what a hook may not do, and whether its code is compiled at all: a
//! memory limit that is too small for the compiler's reservation makes Bun interpret, silently and ten times slower.
//! Where anything is missing, [`Sandbox::Enforce`] refuses; [`Sandbox::Degraded`] runs with what there is and says so.
//! That hooks run as somebody else is missing only where that was asked for: root in a folder of its own has nobody to
//! hand them to.

use std::io::PipeReader;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};

use super::note::NoteFile;
use super::pools::MAX_AUTHORS;
use super::user::{self, User};
use super::{PoolConfig, starter};

/// The seat of the last author: where hooks can run as that user, they can as those of all others.
const LAST_SEAT: u32 = MAX_AUTHORS as u32 - 1;

/// The launcher, beside the program or one directory above it.
const LAUNCHER: &str = "nexus-jail";

/// Data memory of a worker, in MiB. Bun reserves 350 of them before any hook is loaded, of which it holds a tenth; with a
/// thousand hooks it is 490 (measured, 1.4.5), and beyond the limit a good hook's process dies with the greedy one's.
const DATA_MB: u32 = 768;

/// Largest file that a worker may write (its own note), in MiB, and open files.
const FILE_MB: u32 = 1;
const OPEN_FILES: u32 = 128;

/// Processor seconds of one worker: the end of a loop whose supervisor was killed.
const CPU_S: u32 = 4 * 3_600;

/// What Bun is told: a reservation that fits [`DATA_MB`], and no third compiler, which costs more than it gives here.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("BUN_JSC_jitMemoryReservationSize", "67108864"),
    ("BUN_JSC_useFTLJIT", "false"),
    // Files in memory are refused: their pages are counted to nobody.
    ("BUN_FEATURE_FLAG_DISABLE_MEMFD", "1"),
];

/// What it is told where a suspect runs in it: much that a script can break a process with is in the compilers.
const NOT_COMPILED: [(&str, &str); 1] = [("BUN_JSC_useJIT", "false")];

/// What Bun itself reads, where it is there.
const SYSTEM: [&str; 5] = [
    "/proc/self",
    "/dev/null",
    "/dev/urandom",
    "/etc/localtime",
    "/usr/share/zoneinfo",
];
const LIBRARIES: [&str; 3] = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"];

/// How long the probe may take.
const PROBE: Duration = Duration::from_secs(30);

/// What is asked of the sandbox (`hooks.sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// All of it, or hook-svc does not start.
    #[default]
    Enforce,
    /// What this machine has; what is missing is said in the log and in `/readyz`.
    Degraded,
    /// None, to measure what it costs; nothing can be configured to be so.
    #[serde(skip)]
    Absent,
}

/// The sandbox is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error(
    "hooks cannot be confined on this machine: {}; `hooks.sandbox = \"degraded\"` runs them with what there is",
    missing.join("; ")
)]
pub struct CheckSandboxError {
    /// What is missing.
    pub missing: Vec<String>,
}

/// A way to launch workers, tried out.
#[derive(Debug, Clone)]
pub(super) struct Jail {
    bun: PathBuf,
    launcher: Option<PathBuf>,
    /// As whom workers run; none = as this process.
    user: Option<User>,
    /// Whether workers of each author run as a user of their own.
    separates: bool,
    is_strict: bool,
    missing: Vec<String>,
    /// Why workers run as this process though it is root and nobody said that they shall.
    as_own: Option<String>,
}

/// What the probe found: each true where it is as it should be.
#[derive(Debug, Deserialize)]
struct Found {
    compiled: bool,
    read: bool,
    write: bool,
    spawn: bool,
    signal: bool,
    network: bool,
    user: bool,
    model: bool,
}

impl Jail {
    /// Finds the launcher and tries it, with the worker's files in `dir`.
    pub(super) async fn check(bun: &Path, dir: &Path, config: &PoolConfig) -> Result<Self, CheckSandboxError> {
        let mut jail = Self::find(bun, dir, config).await?;

        // Whom `hooks.user` names is meant, and nobody else.
        if config.user.is_empty() && jail.user.is_some() {
            let last = Self {
                user: Some(user::of_author(LAST_SEAT)),
                ..jail.clone()
            };

            match last.look(dir, Path::new(&*config.db_path)).await {
                Ok(found) => jail.separates = found.user,
                Err(error) => tracing::info!(error, "hooks of all authors run as one user"),
            }
        }

        Ok(jail)
    }

    /// This one for the workers of the author in `seat`.
    pub(super) fn of_author(&self, seat: u32) -> Self {
        let mut jail = self.clone();
        if self.separates {
            jail.user = Some(user::of_author(seat));
        }
        jail
    }

    /// As [`Jail::check`]; all workers run as one user.
    async fn find(bun: &Path, dir: &Path, config: &PoolConfig) -> Result<Self, CheckSandboxError> {
        let bun = bun.canonicalize().unwrap_or_else(|_| bun.to_owned());
        let mut jail = Self {
            bun,
            launcher: launcher(),
            user: None,
            separates: false,
            is_strict: true,
            missing: Vec::new(),
            as_own: None,
        };

        if config.sandbox == Sandbox::Absent {
            return Ok(Self { launcher: None, ..jail });
        }

        let model = Path::new(&*config.db_path);
        let user = user::find(&config.user);
        let first = match &user {
            Ok(user) => {
                jail.user = *user;
                jail.probe(dir, model).await
            }
            Err(error) => Err(vec![error.clone()]),
        };

        let Err(mut missing) = first else {
            return Ok(jail);
        };

        if config.user.is_empty() && user != Ok(None) {
            // Nobody asked for another user: that one cannot be, or cannot reach what hooks need, is how this machine is
            // set up, and all else confines them as well.
            let own = Self {
                user: None,
                ..jail.clone()
            };
            match own.probe(dir, model).await {
                Ok(()) => {
                    let as_own = Some(missing.join("; "));
                    return Ok(Self { as_own, ..own });
                }
                Err(lacks) => missing = lacks,
            }
        }

        match config.sandbox {
            Sandbox::Enforce => Err(CheckSandboxError { missing }),
            Sandbox::Degraded | Sandbox::Absent => Ok(jail.degraded(dir, model, missing).await),
        }
    }

    /// This one with what there is, where something is `missing`; as the user that was found, if they can reach what
    /// hooks need.
    async fn degraded(mut self, dir: &Path, model: &Path, missing: Vec<String>) -> Self {
        self.missing = missing;
        self.is_strict = false;

        if let Some(user) = self.user {
            let unreached = match self.look(dir, model).await {
                Ok(found) if found.user => None,
                Ok(_) => Some("it cannot be".to_owned()),
                Err(error) => Some(error),
            };

            if let Some(why) = unreached {
                self.user = None;
                self.missing.push(format!("hooks run as root, for as {user}: {why}"));
            }
        }

        tracing::warn!(missing = self.missing.join("; "), "hooks run in a degraded sandbox");
        self
    }

    /// As whom workers run; none = as this process.
    pub(super) const fn user(&self) -> Option<User> {
        self.user
    }

    /// What is missing; empty where hooks are confined whole.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Why workers run as root though nothing else is missing: what kept another user from running them.
    pub(super) fn as_own(&self) -> Option<&str> {
        self.as_own.as_deref()
    }

    /// Launches a worker: nothing of our environment, no look-up of packages, killed when dropped. `compiles`: its code
    /// may be compiled while it runs; `answers` stays open in it.
    pub(super) fn launch(
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
        let mut command = self.command(dir, Some((note.path(), answers_number)), compiles);

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

        starter::start(command, answers)
    }

    /// Bun, confined; its arguments are to follow. `worker`: the note that a worker writes, and what it has open beside its
    /// three pipes.
    fn command(&self, dir: &Path, worker: Option<(&Path, RawFd)>, compiles: bool) -> Command {
        let environment = ENVIRONMENT.iter().chain(NOT_COMPILED.iter().filter(|_| !compiles));
        let Some(launcher) = &self.launcher else {
            let mut command = Command::new(&self.bun);
            command.env_clear().envs(environment.copied());
            return command;
        };

        let mut command = Command::new(launcher);
        command.env_clear();
        command.arg(if self.is_strict { "strict=1" } else { "strict=0" });
        command.args(self.user.map(|user| format!("user={user}")));
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

        if let Some((_, open)) = worker {
            command.arg(format!("parent={}", std::process::id()));
            command.arg(format!("keep={open}"));
        }

        command.arg("--").arg(&self.bun);
        command
    }

    /// Tries everything once; `Err` names what is missing.
    async fn probe(&self, dir: &Path, model: &Path) -> Result<(), Vec<String>> {
        let found = self.look(dir, model).await.map_err(|error| vec![error])?;
        let missing: Vec<String> = [
            (found.compiled, "the just-in-time compiler does not work"),
            (found.read, "files can be read"),
            (found.write, "files can be written"),
            (found.spawn, "processes can be started"),
            (found.signal, "signals can be sent"),
            (found.network, "the network can be reached"),
            (found.user, "the user cannot be changed, or changed back"),
            (found.model, "the read model can be read"),
        ]
        .into_iter()
        .filter(|(is_right, _)| !is_right)
        .map(|(_, what)| what.to_owned())
        .collect();

        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }

    /// Looks at what the sandbox holds off, the read model at `model` among it, or the nearest folder where it is not there
    /// yet; `Err` says why that cannot be told.
    async fn look(&self, dir: &Path, model: &Path) -> Result<Found, String> {
        if self.launcher.is_none() {
            return Err(format!("{LAUNCHER} is not beside the program"));
        }

        let nearest = model.ancestors().find(|path| path.exists());
        let mut command = self.command(dir, None, true);
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
            Err(_) => return Err("the probe does not end".to_owned()),
        };

        serde_json::from_slice(&output.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            format!("{}: {line}", output.status)
        })
    }
}

/// The launcher, beside the running program; that of tests lies one directory deeper.
fn launcher() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let mut candidates = program.ancestors().skip(1).take(2).map(|folder| folder.join(LAUNCHER));
    candidates.find(|path| path.is_file())
}
