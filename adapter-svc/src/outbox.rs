//! The outbox: events on this host's disk until JetStream has them.
//!
//! An entry is written, synced, acknowledged to the caller, published, and removed. A crash between any two of these
//! steps loses nothing: before the sync no caller got an acknowledgment; after it the entry is found at the next
//! start and published with the same message id, so a second publish has no effect. Its key consists of the number of
//! this opening and a count within it, so keys always increase, even if entries were removed before a restart.
//!
//! One writer writes the entries of all requests (`spool_writer.rs`).

mod open_spool;
mod spool_writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shared::error_chain::describe_error;
use shared::store::StoreError;
use tokio::sync::{mpsc, oneshot, watch};

use self::open_spool::{OpenSpool, SharedSpool};
use self::spool_writer::{SpoolBatch, run_writer};
use crate::encoded_event::EncodedEvent;
use crate::error::AcceptEventsError;

/// Maximum number of requests that wait for the writer.
const WAITING_REQUESTS: usize = 1_024;

/// Key of an entry: the number of the opening in which it was written, and its number there.
pub type SpoolKey = [u8; 16];

/// The durable entries: those up to `through` in the store's `generation`, which increases when it is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableMark {
    /// Number of times that the store was opened in this process.
    pub generation: u64,
    /// Key of the last durable entry.
    pub through: SpoolKey,
}

/// The outbox. Clones share it.
#[derive(Clone)]
pub struct EventSpool {
    shared: Arc<SharedSpool>,
    batches: mpsc::Sender<SpoolBatch>,
    durable: watch::Receiver<DurableMark>,
}

// By hand: the store within has no useful `Debug`.
impl std::fmt::Debug for EventSpool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventSpool")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

impl EventSpool {
    /// Opens the outbox in `path`, with a maximum size of `max_bytes`, and starts its writer. Entries of an earlier
    /// process are durable at once.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the directory is in use by another process, or cannot be read.
    pub async fn open(path: &Path, max_bytes: u64) -> Result<Self, StoreError> {
        let spool = OpenSpool::open(path).await?;
        spool.offer_again()?;
        // Keys of an earlier opening sort before those of this one.
        let durable = DurableMark {
            generation: 1,
            through: spool.key(0),
        };

        // Bounded: a request is refused if the disk does not keep up.
        let (told, watched) = watch::channel(durable);
        let (batches, waiting) = mpsc::channel(WAITING_REQUESTS);
        let shared = Arc::new(SharedSpool::new(path, max_bytes, spool));

        tokio::spawn(run_writer(Arc::clone(&shared), waiting, told));

        Ok(Self {
            shared,
            batches,
            durable: watched,
        })
    }

    /// Waits until all of `parcels` are on the disk.
    ///
    /// # Errors
    /// Returns [`AcceptEventsError`] if the outbox is full, failed or busy. The parcels may or may not be stored
    /// then.
    pub async fn store_events(&self, parcels: Vec<EncodedEvent>) -> Result<(), AcceptEventsError> {
        if !self.is_working() {
            return Err(AcceptEventsError::SpoolFailed("it is being opened again".to_owned()));
        }

        let weight: u64 = parcels.iter().map(EncodedEvent::spool_bytes).sum();
        // Counted before the check, so that concurrent writers cannot exceed the limit together.
        let waiting = self.shared.waiting.fetch_add(weight, Ordering::SeqCst) + weight;

        let held = self.bytes();
        if held.saturating_add(waiting) > self.shared.max_bytes {
            self.shared.waiting.fetch_sub(weight, Ordering::SeqCst);
            return Err(AcceptEventsError::SpoolFull {
                held,
                max: self.shared.max_bytes,
            });
        }

        let (done, answer) = oneshot::channel();
        let batch = SpoolBatch { parcels, weight, done };
        // A full queue is refused at once: the client can repeat the request, and nothing is lost.
        if self.batches.try_send(batch).is_err() {
            self.shared.waiting.fetch_sub(weight, Ordering::SeqCst);
            return Err(AcceptEventsError::Busy);
        }

        match answer.await {
            Ok(outcome) => outcome.map_err(AcceptEventsError::SpoolFailed),
            Err(_) => Err(AcceptEventsError::Busy),
        }
    }

    /// Returns a receiver for the durable position and its changes.
    #[must_use]
    pub fn watch_durable(&self) -> watch::Receiver<DurableMark> {
        self.durable.clone()
    }

