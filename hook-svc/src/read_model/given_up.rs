//! Dead letters and held messages, read when a trace waits for a step that may be dead or held.

use std::collections::BTreeMap;

use shared::bus::{Bus, ReadStreamError};
use shared::projection::given_up::{GivenUp, MAX_REMEMBERED};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::held::HeldUntil;
use shared::wire::topology::streams::DLQ;
use tokio::sync::Mutex;

/// Reader of the newest dead letters, which continues after the last one read.
#[derive(Debug)]
pub struct DeadLetterReader {
    bus: Bus,
    read: Mutex<Read>,
}

#[derive(Debug, Default)]
struct Read {
    next: u64,
    given_up: GivenUp,
}

impl DeadLetterReader {
    /// Creates a reader on `bus` that has read none yet.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        Self {
            bus,
            read: Mutex::default(),
        }
    }

    /// Returns the dead letters until now, and the messages held under `keys`. If `DLQ` cannot be read, returns those
    /// already known; if KV `held` cannot be read, all keys may be held.
    pub async fn given_up(&self, keys: &[String]) -> GivenUp {
        let mut given_up = self.letters().await;
        match self.held(keys).await {
            Ok(held) => given_up.take_held(held),
            Err(error) => tracing::debug!(%error, "failed to read held messages; traces wait for them"),
        }

        given_up
    }

    async fn held(&self, keys: &[String]) -> Result<BTreeMap<String, HeldUntil>, ReadStreamError> {
        let mut found = BTreeMap::new();
        for key in keys {
            let held = self.bus.held_bucket().find(key).await?.0;
            found.extend(held.map(|held| (key.clone(), held.wanted)));
        }

        Ok(found)
    }

    async fn letters(&self) -> GivenUp {
        let mut read = self.read.lock().await;
        if let Err(error) = self.read_on(&mut read).await {
            tracing::debug!(%error, "failed to read dead letters; traces may look incomplete");
        }
        read.given_up.clone()
    }

    async fn read_on(&self, read: &mut Read) -> Result<(), ReadStreamError> {
        if read.next == 0 {
            let last = self.bus.stream_state(DLQ).await?.last;
            read.next = last.saturating_sub(MAX_REMEMBERED as u64).max(1);
        }

        while let Some(stored) = self.bus.next_on_subject(DLQ, "nexus.dlq.*", read.next).await? {
            read.next = stored.sequence + 1;
            match stored.decode::<DeadLetter>() {
                Ok(letter) => read.given_up.take(&letter),
                Err(error) => tracing::debug!(sequence = stored.sequence, %error, "failed to read a dead letter"),
            }
        }

        Ok(())
    }
}
