//! Messages between page and server over the WebSocket: JSON texts with a `type`. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::event::{EventDirection, EventId};
use shared::model::time::UnixMillis;
use shared::projection::api::EventRow;

use crate::source::webhook::signature::sha256;

/// Longest id of a visitor or of a visitor's message, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// Longest text of a visitor's message, in bytes.
pub const MAX_TEXT_BYTES: usize = 32 * 1024;

/// Longest name of a thread, in bytes: as long as hooks may name one.
pub const MAX_THREAD_BYTES: usize = 512;

/// Largest number of cards that a page may watch.
pub const MAX_WATCHED: usize = 16;

/// Fewest and most bytes of a page's key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=MAX_ID_BYTES;
/// Fewest different bytes of a page's key: a key that was not drawn at random has fewer.
const MIN_KEY_VARIETY: usize = 8;
/// Number of bytes of the hash that become the visitor's id.
const VISITOR_BYTES: usize = 16;

/// A card that a page was shown. A page that does not know the hash of the arguments was not shown the card.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownCard {
    /// Id of the approval.
    pub approval: String,
    /// Hash of the arguments that the card shows.
    pub arguments_hash: String,
}

/// A message from the page.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromPage {
    /// First message of a page: says which visitor speaks.
    Hello {
        /// Secret of the page, which it drew at random and keeps.
        key: String,
        /// Thread that the page shows; absent for the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
    },
    /// The page shows another thread from now on and asks for its history.
    Open {
        /// Thread that the page shows; absent for the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
    },
    /// The visitor asks for older items of a thread.
    Earlier {
        /// Thread to read; absent for the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
        /// Lowest [`ChatItem::sequence`] that the page has of the thread.
        before: u64,
    },
    /// The visitor opened the link that makes a page the owner's.
    Claim {
        /// Token of the owner's link.
        link: String,
    },
    /// The page shows these cards and asks for their decisions. Replaces the page's earlier list.
    Watch {
        /// Cards to watch; only the last [`MAX_WATCHED`] count.
        cards: Vec<ShownCard>,
    },
    /// The visitor wrote a message.
    Message {
        /// The page's id for the message, the same if the page sends it again.
        id: String,
        /// Thread of the message; absent for the conversation without a thread.
        #[serde(default)]
        thread: Option<String>,
        /// Text of the visitor's message.
        text: String,
    },
}

/// A message from the server to the page.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToPage<'a> {
    /// First message of the server: says which visitor the page is.
    Ready {
        /// Account of the chat page.
        account: &'a str,
        /// Id of the visitor.
        peer: &'a str,
    },
    /// This page is the owner's from now on.
    Owner,
    /// The visitor's threads, most recently written first.
    Threads {
        /// Threads of the visitor.
        items: Vec<ThreadItem>,
    },
    /// The end of a thread so far, or of its part before a sequence, oldest first.
    History {
        /// Thread of the items; `None` for the conversation without a thread.
        #[serde(skip_serializing_if = "Option::is_none")]
        thread: Option<&'a str>,
        /// Sequence that the page named in its request.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<u64>,
        /// Whether there are older items.
        more: bool,
        /// Items of this part of the history.
        items: Vec<ChatItem>,
    },
    /// A message of the visitor is durable.
    Stored {
        /// The page's id for the message.
        id: &'a str,
        /// Id of the stored event.
        event_id: &'a EventId,
    },
    /// A part of an answer.
    Part(ChatItem),
    /// A piece of an answer that is being generated; the part that follows holds the whole text.
    Partial(&'a PartialAnswer),
    /// The visitor's agent cannot be reached, or can be reached again.
    Away(&'a AwayNotice),
    /// A turn of the visitor is being worked on, or no longer is.
    Working(&'a TurnActivity),
    /// The approval of a card that the page watches is no longer open.
    Decided {
        /// Id of the approval.
        approval: &'a str,
        /// Status of the approval, `changed` if other arguments took the place of those on the card, or `gone` if there
        /// is no such approval.
        status: &'static str,
    },
    /// A message of the page was rejected.
    Error {
        /// The page's id for the rejected message, if it could be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        /// `code`, `message`, `where`.
        error: Value,
    },
}

/// A thread in the page's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadItem {
    /// Name of the thread; `None` for the conversation without a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Beginning of the thread's first text.
    pub text: String,
    /// Time of the thread's first event.
    pub began_at: UnixMillis,
    /// Time of the thread's last event.
    pub at: UnixMillis,
}

/// One message of the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatItem {
    /// Id of the message's event.
    pub id: String,
    /// Sequence in the stream of events, of an item of the history only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Thread of the message; `None` for the conversation without a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Side that wrote the message: `visitor` or `system`.
    pub from: &'static str,
    /// Text of the message.
    pub text: String,
    /// Time of the message.
    pub at: UnixMillis,
    /// Approval that the item's buttons decide, for an approval's card. No text of an agent has buttons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<OpenApproval>,
}

