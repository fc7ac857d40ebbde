//! Typed CBOR trees on the local disk, private to one process.
//!
//! A write is visible at once and durable after the next [`LocalStore::flush`] that starts after it. Callers that request
//! a flush while one is running share the next one: however many wait, there is one `fsync` at a time, and each
//! caller waits for at most two (group commit).
//!
//! A store whose disk failed or is full refuses all operations until it is opened again, which recovers the last
//! state that was completely written to the disk.

use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum memory for cached pages of a store, in bytes.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Interval of the background flush, in milliseconds. It bounds the removals that a power failure can undo.
const BACKGROUND_FLUSH_MS: u64 = 500;

/// Number of further attempts to open a directory that is in use: the last holder releases it a moment after it was
/// dropped, or after its process ended.
const BUSY_ATTEMPTS: u32 = 50;

/// Wait before each of these attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The reason why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk or its quota is full. The store must be opened again once there is space.
    #[error("disk full at {path}")]
    DiskFull {
        /// Directory of the store.
        path: PathBuf,
    },
    /// Another process uses the directory; a store belongs to one process.
    #[error("{path} is in use by another process")]
    Busy {
        /// Directory of the store.
        path: PathBuf,
    },
    /// Reading or writing the files failed.
    #[error("failed to read or write {path}")]
    Access {
        /// Directory of the store.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The files do not contain the data that was written.
    #[error("corrupt store at {path}: {detail}")]
    Corrupt {
        /// Directory of the store.
        path: PathBuf,
        /// Description of the corruption, for people.
        detail: String,
    },
    /// A value cannot be encoded in CBOR.
    #[error("failed to encode a value of tree {tree}: {detail}")]
    Encode {
        /// Name of the tree.
        tree: String,
        /// Error of the encoder.
        detail: String,
    },
    /// A stored value is not of the tree's type, because another version wrote it.
    #[error("failed to decode the value at key {key} of tree {tree}: {detail}")]
    Decode {
        /// Name of the tree.
        tree: String,
        /// Key of the value, with bytes outside printable ASCII escaped.
        key: String,
        /// Error of the decoder.
        detail: String,
    },
}

/// A directory of trees. Clones share it.
#[derive(Clone)]
pub struct LocalStore {
    shared: Arc<Shared>,
}

struct Shared {
    db: sled::Db,
    path: PathBuf,
    sizes: Mutex<HashMap<String, Arc<StoreSize>>>,
    flushes_begun: AtomicU64,
    /// Number of the last successful flush; a running flush holds the lock.
    flushed: tokio::sync::Mutex<u64>,
}

/// The size of a tree, kept in memory because counting would read every page.
#[derive(Debug, Default)]
struct StoreSize {
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl StoreSize {
    fn add(&self, bytes: u64) {
        self.entries.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    fn subtract(&self, bytes: u64) {
        self.entries.fetch_sub(1, Ordering::SeqCst);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

// By hand: the database would print its entries.
impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalStore")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

impl LocalStore {
    /// Opens the store in the directory `path`, and creates it if it does not exist.
    ///
    /// Blocks while the log is recovered, and for at most a second while another process holds it. Call it before
    /// serving.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_path_buf();
        let config = sled::Config::new()
            .path(&path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(BACKGROUND_FLUSH_MS));

        // A process that is being replaced may hold the directory a moment longer.
        let mut opened = config.open().map_err(|error| open_error(&path, error));
        for _ in 0..BUSY_ATTEMPTS {
            if !matches!(opened, Err(StoreError::Busy { .. })) {
                break;
            }
            std::thread::park_timeout(BUSY_PAUSE);
            opened = config.open().map_err(|error| open_error(&path, error));
        }

        let db = opened?;
        let shared = Shared {
            db,
            path,
            sizes: Mutex::default(),
            flushes_begun: AtomicU64::new(0),
            flushed: tokio::sync::Mutex::new(0),
        };

        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Opens the tree `name`, and creates it if it does not exist. The first call reads the whole tree to compute its
    /// size.
    pub fn open_tree<T: Serialize + DeserializeOwned>(&self, name: &str) -> Result<StoreTree<T>, StoreError> {
        let tree = self
            .shared
            .db
            .open_tree(name)
            .map_err(|error| open_error(&self.shared.path, error))?;
        // Held over the counting below, so that two first calls do not count one tree twice.
        let mut sizes = self.shared.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let size = if let Some(known) = sizes.get(name) {
            Arc::clone(known)
        } else {
            let size = Arc::new(StoreSize::default());
            for entry in &tree {
                let (key, value) = entry.map_err(|error| open_error(&self.shared.path, error))?;
                size.add(entry_bytes(&key, &value));
            }

            sizes.insert(name.to_owned(), Arc::clone(&size));
            size
        };

        Ok(StoreTree {
            store: self.clone(),
            tree,
            name: name.into(),
            size,
            values: PhantomData,
        })
    }

    /// Waits until everything written before the call is on the disk.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let asked = self.shared.flushes_begun.load(Ordering::SeqCst);
        let mut flushed = self.shared.flushed.lock().await;
        // A flush that started after this call covers its writes.
        if *flushed > asked {
            return Ok(());
        }

        let number = self.shared.flushes_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let db = self.shared.db.clone();
        let outcome = tokio::task::spawn_blocking(move || db.flush()).await;
        let synced = outcome.map_err(|error| self.access_error(io::Error::other(error)))?;
        synced.map_err(|error| open_error(&self.shared.path, error))?;
        *flushed = number;

        Ok(())
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    fn access_error(&self, source: io::Error) -> StoreError {
        StoreError::Access {
            path: self.shared.path.clone(),
            source,
        }
    }
}

/// A map from byte keys, in byte order, to values of `T` in CBOR. Clones share it.
pub struct StoreTree<T> {
    store: LocalStore,
    tree: sled::Tree,
    name: Arc<str>,
    size: Arc<StoreSize>,
    values: PhantomData<fn(T) -> T>,
}

impl<T> Clone for StoreTree<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            tree: self.tree.clone(),
            name: Arc::clone(&self.name),
            size: Arc::clone(&self.size),
            values: PhantomData,
        }
    }
}

// By hand: the tree would print its entries.
impl<T> std::fmt::Debug for StoreTree<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreTree")
            .field("name", &self.name)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl<T: Serialize + DeserializeOwned> StoreTree<T> {
    /// Stores `value` at `key` in place of a former value. Durable after [`LocalStore::flush`].
    pub fn insert(&self, key: &[u8], value: &T) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        ciborium::into_writer(value, &mut bytes).map_err(|error| StoreError::Encode {
            tree: self.name.to_string(),
            detail: error.to_string(),
        })?;

        let weight_added = entry_bytes(key, &bytes);
        let replaced = self
            .tree
            .insert(key, bytes)
            .map_err(|error| self.to_store_error(error))?;
        self.size.add(weight_added);

        if let Some(old) = replaced {
            self.size.subtract(entry_bytes(key, &old));
        }

        Ok(())
    }

