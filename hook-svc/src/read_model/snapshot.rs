//! Copies of the read model in the object store: a replica without a file starts from the newest one and reads only
//! later messages.
//!
//! They are bounded; larger files are fetched from another replica (`peer_file`).
//!
//! The content of the store shows whether a copy is due. The replica that wins a compare-and-set makes it, and no
//! replica depends on it. A copy that is damaged or of other streams costs the same as no copy: the file is rebuilt.
//! Source: `docs/design/hooks.md` §5.

use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::bus::{Bus, CasError, ReadStreamError, StoreObjectError, StoredObject};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::model::time::UnixMillis;
use shared::projection::{FeedSource, Projection, QueryProjectionError, snapshot};
use shared::wire::session_mark::CopyMark;
use shared::wire::topology::buckets::ATTEMPTS;
use shared::wire::topology::objects::{MAX_SNAPSHOT_BYTES, SNAPSHOTS};
use shared::wire::topology::streams::EVENTS;

/// Interval at which a replica checks whether a copy is due.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// Number of events since the last copy for another one to be due: they are read in some seconds.
const MIN_EVENTS: u64 = 50_000;

/// Divisor of the copied events: at least this part of them must be new, so that copies do not become more costly as
/// the total grows.
const SHARE: u64 = 10;

/// Longest age of the newest copy in milliseconds if any event is newer: the store deletes objects after 14 days.
const MAX_AGE_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// Time limit for making a copy.
const MAKE: Duration = Duration::from_mins(20);

/// Time in milliseconds after a replica began a copy in which no other replica does; longer than making one may take.
const AGAIN_MS: i64 = 30 * 60 * 1_000;

/// Number of copies to keep.
const KEPT: usize = 2;

/// Time limit for the first request to the store: a replica that finds no server rebuilds its file.
const ASK: Duration = Duration::from_secs(10);

/// Time limit for fetching a copy.
const FETCH: Duration = Duration::from_mins(10);

/// Key of KV `attempts` that records when a replica began a copy.
const KEY: &str = "copy.hook";

/// Error for a copy that could not be made or fetched.
#[derive(Debug, thiserror::Error)]
pub enum CopyModelError {
    /// An operation of the object store failed.
    #[error("object store operation failed")]
    Store(#[from] StoreObjectError),
    /// The read model could not be copied.
    #[error("failed to copy the read model")]
    Copy(#[from] QueryProjectionError),
    /// It is unknown whether a copy is due.
    #[error("failed to find out if a snapshot is due")]
    Ask(#[from] ReadStreamError),
    /// It is unknown which replica makes the copy.
    #[error("failed to find out which replica makes the snapshot")]
    Claim(#[from] CasError),
    /// An operation on a file beside the read model failed.
    #[error("{path}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// The file is larger than the store allows: replicas without a file fetch it from one that has it.
    #[error(
        "the read model has {bytes} bytes, of which at most {MAX_SNAPSHOT_BYTES} can be stored; other replicas fetch it from this one"
    )]
    TooLarge {
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// The operation timed out after this time.
    #[error("timed out after {0:?}")]
    Late(Duration),
}

/// Fetches the newest copy to `path` if no file exists there. Without a copy the file stays absent, and is rebuilt
/// later.
pub async fn bootstrap_model(bus: &Bus, path: &Path) {
    if path.exists() {
        return;
    }

    match fetch(bus, path).await {
        Ok(Some(name)) => tracing::info!(name, "read model starts from a snapshot"),
        Ok(None) => tracing::info!("no snapshot of the read model; rebuilding it"),
        Err(error) => tracing::warn!(
            error = describe_error(&error),
            "failed to load a snapshot of the read model; rebuilding it"
        ),
    }
}

async fn fetch(bus: &Bus, path: &Path) -> Result<Option<String>, CopyModelError> {
    let store = bus.objects(SNAPSHOTS);
    let Some(newest) = ask_known(bus).await?.copies.pop() else {
        return Ok(None);
    };

    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| file_error(folder, source))?;
    }

    // The file appears under its name complete or not at all; the rest of a killed process is overwritten.
    let unfinished = unfinished_path(path);
    let fetched = tokio::time::timeout(FETCH, store.get(&newest.name, &unfinished)).await;
    fetched.map_err(|_| CopyModelError::Late(FETCH))??;

    put_in_place(&unfinished, path)?;
    Ok(Some(newest.name))
}

/// Path of a file that is fetched for the read model at `path`, while it is incomplete.
pub(crate) fn unfinished_path(path: &Path) -> PathBuf {
    path_beside(path, "fetching")
}

/// Removes what was fetched in part for the read model at `path`, by a process that was killed or in vain: a file that is
/// built instead would share the volume with it for ever.
pub(crate) fn remove_unfinished(path: &Path) {
    if let Err(error) = remove(&unfinished_path(path)) {
        let error = describe_error(&error);
        tracing::warn!(error, "failed to remove a file that was fetched in part");
    }
}

/// Makes the complete file at `fetched` the read model at `path`.
pub(crate) fn put_in_place(fetched: &Path, path: &Path) -> Result<(), CopyModelError> {
    for suffix in LOGS {
        let mut log = path.as_os_str().to_owned();
        log.push(suffix);
        remove(Path::new(&log))?;
    }
    std::fs::rename(fetched, path).map_err(|source| file_error(path, source))
}

/// Returns the sequence of the last event in the newest copy of the store, if there is one, and that of the last one in
/// the stream.
pub(crate) async fn read_stored(bus: &Bus) -> Result<(Option<u64>, u64), CopyModelError> {
    let known = ask_known(bus).await?;
    Ok((known.copies.last().map(|copy| copy.sequence), known.end))
}

async fn ask_known(bus: &Bus) -> Result<Known, CopyModelError> {
    let known = tokio::time::timeout(ASK, read_known(bus)).await;
    known.map_err(|_| CopyModelError::Late(ASK))?
}

/// Suffixes of the files that SQLite keeps beside a database: if only the database was deleted, it would apply them to
/// the copy.
const LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// A copy that this program can read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Copy {
    name: String,
    /// Sequence of the last event that it holds.
    sequence: u64,
    stored_at: UnixMillis,
}

