//! `nexus backup DIR`: copies every stream and bucket into a directory.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::bus::Bus;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::model::time::UnixMillis;
use shared::wire::rights::BusRole;
use shared::wire::seal::SealKey;
use shared::wire::topology::streams;

use super::later;
use super::manifest::{CopiedStream, FORMAT, Manifest, begin, snapshot_file};
use super::order::{is_copied_after, left_out, ordered};
use super::quiesce::Standstill;
use super::rotation;
use crate::args::{BackupOptions, Common};
use crate::connect::connect_as;
use crate::exit::{Exit, failure};
use crate::output::{View, is_for_people};
use crate::{complain, say};

/// Runs the command.
///
/// # Errors
/// Fails if a stream cannot be copied; then the directory is marked as an unfinished backup.
pub async fn execute(common: &Common, options: &BackupOptions) -> Result<()> {
    let bus = connect_as(common, BusRole::Backup).await?;
    refuse_half_restored(&bus).await?;
    let names = ordered(
        &bus.stream_names()
            .await
            .map_err(anyhow::Error::msg)
            .context("failed to list the streams")?,
    );

    if !names.iter().any(|name| name == streams::EVENTS) {
        let text = format!(
            "there is nothing to back up: the server has no stream {}",
            streams::EVENTS
        );
        return Err(failure(Exit::NotFound, text));
    }

    let begun_at = SystemClock.now();
    let place = BackupPlace::take(options, begun_at)?;
    let directory = place.directory.as_path();
    // The pause ends when this is dropped: the services go on even if the backup fails.
    let standstill = match &options.quiesce {
        Some(data) => Some(Standstill::begin(&bus, data).await?),
        None => None,
    };

    let (after, names): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| is_copied_after(name));
    let mut copied = copy_all(common, &bus, &names, directory).await?;
    // Checked after the last copy, so that a write during any of the copies is found.
    if let Some(standstill) = &standstill {
        standstill.check(&bus, &copied).await?;
    }
    let quiesced = standstill.is_some();
    drop(standstill);
    copied.extend(copy_all(common, &bus, &after, directory).await?);
    // A restore may have begun meanwhile.
    refuse_half_restored(&bus).await?;

    let manifest = Manifest {
        format: FORMAT.to_owned(),
        id: SystemIds.ulid().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        begun_at,
        ended_at: SystemClock.now(),
        quiesced,
        cluster_key: bus.trust().cluster_key().map(SealKey::fingerprint),
        streams: copied,
        left_out: left_out(),
    };

    manifest.finish(directory)?;
    if let Some(keep) = options.keep {
        rotation::remove_oldest(&options.directory, keep)?;
    }

    print_backup(common, &manifest, directory)
}

/// Where a backup is written, and nothing else is until this is dropped.
#[derive(Debug)]
struct BackupPlace {
    /// The backup's own folder.
    directory: PathBuf,
    _lock: File,
}

impl BackupPlace {
    /// Prepares the place of the backup that begins at `begun_at`.
    ///
    /// # Errors
    /// Fails if another backup is being made there, if anything else is there, or if it cannot be written.
    fn take(options: &BackupOptions, begun_at: UnixMillis) -> Result<Self> {
        // The files of a backup under way look like those of one that failed, and would be removed.
        let lock = lock(&options.directory)?;
        let directory = match options.keep {
            Some(_) => {
                // What a night that failed has left needs the room of this one.
                rotation::remove_unfinished(&options.directory)?;
                rotation::folder(&options.directory, begun_at)
            }
            None => options.directory.clone(),
        };
        begin(&directory)?;

        Ok(Self { directory, _lock: lock })
    }
}

/// Locks `directory`, which is made if it is missing, against other backups until the returned handle is dropped. A file system
/// that has no such locks is used without one.
fn lock(directory: &Path) -> Result<File> {
    let shown = directory.display();
    std::fs::create_dir_all(directory).with_context(|| format!("failed to create {shown}"))?;
    let handle = File::open(directory).with_context(|| format!("failed to open {shown}"))?;
    match handle.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let text = format!("another backup is being made in {shown}: wait for its end");
            return Err(failure(Exit::Refused, text));
        }
        Err(TryLockError::Error(error)) => {
            complain!("warning: {shown} cannot be locked ({error}): make no other backup there at the same time");
        }
    }
    Ok(handle)
}

