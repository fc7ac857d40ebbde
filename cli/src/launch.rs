//! A whole Nexus on this machine: the NATS server and any number of replicas of the five services, as processes.
//!
//! Used by `up`, `demo`, `bench` and the tests. Every port may be 0: services announce their ports in the run
//! directory. The processes are killed when the [`Stack`] is dropped, and by the kernel if this process ends in any
//! other way; [`Stack::stop`] ends them in good order. The data directory is [held](hold) meanwhile.

pub mod hold;
pub mod keys;
pub mod local;
pub mod nats;
pub mod process;
pub mod programs;
pub mod service;
mod spawner;
pub mod token;
pub mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, NatsConfig};
use shared::clock::pause;
use shared::process::config::{ConfigDocument, ConfigEnvironment, Edges, TrustConfig};
use shared::wire::rights::BusRole;
use shared::wire::seal::TrustKeys;

use hold::Hold;
use nats::Nats;
use programs::Programs;
use service::Running;

/// The five services, in the order in which data passes through them.
pub const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];
/// Longest time until every service is ready.
pub const READY_DEADLINE: Duration = Duration::from_secs(120);

/// Servers and services to start, with their settings.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Directory of data, logs and announcements.
    pub directory: PathBuf,
    /// Text of `nexus.toml`, without `[nats]`; a cluster's key is made if it names none.
    pub config: String,
    /// Port of the server; 0 for any free one.
    pub nats_port: u16,
    /// JetStream's `sync_interval`; `None` for the server's default.
    pub sync_interval: Option<String>,
    /// Whether each server has a monitoring endpoint. It has one in any case if `sync_interval` is set.
    pub monitor: bool,
    /// Whether each server writes down every operation of every client, in its log.
    pub trace: bool,
    /// Number of servers: 1, or 3 for a cluster with replicated streams.
    pub servers: usize,
    /// Services to start, each with its number of replicas.
    pub services: Vec<(&'static str, u16)>,
    /// Further variables of the services' environment, as name and value.
    pub environment: Vec<(String, String)>,
    /// Directory of the first server's streams; `None` for `data/nats-0` of the directory.
    pub store: Option<PathBuf>,
    /// Directory of the services' programs; `None` for the directory of this program.
    pub binaries: Option<PathBuf>,
    /// Whether the server has users ([`users`]). If it has none, every client that reaches it may do everything.
    pub users: bool,
    /// Size to which each server's collector keeps its memory, as Go writes it; `None` for that of a laptop.
    pub server_memory: Option<String>,
}

impl Plan {
    /// Returns a plan of one server and `replicas` of each service, all in `directory`.
    #[must_use]
    pub fn all(directory: &Path, replicas: u16) -> Self {
        let services = SERVICES.into_iter().map(|name| (name, replicas)).collect();
        Self {
            directory: directory.to_owned(),
            servers: 1,
            services,
            ..Self::default()
        }
    }

    fn nats_config(&self, nats: &[Nats], role: BusRole) -> NatsConfig {
        let servers = nats.iter().map(Nats::url).collect();
        if self.users {
            return users::login(&self.directory, role, servers);
        }
        NatsConfig {
            servers,
            ..NatsConfig::default()
        }
    }

    /// Returns the path of the configuration that every service reads.
    fn config_path(&self) -> PathBuf {
        self.directory.join("nexus.toml")
    }
}

/// The processes of a running Nexus.
#[derive(Debug)]
pub struct Stack {
    /// Servers of the stack.
    pub nats: Vec<Nats>,
    /// Replicas of the services.
    pub services: Vec<Running>,
    programs: Programs,
    plan: Plan,
    /// Dropped last: the directory stays locked until every process in it has ended.
    hold: Hold,
}

/// A server without services, on a store of its own, with a connection to it.
#[derive(Debug)]
pub struct ServerAlone {
    /// Connection as the user that puts backups onto a server.
    pub bus: Bus,
    nats: Vec<Nats>,
}

impl ServerAlone {
    /// Ends the server in good order.
    pub async fn stop(mut self) {
        for nats in &mut self.nats {
            nats.stop().await;
        }
    }
}

/// Starts a server on `store` for the data directory `data`, which `hold` locks.
///
/// # Errors
/// Fails if the server program is missing or does not start.
pub async fn server_alone(data: &Path, store: &Path, hold: &Hold) -> Result<ServerAlone> {
    let programs = Programs::find()?;
    std::fs::create_dir_all(data.join("log")).context("failed to create the directory of logs")?;
    let plan = Plan {
        users: true,
        store: Some(store.to_owned()),
        services: Vec::new(),
        ..Plan::all(data, 0)
    };

    let nats = Nats::start(&programs, &plan, hold).await?;
    let config = plan.nats_config(&nats, BusRole::Restore);
    let bus = connected(&config, "nexus-restore").await?;

    Ok(ServerAlone { bus, nats })
}

