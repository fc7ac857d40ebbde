//! Reactions by which an account shows what becomes of a message: one when a turn that answers it begins, another one when
//! the answer is sent, or a third one when the turn has failed. If nothing follows, the first one is taken back.
//!
//! The owner of the destination's partition makes them, as it does typing. They are worth no delivery, and none is
//! recorded. A call that fails is not made again; only one that the platform limits is, once a turn is over, for half a
//! minute. A replica that follows, or starts again, makes at most one call more, which the platform takes for the same
//! reaction. Source: `docs/design/channels.md` §2.6.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::partition::PartitionLease;
use shared::clock::pause;
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::{DEFAULT_ACCOUNT, EventId};
use shared::model::live::WritingBeat;
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::platform::policy::AcknowledgePolicy;
use shared::wire::headers::TraceCarrier;
use shared::wire::unknown::UnknownFields;
use tokio::sync::OwnedSemaphorePermit;

use crate::attempt::{CallOutcome, Refusal};
use crate::changed_message::received_message;
use crate::channel::{Acknowledgement, MessageReaction, SendRequest};
use crate::destination::partition_of;
use crate::effects::DelivererContext;
use crate::marked_turns::{AccountMarks, MarkStage};
use crate::outbound::sent_event_id;
use crate::plan::MessagePart;

/// Interval at which the account is asked for a call that no message needs, and the number of times.
const ASK_EVERY: Duration = Duration::from_millis(500);
const MAX_ASKED: u32 = 60;

/// What becomes of a message whose turn is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageEnd {
    /// Its answer was sent.
    Answered,
    /// Its turn has failed, or its answer cannot be sent.
    Failed,
    /// Its turn has no reply.
    Unanswered,
}

/// Marks the message that the turn of `beat` answers as taken, once, if its account does that and this replica owns the
/// destination.
pub fn show_taken(outfit: &Arc<DelivererContext>, beat: &WritingBeat) {
    let Some(taken) = policy_of(outfit, &beat.target).and_then(|found| found.policy.taken.clone()) else {
        return;
    };
    if outfit.typing.was_sent(beat.turn) || outfit.marked_turns.knows(beat.turn) {
        return;
    }
    let Some(reply) = beat_reply(outfit, beat) else { return };
    let Some(lease) = outfit.typing.lease_of(partition_of(&beat.target)) else {
        return;
    };

    // The next beat asks again.
    let Some((marking, slot)) = Marking::begin(outfit, reply, lease) else {
        return;
    };
    if !marking.is_admitted() {
        return;
    }
    let mark = outfit.marked_turns.remember(beat.turn);
    tokio::spawn(async move {
        let _slot = slot;
        let stage = mark.lock().await;
        // A turn that was answered, or is over, is not taken any more.
        if *stage == MarkStage::Running && !marking.outfit.typing.was_sent(marking.reply.turn) {
            let taken = MessageReaction {
                emoji: &taken,
                removed: false,
            };
            let _is_limited = marking.react(taken).await;
        }
    });
}

/// Shows that `reply` was sent, which is noted so, if its account does that.
pub(crate) fn show_sent(outfit: &Arc<DelivererContext>, reply: &Reply, lease: &PartitionLease) {
    let end = if reply.failed {
        MessageEnd::Failed
    } else {
        MessageEnd::Answered
    };
    show_end(outfit, reply.clone(), lease.clone(), end);
}

/// Shows that `reply` cannot be sent, if its account does that.
pub(crate) fn show_given_up(outfit: &Arc<DelivererContext>, reply: &Reply, lease: &PartitionLease) {
    show_end(outfit, reply.clone(), lease.clone(), MessageEnd::Failed);
}

/// Shows that `reply` is not sent, as the send policy says, if its message was marked as taken: a beat does not tell all by
/// which the policy denies. A former owner of the destination may have marked it, which this replica does not know.
pub(crate) fn show_denied(outfit: &Arc<DelivererContext>, reply: &Reply, lease: &PartitionLease) {
    let may_be_marked = || {
        let beat = WritingBeat {
            turn: reply.turn,
            target: reply.delivery_context.clone(),
            preview: None,
            is_over: true,
        };
        let partition = partition_of(&reply.delivery_context);
        outfit.typing.is_older(reply.turn, partition) && beat_reply(outfit, &beat).is_some()
    };
    if outfit.marked_turns.knows(reply.turn) || may_be_marked() {
        show_end(outfit, reply.clone(), lease.clone(), MessageEnd::Unanswered);
    }
}

