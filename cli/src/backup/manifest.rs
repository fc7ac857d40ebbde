//! The manifest: a description of a backup's contents, written beside its files.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use shared::bus::StreamHead;
use shared::model::time::UnixMillis;

use crate::exit::{Exit, failure};

/// Name and version of the backup's format.
pub const FORMAT: &str = "nexus-backup/1";
/// Name of the manifest's file, which exists only if the backup is complete.
const FILE: &str = "manifest.json";
/// Name of the file with the manifest's checksum.
const CHECKSUM: &str = "manifest.sha256";
/// File that marks a directory in which a backup has begun and not ended.
const UNFINISHED: &str = "UNFINISHED";
/// Directory of the streams' snapshots.
const STREAMS: &str = "streams";

/// Description of a complete backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the backup: [`FORMAT`].
    pub format: String,
    /// Random id of the backup.
    pub id: String,
    /// Version of Nexus that made the backup.
    pub version: String,
    /// Start of the backup, in Unix milliseconds.
    pub begun_at: UnixMillis,
    /// End of the backup, in Unix milliseconds.
    pub ended_at: UnixMillis,
    /// Whether the services were paused during the backup.
    pub quiesced: bool,
    /// Fingerprint of the cluster's key that seals the events; `None` if the command that made the backup knew no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_key: Option<String>,
    /// Streams and buckets, in the order in which they were copied.
    pub streams: Vec<CopiedStream>,
    /// Streams and buckets that the backup leaves out, each with the reason.
    pub left_out: Vec<(String, String)>,
}

/// One stream of a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopiedStream {
    /// Name of the stream.
    pub name: String,
    /// Configuration and position of the stream.
    pub head: StreamHead,
    /// Size of the snapshot, in bytes.
    pub bytes: u64,
    /// SHA-256 of the snapshot, in hexadecimal.
    pub sha256: String,
    /// Messages that replaced others while the snapshot was made; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<LaterMessages>,
}

/// What lies beside a snapshot: messages that replaced others while it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterMessages {
    /// Number of messages.
    pub messages: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

/// Returns the path of the messages after the snapshot of stream `name` in the backup `directory`.
#[must_use]
pub fn later_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(STREAMS).join(format!("{name}.later"))
}

/// Returns the path of the snapshot of stream `name` in the backup `directory`.
#[must_use]
pub fn snapshot_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(STREAMS).join(format!("{name}.snapshot"))
}

/// State of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderState {
    /// A backup that has ended.
    Complete,
    /// A backup that has begun and not ended.
    Unfinished,
    /// Something else.
    Foreign,
}

/// Returns whether `directory` is a backup.
pub(super) fn state_of(directory: &Path) -> FolderState {
    if directory.join(UNFINISHED).exists() {
        FolderState::Unfinished
    } else if directory.join(FILE).exists() {
        FolderState::Complete
    } else {
        FolderState::Foreign
    }
}

/// Prepares `directory` for a backup: it must not exist, be empty, or hold a backup that has not ended.
///
/// # Errors
/// Fails if there is anything else in the directory.
pub fn begin(directory: &Path) -> Result<()> {
    let shown = directory.display();
    std::fs::create_dir_all(directory).with_context(|| format!("failed to create {shown}"))?;

    let is_ours = directory.join(UNFINISHED).exists();
    if !is_ours
        && std::fs::read_dir(directory)
            .with_context(|| format!("failed to list {shown}"))?
            .next()
            .is_some()
    {
        let text = format!("{shown} is not empty: a backup is written into a directory of its own");
        return Err(failure(Exit::Refused, text));
    }

    let text = "A backup of Nexus has begun here and has not ended: it cannot be restored. `nexus backup` into this directory begins again.\n";
    write_synced(&directory.join(UNFINISHED), text.as_bytes())?;

    for file in [FILE, CHECKSUM] {
        remove(&directory.join(file))?;
    }

    let streams = directory.join(STREAMS);
    if streams.exists() {
        std::fs::remove_dir_all(&streams).with_context(|| format!("failed to remove {}", streams.display()))?;
    }

    std::fs::create_dir_all(&streams).with_context(|| format!("failed to create {}", streams.display()))
}

impl Manifest {
    /// Returns the number of replicas that the streams had.
    #[must_use]
    pub fn replicas(&self) -> usize {
        let replicas = self.streams.iter().map(|stream| &stream.head.config["num_replicas"]);
        let most = replicas.filter_map(serde_json::Value::as_u64).max();
        most.map_or(1, |most| usize::try_from(most).unwrap_or(1).max(1))
    }

    /// Writes the manifest into `directory`: from here on the backup is complete.
    ///
    /// # Errors
    /// Fails if the manifest cannot be written.
    pub fn finish(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("failed to write the manifest")?;
        let sum = format!("{}  {FILE}\n", hex::encode(Sha256::digest(&text)));
        write_synced(&directory.join(CHECKSUM), sum.as_bytes())?;
        let unfinished = directory.join(format!("{FILE}.new"));
        write_synced(&unfinished, &text)?;
        std::fs::rename(&unfinished, directory.join(FILE)).context("failed to move the manifest into place")?;
        remove(&directory.join(UNFINISHED))?;
        let handle = std::fs::File::open(directory).context("failed to open the backup's directory")?;
        handle.sync_all().context("failed to sync the backup's directory")
    }

