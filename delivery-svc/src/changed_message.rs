//! The message that a reply changes instead of sending one: a sent one by the receipts of its delivery, a received one
//! by the id of its event.
//!
//! Only messages of the reply's own destination can be changed, and of sent ones only those of its session: an agent
//! that may write to a conversation has no right to what others have said there.

use shared::bus::{Bus, ReadStreamError};
use shared::model::approval::is_decision;
use shared::model::dispatch::DeliveryContext;
use shared::model::event::{DEFAULT_ACCOUNT, EventId};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::{Reply, ReplyAction};
use shared::model::time::{UnixMillis, millis_of};
use shared::wire::topology::{RECEIPTS_KEPT, streams};
use ulid::Ulid;

use crate::job::{DeliveryJob, changed_target};
use crate::outbound::{SENT_ADAPTER, sent_event_id_of};
use crate::resume::sent_part;

/// Number of receipts read at once.
const PAGE: usize = 500;

/// Maximum number of pages of receipts that are read for a message, and of their bytes.
const MAX_PAGES: u32 = 40;
const MAX_BYTES: usize = 32 * 1_024 * 1_024;

/// Maximum difference between the clocks of brokers and deliverers, in milliseconds.
const SKEW_MS: i64 = 60_000;

/// A message of the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedMessage {
    /// Id of its event.
    pub event: EventId,
    /// Delivery and part that sent it; `None` for a received one.
    pub sent: Option<(Ulid, u32)>,
    /// Platform's id of it.
    pub platform_id: String,
}

/// The reason why a message cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindMessageError {
    /// The id is not one of this conversation.
    #[error("message `{0}` is not one of this conversation")]
    Elsewhere(String),
    /// The message is not ours.
    #[error("message `{0}` was received: only sent messages can be edited or deleted")]
    Received(String),
    /// No receipt has the platform's id of the message.
    #[error("message `{0}` was not sent to this conversation, or too long ago")]
    Unsent(String),
    /// The message is a card of an approval.
    #[error("message `{0}` is a card of an approval, which its decision alone changes")]
    Card(String),
    /// Another session sent the message.
    #[error("message `{0}` was sent by another session")]
    OtherSession(String),
}

/// The parsed target of an action.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// A part of a delivery; `None` = its last one.
    Sent {
        delivery: Ulid,
        part: Option<u32>,
    },
    Received {
        platform_id: String,
    },
}

/// Returns the target of `action` of `reply`.
fn parse_target(reply: &Reply, action: &ReplyAction) -> Result<Target, FindMessageError> {
    let text = action.target();
    let elsewhere = || FindMessageError::Elsewhere(text.to_owned());
    let (adapter, rest) = text.split_once(':').ok_or_else(elsewhere)?;
    if adapter == SENT_ADAPTER {
        let (delivery, part) = match rest.split_once('/') {
            Some((delivery, part)) => (delivery, Some(part.parse().map_err(|_| elsewhere())?)),
            None => (rest, None),
        };
        let delivery = delivery.parse().map_err(|_| elsewhere())?;
        return Ok(Target::Sent { delivery, part });
    }

    let platform_id = received_message(&reply.delivery_context, text).ok_or_else(elsewhere)?;
    match action {
        ReplyAction::React { .. } => Ok(Target::Received { platform_id }),
        ReplyAction::Edit { .. } | ReplyAction::Delete { .. } => Err(FindMessageError::Received(text.to_owned())),
    }
}

/// Returns the platform's id of the received message whose event has the id `event`,
/// `{channel}:{account}/{chat}/{message}`; `None` if it is not one of the conversation of `to`.
pub(crate) fn received_message(to: &DeliveryContext, event: &str) -> Option<String> {
    let (adapter, rest) = event.split_once(':')?;
    let account = to.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let place = Some(rest).filter(|_| adapter == to.channel)?;
    let (chat, message) = place.strip_prefix(account)?.strip_prefix('/')?.split_once('/')?;
    let is_here = [&to.peer_id, &to.thread_id]
        .iter()
        .any(|at| at.as_deref() == Some(chat));
    let is_message = is_here && !message.is_empty() && !message.contains('/');
    is_message.then(|| format!("{chat}/{message}"))
}

/// Returns whether receipts of `delivery` can be stored at `now`: a model may name any id, and one of another time would
/// have the whole history of the destination read.
fn may_have_receipts(delivery: Ulid, now: UnixMillis) -> bool {
    let age = now.since(made_at(delivery));
    (-SKEW_MS..=millis_of(RECEIPTS_KEPT).saturating_add(SKEW_MS)).contains(&age)
}

/// Returns the time at which the id of `delivery` was made.
fn made_at(delivery: Ulid) -> UnixMillis {
    UnixMillis(i64::try_from(delivery.timestamp_ms()).unwrap_or(i64::MAX))
}

