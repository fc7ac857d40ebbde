//! Routing bindings and webhook mappings: one declarative file that acts as one hook and fires at most once per event.
//!
//! A `Table` is the file compiled into one index; this module reads the file at start, and again when it changes. If a
//! changed file has an error, the last valid one stays in force.
//!
//! Source: seed 003 §4–5; `docs/design/hooks.md` §8.

mod file;
mod table;
mod template;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use shared::clock::pause;
use shared::process::config::{ConfigFault, KeyFault};

pub use self::file::LoadBindingsError;
pub use self::table::BindingTable;

/// Hook id under which the file fires.
pub const HOOK_ID: &str = "bindings.yaml";

/// Interval at which the file is checked for changes.
const LOOK: Duration = Duration::from_millis(500);

/// Largest size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// The bindings in force; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LiveBindings {
    /// Path of the file; `None` if no file is configured.
    path: Option<PathBuf>,
    /// Stamp of the file that was read first.
    read: Stamp,
    table: Arc<RwLock<Arc<BindingTable>>>,
}

/// Modification time and length in bytes, which tell a changed file from the one that was read.
type Stamp = Option<(SystemTime, u64)>;

impl LiveBindings {
    /// Reads the file at `path`; an empty path means no bindings.
    ///
    /// # Errors
    /// Returns [`LoadBindingsError`] with every fault of the file.
    pub fn load(path: &str) -> Result<Self, LoadBindingsError> {
        if path.is_empty() {
            return Ok(Self::default());
        }

        let path = PathBuf::from(path);
        // The stamp is taken before reading, so that a concurrent change is seen as a change.
        let seen = file_stamp(&path);
        let table = read(&path)?;
        tracing::info!(path = %path.display(), rules = table.len(), "bindings loaded");

        Ok(Self {
            path: Some(path),
            read: seen,
            table: Arc::new(RwLock::new(Arc::new(table))),
        })
    }

    /// Returns the table in force.
    #[must_use]
    pub fn current_table(&self) -> Arc<BindingTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the file again whenever it changes; never returns.
    pub async fn follow_file(self) {
        let Some(path) = self.path.clone() else {
            return std::future::pending().await;
        };

        let mut seen = self.read;
        loop {
            pause(LOOK).await;
            let (file, before) = (path.clone(), seen);

            // The file may have ten thousand rules and be on a network drive, and this thread renews leases.
            let Ok((found, read)) = tokio::task::spawn_blocking(move || read_if_changed(&file, before)).await else {
                continue;
            };
            seen = found;

            let Some(read) = read else { continue };
            match read {
                Ok(table) => {
                    tracing::info!(path = %path.display(), rules = table.len(), "bindings loaded");
                    *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
                }
                Err(error) => tracing::error!(%error, "failed to load bindings; keeping the former ones"),
            }
        }
    }
}

/// Returns the faults of the file at `path`; none if `path` is empty.
#[must_use]
pub fn faults(path: &str) -> Vec<ConfigFault> {
    if path.is_empty() {
        return Vec::new();
    }
    let error = read(std::path::Path::new(path)).err();
    let faults = error.map(|error| error.faults).unwrap_or_default();
    faults.into_iter().map(|fault| fault.of_file(path)).collect()
}

fn file_stamp(path: &std::path::Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Returns the file's stamp, and its table if the stamp differs from `before`.
fn read_if_changed(path: &std::path::Path, before: Stamp) -> (Stamp, Option<Result<BindingTable, LoadBindingsError>>) {
    let found = file_stamp(path);
    (found, (found != before).then(|| read(path)))
}

fn read(path: &std::path::Path) -> Result<BindingTable, LoadBindingsError> {
    let whole = |fault: String| LoadBindingsError {
        path: path.to_owned(),
        faults: vec![KeyFault::whole(fault)],
    };
    let length = std::fs::metadata(path)
        .map_err(|error| whole(format!("cannot be read: {error}")))?
        .len();
    if length > MAX_FILE_BYTES {
        return Err(whole(format!(
            "{length} bytes found, expected at most {MAX_FILE_BYTES}"
        )));
    }

    let text = std::fs::read_to_string(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
    BindingTable::parse(&text).map_err(|faults| LoadBindingsError {
        path: path.to_owned(),
        faults,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = LiveBindings::load("/nowhere/bindings.yaml").expect_err("there is no such file");
        assert!(
            error.to_string().starts_with("/nowhere/bindings.yaml: cannot be read:"),
            "{error}"
        );
        assert!(
            LiveBindings::load("")
                .expect("none are wanted")
                .current_table()
                .is_empty()
        );
    }

    #[tokio::test]
    async fn a_changed_file_is_read_again_and_a_bad_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bindings.yaml");
        std::fs::write(&path, "bindings: [{persona: a}]").expect("written");
        let bindings = LiveBindings::load(&path.to_string_lossy()).expect("it loads");
        let follower = tokio::spawn(bindings.clone().follow_file());
        let becomes = async |rules: usize| {
            while bindings.current_table().len() != rules {
                pause(Duration::from_millis(20)).await;
            }
        };

        std::fs::write(&path, "bindings: [{persona: a}, {persona: b, match: {channel: sms}}]").expect("written");
        tokio::time::timeout(Duration::from_secs(30), becomes(2))
            .await
            .expect("it is read again");
        std::fs::write(&path, "bindings: [{persona: a}, {}, {}, {}]").expect("written");
        pause(2 * LOOK).await;

        assert_eq!(bindings.current_table().len(), 2, "the last good one stays in force");

        std::fs::write(
            &path,
            "bindings: [{persona: a}, {persona: b, match: {channel: sms}}, {persona: c, match: {team: t}}]",
        )
        .expect("written");
        tokio::time::timeout(Duration::from_secs(30), becomes(3))
            .await
            .expect("it is read again");
        follower.abort();
    }
}
