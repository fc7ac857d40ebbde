//! Files in the object store: whole, checked by digest, in pieces on their way.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata, ObjectStore};
use futures_util::StreamExt as _;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::connect::Bus;
use crate::model::time::UnixMillis;

/// Bytes in one piece: below what a server takes by default.
const PIECE_BYTES: usize = 128 * 1024;

/// A file cannot be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum StoreObjectError {
    /// The bucket cannot be asked, does not hold the object, or holds it damaged.
    #[error("objects of {bucket}: {detail}")]
    Bucket {
        /// Which bucket.
        bucket: &'static str,
        /// What the server or its client said.
        detail: String,
    },
    /// The file cannot be read or written.
    #[error("{path}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// An object that is there whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its name.
    pub name: String,
    /// When it was stored, by the clock of who did; the epoch where nobody said.
    pub stored_at: UnixMillis,
}

/// A bucket of objects; cheap to clone.
#[derive(Debug, Clone)]
pub struct Objects {
    bus: Bus,
    bucket: &'static str,
}

impl Bus {
    /// The objects of `bucket`, which the topology makes.
    #[must_use]
    pub fn objects(&self, bucket: &'static str) -> Objects {
        Objects {
            bus: self.clone(),
            bucket,
        }
    }
}

impl Objects {
    fn failed(&self, error: &dyn std::fmt::Display) -> StoreObjectError {
        StoreObjectError::Bucket {
            bucket: self.bucket,
            detail: error.to_string(),
        }
    }

    async fn store(&self) -> Result<ObjectStore, StoreObjectError> {
        let store = self.bus.jetstream.get_object_store(self.bucket).await;
        store.map_err(|error| self.failed(&error))
    }

    /// Stores the file at `path` as `name`; it is there whole or not at all.
    ///
    /// # Errors
    /// [`StoreObjectError`].
    pub async fn put(&self, name: &str, path: &Path) -> Result<(), StoreObjectError> {
        let store = self.store().await?;
        let opened = File::open(path).await;
        let mut file = opened.map_err(|source| file_error(path, source))?;
        let meta = ObjectMetadata {
            name: name.to_owned(),
            chunk_size: Some(PIECE_BYTES),
            ..ObjectMetadata::default()
        };

        store.put(meta, &mut file).await.map_err(|error| self.failed(&error))?;
        Ok(())
    }

    /// Fetches `name` into a file at `path`, which is on the disk when this returns.
    ///
    /// # Errors
    /// [`StoreObjectError`]; what lies at `path` is worth nothing then.
    pub async fn get(&self, name: &str, path: &Path) -> Result<(), StoreObjectError> {
        let store = self.store().await?;
        let mut object = store.get(name).await.map_err(|error| self.failed(&error))?;
        let failed = |source| file_error(path, source);
        let mut file = File::create(path).await.map_err(failed)?;
        tokio::io::copy(&mut object, &mut file).await.map_err(failed)?;
        file.flush().await.map_err(failed)?;
        file.sync_all().await.map_err(failed)
    }

    /// All objects, in no order.
    ///
    /// # Errors
    /// [`StoreObjectError::Bucket`].
    pub async fn list(&self) -> Result<Vec<StoredObject>, StoreObjectError> {
        let objects = self.infos().await?.into_iter().map(|info| StoredObject {
            stored_at: info
                .modified
                .map_or_else(UnixMillis::default, |at| UnixMillis::from_seconds(at.unix_timestamp())),
            name: info.name,
        });
        Ok(objects.collect())
    }

    async fn infos(&self) -> Result<Vec<ObjectInfo>, StoreObjectError> {
        let store = self.store().await?;
        let mut listed = store.list().await.map_err(|error| self.failed(&error))?;
        let mut infos = Vec::new();
        while let Some(object) = listed.next().await {
            infos.push(object.map_err(|error| self.failed(&error))?);
        }
        Ok(infos)
    }

    /// Removes the pieces that belong to no object: what a writer left that was interrupted. Only for who knows that
    /// nobody else is writing. Answers of how many writers.
    ///
    /// # Errors
    /// [`StoreObjectError::Bucket`].
    pub async fn sweep(&self) -> Result<usize, StoreObjectError> {
        let whole: BTreeSet<String> = self.infos().await?.into_iter().map(|info| info.nuid).collect();
        let pieces = format!("$O.{}.C.", self.bucket);
        let stream = self.bus.jetstream.get_stream(format!("OBJ_{}", self.bucket)).await;
        let stream = stream.map_err(|error| self.failed(&error))?;
        let mut subjects = stream
            .info_with_subjects(format!("{pieces}>"))
            .await
            .map_err(|error| self.failed(&error))?;

        let mut left = Vec::new();
        while let Some(subject) = subjects.next().await {
            let (subject, _) = subject.map_err(|error| self.failed(&error))?;
            if subject
                .strip_prefix(&pieces)
                .is_some_and(|writer| !whole.contains(writer))
            {
                left.push(subject);
            }
        }

        for subject in &left {
            let purged = stream.purge().filter(subject).await;
            purged.map_err(|error| self.failed(&error))?;
        }

        Ok(left.len())
    }

    /// Removes `name`.
    ///
    /// # Errors
    /// [`StoreObjectError::Bucket`].
    pub async fn delete(&self, name: &str) -> Result<(), StoreObjectError> {
        let deleted = self.store().await?.delete(name).await;
        deleted.map_err(|error| self.failed(&error))
    }
}

fn file_error(path: &Path, source: std::io::Error) -> StoreObjectError {
    StoreObjectError::File {
        path: path.to_owned(),
        source,
    }
}
