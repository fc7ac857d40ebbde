//! Reactions by which an account shows what becomes of a message: one when a turn that answers it begins, another one when
//! the answer is sent.
//!
//! The owner of the destination's partition makes them, as it does typing. They are worth no delivery: a call that fails is
//! not made again, and none is recorded. A replica that follows, or starts again, makes at most one call more, which the
//! platform takes for the same reaction. Source: `docs/design/channels.md` §2.6.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::partition::PartitionLease;
use shared::clock::pause;
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::{DEFAULT_ACCOUNT, EventId};
use shared::model::live::WritingBeat;
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::wire::headers::TraceCarrier;
use shared::wire::unknown::UnknownFields;

use crate::attempt::CallOutcome;
use crate::changed_message::received_message;
use crate::channel::{Acknowledgement, MessageReaction, SendRequest};
use crate::destination::partition_of;
use crate::effects::DelivererContext;
use crate::outbound::sent_event_id;
use crate::plan::MessagePart;

/// Interval at which the account is asked for a call that no message needs, and the number of times.
const ASK_EVERY: Duration = Duration::from_millis(500);
const MAX_ASKED: u32 = 60;

/// Marks the message that the turn of `beat` answers as taken, once, if its account does that and this replica owns the
/// destination.
pub fn show_taken(outfit: &Arc<DelivererContext>, beat: &WritingBeat) {
    let Some(taken) = policy_of(outfit, &beat.target).and_then(|found| found.policy.taken.clone()) else {
        return;
    };
    let Some(lease) = outfit.typing.lease_of(partition_of(&beat.target)) else {
        return;
    };
    // After a restore an operator decides what leaves. A turn that was answered is not taken any more.
    let is_over = outfit.restored.is_some() || outfit.typing.was_sent(beat.turn);
    if is_over || outfit.marked_turns.knows(beat.turn) {
        return;
    }
    let Some(reply) = beat_reply(beat) else { return };
    if outfit.policy.denying_rule(&reply).is_some() {
        return;
    }

    // The next beat asks again.
    let Some(slot) = outfit.marked_turns.take_slot() else {
        return;
    };
    if !admit(outfit, &beat.target) {
        return;
    }
    let lock = outfit.marked_turns.remember(beat.turn);
    let outfit = Arc::clone(outfit);
    tokio::spawn(async move {
        let _slot = slot;
        let _calls = lock.lock().await;
        if !outfit.typing.was_sent(reply.turn) {
            react(&outfit, &reply, &lease, &taken, false).await;
        }
    });
}

/// Marks the message that `reply` answers as answered, if its account does that. The reply was sent, and is noted so.
pub(crate) fn show_answered(outfit: &Arc<DelivererContext>, reply: &Reply, lease: &PartitionLease) {
    let Some(found) = policy_of(outfit, &reply.delivery_context) else {
        return;
    };
    let Some(answered) = found.policy.answered.clone() else {
        return;
    };
    let taken = found.policy.taken.clone().filter(|_| !found.is_replaced);
    let taken = taken.filter(|taken| *taken != answered);
    let is_message = answered_message(&reply.delivery_context).is_some();
    let Some(slot) = outfit.marked_turns.take_slot().filter(|_| is_message) else {
        return;
    };

    let lock = outfit.marked_turns.remember(reply.turn);
    let (outfit, reply, lease) = (Arc::clone(outfit), reply.clone(), lease.clone());
    tokio::spawn(async move {
        let _slot = slot;
        let _calls = lock.lock().await;
        // The answer's own calls have used the account's rate up.
        if await_admission(&outfit, &reply.delivery_context, &lease).await {
            react(&outfit, &reply, &lease, &answered, false).await;
        }
        if let Some(taken) = taken
            && await_admission(&outfit, &reply.delivery_context, &lease).await
        {
            react(&outfit, &reply, &lease, &taken, true).await;
        }
    });
}

/// Returns the reactions of the account of `target`.
fn policy_of<'a>(outfit: &'a DelivererContext, target: &DeliveryContext) -> Option<Acknowledgement<'a>> {
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    outfit.channels.get(&target.channel)?.acknowledgement(account)
}

