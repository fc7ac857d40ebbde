//! Telling which accounts there are, in KV `channels`: hooks that need one wait for it.
//!
//! The replica that started last is believed, as the server orders their first words. Whoever finds an entry older than
//! their own (the bucket was put back, or made anew) says theirs again.

use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::pause;
use shared::model::channel::{ConfiguredChannels, DELIVERED};
use shared::process::Shutdown;
use shared::wire::topology::buckets::CHANNELS;

use crate::accounts::Accounts;

/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How often the entry is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What `accounts` are for those who need one.
#[must_use]
pub fn configured(accounts: &Accounts) -> ConfiguredChannels {
    let named = accounts.iter().filter(|(_, endpoints)| !endpoints.is_empty());
    let accounts = named.map(|(channel, endpoints)| (channel.clone(), endpoints.keys().cloned().collect()));
    ConfiguredChannels {
        accounts: accounts.collect(),
    }
}

/// Keeps the entry on `bus` at `ours`, unless a replica that started later says otherwise, until `stop`.
pub async fn keep(bus: Bus, ours: ConfiguredChannels, stop: Shutdown) {
    let kv: Kv<ConfiguredChannels> = bus.kv(CHANNELS);
    let mut said = None;
    loop {
        let wait = match say(&kv, &ours, said).await {
            Ok(revision) => {
                said = Some(revision);
                LOOK_EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "hooks are not told yet which channels there are");
                AGAIN
            }
        };

        tokio::select! {
            () = stop.requested() => return,
            () = pause(wait) => {}
        }
    }
}

/// Says `ours` where it was not `said` yet or is not in the bucket any more; answers the revision at which it was said.
async fn say(kv: &Kv<ConfiguredChannels>, ours: &ConfiguredChannels, said: Option<u64>) -> Result<u64, CasError> {
    let Some(before) = said else {
        return kv.put(DELIVERED, ours).await;
    };
    let (_, revision) = kv.find(DELIVERED).await?;
    if revision >= before {
        return Ok(before);
    }
    // Somebody who starts at this moment is not overwritten.
    kv.update(DELIVERED, ours, revision).await
}
