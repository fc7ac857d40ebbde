//! Timers that fired → their owners, on any replica, each acked after its effects.
//!
//! A fired message may come twice, to two replicas at once, or days late: its owner's record decides what comes of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use shared::bus::{Bus, Incoming, PullOptions};
use shared::clock::SharedClock;
use shared::process::lifecycle::Shutdown;
use shared::wire::envelope::Wire;
use shared::wire::topology::streams;

/// As whose the dead letters of unreadable timers are.
pub const SERVICE: &str = "scheduler-svc";
/// Fired timers that one replica handles at once.
const AT_ONCE: usize = 256;
/// Wait before a timer whose handling failed is given out again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What the owner of timers does when one fires.
#[async_trait]
pub trait OnFire<T>: Send + Sync + 'static {
    /// Brings about what follows from `timer`; it may be told of the same timer again, elsewhere at the same time, or
    /// after it was withdrawn. Once this returns, all of it is durable.
    ///
    /// # Errors
    /// Anything that may pass: the timer is given out again.
    async fn fired(&self, timer: &T) -> anyhow::Result<()>;
}

/// Hands fired timers to their owner.
pub struct Fired<T> {
    bus: Bus,
    clock: SharedClock,
    consumer: &'static str,
    owner: Arc<dyn OnFire<T>>,
}

impl<T> std::fmt::Debug for Fired<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fired")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl<T: Wire + std::fmt::Debug + Send + Sync + 'static> Fired<T> {
    /// Those of `consumer` in `SCHEDULES`, to `owner`.
    #[must_use]
    pub fn new(bus: Bus, clock: SharedClock, consumer: &'static str, owner: Arc<dyn OnFire<T>>) -> Self {
        Self {
            bus,
            clock,
            consumer,
            owner,
        }
    }

    /// Hands out until `shutdown`, and then ends what is under way.
    pub async fn run(&self, shutdown: &Shutdown) {
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

    async fn handle(&self, incoming: Incoming) {
        let timer = match incoming.decode::<T>() {
            Ok(timer) => timer,
            Err(error) => return incoming.bury(&self.bus, SERVICE, &error, self.clock.now()).await,
        };
        match self.owner.fired(&timer).await {
            Ok(()) => {
                metrics::counter!("nexus_scheduler_timers_fired_total", "consumer" => self.consumer).increment(1);
                incoming.ack().await;
            }
            Err(error) => {
                tracing::warn!(
                    timer = ?timer,
                    subject = %incoming.subject,
                    error = format!("{error:#}"),
                    "fired timer is handled again"
                );

                incoming.nak(Some(RETRY_PAUSE)).await;
            }
        }
    }
}