/// Returns the platform's id of the message that a reply to `target` answers; `None` if it is a reaction, a press, or
/// none of the conversation.
fn answered_message(target: &DeliveryContext) -> Option<String> {
    received_message(target, target.reply_to_id.as_deref()?)
}

/// Returns the reply of the turn of `beat`, without what it will say; `None` if it answers no message.
fn beat_reply(beat: &WritingBeat) -> Option<Reply> {
    answered_message(&beat.target)?;
    let event = EventId::parse(beat.target.reply_to_id.as_deref()?).ok()?;
    Some(Reply {
        id: beat.turn,
        turn: beat.turn,
        // A beat does not say it.
        session: SessionRef {
            persona: String::new(),
            session: String::new(),
        },
        delivery_context: beat.target.clone(),
        content: String::new(),
        attachments: Vec::new(),
        interactive: None,
        causation: DispatchCause { event, hops: 0 },
        action: None,
        send: None,
        unknown: UnknownFields::default(),
    })
}

/// Asks for a call to `target` that no message waits for.
fn admit(outfit: &DelivererContext, target: &DeliveryContext) -> bool {
    let channel = outfit.channels.get(&target.channel);
    let pace = channel.and_then(|channel| channel.pace(target));
    outfit.gates.admit_spare(target, pace)
}

/// Asks for a call as [`admit`] does, for some time, as long as the partition is held.
async fn await_admission(outfit: &DelivererContext, target: &DeliveryContext, lease: &PartitionLease) -> bool {
    for _ in 0..MAX_ASKED {
        if !lease.is_live() {
            return false;
        }
        if admit(outfit, target) {
            return true;
        }
        pause(ASK_EVERY).await;
    }
    false
}

/// Adds `emoji` to the message that `reply` answers, or removes it.
async fn react(outfit: &DelivererContext, reply: &Reply, lease: &PartitionLease, emoji: &str, removed: bool) {
    let target = &reply.delivery_context;
    let (Some(channel), Some(message), Ok(event_id)) = (
        outfit.channels.get(&target.channel),
        answered_message(target),
        sent_event_id(reply, 0),
    ) else {
        return;
    };
    if !lease.is_live() {
        return;
    }

    let (part, carrier) = (MessagePart::default(), TraceCarrier::default());
    let shipment = SendRequest {
        reply,
        part: &part,
        parts: 1,
        event_id: &event_id,
        carrier: &carrier,
        now: outfit.clock.now(),
        lease,
        file: None,
    };
    let outcome = channel
        .react(&shipment, &message, MessageReaction { emoji, removed })
        .await;

    match &outcome {
        CallOutcome::Accepted { .. } => {}
        // A refused token stops the account whoever finds it; other outcomes hold no message back.
        CallOutcome::Reauth { .. } => outfit.gates.note_outcome(target, &outcome),
        CallOutcome::Limited { .. }
        | CallOutcome::Refused { .. }
        | CallOutcome::WindowClosed { .. }
        | CallOutcome::TooLarge { .. }
        | CallOutcome::Unformattable { .. }
        | CallOutcome::Unreachable { .. }
        | CallOutcome::Withheld => {
            tracing::debug!(turn_id = %reply.turn, marked = message, emoji, removed, ?outcome, "a message was not marked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_of_the_conversation_is_marked() {
        let marked = |to: &str| {
            answered_message(&DeliveryContext {
                channel: "telegram".to_owned(),
                account_id: Some("bot".to_owned()),
                peer_id: Some("77".to_owned()),
                thread_id: None,
                reply_to_id: Some(to.to_owned()),
            })
        };
        assert_eq!(marked("telegram:bot/77/5").as_deref(), Some("77/5"));
        for other in [
            "telegram:bot/78/5",
            "telegram:other/77/5",
            "slack:bot/77/5",
            "telegram:bot/77/5/reaction/1",
            "out:01ARZ3NDEKTSV4RRFFQ69G5FAV/0",
        ] {
            assert_eq!(marked(other), None, "{other}");
        }
    }
}
