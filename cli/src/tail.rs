//! `nexus tail`: streams live messages.

mod merge;

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::{BoxFuture, FutureExt as _, pending, select_all};
use serde_json::{Value, json};
use shared::bus::{IncomingMessage, OrderedReader};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::approval::SessionDecision;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::invocation::EventInvocations;
use shared::model::ledger::LedgerRecord;
use shared::model::order::SessionOrder;
use shared::model::receipt::{AttemptOutcome, Receipt, ReceiptStep};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::headers::SCHEMA;
use shared::wire::subject::{parse_session, untoken};
use shared::wire::topology::streams;

use crate::args::{Common, TailOptions};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Column, LinePrinter};
use crate::session::entry_kind;
use merge::Merge;

const DEFAULT: [&str; 4] = [streams::EVENTS, streams::DISPATCHES, streams::LEDGER, streams::RECEIPTS];
/// Streams that can be read beside their owner. Work queues (`CLAIMS`, `DELIVERIES`) cannot: the server refuses a
/// consumer that does not take messages out of them.
const ALL: [&str; 6] = [
    streams::EVENTS,
    streams::INVOCATIONS,
    streams::DISPATCHES,
    streams::LEDGER,
    streams::RECEIPTS,
    streams::DLQ,
];

/// Runs the command.
///
/// # Errors
/// Fails if a stream is unknown or the server cannot be reached. Returns `ReaderGone` if the reader has gone.
pub async fn execute(common: &Common, options: TailOptions) -> Result<()> {
    let names = chosen_streams(&options.streams)?;
    let bus = connect_bus(common).await?;

    let mut readers = Vec::new();
    let mut ranges = Vec::new();
    for name in names {
        let last = bus.stream_state(name).await?.last;
        let first = (last + 1).saturating_sub(options.last).max(1);
        readers.push(bus.read_ordered(name, &[], first).await?);
        ranges.push((first, last));
    }

    let printer = LinePrinter::new(
        common,
        &[
            (Column::clock("TIME"), 12),
            (Column::id("STREAM"), 11),
            (Column::number("SEQUENCE"), 7),
            (Column::id("ID"), 0),
            (Column::text("TEXT"), 0),
        ],
    );
    let mut source = Source {
        merge: Merge::new(ranges),
        readers,
        begun: SystemClock.monotonic(),
    };
    let mut left = options.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let message = source.next().await;
        let Told { id, text } = describe_message(&message);
        let is_shown = options
            .filter
            .as_deref()
            .is_none_or(|filter| [&id, &text, &message.subject].iter().any(|part| part.contains(filter)));
        if !is_shown {
            continue;
        }

        left -= 1;
        let cells = [
            message.published_at.into(),
            (&message.stream).into(),
            message.sequence.into(),
            (&id).into(),
            text.into(),
        ];
        printer.print(&id, &message_json(&message), &cells)?;
    }

    Ok(())
}

fn chosen_streams(names: &[String]) -> Result<Vec<&'static str>> {
    if names.is_empty() {
        return Ok(DEFAULT.to_vec());
    }
    let find = |name: &String| match ALL.into_iter().find(|known| known.eq_ignore_ascii_case(name)) {
        Some(known) => Ok(known),
        None => Err(failure(
            Exit::Usage,
            format!("no stream `{name}`: one of {}", ALL.join(", ").to_lowercase()),
        )),
    };
    names.iter().map(find).collect()
}

/// Several streams, read in the order of time.
struct Source {
    readers: Vec<OrderedReader>,
    merge: Merge<IncomingMessage>,
    begun: Instant,
}

impl Source {
    /// Returns the time since the command began.
    fn elapsed(&self) -> Duration {
        SystemClock.monotonic().saturating_duration_since(self.begun)
    }

    async fn next(&mut self) -> IncomingMessage {
        loop {
            let now = self.elapsed();
            if let Some(message) = self.merge.pop(now) {
                return message;
            }

            let wait = self.merge.due().map(|due| due.saturating_sub(now));
            let due = async {
                match wait {
                    Some(wait) => pause(wait).await,
                    None => pending().await,
                }
            };
            let merge = &self.merge;
            let reading: Vec<BoxFuture<'_, (usize, IncomingMessage)>> = self
                .readers
                .iter_mut()
                .enumerate()
                .filter(|(lane, _)| merge.has_room(*lane))
                .map(|(lane, reader)| async move { (lane, reader.next().await) }.boxed())
                .collect();
            let arrived = async {
                if reading.is_empty() {
                    return pending().await;
                }
                select_all(reading).await.0
            };

            let arrived = tokio::select! {
                arrived = arrived => Some(arrived),
                () = due => None,
            };
            if let Some((lane, message)) = arrived {
                let (place, now) = ((message.sequence, message.pending), self.elapsed());
                self.merge.push(lane, place, message.published_at, now, message);
            }
        }
    }
}

