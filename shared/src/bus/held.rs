//! Holding what nobody can tell to be done or undone, and what operators say about it.
//!
//! Until something is decided of it, a held message stands on `DLQ` as well: an emptied bucket alone loses none.

use std::time::Duration;

use crate::wire::dead_letter::DeadLetter;
use crate::wire::headers;
use crate::wire::held::{HELD_LETTER, Held, HeldKind, HeldUntil};
use crate::wire::subject;
use crate::wire::topology::{buckets, streams};

use super::connect::Bus;
use super::error::{CasError, PublishError, ReadStreamError};
use super::kv::Kv;
use super::message::Stored;
use super::publish::Outgoing;

/// How long a decision is kept: longer than any message that may ask for it.
const KEPT: Duration = Duration::from_secs(120 * 24 * 3_600);

/// A message cannot be held, or what is held cannot be looked through.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The bucket takes no value.
    #[error(transparent)]
    Write(#[from] CasError),
    /// The letter beside it cannot be stored.
    #[error(transparent)]
    Letter(#[from] PublishError),
    /// What is held cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
}

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
    /// [`HoldError`] if it cannot be stored.
    pub async fn hold(&self, held: &Held) -> Result<HeldUntil, HoldError> {
        let key = held.key();
        if let (Some(known), _) = self.held().find(&key).await? {
            return Ok(known.wanted);
        }

        // Killed behind it, the letter alone has it held again.
        let letter = Outgoing::new(subject::dlq(HELD_LETTER), &held.letter());
        let letter = letter.header(headers::HELD, key.clone());
        self.publish(letter.msg_id(format!("{HELD_LETTER}:{key}"))).await?;

        match self.held().create(&key, held).await {
            Ok(_) => {}
            Err(CasError::Conflict { .. }) => {
                let known = self.held().get(&key).await?;
                return Ok(known.map_or(HeldUntil::Decided, |known| known.value.wanted));
            }
            Err(error) => return Err(error.into()),
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

    /// Holds again what of `kind` the bucket has lost, by the letters beside it; answers how many messages that were.
    ///
    /// # Errors
    /// [`HoldError`]: some may not be held again yet.
    pub async fn hold_again(&self, kind: HeldKind) -> Result<usize, HoldError> {
        let mut again = 0;
        for (stored, key) in self.held_letters().await? {
            let Ok(letter) = stored.decode::<DeadLetter>() else {
                continue;
            };
            let Some(held) = Held::of_letter(&key, letter).filter(|held| held.kind == kind) else {
                continue;
            };

            if self.held().find(&key).await?.0.is_some() {
                continue;
            }

            match self.held().create(&key, &held).await {
                Ok(_) => again += 1,
                // Another replica was faster, or an operator has decided.
                Err(CasError::Conflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }

            tracing::error!(
                kind = kind.name(), id = %held.id, stream = held.stream, sequence = held.sequence,
                "KV held has lost a message that is held: it is held again (`nexus recover list`)"
            );
            metrics::counter!("nexus_held_again_total", "kind" => kind.name()).increment(1);
        }

        Ok(again)
    }

    /// Takes the letters beside `held` away: it is decided, and what was wanted is published.
    ///
    /// # Errors
    /// [`HoldError`]: letters may be left, which change no decision while the bucket has it.
    pub async fn take_held_letters(&self, held: &Held) -> Result<(), HoldError> {
        let mine = held.key();
        for (stored, key) in self.held_letters().await? {
            if key == mine {
                self.delete_message(streams::DLQ, stored.sequence).await?;
            }
        }
        Ok(())
    }

    /// The letters beside what is held, each with its key.
    async fn held_letters(&self) -> Result<Vec<(Stored, String)>, ReadStreamError> {
        let subject = subject::dlq(HELD_LETTER);
        let (mut found, mut from) = (Vec::new(), 1);
        while let Some(stored) = self.next_on_subject(streams::DLQ, &subject, from).await? {
            from = stored.sequence + 1;
            let key = stored.headers.get(headers::HELD).map(str::to_owned);
            found.extend(key.map(|key| (stored, key)));
        }
        Ok(found)
    }
}
