//! `nexus restore DIR`: onto a server with stopped services, or, with `--data`, into a data directory of `nexus up`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use shared::bus::Bus;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::process::status::ask_replicas;
use shared::wire::rights::BusRole;
use shared::wire::seal::SealKey;
use shared::wire::topology::{buckets, topology};

use super::held;
use super::later;
use super::manifest::{CopiedStream, Manifest, later_file, snapshot_file};
use super::rotation;
use crate::args::{Common, RestoreOptions};
use crate::connect::{connect_as, load_trust, nats_config};
use crate::exit::{Exit, failure};
use crate::launch::hold::Hold;
use crate::launch::keys;
use crate::launch::server_alone;
use crate::output::{View, is_for_people, reader_zone};
use crate::{complain, say};

/// Longest time that services may take to report that they run.
const REPLICAS_WITHIN: Duration = Duration::from_secs(3);
/// Directory of the server's store in a data directory.
const STORE: &str = "data/nats-0";
/// Prefix of the read models of hook-svc's replicas, below `data/`: they are rebuilt from the streams.
const READ_MODELS: &str = "hook-svc-";

/// Runs the command.
///
/// # Errors
/// Fails if the backup is damaged or incomplete, if the target has data already, or if a stream cannot be restored;
/// then the same command may be given again.
pub async fn execute(common: &Common, options: &RestoreOptions) -> Result<()> {
    let Some(directory) = &options.directory else {
        return held::execute(common, options).await;
    };
    let newest = rotation::newest(directory)?;
    let directory = newest.as_deref().unwrap_or(directory);
    let manifest = Manifest::check(directory).inspect_err(|_| tell_others(directory))?;
    let source = Source {
        directory,
        manifest: &manifest,
        is_quiet: !is_for_people(common),
    };

    let restored = match &options.data {
        Some(data) => into_directory(&source, options, data).await?,
        None => onto_server(common, options, &source).await?,
    };
    tell_key(common, options, &manifest);

    let names = restored.iter().map(|stream| stream.name.clone());
    let mut view = View::of(&restored)?.ids(names).line(format!(
        "restored backup {} of {} streams and buckets",
        manifest.id,
        restored.len()
    ));

    if !manifest.quiesced {
        view = view.line(format!(
            "this backup was made without --quiesce: work since {} is repeated, and deliveries from that time are held\n\
             next: `nexus up`; once all sessions are idle, `nexus restore --list`, then `nexus restore --send` or `--drop`",
            reader_zone(common).date_time(manifest.begun_at)
        ));
    }

    view.show(common)
}

/// Names the other backups in the folder of the one at `backup`, which cannot be restored.
fn tell_others(backup: &Path) {
    let others = rotation::beside(backup).unwrap_or_default();
    if others.is_empty() {
        return;
    }
    let names: Vec<String> = others.iter().rev().map(|one| one.display().to_string()).collect();
    complain!("other backups are there, the newest first: {}", names.join(", "));
}

/// Warns if the key that sealed the restored events is not the key that the services will have.
fn tell_key(common: &Common, options: &RestoreOptions, manifest: &Manifest) {
    let Some(sealed) = &manifest.cluster_key else { return };
    let made_here = options.data.as_ref().map(|data| data.join(keys::CLUSTER_KEY));
    let here = made_here.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let here = here.and_then(|text| SealKey::parse(&text).ok());
    let configured = load_trust(common);
    let key = here
        .as_ref()
        .or_else(|| configured.cluster_key())
        .map(SealKey::fingerprint);

    if key.as_ref() == Some(sealed) {
        return;
    }

    let place = made_here.map_or_else(
        || "[trust] cluster_key".to_owned(),
        |path| format!("{} or [trust] cluster_key", path.display()),
    );
    let found = key.map_or_else(
        || "no cluster key is configured".to_owned(),
        |key| format!("the configured key is {key}"),
    );
    complain!(
        "warning: the events of this backup were sealed with cluster key {sealed}, but {found}. Before you start the services, put that key into {place}; otherwise the restored events are treated as unsealed"
    );
}

/// The backup to restore.
struct Source<'a> {
    directory: &'a Path,
    manifest: &'a Manifest,
    /// Whether only the end is reported.
    is_quiet: bool,
}

