//! Publishing the due ticks, while the process runs.

use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage, PublishError, ReadStreamError};
use shared::clock::{SharedClock, pause};
use shared::model::event::{DEFAULT_ACCOUNT, ParseEventIdError};
use shared::process::lifecycle::ShutdownSignal;
use shared::process::trace::{carrier_of, root_span};
use shared::wire::headers::{HOPS, TraceCarrier};
use shared::wire::subject;
use shared::wire::topology::streams;
use tracing::Instrument as _;

use crate::tick::{EpochMinute, TICK_PEER, TIMER_CHANNEL, due_minutes, minute_of, tick_event};

/// Timeout of one publish, after which the due ticks are computed again.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause after a failed read or publish.
const REPAIR_PAUSE: Duration = Duration::from_millis(500);

/// A tick could not be published, or the last one could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PublishTickError {
    /// The last tick cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server rejects the tick, or does not answer.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The id is not valid; never for one with a number.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
}

/// Publisher of the ticks.
#[derive(Debug)]
pub struct TickPublisher {
    bus: Bus,
    clock: SharedClock,
    look_every: Duration,
    last: Option<EpochMinute>,
}

impl TickPublisher {
    /// Builds a ticker on `bus`, by `clock`, which is read every `look_every` and at each full minute.
    #[must_use]
    pub const fn new(bus: Bus, clock: SharedClock, look_every: Duration) -> Self {
        Self {
            bus,
            clock,
            look_every,
            last: None,
        }
    }

    /// Publishes the due ticks until `shutdown`: at the start those that an outage left out, then each minute's tick
    /// right after the minute begins.
    pub async fn run(mut self, shutdown: &ShutdownSignal) {
        self.read_last_tick(shutdown).await;

        while !shutdown.is_requested() {
            let wait = match self.publish_due().await {
                Ok(()) => self.until_next(),
                Err(error) => {
                    tracing::warn!(%error, last_minute = self.last.map(|last| last.0), "failed to publish a tick");
                    REPAIR_PAUSE
                }
            };

            tokio::select! {
                () = pause(wait) => {}
                () = shutdown.requested() => {}
            }
        }
    }

    /// Reads the last tick that any replica published.
    async fn read_last_tick(&mut self, shutdown: &ShutdownSignal) {
        while !shutdown.is_requested() {
            match last_published(&self.bus).await {
                Ok(last) => {
                    self.last = last;
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read the last tick; retrying");
                    pause(REPAIR_PAUSE).await;
                }
            }
        }
    }

    async fn publish_due(&mut self) -> Result<(), PublishTickError> {
        for minute in due_minutes(self.last, self.clock.now()) {
            let span = root_span("scheduler.tick");
            let carrier = carrier_of(&span, &TraceCarrier::default());
            span.record(
                "event_id",
                tracing::field::display(&tick_event(minute, minute.start_time())?.id),
            );
            self.publish(minute, &carrier).instrument(span).await?;
            self.last = Some(minute);
        }
        Ok(())
    }

    async fn publish(&self, minute: EpochMinute, carrier: &TraceCarrier) -> Result<(), PublishTickError> {
        let now = self.clock.now();
        let event = tick_event(minute, now)?;
        let out = OutgoingMessage::event(&event, self.bus.trust())
            .header(HOPS, event.hops.to_string())
            .carrier(carrier);
        let published = self.bus.publish_once(&out, PUBLISH_TIMEOUT).await?;
        let late_ms = now.since(event.timestamp);
        tracing::debug!(event_id = %event.id, late_ms, duplicate = published.duplicate, "tick published");

        let outcome = if published.duplicate {
            "another_was_first"
        } else {
            "stored"
        };
        metrics::counter!("nexus_scheduler_ticks_total", "outcome" => outcome).increment(1);

        Ok(())
    }

    fn until_next(&self) -> Duration {
        let left = EpochMinute::until_next(self.clock.now());
        Duration::from_millis(left.unsigned_abs()).min(self.look_every)
    }
}

/// Returns the newest tick in `EVENTS`, from the leader.
async fn last_published(bus: &Bus) -> Result<Option<EpochMinute>, ReadStreamError> {
    let place = format!(
        "nexus.ev.*.{}.{}.{}",
        subject::token(TIMER_CHANNEL),
        subject::token(DEFAULT_ACCOUNT),
        subject::token(TICK_PEER)
    );

    let stored = bus.last_on_subject(streams::EVENTS, &place).await?;
    // An event there from any other origin is no tick.
    let event = stored.and_then(|stored| stored.read_event(bus.trust()).ok());

    Ok(event.and_then(|event| minute_of(&event)))
}
