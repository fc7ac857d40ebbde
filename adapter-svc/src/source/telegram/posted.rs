//! A bot's updates that were posted, as its holder takes them: the position is the one of an account that is polled, so that
//! its memory of groups and albums stays when the way of receiving is changed.

use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::platform::telegram::{TELEGRAM, TelegramAccount};

use super::client::BotClient;
use super::progress::UpdateProgress;
use crate::source::merge::{MergeMemory, MergeWaits};
use crate::source::port::SourceSink;
use crate::source::port::access::apply_access;
use crate::source::port::sink::SourcePosition;
use crate::source::posts::PostQueue;
use crate::source::posts::reader::{PostReader, PostedAccount};

/// Age from which a text comes late, in milliseconds: longer than a burst is open, and far shorter than it takes a busy account
/// to write more than is remembered.
const LATE_MS: i64 = 30_000;

/// An account whose updates were posted.
#[derive(Debug)]
pub struct PostedUpdates<'a> {
    account: &'a TelegramAccount,
    client: &'a BotClient,
    /// How far its updates are stored.
    pub progress: UpdateProgress,
}

impl<'a> PostedUpdates<'a> {
    /// Returns `account`, which `client` calls, with the `progress` of its updates.
    #[must_use]
    pub const fn new(account: &'a TelegramAccount, client: &'a BotClient, progress: UpdateProgress) -> Self {
        Self {
            account,
            client,
            progress,
        }
    }

    /// Returns the reader of the posts to the account `name`, which stores their events with `sink`.
    #[must_use]
    pub fn into_reader(self, name: &str, sink: &'a SourceSink) -> PostReader<'a, Self> {
        let waits = MergeWaits {
            album_ms: i64::try_from(self.account.album_wait_ms).unwrap_or(i64::MAX),
            alone_until: self.client.platform_time().unwrap_or_else(|| sink.now()),
            ..MergeWaits::of_texts(self.account.debounce_ms)
        };
        // The numbers of messages ascend within a chat alone.
        let memory = MergeMemory {
            until: None,
            decided: self.progress.position.closed.clone(),
        };
        let queue = PostQueue::new(sink.bus(), TELEGRAM, name);
        PostReader::new(queue, sink, self, (waits, memory))
    }
}

impl PostedAccount for PostedUpdates<'_> {
    fn channel(&self) -> &'static str {
        TELEGRAM
    }

    fn take_in(&mut self, event: &mut Event) {
        let groups = self.account.groups.as_ref();
        let is_named = |group: &str| groups.is_some_and(|groups| groups.contains_key(group));
        self.progress.follow_move(event, is_named);
    }

    fn apply_settings(&self, event: &mut Event) {
        apply_access(&self.account.access(), event);
    }

    fn alone_until(&self) -> Option<UnixMillis> {
        self.client.platform_time().map(|now| now.plus(-LATE_MS))
    }

    fn position(&mut self, memory: MergeMemory, now: UnixMillis) -> SourcePosition {
        self.progress.position.closed = memory.decided;
        self.progress.to_position(now)
    }
}
