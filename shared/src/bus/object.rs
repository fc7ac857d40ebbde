//! Files in the object store: whole, checked by digest, in pieces on their way.

use std::path::{Path, PathBuf};

use async_nats::jetstream::object_store::{ObjectMetadata, ObjectStore};
use futures_util::StreamExt as _;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::connect::Bus;

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

    /// The names of all objects.
    ///
    /// # Errors
    /// [`StoreObjectError::Bucket`].
    pub async fn names(&self) -> Result<Vec<String>, StoreObjectError> {
        let store = self.store().await?;
        let mut listed = store.list().await.map_err(|error| self.failed(&error))?;
        let mut names = Vec::new();
        while let Some(object) = listed.next().await {
            names.push(object.map_err(|error| self.failed(&error))?.name);
        }
        Ok(names)
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
