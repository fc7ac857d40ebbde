//! What page and server say to each other over the WebSocket: JSON texts with a `type`. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::event::{Direction, EventId};
use shared::model::time::UnixMillis;
use shared::projection::api::EventRow;

use crate::source::webhook::signature::sha256;

/// Longest id of a visitor or of a visitor's message, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// Longest text of a visitor's message, in bytes.
pub const MAX_TEXT_BYTES: usize = 32 * 1024;

/// Longest name of a thread, in bytes: as long as hooks may name one.
pub const MAX_THREAD_BYTES: usize = 512;

/// How many cards a page may watch.
pub const MAX_WATCHED: usize = 16;

/// Fewest and most bytes of a page's key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=MAX_ID_BYTES;
/// Fewest different bytes of a page's key: one that a page did not draw at random has fewer.
const MIN_KEY_VARIETY: usize = 8;
/// Bytes of the hash that become the visitor's id.
const VISITOR_BYTES: usize = 16;

/// A card that a page was shown. Who does not know the hash of its arguments was not shown it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownCard {
    /// The approval's id.
    pub approval: String,
    /// Hash of the arguments that the card shows.
    pub arguments_hash: String,
}

/// What a page says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromPage {
    /// The first message: who speaks.
    Hello {
        /// The page's secret, which it made at random and keeps.
        key: String,
        /// The thread that the page shows; absent = the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
    },
    /// The page shows another thread from now on, and is to be sent its history.
    Open {
        /// The thread; absent = the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
    },
    /// The visitor wants to read further back in a thread.
    Earlier {
        /// The thread; absent = the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
        /// The lowest [`Item::sequence`] that the page has of it.
        before: u64,
    },
    /// The visitor opened the link that makes a page the owner's.
    Claim {
        /// The link's token.
        link: String,
    },
    /// The page was shown these cards, and wants to be told what becomes of them. Takes the place of what it said before.
    Watch {
        /// They; the last [`MAX_WATCHED`] count.
        cards: Vec<ShownCard>,
    },
    /// The visitor wrote something.
    Message {
        /// The page's id for it, the same when it sends it again.
        id: String,
        /// The thread that it belongs to; absent = the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
        /// The text.
        text: String,
    },
}

/// What the server says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToPage<'a> {
    /// The first word: who speaks.
    Ready {
        /// The account.
        account: &'a str,
        /// The visitor.
        peer: &'a str,
    },
    /// This page is the owner's from now on.
    Owner,
    /// The visitor's threads, the one that was written in last first.
    Threads {
        /// They.
        items: Vec<ThreadItem>,
    },
    /// The end of a thread so far, or of what was said before a sequence, the oldest first.
    History {
        /// The thread; none = the conversation without a thread.
        #[serde(skip_serializing_if = "Option::is_none")]
        thread: Option<&'a str>,
        /// The sequence that the page named.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<u64>,
        /// Whether there are older items.
        more: bool,
        /// Its items.
        items: Vec<ChatItem>,
    },
    /// A message of the visitor is durable.
    Stored {
        /// The page's id for it.
        id: &'a str,
        /// The event's id.
        event_id: &'a EventId,
    },
    /// A part of an answer.
    Part(ChatItem),
    /// A piece of an answer that is being made; the part that follows has the whole.
    Partial(&'a PartialAnswer),
    /// The agent that is to answer cannot be reached, or can be again.
    Away(&'a AwayNotice),
    /// A turn of the visitor's is being worked on, or is so no more.
    Working(&'a TurnActivity),
    /// The approval of a card that the page watches stands open no more.
    Decided {
        /// The approval.
        approval: &'a str,
        /// Where it stands: a status of approvals, `changed` where others were put in the arguments' place, `gone` where
        /// there is none such.
        status: &'static str,
    },
    /// Something the page said was not taken.
    Error {
        /// The page's id for it, where it could be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        /// `code`, `message`, `where`.
        error: Value,
    },
}

/// A thread, as the page lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadItem {
    /// The thread; none = the conversation without a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The beginning of its first text.
    pub text: String,
    /// When its first event happened.
    pub began_at: UnixMillis,
    /// When its last event happened.
    pub at: UnixMillis,
}

/// One line of the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatItem {
    /// Id of its event.
    pub id: String,
    /// Of an item of the history: its place in the stream of events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The thread that it was said in; none = the conversation without a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// `visitor` or `system`.
    pub from: &'static str,
    /// The text.
    pub text: String,
    /// When.
    pub at: UnixMillis,
    /// What it has buttons for: an approval's card. Nothing that an agent says has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<OpenApproval>,
}

