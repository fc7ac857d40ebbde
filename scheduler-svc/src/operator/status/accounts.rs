//! What the buckets have of accounts on platforms.

use std::collections::BTreeSet;

use shared::bus::{Bus, ReadStreamError};
use shared::model::channel::{ConfiguredChannels, DELIVERED, StoppedAccount};
use shared::wire::operator::status::AccountsStatus;
use shared::wire::session_mark::LeaseRecord;
use shared::wire::topology::buckets;
use shared::wire::watermark::SourceWatermark;

/// Prefix of the keys in KV `leases` of accounts' readers.
const ACCOUNT: &str = "account.";
/// Prefix of the keys of their sessions. A session names no session, so it is no lease.
const SESSION: &str = "account.session.";

/// Returns what is known of all accounts.
pub(super) async fn read(bus: &Bus) -> Result<AccountsStatus, ReadStreamError> {
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES).entries().await?;
    let sessions: BTreeSet<String> = leases
        .iter()
        .filter_map(|(key, _)| key.strip_prefix(SESSION).map(str::to_owned))
        .collect();
    // The lease of a replica that was killed stays until another one takes it.
    let holders = leases.into_iter().filter_map(|(key, entry)| {
        let account = key.strip_prefix(ACCOUNT)?.to_owned();
        sessions
            .contains(&entry.value.session)
            .then_some((account, entry.value.holder))
    });
    let watermarks = bus.kv::<SourceWatermark>(buckets::WATERMARKS).entries().await?;
    let stopped = bus.kv::<StoppedAccount>(buckets::STOPPED_ACCOUNTS).entries().await?;
    let delivered = bus.kv::<ConfiguredChannels>(buckets::CHANNELS).get(DELIVERED).await?;

    Ok(AccountsStatus {
        holders: holders.collect(),
        read_until: watermarks
            .into_iter()
            .map(|(key, entry)| (key, entry.value.complete_until))
            .collect(),
        refused_since: stopped
            .into_iter()
            .map(|(key, entry)| (key, entry.value.since))
            .collect(),
        delivered: delivered.map(|entry| entry.value).unwrap_or_default(),
    })
}
