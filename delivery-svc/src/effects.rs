//! The durable effects of a delivery: receipts, sent events, dead letters. Each may be repeated: receipts are fenced
//! by their predecessor, and events and dead letters have deterministic ids.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::partition::PartitionLease;
use shared::bus::{Bus, OutgoingMessage, PublishError, StreamWitness};
use shared::clock::{SharedClock, SharedIds};
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::retry::RetrySchedule;
use shared::wire::headers::{CAUSATION, HOPS, TraceCarrier};
use shared::wire::held::HeldUntil;

use crate::attempt::Repetition;
use crate::calls::ProcessCalls;
use crate::change_events::change_event;
use crate::changed_message::find_message;
use crate::channel::{ChannelRegistry, ChannelTraits};
use crate::error::DeliverError;
use crate::file_parts::plan_with_files;
use crate::gate_table::GateTable;
use crate::job::DeliveryJob;
use crate::marked_turns::MarkedTurns;
use crate::outbound::sent_event;
use crate::outgoing_files::OutgoingFiles;
use crate::plan::{MessagePart, plan_parts};
use crate::policy::SendPolicy;
use crate::receipts::{PartitionReceipts, ReceiptWrite};
use crate::restore_gate::RestoreGate;
use crate::resume::SentPart;
use crate::shown_previews::SharedPreviews;
use crate::typing::SharedTyping;

/// The context that all deliveries of this process share.
#[derive(Debug)]
pub struct DelivererContext {
    /// Bus for all reads and writes.
    pub bus: Bus,
    /// Channels that this process serves, by name.
    pub channels: ChannelRegistry,
    /// When each account may call.
    pub gates: Arc<GateTable>,
    /// Calls that this process has made.
    pub calls: ProcessCalls,
    /// Conversations in which accounts show that they write.
    pub typing: SharedTyping,
    /// Turns whose messages were marked by reactions.
    pub marked_turns: MarkedTurns,
    /// Answers that are shown while they are made.
    pub previews: SharedPreviews,
    /// Instance name of this replica.
    pub instance: String,
    /// Maximum wait for a replica that started a call and does not respond.
    pub patience: Duration,
    /// Time after the start of a call for which its part may still appear, though a search does not find it.
    pub arrival_wait: Duration,
    /// Files that are sent.
    pub files: OutgoingFiles,
    /// Policy that decides which replies may be sent.
    pub policy: SendPolicy,
    /// Witness of the receipts' last known position.
    pub witness: StreamWitness,
    /// Gate for deliveries after a restore; `None` = no restore left any to be decided.
    pub restored: Option<RestoreGate>,
    /// Waits between the attempts of a call.
    pub schedule: RetrySchedule,
    /// Wait after a refused token.
    pub reauth_wait: Duration,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Source of the jitter's randomness.
    pub ids: SharedIds,
}

impl DelivererContext {
    /// Returns the parts of `reply` in the form and size of its account. A change of a message has one part.
    #[must_use]
    pub fn parts_of(&self, reply: &Reply) -> Vec<MessagePart> {
        match reply.action {
            Some(_) => self.whole_part(reply),
            None => {
                let traits = self.traits_of(reply);
                match traits.max_file_bytes {
                    Some(max) => plan_with_files(reply, traits.layout, max),
                    None => plan_parts(reply, traits.layout),
                }
            }
        }
    }

    /// Returns whether `reply` may have one part that is not its whole text.
    #[must_use]
    pub fn has_files(&self, reply: &Reply) -> bool {
        !reply.attachments.is_empty() && self.traits_of(reply).max_file_bytes.is_some()
    }

    /// Returns the only part of `reply`, with its whole text in the form of its account.
    #[must_use]
    pub fn whole_part(&self, reply: &Reply) -> Vec<MessagePart> {
        plan_parts(reply, self.traits_of(reply).layout.whole())
    }

    /// Returns the traits of the account to which `reply` is sent; the default if its channel does not exist.
    #[must_use]
    pub fn traits_of(&self, reply: &Reply) -> ChannelTraits {
        let target = &reply.delivery_context;
        let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
        let channel = self.channels.get(&target.channel);
        let traits = channel.map(|channel| channel.traits(account)).unwrap_or_default();
        match reply.action {
            // A change that is made again changes nothing more.
            Some(_) => ChannelTraits {
                repetition: Repetition::Recognised,
                finds_parts: false,
                ..traits
            },
            None => traits,
        }
    }
}

