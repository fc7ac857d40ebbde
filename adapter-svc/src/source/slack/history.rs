//! Reads what an app's conversations kept: `conversations.history`, and the answers in threads.
//!
//! Slack hands a time's messages over newest first, page by page. So a conversation is read in windows of time, the oldest
//! first, each of which is read whole before its messages are stored in their order. Where a window has more messages than
//! fit, those before its newest ones become a window of their own: many messages are asked for twice, and never all of them
//! held in memory. Sources: <https://docs.slack.dev/reference/methods/conversations.history>,
//! <https://docs.slack.dev/reference/methods/conversations.replies>,
//! <https://docs.slack.dev/reference/methods/users.conversations>.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize as _;
use serde_json::Value;
use shared::clock::SharedClock;
use shared::model::event::Event;
use shared::platform::policy::DirectPolicy;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::platform::slack_api::is_conversation_id;
use shared::wire::operator::backfill::SkippedConversation;
use tokio::sync::OnceCell;

use super::SlackBot;
use super::begun_threads::BegunThreads;
use super::client::{ListPage, WebCallError, identify_account, read_list};
use super::history_position::{MAX_WINDOW, SlackPosition, end_of, is_reply, stamp_of, thread_of, time_of};
use super::normalize::history_event;
use super::post_payload::note_refused;
use super::threads::apply_policy;
use crate::source::port::history::{AccountHistory, FoundConversations, HistoryPage, HistorySpan};
use crate::source::port::history_calls::{HistoryCallError, HistoryCalls, HistoryRefused};

/// Kinds of conversations. Each is asked for alone, because an app may lack the right for one of them.
const KINDS: [&str; 4] = ["public_channel", "private_channel", "mpim", "im"];

/// Wait after a limit that Slack names in words alone.
const LIMITED_AGAIN: Duration = Duration::from_secs(30);
/// Errors that pass.
const PASSING: [&str; 5] = [
    "fatal_error",
    "internal_error",
    "request_timeout",
    "service_unavailable",
    "team_added_to_org",
];
/// Error of a call for which the app has no right: other calls may be allowed.
const NO_RIGHT: &str = "missing_scope";

/// The histories of one app's account.
pub struct SlackHistory {
    name: String,
    account: SlackAccount,
    http: reqwest::Client,
    threads: BegunThreads,
    clock: SharedClock,
    bot: OnceCell<SlackBot>,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for SlackHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlackHistory({})", self.name)
    }
}

/// The messages of a window.
enum Window {
    /// All of them.
    Whole(Vec<(i64, Value)>),
    /// There are too many; the oldest one that was read has this time, in microseconds.
    TooMany(i64),
}

impl SlackHistory {
    /// Returns the histories of the account `name`, which calls by `http` and knows `threads`.
    #[must_use]
    pub fn new(
        name: String,
        account: SlackAccount,
        http: reqwest::Client,
        threads: BegunThreads,
        clock: SharedClock,
    ) -> Self {
        Self {
            name,
            account,
            http,
            threads,
            clock,
            bot: OnceCell::new(),
        }
    }

    /// Returns who the account is. It is asked once.
    async fn identify(&self, calls: &HistoryCalls) -> Result<&SlackBot, HistoryRefused> {
        let ask = || async {
            let known = calls.make(|| async {
                let known = identify_account(&self.http, &self.name, &self.account).await;
                known.map_err(to_history_error)
            });
            known.await.map(|known| known.bot)
        };
        self.bot.get_or_try_init(ask).await
    }

    async fn list(
        &self,
        method: &str,
        fields: &[(&str, &str)],
        cursor: Option<&str>,
        calls: &HistoryCalls,
    ) -> Result<ListPage, HistoryRefused> {
        let page = calls.make(|| async {
            let page = read_list(&self.http, &self.account, method, fields, cursor).await;
            page.map_err(to_history_error)
        });
        page.await
    }

