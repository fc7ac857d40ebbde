//! NATS server of a stack, or its cluster of three.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::clock::pause;
use tokio::net::TcpStream;

use super::hold::{Hold, Recorded};
use super::programs::Programs;
use super::{Plan, READY_DEADLINE, spawner, users};

/// Settings of Go's garbage collector for the server: it runs seldom while there is room, because it takes 5 % of the
/// server's time otherwise (`docs/performance.md`), and as often as needed to keep to the limit.
const COLLECTOR: [(&str, &str); 2] = [("GOGC", "400"), ("GOMEMLIMIT", "768MiB")];

/// One process of the NATS server.
#[derive(Debug)]
pub struct Nats {
    programs: Programs,
    config: PathBuf,
    log: PathBuf,
    port: u16,
    /// Port of the monitoring endpoint; `None` if it is not needed. A stack whose durability covers a power failure
    /// needs it, and one whose messages are counted.
    monitor: Option<u16>,
    /// Passwords of the server's users, by variable; empty if the server has no users.
    passwords: Vec<(String, String)>,
    child: Option<(Child, Recorded)>,
}

/// Returns a port that was free a moment ago.
///
/// # Errors
/// Fails if loopback has no free port.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to find a free port")?;
    Ok(listener.local_addr().context("failed to find a free port")?.port())
}

impl Nats {
    /// Starts the servers of `plan`, and returns when all of them accept connections.
    pub(super) async fn start(programs: &Programs, plan: &Plan, hold: &Hold) -> Result<Vec<Self>> {
        let count = plan.servers.max(1);
        let routes = (0..count).map(|_| free_port()).collect::<Result<Vec<u16>>>()?;

        let mut servers = Vec::new();
        for index in 0..count {
            let port = if plan.nats_port == 0 || count > 1 {
                free_port()?
            } else {
                plan.nats_port
            };
            let mut server = Self::prepare(programs, plan, index, port, &routes)?;
            server.launch(hold)?;
            servers.push(server);
        }

        for server in &mut servers {
            server.ready().await?;
        }

        Ok(servers)
    }

    fn prepare(programs: &Programs, plan: &Plan, index: usize, port: u16, routes: &[u16]) -> Result<Self> {
        let own_store = plan.directory.join(format!("data/nats-{index}"));
        let store = plan.store.clone().filter(|_| index == 0).unwrap_or(own_store);
        let sync = plan
            .sync_interval
            .as_ref()
            .map(|s| format!("sync_interval: {s}\n  "))
            .unwrap_or_default();

        let needs_monitor = plan.monitor || plan.sync_interval.is_some();
        let monitor = needs_monitor.then(free_port).transpose()?;
        let http = monitor
            .map(|port| format!("http: \"127.0.0.1:{port}\"\n"))
            .unwrap_or_default();
        let cluster = if routes.len() > 1 {
            let urls: Vec<String> = routes
                .iter()
                .map(|route| format!("nats-route://127.0.0.1:{route}"))
                .collect();
            let own = routes[index];
            format!(
                "cluster {{ name: nexus, listen: \"127.0.0.1:{own}\", routes: [{}] }}\n",
                urls.join(", ")
            )
        } else {
            String::new()
        };

        let (passwords, permissions) = if plan.users {
            (users::passwords(&plan.directory)?, users::PERMISSIONS)
        } else {
            (Vec::new(), "")
        };
        let text = format!(
            "server_name: n{index}\nlisten: \"127.0.0.1:{port}\"\n{http}max_payload: 8MB\nmax_pending: 256MB\n\
             jetstream {{\n  {sync}store_dir: {store:?}\n  max_file_store: 64GB\n}}\n{cluster}{permissions}"
        );

        let config = plan.directory.join(format!("nats-{index}.conf"));
        std::fs::write(&config, text).context("failed to write the server's configuration")?;
        let log = plan.directory.join(format!("log/nats-{index}.log"));

        Ok(Self {
            programs: programs.clone(),
            config,
            log,
            port,
            monitor,
            passwords,
            child: None,
        })
    }

    /// Starts the process, or starts it again after it was killed, with the same port and data.
    ///
    /// # Errors
    /// Fails if the port is taken or the program does not start.
    pub(super) fn launch(&mut self, hold: &Hold) -> Result<()> {
        if TcpListener::bind(("127.0.0.1", self.port)).is_err() {
            bail!("port {} is in use; set nats.servers or --nats-port", self.port);
        }

        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .context("failed to open the server's log")?;
        let mut command = spawner::tethered(&self.programs.services, &self.programs.nats_server);
        command
            .arg("-c")
            .arg(&self.config)
            .envs(COLLECTOR)
            .envs(self.passwords.iter().map(|(name, password)| (name, password)))
            .stdout(log.try_clone().context("failed to open the server's log")?)
            .stderr(log)
            // The lock on the data directory, which lasts as long as the server lives.
            .stdin(hold.handle()?);

        let child = spawner::spawn(command).context("failed to start nats-server")?;
        let record = hold.record(child.id())?;
        self.child = Some((child, record));

        Ok(())
    }

    /// Waits until the server accepts connections.
    ///
    /// # Errors
    /// Fails if the server does not accept connections in time, or ends.
    pub async fn ready(&mut self) -> Result<()> {
        let waited = tokio::time::timeout(READY_DEADLINE, async {
            while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
                if let Some(status) = self.status() {
                    bail!("nats-server ended with {status}: see {}", self.log.display());
                }
                pause(Duration::from_millis(10)).await;
            }

            Ok(())
        });

        waited.await.context("nats-server does not answer")?
    }

    /// Returns the server's address, as `nats://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the address of the monitoring endpoint, as `http://…`, if there is one.
    #[must_use]
    pub fn monitor(&self) -> Option<String> {
        self.monitor.map(|port| format!("http://127.0.0.1:{port}"))
    }

    /// Returns the server's process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|(child, _)| child.id())
    }

    /// Returns how the server ended, if it ended by itself.
    pub fn status(&mut self) -> Option<std::process::ExitStatus> {
        let (child, _) = self.child.as_mut()?;
        child.try_wait().ok().flatten()
    }

    /// Kills the server without warning.
    pub fn kill(&mut self) {
        if let Some((mut child, _record)) = self.child.take() {
            // The server may have ended by itself; it is gone afterwards in either case.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends the server in good order.
    pub async fn stop(&mut self) {
        let Some((mut child, record)) = self.child.take() else {
            return;
        };
        super::service::signal(child.id(), "TERM");

        let ended = tokio::time::timeout(Duration::from_secs(10), async {
            while matches!(child.try_wait(), Ok(None)) {
                pause(Duration::from_millis(20)).await;
            }
        });

        if ended.await.is_err() {
            self.child = Some((child, record));
            self.kill();
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
