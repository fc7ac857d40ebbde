//! Stores the events of an account in JetStream, as often as it takes. One that can never be stored holds up none behind it.

use std::time::Duration;

use shared::bus::{Bus, PublishError};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::model::event::{Event, EventId};
use shared::process::Health;
use ulid::Ulid;

use crate::attachments::AttachmentFetcher;
use crate::encoded_event::EncodedEvent;
use crate::error::AcceptEventsError;
use crate::intake::{EventIntake, note_refused_event};
use crate::pairing::PairingStore;
use crate::trace::EventTraces;

/// Name of this service in dead letters.
pub(super) const SERVICE: &str = "adapter-svc";
/// Wait before something that failed is tried again.
pub(crate) const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Maximum time for which events wait for their files, whatever is configured.
const FILES_WITHIN: Duration = Duration::from_secs(10);
/// Maximum time for one try to note the files that are still to be fetched.
const NOTE_WITHIN: Duration = Duration::from_secs(5);

/// Another replica reads from the account, or this one may no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the account's lease is held by another replica")]
pub struct SourceFenced;

/// Parts of the process that sinks use. Clones share them.
#[derive(Debug, Clone)]
pub struct SinkContext {
    /// Bus of the watermarks.
    pub bus: Bus,
    /// Way to JetStream. A platform keeps unconfirmed updates, so events need no spool, and a replica that takes over
    /// finds all that its predecessor confirmed in the stream, in order.
    pub intake: EventIntake,
    /// Paired strangers, and those with a code.
    pub pairings: PairingStore,
    /// Files of messages.
    pub attachments: AttachmentFetcher,
    /// Clock of the process.
    pub clock: SharedClock,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Age from which an event is stored and fires nothing, in milliseconds.
    pub age_gate_ms: i64,
    /// Name of this run of the process, in watermarks.
    pub run: Ulid,
}

/// Stores events of one account.
#[derive(Debug)]
pub struct AccountEvents<'a> {
    /// Parts of the process.
    pub context: &'a SinkContext,
    /// Channel of the account.
    pub channel: &'static str,
    /// Name of the account.
    pub account: &'a str,
}

impl AccountEvents<'_> {
    /// Fetches the files of `events` before they are stored, because a file's address is void after a while, and notes those
    /// that are still to be fetched: without its note a file would be lost. `is_held` says whether this replica may go on.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if `is_held` says no before the files are noted.
    pub async fn fetch_files(
        &self,
        events: &mut [Event],
        is_held: impl Fn() -> bool + Send + Sync,
    ) -> Result<(), SourceFenced> {
        self.context.attachments.fetch_new(events, FILES_WITHIN).await;
        while let Err(error) = self.context.attachments.note_open(events, NOTE_WITHIN).await {
            let (channel, account) = (self.channel, self.account);
            let error = describe_error(&error);
            tracing::warn!(channel, account, error, "failed to note open files; retrying");
            if !is_held() {
                return Err(SourceFenced);
            }
            pause(TRY_AGAIN_AFTER).await;
        }
        Ok(())
    }

    /// Waits until JetStream has all of `events`, which came in `traces`. `is_held` says whether this replica may go on.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if `is_held` says no before they are stored.
    pub async fn store(
        &self,
        mut events: Vec<Event>,
        traces: &EventTraces,
        is_held: impl Fn() -> bool + Send + Sync,
    ) -> Result<(), SourceFenced> {
        while !events.is_empty() {
            let stored = self.context.intake.accept_traced(self.channel, &events, traces).await;
            let refused = match stored {
                Ok(()) => return Ok(()),
                Err(AcceptEventsError::NotStored { id, source }) if !source.may_pass() => {
                    let event = events.iter().find(|event| event.id == id);
                    self.dead_letter(event, traces, &source).await.then_some(id)
                }
                Err(error) => self.note_failure(&error),
            };

            if let Some(id) = refused {
                events.retain(|event| event.id != id);
                continue;
            }
            if !is_held() {
                return Err(SourceFenced);
            }
            pause(TRY_AGAIN_AFTER).await;
        }

        Ok(())
    }

    /// Notes that events were not stored because of `error`. Returns the id of one that never can be, so that those behind
    /// it are.
    fn note_failure(&self, error: &AcceptEventsError) -> Option<EventId> {
        let (channel, account) = (self.channel, self.account);
        let refused = note_refused_event(channel, account, error).cloned();
        if refused.is_none() {
            let error = describe_error(error);
            tracing::warn!(channel, account, error, "failed to store events; retrying");
        }

        refused
    }

    /// Makes a dead letter of an event that the server refused for good. Returns whether it is stored.
    async fn dead_letter(&self, event: Option<&Event>, traces: &EventTraces, error: &PublishError) -> bool {
        let bus = &self.context.bus;
        let encoded = event
            .map(|event| EncodedEvent::encode_event(event, bus.trust(), &traces.carrier_of(event), bus.max_payload()));
        let Some(Ok(encoded)) = encoded else { return false };

        let letter = encoded.dead_letter(SERVICE, error.to_string(), self.context.clock.now());
        match bus.dead_letter_record(letter).await {
            Ok(()) => true,
            Err(second) => {
                tracing::error!(error = describe_error(&second), event_id = %encoded.id, "failed to store a dead letter");
                false
            }
        }
    }
}
