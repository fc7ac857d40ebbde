//! Fetching the files of events, on their way to the stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use shared::attachments::{AttachmentStore, FileType};
use shared::bus::{Bus, Kv, StoreObjectError};
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::model::event::{Attachment, Event, RefusedAttachment};
use shared::wire::subject::token;
use shared::wire::topology::buckets;
use tokio::sync::Semaphore;

use super::media::{FetchFileError, Media};
use super::plan::{FetchOutcome, SizeLimits, apply_outcome, has_files, is_open, plan_fetches};
use crate::config::AttachmentConfig;

/// Maximum time for fetching a file.
const FETCH_WITHIN: Duration = Duration::from_mins(2);
/// Maximum time for storing a file.
const STORE_WITHIN: Duration = Duration::from_mins(1);
/// Maximum time for noting an event whose files are still to be fetched.
const NOTE_WITHIN: Duration = Duration::from_millis(500);
/// Number of files that follow later and are fetched at once, beside those of new events.
const LATE_AT_ONCE: usize = 2;
/// Time for which such an event is noted.
pub(super) const NOTED_FOR: Duration = Duration::from_hours(24);

/// The files of all accounts, by channel and account.
pub type AccountMedia = BTreeMap<(&'static str, String), Arc<dyn Media>>;

/// Fetches the files of events. Clones share it.
#[derive(Debug, Clone)]
pub struct AttachmentFetcher {
    parts: Arc<FetcherParts>,
}

#[derive(Debug)]
struct FetcherParts {
    store: AttachmentStore,
    /// Events with files that are still to be fetched, by [`fetch_key`].
    fetches: Kv<Event>,
    media: AccountMedia,
    limits: SizeLimits,
    /// Time for which an event waits for its files.
    wait: Duration,
    /// Files of new events that are fetched at once, which bounds the memory.
    turns: Semaphore,
    /// Files that follow later and are fetched at once: slow ones hold no new ones up.
    late_turns: Semaphore,
}

impl AttachmentFetcher {
    /// Returns the fetcher of the files of `media`, within the bounds of `config`.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock, media: AccountMedia, config: &AttachmentConfig) -> Self {
        let parts = FetcherParts {
            store: AttachmentStore::new(bus, clock),
            fetches: bus.kv(buckets::FETCHES),
            // Without a size there is nothing to fetch.
            media: if config.max_file_bytes == 0 {
                AccountMedia::new()
            } else {
                media
            },
            limits: SizeLimits {
                file: config.max_file_bytes,
                event: config.max_event_bytes,
            },
            wait: Duration::from_millis(config.wait_ms),
            turns: Semaphore::new(config.at_once),
            late_turns: Semaphore::new(LATE_AT_ONCE),
        };
        Self { parts: Arc::new(parts) }
    }

    /// Returns the store of the files.
    pub(super) fn store(&self) -> &AttachmentStore {
        &self.parts.store
    }

    /// Returns the events whose files are still to be fetched.
    pub(super) fn fetches(&self) -> &Kv<Event> {
        &self.parts.fetches
    }

    /// Returns the files of the account of `event`, if this process can fetch them.
    fn media_of(&self, event: &Event) -> Option<Arc<dyn Media>> {
        let key =
            |(channel, account): &&(&'static str, String)| *channel == event.channel && account == event.account();
        let (_, media) = self.parts.media.iter().find(|(name, _)| key(name))?;
        Some(Arc::clone(media))
    }

    /// Returns whether this process can fetch the files of the account of `event`.
    pub(super) fn knows(&self, event: &Event) -> bool {
        self.media_of(event).is_some()
    }

    /// Fetches the files of `events` and writes into each attachment what became of it; at most for the configured time, and
    /// for `most`. To be called before the events are stored: those with files that are still open are noted, so that the
    /// files follow.
    pub async fn settle(&self, events: &mut [Event], most: Duration) {
        let wait = self.parts.wait.min(most);
        self.fetch_open(events, wait, &self.parts.turns).await;
        let open = events.iter().filter(|event| has_files(event) && self.knows(event));
        join_all(open.map(|event| self.note(event))).await;
    }

    /// Fetches the open files of `events`, which were noted before, at most for `wait`.
    pub(super) async fn fetch_late(&self, events: &mut [Event], wait: Duration) {
        self.fetch_open(events, wait, &self.parts.late_turns).await;
    }

    async fn fetch_open(&self, events: &mut [Event], wait: Duration, turns: &Semaphore) {
        let mut fetches = FuturesUnordered::new();
        for (place, event) in events.iter_mut().enumerate() {
            let Some(media) = self.media_of(event) else { continue };
            for index in plan_fetches(event, self.parts.limits) {
                let (media, file, channel) = (
                    Arc::clone(&media),
                    event.attachments[index].clone(),
                    event.channel.clone(),
                );
                fetches.push(async move {
                    let _turn = turns.acquire().await;
                    (place, index, self.fetch(media.as_ref(), &channel, &file).await)
                });
            }
        }

        let settled = async {
            while let Some((place, index, outcome)) = fetches.next().await {
                apply_outcome(&mut events[place].attachments[index], outcome);
            }
        };
        // What is not there by then stays open.
        let _ = tokio::time::timeout(wait, settled).await;
    }

    async fn fetch(&self, media: &dyn Media, channel: &str, file: &Attachment) -> FetchOutcome {
        let (outcome, word) = match self.fetch_and_store(media, file).await {
            Ok(outcome) => (outcome, "stored"),
            Err(error) => match error.refusal() {
                Some(why) => (FetchOutcome::Refused(why), why.name()),
                None => {
                    tracing::debug!(channel, %error, "failed to fetch a file; trying again later");
                    (FetchOutcome::Later, "later")
                }
            },
        };
        metrics::counter!("nexus_attachments_total", "source" => channel.to_owned(), "outcome" => word).increment(1);
        outcome
    }

    async fn fetch_and_store(&self, media: &dyn Media, file: &Attachment) -> Result<FetchOutcome, FetchFileError> {
        let late = |what: &str| FetchFileError::NotNow(format!("{what} took too long"));
        let fetched = tokio::time::timeout(FETCH_WITHIN, media.fetch(file, self.parts.limits.file));
        let bytes = fetched.await.map_err(|_| late("the download"))??;

        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let file_type = FileType::of(&bytes, file.mime_type.as_deref(), &file.media_type);
        let stored = tokio::time::timeout(STORE_WITHIN, self.parts.store.store(bytes));
        match stored.await.map_err(|_| late("the object store"))? {
            Ok(hash) => Ok(FetchOutcome::Stored { hash, size, file_type }),
            Err(StoreObjectError::Full { .. }) => {
                tracing::error!("the object store of attachments is full; a file was not stored");
                Ok(FetchOutcome::Refused(RefusedAttachment::Full))
            }
            Err(error @ (StoreObjectError::Bucket { .. } | StoreObjectError::File { .. })) => {
                Err(FetchFileError::NotNow(describe_error(&error)))
            }
        }
    }

    /// Notes `event`, so that its open files follow. Without the note they stay at the platform.
    async fn note(&self, event: &Event) {
        let key = fetch_key(event);
        let noted = self.parts.fetches.put_ttl(&key, event, NOTED_FOR);
        let error = match tokio::time::timeout(NOTE_WITHIN, noted).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => describe_error(&error),
            Err(_) => "it took too long".to_owned(),
        };
        tracing::warn!(event_id = %event.id, error, "failed to note that files are still to be fetched");
    }
}

/// Returns the key of `event` in KV `fetches`. Later versions of an item have the same key.
pub(super) fn fetch_key(event: &Event) -> String {
    token(event.id.as_str())
}

/// Returns whether `event` has files that are still to be fetched.
pub(super) fn has_open_files(event: &Event) -> bool {
    event.attachments.iter().any(is_open)
}
