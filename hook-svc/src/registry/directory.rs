//! Hooks directory: watches it, reads it, and syncs it into the registry.
//!
//! Only changes *in the directory* since this replica last looked are written, each entry by compare-and-set and only
//! if the content hash differs: replicas with the same directory write once, and a replica whose mount lags behind does
//! not restore a file that another has just replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use data_encoding::HEXLOWER;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use sha2::{Digest, Sha256};
use shared::bus::{Bus, CasError, Kv};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::model::hook::{HookRecord, HookState};
use shared::wire::subject::token;
use shared::wire::topology::buckets::{HOOK_STATE, HOOKS};
use tokio::sync::{Notify, watch};

use crate::error::ScanDirectoryError;
use crate::registry::sync::HookFile;
use crate::registry::{RegistryPosition, authored, change_state, metadata, sync};

/// Most hook files in one directory.
const MAX_FILES: usize = 20_000;

/// Deepest sub-directory that is read, in levels.
const MAX_LEVELS: usize = 16;

/// Time for which the directory must be quiet before it is read.
const QUIET: Duration = Duration::from_millis(100);

/// Longest wait for quiet, in periods of [`QUIET`].
const MAX_QUIET_PERIODS: u32 = 5;

/// Interval at which the directory is read without a notification: not every file system sends them.
const RESCAN: Duration = Duration::from_secs(5);

/// Most retries of a compare-and-set after a conflict.
const MAX_TRIES: u32 = 10;

/// A file in the directory, not parsed.
#[derive(Debug)]
struct RawFile {
    /// Content, cut if it is longer than any hook may be.
    bytes: Vec<u8>,
    /// SHA-256 of the content, in hex.
    hash: String,
}

/// Files of the directory, by hook id.
type Files = BTreeMap<String, RawFile>;

/// The hooks directory of this replica.
#[derive(Debug, Clone)]
pub struct HooksDirectory {
    path: PathBuf,
    root: String,
    hooks: Kv<HookRecord>,
    states: Kv<HookState>,
    clock: SharedClock,
    /// Ignored paths that were logged, with the reason.
    ignored: Arc<Mutex<BTreeMap<PathBuf, &'static str>>>,
}

impl HooksDirectory {
    /// Creates the directory at `path`, known to the registry as `root`.
    #[must_use]
    pub fn new(path: PathBuf, root: String, bus: &Bus, clock: SharedClock) -> Self {
        Self {
            path,
            root,
            hooks: bus.kv(HOOKS),
            states: bus.kv(HOOK_STATE),
            clock,
            ignored: Arc::default(),
        }
    }

    /// Syncs the directory into the registry, and again whenever it or the registry's `era` changes; never returns.
    /// `synced` receives the revision of `hooks` from which on the registry holds the directory's content as of the
    /// beginning of that era.
    pub async fn follow_directory(
        &self,
        synced: watch::Sender<Option<RegistryPosition>>,
        mut era: watch::Receiver<u64>,
    ) {
        let dirty = Arc::new(Notify::new());
        // The watcher stops when it is dropped. Without it the directory is scanned at intervals.
        let _watcher = self.watch_files(&dirty);
        let mut counted = *era.borrow_and_update();

        let (mut before, mut revision) = self.remembered_hashes().await;
        loop {
            match self.sync_registry(&before, &mut revision).await {
                Ok(now) => {
                    before = now;
                    // The revision counts only for the era in which it was written, so a new era is always reported.
                    let reached = RegistryPosition { era: counted, revision };
                    synced.send_if_modified(|known| match known {
                        Some(known) if known.era == counted => false,
                        Some(_) | None => known.replace(reached) != Some(reached),
                    });
                }
                Err(error) => tracing::warn!(
                    path = %self.path.display(), error = %describe_error(&error), "failed to sync the hooks directory; the registry is unchanged"
                ),
            }

            tokio::select! {
                () = dirty.notified() => wait_quiet(&dirty).await,
                () = pause(RESCAN) => {}
                Ok(()) = era.changed() => {
                    // The registry was restored or recreated: its entries of this directory must be read again.
                    counted = *era.borrow_and_update();
                    (before, revision) = self.remembered_hashes().await;
                }
            }
        }
    }

