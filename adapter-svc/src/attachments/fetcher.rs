//! Fetching the files of events, on their way to the stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use shared::attachments::{AttachmentStore, FileType};
use shared::bus::{Bus, StoreObjectError};
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::model::event::{Attachment, AttachmentState, Event, EventDirection, EventId, RefusedAttachment};
use tokio::sync::Semaphore;

use super::allowance::StoredBytes;
use super::media::{FetchFileError, Media};
use super::note::{FetchNotes, WriteNoteError};
use super::plan::{FetchOutcome, SizeLimits, apply_outcome, has_files, is_open, plan_fetches};
use crate::config::AttachmentConfig;
use crate::encoded_event::NoteStep;

/// Maximum time for fetching a file.
const FETCH_WITHIN: Duration = Duration::from_mins(2);
/// Maximum time for storing a file.
const STORE_WITHIN: Duration = Duration::from_mins(1);
/// Number of files that follow later and are fetched at once, beside those of new events.
const LATE_AT_ONCE: usize = 2;

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
    /// Events with files that are still to be fetched.
    notes: FetchNotes,
    media: AccountMedia,
    limits: SizeLimits,
    stored: Mutex<StoredBytes>,
    clock: SharedClock,
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
            store: AttachmentStore::new(bus, Arc::clone(&clock)),
            stored: Mutex::default(),
            notes: FetchNotes::new(bus, Arc::clone(&clock)),
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
            clock,
        };
        Self { parts: Arc::new(parts) }
    }

    /// Returns the store of the files.
    pub(super) fn store(&self) -> &AttachmentStore {
        &self.parts.store
    }

    /// Returns the events whose files are still to be fetched.
    pub(super) fn notes(&self) -> &FetchNotes {
        &self.parts.notes
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

    /// Returns whether `event` has files that are still to be fetched, and that this process can fetch.
    #[must_use]
    pub fn has_open(&self, event: &Event) -> bool {
        has_files(event) && self.knows(event)
    }

    /// Fetches the files of `events` and writes into each attachment what became of it; at most for the configured time, and
    /// for `most`. To be called before [`AttachmentFetcher::note_open`].
    pub async fn fetch_new(&self, events: &mut [Event], most: Duration) {
        let wait = self.parts.wait.min(most);
        self.fetch_open(events, wait, &self.parts.turns).await;
    }

    /// Notes those of `events` whose files are still open, so that the files follow, and removes what is noted of earlier
    /// versions of the others. To be called before the events are stored; it may be repeated. A file that can never be noted
    /// is refused.
    ///
    /// # Errors
    /// Returns [`WriteNoteError`] if that is not done within `most`.
    pub async fn note_open(&self, events: &mut [Event], most: Duration) -> Result<(), WriteNoteError> {
        // Versions of one item share a key: the last of them decides.
        let last: BTreeMap<EventId, usize> = events
            .iter()
            .enumerate()
            .filter(|(_, event)| has_files(event) || is_change(event))
            .map(|(place, event)| (event.id.clone(), place))
            .collect();
        let current = events.iter_mut().enumerate();
        let current = current.filter(|(place, event)| last.get(&event.id) == Some(place));
        let noted = join_all(current.map(|(_, event)| self.note(event)));
        let noted = tokio::time::timeout(most, noted).await;
        let noted = noted.map_err(|_| WriteNoteError::Late)?;
        noted.into_iter().collect()
    }

    /// Returns what is still to be done about the note of `event` before it is published, if it goes to the spool and was
    /// noted before that or not (`is_noted`). What is noted of an earlier version that waits in the spool comes later than
    /// the note of `event`, so that a change settles it once more.
    #[must_use]
    pub fn note_step(&self, event: &Event, is_noted: bool) -> NoteStep {
        match (self.has_open(event), is_change(event)) {
            (true, true) => NoteStep::Replace,
            (true, false) if !is_noted => NoteStep::Add,
            (false, true) if self.knows(event) => NoteStep::Remove,
            (true | false, _) => NoteStep::Settled,
        }
    }

    async fn note(&self, event: &mut Event) -> Result<(), WriteNoteError> {
        if self.has_open(event) {
            return match self.parts.notes.write(event).await {
                Err(error) if !error.may_pass() => {
                    let error = describe_error(&error);
                    tracing::warn!(event_id = %event.id, error, "files refused: they cannot be noted");
                    refuse_open(event, RefusedAttachment::Unavailable);
                    self.parts.notes.remove_earlier(event).await
                }
                written => written,
            };
        }

        // What was noted of a former version would undo this one.
        if self.knows(event) && is_change(event) {
            self.parts.notes.remove_earlier(event).await?;
        }
        Ok(())
    }

    /// Fetches the open files of `events`, which were noted before, at most for `wait`. Returns the indexes of the events of
    /// which a file found no room.
    pub(super) async fn fetch_late(&self, events: &mut [Event], wait: Duration) -> BTreeSet<usize> {
        self.fetch_open(events, wait, &self.parts.late_turns).await
    }

    async fn fetch_open(&self, events: &mut [Event], wait: Duration, turns: &Semaphore) -> BTreeSet<usize> {
        let mut fetches = FuturesUnordered::new();
        for (place, event) in events.iter_mut().enumerate() {
            let Some(media) = self.media_of(event) else { continue };
            for index in plan_fetches(event, self.parts.limits) {
                let (media, file) = (Arc::clone(&media), event.attachments[index].clone());
                let (channel, account) = (event.channel.clone(), event.account().to_owned());
                fetches.push(async move {
                    let _turn = turns.acquire().await;
                    (
                        place,
                        index,
                        self.fetch(media.as_ref(), &channel, &account, &file).await,
                    )
                });
            }
        }

        let mut full = BTreeSet::new();
        let settled = async {
            while let Some((place, index, outcome)) = fetches.next().await {
                if outcome == FetchOutcome::Full {
                    full.insert(place);
                }
                apply_outcome(&mut events[place].attachments[index], outcome);
            }
        };
        // What is not there by then stays open.
        let _ = tokio::time::timeout(wait, settled).await;
        full
    }

    async fn fetch(&self, media: &dyn Media, channel: &str, account: &str, file: &Attachment) -> FetchOutcome {
        let stored = || self.parts.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let may_store = stored().has_room(channel, account, self.parts.clock.monotonic());
        let fetched = if may_store {
            self.fetch_and_store(media, file).await
        } else {
            tracing::warn!(
                channel,
                account,
                "the account has stored enough files in this hour; a file waits"
            );
            Ok(FetchOutcome::Full)
        };
        if let Ok(FetchOutcome::Stored { size, .. }) = &fetched {
            stored().add(channel, account, *size, self.parts.clock.monotonic());
        }
        let (outcome, word) = match fetched {
            Ok(FetchOutcome::Full) => (FetchOutcome::Full, RefusedAttachment::Full.name()),
            Ok(outcome) => (outcome, "stored"),
            Err(FetchFileError::TooLarge { max }) => (FetchOutcome::TooLarge(max), RefusedAttachment::TooLarge.name()),
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
                tracing::error!("the object store of attachments is full; a file waits for room");
                Ok(FetchOutcome::Full)
            }
            Err(error @ (StoreObjectError::Bucket { .. } | StoreObjectError::File { .. })) => {
                Err(FetchFileError::NotNow(describe_error(&error)))
            }
        }
    }
}

/// Returns whether `event` has files that are still to be fetched.
pub(super) fn has_open_files(event: &Event) -> bool {
    event.attachments.iter().any(is_open)
}

/// Refuses the files of `event` that are still to be fetched.
pub(super) fn refuse_open(event: &mut Event, why: RefusedAttachment) {
    for file in event.attachments.iter_mut().filter(|file| is_open(file)) {
        file.state = AttachmentState::Refused(why);
    }
}

/// Returns whether `event` changes an item that was there before.
pub(super) const fn is_change(event: &Event) -> bool {
    match event.direction {
        EventDirection::Updated | EventDirection::Deleted => true,
        EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => false,
    }
}
