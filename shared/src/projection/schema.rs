//! The file: its tables, how it is opened, and when it is thrown away.
//!
//! Everything in it can be read from the streams again, so a file that is damaged, or of another
//! version of the schema, is not repaired: it is removed and made anew.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::applied::{Positions, Source, from_sql};
use super::error::OpenProjectionError;

/// Tables and indexes.
const TABLES: &str = include_str!("schema.sql");

/// Version of `schema.sql`, kept in `user_version`; another one in the file means that the file is made anew.
pub(super) const VERSION: i64 = 12;

/// How long a statement waits for a lock before it fails.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it waits for readers of the log before it is not cut off: a script may read one state for a second, and its last
/// query for another.
const SHORTEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Page cache of the writer, KiB (negative = KiB in SQLite's own notation). What a transaction of some thousand messages
/// changes has room in it: beyond that pages go to the log before the commit, and again with it.
const WRITER_CACHE: &str = "-32768";

/// Pages in the write-ahead log before it is copied into the file: 32 MiB at 4 KiB each. Most pages are
/// written by many transactions, and copied once.
const CHECKPOINT_PAGES: &str = "8192";

/// What a write-ahead log that had grown is cut down to when it begins anew, bytes.
const LOG_BYTES: &str = "16777216";

/// Statements kept prepared per connection; more than there are in this module.
const PREPARED_STATEMENTS: usize = 64;

/// A writer's connection and how the file came to be what it is.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) positions: Positions,
    /// Why the former file was thrown away; none = it was kept, or there was none.
    pub(super) discarded: Option<String>,
}

/// Opens the file at `path` for writing; makes it where it is absent, damaged or of another version.
pub(super) fn open_writer(path: &Path) -> Result<Opened, OpenProjectionError> {
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

    let existed = path.exists();
    let reason = match open_existing(path) {
        Ok(Some((connection, positions))) => {
            return Ok(Opened {
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

    let connection = recreate(path)?;
    let discarded = (!reason.is_empty()).then_some(reason);

    Ok(Opened {
        connection,
        positions: Positions::default(),
        discarded,
    })
}

/// Throws away what is at `path` and makes an empty read model there.
pub(super) fn recreate(path: &Path) -> Result<Connection, OpenProjectionError> {
    remove(path)?;
    create(path).map_err(|source| OpenProjectionError::Sqlite {
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

/// Whether `error` says that the file itself cannot be trusted any more.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Whether `error` lies in the surroundings and may pass: a lock, a full disk, memory.
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

fn open_existing(path: &Path) -> Result<Option<(Connection, Positions)>, rusqlite::Error> {
    if !path.exists() {
        return Ok(None);
    }

    let connection = Connection::open(path)?;
    tune(&connection)?;

    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != VERSION {
        return Ok(None);
    }

    let positions = read_positions(&connection)?;
    Ok(Some((connection, positions)))
}

fn create(path: &Path) -> Result<Connection, rusqlite::Error> {
    let mut connection = Connection::open(path)?;
    tune(&connection)?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(connection)
}

fn tune(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);

    // NORMAL keeps the file whole on power loss and may lose the last transactions, positions and rows alike.
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

/// Copies the log into the file and cuts it off. Readers that were there before are waited for, and the writer with
/// them, for [`SHORTEN_TIMEOUT`].
pub(super) fn shorten(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(SHORTEN_TIMEOUT)?;
    let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    if busy? {
        let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(failure, None));
    }
    Ok(())
}

pub(super) fn read_positions(connection: &Connection) -> Result<Positions, rusqlite::Error> {
    let mut positions = Positions::default();
    let mut statement = connection.prepare_cached("SELECT sequence FROM nexus_positions WHERE stream = ?1")?;
    for source in Source::ALL {
        let mut rows = statement.query([source.stream()])?;
        if let Some(row) = rows.next()? {
            positions.advance(source, from_sql(row.get(0)?));
        }
    }
    Ok(positions)
}

/// The file that SQLite keeps beside the one at `path`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove(path: &Path) -> Result<(), OpenProjectionError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let file = beside(path, suffix);
        match std::fs::remove_file(&file) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(OpenProjectionError::Remove { path: file, source }),
        }
    }
    Ok(())
}
