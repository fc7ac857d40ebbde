//! Publication of the configured accounts in KV `channels`, for hooks that wait for one.
//!
//! The replica that started last is authoritative, by the server's order of the replicas' first writes. A replica
//! that finds an entry older than its own (the bucket was restored or created again) writes its own again.

use std::collections::BTreeSet;
use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::pause;
use shared::model::channel::{ConfiguredChannels, DELIVERED};
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::process::ShutdownSignal;
use shared::wire::topology::buckets::CHANNELS;

use crate::accounts::ChannelAccounts;

/// Wait after a failure before the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// Interval in which the entry is checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Returns the published form of `accounts`.
#[must_use]
pub fn configured_channels(accounts: &ChannelAccounts) -> ConfiguredChannels {
    let endpoints = accounts.endpoints.iter();
    let called = endpoints.map(|(channel, endpoints)| (channel.as_str(), endpoints.keys().cloned().collect()));
    let telegram = (TELEGRAM, accounts.telegram.keys().cloned().collect());
    let discord = (DISCORD, accounts.discord.keys().cloned().collect());
    let slack = (SLACK, accounts.slack.keys().cloned().collect());

    let all = called.chain([telegram, discord, slack]);
    let named = all.filter(|(_, accounts): &(_, BTreeSet<String>)| !accounts.is_empty());
    ConfiguredChannels {
        accounts: named
            .map(|(channel, accounts)| (channel.to_owned(), accounts))
            .collect(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts;

    #[test]
    fn bots_are_named_and_channels_without_accounts_are_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "123456:AbC-dEf_1").expect("written");
        let text = format!(
            "webhook: {{}}\ntelegram: {{accounts: {{bot: {{token: 'file:{}'}}}}}}",
            file.path().display()
        );
        let named = configured_channels(&accounts::read(&text).expect("read"));

        assert!(named.has_channel("telegram:bot"));
        assert!(!named.has_channel("telegram:other") && !named.has_channel("webhook"));
    }
}
