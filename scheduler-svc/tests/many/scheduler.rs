//! A scheduler as a process.

use std::process::{Command, Stdio};
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::testing::{TestProcess, memory_kib};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(60);

pub(crate) struct Scheduler {
    directory: TempDir,
    instance: String,
    url: String,
    child: TestProcess,
}

/// Resident memory of process `pid`, MiB.
pub(crate) fn resident_mib(pid: u32) -> u64 {
    memory_kib(pid, "VmRSS").unwrap_or(0) / 1_024
}

impl Scheduler {
    pub(crate) fn start(url: &str, number: u16) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let instance = format!("scheduler-svc-{number}");
        let child = spawn(&directory, url, &instance);
        Self {
            directory,
            instance,
            url: url.to_owned(),
            child,
        }
    }

    /// Waits until it announces itself and says that it is ready; answers how long after its start.
    pub(crate) async fn ready(&mut self) -> Duration {
        let begun = SystemClock.monotonic();
        let announcement = self
            .directory
            .path()
            .join(format!("scheduler-svc-{}.json", self.instance));
        loop {
            let text = std::fs::read_to_string(&announcement).unwrap_or_default();
            let announced: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            if let Some(address) = announced["http"].as_str()
                && says_ready(address).await
            {
                return SystemClock.monotonic().saturating_duration_since(begun);
            }

            let waited = SystemClock.monotonic().saturating_duration_since(begun);
            assert!(waited < START, "{}", self.log());
            assert!(self.child.ended().is_none(), "{}", self.log());

            pause(Duration::from_millis(10)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        resident_mib(self.child.pid())
    }

    pub(crate) fn kill_and_start(&mut self) {
        self.child.kill();
        let announcement = self
            .directory
            .path()
            .join(format!("scheduler-svc-{}.json", self.instance));
        let _ = std::fs::remove_file(announcement);
        self.child = spawn(&self.directory, &self.url, &self.instance);
    }
}

fn spawn(directory: &TempDir, url: &str, instance: &str) -> TestProcess {
    let config = directory.path().join("nexus.toml");
    let trust = shared::testing::trust_section();
    let text = format!("{trust}[nats]\nservers = [\"{url}\"]\n\n[telemetry]\nlisten = \"127.0.0.1:0\"\n");
    std::fs::write(&config, text).expect("a configuration");
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(directory.path().join("log"))
        .expect("a log");

    let mut command = Command::new(env!("CARGO_BIN_EXE_scheduler-svc"));
    command
        .env("NEXUS_CONFIG", &config)
        .env("NEXUS_RUN_DIR", directory.path())
        .env("NEXUS_INSTANCE", instance)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log);
    TestProcess::start(&mut command)
}

async fn says_ready(address: &str) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else {
        return false;
    };

    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }

    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.is_ok() && answer.starts_with(b"HTTP/1.1 200")
}
