//! Strangers who write to an account that pairs: those who are paired are let in, and the others get a code.
//!
//! The sink does both, for every platform. It looks each sender up once per batch, so a decision holds for the next
//! message. A code is sent once the event is stored, and before the platform is told:
//! after a crash in between the platform hands the message over again, and the same code is sent under the same id. Source:
//! `docs/security.md` "Pairings".

use std::collections::BTreeMap;

use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::event::{Event, PeerKind, UNPAIRED};
use shared::platform::policy::DirectPolicy;

use super::access::is_strangers_message;
use super::sink::{SourceFenced, SourceSink, TRY_AGAIN_AFTER};
use crate::pairing::{PairingError, PairingStore};

/// Removes the tag `unpaired` from those of `events`, of an account with the policy `direct`, whose senders are paired.
/// Returns the messages that are to be answered with a code once the events are stored ([`PairingStore::offer_code`]): the first
/// one of each stranger. After an error the same events may be given again.
///
/// # Errors
/// Returns [`PairingError`] if the pairings cannot be read.
pub async fn settle_strangers(
    pairings: &PairingStore,
    direct: DirectPolicy,
    events: &mut [Event],
) -> Result<Vec<Event>, PairingError> {
    match direct {
        DirectPolicy::Pairing => {}
        // Earlier pairings have no effect.
        DirectPolicy::Open | DirectPolicy::Allowlist => return Ok(Vec::new()),
    }

    let mut known: BTreeMap<String, bool> = BTreeMap::new();
    let mut strangers: BTreeMap<String, Event> = BTreeMap::new();
    for event in events {
        let is_direct = event.peer.kind == PeerKind::Dm && event.tags.iter().any(|tag| tag == UNPAIRED);
        if !is_direct || event.from.id.is_empty() {
            continue;
        }

        let sender = event.from.id.clone();
        let is_paired = match known.get(&sender) {
            Some(is_paired) => *is_paired,
            None => pairings.is_paired(event).await?,
        };
        known.insert(sender.clone(), is_paired);

        if is_paired {
            event.remove_tag(UNPAIRED);
        } else if is_strangers_message(event) {
            strangers.entry(sender).or_insert_with(|| event.clone());
        }
    }

    Ok(strangers.into_values().collect())
}

impl SourceSink {
    /// Does [`settle_strangers`] as often as it takes.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the account is no longer held before the pairings can be read.
    pub(super) async fn let_paired_in(&self, events: &mut [Event]) -> Result<Vec<Event>, SourceFenced> {
        loop {
            match settle_strangers(self.pairings(), self.direct(), events).await {
                Ok(strangers) => return Ok(strangers),
                Err(error) => self.wait_after(&error).await?,
            }
        }
    }

    /// Sends a code to the sender of each of `messages`.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the account is no longer held before that is done.
    pub(super) async fn offer_codes(&self, messages: &[Event]) -> Result<(), SourceFenced> {
        for message in messages {
            while let Err(error) = self.pairings().offer_code(message).await {
                self.wait_after(&error).await?;
            }
        }
        Ok(())
    }

    /// Waits before something that failed with `error` is tried again.
    async fn wait_after(&self, error: &PairingError) -> Result<(), SourceFenced> {
        if !self.is_held() {
            return Err(SourceFenced);
        }

        let error = describe_error(error);
        tracing::warn!(error, "failed to read or write a pairing; retrying");
        pause(TRY_AGAIN_AFTER).await;
        Ok(())
    }
}
