//! `RECEIPTS` → `deliveries`: the state of each delivery.

use rusqlite::{Connection, params};

use super::json_text;
use crate::model::receipt::{AttemptOutcome, Receipt, ReceiptStep};

/// State of a delivery according to one receipt.
struct ReceiptStanding<'a> {
    status: &'static str,
    attempts: u32,
    platform_ids: &'a [Vec<String>],
    parts: Option<u32>,
    reason: Option<&'a str>,
}

fn receipt_standing(step: &ReceiptStep) -> ReceiptStanding<'_> {
    let plain = |status, attempts| ReceiptStanding {
        status,
        attempts,
        platform_ids: &[],
        parts: None,
        reason: None,
    };

    match step {
        ReceiptStep::Planned { first: _, parts: _ } => plain("attempting", 0),
        ReceiptStep::Preview { message: _, closed: _ } => plain("preview", 0),
        ReceiptStep::AttemptStarted {
            attempt, platform_ids, ..
        } => ReceiptStanding {
            platform_ids,
            ..plain("attempting", *attempt)
        },
        ReceiptStep::AttemptFinished {
            attempt,
            part: _,
            platform_ids,
            unconfirmed: _,
            uncounted: _,
            plan: _,
            outcome,
        } => match outcome {
            AttemptOutcome::Done => ReceiptStanding {
                platform_ids,
                ..plain("attempting", *attempt)
            },
            AttemptOutcome::Retry { after_ms: _, reason } => ReceiptStanding {
                platform_ids,
                reason: Some(reason),
                ..plain("retrying", *attempt)
            },
            AttemptOutcome::Limited { after_ms: _, reason } => ReceiptStanding {
                platform_ids,
                reason: Some(reason),
                ..plain("limited", *attempt)
            },
            AttemptOutcome::Refused { reason } => ReceiptStanding {
                reason: Some(reason),
                ..plain("refused", *attempt)
            },
        },
        ReceiptStep::Delivered {
            attempts,
            parts,
            platform_ids,
            unconfirmed: _,
            live: _,
            plan: _,
        } => ReceiptStanding {
            platform_ids,
            parts: Some(*parts),
            ..plain("delivered", *attempts)
        },
        ReceiptStep::GaveUp { attempts, reason } => ReceiptStanding {
            reason: Some(reason),
            ..plain("gave_up", *attempts)
        },
        ReceiptStep::DeniedByPolicy { rule } => ReceiptStanding {
            reason: Some(rule),
            ..plain("denied_by_policy", 0)
        },
    }
}

/// Writes `receipt`. A later receipt replaces the state of an earlier one; known platform ids and the last reason
/// stay.
pub(super) fn write(connection: &Connection, receipt: &Receipt) -> Result<(), rusqlite::Error> {
    let standing = receipt_standing(&receipt.step);
    let platform_ids: Vec<&String> = standing.platform_ids.iter().flatten().collect();

    // Receipts without ids leave those of earlier parts.
    connection
        .prepare_cached(
            "INSERT INTO deliveries(id, turn_id, channel, status, platform_ids, updated_at, started_at, attempts, parts, reason, event_id)
             VALUES(?1,?1,?2,?3,?4,?5,?5,?6,?7,?8,?9)
             ON CONFLICT(id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at,
               platform_ids = CASE WHEN excluded.platform_ids = '[]' THEN platform_ids ELSE excluded.platform_ids END,
               attempts = max(attempts, excluded.attempts), parts = coalesce(excluded.parts, parts),
               reason = coalesce(excluded.reason, reason)",
        )?
        .execute(params![
            receipt.delivery.to_string(),
            receipt.target.channel,
            standing.status,
            json_text(&platform_ids),
            receipt.at.0,
            standing.attempts,
            standing.parts,
            standing.reason,
            receipt.causation.event.as_str(),
        ])?;

    Ok(())
}
