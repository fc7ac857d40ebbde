//! `nexus tail`: streams live messages.

use anyhow::{Result, bail};
use futures_util::future::{BoxFuture, FutureExt as _, select_all};
use shared::bus::{IncomingMessage, OrderedReader};
use shared::model::approval::SessionDecision;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::invocation::EventInvocations;
use shared::model::ledger::LedgerRecord;
use shared::model::order::SessionOrder;
use shared::model::receipt::Receipt;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::headers::SCHEMA;
use shared::wire::topology::streams;

use crate::args::{Common, TailOptions};
use crate::output::{brief, bus, clock, json_line, plain, print};

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
    let bus = bus(common).await?;
    let names = chosen(&options.streams)?;

    let mut readers = Vec::new();
    for name in names {
        let last = bus.stream_state(name).await?.last;
        readers.push(
            bus.read_ordered(name, &[], (last + 1).saturating_sub(options.last))
                .await?,
        );
    }

    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0 {
        let message = next(&mut readers).await;
        let text = plain(&describe(&message));
        let shown = options
            .filter
            .as_deref()
            .is_none_or(|f| text.contains(f) || message.subject.contains(f));
        if !shown {
            continue;
        }

        left -= 1;

        if common.json {
            json_line(&as_json(&message))?;
        } else {
            print(&format!(
                "{} {:<11} {:>7} {text}\n",
                clock(message.published_at),
                message.stream,
                message.sequence
            ))?;
        }
    }

    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static str>> {
    if names.is_empty() {
        return Ok(DEFAULT.to_vec());
    }
    let find = |name: &String| match ALL.into_iter().find(|known| known.eq_ignore_ascii_case(name)) {
        Some(known) => Ok(known),
        None => bail!("no stream `{name}`: one of {}", ALL.join(", ").to_lowercase()),
    };
    names.iter().map(find).collect()
}

async fn next(readers: &mut [OrderedReader]) -> IncomingMessage {
    let waiting: Vec<BoxFuture<'_, IncomingMessage>> = readers.iter_mut().map(|reader| reader.next().boxed()).collect();
    select_all(waiting).await.0
}

/// Returns whether `message` declares itself a `schema`, of any version.
fn is_a(message: &IncomingMessage, schema: &str) -> bool {
    let said = message.headers.get(SCHEMA).and_then(|said| said.split('/').next());
    said == Some(schema)
}

fn line<T: WireMessage>(message: &IncomingMessage, tell: impl Fn(T) -> String) -> String {
    message
        .decode::<T>()
        .map_or_else(|error| format!("unreadable: {error}"), tell)
}

/// Returns a message as one line.
fn describe(message: &IncomingMessage) -> String {
    match message.stream.as_str() {
        streams::EVENTS => line(message, |event: Event| {
            format!(
                "{:?} {} {}: {}",
                event.direction,
                event.id,
                event.from.id,
                brief(&event.content, 60)
            )
        }),
        streams::DISPATCHES if is_a(message, SessionOrder::SCHEMA) => line(message, |order: SessionOrder| {
            format!(
                "order `{}` to {} by {}",
                order.wanted.name(),
                order.target,
                plain(&order.by)
            )
        }),
        streams::DISPATCHES if is_a(message, SessionDecision::SCHEMA) => line(message, |told: SessionDecision| {
            format!("approval {} of {} was asked or decided", told.approval, told.target)
        }),
        streams::DISPATCHES => line(message, |dispatch: Dispatch| {
            format!(
                "{} of {} by {} to {}",
                dispatch.id, dispatch.event_id, dispatch.hook_id, dispatch.target
            )
        }),
        streams::LEDGER => line(message, |record: LedgerRecord| {
            let kinds: Vec<String> = record.entries.iter().map(kind).collect();
            format!("{} {}", record.append.broker, kinds.join(", "))
        }),
        streams::RECEIPTS => line(message, |receipt: Receipt| {
            format!("{} {:?}", receipt.delivery, receipt.step)
        }),
        streams::INVOCATIONS => line(message, |record: EventInvocations| {
            format!(
                "{}: {} passed, {} told",
                record.event_id,
                record.passed,
                record.hooks.len()
            )
        }),
        streams::DLQ => line(message, |letter: DeadLetter| {
            format!("{} {}: {}", letter.service, letter.reason, brief(&letter.detail, 80))
        }),
        other => format!("{other} {}", message.subject),
    }
}

/// Returns the entry's `kind`, as on the wire.
fn kind(entry: &shared::model::ledger::LedgerEntry) -> String {
    let value = serde_json::to_value(entry).unwrap_or_default();
    value["kind"].as_str().unwrap_or("?").to_owned()
}

fn value<T: WireMessage>(message: &IncomingMessage) -> serde_json::Value {
    message.decode::<T>().map_or_else(
        |error| serde_json::json!({ "error": error.to_string() }),
        |value| serde_json::to_value(value).unwrap_or_default(),
    )
}

fn as_json(message: &IncomingMessage) -> serde_json::Value {
    let payload = match message.stream.as_str() {
        streams::EVENTS => value::<Event>(message),
        streams::DISPATCHES if is_a(message, SessionOrder::SCHEMA) => value::<SessionOrder>(message),
        streams::DISPATCHES if is_a(message, SessionDecision::SCHEMA) => value::<SessionDecision>(message),
        streams::DISPATCHES => value::<Dispatch>(message),
        streams::LEDGER => value::<LedgerRecord>(message),
        streams::RECEIPTS => value::<Receipt>(message),
        streams::INVOCATIONS => value::<EventInvocations>(message),
        streams::DLQ => value::<DeadLetter>(message),
        _ => serde_json::Value::Null,
    };

    serde_json::json!({
        "stream": message.stream, "sequence": message.sequence, "subject": message.subject,
        "at": message.published_at, "payload": payload,
    })
}
