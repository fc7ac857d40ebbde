//! The trait of a service, and the resources that it runs with.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::announce::ServiceAnnouncement;
use super::config::{CommonConfig, ConfigFault};
use super::health::Health;
use super::lifecycle::ShutdownSignal;
use crate::bus::Bus;
use crate::clock::{SharedClock, SharedIds};
use crate::llm::LlmConfig;
use crate::metric::Metric;

/// One of the five services.
pub trait Service: 'static {
    /// Name of the service in logs, traces, files and the bus: `hook-svc`.
    const NAME: &'static str;

    /// Name of its section of the configuration: `hooks`.
    const SECTION: &'static str;

    /// Whether it uses models: only then section `[llm]` is read, and the key that it names must exist.
    const ASKS_MODELS: bool = false;

    /// Whether it checks the seals of edges: only then section `[edges]` is read, and the keys that it names must
    /// exist.
    const READS_EDGES: bool = false;

    /// Parts that report their state themselves: until each of them has, `/readyz` fails.
    const PARTS: &'static [&'static str] = &[];

    /// Its own metrics and those of the parts of `shared` that it uses, besides those that every process has.
    const METRICS: &'static [&'static [Metric]] = &[];

    /// Type of its configuration; `#[serde(default, deny_unknown_fields)]`.
    type Config: DeserializeOwned + Serialize + Default + Send + 'static;

    /// Returns the faults of meaning in a configuration that can be read, each `key: problem`.
    #[must_use]
    fn check(_config: &Self::Config) -> Vec<String> {
        Vec::new()
    }

    /// Returns the faults of its section in view of the edges' channels (`[edges.<name>]`), given by the edges' names;
    /// each `key: problem`.
    #[must_use]
    fn check_beside(_config: &Self::Config, _edges: &BTreeMap<String, String>) -> Vec<String> {
        Vec::new()
    }

    /// Returns the faults of its section in view of section `[llm]`, if the service uses models; each `key: problem`.
    #[must_use]
    fn check_models(_config: &Self::Config, _llm: &LlmConfig) -> Vec<String> {
        Vec::new()
    }

    /// Returns the valid settings that are weaker than they should be, each `key: why`. `--check` prints them.
    #[must_use]
    fn find_warnings(_config: &Self::Config) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether its work can start before a server has ever answered: it keeps accepted messages until one does.
    #[must_use]
    fn begins_alone(_config: &Self::Config) -> bool {
        false
    }

    /// Returns the faults in the files and directories that the service's own section and the shared ones name, as far as
    /// its start reads them. The service does not start with one, and `--check` reports all of them.
    #[must_use]
    fn check_files(_config: &Self::Config, _common: &CommonConfig, _llm: &LlmConfig) -> Vec<ConfigFault> {
        Vec::new()
    }

    /// Returns the valid settings in those files that are weaker than they may look, each `key: why`. `--check` prints
    /// them.
    #[must_use]
    fn warn_files(_common: &CommonConfig) -> Vec<String> {
        Vec::new()
    }

    /// Does the work. Returns after [`ServiceShell::shutdown`] was requested and everything in flight is finished.
    fn serve(shell: ServiceShell<Self::Config>) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Resources that a service gets from its process.
#[derive(Debug)]
pub struct ServiceShell<C> {
    /// Value of the service's own section.
    pub config: C,
    /// Values of the shared sections.
    pub common: CommonConfig,
    /// Section `[llm]`; its defaults if the service uses no models.
    pub llm: LlmConfig,
    /// Connection to the bus; the topology exists, unless the service [begins alone](Service::begins_alone).
    pub bus: Bus,
    /// Instance name of this replica, unique among all processes.
    pub instance: String,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Source of new ids.
    pub ids: SharedIds,
    /// Request to stop the process.
    pub shutdown: ShutdownSignal,
    /// Health to which the service reports the states of its parts.
    pub health: Health,
    /// Directory in which running processes of this machine announce themselves, if there is one.
    pub run_dir: Option<PathBuf>,
    pub(super) announcement: ServiceAnnouncement,
}

impl<C> ServiceShell<C> {
    /// Announces to other processes of this machine, in `{run_dir}/{service}-{instance}.json`, that `what` listens at
    /// `address`.
    pub fn announce_address(&self, what: &str, address: SocketAddr) {
        tracing::info!(what, %address, "listening");
        self.announcement.add(what, address);
    }
}
