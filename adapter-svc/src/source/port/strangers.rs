//! Strangers that write to an account that pairs: the paired ones are let in, and the others get a code.
//!
//! The sink does both, for every platform. It looks each sender up once per batch, so a decision holds for the next
//! message. A code is sent once the event is stored, and before the platform is told:
//! after a crash in between the platform hands the message over again, and the same code is sent under the same id. Source:
//! `docs/security.md` "Pairings".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::try_join_all;
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::event::{Event, PeerKind, UNPAIRED};
use shared::platform::policy::DirectPolicy;

use super::access::is_strangers_message;
use super::event_store::{SourceFenced, TRY_AGAIN_AFTER};
use super::sink::SourceSink;
use crate::pairing::{PairingError, PairingStore};

/// Number of senders that are looked up at once.
const AT_ONCE: usize = 16;
/// Number of tries of the codes of a batch, while the bus is there.
const MAX_TRIES: u32 = 5;
/// Time for which a sender gets no code after one could not be sent.
const NO_CODE_FOR: Duration = Duration::from_hours(1);
/// Maximum number of senders that are remembered because of that.
const MAX_GIVEN_UP: usize = 1_000;

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

    // The first message of each sender stands for the others.
    let mut senders: BTreeMap<String, Event> = BTreeMap::new();
    for event in events.iter().filter(|event| needs_pairing(event)) {
        senders.entry(event.from.id.clone()).or_insert_with(|| event.clone());
    }
    let mut paired = BTreeSet::new();
    let asked: Vec<&Event> = senders.values().collect();
    for some in asked.chunks(AT_ONCE) {
        let found = try_join_all(some.iter().map(|event| pairings.is_paired(event))).await?;
        let found = some.iter().zip(found).filter(|(_, is_paired)| *is_paired);
        paired.extend(found.map(|(event, _)| event.from.id.clone()));
    }

    let mut strangers: BTreeMap<String, Event> = BTreeMap::new();
    for event in events.iter_mut().filter(|event| needs_pairing(event)) {
        if paired.contains(&event.from.id) {
            event.remove_tag(UNPAIRED);
        } else if is_strangers_message(event) {
            strangers.entry(event.from.id.clone()).or_insert_with(|| event.clone());
        }
    }
    Ok(strangers.into_values().collect())
}

/// Removes the tag `unpaired` from those of `events`, of an account with the policy `direct`, whose senders were paired when
/// they were looked up a short while ago: for a platform that does not wait while the pairings cannot be read. Returns whether
/// every sender is settled thereby.
#[must_use]
pub fn settle_remembered(pairings: &PairingStore, direct: DirectPolicy, events: &mut [Event]) -> bool {
    match direct {
        DirectPolicy::Pairing => {}
        DirectPolicy::Open | DirectPolicy::Allowlist => return true,
    }

    let mut is_settled = true;
    for event in events.iter_mut().filter(|event| needs_pairing(event)) {
        if pairings.was_paired(event) {
            event.remove_tag(UNPAIRED);
        } else {
            is_settled = false;
        }
    }
    is_settled
}

/// Returns whether it depends on a pairing if the sender of `event` may write.
fn needs_pairing(event: &Event) -> bool {
    let is_direct = event.peer.kind == PeerKind::Dm && event.tags.iter().any(|tag| tag == UNPAIRED);
    is_direct && !event.from.id.is_empty()
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

    /// Sends a code to the sender of each of `messages`. A code that cannot be sent in a few tries is given up, so that it holds
    /// up no other sender: its receiver gets none within the hour.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the account is no longer held before that is done.
    pub(super) async fn offer_codes(&self, messages: &[Event]) -> Result<(), SourceFenced> {
        let mut tries = MAX_TRIES;
        for message in messages {
            if self.is_given_up(message) {
                continue;
            }
            while let Err(error) = self.pairings().offer_code(message).await {
                // Without the bus nothing can be stored for anybody.
                tries = tries.saturating_sub(u32::from(self.bus().is_connected()));
                if tries == 0 {
                    self.give_up_code(message, &error);
                    break;
                }
                self.wait_after(&error).await?;
            }
            // All of a batch share the tries, and each has one of its own.
            tries = tries.max(1);
        }
        Ok(())
    }

    /// Returns whether a code for the sender of `message` was given up within the hour.
    fn is_given_up(&self, message: &Event) -> bool {
        let given_up = self.given_up().lock().unwrap_or_else(PoisonError::into_inner);
        let at = given_up.get(&message.from.id);
        at.is_some_and(|at| self.monotonic().saturating_duration_since(*at) < NO_CODE_FOR)
    }

    /// Notes that the sender of `message` gets no code because of `error`.
    fn give_up_code(&self, message: &Event, error: &PairingError) {
        let ((channel, account), now) = (self.names(), self.monotonic());
        let sender = &message.from.id;
        let error = describe_error(error);
        tracing::error!(
            channel,
            account,
            sender,
            error,
            "a stranger gets no code within the hour"
        );
        metrics::counter!("nexus_pairing_codes_given_up_total", "channel" => channel).increment(1);

        let mut given_up = self.given_up().lock().unwrap_or_else(PoisonError::into_inner);
        given_up.retain(|_, at| now.saturating_duration_since(*at) < NO_CODE_FOR);
        if given_up.len() < MAX_GIVEN_UP {
            given_up.insert(sender.clone(), now);
        }
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
