//! The outbox: events on this host's disk until JetStream has them.
//!
//! An entry is written, synced, acknowledged to the caller, published, and removed. A crash between any two of these
//! steps loses nothing: before the sync no caller got an acknowledgment; after it the entry is found at the next
//! start and published with the same message id, so a second publish has no effect. Its key consists of the number of
//! this opening and a count within it, so keys always increase, even if entries were removed before a restart.
//!
//! Writers pass their entries to one keeper, which writes all entries that arrived during a sync and syncs them
//! together (group commit). If the disk fails, the keeper returns the error to the writers and opens the store again
//! until it works; its entries are then published again from the start.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::store::{LocalStore, StoreError, StoreTree};
use tokio::sync::{mpsc, oneshot, watch};

use crate::encoded_event::EncodedEvent;
use crate::error::AcceptEventsError;

/// Maximum number of requests that wait for the keeper.
const WAITING_REQUESTS: usize = 1_024;
/// Maximum size of a group, in bytes: a longer group would delay its first member too much.
const MAX_GROUP_BYTES: u64 = 8 * 1024 * 1024;
/// Wait before a failed store is opened again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

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

/// The store while it is open.
struct Shelf {
    store: LocalStore,
    entries: StoreTree<EncodedEvent>,
    refused: StoreTree<EncodedEvent>,
    opening: u64,
}

impl Shelf {
    async fn open(path: &Path) -> Result<Self, StoreError> {
        let store = LocalStore::open(path)?;
        let counters: StoreTree<u64> = store.open_tree("counters")?;
        let opening = counters.get(b"openings")?.unwrap_or(0) + 1;
        counters.insert(b"openings", &opening)?;
        store.flush().await?;

        Ok(Self {
            entries: store.open_tree("entries")?,
            refused: store.open_tree("refused")?,
            store,
            opening,
        })
    }

    /// Restores the entries that were set aside, because the reason may be gone (a full disk, a limit). An entry that
    /// is refused again is set aside again.
    fn offer_again(&self) -> Result<(), StoreError> {
        let mut again = 0_u64;
        for entry in self.refused.range::<SpoolKey, _>(..) {
            match entry {
                Ok((key, parcel)) => {
                    // Inserted before it is removed: after a crash in between it is in both trees, and published again
                    // to no effect.
                    self.entries.insert(&key, &parcel)?;
                    self.refused.remove(&key)?;
                    again += 1;
                }
                Err(error @ StoreError::Decode { .. }) => {
                    tracing::error!(
                        error = describe_error(&error),
                        "failed to read a quarantined spool entry"
                    );
                }
                Err(error) => return Err(error),
            }
        }

        if again > 0 {
            tracing::info!(entries = again, "retrying quarantined spool entries");
        }

        Ok(())
    }
}

/// The entries of one request, with the writer that waits for them.
struct Batch {
    parcels: Vec<EncodedEvent>,
    weight: u64,
    done: oneshot::Sender<Result<(), String>>,
}

struct Shared {
    path: PathBuf,
    max_bytes: u64,
    /// Size of the entries passed to the keeper and not yet written, in bytes.
    waiting: AtomicU64,
    /// Open store; `None` while it is being opened again. The lock is held only to clone the handle, never during
    /// I/O.
    shelf: Mutex<Option<Arc<Shelf>>>,
}

impl Shared {
    fn open_spool(&self) -> Option<Arc<Shelf>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace_spool(&self, shelf: Option<Shelf>) {
        *self.shelf.lock().unwrap_or_else(PoisonError::into_inner) = shelf.map(Arc::new);
    }
}

/// The outbox. Clones share it.
#[derive(Clone)]
pub struct EventSpool {
    shared: Arc<Shared>,
    batches: mpsc::Sender<Batch>,
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
    /// Opens the outbox in `path`, with a maximum size of `max_bytes`, and starts its keeper. Entries of an earlier
    /// process are durable at once.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the directory is in use by another process, or cannot be read.
    pub async fn open(path: &Path, max_bytes: u64) -> Result<Self, StoreError> {
        let shelf = Shelf::open(path).await?;
        shelf.offer_again()?;
        // Keys of an earlier opening sort before those of this one.
        let durable = DurableMark {
            generation: 1,
            through: key(shelf.opening, 0),
        };

        // Bounded: a request is refused if the disk does not keep up.
        let (told, watched) = watch::channel(durable);
        let (batches, waiting) = mpsc::channel(WAITING_REQUESTS);
        let shared = Arc::new(Shared {
            path: path.to_path_buf(),
            max_bytes,
            waiting: AtomicU64::new(0),
            shelf: Mutex::new(Some(Arc::new(shelf))),
        });

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
        let batch = Batch { parcels, weight, done };
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
        let Some(shelf) = self.shared.open_spool() else {
            return Ok(page);
        };

        for entry in shelf.entries.range::<SpoolKey, _>((from, Included(through))) {
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
        if let Some(shelf) = self.shared.open_spool()
            && let Err(error) = shelf.entries.remove(key)
        {
            tracing::warn!(error = describe_error(&error), event_id = %parcel.id, "failed to remove a spool entry");
        }
    }

    /// Sets an entry aside that neither the stream nor the dead letters accept. It stays on this host's disk, and is
    /// tried again at the next start.
    pub fn set_aside(&self, key: &SpoolKey, parcel: &EncodedEvent) {
        if let Some(shelf) = self.shared.open_spool()
            && let Err(error) = shelf
                .refused
                .insert(key, parcel)
                .and_then(|()| shelf.entries.remove(key))
        {
            tracing::warn!(error = describe_error(&error), event_id = %parcel.id, "failed to quarantine a spool entry");
        }
    }

    /// Returns the number of entries; 0 while the store is being opened again.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shared.open_spool().map_or(0, |shelf| shelf.entries.len())
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
            .map_or(0, |shelf| shelf.entries.bytes() + shelf.refused.bytes())
    }