/// An approval that the page's buttons decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenApproval {
    /// The approval's id.
    pub approval: String,
    /// The reply code, as people write it.
    pub code: String,
    /// Hash of the arguments that the card shows: the buttons decide about no others.
    pub arguments_hash: String,
}

/// A part as delivery-svc publishes it on `nexus.webchat.<account>.<peer>`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReplyPart {
    /// Id of the outbound event.
    pub event_id: String,
    /// Thread of the conversation.
    #[serde(default)]
    pub thread: Option<String>,
    /// The text.
    pub content: String,
    /// When it was sent.
    #[serde(default)]
    pub at: UnixMillis,
    /// What the approvals' room put on it.
    #[serde(default)]
    pub approval: Option<OpenApproval>,
}

/// A piece of an answer that is being made, as the broker publishes it on `nexus.webchat.<account>.<peer>`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct PartialAnswer {
    /// The turn; the parts of its answer are the events `out:{turn}/…`.
    pub turn: String,
    /// Thread of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Which model call of the turn.
    pub step: u32,
    /// Counts the pieces of a call from 0; a piece 0 begins the call anew.
    pub seq: u64,
    /// The text.
    pub text: String,
    /// Whether the call is over.
    pub done: bool,
}

/// Whether the agent that a visitor waits for cannot be reached, as the broker publishes it on
/// `nexus.webchat.<account>.<peer>`: again every few seconds while that lasts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct AwayNotice {
    /// The turn.
    pub turn: String,
    /// Thread of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Whether it cannot.
    pub away: bool,
}

/// Whether a turn of a visitor's is being worked on, as the broker publishes it on `nexus.webchat.<account>.<peer>`: again
/// every few seconds while that lasts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct TurnActivity {
    /// The turn.
    pub turn: String,
    /// Thread of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Whether it is.
    pub working: bool,
}

/// What comes for the open pages of a visitor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ForPage {
    /// A part.
    Part(ReplyPart),
    /// A piece of what becomes one.
    Partial(PartialAnswer),
    /// Nothing becomes of it at present.
    Away(AwayNotice),
    /// Something is to become of it.
    Working(TurnActivity),
}

impl From<ReplyPart> for ChatItem {
    fn from(part: ReplyPart) -> Self {
        Self {
            id: part.event_id,
            sequence: None,
            thread: part.thread,
            from: "system",
            text: part.content,
            at: part.at,
            approval: part.approval,
        }
    }
}

impl From<EventRow> for ChatItem {
    fn from(row: EventRow) -> Self {
        let from = match row.direction {
            Direction::Sent => "system",
            Direction::Received
            | Direction::Observed
            | Direction::Created
            | Direction::Updated
            | Direction::Deleted => "visitor",
        };

        Self {
            id: row.id.to_string(),
            sequence: Some(row.sequence),
            // The word that carries it names the thread.
            thread: None,
            from,
            text: row.content,
            at: row.timestamp,
            approval: None,
        }
    }
}

/// The id of the visitor whose page has `key`, on `account`. The id stands in events, logs and subjects; the key, which
/// alone lets somebody speak as the visitor, cannot be told from it.
///
/// # Errors
/// What is expected of a key.
pub fn visitor_id(account: &str, key: &str) -> Result<String, String> {
    let variety: std::collections::BTreeSet<u8> = key.bytes().collect();
    if !KEY_BYTES.contains(&key.len()) || variety.len() < MIN_KEY_VARIETY {
        let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
        return Err(format!("expected a random key of {least} to {most} bytes"));
    }
    let hash = sha256(&[b"nexus webchat visitor\0", account.as_bytes(), b"\0", key.as_bytes()]);
    Ok(hex::encode(&hash[..VISITOR_BYTES]))
}

/// What is wrong with an id of a page's message.
///
/// # Errors
/// What is expected.
pub fn check_id(id: &str) -> Result<(), String> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(format!(
            "an id of 1 to {MAX_ID_BYTES} bytes is expected, it has {}",
            id.len()
        ));
    }

    match id.chars().find(|c| *c == '/' || c.is_control()) {
        Some(wrong) => Err(format!(
            "an id without `/` and control characters is expected, it has U+{:04X}",
            u32::from(wrong)
        )),
        None => Ok(()),
    }
}

/// Checks a thread that a page names.
fn check_thread(thread: Option<&str>) -> Result<(), String> {
    match thread {
        None => Ok(()),
        Some(thread) if thread.is_empty() || thread.len() > MAX_THREAD_BYTES => Err(format!(
            "a thread of 1 to {MAX_THREAD_BYTES} bytes is expected, it has {}",
            thread.len()
        )),
        Some(thread) if thread.contains(char::is_control) => {
            Err("a thread without control characters is expected".to_owned())
        }
        Some(_) => Ok(()),
    }
}