    /// Reads the messages of `conversation` behind the time `from_us` and up to `end_us`. `may_split` says whether it may be told
    /// that they are too many.
    async fn read_window(
        &self,
        conversation: &str,
        (from_us, end_us): (i64, i64),
        may_split: bool,
        calls: &HistoryCalls,
    ) -> Result<Window, HistoryRefused> {
        // Messages of the bounds themselves are left out.
        let (oldest, latest) = (stamp_of(from_us), stamp_of(end_us.saturating_add(1)));
        let fields = [
            ("channel", conversation),
            ("oldest", oldest.as_str()),
            ("latest", latest.as_str()),
        ];

        let (mut messages, mut cursor): (Vec<(i64, Value)>, Option<String>) = (Vec::new(), None);
        loop {
            let page = self.list("conversations.history", &fields, cursor.as_deref(), calls);
            let page = page.await?;
            cursor = page.next_cursor();
            let timed = page.messages.into_iter().filter_map(|message| {
                let at = time_of(&message).filter(|at| *at > from_us && *at <= end_us);
                at.map(|at| (at, message))
            });
            messages.extend(timed);

            if cursor.is_none() {
                break;
            }
            let oldest = messages.iter().map(|(at, _)| *at).min();
            if let Some(oldest) = oldest.filter(|_| may_split && messages.len() >= MAX_WINDOW) {
                return Ok(Window::TooMany(oldest));
            }
        }

        messages.sort_by_key(|(at, _)| *at);
        messages.dedup_by_key(|(at, _)| *at);
        Ok(Window::Whole(messages))
    }