/// Shows that the turn of `beat`, which is its last one, has no reply, if its account does that and this replica owns the
/// destination.
pub fn show_over(outfit: &Arc<DelivererContext>, beat: &WritingBeat) {
    let Some(reply) = beat_reply(outfit, beat) else { return };
    if let Some(lease) = outfit.typing.lease_of(partition_of(&beat.target)) {
        show_end(outfit, reply, lease, MessageEnd::Unanswered);
    }
}

/// Shows on the message that `reply` answers how it ended.
fn show_end(outfit: &Arc<DelivererContext>, reply: Reply, lease: PartitionLease, end: MessageEnd) {
    let found = policy_of(outfit, &reply.delivery_context);
    let changes = found.map(|found| end_changes(found, end)).unwrap_or_default();
    // A card, a change or a preview is not the turn's answer.
    let is_answer = reply.id == reply.turn && reply.action.is_none();
    if changes.is_empty() || !is_answer || answered_message(&reply.delivery_context).is_none() {
        return;
    }
    let Some((marking, slot)) = Marking::begin(outfit, reply, lease) else {
        return;
    };

    let mark = outfit.marked_turns.remember(marking.reply.turn);
    tokio::spawn(async move {
        let _slot = slot;
        let mut stage = mark.lock().await;
        let was = std::mem::replace(&mut *stage, MarkStage::Over);
        // The last beat may come again, and says nothing new.
        if was == MarkStage::Over && end == MessageEnd::Unanswered {
            return;
        }

        for (emoji, removed) in &changes {
            let removed = *removed;
            marking.react_in_time(MessageReaction { emoji, removed }).await;
        }
    });
}

