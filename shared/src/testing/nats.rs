//! A real nats-server per test: started in milliseconds, killed without warning, started again on its own data.
//!
//! Errors cause a panic with a description instead of being returned: a test without its server has failed.

mod cluster;
mod program;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clock::{Clock, SystemClock, pause};

pub use cluster::NatsCluster;

/// Longest wait for a server to become ready, or to end when asked to.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Interval at which readiness is checked.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// Options of a server that differ from the defaults.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// JetStream's `sync_interval`: `always`, or a time such as `2m` (the server's default if absent).
    pub sync_interval: Option<String>,
    /// Maximum payload, in bytes (1 MiB if absent).
    pub max_payload: Option<usize>,
    /// Further lines of the configuration file, unchanged.
    pub extra: String,
}

/// Publishes a message that no client would: with a header block of any bytes, to the server at `url`, as a sender
/// that implements the protocol itself can.
pub async fn publish_by_hand(url: &str, subject: &str, block: &[u8], payload: &[u8]) {
    let mut socket = TcpStream::connect(url.trim_start_matches("nats://"))
        .await
        .expect("connected");
    let (header, total) = (block.len(), block.len() + payload.len());
    let first = format!("CONNECT {{\"headers\":true,\"verbose\":false}}\r\nHPUB {subject} {header} {total}\r\n");
    let written = [first.as_bytes(), block, payload, b"\r\nPING\r\n"].concat();
    socket.write_all(&written).await.expect("written");

    let mut heard = String::new();
    while !heard.contains("PONG") {
        let mut bytes = [0; 4_096];
        let count = socket.read(&mut bytes).await.expect("answered");
        assert!(count > 0 && !heard.contains("-ERR"), "{heard}");
        heard.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

/// A nats-server with JetStream on loopback, in a temporary directory. Killed and removed when dropped.
#[derive(Debug)]
pub struct NatsServer {
    directory: TempDir,
    name: String,
    options: NatsOptions,
    client_port: u16,
    monitor_port: u16,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts a server with the defaults and waits until it is ready.
    pub async fn start() -> Self {
        Self::with(NatsOptions::default()).await
    }

    /// Starts a server with `options` and waits until it is ready.
    pub async fn with(options: NatsOptions) -> Self {
        let mut server = Self::prepare("n1", options);
        server.launch();
        server.learn_ports().await;
        server.ready().await;
        server
    }

    /// URL that clients connect to; the same after a restart.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.client_port)
    }

    /// URL of the server's monitoring port; the same after a restart.
    #[must_use]
    pub fn monitor(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor_port)
    }

    /// Process id while the server runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Replaces the further lines of the configuration, which hold from the next restart on.
    pub fn configure(&mut self, extra: String) {
        self.options.extra = extra;
    }

    /// Kills the server at once, like a crash.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if the process has ended by itself, which is the purpose of this call.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the server gracefully and waits until it has ended.
    pub async fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let signal = format!("quit={}", child.id());
        let asked = Command::new(program::find()).args(["--signal", &signal]).output();

        assert!(
            asked.as_ref().is_ok_and(|output| output.status.success()),
            "cannot signal nats-server: {asked:?}"
        );

        let begun = SystemClock.monotonic();
        while matches!(child.try_wait(), Ok(None)) {
            if waited(begun) > START_DEADLINE {
                self.child = Some(child);
                panic!("nats-server does not end:\n{}", self.log_tail());
            }
            pause(LOOK_EVERY).await;
        }
    }

    /// Starts the server again on the same ports and data; kills it first if it runs.
    pub async fn restart(&mut self) {
        self.kill9();
        self.launch();
        self.ready().await;
    }

    fn prepare(name: &str, options: NatsOptions) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("nexus-nats-")
            .tempdir()
            .expect("a temporary directory");

        Self {
            directory,
            name: name.to_owned(),
            options,
            client_port: 0,
            monitor_port: 0,
            child: None,
        }
    }

    fn launch(&mut self) {
        let config = self.directory.path().join("nats.conf");
        std::fs::write(&config, self.configuration()).expect("the configuration is written");
        let log = std::fs::File::create(self.log_path()).expect("the log file is created");
        let mut command = Command::new(program::find());

        command
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);

        self.child = Some(command.spawn().expect("nats-server starts"));
    }

    fn configuration(&self) -> String {
        let port = |known: u16| if known == 0 { "-1".to_owned() } else { known.to_string() };
        let sync = self
            .options
            .sync_interval
            .as_ref()
            .map(|every| format!("sync_interval: \"{every}\""));

        let payload = self.options.max_payload.map(|bytes| format!("max_payload: {bytes}"));
        format!(
            "server_name: {name}\nlisten: \"127.0.0.1:{client}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
             ports_file_dir: \"{directory}\"\njetstream {{ store_dir: \"{directory}/js\", max_file_store: 64GB, {sync} }}\n{payload}\n{extra}\n",
            name = self.name,
            client = port(self.client_port),
            monitor = port(self.monitor_port),
            directory = self.directory.path().display(),
            sync = sync.unwrap_or_default(),
            payload = payload.unwrap_or_default(),
            extra = self.options.extra,
        )
    }

    /// Reads the ports that the server chose from the file that it writes once it listens.
    async fn learn_ports(&mut self) {
        let pid = self.pid().expect("the server was launched");
        let path = self.directory.path().join(format!("nats-server_{pid}.ports"));

        let begun = SystemClock.monotonic();
        loop {
            let written = std::fs::read(&path).unwrap_or_default();
            if let Ok(ports) = serde_json::from_slice::<PortsFile>(&written) {
                self.client_port = port_of(&ports.nats);
                self.monitor_port = port_of(&ports.monitoring);
                return;
            }

            self.check_alive(begun);
            pause(LOOK_EVERY).await;
        }
    }

    /// Waits until the server reports itself healthy, JetStream included.
    async fn ready(&mut self) {
        let begun = SystemClock.monotonic();
        while !self.is_healthy().await {
            self.check_alive(begun);
            pause(LOOK_EVERY).await;
        }
    }

    async fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.monitor_port)).await else {
            return false;
        };
        let request = b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n";
        let mut answer = Vec::new();
        let asked = stream.write_all(request).await.is_ok();
        asked && stream.read_to_end(&mut answer).await.is_ok() && answer.starts_with(b"HTTP/1.0 200")
    }

    fn check_alive(&mut self, begun: Instant) {
        let ended = self
            .child
            .as_mut()
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        assert!(!ended, "nats-server ended:\n{}", self.log_tail());
        assert!(
            waited(begun) < START_DEADLINE,
            "nats-server is not ready:\n{}",
            self.log_tail()
        );
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("nats.log")
    }

    /// Returns the whole log of the server since it was started last.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Directory in which the server keeps its streams.
    #[must_use]
    pub fn data(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a copy of the server's data of `stream`. The server must not be running.
    #[must_use]
    pub fn copy_of(&self, stream: &str) -> TempDir {
        let copy = tempfile::tempdir().expect("a temporary directory");
        copy_all(&self.stream_directory(stream), copy.path());
        copy
    }

    /// Replaces the server's data of `stream` by `copy`, like a restore from a copied directory or a power cut. The
    /// server must not be running.
    pub fn put_back(&self, stream: &str, copy: &TempDir) {
        let directory = self.stream_directory(stream);
        std::fs::remove_dir_all(&directory).expect("removed");
        copy_all(copy.path(), &directory);
    }

    fn stream_directory(&self, stream: &str) -> PathBuf {
        let streams = self.directory.path().join("js/jetstream/$G/streams");
        streams.join(stream)
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");

    for entry in std::fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn waited(begun: Instant) -> Duration {
    SystemClock.monotonic().duration_since(begun)
}

#[derive(serde::Deserialize)]
struct PortsFile {
    nats: Vec<String>,
    monitoring: Vec<String>,
}

fn port_of(urls: &[String]) -> u16 {
    let port = urls
        .first()
        .and_then(|url| url.rsplit(':').next())
        .and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("no port in {urls:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_comes_back_on_its_port_after_a_crash_and_after_a_stop() {
        let mut server = NatsServer::start().await;
        let (url, first) = (server.url(), server.pid());
        server.kill9();

        assert!(TcpStream::connect(("127.0.0.1", server.client_port)).await.is_err());

        server.restart().await;
        server.stop().await;
        assert_eq!(server.pid(), None);

        server.restart().await;
        assert_eq!(server.url(), url);
        assert_ne!(server.pid(), first);
        assert!(TcpStream::connect(("127.0.0.1", server.client_port)).await.is_ok());
    }

    #[tokio::test]
    async fn options_reach_the_server() {
        let options = NatsOptions {
            max_payload: Some(4_096),
            sync_interval: Some("always".to_owned()),
            ..NatsOptions::default()
        };
        let server = NatsServer::with(options).await;
        let mut stream = TcpStream::connect(("127.0.0.1", server.client_port))
            .await
            .expect("it listens");

        let mut greeting = vec![0; 4_096];
        let read = stream.read(&mut greeting).await.expect("it greets");
        let greeting = String::from_utf8_lossy(&greeting[..read]).into_owned();

        assert!(greeting.contains("\"max_payload\":4096"), "{greeting}");
    }
}