    /// Reads the next window behind `position`; or finds out that it is two.
    async fn read_messages(
        &self,
        conversation: &str,
        mut position: SlackPosition,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<HistoryPage, HistoryRefused> {
        let bot = self.identify(calls).await?;
        let end_us = position.window_end(span);
        let window = self.read_window(conversation, (position.read_us, end_us), position.may_split(), calls);
        let mut page = HistoryPage::default();
        match window.await? {
            Window::TooMany(oldest_us) => position.split(oldest_us),
            Window::Whole(messages) => {
                let threads = messages.iter().filter_map(|(_, message)| thread_of(message));
                position.note_window(end_us, threads.collect());
                for (_, message) in &messages {
                    self.add_event(&mut page, bot, conversation, message);
                }
                // Later messages of their threads may come to any replica.
                for event in &page.events {
                    self.threads.note(event).await;
                }
            }
        }
        page.next = position.to_value(span);
        Ok(page)
    }

    /// Reads the next page of the first thread of `position`, `thread`.
    async fn read_thread(
        &self,
        conversation: &str,
        thread: &str,
        mut position: SlackPosition,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<HistoryPage, HistoryRefused> {
        let bot = self.identify(calls).await?;
        let fields = [("channel", conversation), ("ts", thread)];
        let cursor = position.cursor.take();
        let read = self.list("conversations.replies", &fields, cursor.as_deref(), calls);
        let replies = match (read.await, cursor) {
            (Ok(replies), _) => replies,
            // A place in a list may be void after a while: the thread is read once more.
            (Err(_), Some(_)) if !position.is_again => {
                position.is_again = true;
                return Ok(HistoryPage {
                    next: position.to_value(span),
                    ..HistoryPage::default()
                });
            }
            // It was deleted meanwhile.
            (Err(refused), Some(_) | None) => {
                tracing::info!(account = self.name, conversation, thread, %refused, "a thread cannot be read");
                ListPage::default()
            }
        };

        let mut page = HistoryPage::default();
        position.note_thread(replies.next_cursor());
        let mut messages: Vec<(i64, Value)> = replies
            .messages
            .into_iter()
            .filter_map(|message| Some((time_of(&message)?, message)))
            .filter(|(at, message)| *at <= end_of(span) && is_reply(message, thread))
            .collect();
        messages.sort_by_key(|(at, _)| *at);
        for (_, message) in &messages {
            self.add_event(&mut page, bot, conversation, message);
        }
        page.next = position.to_value(span);
        Ok(page)
    }

    /// Adds the event of `message`, as the account's settings leave it, to `page`.
    fn add_event(&self, page: &mut HistoryPage, bot: &SlackBot, conversation: &str, message: &Value) {
        match history_event(bot, conversation, message, self.clock.now()) {
            Ok(mut event) => {
                self.apply_settings(&mut event);
                page.events.push(event);
            }
            Err(reason) => {
                note_refused(&self.name, message, &reason);
                page.passed_over += 1;
            }
        }
    }

    fn apply_settings(&self, event: &mut Event) {
        let is_begun = self.threads.knows(event);
        apply_policy(&self.account.access(), event, is_begun);
        // Its answers are read behind it.
        let _unnoted = self.threads.remember(event);
    }
}

#[async_trait]
impl AccountHistory for SlackHistory {
    fn channel(&self) -> &'static str {
        SLACK
    }

    fn account(&self) -> &str {
        &self.name
    }

    fn direct_policy(&self) -> DirectPolicy {
        self.account.direct
    }

    fn merges_texts(&self) -> bool {
        self.account.debounce_ms > 0
    }

    fn is_conversation(&self, text: &str) -> bool {
        is_conversation_id(text)
    }

    async fn find_conversations(
        &self,
        _span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<FoundConversations, HistoryRefused> {
        let mut found = FoundConversations::default();
        for kind in KINDS {
            let (fields, mut cursor) = ([("types", kind)], None::<String>);
            loop {
                let page = self
                    .list("users.conversations", &fields, cursor.as_deref(), calls)
                    .await;
                let page = match page {
                    Ok(page) => page,
                    Err(HistoryRefused(reason)) => {
                        let conversation = kind.to_owned();
                        found.skipped.push(SkippedConversation { conversation, reason });
                        break;
                    }
                };
                cursor = page.next_cursor();
                let ids = page.channels.into_iter().filter_map(|channel| channel.id);
                found.conversations.extend(ids.filter(|id| is_conversation_id(id)));
                if cursor.is_none() {
                    break;
                }
            }
        }

        if found.skipped.len() == KINDS.len() {
            let reasons = found.skipped.into_iter().map(|skipped| skipped.reason);
            return Err(HistoryRefused(reasons.collect::<Vec<_>>().join("; ")));
        }
        Ok(found)
    }

    async fn read_page(
        &self,
        conversation: &str,
        position: &Value,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<HistoryPage, HistoryRefused> {
        // A position that cannot be read is that of the beginning: the same events are read again.
        let position = SlackPosition::deserialize(position).unwrap_or_else(|_| SlackPosition::start(span));
        match position.threads.first().cloned() {
            Some(thread) => self.read_thread(conversation, &thread, position, span, calls).await,
            None => self.read_messages(conversation, position, span, calls).await,
        }
    }
}

fn to_history_error(error: WebCallError) -> HistoryCallError {
    let refused = |words: String| HistoryCallError::Refused {
        words,
        pause: Duration::ZERO,
    };
    match error {
        WebCallError::Limited(after) => HistoryCallError::Limited {
            after,
            words: WebCallError::Limited(after).to_string(),
        },
        WebCallError::Unauthorized(words) if words == NO_RIGHT => refused(words),
        WebCallError::Unauthorized(_) => HistoryCallError::Unauthorized(error.to_string()),
        WebCallError::Refused(words) if words == "ratelimited" => HistoryCallError::Limited {
            after: LIMITED_AGAIN,
            words,
        },
        WebCallError::Refused(words) if PASSING.contains(&words.as_str()) => HistoryCallError::Unreachable(words),
        WebCallError::Refused(words) => refused(words),
        WebCallError::Unreachable(_) => HistoryCallError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_asked_again_and_what_does_not_is_passed_over() {
        let of = |words: &str| to_history_error(WebCallError::Refused(words.to_owned()));
        assert!(matches!(of("ratelimited"), HistoryCallError::Limited { .. }));
        assert!(matches!(of("internal_error"), HistoryCallError::Unreachable(_)));
        assert!(matches!(of("not_in_channel"), HistoryCallError::Refused { .. }));
        let of = |words: &str| to_history_error(WebCallError::Unauthorized(words.to_owned()));
        assert!(matches!(of("token_revoked"), HistoryCallError::Unauthorized(_)));
        assert!(matches!(of("missing_scope"), HistoryCallError::Refused { .. }));
    }
}
