//! What a stand-in of Slack keeps of conversations, handed over as the vendor does: newest first, page by page by a cursor, of
//! threads the oldest first, each page of them with the first message again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};

/// Fields of a call.
pub(crate) type Fields = BTreeMap<String, String>;

/// The conversations; clones are the same ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConversationShelf(Arc<Mutex<ShelfState>>);

#[derive(Debug, Default)]
struct ShelfState {
    /// Messages by conversation and stamp, and answers by conversation, thread and stamp.
    messages: BTreeMap<String, BTreeMap<String, Value>>,
    replies: BTreeMap<(String, String), BTreeMap<String, Value>>,
    /// Conversations that the app is not in.
    closed: BTreeSet<String>,
    /// Kinds of conversations for which the app has no right.
    kinds_without_right: BTreeSet<String>,
    /// Most items of a page, whatever is asked for.
    page: usize,
    /// Calls that are limited from now on, and the time before which none may be made.
    limited: usize,
    not_before: Option<Instant>,
    /// Calls that were made before that.
    early: usize,
    /// Messages that are deleted once so many pages were handed over.
    deletions: Vec<(usize, String, String)>,
    pages: usize,
    calls: Vec<(String, Fields)>,
}

/// The answer of a call.
#[derive(Debug)]
pub(crate) enum ShelfAnswer {
    Body(Value),
    /// 429, with the seconds of `Retry-After`.
    Limited(u64),
}

impl ConversationShelf {
    fn lock(&self) -> MutexGuard<'_, ShelfState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `message` to `conversation`, to its thread if it has one.
    pub(crate) fn add(&self, conversation: &str, message: &Value) {
        let text = |key: &str| message[key].as_str().map(str::to_owned);
        let (ts, thread) = (text("ts").expect("a stamp"), text("thread_ts"));
        let mut state = self.lock();
        let kept = state.messages.entry(conversation.to_owned()).or_default();
        match thread.filter(|thread| *thread != ts) {
            None => drop(kept.insert(ts, message.clone())),
            Some(thread) => {
                if let Some(first) = kept.get_mut(&thread) {
                    let count = first["reply_count"].as_u64().unwrap_or(0) + 1;
                    first["reply_count"] = json!(count);
                    first["thread_ts"] = json!(thread);
                }
                if text("subtype").as_deref() == Some("thread_broadcast") {
                    kept.insert(ts.clone(), message.clone());
                }
                let replies = state.replies.entry((conversation.to_owned(), thread)).or_default();
                replies.insert(ts, message.clone());
            }
        }
    }

    /// Has pages of at most `page` items.
    pub(crate) fn set_page(&self, page: usize) {
        self.lock().page = page;
    }

    /// Has the app leave `conversation`.
    pub(crate) fn close(&self, conversation: &str) {
        self.lock().closed.insert(conversation.to_owned());
    }

    /// Takes the right from the app to list conversations of `kind`.
    pub(crate) fn forbid(&self, kind: &str) {
        self.lock().kinds_without_right.insert(kind.to_owned());
    }

    /// Refuses the next `calls` calls with 429.
    pub(crate) fn limit(&self, calls: usize) {
        self.lock().limited = calls;
    }

    /// Deletes the message `ts` of `conversation` once `pages` more pages were handed over.
    pub(crate) fn delete_after(&self, pages: usize, conversation: &str, ts: &str) {
        let mut state = self.lock();
        let at = state.pages + pages;
        state.deletions.push((at, conversation.to_owned(), ts.to_owned()));
    }

    /// The calls that were answered, oldest first.
    pub(crate) fn calls(&self) -> Vec<(String, Fields)> {
        self.lock().calls.clone()
    }

    /// The number of pages of messages that were handed over.
    pub(crate) fn pages(&self) -> usize {
        self.lock().pages
    }

    /// The number of calls that came before the time that a limit named.
    pub(crate) fn early(&self) -> usize {
        self.lock().early
    }

    /// Answers the call of `method` with `fields`; `None` if it is about no conversation.
    pub(crate) fn answer(&self, method: &str, fields: &Fields) -> Option<ShelfAnswer> {
        if !["users.conversations", "conversations.history", "conversations.replies"].contains(&method) {
            return None;
        }
        let mut state = self.lock();
        let now = SystemClock.monotonic();
        state.early += usize::from(state.not_before.is_some_and(|until| now < until));
        if state.limited > 0 {
            state.limited -= 1;
            state.not_before = Some(now + Duration::from_secs(1));
            return Some(ShelfAnswer::Limited(1));
        }
        state.calls.push((method.to_owned(), fields.clone()));
        let body = match method {
            "users.conversations" => state.list(fields),
            "conversations.history" => state.history(fields),
            _ => state.thread(fields),
        };
        Some(ShelfAnswer::Body(body))
    }
}