    /// Reads the backup in `directory` and checks every file's checksum.
    ///
    /// # Errors
    /// Fails if the backup is incomplete, of another format or damaged; the error names the file.
    pub fn check(directory: &Path) -> Result<Self> {
        let shown = directory.display();
        let path = directory.join(FILE);
        if !path.exists() {
            if directory.join(UNFINISHED).exists() {
                bail!("the backup in {shown} has not ended and cannot be restored");
            }
            let text = format!("{shown} holds no backup: there is no {FILE}");
            return Err(failure(Exit::NotFound, text));
        }

        let text = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        let sum =
            std::fs::read_to_string(directory.join(CHECKSUM)).with_context(|| format!("failed to read {CHECKSUM}"))?;
        if sum.split_whitespace().next() != Some(hex::encode(Sha256::digest(&text)).as_str()) {
            bail!(
                "{} is damaged: its checksum is not the one in {CHECKSUM}",
                path.display()
            );
        }

        let manifest: Self =
            serde_json::from_slice(&text).with_context(|| format!("failed to read {}", path.display()))?;
        if manifest.format != FORMAT {
            bail!(
                "{shown}: the backup has the form {}, expected {FORMAT}",
                manifest.format
            );
        }

        for stream in &manifest.streams {
            let file = snapshot_file(directory, &stream.name);
            let (sha256, bytes) = super::checksum(&file)?;
            if (&sha256, bytes) != (&stream.sha256, stream.bytes) {
                bail!("{} is damaged: its checksum is not the manifest's", file.display());
            }
            if let Some(later) = &stream.later {
                let file = later_file(directory, &stream.name);
                let (sha256, bytes) = super::checksum(&file)?;
                if (&sha256, bytes) != (&later.sha256, later.bytes) {
                    bail!("{} is damaged: its checksum is not the manifest's", file.display());
                }
            }
        }

        Ok(manifest)
    }
}

fn write_synced(path: &Path, content: &[u8]) -> Result<()> {
    let write = || {
        let mut file = std::fs::File::create(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().with_context(|| format!("failed to write {}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(directory: &Path) -> Manifest {
        begin(directory).expect("begun");
        let file = snapshot_file(directory, "EVENTS");
        std::fs::write(&file, "events").expect("written");
        let (sha256, bytes) = super::super::checksum(&file).expect("read");
        let head = StreamHead {
            config: json!({"name": "EVENTS", "num_replicas": 3}),
            state: json!({"first_seq": 1, "last_seq": 2, "messages": 2, "bytes": 9}),
        };

        Manifest {
            format: FORMAT.to_owned(),
            id: "any".to_owned(),
            version: "0".to_owned(),
            begun_at: UnixMillis(1),
            ended_at: UnixMillis(2),
            quiesced: false,
            cluster_key: None,
            streams: vec![CopiedStream {
                name: "EVENTS".to_owned(),
                head,
                bytes,
                sha256,
                later: None,
            }],
            left_out: Vec::new(),
        }
    }

    #[test]
    fn a_backup_is_whole_or_says_that_it_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let here = directory.path();
        let error = |here: &Path| format!("{:#}", Manifest::check(here).expect_err("refused"));

        assert!(error(here).contains("holds no backup"));

        let manifest = sample(here);
        assert!(error(here).contains("has not ended"));

        assert_eq!(manifest.replicas(), 3);
        manifest.finish(here).expect("written");
        assert_eq!(Manifest::check(here).expect("whole"), manifest);
        assert!(begin(here).is_err(), "a whole backup is not written over");

        let file = snapshot_file(here, "EVENTS");
        std::fs::write(&file, "evenTs").expect("written");
        assert!(error(here).contains("EVENTS.snapshot is damaged"), "one bit");

        std::fs::write(&file, "events").expect("written");
        let text = std::fs::read_to_string(here.join(FILE)).expect("read");
        std::fs::write(
            here.join(FILE),
            text.replace("\"quiesced\": false", "\"quiesced\": true"),
        )
        .expect("written");

        assert!(error(here).contains("manifest.json is damaged"));

        std::fs::remove_file(&file).expect("removed");
        std::fs::write(here.join(FILE), text).expect("written");
        assert!(error(here).contains("EVENTS.snapshot"), "a missing file");
    }

    #[test]
    fn an_unfinished_backup_begins_again_and_anything_else_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let here = directory.path();
        sample(here);
        begin(here).expect("again");
        assert!(!snapshot_file(here, "EVENTS").exists());
        let other = tempfile::tempdir().expect("a directory");
        std::fs::write(other.path().join("mine"), "").expect("written");
        assert!(begin(other.path()).is_err());
    }
}
