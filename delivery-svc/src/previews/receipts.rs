//! What the receipts have of a preview.
//!
//! They are written with the destination's last sequence, so that of two owners one fails, and without the header of a copy,
//! so that they say nothing about the reply's delivery.

use shared::bus::{Bus, OutgoingMessage, PublishError, ReadStreamError};
use shared::model::dispatch::DeliveryContext;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::subject;
use shared::wire::topology::streams;
use ulid::Ulid;

/// Number of receipts read at once.
const PAGE: usize = 500;
/// Maximum number of pages that are read. A destination with more receipts since the turn began shows no preview.
const MAX_PAGES: u32 = 20;
/// Maximum difference between the clocks of brokers and deliverers, in milliseconds.
const SKEW_MS: i64 = 60_000;

/// The state of a turn's preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundPreview {
    /// There was none, and no delivery of the turn's reply has begun.
    None,
    /// It was about to be sent at this time, and its id was not noted.
    Opening(UnixMillis),
    /// The message with this id shows it.
    Shown(String),
    /// It is shown no more, or the reply has come before it.
    Ended,
}

/// Returns the state of the preview of `turn` for `target`, and the sequence of the destination's last receipt.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be read.
pub(super) async fn find_preview(
    bus: &Bus,
    target: &DeliveryContext,
    turn: Ulid,
) -> Result<(FoundPreview, u64), ReadStreamError> {
    let subject = subject::receipt(target);
    let last = bus.last_on_subject(streams::RECEIPTS, &subject).await?;
    let last = last.map_or(0, |last| last.sequence);

    let began = UnixMillis(i64::try_from(turn.timestamp_ms()).unwrap_or(i64::MAX)).plus(-SKEW_MS);
    let mut page = bus.history_since(streams::RECEIPTS, &subject, began, PAGE).await?;
    let (mut found, mut from) = (FoundPreview::None, 1);
    for _ in 0..MAX_PAGES {
        // The replica that was read may lag behind: the leader has the next receipt.
        if page.is_empty() {
            page.extend(bus.next_on_subject(streams::RECEIPTS, &subject, from).await?);
        }
        let Some(through) = page.last().map(|stored| stored.sequence) else {
            return Ok((found, last));
        };
        let receipts = page.iter().filter_map(|stored| stored.decode::<Receipt>().ok());
        for receipt in receipts.filter(|receipt| receipt.delivery == turn) {
            found = next_state(found, receipt);
        }
        if through >= last {
            return Ok((found, last));
        }
        from = through + 1;
        page = bus.read_history(streams::RECEIPTS, &subject, from, PAGE).await?;
    }
    Ok((FoundPreview::Ended, last))
}

/// Returns the state after `receipt`, if it was `found` before.
fn next_state(found: FoundPreview, receipt: Receipt) -> FoundPreview {
    match receipt.step {
        ReceiptStep::Preview { closed: true, .. } => FoundPreview::Ended,
        ReceiptStep::Preview { message: Some(id), .. } => FoundPreview::Shown(id),
        ReceiptStep::Preview { message: None, .. } => FoundPreview::Opening(receipt.at),
        // The reply makes the message whole, whichever it was.
        ReceiptStep::Planned { .. }
        | ReceiptStep::AttemptStarted { .. }
        | ReceiptStep::AttemptFinished { .. }
        | ReceiptStep::Delivered { .. }
        | ReceiptStep::GaveUp { .. }
        | ReceiptStep::DeniedByPolicy { .. } => match found {
            FoundPreview::None => FoundPreview::Ended,
            found @ (FoundPreview::Opening(_) | FoundPreview::Shown(_) | FoundPreview::Ended) => found,
        },
    }
}

/// Writes that the preview, which `reply` shows, is at `step` at `at`, behind the receipt `last`.
///
/// # Errors
/// Returns [`PublishError`]; [`PublishError::WrongLastSequence`] if another receipt came before.
pub(super) async fn write_preview(
    bus: &Bus,
    reply: &Reply,
    at: UnixMillis,
    step: ReceiptStep,
    last: u64,
) -> Result<u64, PublishError> {
    let receipt = Receipt {
        delivery: reply.turn,
        session: reply.session.clone(),
        target: reply.delivery_context.clone(),
        causation: reply.causation.clone(),
        at,
        card: false,
        changes: None,
        step,
    };
    let out = OutgoingMessage::new(subject::receipt(&reply.delivery_context), &receipt);
    let published = bus.publish(out.expect_last(last)).await?;
    Ok(published.sequence)
}
