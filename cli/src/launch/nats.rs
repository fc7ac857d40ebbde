//! NATS server of a stack, or its cluster of three.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::clock::pause;
use shared::process::free_port;
use tokio::net::TcpStream;

use super::hold::{Hold, Recorded};
use super::keys::write_secret;
use super::programs::Programs;
use super::users::ServerUsers;
use super::{Plan, READY_DEADLINE, spawner, users};
use crate::auth::server_files::route_lines;

/// Settings of Go's garbage collector for the server: it runs seldom while there is room, because it takes 5 % of the
/// server's time otherwise (`docs/performance.md`), and as often as needed to keep to the limit.
const COLLECTOR: [(&str, &str); 2] = [("GOGC", "400"), (MEMORY_LIMIT, "768MiB")];
/// Variable of the limit.
const MEMORY_LIMIT: &str = "GOMEMLIMIT";

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
    /// Limit of the memory, if it is not that of [`COLLECTOR`].
    memory: Option<String>,
    child: Option<(Child, Recorded)>,
}

/// Returns the block `cluster` of server `index`, whose servers have their routes at `routes`; empty for a single server.
fn cluster_block(routes: &[u16], index: usize, users: Option<&ServerUsers>) -> String {
    if routes.len() < 2 {
        return String::new();
    }

    let own = routes[index];
    let listen = format!("cluster {{ name: nexus, listen: \"127.0.0.1:{own}\"\n");
    let addresses: Vec<String> = routes.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    if let Some(users) = users {
        return format!("{listen}{}}}\n", route_lines(&users.route_password, &addresses, ""));
    }

    let urls: Vec<String> = addresses
        .iter()
        .map(|address| format!("nats-route://{address}"))
        .collect();
    format!("{listen}routes: [{}] }}\n", urls.join(", "))
}

impl Nats {
    /// Starts the servers of `plan`, and returns when all of them accept connections.
    pub(super) async fn start(programs: &Programs, plan: &Plan, hold: &Hold) -> Result<Vec<Self>> {
        let count = plan.servers.max(1);
        let free = || free_port().context("failed to find a free port");
        let routes = (0..count).map(|_| free()).collect::<Result<Vec<u16>>>()?;

        let users = plan.users.then(|| users::prepare(&plan.directory)).transpose()?;
        let mut servers = Vec::new();
        for index in 0..count {
            let port = if plan.nats_port == 0 || count > 1 {
                free()?
            } else {
                plan.nats_port
            };
            let mut server = Self::prepare(programs, plan, (index, port), &routes, users.as_ref())?;
            server.launch(hold)?;
            servers.push(server);
        }

        for server in &mut servers {
            server.ready().await?;
        }

        Ok(servers)
    }

    fn prepare(
        programs: &Programs,
        plan: &Plan,
        (index, port): (usize, u16),
        routes: &[u16],
        users: Option<&ServerUsers>,
    ) -> Result<Self> {
        let own_store = plan.directory.join(format!("data/nats-{index}"));
        let store = plan.store.clone().filter(|_| index == 0).unwrap_or(own_store);
        let sync = plan
            .sync_interval
            .as_ref()
            .map(|s| format!("sync_interval: {s}\n  "))
            .unwrap_or_default();

        let needs_monitor = plan.monitor || plan.sync_interval.is_some();
        let monitor = needs_monitor.then(free_port).transpose();
        let monitor = monitor.context("failed to find a free port")?;
        let http = monitor
            .map(|port| format!("http: \"127.0.0.1:{port}\"\n"))
            .unwrap_or_default();
        let cluster = cluster_block(routes, index, users);
        let accounts = users.map_or_else(String::new, |users| {
            // What a server is told later lasts as long as its streams.
            let kept = plan.directory.join(format!("data/nats-{index}-accounts"));
            let resolver = format!("resolver {{ type: full, dir: {kept:?}, allow_delete: false, interval: \"2m\" }}\n");
            format!("{resolver}{}", users.section)
        });
        let trace = if plan.trace {
            "trace: true\nmax_traced_msg_len: 1\n"
        } else {
            ""
        };
        let text = format!(
            "server_name: n{index}\nlisten: \"127.0.0.1:{port}\"\n{http}{trace}max_payload: 8MB\nmax_pending: 256MB\n\
             jetstream {{\n  {sync}store_dir: {store:?}\n  max_file_store: 64GB\n}}\n{cluster}{accounts}"
        );

        let config = plan.directory.join(format!("nats-{index}.conf"));
        // It has the password of the routes.
        write_secret(&config, &text).context("failed to write the server's configuration")?;
        let log = plan.directory.join(format!("log/nats-{index}.log"));

        Ok(Self {
            programs: programs.clone(),
            config,
            log,
            port,
            monitor,
            memory: plan.server_memory.clone(),
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
            .envs(self.memory.as_ref().map(|memory| (MEMORY_LIMIT, memory)))
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