/// Connects as `name`, and retries within [`READY_DEADLINE`] while a server is starting.
async fn connected(config: &NatsConfig, name: &str) -> Result<Bus> {
    let connected = tokio::time::timeout(READY_DEADLINE, async {
        loop {
            match Bus::connect(config, name).await {
                Ok(bus) => return bus,
                Err(_) => pause(Duration::from_millis(50)).await,
            }
        }
    });
    connected.await.context("failed to connect to NATS")
}

impl Stack {
    /// Starts everything, and returns when every service reports that it is ready.
    ///
    /// # Errors
    /// Fails if another process holds the data directory, or if a program is missing or does not start; the error has
    /// the end of its log.
    pub async fn start(plan: Plan) -> Result<Self> {
        let programs = Programs::find()?.with_services(plan.binaries.as_deref())?;

        for sub in ["run", "log", "data"] {
            std::fs::create_dir_all(plan.directory.join(sub)).context("failed to create the data directory")?;
        }

        let hold = Hold::take(&plan.directory).await?;
        token::ensure(&token::file(&plan.directory))?;

        let nats = Nats::start(&programs, &plan, &hold).await?;
        let mut stack = Self {
            nats,
            services: Vec::new(),
            programs,
            plan,
            hold,
        };

        stack.write_config()?;
        stack.ensure().await?;
        stack.launch_all()?;
        stack.ready().await?;

        Ok(stack)
    }

    fn write_config(&self) -> Result<()> {
        let servers: Vec<String> = self.nats.iter().map(Nats::url).collect();
        let (durability, replicas) = match (self.plan.servers, self.plan.sync_interval.as_deref()) {
            (3, _) => ("replicated", 3),
            (_, Some("always")) => ("power", 1),
            _ => ("process", 1),
        };

        let monitors: Vec<String> = self.nats.iter().filter_map(Nats::monitor).collect();
        let mut nats = format!(
            "[nats]\nservers = {servers:?}\ndurability = \"{durability}\"\nreplicas = {replicas}\nmonitors = {monitors:?}\n"
        );
        if self.plan.users {
            // For the command line, which takes those beside them where an operator may not; each service is given
            // credentials of its own.
            let credentials = users::credentials(&self.plan.directory, BusRole::Operator);
            nats.push_str(&format!("ensure = false\ncredentials = {credentials:?}\n"));
        }

        let trust = self.trust_section()?;
        std::fs::write(self.config_path(), format!("{nats}\n{trust}{}", self.plan.config))
            .context("failed to write nexus.toml")
    }

    /// Returns section `[trust]` with a key in the data directory; empty if the configuration has that section.
    fn trust_section(&self) -> Result<String> {
        let written: toml::Table = self
            .plan
            .config
            .parse()
            .context("the configuration is not valid TOML")?;
        if written.contains_key("trust") {
            return Ok(String::new());
        }
        let key = keys::cluster_key(&self.plan.directory)?;
        Ok(format!("[trust]\ncluster_key = \"file:{}\"\n\n", key.display()))
    }

    /// Returns the keys with which the services seal events.
    fn trust(&self) -> Arc<TrustKeys> {
        let text = std::fs::read_to_string(self.config_path()).unwrap_or_default();
        let document = ConfigDocument::parse(&self.config_path(), &text, &ConfigEnvironment::default());
        let section = document.section("trust", TrustConfig::find_faults);
        Arc::new(section.value.build_trust(&Edges::new()))
    }