/// Result of one stream.
#[derive(Debug, serde::Serialize)]
struct Restored {
    name: String,
    messages: u64,
    last: u64,
}

/// Restores into the data directory `data`, with a server of our own. The new store is built beside the existing one
/// and takes its place, complete, at the end.
async fn into_directory(source: &Source<'_>, options: &RestoreOptions, data: &Path) -> Result<Vec<Restored>> {
    std::fs::create_dir_all(data.join("run")).with_context(|| format!("failed to create {}", data.display()))?;
    let data = data.canonicalize().context("failed to find the data directory")?;
    let hold = Hold::take(&data).await?;
    let store = data.join(STORE);
    let is_taken = store.is_dir()
        && std::fs::read_dir(&store)
            .context("failed to list the store")?
            .next()
            .is_some();

    if is_taken && !options.replace {
        let text = format!(
            "{} holds the streams of a Nexus already; --replace moves them aside",
            store.display()
        );
        return Err(failure(Exit::Refused, text));
    }

    let unfinished = data.join(format!("{STORE}.restoring"));
    // A killed restore has left an incomplete store.
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished).with_context(|| format!("failed to remove {}", unfinished.display()))?;
    }

    let server = server_alone(&data, &unfinished, &hold).await?;
    let restored = restore_all(&server.bus, source, 1, &[]).await?;
    server.stop().await;

    if is_taken {
        // The former store is only moved, so that the operator can put it back.
        let aside = data.join(format!("{STORE}.replaced-{}", SystemClock.now().0));
        std::fs::rename(&store, &aside).with_context(|| format!("failed to move {} aside", store.display()))?;
        if !source.is_quiet {
            say!("the former data is kept in {}", aside.display());
        }
    } else if store.exists() {
        std::fs::remove_dir(&store).with_context(|| format!("failed to remove {}", store.display()))?;
    }

    std::fs::rename(&unfinished, &store).with_context(|| format!("failed to move {} into place", store.display()))?;
    remove_read_models(&data)?;

    Ok(restored)
}

/// Removes the read models: one of other streams would be behind, or ahead of, the restored ones.
fn remove_read_models(data: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(data.join("data")) else {
        return Ok(());
    };

    let is_model = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(READ_MODELS))
    };
    for path in entries.flatten().map(|entry| entry.path()).filter(is_model) {
        std::fs::remove_dir_all(&path).with_context(|| format!("failed to remove {}", path.display()))?;
    }

    Ok(())
}

/// Restores onto the configured server, whose services are stopped.
async fn onto_server(common: &Common, options: &RestoreOptions, source: &Source<'_>) -> Result<Vec<Restored>> {
    let in_backup = source.manifest.replicas();
    let replicas = options.replicas.map_or(in_backup, usize::from);
    // The one user that may delete streams is named by the operator and never chosen here.
    let bus = connect_as(common, BusRole::Admin).await?;
    let running = ask_replicas(&bus, REPLICAS_WITHIN).await.map_err(anyhow::Error::msg)?;
    if !running.is_empty() {
        let names: Vec<&str> = running.iter().map(|replica| replica.instance.as_str()).collect();
        let text = format!("services run on this server: stop {} first", names.join(", "));
        return Err(failure(Exit::Refused, text));
    }

    let told = bus.restore_under_way().await.map_err(anyhow::Error::msg);
    let under_way = told.context("failed to ask whether a restore is in progress")?;
    let listed = bus.stream_names().await.map_err(anyhow::Error::msg);
    let ours: Vec<String> = topology(1).streams.into_iter().map(|stream| stream.name).collect();
    let there: Vec<String> = listed.context("failed to list the streams")?;
    let mut there: Vec<String> = there.into_iter().filter(|name| ours.contains(name)).collect();
    let staying = staying(&bus, &there).await?;
    there.retain(|name| !staying.contains(name));

    let goes_on = under_way.as_deref() == Some(source.manifest.id.as_str());
    let taken = taken(&bus, &there).await?;
    if !taken.is_empty() && !goes_on && !options.replace {
        let text = format!("the server is not empty; --replace destroys\n  {}", taken.join("\n  "));
        return Err(failure(Exit::Refused, text));
    }

    // The hold comes before the first effect, so that a restore that ends half-way keeps the services waiting.
    let names: Vec<String> = source
        .manifest
        .streams
        .iter()
        .map(|stream| stream.name.clone())
        .collect();

    bus.may_restore(&there, &names)
        .await
        .context("nothing was changed; run `nexus restore` as NATS user `restore`, which may delete streams (docs/operations.md)")?;

    // The mark has as many replicas as the streams: a server that cannot carry them refuses before anything is deleted.
    let marked = bus.begin_restore(&source.manifest.id, replicas).await;
    marked.map_err(anyhow::Error::msg).with_context(|| {
        format!("failed to mark the restore, with {replicas} replicas (--replicas); nothing was changed")
    })?;

    for name in &there {
        let deleted = bus.delete_stream(name).await.map_err(anyhow::Error::msg);
        deleted.with_context(|| format!("failed to delete stream {name}"))?;
    }

    let restored = restore_all(&bus, source, replicas, &staying).await?;
    let configured = nats_config(common)?.replicas;
    if configured != replicas {
        complain!(
            "warning: the restored streams have {replicas} replicas, and [nats] replicas is {configured} here: services with \
             that setting do not start. Restore again with --replicas {configured}, or set replicas = {replicas}"
        );
    }
    let ended = bus.end_restore().await.map_err(anyhow::Error::msg);
    ended.context("failed to remove the mark of the restore")?;

    Ok(restored)
}

