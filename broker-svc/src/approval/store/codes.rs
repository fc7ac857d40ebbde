//! Finds the approval of a reply code, with a bounded number of scans of the bucket.
//!
//! No key contains the code, so every stored approval is read. Anybody who may write to an agent can write
//! `approve XXXX`: the result of a scan is kept, one scan serves all callers that wait, and scans are a second apart.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shared::bus::{KvEvent, KvWatch};
use shared::clock::{SharedClock, pause};
use shared::model::approval::ConfirmationTerms;

/// Minimum time between two scans.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Result of the last scan.
#[derive(Debug, Default)]
struct Found {
    /// Id of the newest approval of each code.
    ids: HashMap<String, String>,
    begun_at: Option<Instant>,
}

/// Codes of the stored approvals.
#[derive(Debug, Default)]
pub(super) struct ApprovalCodes(tokio::sync::Mutex<Found>);

impl ApprovalCodes {
    /// Returns the id of the newest approval with `code`. If the code is not known, all values of `watch` are
    /// scanned; a scan that another caller began after this call counts as well.
    pub(super) async fn id_of(
        &self,
        code: &str,
        clock: &SharedClock,
        watch: impl Fn() -> KvWatch<ConfirmationTerms>,
    ) -> Option<String> {
        let asked_at = clock.monotonic();
        let mut found = self.0.lock().await;
        if let Some(id) = found.ids.get(code) {
            return Some(id.clone());
        }

        // Another caller has scanned since this one asked: a second scan would find the same.
        if found.begun_at.is_some_and(|begun_at| begun_at >= asked_at) {
            return None;
        }

        // Unknown codes may be guesses: scans are spaced, so that they cannot load the server.
        if let Some(begun_at) = found.begun_at {
            pause((begun_at + LOOK_EVERY).saturating_duration_since(clock.monotonic())).await;
        }

        found.begun_at = Some(clock.monotonic());
        metrics::counter!("nexus_broker_code_looks_total").increment(1);
        found.ids = collect_codes(watch()).await;

        found.ids.get(code).cloned()
    }
}

/// Scans for the newest approval of each code.
async fn collect_codes(mut watch: KvWatch<ConfirmationTerms>) -> HashMap<String, String> {
    let mut newest: HashMap<String, ConfirmationTerms> = HashMap::new();
    loop {
        match watch.next().await {
            KvEvent::Put { value, .. } => {
                let Some(code) = value.trail.code.clone() else { continue };
                // Codes are random, but not unique for ever.
                let is_newer = newest
                    .get(&code)
                    .is_none_or(|known| known.requested_at <= value.requested_at);
                if is_newer {
                    newest.insert(code, value);
                }
            }
            KvEvent::Anew => newest.clear(),
            KvEvent::Gone { .. } | KvEvent::Bad { .. } => {}
            KvEvent::Current => break,
        }
    }

    newest
        .into_iter()
        .map(|(code, found)| (code, found.request.id))
        .collect()
}
