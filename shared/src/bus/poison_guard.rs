//! Guard of the connection: removes stored messages that the client cannot read.
//!
//! The client drops its connection at a header block that it cannot parse (a line without a colon, a status line), and
//! its task panics at a lone carriage return. The message is delivered again after each reconnect, and the process
//! makes no other progress. The server stores any bytes. So if the connection is lost again and again, or its task is
//! dead, a separate connection inspects the messages that the server's consumers delivered last. It uses the JSON API,
//! whose responses carry headers in base64. A message that cannot be read becomes a complete dead letter and is
//! deleted; readers repair themselves then. Several processes may do so at once: the id of the dead letter is the
//! message's position.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::clock::{Clock as _, SystemClock, pause};
use crate::wire::dead_letter::DeadLetter;
use crate::wire::rights::BusRole;
use crate::wire::topology::PARTITIONS;

use super::connect::Bus;
use super::dead_letter::redrive_subject;
use super::error::{PublishError, ReadStreamError};
use super::header_block;
use super::kv::purge_message;
use super::link::ServerLink;
use super::nats_config::NatsConfig;
use super::read::RawStored;

/// Service name in dead letters.
const SERVICE: &str = "bus";
/// Interval at which the guard checks that the client's task lives.
const ROUND: Duration = Duration::from_secs(2);
/// Pause after an inspection.
const REST: Duration = Duration::from_secs(1);
/// Maximum number of messages of one consumer that are inspected: more than a partition's owner or a durable consumer
/// has in flight.
const MAX_LOOKED: u64 = 2_048;

/// Guards `client`, whose connection is `link` and was opened with `config`. Ends only if its user may remove no message.
pub(super) async fn guard_connection(client: async_nats::Client, link: Arc<ServerLink>, config: NatsConfig) {
    let role = config.role();
    if role.is_some_and(|role| !role.clears_streams()) {
        return;
    }

    loop {
        tokio::select! {
            () = link.wait_lost() => {}
            () = pause(ROUND) => {}
        }

        // A flush fails only if the client's task has ended; a timeout proves nothing.
        let flushed = tokio::time::timeout(ROUND, client.flush()).await;
        let is_dead = matches!(flushed, Ok(Err(_)));
        if !is_dead && !link.is_lost_often(SystemClock.monotonic()) {
            continue;
        }

        tracing::warn!(
            is_dead,
            "connection to NATS is lost repeatedly: looking for an unreadable message"
        );

        // Its own connection has no guard, which would look for the same message.
        match Bus::open(&config, "nexus-sentry", false).await {
            Ok(bus) => check_consumers(&bus, role).await,
            Err(error) => tracing::debug!(%error, "failed to look for the unreadable message"),
        }

        pause(REST).await;
    }
}

/// Inspects the messages that every consumer of every stream delivered last, as far as `role` may clear the stream.
async fn check_consumers(bus: &Bus, role: Option<BusRole>) {
    let streams = match stream_names(bus).await {
        Ok(streams) => streams,
        Err(error) => return tracing::debug!(%error, "failed to list streams"),
    };
    let may_clear = |stream: &String| role.is_none_or(|role| role.may_clear(stream));
    for stream in streams.into_iter().filter(may_clear) {
        match consumer_spans(bus, &stream).await {
            Ok(spans) => {
                for (filter, span) in spans {
                    if let Err(error) = clear(bus, &stream, &filter, span).await {
                        tracing::warn!(stream, %error, "failed to delete an unreadable message");
                    }
                }
            }
            Err(error) => tracing::debug!(stream, %error, "failed to list consumers"),
        }
    }
}

/// Range of sequences that a consumer has delivered and may deliver again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SequenceSpan {
    from: u64,
    through: u64,
}

impl SequenceSpan {
    fn with(self, other: Self) -> Self {
        Self {
            from: self.from.min(other.from),
            through: self.through.max(other.through),
        }
    }
}

#[derive(Debug, Deserialize)]
struct ConsumerPlace {
    stream_seq: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConsumerConfig {
    filter_subject: String,
    filter_subjects: Vec<String>,
    opt_start_seq: u64,
    ack_policy: String,
    deliver_policy: String,
}

#[derive(Debug, Deserialize)]
struct ConsumerInfo {
    config: ConsumerConfig,
    delivered: ConsumerPlace,
    ack_floor: ConsumerPlace,
}

impl ConsumerInfo {
    fn filter_spans(self) -> impl Iterator<Item = (String, SequenceSpan)> {
        let through = self.delivered.stream_seq + 1;
        let is_filtered = !self.config.filter_subject.is_empty() || !self.config.filter_subjects.is_empty();

        // A filtered consumer delivers only some of the stream's messages.
        let back = MAX_LOOKED * if is_filtered { u64::from(PARTITIONS) } else { 1 };
        let from = match (self.config.ack_policy.as_str(), self.config.deliver_policy.as_str()) {
            // A watch delivers keys that were written long ago.
            ("none", "last_per_subject") => 1,
            ("none", _) => self.config.opt_start_seq.max(through.saturating_sub(back)),
            _ => self.ack_floor.stream_seq + 1,
        };

        let span = SequenceSpan {
            from: from.max(1),
            through,
        };
        let mut filters = self.config.filter_subjects;
        if filters.is_empty() {
            let one = self.config.filter_subject;
            filters.push(if one.is_empty() { ">".to_owned() } else { one });
        }

        filters.into_iter().map(move |filter| (filter, span))
    }
}

async fn stream_names(bus: &Bus) -> Result<Vec<String>, ReadStreamError> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        streams: Option<Vec<String>>,
        total: usize,
    }

    let mut names = Vec::new();
    loop {
        let query = json!({ "offset": names.len() });
        let page: Page = bus.call_api("(all)", "STREAM.NAMES", &query).await?;
        let listed = page.streams.unwrap_or_default();
        let is_last = listed.is_empty() || names.len() + listed.len() >= page.total;
        names.extend(listed);

        if is_last {
            return Ok(names);
        }
    }
}

