//! A whole Nexus on this machine: the NATS server and any number of replicas of the five services, as processes.
//!
//! For `up`, `demo`, `bench` and the tests. Every port may be 0: services announce theirs in the run directory.
//! What was started is killed when it is dropped; [`Stack::stop`] ends it in good order.

pub mod nats;
pub mod programs;
pub mod service;
pub mod users;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, NatsConfig};
use shared::clock::pause;

use nats::Nats;
use programs::Programs;
use service::Running;

/// The five services, in the order of the data's way.
pub const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];
/// How long everything may take to become ready.
pub const READY_DEADLINE: Duration = Duration::from_secs(120);

/// What is started, and how.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Where data, logs and announcements are kept.
    pub directory: PathBuf,
    /// Text of `nexus.toml`, without `[nats]`.
    pub config: String,
    /// The server's port; 0 = any free one.
    pub nats_port: u16,
    /// JetStream's `sync_interval`; none = the server's own.
    pub sync_interval: Option<String>,
    /// Servers: 1, or a cluster of 3 with replicated streams.
    pub servers: usize,
    /// Which services, each with how many replicas.
    pub services: Vec<(&'static str, u16)>,
    /// Environment of the services besides.
    pub environment: Vec<(String, String)>,
    /// Whether the server knows users ([`users`]); else whoever reaches it may do everything.
    pub users: bool,
}

impl Plan {
    /// One server and `replicas` of each service, all in `directory`.
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
}

/// A running Nexus.
#[derive(Debug)]
pub struct Stack {
    /// The servers.
    pub nats: Vec<Nats>,
    /// The services' replicas.
    pub services: Vec<Running>,
    programs: Programs,
    plan: Plan,
}

impl Stack {
    /// Starts everything, and returns when every service says that it is ready.
    ///
    /// # Errors
    /// What is missing or does not start, with the end of its log.
    pub async fn start(plan: Plan) -> Result<Self> {
        let programs = Programs::find()?;
        for sub in ["run", "log", "data"] {
            std::fs::create_dir_all(plan.directory.join(sub)).context("make the data directory")?;
        }
        let nats = Nats::start(&programs.nats_server, &plan).await?;
        let mut stack = Self {
            nats,
            services: Vec::new(),
            programs,
            plan,
        };
        stack.write_config()?;
        stack.ensure().await?;
        for (name, replicas) in stack.plan.services.clone() {
            for replica in 0..replicas {
                stack.launch(name, replica)?;
            }
        }
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
            let password = users::password_file(&self.plan.directory, "nexus");
            nats.push_str(&format!(
                "user = \"nexus\"\npassword = \"file:{}\"\n",
                password.display()
            ));
        }
        std::fs::write(self.config_path(), format!("{nats}\n{}", self.plan.config)).context("write nexus.toml")
    }

    /// The topology once, before ten processes look at it at the same time.
    async fn ensure(&self) -> Result<()> {
        let bus = self.bus("nexus-launch").await?;
        let topology = shared::wire::topology::topology(if self.plan.servers == 3 { 3 } else { 1 });
        let mut last = None;
        // A cluster that has just started has no leader to ask yet.
        let made = tokio::time::timeout(READY_DEADLINE, async {
            while let Err(error) = bus.ensure(&topology, true).await {
                last = Some(error);
                pause(Duration::from_millis(100)).await;
            }
        });
        match (made.await, last) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(error).context("make the topology"),
            (Err(_), None) => bail!("make the topology: no answer"),
        }
    }

    /// The configuration that every service reads.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.plan.directory.join("nexus.toml")
    }

    /// How the services reach the servers.
    ///
    /// # Errors
    /// Where their password cannot be read.
    pub fn nats_config(&self) -> Result<NatsConfig> {
        let servers = self.nats.iter().map(Nats::url).collect();
        if self.plan.users {
            return users::login(&self.plan.directory, "nexus", servers);
        }
        Ok(NatsConfig {
            servers,
            ..NatsConfig::default()
        })
    }

    /// A connection of the caller's own.
    ///
    /// # Errors
    /// Where no server answers within [`READY_DEADLINE`].
    pub async fn bus(&self, name: &str) -> Result<Bus> {
        let config = self.nats_config()?;
        let connected = tokio::time::timeout(READY_DEADLINE, async {
            loop {
                match Bus::connect(&config, name).await {
                    Ok(bus) => return bus,
                    Err(_) => pause(Duration::from_millis(50)).await,
                }
            }
        });
        connected.await.context("connect to NATS")
    }

    /// Starts replica `replica` of `name`, again where it was killed.
    ///
    /// # Errors
    /// Where its binary does not start.
    pub fn launch(&mut self, name: &'static str, replica: u16) -> Result<()> {
        let running = Running::start(&self.programs, &self.plan, &self.config_path(), name, replica)?;
        self.services
            .retain(|other| (other.name, other.replica) != (name, replica));
        self.services.push(running);
        Ok(())
    }

    /// Waits until every service says that it is ready.
    ///
    /// # Errors
    /// Which one is not, with the end of its log.
    pub async fn ready(&mut self) -> Result<()> {
        for index in 0..self.services.len() {
            let service = &mut self.services[index];
            if let Err(error) = service.ready(READY_DEADLINE).await {
                bail!("{} is not ready: {error:#}\n{}", service.instance, service.log_tail());
            }
        }
        Ok(())
    }

    /// Replica `replica` of `name`.
    #[must_use]
    pub fn service(&mut self, name: &str, replica: u16) -> Option<&mut Running> {
        self.services
            .iter_mut()
            .find(|running| running.name == name && running.replica == replica)
    }

    /// `http://…` of the adapter's gateway.
    ///
    /// # Errors
    /// Where no adapter runs.
    pub fn gateway(&self) -> Result<String> {
        let adapter = self
            .services
            .iter()
            .find(|running| running.name == "adapter-svc")
            .context("no adapter runs")?;
        Ok(format!("http://{}", adapter.address("gateway")?))
    }

    /// Ends the services in good order, then the servers.
    pub async fn stop(mut self) {
        for service in &mut self.services {
            service.terminate();
        }
        for service in &mut self.services {
            service.ended(Duration::from_secs(15)).await;
        }
        for nats in &mut self.nats {
            nats.stop().await;
        }
    }
}