    /// Returns whether the store is open and its disk works.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.shared.open_spool().is_some()
    }
}

fn key(opening: u64, number: u64) -> SpoolKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&opening.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Writes and syncs the batches, group by group, until every [`EventSpool`] is dropped.
async fn run_writer(shared: Arc<Shared>, mut waiting: mpsc::Receiver<Batch>, durable: watch::Sender<DurableMark>) {
    let mut number = 0_u64;
    while let Some(first) = waiting.recv().await {
        // One sync for all that wait: most of the time goes to the sync.
        let group = collect_group(first, &mut waiting);
        let weight: u64 = group.iter().map(|batch| batch.weight).sum();
        let entries: u64 = group.iter().map(|batch| batch.parcels.len() as u64).sum();
        let (parcels, answers): (Vec<_>, Vec<_>) = group.into_iter().map(|batch| (batch.parcels, batch.done)).unzip();

        let written = write(&shared, parcels, number).await;
        number += entries;
        // With either outcome, these bytes are no longer waiting.
        shared.waiting.fetch_sub(weight, Ordering::SeqCst);

        let outcome = match written {
            Ok(through) => {
                durable.send_modify(|known| known.through = through);
                Ok(())
            }
            Err(error) => Err(describe_error(&error)),
        };

        metrics::histogram!("nexus_adapter_spool_group_entries").record(entries as f64);

        for answer in answers {
            // The caller may be gone; its events are durable anyway.
            let _ = answer.send(outcome.clone());
        }

        if let Err(error) = outcome {
            // After a failed sync the state of the disk is unknown, so the store is opened again.
            tracing::error!(error, path = %shared.path.display(), "spool failed; reopening it");
            number = 0;
            reopen_store(&shared, &durable).await;
        }
    }
}

/// Returns `first` and the batches that wait behind it, up to [`MAX_GROUP_BYTES`].
fn collect_group(first: Batch, waiting: &mut mpsc::Receiver<Batch>) -> Vec<Batch> {
    let mut weight = first.weight;
    let mut group = vec![first];
    while weight < MAX_GROUP_BYTES
        && let Ok(next) = waiting.try_recv()
    {
        weight += next.weight;
        group.push(next);
    }
    group
}

/// Writes `parcels` under the numbers after `number` and syncs. Returns the last key.
async fn write(shared: &Arc<Shared>, parcels: Vec<Vec<EncodedEvent>>, number: u64) -> Result<SpoolKey, StoreError> {
    let writer = Arc::clone(shared);
    // The store blocks while it writes, and this thread serves connections.
    let inserted = tokio::task::spawn_blocking(move || {
        let closed = || StoreError::Access {
            path: writer.path.clone(),
            source: std::io::Error::other("not open"),
        };
        let shelf = writer.open_spool().ok_or_else(closed)?;

        let mut at = number;
        for parcel in parcels.iter().flatten() {
            at += 1;
            shelf.entries.insert(&key(shelf.opening, at), parcel)?;
        }

        Ok((shelf.store.clone(), key(shelf.opening, at)))
    });

    let failed = |error| StoreError::Access {
        path: shared.path.clone(),
        source: std::io::Error::other(error),
    };
    let (store, through) = inserted.await.map_err(failed)??;
    // Only the sync makes the entries durable.
    store.flush().await?;

    Ok(through)
}

/// Opens the store again, until that succeeds.
async fn reopen_store(shared: &Shared, durable: &watch::Sender<DurableMark>) {
    // From here on writers are refused, and readers find no entries.
    shared.replace_spool(None);

    loop {
        pause(REOPEN_AFTER).await;

        match Shelf::open(&shared.path).await {
            Ok(shelf) => {
                let through = key(shelf.opening, 0);
                shared.replace_spool(Some(shelf));
                // Readers must begin again: the keys of the former opening say nothing about this one.
                durable.send_modify(|known| {
                    *known = DurableMark {
                        generation: known.generation + 1,
                        through,
                    }
                });

                return;
            }
            Err(error) => tracing::error!(error = describe_error(&error), "failed to reopen the spool"),
        }
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
