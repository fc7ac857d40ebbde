//! How far a conversation of Slack was read, and what decides about the next page. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::platform::slack_api::parse_stamp;

use crate::source::port::history::HistorySpan;

/// Number of messages from which a window of time is read in two.
pub(super) const MAX_WINDOW: usize = 1_000;
/// Maximum number of windows that are left, which a position names.
const MAX_BOUNDS: usize = 10_000;
/// Number of microseconds in a millisecond.
const US_PER_MS: i64 = 1_000;

/// How far a conversation was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlackPosition {
    /// Time up to which its messages are stored, in microseconds.
    pub(super) read_us: i64,
    /// Ends of the windows that are left, the next one last. The last window ends with the time that is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bounds_us: Vec<i64>,
    /// Threads that are read before the next window: the stamps of their first messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) threads: Vec<String>,
    /// Page of the first of them; absent = the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
    /// Whether the first of them is read once more, because a page of it could not be found again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_again: bool,
}

impl SlackPosition {
    /// Returns the beginning of `span`. The first window is all of it, as most conversations have few messages.
    pub(super) fn start(span: HistorySpan) -> Self {
        Self {
            read_us: span.since.0.saturating_mul(US_PER_MS).saturating_sub(1),
            bounds_us: Vec::new(),
            threads: Vec::new(),
            cursor: None,
            is_again: false,
        }
    }

    /// Returns the end of the next window.
    pub(super) fn window_end(&self, span: HistorySpan) -> i64 {
        self.bounds_us.last().copied().unwrap_or(end_of(span))
    }

    /// Returns whether the next window may be read in two.
    pub(super) fn may_split(&self) -> bool {
        self.bounds_us.len() < MAX_BOUNDS
    }

    /// Takes in that the next window has more messages than those from `oldest_us` on, which are enough for a window.
    pub(super) fn split(&mut self, oldest_us: i64) {
        self.bounds_us.push(oldest_us.saturating_sub(1).max(self.read_us));
    }

    /// Takes in that the window up to `end_us` is stored but for the answers in `threads`.
    pub(super) fn note_window(&mut self, end_us: i64, threads: Vec<String>) {
        self.read_us = end_us;
        self.bounds_us.pop();
        self.threads = threads;
    }

    /// Takes in that a page of the first thread is stored, behind which the page at `cursor` follows.
    pub(super) fn note_thread(&mut self, cursor: Option<String>) {
        if cursor.is_none() && !self.threads.is_empty() {
            self.threads.remove(0);
            self.is_again = false;
        }
        self.cursor = cursor;
    }

    /// Returns its stored form; `None` if nothing of `span` is left.
    pub(super) fn to_value(&self, span: HistorySpan) -> Option<Value> {
        let is_over = self.threads.is_empty() && self.read_us >= end_of(span);
        // A struct of integers and texts has a JSON form.
        (!is_over).then(|| serde_json::to_value(self).unwrap_or_default())
    }
}

/// Returns the last microsecond of `span`.
pub(super) const fn end_of(span: HistorySpan) -> i64 {
    span.until.0.saturating_mul(US_PER_MS).saturating_add(US_PER_MS - 1)
}

