//! Copies of the read model in the object store: a replica without a file begins with the newest one and reads only what
//! came since, instead of everything.
//!
//! What the store holds says whether a copy is due; whoever wins a compare-and-set makes it, and nobody needs it to be
//! made. A copy that is damaged or of other streams costs what there would be without it: the file is made anew.
//! Source: `docs/design/hooks.md` §5.

use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::bus::{Bus, CasError, ReadStreamError, StoreObjectError, StoredObject};
use shared::clock::{SharedClock, pause};
use shared::model::time::UnixMillis;
use shared::projection::{Projection, QueryProjectionError, Source, snapshot};
use shared::wire::session_mark::CopyMark;
use shared::wire::topology::buckets::ATTEMPTS;
use shared::wire::topology::objects::{MAX_SNAPSHOT_BYTES, SNAPSHOTS};
use shared::wire::topology::streams::EVENTS;

use crate::error::chain;

/// How often it is looked whether a copy is due.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// A copy is due when so many events came since the last one: they are read in some seconds.
const MIN_EVENTS: u64 = 50_000;

/// And this share of all, so that copies do not cost more the more there is.
const SHARE: u64 = 10;

/// How old the newest copy may become where anything came since, ms: the store forgets what is 14 days old.
const MAX_AGE_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// How long a copy may take to be made.
const MAKE: Duration = Duration::from_mins(20);

/// How long after somebody set out to make a copy nobody else does, ms: longer than that may take.
const AGAIN_MS: i64 = 30 * 60 * 1_000;

/// Copies that are kept.
const KEPT: usize = 2;

/// How long the first look at the store may take: a replica that finds no server makes its file anew.
const ASK: Duration = Duration::from_secs(10);

/// How long a copy may take to come.
const FETCH: Duration = Duration::from_mins(10);

/// Key of KV `attempts` under which it stands when somebody set out to make a copy.
const KEY: &str = "copy.hook";

