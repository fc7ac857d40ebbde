//! Holding what nobody can tell to be done or undone, and what operators say about it.

use std::time::Duration;

use crate::wire::held::{Held, HeldUntil};
use crate::wire::topology::buckets;

use super::connect::Bus;
use super::error::CasError;
use super::kv::Kv;

/// How long a decision is kept: longer than any message that may ask for it.
const KEPT: Duration = Duration::from_secs(120 * 24 * 3_600);

impl Bus {
    /// Where held messages are kept.
    #[must_use]
    pub fn held(&self) -> Kv<Held> {
        self.kv(buckets::HELD)
    }

    /// Holds `held`, unless it is held or was decided already; answers what an operator has said of it. The same message
    /// may be held any number of times.
    ///
    /// # Errors
    /// [`CasError`] if it cannot be stored.
    pub async fn hold(&self, held: &Held) -> Result<HeldUntil, CasError> {
        let key = held.key();
        match self.held().create(&key, held).await {
            Ok(_) => {}
            Err(CasError::Conflict { .. }) => {
                let known = self.held().get(&key).await?;
                return Ok(known.map_or(HeldUntil::Decided, |known| known.value.wanted));
            }
            Err(error) => return Err(error),
        }
        tracing::error!(
            kind = held.kind.name(),
            id = %held.id,
            stream = held.stream,
            sequence = held.sequence,
            why = held.why,
            "a message is held: nobody can tell whether it was done (`nexus recover list`)"
        );
        metrics::counter!("nexus_held_total", "kind" => held.kind.name()).increment(1);
        Ok(HeldUntil::Decided)
    }

    /// Notes that an operator wants `wanted` of the message held under `key`, which stands at `revision`.
    ///
    /// # Errors
    /// [`CasError::Conflict`] if somebody else has decided meanwhile.
    pub async fn decide_held(&self, held: &Held, wanted: HeldUntil, revision: u64) -> Result<(), CasError> {
        let decided = Held { wanted, ..held.clone() };
        let key = held.key();
        self.held().update_ttl(&key, &decided, revision, KEPT).await.map(|_| ())
    }
}