/// Returns the message that `action` of `job` changes at `now`, or the reason why there is none.
///
/// # Errors
/// Returns [`ReadStreamError`] if the receipts cannot be read.
pub async fn find_message(
    bus: &Bus,
    job: &DeliveryJob,
    action: &ReplyAction,
    now: UnixMillis,
) -> Result<Result<ChangedMessage, FindMessageError>, ReadStreamError> {
    let (delivery, part) = match parse_target(&job.reply, action) {
        Ok(Target::Sent { delivery, part }) => (delivery, part),
        Ok(Target::Received { platform_id }) => {
            let event = EventId::parse(action.target());
            let event = event.map_err(|_| FindMessageError::Elsewhere(action.target().to_owned()));
            return Ok(event.map(|event| ChangedMessage {
                event,
                sent: None,
                platform_id,
            }));
        }
        Err(error) => return Ok(Err(error)),
    };

    if !may_have_receipts(delivery, now) {
        return Ok(Err(FindMessageError::Unsent(action.target().to_owned())));
    }
    let receipt = find_receipt(bus, &job.destination.receipt_subject(), delivery).await?;
    Ok(message_of_receipt(job, action, part, receipt))
}

/// Returns the message that `receipt` has for `part` of its delivery.
fn message_of_receipt(
    job: &DeliveryJob,
    action: &ReplyAction,
    part: Option<u32>,
    receipt: Option<Receipt>,
) -> Result<ChangedMessage, FindMessageError> {
    let unsent = || FindMessageError::Unsent(action.target().to_owned());
    let receipt = receipt.ok_or_else(unsent)?;
    if receipt.session != job.reply.session {
        return Err(FindMessageError::OtherSession(action.target().to_owned()));
    }

    let changes_text = match action {
        ReplyAction::Edit { .. } | ReplyAction::Delete { .. } => true,
        ReplyAction::React { .. } => false,
    };
    // People decide by its words: an agent must not put others there.
    if receipt.card && changes_text && !is_decision(job.reply.interactive.as_ref()) {
        return Err(FindMessageError::Card(action.target().to_owned()));
    }

    let (parts, platform_ids) = match receipt.step {
        ReceiptStep::Delivered {
            parts, platform_ids, ..
        } => (Some(parts), platform_ids),
        ReceiptStep::AttemptStarted { platform_ids, .. } | ReceiptStep::AttemptFinished { platform_ids, .. } => {
            (None, platform_ids)
        }
        ReceiptStep::Planned { .. }
        | ReceiptStep::Preview { .. }
        | ReceiptStep::GaveUp { .. }
        | ReceiptStep::DeniedByPolicy { .. } => {
            return Err(unsent());
        }
    };
    let index = part.or_else(|| parts?.checked_sub(1)).ok_or_else(unsent)?;
    let sent = sent_part(index, receipt.at, &platform_ids, &[]);
    let platform_id = sent.platform_ids.into_iter().next().ok_or_else(unsent)?;
    Ok(ChangedMessage {
        event: sent_event_id_of(receipt.delivery, index).map_err(|_| unsent())?,
        sent: Some((receipt.delivery, index)),
        platform_id,
    })
}

/// Returns the receipt on `subject` that has the platform's ids of `delivery`: that of its end, or the last one before.
async fn find_receipt(bus: &Bus, subject: &str, delivery: Ulid) -> Result<Option<Receipt>, ReadStreamError> {
    // No receipt is older than its delivery.
    let since = made_at(delivery).plus(-SKEW_MS);
    let mut page = bus.history_since(streams::RECEIPTS, subject, since, PAGE).await?;

    if page.is_empty() {
        let newest = bus.last_on_subject(streams::RECEIPTS, subject).await?;
        // The replica that was read may lag behind: the leader knows.
        return match newest.filter(|newest| newest.published_at >= since) {
            None => Ok(None),
            Some(newest) => Err(ReadStreamError::Unavailable {
                stream: streams::RECEIPTS.to_owned(),
                detail: format!("a replica does not have the message {} yet", newest.sequence),
            }),
        };
    }

    let (mut last, mut from, mut bytes) = (None, 1, 0_usize);
    for _ in 0..MAX_PAGES {
        // The replica that was read may lag behind: the leader has the next receipt.
        if page.is_empty() {
            page.extend(bus.next_on_subject(streams::RECEIPTS, subject, from).await?);
        }
        let Some(through) = page.last().map(|stored| stored.sequence) else {
            return Ok(last);
        };

        let receipts = page.iter().filter_map(|stored| stored.decode::<Receipt>().ok());
        for receipt in receipts.filter(|receipt| receipt.delivery == delivery) {
            match receipt.step {
                ReceiptStep::Delivered { .. } => return Ok(Some(receipt)),
                ReceiptStep::AttemptStarted { .. } | ReceiptStep::AttemptFinished { .. } => last = Some(receipt),
                ReceiptStep::Planned { .. }
                | ReceiptStep::Preview { .. }
                | ReceiptStep::GaveUp { .. }
                | ReceiptStep::DeniedByPolicy { .. } => {}
            }
        }

        bytes += page.iter().map(|stored| stored.payload.len()).sum::<usize>();
        if bytes > MAX_BYTES {
            return Ok(last);
        }
        from = through + 1;
        page = bus.read_history(streams::RECEIPTS, subject, from, PAGE).await?;
    }

    Ok(last)
}