impl ShelfState {
    /// The conversations of a kind, one page of them.
    fn list(&self, fields: &Fields) -> Value {
        let kind = fields["types"].as_str();
        if self.kinds_without_right.contains(kind) {
            return json!({"ok": false, "error": "missing_scope", "needed": "groups:read"});
        }
        let first = match kind {
            "public_channel" => 'C',
            "im" => 'D',
            "private_channel" => 'G',
            other => {
                assert_eq!(other, "mpim");
                return json!({"ok": true, "channels": [], "response_metadata": {"next_cursor": ""}});
            }
        };
        let all: Vec<&String> = self.messages.keys().filter(|id| id.starts_with(first)).collect();
        let begin: usize = fields
            .get("cursor")
            .map_or(0, |cursor| cursor.parse().expect("a place"));
        let end = (begin + self.size(fields)).min(all.len());
        let channels: Vec<Value> = all[begin..end].iter().map(|id| json!({ "id": id })).collect();
        let next = if end < all.len() {
            end.to_string()
        } else {
            String::new()
        };
        json!({"ok": true, "channels": channels, "response_metadata": {"next_cursor": next}})
    }

    fn size(&self, fields: &Fields) -> usize {
        let asked: usize = fields["limit"].parse().expect("a number");
        if self.page == 0 { asked } else { asked.min(self.page) }
    }

    fn note_page(&mut self) {
        self.pages += 1;
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.deletions)
            .into_iter()
            .partition(|(at, _, _)| *at <= self.pages);
        self.deletions = later;
        for (_, conversation, ts) in due {
            self.replies.remove(&(conversation.clone(), ts.clone()));
            self.messages.get_mut(&conversation).and_then(|kept| kept.remove(&ts));
        }
    }

    /// A page of the messages between the bounds, the newest ones first.
    fn history(&mut self, fields: &Fields) -> Value {
        let channel = &fields["channel"];
        let kept = self.messages.get(channel);
        let Some(kept) = kept.filter(|_| !self.closed.contains(channel)) else {
            return json!({"ok": false, "error": "not_in_channel"});
        };
        let before = fields.get("cursor").or_else(|| fields.get("latest")).cloned();
        let oldest = fields.get("oldest").cloned().unwrap_or_default();
        let is_within = |ts: &&String| **ts > oldest && before.as_ref().is_none_or(|before| *ts < before);
        let within: Vec<&String> = kept.keys().rev().filter(is_within).collect();
        let page: Vec<&String> = within.iter().copied().take(self.size(fields)).collect();
        let has_more = page.len() < within.len();
        let next = page
            .last()
            .filter(|_| has_more)
            .map_or_else(String::new, |ts| (*ts).clone());
        let messages: Vec<Value> = page.iter().map(|ts| kept[*ts].clone()).collect();
        self.note_page();
        json!({"ok": true, "messages": messages, "has_more": has_more, "response_metadata": {"next_cursor": next}})
    }

    /// A page of the answers in a thread, the oldest ones first, behind its first message.
    fn thread(&mut self, fields: &Fields) -> Value {
        let (channel, thread) = (fields["channel"].clone(), fields["ts"].clone());
        let first = self.messages.get(&channel).and_then(|kept| kept.get(&thread)).cloned();
        let replies = self.replies.get(&(channel, thread));
        let (Some(first), Some(replies)) = (first, replies) else {
            return json!({"ok": false, "error": "thread_not_found"});
        };
        let after = fields.get("cursor").cloned().unwrap_or_default();
        let rest: Vec<&String> = replies.keys().filter(|ts| **ts > after).collect();
        let page: Vec<&String> = rest.iter().copied().take(self.size(fields)).collect();
        let has_more = page.len() < rest.len();
        let next = page
            .last()
            .filter(|_| has_more)
            .map_or_else(String::new, |ts| (*ts).clone());
        let messages: Vec<Value> = std::iter::once(first)
            .chain(page.iter().map(|ts| replies[*ts].clone()))
            .collect();
        self.note_page();
        json!({"ok": true, "messages": messages, "has_more": has_more, "response_metadata": {"next_cursor": next}})
    }
}