/// The effects of one delivery.
#[derive(Debug)]
pub(crate) struct DeliveryEffects<'a> {
    pub(crate) outfit: &'a Arc<DelivererContext>,
    pub(crate) receipts: &'a PartitionReceipts,
    pub(crate) lease: &'a PartitionLease,
    pub(crate) job: &'a DeliveryJob,
    pub(crate) parts: &'a [MessagePart],
    pub(crate) carrier: &'a TraceCarrier,
    /// Platform's id of the message that shows the beginning of the answer, and becomes its first part.
    pub(crate) preview: Option<&'a str>,
}

impl DeliveryEffects<'_> {
    /// Returns the current time.
    pub(crate) fn now(&self) -> UnixMillis {
        self.outfit.clock.now()
    }

    /// Returns the traits of the call for the part `index`. An edit of the preview has no further effect if it is made again.
    pub(crate) fn traits_of_part(&self, index: u32) -> ChannelTraits {
        let traits = self.outfit.traits_of(&self.job.reply);
        let is_edit = index == 0 && self.preview.is_some();
        if is_edit && self.parts.first().is_some_and(|part| part.file.is_none()) {
            return ChannelTraits {
                repetition: Repetition::Recognised,
                finds_parts: false,
                ..traits
            };
        }
        traits
    }

    /// Returns the time at which the delivery was stored, and could be called first.
    pub(crate) fn stored_at(&self) -> UnixMillis {
        UnixMillis(self.job.place.stored_at_ns / 1_000_000)
    }

    /// Returns the time since the delivery was stored.
    pub(crate) fn age(&self) -> Duration {
        let stored = self.stored_at();
        // A clock that was set back makes it older, so that nothing is taken for recognised that may not be.
        u64::try_from(self.now().since(stored)).map_or(Duration::MAX, Duration::from_millis)
    }

    /// Writes a receipt that `step` happened at `at`.
    pub(crate) async fn write_receipt(&self, at: UnixMillis, step: ReceiptStep) -> Result<ReceiptWrite, DeliverError> {
        Ok(self
            .receipts
            .write(self.job, &self.job.new_receipt(at, step), self.carrier)
            .await?)
    }

    /// Holds the delivery, because its outcome is unknown. Returns the operator's decision so far.
    pub(crate) async fn hold_delivery(&self) -> Result<HeldUntil, DeliverError> {
        Ok(self.outfit.bus.hold_message(&self.job.held_message(self.now())).await?)
    }

    /// Publishes the event of a sent part.
    pub(crate) async fn publish_event(&self, sent: &SentPart) -> Result<(), DeliverError> {
        let Some(part) = self.parts.iter().find(|part| part.index == sent.index) else {
            return Ok(());
        };
        let event = match &self.job.reply.action {
            None => {
                let has_files = self.parts.iter().any(|part| part.file.is_some());
                sent_event(&self.job.reply, part, sent, has_files)?
            }
            // The receipts have the message, or the change would not have been made.
            Some(action) => match find_message(&self.outfit.bus, self.job, action, self.now()).await? {
                Ok(message) => change_event(&self.job.reply, action, part, &message, sent)?,
                Err(error) => {
                    tracing::warn!(delivery_id = %self.job.reply.id, %error, "a changed message has no event");
                    return Ok(());
                }
            },
        };
        let out = OutgoingMessage::event(&event, self.outfit.bus.trust())
            .header(CAUSATION, self.job.reply.causation.event.as_str())
            .header(HOPS, event.hops.to_string())
            .carrier(self.carrier);
        self.tolerate_size(self.outfit.bus.publish(out).await.map(|_| ()))
    }

    /// Stores the delivery's dead letter.
    pub(crate) async fn dead_letter(&self, reason: String, attempts: u32) -> Result<(), DeliverError> {
        let letter = self.job.dead_letter(reason, attempts, self.now());
        self.tolerate_size(self.outfit.bus.dead_letter_record(letter).await)
    }

    /// Ignores the error of a message that is too large for the server, after logging it. Such a message can never be
    /// stored, and must not block the destination for ever.
    fn tolerate_size(&self, stored: Result<(), PublishError>) -> Result<(), DeliverError> {
        match stored {
            Err(error @ PublishError::TooLarge { .. }) => {
                let reply = &self.job.reply;
                metrics::counter!("nexus_delivery_oversize_total").increment(1);
                tracing::error!(
                    delivery_id = %reply.id, event_id = %reply.causation.event, session = %reply.session,
                    %error, "message is too large to store"
                );

                Ok(())
            }
            other => Ok(other?),
        }
    }
}
