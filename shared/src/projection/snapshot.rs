//! Copies of the whole file, at one moment, for replicas that have none yet: as a second file, or as parts that another
//! replica fetches.
//!
//! A copy contains nothing that the streams do not hold: an old copy is a start from which to catch up, and a damaged
//! one is discarded.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::applied::{FeedSource, StreamPositions};
use super::error::{FreezeFileError, QueryProjectionError};
use super::{Projection, schema};

/// Returns the prefix of the names of all copies that this program can read: copies of another schema are of no use.
#[must_use]
pub fn name_prefix() -> String {
    format!("read-model/v{}/", schema::VERSION)
}

/// Marks that a copy is being made, while this lives. The copy reads the file at one moment, so the log beside it
/// cannot be shortened.
#[derive(Debug)]
struct CopyMark(Projection);

impl CopyMark {
    fn begin_copy(projection: &Projection) -> Self {
        projection.0.copying.fetch_add(1, Ordering::AcqRel);
        Self(projection.clone())
    }
}

impl Drop for CopyMark {
    fn drop(&mut self) {
        self.0.0.copying.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The file as it is opened beside SQLite, and the generation that it is of.
///
/// It stays open as long as the projection: a process that closes any descriptor of a file loses all locks that it has
/// on the file, those of SQLite too (<https://www.sqlite.org/howtocorrupt.html>, 2.2).
#[derive(Debug, Default)]
pub(super) struct OpenedFiles(Mutex<Option<(u64, Arc<File>)>>);

impl OpenedFiles {
    fn open(&self, path: &Path, generation: u64) -> std::io::Result<Arc<File>> {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, file)) = &*opened
            && *of == generation
        {
            return Ok(Arc::clone(file));
        }

        let file = Arc::new(File::open(path)?);
        *opened = Some((generation, Arc::clone(&file)));
        Ok(file)
    }
}

/// The file as it was at one moment, without a second one: while this lives, all that is written stays in the log
/// beside the file, which grows.
///
/// Reading begins while the log is empty, so this reader has its state from the file alone. SQLite moves nothing from
/// the log into the file while such a reader lives (its lock `WAL_READ_LOCK(0)`), so the bytes of the file are that
/// state until the end.
#[derive(Debug)]
pub struct FrozenFile {
    file: Arc<File>,
    bytes: u64,
    position: u64,
    generation: u64,
    /// Holds the transaction; it ends with the connection.
    _reader: Mutex<Connection>,
    copying: CopyMark,
}

impl FrozenFile {
    /// Size of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sequence of the last event in the file.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether the file was rebuilt since: no more of it can be read.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.copying.0.0.generation.load(Ordering::Acquire) != self.generation
    }

    /// Returns the bytes from `offset` on, at most `most`; none beyond the end.
    ///
    /// # Errors
    /// Returns the error of the file system, or one of kind `Other` if the file was rebuilt.
    pub fn read_part(&self, offset: u64, most: usize) -> std::io::Result<Vec<u8>> {
        if self.is_replaced() {
            return Err(std::io::Error::other("the read model was rebuilt"));
        }

        let left = self.bytes.saturating_sub(offset);
        let mut part = vec![0; usize::try_from(left).map_or(most, |left| left.min(most))];
        self.file.read_exact_at(&mut part, offset)?;
        Ok(part)
    }
}

impl Projection {
    /// Returns whether a copy is being made.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.0.copying.load(Ordering::Acquire) > 0
    }

    /// Writes a copy to `to`, which must not exist. Returns the sequence of the last event in the copy.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read or the copy cannot be written.
    pub async fn copy_to(&self, to: PathBuf) -> Result<u64, QueryProjectionError> {
        let from = self.path().to_path_buf();
        let _copying = CopyMark::begin_copy(self);
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

    /// Returns the file as it is now, to be read in parts. The writer waits a moment for readers of earlier states;
    /// readers and the writer go on afterwards.
    ///
    /// # Errors
    /// Returns [`FreezeFileError`]; the call may be made again.
    pub async fn freeze(&self) -> Result<FrozenFile, FreezeFileError> {
        // The log is not to be shortened by others from here on.
        let copying = CopyMark::begin_copy(self);
        let (begun, frozen) = oneshot::channel();
        let begin = move || {
            let frozen = begin_reading(copying);
            // If the caller waits no more, the connection is dropped, and its transaction with it.
            let _ = begun.send(frozen);
        };

        self.shorten_then(Box::new(begin)).await?;
        frozen.await.map_err(|_| FreezeFileError::Changed)?
    }
}

/// Begins to read a file whose log is empty. The writer, which alone rebuilds the file, does nothing meanwhile.
fn begin_reading(copying: CopyMark) -> Result<FrozenFile, FreezeFileError> {
    let own = &copying.0;
    let path = own.path();
    let failed = |source| FreezeFileError::File {
        path: path.to_path_buf(),
        source,
    };
    let generation = own.0.generation.load(Ordering::Acquire);
    let file = own.0.raw.open(path, generation).map_err(failed)?;

    let reader = schema::open_reader(path)?;
    reader.execute_batch("BEGIN")?;
    // The transaction begins with its first query.
    let position = schema::read_positions(&reader)?.position_of(FeedSource::Events);
    if own.log_bytes() > 0 {
        return Err(FreezeFileError::Changed);
    }

    Ok(FrozenFile {
        bytes: file.metadata().map_err(failed)?.len(),
        file,
        position,
        generation,
        _reader: Mutex::new(reader),
        copying,
    })
}