/// Returns the stamp of the time `us`, in microseconds.
pub(super) fn stamp_of(us: i64) -> String {
    let us = us.max(0);
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// Returns the time of `message`, in microseconds; `None` if it has none.
pub(super) fn time_of(message: &Value) -> Option<i64> {
    let ts = message.get("ts")?.as_str()?;
    let UnixMillis(millis) = parse_stamp(ts)?;
    let rest: i64 = ts.get(ts.len() - 3..)?.parse().ok()?;
    Some(millis * US_PER_MS + rest)
}

/// Returns the thread that `message` began, if it has answers.
pub(super) fn thread_of(message: &Value) -> Option<String> {
    let text = |key: &str| message.get(key).and_then(Value::as_str);
    let replies = message.get("reply_count").and_then(Value::as_u64).unwrap_or(0);
    let ts = text("ts")?;
    (replies > 0 && text("thread_ts") == Some(ts)).then(|| ts.to_owned())
}

/// Returns whether `message`, of a page of `thread`, is an answer that the conversation's own history does not have.
pub(super) fn is_reply(message: &Value, thread: &str) -> bool {
    let text = |key: &str| message.get(key).and_then(Value::as_str);
    text("ts") != Some(thread) && text("subtype") != Some("thread_broadcast")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SPAN: HistorySpan = HistorySpan {
        since: UnixMillis(1_000),
        until: UnixMillis(2_000),
    };

    #[test]
    fn a_conversation_is_read_in_windows_that_fit_its_messages() {
        let mut position = SlackPosition::start(SPAN);
        assert_eq!((position.read_us, position.window_end(SPAN)), (999_999, 2_000_999));

        // The newest ones begin at 1.8 s, and those before them at 1.3 s.
        position.split(1_800_000);
        position.split(1_300_000);
        assert_eq!(position.window_end(SPAN), 1_299_999);
        let kept = position.to_value(SPAN).expect("all of it is left");
        assert_eq!(SlackPosition::deserialize(&kept).expect("readable"), position);

        let mut ends = Vec::new();
        while position.to_value(SPAN).is_some() {
            let end = position.window_end(SPAN);
            ends.push((position.read_us, end));
            position.note_window(end, Vec::new());
        }
        assert_eq!(
            ends,
            [(999_999, 1_299_999), (1_299_999, 1_799_999), (1_799_999, 2_000_999)]
        );

        // It never goes back, whatever the times say, and its stored form is bounded.
        position.split(0);
        assert_eq!(position.window_end(SPAN), position.read_us);
        while position.may_split() {
            position.split(0);
        }
        assert_eq!(position.bounds_us.len(), MAX_BOUNDS);
    }

    #[test]
    fn threads_are_read_before_the_next_window() {
        let mut position = SlackPosition::start(SPAN);
        position.note_window(2_000_999, vec!["1.100000".to_owned(), "1.200000".to_owned()]);
        let kept = position.to_value(SPAN).expect("threads are left");
        assert_eq!(SlackPosition::deserialize(&kept).expect("readable"), position);

        position.note_thread(Some("page".to_owned()));
        assert_eq!(position.threads.first().map(String::as_str), Some("1.100000"));
        position.note_thread(None);
        assert_eq!(position.threads, ["1.200000"]);
        position.note_thread(None);
        assert_eq!(position.to_value(SPAN), None);
    }

    #[test]
    fn stamps_are_microseconds() {
        assert_eq!(stamp_of(1_767_326_125_870_439), "1767326125.870439");
        assert_eq!(
            time_of(&json!({"ts": "1767326125.870439"})),
            Some(1_767_326_125_870_439)
        );
        for odd in [json!({}), json!({"ts": 5}), json!({"ts": "5"}), json!(null)] {
            assert_eq!(time_of(&odd), None, "{odd}");
        }
        assert_eq!(stamp_of(-1), "0.000000");
    }

    #[test]
    fn answers_are_those_that_the_history_does_not_have() {
        let first = json!({"ts": "1.000000", "thread_ts": "1.000000", "reply_count": 2});
        assert_eq!(thread_of(&first).as_deref(), Some("1.000000"));
        assert!(!is_reply(&first, "1.000000"));
        let reply = json!({"ts": "2.000000", "thread_ts": "1.000000"});
        assert!(thread_of(&reply).is_none() && is_reply(&reply, "1.000000"));
        let shown = json!({"ts": "3.000000", "thread_ts": "1.000000", "subtype": "thread_broadcast"});
        assert!(!is_reply(&shown, "1.000000"));
        assert!(thread_of(&json!({"ts": "1.000000", "thread_ts": "1.000000", "reply_count": 0})).is_none());
    }
}