    /// Returns the value at `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<T>, StoreError> {
        let found = self.tree.get(key).map_err(|error| self.to_store_error(error))?;
        found.map(|bytes| self.decode(key, &bytes)).transpose()
    }

    /// Removes `key`. Returns whether it was present. Durable after [`LocalStore::flush`], or half a second later.
    pub fn remove(&self, key: &[u8]) -> Result<bool, StoreError> {
        let removed = self.tree.remove(key).map_err(|error| self.to_store_error(error))?;
        if let Some(old) = &removed {
            self.size.subtract(entry_bytes(key, old));
        }
        Ok(removed.is_some())
    }

    /// Returns the entry with the lowest key.
    pub fn first(&self) -> Result<Option<(Vec<u8>, T)>, StoreError> {
        self.range::<&[u8], _>(..).next().transpose()
    }

    /// Returns the entries with keys in `keys`, lowest first.
    ///
    /// Each entry is read when the iterator reaches it; entries written in the meantime may or may not appear.
    pub fn range<K, R>(
        &self,
        keys: R,
    ) -> impl DoubleEndedIterator<Item = Result<(Vec<u8>, T), StoreError>> + use<T, K, R>
    where
        K: AsRef<[u8]>,
        R: RangeBounds<K>,
    {
        let tree = self.clone();
        self.tree.range(keys).map(move |entry| {
            let (key, bytes) = entry.map_err(|error| tree.to_store_error(error))?;
            let value = tree.decode(&key, &bytes)?;
            Ok((key.to_vec(), value))
        })
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.size.entries.load(Ordering::SeqCst)
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of all keys and encoded values, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.bytes.load(Ordering::SeqCst)
    }

    /// Waits until everything written to the store before the call is on the disk.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.store.flush().await
    }

    fn decode(&self, key: &[u8], bytes: &[u8]) -> Result<T, StoreError> {
        ciborium::from_reader(bytes).map_err(|error| StoreError::Decode {
            tree: self.name.to_string(),
            key: key.escape_ascii().to_string(),
            detail: error.to_string(),
        })
    }

    fn to_store_error(&self, error: sled::Error) -> StoreError {
        open_error(&self.store.shared.path, error)
    }
}

fn entry_bytes(key: &[u8], value: &[u8]) -> u64 {
    u64::try_from(key.len() + value.len()).unwrap_or(u64::MAX)
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "io::ErrorKind is the standard library's and open"
)]
fn open_error(path: &Path, error: sled::Error) -> StoreError {
    let path = path.to_path_buf();
    match error {
        sled::Error::Io(source) => match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::DiskFull { path },
            // The refusal of the lock file has the kind `Other` and this text.
            io::ErrorKind::Other if source.to_string().contains("could not acquire lock") => StoreError::Busy { path },
            _ => StoreError::Access { path, source },
        },
        sled::Error::Corruption { at, .. } => StoreError::Corrupt {
            path,
            detail: format!("bad bytes at {at:?}"),
        },
        sled::Error::CollectionNotFound(_) | sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) => {
            StoreError::Corrupt {
                path,
                detail: error.to_string(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
