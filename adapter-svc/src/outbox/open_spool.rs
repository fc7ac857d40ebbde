//! The store of the spool while it is open: entries that wait for JetStream, and those that were set aside.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use shared::error_chain::describe_error;
use shared::store::{LocalStore, StoreError, StoreTree};

use super::SpoolKey;
use crate::encoded_event::EncodedEvent;

/// The store while it is open.
pub(super) struct OpenSpool {
    pub(super) store: LocalStore,
    /// Entries that wait for JetStream.
    pub(super) entries: StoreTree<EncodedEvent>,
    /// Entries that were set aside.
    pub(super) refused: StoreTree<EncodedEvent>,
    /// Number of this opening.
    opening: u64,
}

impl OpenSpool {
    /// Opens the store in `path`, under the next number.
    pub(super) async fn open(path: &Path) -> Result<Self, StoreError> {
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
    pub(super) fn offer_again(&self) -> Result<(), StoreError> {
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

    /// Returns the key of the entry `number` of this opening; the first one is 1.
    pub(super) fn key(&self, number: u64) -> SpoolKey {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.opening.to_be_bytes());
        key[8..].copy_from_slice(&number.to_be_bytes());
        key
    }
}

/// The state that the spool's users and its writer share.
pub(super) struct SharedSpool {
    pub(super) path: PathBuf,
    pub(super) max_bytes: u64,
    /// Size of the entries passed to the writer and not yet written, in bytes.
    pub(super) waiting: AtomicU64,
    /// Open store; `None` while it is being opened again. The lock is held only to clone the handle, never during
    /// I/O.
    spool: Mutex<Option<Arc<OpenSpool>>>,
}

impl SharedSpool {
    /// Returns the spool in `path`, which is open as `spool`, with a maximum size of `max_bytes`.
    pub(super) fn new(path: &Path, max_bytes: u64, spool: OpenSpool) -> Self {
        Self {
            path: path.to_path_buf(),
            max_bytes,
            waiting: AtomicU64::new(0),
            spool: Mutex::new(Some(Arc::new(spool))),
        }
    }

    /// Returns the open store; `None` while it is being opened again.
    pub(super) fn open_spool(&self) -> Option<Arc<OpenSpool>> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts `spool` in place of the store.
    pub(super) fn replace_spool(&self, spool: Option<OpenSpool>) {
        *self.spool.lock().unwrap_or_else(PoisonError::into_inner) = spool.map(Arc::new);
    }
}
