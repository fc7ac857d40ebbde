//! Errors of the read model.

use std::path::PathBuf;
use std::sync::Arc;

/// Reason why the read model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenProjectionError {
    /// The directory of the file could not be created.
    #[error("failed to create the directory {path} of the read model")]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A damaged or outdated file could not be removed.
    #[error("failed to remove the read model's file {path}")]
    Remove {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// SQLite cannot open the file, and not because of damage.
    #[error("failed to open the read model {path}")]
    Sqlite {
        /// Path of the file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The writer's thread could not be started.
    #[error("failed to start the read model's writer")]
    Thread(#[source] std::io::Error),
}

/// Reason why a batch was not applied. No part of it is stored then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApplyBatchError {
    /// A lock or a full disk: the same batch may be tried again.
    #[error("failed to write the read model")]
    Passing(#[source] Arc<rusqlite::Error>),
    /// The file was damaged and has been rebuilt: read the streams from [`super::Projection::position`] again.
    #[error("the read model was damaged and is being rebuilt")]
    Rebuilt,
    /// The writer has stopped.
    #[error("the read model is closed")]
    Closed,
}

/// Reason why a query of the read model failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryProjectionError {
    /// SQLite returned an error.
    #[error("failed to read the read model")]
    Sqlite(#[from] rusqlite::Error),
    /// The read model is being closed.
    #[error("the read model is closed")]
    Closed,
}

/// Reason why the file cannot be read as it is at one moment.
#[derive(Debug, thiserror::Error)]
pub enum FreezeFileError {
    /// A reader keeps the log open, or the writer has stopped.
    #[error("failed to move the read model's log into its file")]
    Log(#[from] ApplyBatchError),
    /// SQLite returned an error.
    #[error("failed to begin reading the read model")]
    Sqlite(#[from] rusqlite::Error),
    /// The file cannot be opened.
    #[error("failed to open the read model's file {path}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Something was written to the log before reading began, or the file was rebuilt.
    #[error("the read model was changed meanwhile")]
    Changed,
}
