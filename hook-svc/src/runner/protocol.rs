//! Frames to and from a worker: u32 little endian length, then JSON. *Pure.*
//!
//! Events are spliced into a batch as the bytes they came as, and answers borrow from the frame: a hook that passes
//! costs the host one number. JSON is faster than CBOR and `MessagePack` in Bun (`docs/contribute/nats-facts.md`
//! "Bun").

use std::borrow::Cow;
use std::io::Write as _;

use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;
use shared::projection::script_query::ModelQuery;

use super::HookCounters;
use super::host::CallResult;

/// Most events in one batch (`docs/design/hooks.md` §6.2).
pub(super) const MAX_BATCH_EVENTS: usize = 16;

/// Size in bytes at which a batch takes no further event.
pub(super) const MAX_BATCH_BYTES: usize = 512 * 1024;

/// Longest frame that a worker may send, in bytes: a batch in which every answer has the maximum length.
pub(super) const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;

/// Longest error text in bytes: the shim sends at most 4,000 characters (`shim/hooks.ts`).
const MAX_ERROR_BYTES: usize = 16_000;

/// Bytes of a frame's length field.
const HEADER_BYTES: usize = 4;

/// A hook in a [`LoadRequest`]: path (`None` = it must not be loaded), id, name, time of creation, time-out in milliseconds,
/// trigger count, last triggered, whether its source mentions calls to the host, whether it mentions anything that may
/// continue after it has answered.
pub(super) type WantedHook<'a> = (
    Option<&'a str>,
    &'a str,
    &'a str,
    i64,
    u64,
    u64,
    Option<i64>,
    bool,
    bool,
);

/// A script's call: slot, hook index, number among the hook's calls for the event, name, arguments as JSON text.
pub(super) type CallFrame<'a> = (u32, u32, u32, Cow<'a, str>, Cow<'a, str>);

/// Message that hands a set of hooks to a worker.
#[derive(Debug, Serialize)]
pub(super) struct LoadRequest<'a> {
    /// Type of the message, always `load`.
    pub(super) t: &'static str,
    /// Generation of the set.
    pub(super) g: u32,
    /// Hooks of the set, by index.
    pub(super) hooks: Vec<WantedHook<'a>>,
    /// Paths to remove from the module cache.
    pub(super) drop: Vec<&'a str>,
}

/// Message from a worker.
#[derive(Debug, Deserialize)]
pub(super) struct WorkerFrame<'a> {
    /// Type of the message: `ready`, `loaded`, `pong`, `stray`, `call`, `query`; absent in answers.
    #[serde(default, borrow)]
    pub(super) t: Option<&'a str>,
    /// Hooks that did not load: index and reason.
    #[serde(default, borrow)]
    pub(super) bad: Vec<(u32, Cow<'a, str>)>,
    /// Message of the error that a stray promise or timer threw.
    #[serde(default)]
    pub(super) message: Option<String>,
    /// Stack of that error.
    #[serde(default)]
    pub(super) stack: Option<String>,
    /// Hook that the error belongs to, if known: hook index and generation of its set.
    #[serde(default)]
    pub(super) by: Option<(u32, u32)>,
    /// Answers about events under way.
    #[serde(default, borrow)]
    pub(super) r: Vec<EventAnswer<'a>>,
    /// Calls of scripts to the host.
    #[serde(default, borrow)]
    pub(super) k: Vec<CallFrame<'a>>,
    /// Query of the read model; the process blocks until it is answered.
    #[serde(default)]
    pub(super) q: Option<QueryFrame>,
}

/// Query of the read model by a script.
#[derive(Debug, Deserialize)]
pub(super) struct QueryFrame {
    /// Slot of the event on which its database was opened; -1 if none.
    #[serde(default = "no_slot")]
    pub(super) opened: i64,
    /// Slot of the event on which the script runs, as far as the process knows. Used if `opened` is not under way; if
    /// neither is, another event that is under way is used.
    pub(super) slot: i64,
    /// The query to run.
    pub(super) query: ModelQuery,
}

const fn no_slot() -> i64 {
    -1
}

/// Answer to a script's call.
#[derive(Debug)]
pub(super) struct CallReply {
    /// Slot of the event in the worker.
    pub(super) slot: u32,
    /// Index of the hook in the worker's set.
    pub(super) index: u32,
    /// Number of the call among the hook's calls.
    pub(super) number: u32,
    /// Value or error, and the usage.
    pub(super) answered: CallResult,
}

