//! Files of the hooks that tools made, in `hooks.agent_dir`: copies for people to read, which follow the registry.
//!
//! Every replica writes the files of its own folder, so it does not matter which replica was asked to create or delete
//! a hook, nor when it dies. The file of a deleted hook is removed only if its content is the one in the registry.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use shared::bus::{Bus, Kv, KvEvent};
use shared::clock::pause;
use shared::model::hook::{HookOrigin, HookRecord};
use shared::wire::topology::buckets::HOOKS;

use crate::registry::authored::is_deleted;

/// Pause before another attempt to write a file.
const AGAIN: Duration = Duration::from_secs(5);

/// Writer of the files of agents' hooks; see the module.
#[derive(Debug)]
pub(crate) struct AgentFiles {
    dir: PathBuf,
    hooks: Kv<HookRecord>,
}

impl AgentFiles {
    /// Creates the writer of the files in `dir`.
    pub(crate) fn new(bus: &Bus, dir: PathBuf) -> Self {
        Self {
            dir,
            hooks: bus.kv(HOOKS),
        }
    }

    /// Keeps the files equal to the registry; never returns.
    pub(crate) async fn follow_registry(&self) {
        let mut watch = self.hooks.watch_all();
        loop {
            let record = match watch.next().await {
                KvEvent::Put { value, .. } => value,
                KvEvent::Gone { .. } | KvEvent::Bad { .. } | KvEvent::Anew | KvEvent::Current => continue,
            };
            while let Err(error) = settle_file(&self.dir, &record).await {
                tracing::warn!(hook_id = record.id, dir = %self.dir.display(), %error, "failed to write a hook's file; retrying");
                pause(AGAIN).await;
            }
        }
    }
}

/// Makes the file of `record` match the registry. Does nothing for hooks that no tool made.
async fn settle_file(dir: &Path, record: &HookRecord) -> io::Result<()> {
    let Some(path) = file_of(dir, record) else {
        return Ok(());
    };
    let there = match tokio::fs::read(&path).await {
        Ok(bytes) => Some(HEXLOWER.encode(&Sha256::digest(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };

    let is_same = there.as_ref() == Some(&record.content_hash);
    // A file that was edited by hand is kept.
    if is_deleted(record) {
        return if is_same {
            tokio::fs::remove_file(&path).await
        } else {
            Ok(())
        };
    }

    if is_same {
        return Ok(());
    }

    tokio::fs::create_dir_all(dir).await?;
    // The rename makes the file appear complete or not at all.
    let unfinished = path.with_extension("ts.new");
    tokio::fs::write(&unfinished, &record.source).await?;

    tokio::fs::rename(&unfinished, &path).await
}

/// Returns the path of the file of `record`; `None` if no tool made the hook or its name is not plain.
fn file_of(dir: &Path, record: &HookRecord) -> Option<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let has_file = match record.origin {
        HookOrigin::Tool => record.id.chars().all(is_plain) && !record.id.is_empty(),
        HookOrigin::File { .. } | HookOrigin::Pushed => false,
    };
    has_file.then(|| dir.join(format!("{}.ts", record.id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::authored;
    use crate::registry::sync::tests::record;

    fn made(id: &str, source: &str) -> HookRecord {
        HookRecord {
            source: source.to_owned(),
            content_hash: HEXLOWER.encode(&Sha256::digest(source.as_bytes())),
            origin: HookOrigin::Tool,
            ..record(id)
        }
    }

    #[tokio::test]
    async fn a_file_is_there_while_its_hook_is_and_goes_only_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("agents");
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();

        let (one, two) = (made("one", "v1"), made("two", "v1"));
        for record in [&one, &two, &made("one", "v2"), &record("filed"), &made("../evil", "x")] {
            settle_file(&dir, record).await.expect("settled");
        }

        assert_eq!(
            (read("one.ts").as_deref(), read("two.ts").as_deref()),
            (Some("v2"), Some("v1"))
        );
        assert_eq!(std::fs::read_dir(&dir).expect("there").count(), 2);

        std::fs::write(dir.join("two.ts"), "edited").expect("written");

        for gone in [made("one", "v2"), two] {
            let deleted = authored::deleted_record(&gone).expect("it may be");
            settle_file(&dir, &deleted).await.expect("settled");
            settle_file(&dir, &deleted).await.expect("asked again");
        }

        assert_eq!((read("one.ts"), read("two.ts").as_deref()), (None, Some("edited")));
    }
}