    /// Returns at most `limit` durable entries after `after`, in order. An entry that cannot be decoded is left in
    /// the store and reported in the log.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the disk fails.
    pub fn read_page(
        &self,
        after: Option<SpoolKey>,
        through: SpoolKey,
        limit: usize,
    ) -> Result<Vec<(SpoolKey, EncodedEvent)>, StoreError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};

        // The page continues after a key, so entries that were deleted meanwhile do not matter.
        let from = after.map_or(Unbounded, Excluded);
        let mut page = Vec::new();
        let Some(spool) = self.shared.open_spool() else {
            return Ok(page);
        };

        for entry in spool.entries.range::<SpoolKey, _>((from, Included(through))) {
            match entry {
                Ok((bytes, parcel)) => page.extend(SpoolKey::try_from(bytes.as_slice()).map(|key| (key, parcel))),
                Err(error @ StoreError::Decode { .. }) => {
                    tracing::error!(error = describe_error(&error), "failed to read a spool entry");
                }
                Err(error) => return Err(error),
            }

            if page.len() >= limit {
                break;
            }
        }

        Ok(page)
    }

    /// Removes an entry that JetStream has. If that fails, the entry is published again, which has no effect.
    pub fn remove_entry(&self, key: &SpoolKey, parcel: &EncodedEvent) {
        if let Some(spool) = self.shared.open_spool()
            && let Err(error) = spool.entries.remove(key)
        {
            tracing::warn!(error = describe_error(&error), event_id = %parcel.id, "failed to remove a spool entry");
        }
    }

    /// Sets an entry aside that neither the stream nor the dead letters accept. It stays on this host's disk, and is
    /// tried again at the next start.
    pub fn set_aside(&self, key: &SpoolKey, parcel: &EncodedEvent) {
        if let Some(spool) = self.shared.open_spool()
            && let Err(error) = spool
                .refused
                .insert(key, parcel)
                .and_then(|()| spool.entries.remove(key))
        {
            tracing::warn!(error = describe_error(&error), event_id = %parcel.id, "failed to quarantine a spool entry");
        }
    }

    /// Returns the number of entries; 0 while the store is being opened again.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shared.open_spool().map_or(0, |spool| spool.entries.len())
    }

    /// Returns whether no entry is left to publish.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of all entries, including those set aside, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared
            .open_spool()
            .map_or(0, |spool| spool.entries.bytes() + spool.refused.bytes())
    }

    /// Returns whether the store is open and its disk works.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.shared.open_spool().is_some()
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::{Event, EventId};
    use shared::model::time::UnixMillis;
    use shared::wire::headers::TraceCarrier;

    use super::*;

    fn parcel(id: &str) -> EncodedEvent {
        let event = Event::new(EventId::parse(id).unwrap(), "crm", "p", UnixMillis(1));
        EncodedEvent::encode_event(&event, &shared::testing::trust(), &TraceCarrier::default(), 1 << 20).unwrap()
    }

    fn ids(outbox: &EventSpool, after: Option<SpoolKey>) -> Vec<String> {
        let through = outbox.watch_durable().borrow().through;
        let page = outbox.read_page(after, through, 100).unwrap();
        page.into_iter().map(|(_, parcel)| parcel.id.to_string()).collect()
    }

    /// Opens the outbox of `path` once the previous holder has released it.
    async fn open(path: &Path) -> EventSpool {
        loop {
            match EventSpool::open(path, 1 << 20).await {
                Err(StoreError::Busy { .. }) => tokio::task::yield_now().await,
                opened => return opened.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn entries_survive_and_keys_rise_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = open(folder.path()).await;
        outbox
            .store_events(vec![parcel("crm:1"), parcel("crm:2")])
            .await
            .unwrap();
        outbox.store_events(vec![parcel("crm:3")]).await.unwrap();
        let (first, held) = outbox
            .read_page(None, outbox.watch_durable().borrow().through, 1)
            .unwrap()
            .remove(0);

        outbox.remove_entry(&first, &held);
        drop(outbox);
        let again = open(folder.path()).await;

        assert_eq!(ids(&again, None), ["crm:2", "crm:3"]);

        again.store_events(vec![parcel("crm:4")]).await.unwrap();
        assert_eq!(ids(&again, None), ["crm:2", "crm:3", "crm:4"]);
        assert_eq!(ids(&again, Some(first)), ["crm:2", "crm:3", "crm:4"]);
    }

    #[tokio::test]
    async fn a_full_spool_refuses_and_takes_again_after_forgetting() {
        let folder = tempfile::tempdir().unwrap();
        let weight = parcel("crm:1").spool_bytes();
        let outbox = EventSpool::open(folder.path(), weight * 2).await.unwrap();
        outbox.store_events(vec![parcel("crm:1")]).await.unwrap();
        let error = outbox
            .store_events(vec![parcel("crm:2"), parcel("crm:3")])
            .await
            .unwrap_err();

        assert!(matches!(error, AcceptEventsError::SpoolFull { .. }), "{error}");

        outbox.store_events(vec![parcel("crm:2")]).await.unwrap();
        let held = outbox
            .read_page(None, outbox.watch_durable().borrow().through, 10)
            .unwrap();
        for (key, parcel) in &held {
            outbox.remove_entry(key, parcel);
        }

        outbox.store_events(vec![parcel("crm:4")]).await.unwrap();
        assert_eq!(ids(&outbox, None), ["crm:4"]);
    }

    #[tokio::test]
    async fn a_directory_belongs_to_one_process() {
        let folder = tempfile::tempdir().unwrap();
        let _held = open(folder.path()).await;
        let error = EventSpool::open(folder.path(), 1 << 20).await.unwrap_err();
        assert!(error.to_string().contains("in use by another process"), "{error}");
    }

    #[tokio::test]
    async fn what_is_put_aside_still_counts_and_is_offered_once_more_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = open(folder.path()).await;
        outbox.store_events(vec![parcel("crm:1")]).await.unwrap();
        let (key, entry) = outbox
            .read_page(None, outbox.watch_durable().borrow().through, 1)
            .unwrap()
            .remove(0);

        outbox.set_aside(&key, &entry);
        assert!(outbox.is_empty() && outbox.bytes() > 0 && outbox.is_working());

        drop(outbox);
        let again = open(folder.path()).await;
        assert_eq!(ids(&again, None), ["crm:1"]);
    }
}
