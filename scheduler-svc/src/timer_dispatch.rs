//! Delivery of fired timers to their owners, on any replica, each acked after its effects.
//!
//! A fired message may arrive twice, at two replicas at once, or days late: its owner's record decides the outcome.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use shared::bus::{Bus, IncomingMessage, PullOptions};
use shared::clock::SharedClock;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::envelope::WireMessage;
use shared::wire::topology::streams;

/// Service name in the dead letters of unreadable timers.
pub const SERVICE: &str = "scheduler-svc";
/// Maximum number of fired timers that one replica handles at once.
const AT_ONCE: usize = 256;
/// Pause before a timer is redelivered whose handling failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Handler of the timers' owner.
#[async_trait]
pub trait OnFire<T>: Send + Sync + 'static {
    /// Executes the effects of `timer`. It may be called for the same timer again, on another replica at the same
    /// time, or after the timer was withdrawn. When this returns, all effects must be durable.
    ///
    /// # Errors
    /// Any error that may pass: the timer is redelivered.
    async fn handle_fired(&self, timer: &T) -> anyhow::Result<()>;
}

/// Passes fired timers to their owner.
pub struct TimerDispatcher<T> {
    bus: Bus,
    clock: SharedClock,
    consumer: &'static str,
    owner: Arc<dyn OnFire<T>>,
}

// By hand: owners of timers need no `Debug`, nor do timers.
impl<T> std::fmt::Debug for TimerDispatcher<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimerDispatcher")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl<T: WireMessage + std::fmt::Debug + Send + Sync + 'static> TimerDispatcher<T> {
    /// Builds the delivery of the timers of `consumer` in `SCHEDULES` to `owner`.
    #[must_use]
    pub fn new(bus: Bus, clock: SharedClock, consumer: &'static str, owner: Arc<dyn OnFire<T>>) -> Self {
        Self {
            bus,
            clock,
            consumer,
            owner,
        }
    }

    /// Delivers timers until `shutdown`, and then finishes those in progress.
    pub async fn run(&self, shutdown: &ShutdownSignal) {
        let options = PullOptions { batch: AT_ONCE };
        let mut pull = self.bus.pull(streams::SCHEDULES, self.consumer, options);

        let mut under_way = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.requested() => break,
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
                incoming = pull.next(), if under_way.len() < AT_ONCE => under_way.push(self.handle(incoming)),
            }
        }

        while under_way.next().await.is_some() {}
    }

    async fn handle(&self, incoming: IncomingMessage) {
        let timer = match incoming.decode::<T>() {
            Ok(timer) => timer,
            Err(error) => return incoming.dead_letter(&self.bus, SERVICE, &error, self.clock.now()).await,
        };
        match self.owner.handle_fired(&timer).await {
            Ok(()) => {
                metrics::counter!("nexus_scheduler_timers_fired_total", "consumer" => self.consumer).increment(1);
                incoming.ack().await;
            }
            Err(error) => {
                tracing::warn!(
                    timer = ?timer,
                    subject = %incoming.subject,
                    error = format!("{error:#}"),
                    "failed to handle a timer; retrying"
                );

                incoming.nak(Some(RETRY_PAUSE)).await;
            }
        }
    }
}
