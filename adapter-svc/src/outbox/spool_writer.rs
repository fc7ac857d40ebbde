//! The writer of the spool, to which all requests pass their entries.
//!
//! It writes all entries that arrived during a sync and syncs them together (group commit). If the disk fails, it returns
//! the error to the requests and opens the store again until it works; its entries are then published again from the
//! start.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::store::StoreError;
use tokio::sync::{mpsc, oneshot, watch};

use super::open_spool::{OpenSpool, SharedSpool};
use super::{DurableMark, SpoolKey};
use crate::encoded_event::EncodedEvent;

/// Maximum size of a group, in bytes: a longer group would delay its first member too much.
const MAX_GROUP_BYTES: u64 = 8 * 1024 * 1024;
/// Wait before a failed store is opened again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// The entries of one request, their size in bytes, and where the request waits for them to be durable.
pub(super) struct SpoolBatch {
    pub(super) parcels: Vec<EncodedEvent>,
    pub(super) weight: u64,
    pub(super) done: oneshot::Sender<Result<(), String>>,
}

/// Writes and syncs the batches, group by group, until every [`super::EventSpool`] is dropped.
pub(super) async fn run_writer(
    shared: Arc<SharedSpool>,
    mut waiting: mpsc::Receiver<SpoolBatch>,
    durable: watch::Sender<DurableMark>,
) {
    let mut number = 0_u64;
    while let Some(first) = waiting.recv().await {
        // One sync for all that wait: most of the time goes to the sync.
        let group = collect_group(first, &mut waiting);
        let weight: u64 = group.iter().map(|batch| batch.weight).sum();
        let entries: u64 = group.iter().map(|batch| batch.parcels.len() as u64).sum();
        let (parcels, answers): (Vec<_>, Vec<_>) = group.into_iter().map(|batch| (batch.parcels, batch.done)).unzip();

        let written = write(&shared, parcels, number).await;
        number += entries;
        // With either outcome, these bytes are no longer waiting.
        shared.waiting.fetch_sub(weight, Ordering::SeqCst);

        let outcome = match written {
            Ok(through) => {
                durable.send_modify(|known| known.through = through);
                Ok(())
            }
            Err(error) => Err(describe_error(&error)),
        };

        metrics::histogram!("nexus_adapter_spool_group_entries").record(entries as f64);

        for answer in answers {
            // The caller may be gone; its events are durable anyway.
            let _ = answer.send(outcome.clone());
        }

        if let Err(error) = outcome {
            // After a failed sync the state of the disk is unknown, so the store is opened again.
            tracing::error!(error, path = %shared.path.display(), "spool failed; reopening it");
            number = 0;
            reopen_store(&shared, &durable).await;
        }
    }
}

/// Returns `first` and the batches that wait behind it, up to [`MAX_GROUP_BYTES`].
fn collect_group(first: SpoolBatch, waiting: &mut mpsc::Receiver<SpoolBatch>) -> Vec<SpoolBatch> {
    let mut weight = first.weight;
    let mut group = vec![first];
    while weight < MAX_GROUP_BYTES
        && let Ok(next) = waiting.try_recv()
    {
        weight += next.weight;
        group.push(next);
    }
    group
}

/// Writes `parcels` under the numbers after `number` and syncs. Returns the last key.
async fn write(
    shared: &Arc<SharedSpool>,
    parcels: Vec<Vec<EncodedEvent>>,
    number: u64,
) -> Result<SpoolKey, StoreError> {
    let writer = Arc::clone(shared);
    // The store blocks while it writes, and this thread serves connections.
    let inserted = tokio::task::spawn_blocking(move || {
        let closed = || StoreError::Access {
            path: writer.path.clone(),
            source: std::io::Error::other("not open"),
        };
        let spool = writer.open_spool().ok_or_else(closed)?;

        let mut at = number;
        for parcel in parcels.iter().flatten() {
            at += 1;
            spool.entries.insert(&spool.key(at), parcel)?;
        }

        Ok((spool.store.clone(), spool.key(at)))
    });

    let failed = |error| StoreError::Access {
        path: shared.path.clone(),
        source: std::io::Error::other(error),
    };
    let (store, through) = inserted.await.map_err(failed)??;
    // Only the sync makes the entries durable.
    store.flush().await?;

    Ok(through)
}

/// Opens the store again, until that succeeds.
async fn reopen_store(shared: &SharedSpool, durable: &watch::Sender<DurableMark>) {
    // From here on writers are refused, and readers find no entries.
    shared.replace_spool(None);

    loop {
        pause(REOPEN_AFTER).await;

        match OpenSpool::open(&shared.path).await {
            Ok(spool) => {
                let through = spool.key(0);
                shared.replace_spool(Some(spool));
                // Readers must begin again: the keys of the former opening say nothing about this one.
                durable.send_modify(|known| {
                    *known = DurableMark {
                        generation: known.generation + 1,
                        through,
                    }
                });

                return;
            }
            Err(error) => tracing::error!(error = describe_error(&error), "failed to reopen the spool"),
        }
    }
}