/// Returns the ranges that the consumers of `stream` have delivered: one per filter, however many consumers share it.
async fn consumer_spans(bus: &Bus, stream: &str) -> Result<BTreeMap<String, SequenceSpan>, ReadStreamError> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        consumers: Option<Vec<ConsumerInfo>>,
        total: usize,
    }

    let mut spans: BTreeMap<String, SequenceSpan> = BTreeMap::new();
    let mut seen = 0;
    loop {
        let query = json!({ "offset": seen });
        let page: Page = bus.call_api(stream, &format!("CONSUMER.LIST.{stream}"), &query).await?;
        // The server lists page by page. An empty page ends the list too: a consumer may go away between two.
        let listed = page.consumers.unwrap_or_default();
        seen += listed.len();
        let is_last = listed.is_empty() || seen >= page.total;

        for (filter, span) in listed.into_iter().flat_map(ConsumerInfo::filter_spans) {
            spans
                .entry(filter)
                .and_modify(|known| *known = known.with(span))
                .or_insert(span);
        }

        if is_last {
            return Ok(spans);
        }
    }
}

/// Removes the unreadable messages of `span`: stores the dead letter first, then deletes the message.
async fn clear(bus: &Bus, stream: &str, filter: &str, span: SequenceSpan) -> Result<(), ClearSpanError> {
    let mut next = span.from;
    while next <= span.through {
        let Some(raw) = bus.next_raw(stream, filter, next).await? else {
            return Ok(());
        };
        next = raw.seq + 1;
        let Some(fault) = header_block::find_fault(&raw.header_block()) else {
            continue;
        };

        let (subject, sequence) = (raw.subject.clone(), raw.seq);
        let mut letter = build_letter(stream, raw, fault);
        // The dead letter first: if the process dies now, the message is found and recorded once more.
        match bus.dead_letter_record(letter.clone()).await {
            Err(PublishError::TooLarge { size, .. }) => {
                letter.detail = format!(
                    "{}; its letter of {size} bytes is kept without the payload",
                    letter.detail
                );
                letter.payload = String::new();
                bus.dead_letter_record(letter).await?;
            }
            stored => stored?,
        }

        if !bus.delete_message(stream, sequence).await? && subject.starts_with("$KV.") {
            // A bucket's stream does not allow deletes: the key is purged, unless it was written again meanwhile.
            match bus.publish(purge_message(&subject).expect_last(sequence)).await {
                Ok(_) | Err(PublishError::WrongLastSequence { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    Ok(())
}

fn build_letter(stream: &str, raw: RawStored, fault: String) -> DeadLetter {
    DeadLetter {
        service: SERVICE.to_owned(),
        redrive_subject: redrive_subject(&raw.subject),
        stream: stream.to_owned(),
        sequence: raw.seq,
        headers: raw
            .headers()
            .iter()
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect(),
        subject: raw.subject,
        payload: raw.data,
        reason: "unreadable_headers".to_owned(),
        detail: fault,
        attempts: 1,
        at: SystemClock.now(),
    }
}

/// Reason why a message could not be removed.
#[derive(Debug, thiserror::Error)]
enum ClearSpanError {
    #[error("failed to read the stream: {0}")]
    Read(#[from] ReadStreamError),
    #[error("failed to store the dead letter: {0}")]
    Letter(#[from] PublishError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_is_looked_at_from_what_it_may_be_given_again() {
        let info = |json: serde_json::Value| -> Vec<(String, SequenceSpan)> {
            let info: ConsumerInfo = serde_json::from_value(json).expect("an info");
            info.filter_spans().collect()
        };
        let span = |filter: &str, from, through| (filter.to_owned(), SequenceSpan { from, through });
        let ordered = json!({
            "config": { "ack_policy": "none", "opt_start_seq": 40, "filter_subjects": ["a.>", "b"] },
            "delivered": { "stream_seq": 50 }, "ack_floor": { "stream_seq": 50 },
        });

        assert_eq!(info(ordered), [span("a.>", 40, 51), span("b", 40, 51)]);

        let durable = json!({
            "config": { "ack_policy": "explicit" },
            "delivered": { "stream_seq": 9_000 }, "ack_floor": { "stream_seq": 8_990 },
        });
        assert_eq!(info(durable), [span(">", 8_991, 9_001)]);

        let long = json!({
            "config": { "ack_policy": "none", "filter_subject": "x" },
            "delivered": { "stream_seq": 900_000 }, "ack_floor": { "stream_seq": 900_000 },
        });
        assert_eq!(info(long), [span("x", 900_001 - 64 * MAX_LOOKED, 900_001)]);

        let watch = json!({
            "config": { "ack_policy": "none", "deliver_policy": "last_per_subject" },
            "delivered": { "stream_seq": 900_000 }, "ack_floor": { "stream_seq": 900_000 },
        });
        assert_eq!(info(watch), [span(">", 1, 900_001)]);

        let both = SequenceSpan { from: 10, through: 20 }.with(SequenceSpan { from: 5, through: 12 });
        assert_eq!(both, SequenceSpan { from: 5, through: 20 });
    }
}
