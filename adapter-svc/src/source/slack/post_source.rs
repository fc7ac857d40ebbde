//! The source of an app to which Slack posts: every replica takes the posts, and the one that holds the account stores those that
//! wait for others (`debounce_ms`), notes that the account is complete, and tells of which time posts may be missing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shared::clock::{SharedClock, pause};
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::process::ShutdownSignal;
use shared::wire::watermark::SourceWatermark;
use tokio::sync::watch;

use super::SlackBot;
use super::begun_threads::BegunThreads;
use super::post_record::PostRecord;
use super::posted::PostedPayloads;
use crate::source::port::{PutEventsError, Source, SourceEnd, SourceSink};
use crate::source::posts::reader::{PostReader, PostState};
use crate::source::posts::shared_watch::SharedPosts;

/// Interval in which it is noted that the account is complete.
const NOTE_EVERY: Duration = Duration::from_mins(1);

/// Interval in which it is noted that this process takes posts.
const ALIVE_EVERY: Duration = Duration::from_secs(30);

/// An app to which Slack posts, as its holder sees it.
#[derive(Debug)]
pub struct SlackPostSource {
    /// Name of the account.
    pub name: String,
    /// Account.
    pub account: SlackAccount,
    /// Threads that began with a message to an account.
    pub threads: BegunThreads,
    /// Identity of the account, once Slack has said it.
    pub known: watch::Receiver<Option<SlackBot>>,
    /// Posts, as this replica takes them.
    pub record: Arc<PostRecord>,
    /// Watch that tells the account's posts that wait.
    pub posts: SharedPosts,
}

#[async_trait]
impl Source for SlackPostSource {
    fn channel(&self) -> &'static str {
        SLACK
    }

    fn account(&self) -> &str {
        &self.name
    }

    fn direct_policy(&self) -> DirectPolicy {
        self.account.direct
    }

    // Every replica takes posts, whichever holds the account: what it says is the state of its door.
    fn is_reported(&self) -> bool {
        false
    }

    async fn run(&self, from: Option<SourceWatermark>, sink: &SourceSink) -> SourceEnd {
        // Until then no post can be taken, so that the account is not complete.
        let Some(bot) = known_bot(&self.known).await else {
            return SourceEnd::Fenced;
        };
        let of = bot.position_name();
        let from = from.filter(|from| from.of == of);
        let posts = PostedPayloads::resume((&self.account, &self.threads), of, from.as_ref(), sink.now());
        let reader = posts.into_reader(&self.name, sink);
        tokio::select! {
            end = self.keep_noting(&reader, sink) => end,
            // Texts that were to be merged, also those of a replica that has other settings.
            end = reader.read(&self.posts) => end,
        }
    }
}

impl SlackPostSource {
    /// Notes again and again how far the account is complete.
    async fn keep_noting(&self, reader: &PostReader<'_, PostedPayloads<'_>>, sink: &SourceSink) -> SourceEnd {
        while sink.is_held() {
            let now = sink.now();
            self.record.note_alive(now);
            if self.record.takes_posts(now) {
                let noted = self.note_complete(&mut *reader.lock().await, now, sink).await;
                if let Err(error) = noted {
                    return error.into();
                }
            }
            pause(NOTE_EVERY).await;
        }
        SourceEnd::Fenced
    }

    /// Notes that the account is complete until `now`, or until the first message that waits, and tells the gap before it.
    async fn note_complete(
        &self,
        posts: &mut PostState<PostedPayloads<'_>>,
        now: UnixMillis,
        sink: &SourceSink,
    ) -> Result<(), PutEventsError> {
        let from = posts.account.complete_until;
        let complete = posts.waiting_since().unwrap_or(now).min(now);
        posts.account.complete_until = from.max(Some(complete));
        let position = posts.position(now);
        match from.and_then(|from| self.record.find_gap(from, now)) {
            Some(gap) => sink.gap(&gap, position).await,
            None => sink.put(Vec::new(), position).await,
        }
    }
}

/// Notes in `record` that this process takes posts, from the time at which the account is `known` until `shutdown`.
pub async fn keep_alive(
    record: Arc<PostRecord>,
    known: watch::Receiver<Option<SlackBot>>,
    clock: SharedClock,
    shutdown: ShutdownSignal,
) {
    let noting = async {
        if known_bot(&known).await.is_none() {
            return;
        }
        loop {
            record.note_alive(clock.now());
            pause(ALIVE_EVERY).await;
        }
    };
    tokio::select! {
        () = noting => {}
        () = shutdown.requested() => {}
    }
}

/// Waits until Slack has said who the account is; `None` if nobody asks any more.
async fn known_bot(known: &watch::Receiver<Option<SlackBot>>) -> Option<SlackBot> {
    let mut known = known.clone();
    let found = known.wait_for(Option::is_some).await.ok()?;
    found.clone()
}
