//! Database file: its tables, how it is opened, and when it is discarded.
//!
//! Everything in it can be read from the streams again, so a file that is damaged or has another version of the schema
//! is not repaired: it is removed and rebuilt.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::applied::{FeedSource, StreamPositions, from_sql};
use super::error::OpenProjectionError;

/// SQL of the tables and indexes.
const TABLES: &str = include_str!("schema.sql");

/// Version of `schema.sql`, stored in `user_version`; a file with another version is rebuilt.
pub(super) const VERSION: i64 = 15;

/// Time for which a statement waits for a lock before it fails.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which shortening the log waits for its readers: a script may read one state for a second, and its last
/// query for another.
const SHORTEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Page cache of the writer, KiB (negative = KiB in SQLite's own notation). It holds the changes of a transaction of
/// some thousand messages: if they do not fit, pages go to the log before the commit, and again with it.
const WRITER_CACHE: &str = "-65536";

/// Size of the write-ahead log, in pages, at which it is copied into the file: 32 MiB at 4 KiB each. Most pages are
/// written by many transactions, and copied once.
const CHECKPOINT_PAGES: &str = "8192";

/// Size in bytes to which a large write-ahead log is truncated when it restarts.
const LOG_BYTES: &str = "16777216";

/// Number of statements kept prepared per connection; more than there are in this module.
const PREPARED_STATEMENTS: usize = 64;

/// A writer's connection, and the origin of its file.
pub(super) struct OpenedFile {
    pub(super) connection: Connection,
    pub(super) positions: StreamPositions,
    /// Reason why the former file was discarded; `None` if it was kept, or there was none.
    pub(super) discarded: Option<String>,
}

/// Opens the file at `path` for writing. Creates it if it is absent, damaged or of another version.
pub(super) fn open_writer(path: &Path) -> Result<OpenedFile, OpenProjectionError> {
    let failed = |source| OpenProjectionError::Sqlite {
        path: path.to_path_buf(),
        source,
    };

    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|source| OpenProjectionError::Directory {
            path: parent.to_path_buf(),
            source,
        })?;
    }

    // The reason is logged only if a file was there: a first start discards nothing.
    let existed = path.exists();
    let reason = match open_existing(path) {
        Ok(Some((connection, positions))) => {
            return Ok(OpenedFile {
                connection,
                positions,
                discarded: None,
            });
        }
        Ok(None) if existed => "another schema version".to_owned(),
        Ok(None) => String::new(),
        Err(error) if is_damage(&error) => error.to_string(),
        Err(error) => return Err(failed(error)),
    };

    // The file holds nothing that the streams do not: it can always be made again.
    let connection = recreate_file(path)?;
    let discarded = (!reason.is_empty()).then_some(reason);

    Ok(OpenedFile {
        connection,
        positions: StreamPositions::default(),
        discarded,
    })
}

/// Discards the file at `path` and creates an empty read model there.
pub(super) fn recreate_file(path: &Path) -> Result<Connection, OpenProjectionError> {
    remove(path)?;
    create_file(path).map_err(|source| OpenProjectionError::Sqlite {
        path: path.to_path_buf(),
        source,
    })
}

/// Opens the file at `path` for reading.
pub(super) fn open_reader(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Returns whether `error` means that the file itself can no longer be trusted.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Returns whether `error` comes from the environment and may pass: a lock, a full disk, memory.
pub(super) fn is_passing(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::OutOfMemory
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::OperationInterrupted
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

impl OpenProjectionError {
    /// Returns whether the file cannot be opened because the disk has no room for it, or fails: it may be opened later.
    #[must_use]
    pub fn is_of_disk(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure)
            ),
            Self::Directory { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
            Self::Remove { .. } | Self::Thread(_) => false,
        }
    }
}

fn open_existing(path: &Path) -> Result<Option<(Connection, StreamPositions)>, rusqlite::Error> {
    if !path.exists() {
        return Ok(None);
    }

    let connection = Connection::open(path)?;
    tune_connection(&connection)?;

    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != VERSION {
        return Ok(None);
    }

    let positions = read_positions(&connection)?;
    Ok(Some((connection, positions)))
}

fn create_file(path: &Path) -> Result<Connection, rusqlite::Error> {
    let mut connection = Connection::open(path)?;
    tune_connection(&connection)?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(connection)
}

fn tune_connection(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);

    // NORMAL keeps the file consistent on power loss, but may lose the last transactions, positions and rows alike.
    for (name, value) in [
        ("journal_mode", "WAL"),
        ("synchronous", "NORMAL"),
        ("cache_size", WRITER_CACHE),
        ("wal_autocheckpoint", CHECKPOINT_PAGES),
        ("journal_size_limit", LOG_BYTES),
        ("temp_store", "MEMORY"),
    ] {
        connection.pragma_update(None, name, value)?;
    }

    Ok(())
}

/// Copies the log into the file and truncates the log. Waits for earlier readers, and lets the writer wait, for
/// [`SHORTEN_TIMEOUT`].
pub(super) fn checkpoint_log(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(SHORTEN_TIMEOUT)?;
    let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    if busy? {
        let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(failure, None));
    }
    Ok(())
}

pub(super) fn read_positions(connection: &Connection) -> Result<StreamPositions, rusqlite::Error> {
    let mut positions = StreamPositions::default();
    let mut statement = connection.prepare_cached("SELECT sequence FROM nexus_positions WHERE stream = ?1")?;
    for source in FeedSource::ALL {
        let mut rows = statement.query([source.stream()])?;
        if let Some(row) = rows.next()? {
            positions.advance(source, from_sql(row.get(0)?));
        }
    }
    Ok(positions)
}

/// Returns the path of the file that SQLite keeps beside the one at `path`.
pub(super) fn side_file(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove(path: &Path) -> Result<(), OpenProjectionError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let file = side_file(path, suffix);
        match std::fs::remove_file(&file) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(OpenProjectionError::Remove { path: file, source }),
        }
    }
    Ok(())
}
