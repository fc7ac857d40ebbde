//! What can go wrong with the read model.

use std::path::PathBuf;
use std::sync::Arc;

/// Why the read model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenProjectionError {
    /// The directory of the file could not be made.
    #[error("cannot make the directory {path} of the read model")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A damaged or outdated file could not be removed.
    #[error("cannot remove the read model's file {path}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// SQLite refuses, and not because of damage.
    #[error("cannot open the read model {path}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The writer's thread could not be started.
    #[error("cannot start the read model's writer")]
    Thread(#[source] std::io::Error),
}

/// Why a batch was not taken in. Nothing of it is stored then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApplyBatchError {
    /// A lock, a full disk: the same batch may be tried again.
    #[error("the read model cannot be written now")]
    Passing(#[source] Arc<rusqlite::Error>),
    /// The file was damaged and has been made anew: read the streams from [`super::Projection::position`] again.
    #[error("the read model was damaged and is being rebuilt")]
    Rebuilt,
    /// The writer has stopped.
    #[error("the read model is closed")]
    Closed,
}

/// Why a question to the read model has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryProjectionError {
    /// SQLite refuses.
    #[error("the read model cannot be read")]
    Sqlite(#[from] rusqlite::Error),
    /// The read model is being closed.
    #[error("the read model is closed")]
    Closed,
}