/// Returns whether `message` declares itself a `schema`, of any version.
fn is_a(message: &IncomingMessage, schema: &str) -> bool {
    let said = message.headers.get(SCHEMA).and_then(|said| said.split('/').next());
    said == Some(schema)
}

/// A message in words.
struct Told {
    /// Id of the thing that the message is about.
    id: String,
    text: String,
}

/// Decodes `message`, and describes it by `describe`: its id, and the rest.
fn decoded<T: WireMessage>(message: &IncomingMessage, describe: impl Fn(T) -> (String, String)) -> Told {
    let (id, text) = match message.decode::<T>() {
        Ok(value) => describe(value),
        Err(error) => (String::new(), format!("unreadable: {error}")),
    };
    Told { id, text }
}

/// Describes a message in words.
fn describe_message(message: &IncomingMessage) -> Told {
    match message.stream.as_str() {
        streams::EVENTS => decoded(message, |event: Event| {
            let text = format!("{} from {}: {}", event.direction.name(), event.from.id, event.content);
            (event.id.to_string(), text)
        }),
        streams::DISPATCHES if is_a(message, SessionOrder::SCHEMA) => decoded(message, |order: SessionOrder| {
            let text = format!("order {} to {} by {}", order.wanted.name(), order.target, order.by);
            (order.id.to_string(), text)
        }),
        streams::DISPATCHES if is_a(message, SessionDecision::SCHEMA) => decoded(message, |told: SessionDecision| {
            let text = format!("approval of {} was requested or decided", told.target);
            (told.approval.to_string(), text)
        }),
        streams::DISPATCHES => decoded(message, |dispatch: Dispatch| {
            let text = format!("{} to {} for {}", dispatch.hook_id, dispatch.target, dispatch.event_id);
            (dispatch.id.to_string(), text)
        }),
        streams::LEDGER => decoded(message, |record: LedgerRecord| {
            let kinds: Vec<String> = record.entries.iter().map(entry_kind).collect();
            (ledger_session(&message.subject), kinds.join(", "))
        }),
        streams::RECEIPTS => decoded(message, |receipt: Receipt| {
            (receipt.delivery.to_string(), step_text(&receipt.step))
        }),
        streams::INVOCATIONS => decoded(message, |record: EventInvocations| {
            let text = format!("{} hooks passed, {} are recorded", record.passed, record.hooks.len());
            (record.event_id.to_string(), text)
        }),
        streams::DLQ => decoded(message, |letter: DeadLetter| {
            let text = format!("{} by {}: {}", letter.reason, letter.service, letter.detail);
            (message.sequence.to_string(), text)
        }),
        other => Told {
            id: String::new(),
            text: format!("{other} {}", message.subject),
        },
    }
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

/// Returns the payload of `message` as JSON.
fn payload<T: WireMessage>(message: &IncomingMessage) -> Value {
    message.decode::<T>().map_or_else(
        |error| json!({ "error": error.to_string() }),
        |value| serde_json::to_value(value).unwrap_or_default(),
    )
}

fn message_json(message: &IncomingMessage) -> Value {
    let payload = match message.stream.as_str() {
        streams::EVENTS => payload::<Event>(message),
        streams::DISPATCHES if is_a(message, SessionOrder::SCHEMA) => payload::<SessionOrder>(message),
        streams::DISPATCHES if is_a(message, SessionDecision::SCHEMA) => payload::<SessionDecision>(message),
        streams::DISPATCHES => payload::<Dispatch>(message),
        streams::LEDGER => payload::<LedgerRecord>(message),
        streams::RECEIPTS => payload::<Receipt>(message),
        streams::INVOCATIONS => payload::<EventInvocations>(message),
        streams::DLQ => payload::<DeadLetter>(message),
        _ => Value::Null,
    };

    json!({
        "stream": message.stream, "sequence": message.sequence, "subject": message.subject,
        "at": message.published_at, "payload": payload,
    })
}