    /// Creates the topology once, before ten processes check it at the same time.
    async fn ensure(&self) -> Result<()> {
        let config = self.plan.nats_config(&self.nats, BusRole::Topology);
        let bus = connected(&config, "nexus-launch").await?;
        let topology = shared::wire::topology::topology(if self.plan.servers == 3 { 3 } else { 1 });

        let mut last = None;
        // A cluster that has just started has no leader yet.
        let made = tokio::time::timeout(READY_DEADLINE, async {
            while let Err(error) = bus.ensure_topology(&topology, true).await {
                last = Some(error);
                pause(Duration::from_millis(100)).await;
            }
        });

        match (made.await, last) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(error).context("failed to create the streams and consumers"),
            (Err(_), None) => bail!("failed to create the streams and consumers: no answer"),
        }
    }

    /// Returns the path of the configuration that every service reads.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.plan.config_path()
    }

    /// Returns the directory of data, logs and announcements.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.plan.directory
    }

    /// Starts server `index` again after it was killed, with the same port and data.
    ///
    /// # Errors
    /// Fails if the port is taken or the program does not start.
    pub fn launch_server(&mut self, index: usize) -> Result<()> {
        let hold = &self.hold;
        self.nats.get_mut(index).map_or(Ok(()), |nats| nats.launch(hold))
    }

    /// Returns the settings by which a user of `role` reaches the servers.
    #[must_use]
    pub fn nats_config(&self, role: BusRole) -> NatsConfig {
        self.plan.nats_config(&self.nats, role)
    }

    /// Opens a connection under `name` for the caller, who looks after the installation.
    ///
    /// # Errors
    /// Fails if no server answers within [`READY_DEADLINE`].
    pub async fn bus(&self, name: &str) -> Result<Bus> {
        self.bus_as(BusRole::Admin, name).await
    }

    /// Opens a connection under `name` as the user of `role`.
    ///
    /// # Errors
    /// Fails if no server answers within [`READY_DEADLINE`].
    pub async fn bus_as(&self, role: BusRole, name: &str) -> Result<Bus> {
        let config = self.nats_config(role);
        Ok(connected(&config, name).await?.with_trust(self.trust()))
    }

    /// Starts replica `replica` of `name`, or starts it again after it was killed.
    ///
    /// # Errors
    /// Fails if the service's binary does not start.
    pub fn launch(&mut self, name: &'static str, replica: u16) -> Result<()> {
        let running = Running::start(&self.programs, &self.plan, &self.hold, (name, replica))?;
        self.services
            .retain(|other| (other.name, other.replica) != (name, replica));
        self.services.push(running);
        Ok(())
    }

    /// Sets variable `name` of every service that is started from now on to `value`.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.plan.environment.retain(|(other, _)| other != name);
        self.plan.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Takes the program of every service that is started from now on from `directory`; without one, from the directory
    /// of this program.
    ///
    /// # Errors
    /// Fails if a service is not there; the error names it.
    pub fn set_binaries(&mut self, directory: Option<&Path>) -> Result<()> {
        self.programs = self.programs.clone().with_services(directory)?;
        Ok(())
    }

    /// Waits until every service reports that it is ready.
    ///
    /// # Errors
    /// Fails if a service is not ready in time; the error names it and has the end of its log.
    pub async fn ready(&mut self) -> Result<()> {
        for index in 0..self.services.len() {
            let service = &mut self.services[index];
            if let Err(error) = service.ready(READY_DEADLINE).await {
                bail!("{} is not ready: {error:#}\n{}", service.instance, service.log_tail());
            }
        }
        Ok(())
    }

    /// Returns replica `replica` of `name`.
    #[must_use]
    pub fn service(&mut self, name: &str, replica: u16) -> Option<&mut Running> {
        self.services
            .iter_mut()
            .find(|running| running.name == name && running.replica == replica)
    }

    /// Returns the address of the adapter's gateway, as `http://…`.
    ///
    /// # Errors
    /// Fails if no adapter runs.
    pub fn gateway(&self) -> Result<String> {
        let adapter = self
            .services
            .iter()
            .find(|running| running.name == "adapter-svc")
            .context("adapter-svc is not running")?;
        Ok(format!("http://{}", adapter.address("gateway")?))
    }

    /// Starts every replica of the plan.
    ///
    /// # Errors
    /// Fails if a binary does not start.
    pub fn launch_all(&mut self) -> Result<()> {
        for (name, replicas) in self.plan.services.clone() {
            for replica in 0..replicas {
                self.launch(name, replica)?;
            }
        }
        Ok(())
    }

    /// Ends replica `replica` of `name` in good order, or kills it after `deadline`. Returns its exit code, if it ended
    /// by itself.
    pub async fn stop_replica(&mut self, name: &str, replica: u16, deadline: Duration) -> Option<i32> {
        let running = self.service(name, replica)?;
        running.terminate();
        let code = running.ended(deadline).await;

        self.services
            .retain(|other| (other.name, other.replica) != (name, replica));
        code
    }

    /// Ends the services in good order; the servers go on.
    pub async fn stop_services(&mut self) {
        for service in &mut self.services {
            service.terminate();
        }
        for service in &mut self.services {
            service.ended(Duration::from_secs(15)).await;
        }
        self.services.clear();
    }

    /// Ends the services in good order, then the servers.
    pub async fn stop(mut self) {
        self.stop_services().await;
        for nats in &mut self.nats {
            nats.stop().await;
        }
    }
}
