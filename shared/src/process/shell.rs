//! What a service is, and what it is given to run.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::announce::Announcement;
use super::config::{Common, Fault};
use super::health::Health;
use super::lifecycle::Shutdown;
use crate::bus::Bus;
use crate::clock::{SharedClock, SharedIds};
use crate::llm::LlmConfig;

/// One of the five services.
pub trait Service: 'static {
    /// Its name in logs, traces, files and the bus: `hook-svc`.
    const NAME: &'static str;

    /// Its section of the configuration: `hooks`.
    const SECTION: &'static str;

    /// Whether it asks models: only then section `[llm]` is read, and the key that it names must be there.
    const ASKS_MODELS: bool = false;

    /// Whether it checks what edges seal: only then section `[edges]` is read, and the keys that it names must be there.
    const READS_EDGES: bool = false;

    /// Parts of it that say themselves how they are: until each has, `/readyz` is no.
    const PARTS: &'static [&'static str] = &[];

    /// Its configuration; `#[serde(default, deny_unknown_fields)]`.
    type Config: DeserializeOwned + Serialize + Default + Send + 'static;

    /// Faults of meaning in a configuration that can be read, each `key: what is expected`.
    #[must_use]
    fn check(_config: &Self::Config) -> Vec<String> {
        Vec::new()
    }

    /// Faults of its section beside the channels of `[edges.<name>]`, by the edges' names; each `key: what is expected`.
    #[must_use]
    fn check_beside(_config: &Self::Config, _edges: &BTreeMap<String, String>) -> Vec<String> {
        Vec::new()
    }

    /// Faults of its section beside section `[llm]`, where the service asks models; each `key: what is expected`.
    #[must_use]
    fn check_models(_config: &Self::Config, _llm: &LlmConfig) -> Vec<String> {
        Vec::new()
    }

    /// What is sound in a configuration and nevertheless weaker than it should be, each `key: why`. `--check` prints it.
    #[must_use]
    fn warnings(_config: &Self::Config) -> Vec<String> {
        Vec::new()
    }

    /// Whether its work can begin before a server has ever answered: it keeps what it takes until one does.
    #[must_use]
    fn begins_alone(_config: &Self::Config) -> bool {
        false
    }

    /// Faults in the files and directories that its own section and the shared ones name, as far as its start reads them. It
    /// does not start with one, and `--check` reports all of them.
    #[must_use]
    fn check_files(_config: &Self::Config, _common: &Common, _llm: &LlmConfig) -> Vec<Fault> {
        Vec::new()
    }

    /// What is sound in those files and nevertheless weaker than it may look, each `key: why`. `--check` prints it.
    #[must_use]
    fn warn_files(_common: &Common) -> Vec<String> {
        Vec::new()
    }

    /// Does the work. Returns when [`Shell::shutdown`] was requested and everything in flight is finished.
    fn serve(shell: Shell<Self::Config>) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Everything that a service gets from its process.
pub struct Shell<C> {
    /// The service's own section.
    pub config: C,
    /// The shared sections.
    pub common: Common,
    /// Section `[llm]`; its defaults where the service asks no models.
    pub llm: LlmConfig,
    /// The bus; its topology is there, unless the service [begins alone](Service::begins_alone).
    pub bus: Bus,
    /// This replica's id, unique among all processes.
    pub instance: String,
    /// The clock.
    pub clock: SharedClock,
    /// Where new ids come from.
    pub ids: SharedIds,
    /// The request to stop.
    pub shutdown: Shutdown,
    /// Where the service says how its parts are.
    pub health: Health,
    /// Where running processes of this machine announce themselves, if anywhere.
    pub run_dir: Option<PathBuf>,
    pub(super) announcement: Announcement,
}

impl<C: std::fmt::Debug> std::fmt::Debug for Shell<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shell = f.debug_struct("Shell");
        shell
            .field("instance", &self.instance)
            .field("config", &self.config)
            .field("common", &self.common);
        shell.finish_non_exhaustive()
    }
}

impl<C> Shell<C> {
    /// Tells other processes of this machine, by `{run_dir}/{service}-{instance}.json`, that `what` listens at `address`.
    pub fn announce(&self, what: &str, address: SocketAddr) {
        tracing::info!(what, %address, "listening");
        self.announcement.add(what, address);
    }
}