    fn watch_files(&self, dirty: &Arc<Notify>) -> Option<RecommendedWatcher> {
        let dirty = Arc::clone(dirty);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if may_change_files(&event) {
                dirty.notify_one();
            }
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(&self.path, RecursiveMode::Recursive)?;
            Ok(watcher)
        });
        watching
            .inspect_err(|error| tracing::warn!(path = %self.path.display(), %error, "failed to watch the hooks directory; polling it"))
            .ok()
    }

    /// Reads the registry's entries of this directory, so that files deleted while no replica watched are noticed.
    /// Returns their hashes by hook id, and the newest revision of the entries.
    async fn remembered_hashes(&self) -> (BTreeMap<String, String>, u64) {
        loop {
            match self.hooks.entries().await {
                Ok(entries) => {
                    let revision = entries.iter().map(|(_, entry)| entry.revision).max().unwrap_or(0);
                    return (
                        sync::remembered_hashes(entries.iter().map(|(_, entry)| &entry.value), &self.root),
                        revision,
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read the hook registry; retrying");
                    pause(RESCAN).await;
                }
            }
        }
    }

    /// Logs each ignored path once.
    fn tell_ignored(&self, ignored: BTreeMap<PathBuf, &'static str>) {
        let mut known = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, why) in ignored.iter().filter(|(path, why)| known.get(*path) != Some(why)) {
            tracing::warn!(path = %path.display(), reason = why, "file in the hooks directory ignored");
        }
        *known = ignored;
    }

    /// Reads the directory and writes the differences from `before`. Returns the hashes that the directory held, by
    /// hook id. `revision` becomes the newest of the entries that hold them.
    async fn sync_registry(
        &self,
        before: &BTreeMap<String, String>,
        revision: &mut u64,
    ) -> Result<BTreeMap<String, String>, ScanDirectoryError> {
        let path = self.path.clone();
        // Reading many files blocks, and the thread has other tasks.
        let scanned = tokio::task::spawn_blocking(move || scan_directory(&path))
            .await
            .map_err(|error| ScanDirectoryError::Read {
                path: self.path.clone(),
                source: error.into(),
            })??;

        self.tell_ignored(scanned.ignored);
        let files = scanned.files;
        let mut now: BTreeMap<String, String> =
            files.iter().map(|(id, file)| (id.clone(), file.hash.clone())).collect();
        // Only differences are written, so two replicas on one directory do not overwrite each other for ever.
        for id in sync::changed_ids(before, &now) {
            let file = files.get(&id).map(|raw| parse(&id, raw));
            match self.write(&id, file.as_ref()).await {
                Ok(holds) => *revision = holds.max(*revision),
                Err(error) => {
                    tracing::warn!(hook_id = id, error = %describe_error(&error), "failed to sync a hook; retrying");
                    // The former hash is kept, so that the next scan tries again.
                    match before.get(&id) {
                        Some(hash) => now.insert(id, hash.clone()),
                        None => now.remove(&id),
                    };
                }
            }
        }

        Ok(now)
    }

    /// Makes the entry of `id` match `file`. Returns the revision that holds it.
    async fn write(&self, id: &str, file: Option<&HookFile>) -> Result<u64, CasError> {
        let key = token(id);
        let mut tries = 0;
        loop {
            let entry = self.hooks.get(&key).await?;
            let current = entry.as_ref().map(|entry| &entry.value);
            if current.is_some_and(|record| !sync::is_of(record, &self.root)) {
                tracing::warn!(
                    hook_id = id,
                    "hook id is already registered from another source; file ignored"
                );
            }

            let Some(record) = sync::synced_record(id, file, current, &self.root, self.clock.now()) else {
                return Ok(entry.map_or(0, |entry| entry.revision));
            };

            if current.is_some_and(authored::is_deleted) {
                // The state is written before the entry, because the hook that spent its one shot under this name was
                // another.
                change_state(&self.states, id, |state| Some(authored::next_life(state))).await?;
            }

            let written = match &entry {
                None => self.hooks.create(&key, &record).await,
                Some(entry) => self.hooks.update(&key, &record, entry.revision).await,
            };
            match written {
                Ok(revision) => {
                    log_record(&record, file.is_some());
                    return Ok(revision);
                }
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether files may have changed with `event`. Files that are only opened are those that replicas read: each scan would
/// lead to the next one, of this replica and of all others on the directory.
fn may_change_files(event: &notify::Result<notify::Event>) -> bool {
    match event.as_ref().map(|event| event.kind) {
        Ok(EventKind::Access(access)) => access == AccessKind::Close(AccessMode::Write),
        Ok(_) | Err(_) => true,
    }
}

/// Logs a hook's new state in the registry; `is_present`: the directory has its file.
fn log_record(record: &HookRecord, is_present: bool) {
    match &record.parse_error {
        _ if !is_present => tracing::info!(hook_id = record.id, "hook file removed; hook disabled"),
        _ if !record.enabled => tracing::info!(hook_id = record.id, "hook synced (disabled)"),
        Some(error) if record.source.is_empty() => tracing::warn!(
            hook_id = record.id,
            error,
            "new hook cannot be parsed; waiting for a valid version"
        ),
        Some(error) => tracing::error!(
            hook_id = record.id,
            error,
            "hook cannot be parsed; its last valid version stays active"
        ),
        None => tracing::info!(hook_id = record.id, "hook synced"),
    }
}

/// Waits until the directory was quiet for [`QUIET`], but at most [`MAX_QUIET_PERIODS`] periods.
async fn wait_quiet(dirty: &Notify) {
    for _ in 0..MAX_QUIET_PERIODS {
        tokio::select! {
            () = dirty.notified() => {}
            () = pause(QUIET) => return,
        }
    }
}

/// Returns the hook files below `root`: id and path, ordered by id.
///
/// # Errors
/// Returns [`ScanDirectoryError`] if a directory cannot be read or holds too many hook files.
pub fn hook_files(root: &Path) -> Result<Vec<(String, PathBuf)>, ScanDirectoryError> {
    let ids = scan_directory(root)?.files.into_keys();
    Ok(ids
        .map(|id| {
            let path = root.join(format!("{id}.ts"));
            (id, path)
        })
        .collect())
}

/// Result of scanning a directory.
#[derive(Debug, Default)]
struct Scanned {
    files: Files,
    /// Paths that look like a hook or a directory but are not read, with the reason.
    ignored: BTreeMap<PathBuf, &'static str>,
}

/// Finds all hook files below `root`: regular files, and links to regular files below it, each file once.
fn scan_directory(root: &Path) -> Result<Scanned, ScanDirectoryError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        |source| ScanDirectoryError::Read { path, source }
    };
    // Links are compared by their targets, which must lie below the directory itself.
    let whole = root.canonicalize().map_err(failed(root))?;
    let mut scanned = Scanned::default();
    let mut known = BTreeSet::new();

    let mut waiting = vec![(root.to_path_buf(), 0)];
    while let Some((directory, level)) = waiting.pop() {
        for path in list_entries(&directory).map_err(failed(&directory))? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };

            // Mounted configuration keeps its versions in hidden directories, to which the visible files link.
            if name.starts_with('.') || name == "node_modules" {
                continue;
            }

            let Ok(kind) = path.symlink_metadata().map(|metadata| metadata.file_type()) else {
                continue;
            };

            let is_hook = name.ends_with(".ts") && !name.ends_with(".d.ts");
            if kind.is_dir() && level < MAX_LEVELS {
                waiting.push((path, level + 1));
            } else if kind.is_dir() || (kind.is_symlink() && path.is_dir()) {
                scanned
                    .ignored
                    .insert(path, "a linked directory, or one that is too deep");
            } else if is_hook {
                if known.len() >= MAX_FILES {
                    return Err(ScanDirectoryError::TooMany {
                        path: root.to_path_buf(),
                        limit: MAX_FILES,
                    });
                }

                match resolve_regular(&whole, &path) {
                    Ok(file) if known.insert(file.clone()) => scanned.files.extend(read(root, &path, &file)?),
                    Ok(_) => drop(scanned.ignored.insert(path, "a second link to another hook file")),
                    Err(why) => drop(scanned.ignored.insert(path, why)),
                }
            }
        }
    }

    Ok(scanned)
}

