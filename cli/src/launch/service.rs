//! One replica of a service, as a process.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::clock::pause;
use shared::wire::rights::BusRole;

use super::hold::{Hold, Recorded};
use super::programs::Programs;
use super::{Plan, spawner, users};

/// Size of the end of a log that is shown if its process failed, in bytes.
const LOG_TAIL: u64 = 2_000;
/// Variables of our own environment that would override a stack's configuration of the bus.
const OWN_SETTINGS: [&str; 9] = [
    "NEXUS__NATS__SERVERS",
    "NEXUS__NATS__ENSURE",
    "NEXUS__NATS__USER",
    "NEXUS__NATS__PASSWORD",
    "NEXUS__NATS__NKEY",
    "NEXUS__NATS__CREDENTIALS",
    "NEXUS__NATS__CA",
    "NEXUS__NATS__CERTIFICATE",
    "NEXUS__NATS__KEY",
];

/// One running replica of a service.
#[derive(Debug)]
pub struct Running {
    /// Name of its service.
    pub name: &'static str,
    /// Number of the replica.
    pub replica: u16,
    /// Name of the replica on the bus.
    pub instance: String,
    announcement: PathBuf,
    log: PathBuf,
    child: Child,
    _record: Recorded,
}

/// Returns `directory`, which has all tokens, keys and passwords of the stack, as the list of paths that programs of
/// agents cannot read.
fn hidden(directory: &Path) -> String {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    format!("[{:?}]", directory.display().to_string())
}

/// Sends `signal` (`TERM`, `STOP`, `CONT`) to process `pid`.
pub fn signal(pid: u32, signal: &str) {
    // A process that has ended already needs no signal.
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .stderr(Stdio::null())
        .status();
}

impl Running {
    pub(super) fn start(
        programs: &Programs,
        plan: &Plan,
        hold: &Hold,
        (name, replica): (&'static str, u16),
    ) -> Result<Self> {
        let instance = format!("{name}-{replica}");
        let run = plan.directory.join("run");
        let announcement = run.join(format!("{name}-{instance}.json"));

        // The file of a killed process would be taken for the new one's.
        let _ = std::fs::remove_file(&announcement);
        let log = plan.directory.join(format!("log/{instance}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .context("failed to open the service's log")?;

        let data = plan.directory.join("data").join(&instance);
        let token = super::token::file(&plan.directory);

        let mut command = spawner::tethered(&programs.services, &programs.services.join(name));
        for name in OWN_SETTINGS {
            command.env_remove(name);
        }

        if let Some(role) = BusRole::of_service(name).filter(|_| plan.users) {
            command.env("NEXUS__NATS__CREDENTIALS", users::credentials(&plan.directory, role));
        }

        command
            .env("NEXUS_CONFIG", plan.config_path())
            .env("NEXUS_RUN_DIR", &run)
            .env("NEXUS_INSTANCE", &instance)
            .env("NEXUS__ADAPTER__DATA_DIR", data.join("spool"))
            .env("NEXUS__ADAPTER__HTTP__LOCAL_TOKEN", format!("file:{}", token.display()))
            .env("NEXUS__HOOKS__DATA_DIR", &data)
            .env("NEXUS__BROKER__HIDDEN", hidden(&plan.directory))
            .env("NEXUS__HOOKS__BUN", &programs.bun)
            .envs(plan.environment.iter().map(|(key, value)| (key, value)))
            .stdin(hold.handle()?)
            .stdout(file.try_clone().context("failed to open the service's log")?)
            .stderr(file);

        let child = spawner::spawn(command).with_context(|| format!("failed to start {name}"))?;
        let record = hold.record(child.id())?;

        Ok(Self {
            name,
            replica,
            instance,
            announcement,
            log,
            child,
            _record: record,
        })
    }

    /// Returns the process id of the replica.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address that the replica announced as `what` (`http`, `gateway`).
    ///
    /// # Errors
    /// Fails if the replica has announced no such address.
    pub fn address(&self, what: &str) -> Result<String> {
        let text = std::fs::read_to_string(&self.announcement)
            .with_context(|| format!("{} did not announce its address", self.instance))?;
        let value: serde_json::Value = serde_json::from_str(&text).context("failed to read the announcement")?;
        let address = value[what].as_str();
        address
            .map(str::to_owned)
            .with_context(|| format!("{} did not announce `{what}`", self.instance))
    }

    /// Returns whether the replica has announced every address that is needed later.
    fn is_announced(&self) -> bool {
        self.name != "adapter-svc" || self.address("gateway").is_ok()
    }

    /// Waits until `/readyz` succeeds, and an adapter listens.
    ///
    /// # Errors
    /// Fails if the process ends, or if it is not ready at the deadline; the error names the parts that are not ready.
    pub async fn ready(&mut self, deadline: Duration) -> Result<()> {
        let client = crate::http::client()?;
        let mut last = "it did not announce its address".to_owned();
        let waited = tokio::time::timeout(deadline, async {
            loop {
                if let Ok(Some(status)) = self.child.try_wait() {
                    bail!("it ended with {status}");
                }

                if let Ok(address) = self.address("http") {
                    match client.get(format!("http://{address}/readyz")).send().await {
                        // With a quick bus the process is ready before its service has begun to listen.
                        Ok(answer) if answer.status().is_success() && self.is_announced() => return Ok(()),
                        Ok(answer) => last = answer.text().await.unwrap_or_default(),
                        Err(error) => last = error.to_string(),
                    }
                }

                pause(Duration::from_millis(25)).await;
            }
        });

        match waited.await {
            Ok(outcome) => outcome,
            Err(_) => bail!("{last}"),
        }
    }

    /// Returns whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    /// Returns how the process ended, if it ended by itself.
    pub fn status(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills the process without warning.
    pub fn kill(&mut self) {
        // The process may have ended by itself; it is gone afterwards in either case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the process to end in good order.
    pub fn terminate(&self) {
        signal(self.pid(), "TERM");
    }

    /// Waits until the process has ended, and kills it at the deadline. Returns its exit code if it ended by itself.
    pub async fn ended(&mut self, deadline: Duration) -> Option<i32> {
        let waited = tokio::time::timeout(deadline, async {
            loop {
                if let Ok(Some(status)) = self.child.try_wait() {
                    return status.code();
                }
                pause(Duration::from_millis(10)).await;
            }
        });

        if let Ok(code) = waited.await {
            return code;
        }

        self.kill();
        None
    }

    /// Returns the end of the process's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        // A caller that waits asks for it many times a second, and the log may be long. Bytes that cannot be read are left out.
        let mut tail = Vec::new();
        if let Ok(mut log) = File::open(&self.log) {
            let size = log.metadata().map_or(0, |metadata| metadata.len());
            let sought = log.seek(SeekFrom::Start(size.saturating_sub(LOG_TAIL)));
            let _ = sought.and_then(|_| log.read_to_end(&mut tail));
        }
        String::from_utf8_lossy(&tail).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
