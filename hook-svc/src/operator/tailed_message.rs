//! Messages of the streams as operators read them: an id, a sentence, and the whole as JSON. *Pure.*

use serde::Serialize;
use shared::bus::StoredMessage;
use shared::model::approval::SessionDecision;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::invocation::EventInvocations;
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::order::SessionOrder;
use shared::model::receipt::{AttemptOutcome, Receipt, ReceiptStep};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::headers::SCHEMA;
use shared::wire::operator::tail::TailedMessage;
use shared::wire::subject::{parse_session, untoken};
use shared::wire::topology::streams;

/// Maximum length of the sentence about a message, in bytes.
const MAX_TEXT: usize = 16 * 1_024;

/// Returns `stored`, a message of `stream`, as operators read it; its JSON is left out if it has more than `most` bytes.
pub(super) fn tailed_message(stream: &str, stored: &StoredMessage, most: usize) -> TailedMessage {
    let mut message = TailedMessage {
        stream: stream.to_owned(),
        sequence: stored.sequence,
        subject: stored.subject.clone(),
        at: stored.published_at,
        id: String::new(),
        text: String::new(),
        payload: None,
        left_out_bytes: None,
    };
    describe(&mut message, stored);
    let size = message
        .payload
        .as_ref()
        .and_then(|payload| serde_json::to_vec(payload).ok());
    if let Some(size) = size.map(|json| json.len()).filter(|size| *size > most) {
        message.left_out_bytes = Some(size);
        message.payload = None;
    }
    if message.text.len() > MAX_TEXT {
        message.text.truncate(message.text.floor_char_boundary(MAX_TEXT));
        message.text.push('…');
    }
    message
}

/// Returns whether `stored` has an outcome of the hook `hook`.
pub(super) fn is_of_hook(stored: &StoredMessage, hook: &str) -> bool {
    let record = stored.decode::<EventInvocations>();
    record.is_ok_and(|record| record.hooks.iter().any(|one| one.hook_id == hook))
}

/// Sets the id, the sentence and the JSON of `message`.
fn describe(message: &mut TailedMessage, stored: &StoredMessage) {
    match message.stream.as_str() {
        streams::EVENTS => decoded(message, stored, |event: &Event| {
            let text = format!("{} from {}: {}", event.direction.name(), event.from.id, event.content);
            (event.id.to_string(), text)
        }),
        streams::DISPATCHES if is_a(stored, SessionOrder::SCHEMA) => {
            decoded(message, stored, |order: &SessionOrder| {
                let text = format!("order {} to {} by {}", order.wanted.name(), order.target, order.by);
                (order.id.to_string(), text)
            });
        }
        streams::DISPATCHES if is_a(stored, SessionDecision::SCHEMA) => {
            decoded(message, stored, |told: &SessionDecision| {
                let text = format!("approval of {} was requested or decided", told.target);
                (told.approval.to_string(), text)
            });
        }
        streams::DISPATCHES => decoded(message, stored, |dispatch: &Dispatch| {
            let text = format!("{} to {} for {}", dispatch.hook_id, dispatch.target, dispatch.event_id);
            (dispatch.id.to_string(), text)
        }),
        streams::LEDGER => decoded(message, stored, |record: &LedgerRecord| {
            let kinds: Vec<String> = record.entries.iter().map(entry_kind).collect();
            (ledger_session(&stored.subject), kinds.join(", "))
        }),
        streams::RECEIPTS => decoded(message, stored, |receipt: &Receipt| {
            (receipt.delivery.to_string(), step_text(&receipt.step))
        }),
        streams::INVOCATIONS => decoded(message, stored, |record: &EventInvocations| {
            let text = format!("{} hooks passed, {} are recorded", record.passed, record.hooks.len());
            (record.event_id.to_string(), text)
        }),
        streams::DLQ => decoded(message, stored, |letter: &DeadLetter| {
            let text = format!("{} by {}: {}", letter.reason, letter.service, letter.detail);
            (stored.sequence.to_string(), text)
        }),
        other => message.text = format!("{other} {}", stored.subject),
    }
}

/// Returns whether `stored` declares itself a `schema`, of any version.
fn is_a(stored: &StoredMessage, schema: &str) -> bool {
    let said = stored.headers.get(SCHEMA).and_then(|said| said.split('/').next());
    said == Some(schema)
}

