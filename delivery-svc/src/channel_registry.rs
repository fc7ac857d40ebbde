//! Publication of the configured accounts in KV `channels`, for hooks that wait for one.
//!
//! The replica that started last is authoritative, by the server's order of the replicas' first writes. A replica
//! that finds an entry older than its own (the bucket was restored or created again) writes its own again.

use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::pause;
use shared::model::channel::{ConfiguredChannels, DELIVERED};
use shared::process::ShutdownSignal;
use shared::wire::topology::buckets::CHANNELS;

use crate::accounts::AccountEndpoints;

/// Wait after a failure before the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// Interval in which the entry is checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Returns the published form of `accounts`.
#[must_use]
pub fn configured_channels(accounts: &AccountEndpoints) -> ConfiguredChannels {
    let named = accounts.iter().filter(|(_, endpoints)| !endpoints.is_empty());
    let accounts = named.map(|(channel, endpoints)| (channel.clone(), endpoints.keys().cloned().collect()));
    ConfiguredChannels {
        accounts: accounts.collect(),
    }
}

/// Keeps the entry on `bus` equal to `ours` until `stop` is requested, unless a replica that started later wrote
/// another.
pub async fn keep_channels_published(bus: Bus, ours: ConfiguredChannels, stop: ShutdownSignal) {
    let kv: Kv<ConfiguredChannels> = bus.kv(CHANNELS);
    let mut said = None;
    loop {
        let wait = match publish_channels(&kv, &ours, said).await {
            Ok(revision) => {
                said = Some(revision);
                LOOK_EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "failed to publish the list of channels; retrying");
                AGAIN
            }
        };

        tokio::select! {
            () = stop.requested() => return,
            () = pause(wait) => {}
        }
    }
}

/// Writes `ours` if it was not written yet (`said`), or is not in the bucket any more. Returns the revision of the
/// write.
async fn publish_channels(
    kv: &Kv<ConfiguredChannels>,
    ours: &ConfiguredChannels,
    said: Option<u64>,
) -> Result<u64, CasError> {
    let Some(before) = said else {
        return kv.put(DELIVERED, ours).await;
    };
    let (_, revision) = kv.find(DELIVERED).await?;
    if revision >= before {
        return Ok(before);
    }
    // A replica that starts at this moment is not overwritten.
    kv.update(DELIVERED, ours, revision).await
}
