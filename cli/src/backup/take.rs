//! `nexus backup DIR`: copies every stream and bucket into a directory.

use std::path::Path;

use anyhow::{Context as _, Result};
use shared::bus::Bus;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
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
use crate::say;

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
    let directory = match options.keep {
        Some(_) => rotation::folder(&options.directory, begun_at),
        None => options.directory.clone(),
    };
    if options.keep.is_some() {
        // What a night that failed has left needs the room of this one.
        rotation::remove_unfinished(&options.directory)?;
    }
    begin(&directory)?;
    // The pause ends when this is dropped: the services go on even if the backup fails.
    let standstill = match &options.quiesce {
        Some(data) => Some(Standstill::begin(&bus, data).await?),
        None => None,
    };

    let (after, names): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| is_copied_after(name));
    let mut copied = copy_all(common, &bus, &names, &directory).await?;
    // Checked after the last copy, so that a write during any of the copies is found.
    if let Some(standstill) = &standstill {
        standstill.check(&bus, &copied).await?;
    }
    let quiesced = standstill.is_some();
    drop(standstill);
    copied.extend(copy_all(common, &bus, &after, &directory).await?);
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

    manifest.finish(&directory)?;
    if let Some(keep) = options.keep {
        rotation::remove_oldest(&options.directory, keep)?;
    }

    print_backup(common, &manifest, &directory)
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