/// Sets the parts of `message` from `stored` as a `T`, with its id and sentence by `describe`.
fn decoded<T: WireMessage + Serialize>(
    message: &mut TailedMessage,
    stored: &StoredMessage,
    describe: impl FnOnce(&T) -> (String, String),
) {
    let value = match stored.decode::<T>() {
        Ok(value) => value,
        Err(error) => {
            message.text = format!("unreadable: {error}");
            message.payload = Some(serde_json::json!({ "error": error.to_string() }));
            return;
        }
    };

    (message.id, message.text) = describe(&value);
    message.payload = serde_json::to_value(value).ok();
}

/// Returns the `kind` of a ledger entry, as on the wire.
fn entry_kind(entry: &LedgerEntry) -> String {
    let value = serde_json::to_value(entry).unwrap_or_default();
    value["kind"].as_str().unwrap_or("?").to_owned()
}

/// Returns the session of a ledger's subject, as people write it.
fn ledger_session(subject: &str) -> String {
    let named = parse_session(subject).and_then(|(persona, session)| {
        let (persona, session) = (untoken(persona)?, untoken(session)?);
        Some(format!("{persona}/{session}"))
    });
    named.unwrap_or_else(|| subject.to_owned())
}

/// Returns a step of a delivery in words.
fn step_text(step: &ReceiptStep) -> String {
    match step {
        ReceiptStep::Planned { first, parts } => format!("{} parts planned, from part {first} on", parts.len()),
        ReceiptStep::Preview { closed: true, .. } => "preview ends".to_owned(),
        ReceiptStep::Preview { message: None, .. } => "preview begins".to_owned(),
        ReceiptStep::Preview { message: Some(id), .. } => format!("preview is message {id}"),
        ReceiptStep::AttemptStarted { attempt, part, by, .. } => {
            format!("attempt {attempt} of part {part} begins on {by}")
        }
        ReceiptStep::AttemptFinished {
            attempt, part, outcome, ..
        } => {
            let outcome = match outcome {
                AttemptOutcome::Done => "accepted".to_owned(),
                AttemptOutcome::Retry { after_ms, reason } => format!("retry after {after_ms} ms: {reason}"),
                AttemptOutcome::Limited { after_ms, reason } => {
                    format!("platform asks to wait {after_ms} ms: {reason}")
                }
                AttemptOutcome::Refused { reason } => format!("refused: {reason}"),
            };
            format!("attempt {attempt} of part {part}: {outcome}")
        }
        ReceiptStep::Delivered { attempts, parts, .. } => format!("delivered, {parts} parts, {attempts} attempts"),
        ReceiptStep::GaveUp { attempts, reason } => format!("given up after {attempts} attempts: {reason}"),
        ReceiptStep::DeniedByPolicy { rule } => format!("denied by policy {rule}"),
    }
}

#[cfg(test)]
mod tests {
    use shared::bus::OutgoingMessage;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    const MOST: usize = 1_000;

    fn stored(content: &str) -> StoredMessage {
        let mut event = Event::new(EventId::parse("e2e:p/1").expect("an id"), "e2e", "p", UnixMillis(1));
        event.content = content.to_owned();
        let out = OutgoingMessage::new("nexus.ev.7.e2e.default.p".to_owned(), &event);
        StoredMessage {
            subject: out.subject,
            headers: out.headers,
            payload: out.payload,
            sequence: 5,
            published_at: UnixMillis(9),
            stored_at_ns: 9_000_000,
        }
    }

    #[test]
    fn a_large_message_is_described_and_left_out() {
        let small = tailed_message(streams::EVENTS, &stored("hello"), MOST);
        assert_eq!((small.id.as_str(), small.sequence), ("e2e:p/1", 5));
        assert!(
            small.text.ends_with(": hello") && small.left_out_bytes.is_none(),
            "{small:?}"
        );
        assert_eq!(small.payload.expect("the event")["content"], "hello");

        let large = tailed_message(streams::EVENTS, &stored(&"ä".repeat(MAX_TEXT)), MOST);
        assert!(
            large.payload.is_none() && large.text.len() <= MAX_TEXT + 3,
            "{}",
            large.text.len()
        );
        assert!(large.left_out_bytes.is_some_and(|bytes| bytes > MAX_TEXT));
        assert_eq!(large.id, "e2e:p/1");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let bad = StoredMessage {
            payload: "{".into(),
            ..stored("")
        };
        let told = tailed_message(streams::EVENTS, &bad, MOST);
        assert!(
            told.id.is_empty() && told.text.starts_with("unreadable: event: malformed"),
            "{told:?}"
        );
        assert!(!is_of_hook(&bad, "a"));
    }
}
