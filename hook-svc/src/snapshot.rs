//! Copies of the read model in the object store: a replica without a file begins with the newest one and reads only what
//! came since, instead of everything.
//!
//! Whoever wins a compare-and-set makes the next copy; nobody needs it to be made. A copy that is damaged or of other
//! streams costs what there would be without it: the file is made anew. Source: `hooks.md` "Crash rules".

use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::bus::{Bus, CasError, ReadStreamError, StoreObjectError};
use shared::clock::pause;
use shared::projection::{Projection, QueryProjectionError, Source, snapshot};
use shared::wire::session_mark::SettledFloor;
use shared::wire::topology::buckets::ATTEMPTS;
use shared::wire::topology::objects::SNAPSHOTS;

use crate::error::chain;

/// How often it is looked whether a copy is due.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// A copy is due when so many events came since the last one: they are read in some seconds.
const MIN_EVENTS: u64 = 50_000;

/// And this share of all, so that copies do not cost more the more there is.
const SHARE: u64 = 10;

/// Copies that are kept.
const KEPT: usize = 2;

/// How long the first look at the store may take: a replica that finds no server makes its file anew.
const ASK: Duration = Duration::from_secs(10);

/// How long a copy may take to come.
const FETCH: Duration = Duration::from_mins(10);

/// Key of KV `attempts` under which it stands up to which event somebody has set out to make a copy.
const KEY: &str = "snapshot.hook";

/// A copy is not made or not fetched.
#[derive(Debug, thiserror::Error)]
pub enum CopyModelError {
    /// The store.
    #[error("the object store does not do it")]
    Store(#[from] StoreObjectError),
    /// The file.
    #[error("the read model cannot be copied")]
    Copy(#[from] QueryProjectionError),
    /// Who makes the next one is not known.
    #[error("it is not known whether a copy is due")]
    Ask(#[from] ReadStreamError),
    /// The same.
    #[error("it is not known who makes the copy")]
    Claim(#[from] CasError),
    /// A file beside the read model.
    #[error("{path}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It took too long.
    #[error("it took longer than {0:?}")]
    Late(Duration),
}

/// Puts the newest copy at `path` where no file is there. Without a copy there is none afterwards, which is well.
pub async fn bootstrap(bus: &Bus, path: &Path) {
    if path.exists() {
        return;
    }
    match fetch(bus, path).await {
        Ok(Some(name)) => tracing::info!(name, "read model begins with a copy"),
        Ok(None) => tracing::info!("there is no copy of the read model, it is made anew"),
        Err(error) => tracing::warn!(
            error = chain(&error),
            "no copy of the read model can be had, it is made anew"
        ),
    }
}

async fn fetch(bus: &Bus, path: &Path) -> Result<Option<String>, CopyModelError> {
    let store = bus.objects(SNAPSHOTS);
    let names = tokio::time::timeout(ASK, store.names()).await;
    let names = names.map_err(|_| CopyModelError::Late(ASK))??;
    let Some(newest) = ours(names).pop() else {
        return Ok(None);
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| file(folder, source))?;
    }
    // Whole or not at all under its name; what a killed process left is written over.
    let unfinished = beside(path, "fetching");
    let fetched = tokio::time::timeout(FETCH, store.get(&newest, &unfinished)).await;
    fetched.map_err(|_| CopyModelError::Late(FETCH))??;
    std::fs::rename(&unfinished, path).map_err(|source| file(path, source))?;
    Ok(Some(newest))
}

/// The names of copies that this program can read, the oldest first.
fn ours(names: Vec<String>) -> Vec<String> {
    let folder = snapshot::folder();
    let number = |name: &String| name.strip_prefix(&folder)?.parse::<u64>().ok();
    let mut ours: Vec<String> = names.into_iter().filter(|name| number(name).is_some()).collect();
    ours.sort_by_key(number);
    ours
}

/// Copies the read model into the store, and removes older copies; answers up to which event the copy goes.
///
/// # Errors
/// [`CopyModelError`]; what was there before is there still.
pub async fn upload(bus: &Bus, projection: &Projection) -> Result<u64, CopyModelError> {
    let copy = beside(projection.path(), "copying");
    remove(&copy)?;
    let outcome = store(bus, projection, &copy).await;
    let removed = remove(&copy);
    let events = outcome?;
    removed?;
    Ok(events)
}

async fn store(bus: &Bus, projection: &Projection, copy: &Path) -> Result<u64, CopyModelError> {
    let events = projection.copy_to(copy.to_path_buf()).await?;
    let store = bus.objects(SNAPSHOTS);
    store.put(&format!("{}{events}", snapshot::folder()), copy).await?;
    let mut known = ours(store.names().await?);
    known.truncate(known.len().saturating_sub(KEPT));
    for old in known {
        store.delete(&old).await?;
    }
    Ok(events)
}

/// Makes copies whenever one is due, for ever.
pub(crate) async fn keep(bus: Bus, projection: Projection) {
    loop {
        pause(LOOK_EVERY).await;
        match copy_if_due(&bus, &projection).await {
            Ok(Some(events)) => tracing::info!(events, "a copy of the read model is stored"),
            Ok(None) => {}
            Err(error) => tracing::warn!(error = chain(&error), "no copy of the read model is stored now"),
        }
    }
}

/// Makes a copy where one is due and nobody else has set out to.
async fn copy_if_due(bus: &Bus, projection: &Projection) -> Result<Option<u64>, CopyModelError> {
    let now = projection.position(Source::Events);
    let marks = bus.kv::<SettledFloor>(ATTEMPTS);
    let (last, revision) = marks.find(KEY).await?;
    if !is_due(last.map_or(0, |mark| mark.sequence), now) {
        return Ok(None);
    }
    match marks.update(KEY, &SettledFloor { sequence: now }, revision).await {
        Ok(_) => upload(bus, projection).await.map(Some),
        Err(CasError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether enough came since `last` (events, as sequences).
fn is_due(last: u64, now: u64) -> bool {
    let since = now.saturating_sub(last);
    // Streams that were made anew begin again at 1.
    let begun_again = now < last && now >= MIN_EVENTS;
    begun_again || (since >= MIN_EVENTS && since >= last / SHARE)
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

    #[test]
    fn a_copy_is_due_when_much_is_new() {
        assert!(!is_due(0, 0) && !is_due(0, MIN_EVENTS - 1));
        assert!(is_due(0, MIN_EVENTS));
        assert!(!is_due(10_000_000, 10_000_000 + MIN_EVENTS));
        assert!(is_due(10_000_000, 11_000_000));
        assert!(is_due(10_000_000, MIN_EVENTS), "the streams were made anew");
    }

    #[test]
    fn copies_of_another_schema_are_left_alone() {
        let folder = snapshot::folder();
        let names = [
            "read-model/v1/9".to_owned(),
            format!("{folder}100"),
            format!("{folder}20"),
            format!("{folder}x"),
        ];
        assert_eq!(ours(names.to_vec()), [format!("{folder}20"), format!("{folder}100")]);
    }
}