/// Returns the streams of `there` that stay as they are: tokens of accounts, if there are any. Tokens that a platform gave since
/// the backup ended those in the backup.
async fn staying(bus: &Bus, there: &[String]) -> Result<Vec<String>> {
    let tokens = format!("KV_{}", buckets::ACCOUNT_TOKENS);
    let is_used = there.contains(&tokens) && bus.stream_state(&tokens).await?.messages > 0;
    Ok(is_used.then_some(tokens).into_iter().collect())
}

/// Returns the streams of `names` that are not empty, with the number of their messages.
async fn taken(bus: &Bus, names: &[String]) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for name in names {
        let state = bus.stream_state(name).await?;
        if state.messages > 0 {
            taken.push(format!("{name}: {} messages", state.messages));
        }
    }
    Ok(taken)
}

/// Restores the streams of `source`, except those that are `staying`.
async fn restore_all(bus: &Bus, source: &Source<'_>, replicas: usize, staying: &[String]) -> Result<Vec<Restored>> {
    let mut restored = Vec::new();
    let streams = source.manifest.streams.iter();
    for stream in streams.filter(|stream| !staying.contains(&stream.name)) {
        let state = restore_one(bus, stream, source.directory, replicas).await?;
        if !source.is_quiet {
            say!(
                "{:<24} {:>10} messages, last {}",
                state.name,
                state.messages,
                state.last
            );
        }

        restored.push(state);
    }

    let made = bus.ensure_topology(&topology(replicas), true).await;
    made.context("failed to create the streams that are not in the backup")?;
    held::begin(bus, source.manifest).await?;

    Ok(restored)
}

async fn restore_one(bus: &Bus, stream: &CopiedStream, directory: &Path, replicas: usize) -> Result<Restored> {
    let mut head = stream.head.clone();
    head.config["num_replicas"] = replicas.into();

    // Positions that were recorded after the copy name messages that this stream does not have.
    head.renew_incarnation(&SystemIds.ulid().to_string());
    let path = snapshot_file(directory, &stream.name);
    let file = tokio::fs::File::open(&path).await;
    let mut file = file.with_context(|| format!("failed to open {}", path.display()))?;
    let state = bus.restore_stream(&stream.name, &head, &mut file).await?;

    let expected = stream.head.position();
    if state.last < expected.last {
        anyhow::bail!(
            "stream {}: restored up to message {}, expected at least {}",
            stream.name,
            state.last,
            expected.last
        );
    }

    let state = match &stream.later {
        Some(_) => {
            let path = later_file(directory, &stream.name);
            let published = later::publish(bus, &path, state.last).await;
            published.with_context(|| format!("stream {}: failed to publish {}", stream.name, path.display()))?;
            bus.stream_state(&stream.name).await?
        }
        None => state,
    };

    Ok(Restored {
        name: stream.name.clone(),
        messages: state.messages,
        last: state.last,
    })
}