/// News about one event: the first answer covers every hook that answered at once, later ones those that settled since.
#[derive(Debug, Deserialize)]
pub(super) struct EventAnswer<'a> {
    /// Slot of the event.
    pub(super) slot: u32,
    /// Number of hooks that passed.
    pub(super) passed: u32,
    /// Microseconds of each hook called, in calling order; only in the first answer.
    pub(super) latencies_us: Vec<u32>,
    /// Index, microseconds and result of each hook that returned more than `fire: false`.
    #[serde(borrow)]
    pub(super) results: Vec<(u32, u32, Cow<'a, str>)>,
    /// Index, microseconds, message and stack of each hook that failed.
    pub(super) failures: Vec<(u32, u32, String, Option<String>)>,
    /// Indices of the hooks that have not settled.
    pub(super) waiting: Vec<u32>,
    /// Index and microseconds of each hook that passed late, flat.
    pub(super) late: Vec<u32>,
}

/// Reason why bytes from a worker are not a frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFrameError {
    /// The frame is longer than any answer can be.
    #[error("frame has {0} bytes; at most {MAX_FRAME_BYTES} are allowed")]
    TooLong(usize),
    /// The body is no valid message of a worker.
    #[error("frame is not an answer")]
    Malformed(#[source] serde_json::Error),
}

/// Cuts the first frame off `bytes`: returns its body and its length in bytes, `None` while it is incomplete.
pub(super) fn split(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, ReadFrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(ReadFrameError::TooLong(length));
    }
    Ok(rest.get(..length).map(|body| (body, HEADER_BYTES + length)))
}

/// Parses the body of a frame.
pub(super) fn read(body: &[u8]) -> Result<WorkerFrame<'_>, ReadFrameError> {
    serde_json::from_slice(body).map_err(ReadFrameError::Malformed)
}

/// Cuts an error text to the length that the shim would send: a script may write frames of its own, of any length.
pub(super) fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
    text
}

/// Writes `message` as a frame, replacing the content of `buffer`.
pub(super) fn write_message(buffer: &mut Vec<u8>, message: &impl Serialize) {
    begin_frame(buffer);
    // Writing JSON of plain strings and numbers to memory cannot fail.
    let written = serde_json::to_writer(&mut *buffer, message);
    debug_assert!(written.is_ok());
    end_frame(buffer);
}

/// Writes `body`, which is JSON, as a frame, replacing the content of `buffer`.
pub(super) fn write_body(buffer: &mut Vec<u8>, body: &[u8]) {
    begin_frame(buffer);
    buffer.extend_from_slice(body);
    end_frame(buffer);
}

/// Writes answers to calls as a frame, replacing the content of `buffer`.
pub(super) fn write_replies(buffer: &mut Vec<u8>, replies: &[CallReply]) {
    let rows: Vec<_> = replies
        .iter()
        .map(|reply| {
            let (value, error) = match &reply.answered.outcome {
                Ok(value) => (Some([value]), None),
                Err(error) => (None, Some([error.code, error.message.as_str()])),
            };
            (reply.slot, reply.index, reply.number, value, error)
        })
        .collect();

    write_message(buffer, &serde_json::json!({"t": "ans", "a": rows}));
}

/// A batch of events being written into a reused buffer.
#[derive(Debug)]
pub(super) struct EventBatch<'a> {
    buffer: &'a mut Vec<u8>,
    events: usize,
}