/// Returns the reactions that show `end` on an account with the policy `found`, in order: each with whether it is removed.
fn end_changes(found: Acknowledgement<'_>, end: MessageEnd) -> Vec<(String, bool)> {
    let AcknowledgePolicy {
        taken,
        answered,
        failed,
    } = found.policy;
    let added = match end {
        MessageEnd::Answered => answered.as_ref(),
        MessageEnd::Failed => failed.as_ref(),
        MessageEnd::Unanswered => None,
    };

    // Without a sign of its own for answers, an account leaves the first one. A platform may replace it by itself.
    let stays = match added {
        None => end == MessageEnd::Answered,
        Some(added) => found.is_replaced || taken.as_ref() == Some(added),
    };
    let removed = taken.as_ref().filter(|_| !stays);
    let added = added.map(|emoji| (emoji.clone(), false));
    added
        .into_iter()
        .chain(removed.map(|emoji| (emoji.clone(), true)))
        .collect()
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

/// Returns the reply of the turn of `beat`, without what it will say; `None` if it answers no message, or is not sent.
fn beat_reply(outfit: &DelivererContext, beat: &WritingBeat) -> Option<Reply> {
    // After a restore an operator decides what leaves.
    if outfit.restored.is_some() {
        return None;
    }

    answered_message(&beat.target)?;
    let event = EventId::parse(beat.target.reply_to_id.as_deref()?).ok()?;
    let reply = Reply {
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
        failed: false,
        unknown: UnknownFields::default(),
    };
    outfit.policy.denying_rule(&reply).is_none().then_some(reply)
}

/// The reactions to the message that one reply answers.
struct Marking {
    outfit: Arc<DelivererContext>,
    reply: Reply,
    lease: PartitionLease,
    /// Bounds of the account.
    account: Arc<AccountMarks>,
}

impl Marking {
    /// Begins to mark the message that `reply` answers, whose partition is held by `lease`. Returns the right to make calls
    /// beside it; `None` if the account has too many under way.
    fn begin(
        outfit: &Arc<DelivererContext>,
        reply: Reply,
        lease: PartitionLease,
    ) -> Option<(Self, OwnedSemaphorePermit)> {
        let target = &reply.delivery_context;
        let name = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
        let account = outfit.marked_turns.account(&format!("{}:{name}", target.channel));
        let slot = account.take_slot()?;
        let marking = Self {
            outfit: Arc::clone(outfit),
            reply,
            lease,
            account,
        };
        Some((marking, slot))
    }

    /// Asks for a call that no message waits for.
    fn is_admitted(&self) -> bool {
        let target = &self.reply.delivery_context;
        let channel = self.outfit.channels.get(&target.channel);
        let pace = channel.and_then(|channel| channel.pace(target));
        !self.is_limited() && self.outfit.gates.admit_spare(target, pace)
    }

    fn is_limited(&self) -> bool {
        self.account.is_limited(self.outfit.clock.monotonic())
    }

    /// Makes `reaction` once the account's rate leaves room, and again if the platform limits it, for some time and as long
    /// as the partition is held.
    async fn react_in_time(&self, reaction: MessageReaction<'_>) {
        for _ in 0..MAX_ASKED {
            if !self.lease.is_live() || (self.is_admitted() && !self.react(reaction).await) {
                return;
            }
            // The answer's own calls have used the account's rate up.
            pause(ASK_EVERY).await;
        }
    }

    /// Makes `reaction`. Returns whether the platform limits it, so that it was not made.
    async fn react(&self, reaction: MessageReaction<'_>) -> bool {
        let (outfit, reply) = (&self.outfit, &self.reply);
        let target = &reply.delivery_context;
        let (Some(channel), Some(message), Ok(event_id)) = (
            outfit.channels.get(&target.channel),
            answered_message(target),
            sent_event_id(reply, 0),
        ) else {
            return false;
        };

        let _one = self.account.calls.lock().await;
        if self.is_limited() {
            return true;
        }
        if !self.lease.is_live() {
            return false;
        }

        let (part, carrier) = (MessagePart::default(), TraceCarrier::default());
        let shipment = SendRequest {
            reply,
            part: &part,
            parts: 1,
            event_id: &event_id,
            carrier: &carrier,
            now: outfit.clock.now(),
            lease: &self.lease,
            file: None,
        };
        let outcome = channel.react(&shipment, &message, reaction).await;
        self.note_outcome(&message, reaction, &outcome)
    }

    /// Notes the `outcome` of `reaction` to `message`. Returns whether the platform limits it.
    fn note_outcome(&self, message: &str, reaction: MessageReaction<'_>, outcome: &CallOutcome) -> bool {
        let MessageReaction { emoji, removed } = reaction;
        let limit = match outcome {
            CallOutcome::Accepted { .. } => return false,
            // A refused token stops the account, whichever call finds it; other outcomes hold no message back.
            CallOutcome::Reauth { .. } => {
                self.outfit.gates.note_outcome(&self.reply.delivery_context, outcome);
                return false;
            }
            CallOutcome::Limited { after, .. }
            | CallOutcome::Refused {
                refusal: Refusal::Passing { after: Some(after) },
                ..
            } => Some(*after),
            CallOutcome::Refused { .. }
            | CallOutcome::WindowClosed { .. }
            | CallOutcome::TooLarge { .. }
            | CallOutcome::Unformattable { .. }
            | CallOutcome::Unreachable { .. }
            | CallOutcome::Withheld => None,
        };

        if let Some(after) = limit {
            self.account.note_limit(after, self.outfit.clock.monotonic());
        }
        tracing::debug!(turn_id = %self.reply.turn, marked = message, emoji, removed, ?outcome, "a message was not marked");
        limit.is_some()
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

    #[test]
    fn what_was_taken_ends_as_the_account_shows_it() {
        let policy = |answered: Option<&str>, failed: Option<&str>| AcknowledgePolicy {
            taken: Some("eyes".to_owned()),
            answered: answered.map(str::to_owned),
            failed: failed.map(str::to_owned),
        };
        let shown = |policy: &AcknowledgePolicy, is_replaced: bool, end: MessageEnd| {
            let changes = end_changes(Acknowledgement { policy, is_replaced }, end).into_iter();
            let words = changes.map(|(emoji, removed)| if removed { format!("-{emoji}") } else { emoji });
            words.collect::<Vec<_>>().join(" ")
        };

        let all = policy(Some("ok"), Some("bad"));
        assert_eq!(shown(&all, false, MessageEnd::Answered), "ok -eyes");
        assert_eq!(shown(&all, true, MessageEnd::Answered), "ok");
        assert_eq!(shown(&all, false, MessageEnd::Failed), "bad -eyes");
        assert_eq!(shown(&all, true, MessageEnd::Failed), "bad");
        assert_eq!(shown(&all, true, MessageEnd::Unanswered), "-eyes");

        let first_alone = policy(None, None);
        assert_eq!(shown(&first_alone, false, MessageEnd::Answered), "", "it stays");
        for end in [MessageEnd::Failed, MessageEnd::Unanswered] {
            assert_eq!(shown(&first_alone, true, end), "-eyes");
        }
        let same = policy(Some("eyes"), None);
        assert_eq!(shown(&same, false, MessageEnd::Answered), "eyes");
        let nothing = AcknowledgePolicy::default();
        assert_eq!(shown(&nothing, false, MessageEnd::Failed), "");
    }
}
