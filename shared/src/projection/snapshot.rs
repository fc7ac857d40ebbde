//! Copies of the whole file, at one moment, for replicas that have none yet.
//!
//! A copy contains nothing that the streams do not hold: an old copy is a start from which to catch up, and a damaged
//! one is discarded.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, OpenFlags};

use super::applied::{FeedSource, StreamPositions};
use super::error::QueryProjectionError;
use super::{Projection, schema};

/// Returns the prefix of the names of all copies that this program can read: copies of another schema are of no use.
#[must_use]
pub fn name_prefix() -> String {
    format!("read-model/v{}/", schema::VERSION)
}

/// Marks that a copy is being made, while this lives. The copy reads the file at one moment, so the log beside it
/// cannot be shortened.
struct SnapshotCopy<'a>(&'a AtomicBool);

impl<'a> SnapshotCopy<'a> {
    fn begin_copy(copying: &'a AtomicBool) -> Self {
        copying.store(true, Ordering::Release);
        Self(copying)
    }
}

impl Drop for SnapshotCopy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Projection {
    /// Returns whether a copy is being made.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.0.copying.load(Ordering::Acquire)
    }

    /// Writes a copy to `to`, which must not exist. Returns the sequence of the last event in the copy.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read or the copy cannot be written.
    pub async fn copy_to(&self, to: PathBuf) -> Result<u64, QueryProjectionError> {
        let from = self.path().to_path_buf();
        let _copying = SnapshotCopy::begin_copy(&self.0.copying);
        let copied = tokio::task::spawn_blocking(move || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&from, flags)?;
            // Copies the state of one moment, including the log.
            connection.execute("VACUUM INTO ?1", [to.to_string_lossy()])?;
            let copy = Connection::open_with_flags(&to, flags)?;
            schema::read_positions(&copy)
        });

        let positions: Result<StreamPositions, rusqlite::Error> =
            copied.await.map_err(|_| QueryProjectionError::Closed)?;
        Ok(positions
            .map_err(QueryProjectionError::Sqlite)?
            .position_of(FeedSource::Events))
    }
}