/// Returns whether another delivery has changed the words of the message that `job` changes, after a receipt of `job`.
///
/// # Errors
/// Returns [`ReadStreamError`] if the receipts cannot be read.
pub async fn has_newer_change(bus: &Bus, job: &DeliveryJob) -> Result<bool, ReadStreamError> {
    let Some(target) = changed_target(&job.reply) else {
        return Ok(false);
    };
    let (subject, since) = (job.destination.receipt_subject(), job.made_at().plus(-SKEW_MS));
    let mut page = bus.history_since(streams::RECEIPTS, &subject, since, PAGE).await?;
    let mut is_after = false;
    for _ in 0..MAX_PAGES {
        for receipt in page.iter().filter_map(|stored| stored.decode::<Receipt>().ok()) {
            if receipt.delivery == job.reply.id {
                is_after = true;
                continue;
            }
            let is_made = matches!(receipt.step, ReceiptStep::Delivered { .. });
            let is_same = receipt.changes.is_some_and(|other| names_same_message(target, &other));
            if is_after && is_made && is_same {
                return Ok(true);
            }
        }

        let Some(through) = page.last().map(|stored| stored.sequence) else {
            return Ok(false);
        };
        page = bus.read_history(streams::RECEIPTS, &subject, through + 1, PAGE).await?;
        // The replica that was read may lag behind: the leader has the next receipt.
        if page.is_empty() {
            page.extend(bus.next_on_subject(streams::RECEIPTS, &subject, through + 1).await?);
        }
    }
    Ok(false)
}

/// Returns whether the targets `one` and `other` are one message. A delivery without a part means its last one, which may
/// be any.
fn names_same_message(one: &str, other: &str) -> bool {
    let split = |target: &str| match target.split_once('/') {
        Some((delivery, part)) => (delivery.to_owned(), Some(part.to_owned())),
        None => (target.to_owned(), None),
    };
    let ((delivery, part), (of_other, part_of_other)) = (split(one), split(other));
    delivery == of_other && (part.is_none() || part_of_other.is_none() || part == part_of_other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::reply;

    const DELIVERY: Ulid = Ulid::from_parts(1_700_000_000_000, 9);

    fn parse(target: &str, edits: bool) -> Result<Target, FindMessageError> {
        let mut reply = reply("x");
        reply.delivery_context.channel = "telegram".to_owned();
        reply.delivery_context.account_id = Some("bot".to_owned());
        reply.delivery_context.peer_id = Some("-100".to_owned());
        let target = target.to_owned();
        let action = if edits {
            ReplyAction::Edit { target }
        } else {
            ReplyAction::React {
                target,
                emoji: "👍".to_owned(),
                removed: false,
            }
        };
        parse_target(&reply, &action)
    }

    #[test]
    fn ids_of_another_time_have_no_receipts() {
        let now = UnixMillis(1_700_000_000_000);
        let kept = u64::try_from(RECEIPTS_KEPT.as_millis()).expect("it fits");
        let at = |millis: u64| may_have_receipts(Ulid::from_parts(millis, 1), now);
        assert!(at(1_700_000_000_000) && at(1_700_000_050_000) && at(1_700_000_000_000 - kept));
        for wrong in [
            0,
            1,
            1_700_000_000_000 - kept - 61_000,
            1_700_000_061_000,
            (1 << 48) - 1,
        ] {
            assert!(!at(wrong), "{wrong}");
        }
    }

    #[test]
    fn sent_messages_are_named_by_delivery_and_part() {
        let sent = |part| {
            Ok(Target::Sent {
                delivery: DELIVERY,
                part,
            })
        };
        for edits in [true, false] {
            assert_eq!(parse(&format!("out:{DELIVERY}/2"), edits), sent(Some(2)));
            assert_eq!(parse(&format!("out:{DELIVERY}"), edits), sent(None));
        }
        for wrong in ["out:x/1", "out:", "x", "", &format!("out:{DELIVERY}/x")] {
            assert_eq!(parse(wrong, true), Err(FindMessageError::Elsewhere(wrong.to_owned())));
        }
    }

    #[test]
    fn a_message_is_named_with_and_without_its_part() {
        assert!(names_same_message("out:A/1", "out:A/1") && names_same_message("out:A", "out:A/1"));
        assert!(!names_same_message("out:A/1", "out:A/2") && !names_same_message("out:A", "out:B"));
    }

    #[test]
    fn received_messages_of_the_conversation_take_reactions_alone() {
        let here = "telegram:bot/-100/7";
        let platform_id = "-100/7".to_owned();
        assert_eq!(parse(here, false), Ok(Target::Received { platform_id }));
        assert_eq!(parse(here, true), Err(FindMessageError::Received(here.to_owned())));
        for wrong in [
            "telegram:bot/-101/7",
            "telegram:other/-100/7",
            "slack:bot/-100/7",
            "telegram:bot/-100/",
            "telegram:bot/-100/7/press/1",
        ] {
            assert_eq!(parse(wrong, false), Err(FindMessageError::Elsewhere(wrong.to_owned())));
        }
    }
}
