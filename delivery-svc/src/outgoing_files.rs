//! Loading the files that are sent, few at a time.

use std::sync::Arc;

use bytes::Bytes;
use shared::attachments::AttachmentStore;
use shared::bus::{Bus, StoreObjectError};
use shared::clock::SharedClock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::attempt::{CallOutcome, Refusal, RequestSent};
use crate::part_file::PartFile;

/// Maximum size of a file that is sent, in bytes: it is in the memory as a whole.
pub const MAX_FILE_BYTES: u64 = 20 * 1024 * 1024;
/// Number of files that are in the memory at once.
const AT_ONCE: usize = 4;

/// The files of replies. Clones share it.
#[derive(Debug, Clone)]
pub struct OutgoingFiles {
    store: AttachmentStore,
    turns: Arc<Semaphore>,
}

/// The bytes of a file, and the turn in which they are sent.
#[derive(Debug)]
pub struct LoadedFile {
    bytes: Bytes,
    _turn: OwnedSemaphorePermit,
}

impl LoadedFile {
    /// Returns the bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// The reason why a file is not there.
#[derive(Debug, thiserror::Error)]
pub enum LoadFileError {
    /// The object store cannot be asked now, or holds other bytes.
    #[error(transparent)]
    Store(#[from] StoreObjectError),
    /// The object store does not have the file (any more).
    #[error("file {name} is not stored any more")]
    Gone {
        /// Name of the file.
        name: String,
    },
    /// The process ends.
    #[error("the process ends")]
    Closed,
}

impl LoadFileError {
    /// Returns the outcome of a call that was not made for this reason.
    #[must_use]
    pub fn outcome(&self) -> CallOutcome {
        let reason = self.to_string();
        match self {
            Self::Store(_) | Self::Closed => CallOutcome::Unreachable {
                sent: RequestSent::No,
                reason,
            },
            Self::Gone { .. } => CallOutcome::Refused {
                refusal: Refusal::Permanent,
                reason,
            },
        }
    }
}

impl OutgoingFiles {
    /// Returns the files on `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock) -> Self {
        Self {
            store: AttachmentStore::new(bus, clock),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Loads the bytes of `file`, once it is its turn.
    ///
    /// # Errors
    /// Returns [`LoadFileError`], which says what becomes of the part.
    pub async fn load(&self, file: &PartFile) -> Result<LoadedFile, LoadFileError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|_| LoadFileError::Closed)?;
        let found = self.store.load(&file.hash, MAX_FILE_BYTES).await?;
        let bytes = found.ok_or_else(|| LoadFileError::Gone {
            name: file.name.clone(),
        })?;
        Ok(LoadedFile {
            bytes: Bytes::from(bytes),
            _turn: turn,
        })
    }
}
