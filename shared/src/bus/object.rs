//! Objects in the object store: transferred in chunks, complete, and checked by digest. Files are written by one process
//! at a time; [`content`] has the objects that several write at once.

mod content;

pub use content::{BucketSpace, FoundObject};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata, ObjectStore};
use futures_util::StreamExt as _;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::connect::Bus;
use crate::model::time::UnixMillis;

/// Size of one chunk in bytes, below the default limit of a server.
const PIECE_BYTES: usize = 128 * 1024;

/// A file cannot be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum StoreObjectError {
    /// The bucket cannot be asked, does not hold the object, or holds it damaged.
    #[error("objects of {bucket}: {detail}")]
    Bucket {
        /// Name of the bucket.
        bucket: &'static str,
        /// Error text of the server or the client.
        detail: String,
    },
    /// The bucket has no room.
    #[error("objects of {bucket}: the bucket is full")]
    Full {
        /// Name of the bucket.
        bucket: &'static str,
    },
    /// The file cannot be read or written.
    #[error("{path}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
}

/// An object that is stored completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Name of the object.
    pub name: String,
    /// Time at which it was stored, by the writer's clock; the epoch if the writer stated none.
    pub stored_at: UnixMillis,
}

/// A bucket of objects; cheap to clone.
#[derive(Debug, Clone)]
pub struct ObjectBucket {
    bus: Bus,
    bucket: &'static str,
}

impl Bus {
    /// The objects of `bucket`, a bucket that the topology creates.
    #[must_use]
    pub fn objects(&self, bucket: &'static str) -> ObjectBucket {
        ObjectBucket {
            bus: self.clone(),
            bucket,
        }
    }
}

impl ObjectBucket {
    fn store_error(&self, error: &dyn std::fmt::Display) -> StoreObjectError {
        StoreObjectError::Bucket {
            bucket: self.bucket,
            detail: error.to_string(),
        }
    }

    async fn open_store(&self) -> Result<ObjectStore, StoreObjectError> {
        let store = self.bus.jetstream.get_object_store(self.bucket).await;
        store.map_err(|error| self.store_error(&error))
    }

    /// Stores the file at `path` as `name`. The object becomes visible only as a whole.
    ///
    /// # Errors
    /// Returns [`StoreObjectError`] if the file cannot be read or the bucket does not take it.
    pub async fn put(&self, name: &str, path: &Path) -> Result<(), StoreObjectError> {
        let store = self.open_store().await?;
        let opened = File::open(path).await;
        let mut file = opened.map_err(|source| file_error(path, source))?;
        let meta = ObjectMetadata {
            name: name.to_owned(),
            chunk_size: Some(PIECE_BYTES),
            ..ObjectMetadata::default()
        };

        store
            .put(meta, &mut file)
            .await
            .map_err(|error| self.store_error(&error))?;
        Ok(())
    }

    /// Fetches `name` into a file at `path`, and syncs the file to disk before it returns.
    ///
    /// # Errors
    /// Returns [`StoreObjectError`]; the file at `path` is not valid then.
    pub async fn get(&self, name: &str, path: &Path) -> Result<(), StoreObjectError> {
        let store = self.open_store().await?;
        let mut object = store.get(name).await.map_err(|error| self.store_error(&error))?;
        let failed = |source| file_error(path, source);
        let mut file = File::create(path).await.map_err(failed)?;
        tokio::io::copy(&mut object, &mut file).await.map_err(failed)?;
        file.flush().await.map_err(failed)?;
        file.sync_all().await.map_err(failed)
    }

    /// Returns all objects, in no order.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn list(&self) -> Result<Vec<StoredObject>, StoreObjectError> {
        let objects = self.list_infos().await?.into_iter().map(|info| StoredObject {
            stored_at: info
                .modified
                .map_or_else(UnixMillis::default, |at| UnixMillis::from_seconds(at.unix_timestamp())),
            name: info.name,
        });
        Ok(objects.collect())
    }

    async fn list_infos(&self) -> Result<Vec<ObjectInfo>, StoreObjectError> {
        let store = self.open_store().await?;
        let mut listed = store.list().await.map_err(|error| self.store_error(&error))?;
        let mut infos = Vec::new();
        while let Some(object) = listed.next().await {
            infos.push(object.map_err(|error| self.store_error(&error))?);
        }
        Ok(infos)
    }

    /// Removes the chunks that belong to no object, as an interrupted writer leaves them. The caller must know that no
    /// other process is writing. Returns the number of interrupted writers.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn sweep(&self) -> Result<usize, StoreObjectError> {
        let whole: BTreeSet<String> = self.list_infos().await?.into_iter().map(|info| info.nuid).collect();
        // The subject of a chunk ends with the id of its writer.
        let pieces = format!("$O.{}.C.", self.bucket);
        let stream = self.bus.jetstream.get_stream(format!("OBJ_{}", self.bucket)).await;
        let stream = stream.map_err(|error| self.store_error(&error))?;
        let mut subjects = stream
            .info_with_subjects(format!("{pieces}>"))
            .await
            .map_err(|error| self.store_error(&error))?;

        let mut left = Vec::new();
        while let Some(subject) = subjects.next().await {
            let (subject, _) = subject.map_err(|error| self.store_error(&error))?;
            if subject
                .strip_prefix(&pieces)
                .is_some_and(|writer| !whole.contains(writer))
            {
                left.push(subject);
            }
        }

        for subject in &left {
            let purged = stream.purge().filter(subject).await;
            purged.map_err(|error| self.store_error(&error))?;
        }

        Ok(left.len())
    }

    /// Removes the object `name`.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked or has no such object.
    pub async fn delete(&self, name: &str) -> Result<(), StoreObjectError> {
        let deleted = self.open_store().await?.delete(name).await;
        deleted.map_err(|error| self.store_error(&error))
    }
}

fn file_error(path: &Path, source: std::io::Error) -> StoreObjectError {
    StoreObjectError::File {
        path: path.to_owned(),
        source,
    }
}