/// Returns the paths in `directory`, sorted.
fn list_entries(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the regular file below `whole` that `path` is or links to. Returns the reason if there is none.
fn resolve_regular(whole: &Path, path: &Path) -> Result<PathBuf, &'static str> {
    let file = path.canonicalize().map_err(|_| "a broken link")?;
    if !file.starts_with(whole) {
        return Err("a link to outside of the hooks directory");
    }
    if file.is_file() {
        Ok(file)
    } else {
        Err("not a regular file")
    }
}

/// Reads the hook at `path`, whose content is in `file`; `None` if it vanished meanwhile or its path is no hook id.
fn read(root: &Path, path: &Path, file: &Path) -> Result<Option<(String, RawFile)>, ScanDirectoryError> {
    let below = path.strip_prefix(root).ok().and_then(Path::to_str);
    let Some(id) = below.and_then(|text| text.strip_suffix(".ts")) else {
        return Ok(None);
    };

    let mut bytes = Vec::new();
    // One byte more than allowed shows that a file is too long, without reading it whole.
    let longest = u64::try_from(metadata::MAX_SOURCE_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let content = open(file).and_then(|file| file.take(longest).read_to_end(&mut bytes));
    match content {
        Ok(_) => {}
        // The file was removed between the listing and the reading.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ScanDirectoryError::Read {
                path: path.to_path_buf(),
                source,
            });
        }
    }

    let hash = HEXLOWER.encode(&Sha256::digest(&bytes));
    Ok(Some((
        id.replace(std::path::MAIN_SEPARATOR, "/"),
        RawFile { bytes, hash },
    )))
}

/// Opens a file that was regular a moment ago, without blocking on a pipe or device that may have replaced it.
fn open(file: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    }
    options.open(file)
}

fn parse(id: &str, raw: &RawFile) -> HookFile {
    let (source, parsed) = match std::str::from_utf8(&raw.bytes) {
        Ok(source) => (
            source.to_owned(),
            metadata::parse(id, source).map_err(|error| error.to_string()),
        ),
        Err(error) => (String::new(), Err(format!("the file is not UTF-8: {error}"))),
    };

    HookFile {
        source,
        hash: raw.hash.clone(),
        parsed,
    }
}

#[cfg(test)]
mod tests;