/// Reads what a page said.
///
/// # Errors
/// What is wrong, and where.
pub fn read(text: &str) -> Result<FromPage, (String, &'static str)> {
    let said: FromPage = serde_json::from_str(text).map_err(|error| (error.to_string(), "message"))?;
    let thread = match &said {
        FromPage::Hello { thread, .. }
        | FromPage::Open { thread }
        | FromPage::Earlier { thread, .. }
        | FromPage::Message { thread, .. } => thread.as_deref(),
        FromPage::Claim { .. } | FromPage::Watch { .. } => None,
    };

    check_thread(thread).map_err(|detail| (detail, "thread"))?;

    let FromPage::Message { id, text, .. } = &said else {
        return Ok(said);
    };

    check_id(id).map_err(|detail| (detail, "id"))?;

    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES || text.contains('\0') {
        return Err((
            format!("a text of 1 to {MAX_TEXT_BYTES} bytes without NUL is expected"),
            "text",
        ));
    }

    Ok(said)
}

/// Whether a page of `origin` may connect to `host`: only pages that this very host served, and programs, which
/// send no origin. Otherwise any page in the visitor's browser could speak for them.
#[must_use]
pub fn same_origin(origin: Option<&str>, host: Option<&str>) -> bool {
    match origin {
        None => true,
        Some(origin) => origin.split_once("://").map(|(_, rest)| rest) == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read() {
        let said = read(r#"{"type":"message","id":"m 1","text":"hello"}"#).unwrap();
        assert_eq!(
            said,
            FromPage::Message {
                id: "m 1".to_owned(),
                thread: None,
                text: "hello".to_owned()
            }
        );

        let said = read(r#"{"type":"open","thread":"7f"}"#).unwrap();
        assert_eq!(
            said,
            FromPage::Open {
                thread: Some("7f".to_owned())
            }
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let long = format!(r#"{{"type":"message","id":"{}","text":"x"}}"#, "a".repeat(129));
        let far = format!(r#"{{"type":"open","thread":"{}"}}"#, "a".repeat(513));
        for (text, place) in [
            (&far[..], "thread"),
            (r#"{"type":"open","thread":""}"#, "thread"),
            (r#"{"type":"hello","key":"k","thread":"a\u0007"}"#, "thread"),
            (r#"{"type":"message","id":"a","text":"x","thread":"\n"}"#, "thread"),
            ("{", "message"),
            (r#"{"type":"other"}"#, "message"),
            (r#"{"type":"message","id":"a/b","text":"x"}"#, "id"),
            (r#"{"type":"message","id":"","text":"x"}"#, "id"),
            (r#"{"type":"message","id":"a\u0000","text":"x"}"#, "id"),
            (&long, "id"),
            (r#"{"type":"message","id":"a","text":" "}"#, "text"),
            (r#"{"type":"message","id":"a","text":"x\u0000"}"#, "text"),
        ] {
            assert_eq!(read(text).unwrap_err().1, place, "{text}");
        }
    }

    #[test]
    fn who_knows_a_visitors_id_does_not_know_the_key() {
        let key = "0123456789abcdef0123456789abcdef";
        let id = visitor_id("default", key).unwrap();
        assert_eq!((id.len(), visitor_id("default", key).unwrap()), (32, id.clone()));
        assert_ne!(
            visitor_id("other", key).unwrap(),
            id,
            "each account has visitors of its own"
        );
        assert_ne!(visitor_id("default", &id).unwrap(), id, "an id is not a key to itself");

        for weak in ["", "me", &"a".repeat(64), &"ab".repeat(16), &key.repeat(8)] {
            assert!(visitor_id("default", weak).is_err(), "{weak}");
        }
    }

    #[test]
    fn only_our_own_page_may_connect() {
        let host = Some("127.0.0.1:8080");
        assert!(same_origin(None, host));
        assert!(same_origin(Some("http://127.0.0.1:8080"), host));
        assert!(!same_origin(Some("http://evil.example"), host));
        assert!(!same_origin(Some("null"), host));
    }

    #[test]
    fn a_part_becomes_a_line() {
        let part: ReplyPart = serde_json::from_str(
            r#"{"delivery":"d","part":0,"event_id":"out:d/0","content":"hi","reply_to":"x","thread":"7f","at":5}"#,
        )
        .unwrap();
        let text = serde_json::to_string(&ToPage::Part(part.into())).unwrap();
        assert_eq!(
            text,
            r#"{"type":"part","id":"out:d/0","thread":"7f","from":"system","text":"hi","at":5}"#
        );
    }
}
