//! The text that a conversation gets while an intent that was requested in it waits for the owner's approval. *Pure.*

use shared::model::approval::ConfirmationTerms;
use shared::model::dispatch::{DispatchCause, derived_ulid};
use shared::model::event::ParseEventIdError;
use shared::model::intent::{Intent, event_id};
use shared::model::reply::Reply;
use shared::wire::unknown::UnknownFields;

use super::firing::firing_hops;

/// Longest text of the parameters on a card, bytes of JSON.
const MAX_PARAMETERS: usize = 1_000;

/// Returns the card of `asked`, the approval of `intent`. The same approval always has a card with the same id. Returns
/// `None` if the intent was requested outside of a conversation.
///
/// # Errors
/// Never fails for an id made of these parts; the type of the event's id demands the check.
pub fn approval_card(intent: &Intent, asked: &ConfirmationTerms) -> Result<Option<Reply>, ParseEventIdError> {
    let place = intent.asked_in();
    if place.channel.is_empty() {
        return Ok(None);
    }

    let (record, at) = (&intent.intent, asked.requested_at);
    let id = derived_ulid(at, &["intent-card", &asked.request.id]);

    Ok(Some(Reply {
        id,
        turn: record.turn.unwrap_or(id),
        session: intent.target(),
        delivery_context: place.clone(),
        content: text(intent, asked),
        attachments: Vec::new(),
        interactive: None,
        causation: DispatchCause {
            event: event_id(record.id, at)?,
            hops: firing_hops(intent),
        },
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    }))
}

fn text(intent: &Intent, asked: &ConfirmationTerms) -> String {
    let record = &intent.intent;
    let instant = |at: shared::model::time::UnixMillis| {
        jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| at.to_string(), |at| format!("{at:.0}"))
    };

    let mut parameters = serde_json::Value::Object(record.parameters.clone()).to_string();
    if parameters.len() > MAX_PARAMETERS {
        parameters.truncate(parameters.floor_char_boundary(MAX_PARAMETERS));
        parameters.push_str("… [cut]");
    }

    let when = intent.due.map_or_else(|| record.schedule.to_string(), instant);
    let mut lines = vec![
        format!(
            "Approval needed: {} wants `{}`, {when}",
            asked.requested_by, record.kind
        ),
        parameters,
    ];

    if !record.reason.is_empty() {
        lines.push(format!("Why: {}", record.reason));
    }

    lines.push(format!(
        "To be decided by the owner, until {}.",
        instant(asked.request.expires_at)
    ));
    lines.push(format!("Decide: nexus intent approve {0} [--deny]", record.id));

    lines.join("\n")
}