/// A copy is not made or not fetched.
#[derive(Debug, thiserror::Error)]
pub enum CopyModelError {
    /// The store.
    #[error("object store operation failed")]
    Store(#[from] StoreObjectError),
    /// The file.
    #[error("failed to copy the read model")]
    Copy(#[from] QueryProjectionError),
    /// Who makes the next one is not known.
    #[error("failed to find out if a snapshot is due")]
    Ask(#[from] ReadStreamError),
    /// The same.
    #[error("failed to find out which replica makes the snapshot")]
    Claim(#[from] CasError),
    /// A file beside the read model.
    #[error("{path}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than the store takes: replicas without one read everything.
    #[error("the snapshot has {bytes} bytes; at most {MAX_SNAPSHOT_BYTES} can be stored")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// It took too long.
    #[error("timed out after {0:?}")]
    Late(Duration),
}

/// Puts the newest copy at `path` where no file is there. Without a copy there is none afterwards, which is well.
pub async fn bootstrap(bus: &Bus, path: &Path) {
    if path.exists() {
        return;
    }

    match fetch(bus, path).await {
        Ok(Some(name)) => tracing::info!(name, "read model starts from a snapshot"),
        Ok(None) => tracing::info!("no snapshot of the read model; rebuilding it"),
        Err(error) => tracing::warn!(
            error = chain(&error),
            "failed to load a snapshot of the read model; rebuilding it"
        ),
    }
}

async fn fetch(bus: &Bus, path: &Path) -> Result<Option<String>, CopyModelError> {
    let store = bus.objects(SNAPSHOTS);
    let known = tokio::time::timeout(ASK, known(bus)).await;
    let Some(newest) = known.map_err(|_| CopyModelError::Late(ASK))??.copies.pop() else {
        return Ok(None);
    };

    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| file(folder, source))?;
    }

    // Whole or not at all under its name; what a killed process left is written over.
    let unfinished = beside(path, "fetching");
    let fetched = tokio::time::timeout(FETCH, store.get(&newest.name, &unfinished)).await;
    fetched.map_err(|_| CopyModelError::Late(FETCH))??;

    for suffix in LOGS {
        let mut log = path.as_os_str().to_owned();
        log.push(suffix);
        remove(Path::new(&log))?;
    }

    std::fs::rename(&unfinished, path).map_err(|source| file(path, source))?;
    Ok(Some(newest.name))
}

/// What SQLite keeps beside a file: where the file was deleted and these were not, it would take them for the copy's.
const LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// A copy that this program can read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Copy {
    name: String,
    /// Up to which event it goes.
    sequence: u64,
    stored_at: UnixMillis,
}

/// What the store holds.
#[derive(Debug)]
struct Known {
    /// Copies of the streams that are there, the oldest first.
    copies: Vec<Copy>,
    /// Copies that go further than the stream does: the streams were made anew since.
    foreign: Vec<Copy>,
    /// Up to where the stream goes.
    end: u64,
}

async fn known(bus: &Bus) -> Result<Known, CopyModelError> {
    let stored = ours(bus.objects(SNAPSHOTS).list().await?);
    // Asked for after them: what is further was never in this stream.
    let end = bus.stream_state(EVENTS).await?.last;
    let (copies, foreign) = stored.into_iter().partition(|copy| copy.sequence <= end);
    Ok(Known { copies, foreign, end })
}

/// The copies that this program can read, the oldest first.
fn ours(objects: Vec<StoredObject>) -> Vec<Copy> {
    let folder = snapshot::folder();
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

/// Copies the read model into the store, and removes older copies and those of other streams; answers up to which event
/// the copy goes. Nobody else may do so at that time.
///
/// # Errors
/// [`CopyModelError`]; what was there before is there still.
pub async fn upload(bus: &Bus, projection: &Projection) -> Result<u64, CopyModelError> {
    let path = projection.path();
    let bytes = std::fs::metadata(path).map_err(|source| file(path, source))?.len();
    if bytes > MAX_SNAPSHOT_BYTES {
        return Err(CopyModelError::TooLarge { bytes });
    }

    let copy = beside(path, "copying");
    remove(&copy)?;
    let outcome = tokio::time::timeout(MAKE, store(bus, projection, &copy)).await;
    let removed = remove(&copy);
    let events = outcome.map_err(|_| CopyModelError::Late(MAKE))??;
    removed?;

    Ok(events)
}

async fn store(bus: &Bus, projection: &Projection, copy: &Path) -> Result<u64, CopyModelError> {
    let events = projection.copy_to(copy.to_path_buf()).await?;
    let store = bus.objects(SNAPSHOTS);

    // Else what failed tries left would keep every further one from having room.
    let swept = store.sweep().await?;
    if swept > 0 {
        tracing::info!(swept, "removed pieces of unfinished snapshots");
    }

    store.put(&format!("{}{events}", snapshot::folder()), copy).await?;
    let Known {
        mut copies, foreign, ..
    } = known(bus).await?;
    copies.truncate(copies.len().saturating_sub(KEPT));

    for old in copies.into_iter().chain(foreign) {
        store.delete(&old.name).await?;
    }

    Ok(events)
}

/// Makes copies whenever one is due, for ever.
pub(crate) async fn keep(bus: Bus, projection: Projection, clock: SharedClock) {
    loop {
        pause(LOOK_EVERY).await;
        match copy_if_due(&bus, &projection, clock.now()).await {
            Ok(Some(events)) => tracing::info!(events, "read model snapshot stored"),
            Ok(None) => {}
            Err(error) => tracing::warn!(error = chain(&error), "failed to store a snapshot of the read model"),
        }
    }
}

/// Makes a copy where one is due and nobody else has set out to.
async fn copy_if_due(bus: &Bus, projection: &Projection, now: UnixMillis) -> Result<Option<u64>, CopyModelError> {
    let position = projection.position(Source::Events);
    let Known { copies, end, .. } = known(bus).await?;

    // A file that goes further than the stream is of other streams: it is about to be made anew.
    if position > end || !is_due(copies.last(), position, now) {
        return Ok(None);
    }

    let marks = bus.kv::<CopyMark>(ATTEMPTS);
    let (mark, revision) = marks.find(KEY).await?;
    if mark.is_some_and(|mark| (0..AGAIN_MS).contains(&now.since(mark.begun_at))) {
        return Ok(None);
    }

    match marks.update(KEY, &CopyMark { begun_at: now }, revision).await {
        Ok(_) => upload(bus, projection).await.map(Some),
        Err(CasError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether enough came since the `newest` copy for another one that goes to `position`.
fn is_due(newest: Option<&Copy>, position: u64, now: UnixMillis) -> bool {
    let sequence = newest.map_or(0, |copy| copy.sequence);
    let since = position.saturating_sub(sequence);
    let is_old = newest.is_some_and(|copy| now.since(copy.stored_at) >= MAX_AGE_MS);
    (since >= MIN_EVENTS && since >= sequence / SHARE) || (since > 0 && is_old)
}

fn beside(path: &Path, what: &str) -> PathBuf {
    path.with_extension(what)
}

fn remove(path: &Path) -> Result<(), CopyModelError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(file(path, source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn file(path: &Path, source: std::io::Error) -> CopyModelError {
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
            name: format!("{}{sequence}", snapshot::folder()),
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
    fn copies_of_another_schema_are_left_alone() {
        let object = |name: String| StoredObject {
            name,
            stored_at: UnixMillis(1_000),
        };
        let mut objects: Vec<StoredObject> = [100, 20].map(|sequence| object(copy(sequence).name)).to_vec();
        objects.push(object("read-model/v1/9".to_owned()));
        objects.push(object(format!("{}x", snapshot::folder())));
        assert_eq!(ours(objects), [copy(20), copy(100)]);
    }
}
