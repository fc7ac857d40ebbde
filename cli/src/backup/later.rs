//! Messages that a snapshot lacks because others were replaced by them while it was made.
//!
//! A snapshot ends with the message that was the stream's last when it began, and leaves out what was replaced since then:
//! of a key that is written meanwhile it has neither the former value nor the new one (`docs/contribute/nats-facts.md`
//! "Snapshots"). So whatever came after its end is copied beside it, and published again once it is restored.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use shared::bus::{Bus, OutgoingMessage, StoredMessage, StreamHead};
use shared::wire::headers::Headers;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, BufWriter};

use super::checksum;
use super::manifest::{LaterMessages, later_file};

/// Number of messages that are read at once.
const PAGE: usize = 500;
/// Number of bytes that are read at once.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of messages after a snapshot.
const MOST: u64 = 1_000_000;
/// Headers about the place at which the message was stored, which say nothing about the next one, and its id: messages of
/// one id may be stored at two times, and are now published at one.
const NOT_REPEATED: [&str; 5] = [
    "Nats-Msg-Id",
    "Nats-Expected-Stream",
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Msg-Id",
];
/// Header by which the server says that it has removed a key: nothing that is to be published again.
const MARKER: &str = "Nats-Marker-Reason";

/// One line of the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LaterLine {
    /// Sequence that the message had.
    sequence: u64,
    subject: String,
    headers: Vec<(String, String)>,
    /// Payload, base64.
    payload: String,
}

/// Returns whether messages of the stream are replaced by later ones.
fn is_replacing(head: &StreamHead) -> bool {
    let is_queue = head.config["retention"] == "workqueue";
    let is_bounded = head.config["max_msgs_per_subject"]
        .as_i64()
        .is_some_and(|most| most > 0);
    let may_roll_up = head.config["allow_rollup_hdrs"] == true;
    may_roll_up || (is_bounded && !is_queue)
}

/// Copies what was stored in the stream `name` after its snapshot with `head`, up to the present end, into the backup
/// `directory`. Returns `None` if there is nothing that is to be copied.
///
/// # Errors
/// Fails if the stream cannot be read, if the file cannot be written, or beyond a million messages.
pub(super) async fn copy(bus: &Bus, name: &str, head: &StreamHead, directory: &Path) -> Result<Option<LaterMessages>> {
    let end = head.position().last;
    if !is_replacing(head) || bus.stream_state(name).await?.last == end {
        return Ok(None);
    }

    let path = later_file(directory, name);
    let written = write_lines(bus, name, end, &path).await;
    let messages = written.with_context(|| format!("failed to write {}", path.display()))?;
    let (sha256, bytes) = checksum(&path)?;
    Ok(Some(LaterMessages {
        messages,
        bytes,
        sha256,
    }))
}

/// Writes what stream `name` has after sequence `end` to `path`. Returns the number of messages.
async fn write_lines(bus: &Bus, name: &str, end: u64, path: &Path) -> Result<u64> {
    let mut file = BufWriter::new(tokio::fs::File::create(path).await?);
    let (mut next, mut messages) = (end + 1, 0);
    loop {
        // A message that is replaced before it is read has a successor, which is read later. So all keys are there at
        // the first end that is reached.
        let page = next_page(bus, name, next).await?;
        let Some(last) = page.last() else { break };
        next = last.sequence + 1;
        for stored in page.iter().filter(|stored| stored.headers.get(MARKER).is_none()) {
            let mut line = serde_json::to_vec(&LaterLine::of(stored))?;
            line.push(b'\n');
            file.write_all(&line).await?;
            messages += 1;
        }
        ensure!(
            messages <= MOST,
            "more is written to stream {name} than can be copied: {messages} messages"
        );
    }

    file.flush().await?;
    file.into_inner().sync_all().await?;
    Ok(messages)
}

async fn next_page(bus: &Bus, name: &str, next: u64) -> Result<Vec<StoredMessage>> {
    let mut page = bus.read_history_within(name, ">", next, PAGE, PAGE_BYTES).await?;
    // A replica that lags looks as if the end was reached.
    if page.is_empty() {
        page.extend(bus.next_on_subject(name, ">", next).await?);
    }
    Ok(page)
}

/// Publishes the messages in the file at `path` that come after sequence `end`, in their order.
///
/// # Errors
/// Fails if the file cannot be read, or if the server refuses a message.
pub(super) async fn publish(bus: &Bus, path: &Path, end: u64) -> Result<()> {
    let file = tokio::fs::File::open(path).await;
    let file = file.with_context(|| format!("failed to open {}", path.display()))?;
    let mut lines = BufReader::new(file).lines();
    while let Some(line) = lines.next_line().await? {
        let line: LaterLine =
            serde_json::from_str(&line).with_context(|| format!("{} cannot be read", path.display()))?;
        if line.sequence > end {
            // A piece of a file that is published again because its ack was lost is stored once.
            let id = format!("restored:{}", line.sequence);
            bus.publish(line.outgoing()?.msg_id(id)).await?;
        }
    }

    Ok(())
}

impl LaterLine {
    fn of(stored: &StoredMessage) -> Self {
        let headers = stored.headers.iter();
        Self {
            sequence: stored.sequence,
            subject: stored.subject.clone(),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: STANDARD.encode(&stored.payload),
        }
    }

    fn outgoing(self) -> Result<OutgoingMessage> {
        let mut headers = Headers::new();
        for (name, value) in self.headers {
            if !NOT_REPEATED.iter().any(|kept| name.eq_ignore_ascii_case(kept)) {
                headers.insert(name, value);
            }
        }
        let payload = STANDARD.decode(self.payload).context("a payload cannot be read")?;
        Ok(OutgoingMessage::raw(self.subject, headers, payload.into()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_replaces_messages_is_copied_further() {
        let head = |config| StreamHead {
            config,
            state: json!({}),
        };
        assert!(is_replacing(&head(
            json!({"retention": "limits", "max_msgs_per_subject": 1})
        )));
        assert!(is_replacing(&head(
            json!({"retention": "limits", "max_msgs_per_subject": -1, "allow_rollup_hdrs": true})
        )));
        // A claim is gone because it is done.
        assert!(!is_replacing(&head(
            json!({"retention": "workqueue", "max_msgs_per_subject": 1})
        )));
        assert!(!is_replacing(&head(
            json!({"retention": "limits", "max_msgs_per_subject": -1})
        )));
    }

    #[test]
    fn a_message_is_published_as_it_was_and_expects_no_place() {
        let mut headers = Headers::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", "7");
        headers.insert("Nats-Msg-Id", "1");
        headers.insert("Nats-Rollup", "sub");
        let line = LaterLine::of(&StoredMessage {
            subject: "$KV.hooks.a".to_owned(),
            headers,
            payload: vec![0, 255].into(),
            sequence: 9,
            published_at: shared::model::time::UnixMillis(0),
            stored_at_ns: 0,
        });

        let text = serde_json::to_string(&line).expect("JSON");
        let read: LaterLine = serde_json::from_str(&text).expect("a line");
        assert_eq!(read, line);
        let out = read.outgoing().expect("a message");
        assert_eq!((out.subject.as_str(), &out.payload[..]), ("$KV.hooks.a", &[0, 255][..]));
        assert_eq!(out.headers.iter().collect::<Vec<_>>(), [("Nats-Rollup", "sub")]);
    }
}
