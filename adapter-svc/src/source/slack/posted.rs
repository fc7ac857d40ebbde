//! An app's payloads that were posted and wait for those that belong to them, as the account's holder takes them: the position is
//! the one of an app with a socket, so that decisions about merged texts stay when the way of receiving is changed.

use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::wire::watermark::SourceWatermark;

use super::begun_threads::BegunThreads;
use super::threads::apply_policy;
use crate::source::merge::{MergeMemory, MergeWaits};
use crate::source::port::SourceSink;
use crate::source::port::sink::SourcePosition;
use crate::source::posts::PostQueue;
use crate::source::posts::reader::{PostReader, PostedAccount};

/// An account whose payloads were posted.
#[derive(Debug)]
pub struct PostedPayloads<'a> {
    account: &'a SlackAccount,
    threads: &'a BegunThreads,
    /// Name of the app in positions.
    of: String,
    /// Time up to which no payload was missed; `None` before anything is known.
    pub complete_until: Option<UnixMillis>,
    /// Decisions about merged texts.
    pub memory: MergeMemory,
}

impl<'a> PostedPayloads<'a> {
    /// Returns `account`, which knows `threads` and whose app is named `of` in positions, as the watermark `from` of that app
    /// says, for a run that starts at `now`.
    #[must_use]
    pub fn resume(
        (account, threads): (&'a SlackAccount, &'a BegunThreads),
        of: String,
        from: Option<&SourceWatermark>,
        now: UnixMillis,
    ) -> Self {
        // A memory that cannot be read lets texts come again that were merged.
        let memory: Option<MergeMemory> = from.and_then(|from| serde_json::from_value(from.position.clone()).ok());
        let known = (from.map(|from| from.complete_until), memory.unwrap_or_default());
        Self::at_work((account, threads), of, known, now)
    }

    /// Returns `account` as it is now, at `now`: complete up to `complete_until`, and with the decisions of `memory`.
    #[must_use]
    pub fn at_work(
        (account, threads): (&'a SlackAccount, &'a BegunThreads),
        of: String,
        (complete_until, memory): (Option<UnixMillis>, MergeMemory),
        now: UnixMillis,
    ) -> Self {
        // A message's number is its time in microseconds.
        let start = now.0.saturating_mul(1_000);
        Self {
            account,
            threads,
            of,
            complete_until,
            memory: memory.with_ascending_numbers(start),
        }
    }

    /// Returns the reader of the posts to the account `name`, which stores their events with `sink`.
    #[must_use]
    pub fn into_reader(self, name: &str, sink: &'a SourceSink) -> PostReader<'a, Self> {
        let merging = (MergeWaits::of_texts(self.account.debounce_ms), self.memory.clone());
        let queue = PostQueue::new(sink.bus(), SLACK, name);
        PostReader::new(queue, sink, self, merging)
    }
}

impl PostedAccount for PostedPayloads<'_> {
    fn channel(&self) -> &'static str {
        SLACK
    }

    fn take_in(&mut self, _event: &mut Event) {}

    fn apply_settings(&self, event: &mut Event) {
        let is_begun = self.threads.knows(event);
        apply_policy(&self.account.access(), event, is_begun);
        // The door has noted it, unless another one of merged texts addresses the app.
        let _unnoted = self.threads.remember(event);
    }

    fn alone_until(&self) -> Option<UnixMillis> {
        None
    }

    fn position(&mut self, memory: MergeMemory, now: UnixMillis) -> SourcePosition {
        self.memory = memory;
        SourcePosition {
            of: self.of.clone(),
            // Slack has no position: it repeats payloads that were not taken. Integers and texts have a JSON form.
            position: serde_json::to_value(&self.memory).unwrap_or_default(),
            complete_until: self.complete_until.unwrap_or(now),
        }
    }
}