/// Content of the store.
#[derive(Debug)]
struct Known {
    /// Copies of the present streams, the oldest first.
    copies: Vec<Copy>,
    /// Copies that are ahead of the stream, because the streams were recreated since.
    foreign: Vec<Copy>,
    /// Sequence of the last event in the stream.
    end: u64,
}

async fn read_known(bus: &Bus) -> Result<Known, CopyModelError> {
    let stored = readable_copies(bus.objects(SNAPSHOTS).list().await?);
    // The end is read after the list: a copy ahead of it was never of this stream.
    let end = bus.stream_state(EVENTS).await?.last;
    let (copies, foreign) = stored.into_iter().partition(|copy| copy.sequence <= end);
    Ok(Known { copies, foreign, end })
}

/// Returns the copies that this program can read, the oldest first.
fn readable_copies(objects: Vec<StoredObject>) -> Vec<Copy> {
    let folder = snapshot::name_prefix();
    let copy = |object: StoredObject| {
        let sequence = object.name.strip_prefix(&folder)?.parse().ok()?;
        Some(Copy {
            name: object.name,
            sequence,
            stored_at: object.stored_at,
        })
    };

    let mut ours: Vec<Copy> = objects.into_iter().filter_map(copy).collect();
    ours.sort_by_key(|copy| copy.sequence);

    ours
}

/// Copies the read model into the store, and removes older copies and those of other streams. Returns the sequence of
/// the last event in the copy. No other replica may do this at the same time.
///
/// # Errors
/// Returns [`CopyModelError`] if a step fails; earlier copies are kept.
pub async fn upload_copy(bus: &Bus, projection: &Projection) -> Result<u64, CopyModelError> {
    let path = projection.path();
    let bytes = std::fs::metadata(path)
        .map_err(|source| file_error(path, source))?
        .len();
    if bytes > MAX_SNAPSHOT_BYTES {
        return Err(CopyModelError::TooLarge { bytes });
    }

    let copy = path_beside(path, "copying");
    remove(&copy)?;
    let outcome = tokio::time::timeout(MAKE, store_copy(bus, projection, &copy)).await;
    let removed = remove(&copy);
    let events = outcome.map_err(|_| CopyModelError::Late(MAKE))??;
    removed?;

    Ok(events)
}

async fn store_copy(bus: &Bus, projection: &Projection, copy: &Path) -> Result<u64, CopyModelError> {
    let events = projection.copy_to(copy.to_path_buf()).await?;
    let store = bus.objects(SNAPSHOTS);

    // Without this, the rest of failed attempts would leave no room for further ones.
    let swept = store.sweep().await?;
    if swept > 0 {
        tracing::info!(swept, "removed pieces of unfinished snapshots");
    }

    store.put(&format!("{}{events}", snapshot::name_prefix()), copy).await?;
    let Known {
        mut copies, foreign, ..
    } = read_known(bus).await?;
    copies.truncate(copies.len().saturating_sub(KEPT));

    for old in copies.into_iter().chain(foreign) {
        store.delete(&old.name).await?;
    }

    Ok(events)
}