/// Refuses to copy streams that are being restored, or whose restore was interrupted: the copy would be the newest backup, from
/// which that restore is begun again, and an older one would be removed for it.
async fn refuse_half_restored(bus: &Bus) -> Result<()> {
    let told = bus.restore_under_way().await.map_err(anyhow::Error::msg);
    match told.context("failed to ask whether a restore is in progress")? {
        None => Ok(()),
        Some(backup) => {
            let text = format!("backup {backup} is being restored, or its restore was interrupted: end that first");
            Err(failure(Exit::Refused, text))
        }
    }
}

async fn copy_all(common: &Common, bus: &Bus, names: &[String], directory: &Path) -> Result<Vec<CopiedStream>> {
    let mut copied = Vec::new();
    for name in names {
        let stream = copy_stream(bus, name, directory).await?;
        if is_for_people(common) {
            let state = stream.head.position();
            say!("{name:<24} {:>10} messages, last {}", state.messages, state.last);
        }
        copied.push(stream);
    }

    Ok(copied)
}

async fn copy_stream(bus: &Bus, name: &str, directory: &Path) -> Result<CopiedStream> {
    let path = snapshot_file(directory, name);
    let file = tokio::fs::File::create(&path).await;
    let mut file = file.with_context(|| format!("failed to create {}", path.display()))?;
    let head = bus.write_snapshot(name, &mut file).await?;
    file.sync_all()
        .await
        .with_context(|| format!("failed to sync {}", path.display()))?;

    let (sha256, bytes) = super::checksum(&path)?;
    let later = later::copy(bus, name, &head, directory).await?;
    Ok(CopiedStream {
        name: name.to_owned(),
        head,
        bytes,
        sha256,
        later,
    })
}

fn print_backup(common: &Common, manifest: &Manifest, directory: &Path) -> Result<()> {
    let bytes: u64 = manifest.streams.iter().map(|stream| stream.bytes).sum();
    let mut view = View::one(&manifest.id, manifest)?.line(format!(
        "backup {} of {} streams and buckets, {} KiB, in {} ms: {}",
        manifest.id,
        manifest.streams.len(),
        bytes / 1024,
        manifest.ended_at.since(manifest.begun_at),
        directory.display()
    ));

    if manifest.cluster_key.is_none() {
        view = view.line(
            "the cluster's key is not known here ([trust] cluster_key): `restore` cannot tell whether it is the same",
        );
    }
    for (what, why) in &manifest.left_out {
        view = view.line(format!("not included: {what} ({why})"));
    }

    view.show(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_under_way_is_not_removed_as_one_that_failed() {
        let place = tempfile::tempdir().expect("a folder");
        let at = UnixMillis::from_seconds;
        for keep in [Some(3), None] {
            let options = BackupOptions {
                directory: place.path().join(format!("keep-{}", keep.is_some())),
                keep,
                quiesce: None,
            };
            let first = BackupPlace::take(&options, at(1_000)).expect("nobody is there");
            let copied = snapshot_file(&first.directory, streams::LEDGER);
            std::fs::write(&copied, "copied").expect("written");

            let second = BackupPlace::take(&options, at(2_000)).expect_err("the first one is under way");
            assert_eq!(Exit::of_error(&second), Exit::Refused, "{second:#}");
            assert!(copied.exists(), "{keep:?}");

            // The process of the first one was killed.
            drop(first);
            let second = BackupPlace::take(&options, at(3_000)).expect("nobody is there any more");
            assert!(!copied.exists() && second.directory.exists(), "{keep:?}");
        }
    }

    #[test]
    fn a_backup_into_a_folder_of_its_own_is_not_removed_by_one_beside_it() {
        let place = tempfile::tempdir().expect("a folder");
        let take = |directory: PathBuf, keep: Option<u16>, seconds: i64| {
            let options = BackupOptions {
                directory,
                keep,
                quiesce: None,
            };
            BackupPlace::take(&options, UnixMillis::from_seconds(seconds)).expect("nobody is there")
        };

        let own = place.path().join("nexus-before-the-upgrade");
        let by_hand = take(own.clone(), None, 1_000);
        drop(take(place.path().to_owned(), Some(3), 2_000));
        assert!(own.exists(), "it is being made");

        // Its process was killed.
        drop(by_hand);
        drop(take(place.path().to_owned(), Some(3), 3_000));
        assert!(!own.exists());
    }
}
