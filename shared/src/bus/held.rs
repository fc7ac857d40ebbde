//! Held messages: messages of which it cannot be known whether their effect happened, and operators' decisions on
//! them.
//!
//! Until it is decided, a held message is stored on `DLQ` as well, so that an emptied bucket loses none.

use std::time::Duration;

use crate::wire::dead_letter::DeadLetter;
use crate::wire::headers;
use crate::wire::held::{HELD_LETTER, HeldKind, HeldMessage, HeldUntil};
use crate::wire::subject;
use crate::wire::topology::{buckets, streams};

use super::connect::Bus;
use super::error::{CasError, PublishError, ReadStreamError};
use super::kv::Kv;
use super::message::StoredMessage;
use super::publish::OutgoingMessage;

/// How long a decision is kept: longer than the lifetime of any message that may ask for it.
const KEPT: Duration = Duration::from_secs(120 * 24 * 3_600);

/// A message cannot be held, or the held messages cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Writing to the bucket failed.
    #[error(transparent)]
    Write(#[from] CasError),
    /// The dead letter beside the entry cannot be stored.
    #[error(transparent)]
    Letter(#[from] PublishError),
    /// The held messages cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
}

impl Bus {
    /// The bucket of held messages.
    #[must_use]
    pub fn held_bucket(&self) -> Kv<HeldMessage> {
        self.kv(buckets::HELD)
    }

    /// Holds `held`, unless it is held or was decided already. Returns the operator's decision, or
    /// [`HeldUntil::Decided`] while there is none. Holding the same message again has no further effect.
    ///
    /// # Errors
    /// Returns [`HoldError`] if it cannot be stored.
    pub async fn hold_message(&self, held: &HeldMessage) -> Result<HeldUntil, HoldError> {
        let key = held.key();
        if let (Some(known), _) = self.held_bucket().find(&key).await? {
            return Ok(known.wanted);
        }

        // If the process is killed after this line, the dead letter alone causes the message to be held again.
        let letter = OutgoingMessage::new(subject::dlq(HELD_LETTER), &held.to_dead_letter());
        let letter = letter.header(headers::HELD, key.clone());
        self.publish(letter.msg_id(format!("{HELD_LETTER}:{key}"))).await?;

        // Another replica may have found the same message, or an operator may have decided already.
        match self.held_bucket().create(&key, held).await {
            Ok(_) => {}
            Err(CasError::Conflict { .. }) => {
                let known = self.held_bucket().get(&key).await?;
                return Ok(known.map_or(HeldUntil::Decided, |known| known.value.wanted));
            }
            Err(error) => return Err(error.into()),
        }

        tracing::error!(
            kind = held.kind.name(),
            id = %held.id,
            stream = held.stream,
            sequence = held.sequence,
            reason = held.why,
            "message held: unknown if it was processed (see `nexus recover list`)"
        );

        metrics::counter!("nexus_held_total", "kind" => held.kind.name()).increment(1);
        Ok(HeldUntil::Decided)
    }

    /// Records that an operator decided `wanted` for the message held under `key`, whose entry has `revision`.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if another decision was recorded meanwhile.
    pub async fn decide_held(&self, held: &HeldMessage, wanted: HeldUntil, revision: u64) -> Result<(), CasError> {
        let decided = HeldMessage { wanted, ..held.clone() };
        let key = held.key();
        self.held_bucket()
            .update_ttl(&key, &decided, revision, KEPT)
            .await
            .map(|_| ())
    }

    /// Restores the entries of `kind` that the bucket has lost, from the dead letters beside them. Returns the number
    /// of entries restored.
    ///
    /// # Errors
    /// Returns [`HoldError`]; some entries may not be restored yet then.
    pub async fn hold_again(&self, kind: HeldKind) -> Result<usize, HoldError> {
        let mut again = 0;
        for (stored, key) in self.held_letters().await? {
            let Ok(letter) = stored.decode::<DeadLetter>() else {
                continue;
            };
            let Some(held) = HeldMessage::of_letter(&key, letter).filter(|held| held.kind == kind) else {
                continue;
            };

            if self.held_bucket().find(&key).await?.0.is_some() {
                continue;
            }

            match self.held_bucket().create(&key, &held).await {
                Ok(_) => again += 1,
                // Another replica restored it first, or an operator has decided.
                Err(CasError::Conflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }

            tracing::error!(
                kind = kind.name(), id = %held.id, stream = held.stream, sequence = held.sequence,
                "KV held lost a held message; holding it again (see `nexus recover list`)"
            );
            metrics::counter!("nexus_held_again_total", "kind" => kind.name()).increment(1);
        }

        Ok(again)
    }

    /// Deletes the dead letters beside `held`, once it is decided and the outcome is published.
    ///
    /// # Errors
    /// Returns [`HoldError`]. Dead letters may be left then; they change no decision while the bucket has one.
    pub async fn take_held_letters(&self, held: &HeldMessage) -> Result<(), HoldError> {
        let mine = held.key();
        for (stored, key) in self.held_letters().await? {
            if key == mine {
                self.delete_message(streams::DLQ, stored.sequence).await?;
            }
        }
        Ok(())
    }

    /// Returns the dead letters beside the held messages, each with its key.
    async fn held_letters(&self) -> Result<Vec<(StoredMessage, String)>, ReadStreamError> {
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
