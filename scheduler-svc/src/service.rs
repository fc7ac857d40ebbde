//! Clock → due minutes → tick events.

use std::sync::Arc;
use std::time::Duration;

use shared::process::{Service, Shell};

use crate::config::SchedulerConfig;
use crate::ticker::Ticker;

/// The scheduler: what happens because time passes.
#[derive(Debug)]
pub struct SchedulerService;

impl Service for SchedulerService {
    const NAME: &'static str = "scheduler-svc";
    const SECTION: &'static str = "scheduler";
    type Config = SchedulerConfig;

    fn check(config: &Self::Config) -> Vec<String> {
        config.faults()
    }

    async fn serve(shell: Shell<Self::Config>) -> anyhow::Result<()> {
        if !shell.config.ticks {
            shell.shutdown.requested().await;
            return Ok(());
        }
        let look_every = Duration::from_millis(shell.config.look_every_ms);
        Ticker::new(shell.bus.clone(), Arc::clone(&shell.clock), look_every)
            .run(&shell.shutdown)
            .await;
        Ok(())
    }
}
