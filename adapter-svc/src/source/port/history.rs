//! The port to what an account's conversations kept: read page by page, oldest first.
//!
//! A source reads what happens from now on; a history, what was written before. The events of both have the same ids.
//! Source: `docs/design/channels.md` §1.11.

use async_trait::async_trait;
use serde_json::Value;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::wire::operator::backfill::SkippedConversation;

use super::history_calls::{HistoryCalls, HistoryRefused};

/// Reads the histories of one account of a platform.
#[async_trait]
pub trait AccountHistory: Send + Sync + 'static {
    /// Returns the name of the channel.
    fn channel(&self) -> &'static str;

    /// Returns the name of the account.
    fn account(&self) -> &str;

    /// Returns the rule for users that write to the account directly.
    fn direct_policy(&self) -> DirectPolicy;

    /// Returns whether the account's source makes one event of several texts, so that none is read here that it has still to
    /// store.
    fn merges_texts(&self) -> bool {
        false
    }

    /// Returns whether `text` has the form of a conversation's id.
    fn is_conversation(&self, text: &str) -> bool;

    /// Returns the conversations that the account finds and that may have messages of `span`, in any order.
    ///
    /// # Errors
    /// Returns [`HistoryRefused`] if the platform does not name them to this account.
    async fn find_conversations(
        &self,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<FoundConversations, HistoryRefused>;

    /// Returns the next messages of `conversation` in `span`: those behind `position`, which an earlier page named; null =
    /// from the beginning.
    ///
    /// # Errors
    /// Returns [`HistoryRefused`] if this account cannot read the conversation.
    async fn read_page(
        &self,
        conversation: &str,
        position: &Value,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<HistoryPage, HistoryRefused>;
}

/// A time of which histories are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistorySpan {
    /// Time of the first messages.
    pub since: UnixMillis,
    /// Time of the last messages.
    pub until: UnixMillis,
}

impl HistorySpan {
    /// Returns whether it has the time `at`.
    #[must_use]
    pub fn contains(&self, at: UnixMillis) -> bool {
        (self.since..=self.until).contains(&at)
    }
}

/// The conversations that an account finds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundConversations {
    /// The platform's ids.
    pub conversations: Vec<String>,
    /// Places in which they could not be looked for.
    pub skipped: Vec<SkippedConversation>,
}

/// A part of a history.
#[derive(Debug, Default, PartialEq)]
pub struct HistoryPage {
    /// Events of the messages, oldest first, as the account's settings leave them.
    pub events: Vec<Event>,
    /// Number of messages that are no events.
    pub passed_over: u64,
    /// Position behind them; `None` = the conversation has no more of the span.
    pub next: Option<Value>,
}
