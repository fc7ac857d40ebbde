//! Compare-and-set of the breakers that all replicas share; each change is based on the leader's value.

mod view;

use crate::breaker::{Breaker, key_of};

use super::error::CasError;
use super::kv::{Kv, KvEntry};

pub use view::{BreakerChange, BreakerNotes, BreakerScope, BreakerView, KnownBreaker};

/// Maximum number of retries of a compare-and-set after a conflict.
const MAX_TRIES: u32 = 20;

impl Kv<Breaker> {
    /// Applies `next` to the breaker that people name `hook_id`, for the source with `content_hash`, until the
    /// compare-and-set succeeds or `next` returns `None` for "no change". Returns the resulting breaker of that
    /// source, and the bucket's entry if there is one. The stored breaker of another source counts as a breaker that
    /// never failed.
    ///
    /// # Errors
    /// Returns [`CasError`] if the server cannot be asked, or if other writers are first 20 times in a row.
    pub async fn change_breaker(
        &self,
        hook_id: &str,
        content_hash: &str,
        mut next: impl FnMut(&Breaker) -> Option<Breaker>,
    ) -> Result<(Breaker, Option<KvEntry<Breaker>>), CasError> {
        let of_source = |stored: Option<&Breaker>| {
            let own = stored.filter(|breaker| breaker.content_hash == content_hash);
            own.cloned().unwrap_or_else(|| Breaker::for_hook(hook_id, content_hash))
        };
        let entry = self.change_entry(hook_id, |stored| next(&of_source(stored))).await?;
        Ok((of_source(entry.as_ref().map(|entry| &entry.value)), entry))
    }

    /// Closes the breaker that people name `hook_id`, even if other replicas change it meanwhile. Returns the breaker
    /// as it was before, or `None` if it was at rest already.
    ///
    /// # Errors
    /// As [`Kv::change_breaker`].
    pub async fn reset(&self, hook_id: &str) -> Result<Option<Breaker>, CasError> {
        let mut former = None;
        let reset = |stored: Option<&Breaker>| {
            let stored = stored.filter(|breaker| !breaker.is_at_rest())?;
            former = Some(stored.clone());
            Some(stored.reset())
        };
        self.change_entry(hook_id, reset).await?;
        Ok(former)
    }

    /// Repeats a compare-and-set of the whole entry until it succeeds or `next` returns `None`. Returns the entry that
    /// is stored then.
    async fn change_entry(
        &self,
        hook_id: &str,
        mut next: impl FnMut(Option<&Breaker>) -> Option<Breaker>,
    ) -> Result<Option<KvEntry<Breaker>>, CasError> {
        let key = key_of(hook_id);
        let mut tries = 0;
        loop {
            let entry = self.get(&key).await?;
            let Some(value) = next(entry.as_ref().map(|entry| &entry.value)) else {
                return Ok(entry);
            };

            // The revision makes the write fail if another replica has changed the breaker since it was read.
            let written = match &entry {
                None => self.create(&key, &value).await,
                Some(entry) => self.update(&key, &value, entry.revision).await,
            };
            match written {
                Ok(revision) => return Ok(Some(KvEntry { value, revision })),
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerPolicy;
    use crate::model::time::UnixMillis;
    use crate::testing::world;
    use crate::wire::topology::buckets::BREAKERS;

    fn fails(breaker: &Breaker) -> Breaker {
        let failed = breaker.after_failure(&BreakerPolicy::default(), "other", UnixMillis(1));
        failed.expect("it counts")
    }

    /// Counts a failure as another replica would, between the caller's read and its write.
    fn interfere(kv: &Kv<Breaker>, stored: &Breaker) {
        let failed = fails(stored);
        let write = kv.put("h", &failed);
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(write)).expect("written");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_second_decides_upon_what_stands_then() {
        let (_server, bus) = world().await;
        let kv: Kv<Breaker> = bus.kv(BREAKERS);
        kv.create("h", &fails(&Breaker::for_hook("h", "1")))
            .await
            .expect("stored");
        let mut seen = Vec::new();

        let decided = kv.change_entry("h", |stored| {
            let stored = stored.expect("it is stored");
            seen.push(stored.failures);
            if seen.len() <= 3 {
                interfere(&kv, stored);
            }
            Some(stored.reset())
        });

        let entry = decided.await.expect("written").expect("it stands");
        assert_eq!(seen, [1, 2, 3, 4]);
        assert!(entry.value.is_at_rest());
        assert_eq!(kv.reset("h").await.expect("readable"), None, "it is at rest");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_second_for_ever_is_told() {
        let (_server, bus) = world().await;
        let kv: Kv<Breaker> = bus.kv(BREAKERS);
        kv.create("h", &Breaker::for_hook("h", "1")).await.expect("stored");
        let mut looks = 0;

        let decided = kv.change_entry("h", |stored| {
            looks += 1;
            let stored = stored.expect("it is stored").reset();
            interfere(&kv, &stored);
            Some(stored)
        });

        let error = decided.await.expect_err("others are first");
        assert!(matches!(error, CasError::Conflict { .. }), "{error}");
        assert_eq!(looks, MAX_TRIES + 1);
    }
}
