//! The intake: every source passes its events to it, and `adapter.accept` selects their destination.

use shared::bus::Bus;
use shared::model::event::{Event, EventId};
use shared::wire::headers::TraceCarrier;

use crate::encoded_event::{EncodedEvent, NoteStep};
use crate::error::AcceptEventsError;
use crate::outbox::EventSpool;
use crate::publisher::SpoolPublisher;
use crate::trace::EventTraces;

/// The destination of accepted events. Clones share it.
#[derive(Debug, Clone)]
pub struct EventIntake {
    bus: Bus,
    mode: AcceptMode,
}

/// The destination according to `adapter.accept`.
#[derive(Debug, Clone)]
enum AcceptMode {
    Spool(EventSpool),
    Stream(SpoolPublisher),
}

impl EventIntake {
    /// Returns an intake that accepts events once they are on this host's disk.
    #[must_use]
    pub const fn to_spool(bus: Bus, outbox: EventSpool) -> Self {
        Self {
            bus,
            mode: AcceptMode::Spool(outbox),
        }
    }

    /// Returns an intake that accepts events once the stream has them.
    #[must_use]
    pub const fn to_stream(bus: Bus, publisher: SpoolPublisher) -> Self {
        Self {
            bus,
            mode: AcceptMode::Stream(publisher),
        }
    }

    /// Waits until all of `events` are durable.
    ///
    /// # Errors
    /// Returns [`AcceptEventsError`]. The caller still has the events and may send them again.
    pub async fn accept_events(
        &self,
        source: &'static str,
        events: &[Event],
        carrier: &TraceCarrier,
    ) -> Result<(), AcceptEventsError> {
        self.accept_unnoted(source, events, &[], carrier).await
    }

    /// As [`EventIntake::accept_events`], each event in its own trace of `traces`.
    ///
    /// # Errors
    /// Returns the errors of [`EventIntake::accept_events`].
    pub async fn accept_traced(
        &self,
        source: &'static str,
        events: &[Event],
        traces: &EventTraces,
    ) -> Result<(), AcceptEventsError> {
        let encoded = self.encode_events(events, |event| traces.carrier_of(event))?;
        self.accept_encoded(source, events, encoded).await
    }

    /// Returns whether events are accepted although NATS may be away.
    #[must_use]
    pub const fn keeps_on_disk(&self) -> bool {
        match self.mode {
            AcceptMode::Spool(_) => true,
            AcceptMode::Stream(_) => false,
        }
    }

    /// As [`EventIntake::accept_events`]. `steps` are made before the events are published, one for each; those that are
    /// missing are none. The spool alone keeps them.
    ///
    /// # Errors
    /// Returns the errors of [`EventIntake::accept_events`].
    pub async fn accept_unnoted(
        &self,
        source: &'static str,
        events: &[Event],
        steps: &[NoteStep],
        carrier: &TraceCarrier,
    ) -> Result<(), AcceptEventsError> {
        let mut encoded = self.encode_events(events, |_| carrier.clone())?;
        for (encoded, step) in encoded.iter_mut().zip(steps) {
            encoded.note = *step;
        }
        self.accept_encoded(source, events, encoded).await
    }

    /// Encodes `events`, whose traces `carrier_of` says.
    fn encode_events(
        &self,
        events: &[Event],
        carrier_of: impl Fn(&Event) -> TraceCarrier,
    ) -> Result<Vec<EncodedEvent>, AcceptEventsError> {
        // A single event names the span; several would make it unreadable.
        if let [event] = events {
            tracing::Span::current().record("event_id", event.id.as_str());
        }

        let max_payload = self.bus.max_payload();
        // The client knows no limit before its first connection.
        let max_payload = if max_payload == 0 { usize::MAX } else { max_payload };

        // All events are encoded first: one that cannot be stored refuses the whole request.
        let encode =
            |event: &Event| EncodedEvent::encode_event(event, self.bus.trust(), &carrier_of(event), max_payload);
        events.iter().map(encode).collect()
    }

    /// Waits until `encoded`, the messages of `events`, are durable.
    async fn accept_encoded(
        &self,
        source: &'static str,
        events: &[Event],
        encoded: Vec<EncodedEvent>,
    ) -> Result<(), AcceptEventsError> {
        self.keep(encoded).await?;

        metrics::counter!("nexus_adapter_accepted_total", "source" => source).increment(events.len() as u64);

        for event in events {
            tracing::debug!(event_id = %event.id, source, "event accepted");
        }

        Ok(())
    }

    /// Waits until all of `encoded` are durable.
    async fn keep(&self, encoded: Vec<EncodedEvent>) -> Result<(), AcceptEventsError> {
        match &self.mode {
            AcceptMode::Spool(outbox) => outbox.store_events(encoded).await,
            AcceptMode::Stream(publisher) => publisher.publish_all(encoded).await,
        }
    }

    /// Makes the messages of `encoded` durable, which bring a platform's posts for `account` of `channel` to the account's
    /// holder. An event that can never be kept, the error of `encoded`, is counted and passed over.
    ///
    /// # Errors
    /// Returns [`AcceptEventsError`] if another post may succeed.
    pub async fn accept_queued(
        &self,
        channel: &'static str,
        account: &str,
        encoded: Result<Vec<EncodedEvent>, AcceptEventsError>,
    ) -> Result<(), AcceptEventsError> {
        let kept = match encoded {
            Ok(encoded) => self.keep(encoded).await,
            Err(error) => Err(error),
        };
        pass_over(channel, account, kept)
    }

    /// Makes `events` durable that a platform has posted for `account` of `channel`, as [`EventIntake::accept_unnoted`]
    /// does. Those that can never be stored are counted and passed over: they would be refused each time that the platform
    /// posts them.
    ///
    /// # Errors
    /// Returns the errors of [`EventIntake::accept_unnoted`] after which another post may succeed.
    pub async fn accept_posted(
        &self,
        channel: &'static str,
        account: &str,
        (events, steps): (&[Event], &[NoteStep]),
        carrier: &TraceCarrier,
    ) -> Result<(), AcceptEventsError> {
        let accepted = self.accept_unnoted(channel, events, steps, carrier).await;
        pass_over(channel, account, accepted)
    }
}

/// Counts and passes over a posted event of `account` of `channel`, if `accepted` says that it can never be stored.
fn pass_over(
    channel: &'static str,
    account: &str,
    accepted: Result<(), AcceptEventsError>,
) -> Result<(), AcceptEventsError> {
    let Err(error) = accepted else { return Ok(()) };
    if note_refused_event(channel, account, &error).is_some() {
        return Ok(());
    }

    tracing::warn!(channel, account, %error, "failed to store events; the platform posts them again");
    Err(error)
}

/// Logs and counts the event of `account` of `channel` that can never be stored, if `error` names one. Returns its id.
pub fn note_refused_event<'a>(
    channel: &'static str,
    account: &str,
    error: &'a AcceptEventsError,
) -> Option<&'a EventId> {
    let id = error.refused_event()?;
    tracing::error!(channel, account, %error, "event refused");
    metrics::counter!("nexus_source_refused_total", "source" => channel, "reason" => "bounds").increment(1);
    Some(id)
}
