//! Wiring: claims → sessions → ledger → replies, with the sweeper and the quarantine beside.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use shared::process::{Service, Shell};

use crate::broker::Broker;
use crate::config::BrokerConfig;
use crate::personas::Personas;
use crate::{claims, feed, quarantine, sweeper};

/// The broker as a process.
#[derive(Debug, Clone, Copy)]
pub struct BrokerService;

impl Service for BrokerService {
    const NAME: &'static str = "broker-svc";
    const SECTION: &'static str = "broker";
    const ASKS_MODELS: bool = true;
    type Config = BrokerConfig;

    fn check(config: &BrokerConfig) -> Vec<String> {
        config.faults()
    }

    async fn serve(shell: Shell<BrokerConfig>) -> anyhow::Result<()> {
        let personas = personas(&shell.common.files.personas)?;
        let drain = Duration::from_millis(shell.common.telemetry.drain_timeout_ms);
        let Shell {
            config,
            bus,
            instance,
            clock,
            shutdown,
            health,
            ..
        } = shell;
        let broker = Arc::new(Broker::new(bus, clock, instance, config, personas, shutdown, drain));
        let beside = [
            tokio::spawn(feed::serve(Arc::clone(&broker))),
            tokio::spawn(sweeper::serve(Arc::clone(&broker))),
            tokio::spawn(quarantine::watch(Arc::clone(&broker))),
        ];
        health.set("claims", true, "pulling");
        claims::serve(&broker).await.context("claims cannot be pulled")?;
        for task in beside {
            task.await.context("a task beside the claims ended badly")?;
        }
        Ok(())
    }
}

/// Reads `personas.yaml`; an empty path is an empty file.
fn personas(path: &str) -> anyhow::Result<Personas> {
    if path.is_empty() {
        return Ok(Personas::default());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("files.personas: {path} cannot be read"))?;
    Personas::parse(&text).with_context(|| format!("files.personas: {path}"))
}