/// An approval that the page's buttons decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenApproval {
    /// Id of the approval.
    pub approval: String,
    /// Reply code, as people write it.
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
    /// Text of the part.
    pub content: String,
    /// Time at which the part was sent.
    #[serde(default)]
    pub at: UnixMillis,
    /// Approval of a card, set by the broker's approvals.
    #[serde(default)]
    pub approval: Option<OpenApproval>,
}

/// A piece of an answer that is being generated, as the broker publishes it on `nexus.webchat.<account>.<peer>`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct PartialAnswer {
    /// Id of the turn; the parts of its answer are the events `out:{turn}/…`.
    pub turn: String,
    /// Thread of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Number of the model call within the turn.
    pub step: u32,
    /// Number of the piece within the call, from 0. A piece 0 starts the call's text over.
    pub seq: u64,
    /// Text of the piece.
    pub text: String,
    /// Whether the call has ended.
    pub done: bool,
}

/// Whether the agent that a visitor waits for is unreachable, as the broker publishes it on
/// `nexus.webchat.<account>.<peer>`: repeated every few seconds while that lasts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct AwayNotice {
    /// Id of the turn that waits.
    pub turn: String,
    /// Thread of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Whether the agent cannot be reached.
    pub away: bool,
}

/// Whether a turn of a visitor is being worked on, as the broker publishes it on `nexus.webchat.<account>.<peer>`:
/// repeated every few seconds while that lasts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct TurnActivity {
    /// Id of the turn.
    pub turn: String,
    /// Thread of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Whether the turn is being worked on.
    pub working: bool,
}

/// A message for the open pages of a visitor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ForPage {
    /// A whole part of an answer.
    Part(ReplyPart),
    /// A piece of a part that is being generated.
    Partial(PartialAnswer),
    /// The agent cannot be reached, or can be again.
    Away(AwayNotice),
    /// A turn is being worked on, or no longer is.
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
            EventDirection::Sent => "system",
            EventDirection::Received
            | EventDirection::Observed
            | EventDirection::Created
            | EventDirection::Updated
            | EventDirection::Deleted => "visitor",
        };

        Self {
            id: row.id.to_string(),
            sequence: Some(row.sequence),
            // The message that carries the item names the thread.
            thread: None,
            from,
            text: row.content,
            at: row.timestamp,
            approval: None,
        }
    }
}

/// Returns the id of the visitor whose page has `key`, on `account`. The id appears in events, logs and subjects. The
/// key alone lets a client speak as the visitor, and it cannot be derived from the id.
///
/// # Errors
/// Returns the requirements of a key, for people, if `key` does not meet them.
pub fn visitor_id(account: &str, key: &str) -> Result<String, String> {
    let variety: std::collections::BTreeSet<u8> = key.bytes().collect();
    if !KEY_BYTES.contains(&key.len()) || variety.len() < MIN_KEY_VARIETY {
        let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
        return Err(format!("expected a random key of {least} to {most} bytes"));
    }
    let hash = sha256(&[b"nexus webchat visitor\0", account.as_bytes(), b"\0", key.as_bytes()]);
    Ok(hex::encode(&hash[..VISITOR_BYTES]))
}

/// Checks the id of a page's message.
///
/// # Errors
/// Returns the requirements of an id, for people, if `id` does not meet them.
pub fn check_id(id: &str) -> Result<(), String> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(format!(
            "expected an id of 1 to {MAX_ID_BYTES} bytes, found {}",
            id.len()
        ));
    }

    match id.chars().find(|c| *c == '/' || c.is_control()) {
        Some(wrong) => Err(format!(
            "expected an id without `/` and control characters, found U+{:04X}",
            u32::from(wrong)
        )),
        None => Ok(()),
    }
}

/// Checks the name of a thread that a page names.
fn check_thread(thread: Option<&str>) -> Result<(), String> {
    match thread {
        None => Ok(()),
        Some(thread) if thread.is_empty() || thread.len() > MAX_THREAD_BYTES => Err(format!(
            "expected a thread of 1 to {MAX_THREAD_BYTES} bytes, found {}",
            thread.len()
        )),
        Some(thread) if thread.contains(char::is_control) => {
            Err("expected a thread without control characters".to_owned())
        }
        Some(_) => Ok(()),
    }
}

/// Parses a message of a page.
///
/// # Errors
/// Returns the fault, for people, and the name of the field that has it.
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
            format!("expected a text of 1 to {MAX_TEXT_BYTES} bytes without NUL"),
            "text",
        ));
    }

    Ok(said)
}

/// Returns whether a page of `origin` may connect to `host`: only pages that this very host served, and programs, which
/// send no origin. Otherwise any page in the visitor's browser could speak for the visitor.
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