/// Makes copies whenever one is due; never returns.
pub(crate) async fn keep_copies(bus: Bus, projection: Projection, clock: SharedClock) {
    loop {
        pause(LOOK_EVERY).await;
        match copy_if_due(&bus, &projection, clock.now()).await {
            Ok(Some(events)) => tracing::info!(events, "read model snapshot stored"),
            Ok(None) => {}
            Err(error) => tracing::warn!(
                error = describe_error(&error),
                "failed to store a snapshot of the read model"
            ),
        }
    }
}

/// Makes a copy if one is due and no other replica has begun one. Returns the sequence of its last event.
async fn copy_if_due(bus: &Bus, projection: &Projection, now: UnixMillis) -> Result<Option<u64>, CopyModelError> {
    let position = projection.position(FeedSource::Events);
    let Known { copies, end, .. } = read_known(bus).await?;

    // A file that is ahead of the stream is of other streams, and is about to be rebuilt.
    if position > end || !is_due(copies.last(), position, now) {
        return Ok(None);
    }

    let marks = bus.kv::<CopyMark>(ATTEMPTS);
    let (mark, revision) = marks.find(KEY).await?;
    if mark.is_some_and(|mark| (0..AGAIN_MS).contains(&now.since(mark.begun_at))) {
        return Ok(None);
    }

    match marks.update(KEY, &CopyMark { begun_at: now }, revision).await {
        Ok(_) => upload_copy(bus, projection).await.map(Some),
        Err(CasError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether enough events came since the `newest` copy for another one up to `position`.
fn is_due(newest: Option<&Copy>, position: u64, now: UnixMillis) -> bool {
    let sequence = newest.map_or(0, |copy| copy.sequence);
    let is_old = newest.is_some_and(|copy| now.since(copy.stored_at) >= MAX_AGE_MS);
    is_much(sequence, position) || (position > sequence && is_old)
}

/// Returns whether so many events came after `sequence`, up to `position`, that another copy is due.
fn is_much(sequence: u64, position: u64) -> bool {
    let since = position.saturating_sub(sequence);
    since >= MIN_EVENTS && since >= sequence / SHARE
}

/// Returns whether a file up to `position` saves much of the reading after the newest copy, which ends at `stored`.
pub(crate) fn is_much_newer(stored: Option<u64>, position: u64) -> bool {
    stored.map_or(position > 0, |stored| is_much(stored, position))
}

fn path_beside(path: &Path, what: &str) -> PathBuf {
    path.with_extension(what)
}

fn remove(path: &Path) -> Result<(), CopyModelError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(file_error(path, source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn file_error(path: &Path, source: std::io::Error) -> CopyModelError {
    CopyModelError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(sequence: u64) -> Copy {
        Copy {
            name: format!("{}{sequence}", snapshot::name_prefix()),
            sequence,
            stored_at: UnixMillis(1_000),
        }
    }

    #[test]
    fn a_copy_is_due_when_much_is_new_or_the_newest_is_old() {
        let now = UnixMillis(2_000);
        let is_due_at = |position| is_due(Some(&copy(10_000_000)), position, now);
        assert!(!is_due(None, 0, now) && !is_due(None, MIN_EVENTS - 1, now));
        assert!(is_due(None, MIN_EVENTS, now));
        assert!(!is_due_at(10_000_000 + MIN_EVENTS));
        assert!(is_due_at(11_000_000));

        let later = UnixMillis(1_000 + MAX_AGE_MS);
        assert!(is_due(Some(&copy(10_000_000)), 10_000_001, later));
        assert!(!is_due(Some(&copy(10_000_000)), 10_000_000, later), "it says it all");
    }

    #[test]
    fn another_replica_is_asked_if_its_file_saves_much_reading() {
        assert!(is_much_newer(None, 1) && !is_much_newer(None, 0));
        assert!(!is_much_newer(Some(0), MIN_EVENTS - 1) && is_much_newer(Some(0), MIN_EVENTS));
        assert!(!is_much_newer(Some(10_000_000), 10_999_999) && is_much_newer(Some(10_000_000), 11_000_000));
        assert!(!is_much_newer(Some(10), 5));
    }

    #[test]
    fn copies_of_another_schema_are_left_alone() {
        let object = |name: String| StoredObject {
            name,
            stored_at: UnixMillis(1_000),
        };
        let mut objects: Vec<StoredObject> = [100, 20].map(|sequence| object(copy(sequence).name)).to_vec();
        objects.push(object("read-model/v1/9".to_owned()));
        objects.push(object(format!("{}x", snapshot::name_prefix())));
        assert_eq!(readable_copies(objects), [copy(20), copy(100)]);
    }
}