impl<'a> EventBatch<'a> {
    /// Begins a batch, replacing the content of `buffer`; `changed` are counters that the worker does not know yet.
    pub(super) fn begin_batch(buffer: &'a mut Vec<u8>, changed: &[(u32, HookCounters)]) -> Self {
        begin_frame(buffer);
        buffer.extend_from_slice(br#"{"t":"ev""#);

        if !changed.is_empty() {
            buffer.extend_from_slice(br#","c":["#);

            for (at, (index, counters)) in changed.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                put_text(buffer, format_args!("{comma}[{index},{},", counters.trigger_count));
                match counters.last_triggered {
                    Some(last) => put_text(buffer, format_args!("{last}]")),
                    None => buffer.extend_from_slice(b"null]"),
                }
            }

            buffer.push(b']');
        }

        buffer.extend_from_slice(br#","e":["#);
        Self { buffer, events: 0 }
    }

    /// Adds an event for the hooks `only` (`None` = all).
    pub(super) fn push(&mut self, slot: u32, now: UnixMillis, only: Option<&[u32]>, event_json: &[u8]) {
        let comma = if self.events == 0 { "" } else { "," };
        put_text(self.buffer, format_args!("{comma}{{\"s\":{slot},\"n\":{now}"));

        if let Some(only) = only {
            self.buffer.extend_from_slice(br#","o":["#);
            for (at, index) in only.iter().enumerate() {
                put_text(self.buffer, format_args!("{}{index}", if at == 0 { "" } else { "," }));
            }
            self.buffer.push(b']');
        }

        self.buffer.extend_from_slice(br#","v":"#);
        self.buffer.extend_from_slice(event_json);
        self.buffer.push(b'}');
        self.events += 1;
    }

    /// Returns whether another event fits.
    pub(super) fn has_room(&self) -> bool {
        self.events < MAX_BATCH_EVENTS && self.buffer.len() < MAX_BATCH_BYTES
    }

    /// Ends the batch, whose frame is now in the buffer. Returns the number of its events.
    pub(super) fn finish_batch(self) -> usize {
        self.buffer.extend_from_slice(b"]}");
        end_frame(self.buffer);
        self.events
    }
}

fn begin_frame(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.extend_from_slice(&[0; HEADER_BYTES]);
}

fn end_frame(buffer: &mut [u8]) {
    let length = u32::try_from(buffer.len() - HEADER_BYTES).unwrap_or(u32::MAX);
    buffer[..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn put_text(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let written = buffer.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to memory has no way to fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_is_one_frame_of_json() {
        let mut buffer = vec![9; 100];
        let news = [
            (0, HookCounters::default()),
            (
                3,
                HookCounters {
                    trigger_count: 2,
                    last_triggered: Some(UnixMillis(5)),
                },
            ),
        ];

        let mut batch = EventBatch::begin_batch(&mut buffer, &news);
        batch.push(7, UnixMillis(11), None, br#"{"id":"a:1"}"#);
        batch.push(8, UnixMillis(12), Some(&[0, 2]), br#"{"id":"a:2"}"#);

        assert_eq!(batch.finish_batch(), 2);

        let (body, length) = split(&buffer).expect("a frame").expect("whole");
        assert_eq!(length, buffer.len());

        let value: serde_json::Value = serde_json::from_slice(body).expect("json");
        let expected = serde_json::json!({"t": "ev", "c": [[0, 0, null], [3, 2, 5]], "e": [
            {"s": 7, "n": 11, "v": {"id": "a:1"}}, {"s": 8, "n": 12, "o": [0, 2], "v": {"id": "a:2"}},
        ]});

        assert_eq!(value, expected);
    }

    #[test]
    fn an_answer_is_read() {
        let body = br#"{"r":[[7,2,[1,2,3],[[1,5,"{\"fire\":true}"]],[[2,6,"broke",null]],[0],[4,9]]]}"#;
        let answer = &read(body).expect("a frame").r[0];
        assert_eq!(
            (answer.slot, answer.passed, answer.waiting.as_slice()),
            (7, 2, [0].as_slice())
        );
        assert_eq!(answer.results[0], (1, 5, Cow::from(r#"{"fire":true}"#)));
        assert_eq!(answer.failures[0], (2, 6, "broke".to_owned(), None));
    }

    #[test]
    fn a_frame_longer_than_any_answer_is_refused() {
        assert!(matches!(
            split(&u32::MAX.to_le_bytes()),
            Err(ReadFrameError::TooLong(_))
        ));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((body, length))) = split(&bytes) {
                prop_assert!(length <= bytes.len());
                let _ = read(body);
            }
        }

        #[test]
        fn a_frame_comes_out_as_it_went_in(text in ".{0,40}", cut in 0_usize..60) {
            let mut buffer = Vec::new();
            write_message(&mut buffer, &text);
            let whole = split(&buffer).expect("a frame").expect("whole").0.to_vec();
            prop_assert_eq!(serde_json::from_slice::<String>(&whole).expect("json"), text);
            let part = &buffer[..cut.min(buffer.len() - 1)];
            prop_assert!(split(part).expect("no error").is_none());
        }
    }
}
