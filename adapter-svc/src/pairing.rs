//! Pairings: which strangers may write to an account, the codes that they get, and the operator's decisions.
//!
//! KV `pairings` has the codes and the decisions, and `AUDIT` every decision too. A decision is written to `AUDIT` first:
//! after a crash between the two a withdrawn pairing is withdrawn, and a grant is made again with the same code. For the same
//! reason a bucket that was restored to an older state brings back no pairing and no code that was withdrawn. Source:
//! `docs/security.md` "Pairings".

pub mod service;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shared::bus::{Bus, CasError, Kv, OutgoingMessage, PublishError, ReadStreamError};
use shared::clock::{SharedClock, SharedIds};
use shared::model::dispatch::DeliveryContext;
use shared::model::event::Event;
use shared::model::pairing::{
    CODE_LASTS_MS, OfferStep, Pairing, PairingDecision, PairingRecord, UseCodeError, code_reply, find_by_code,
    make_code, offer_code, stranger_notice,
};
use shared::model::pairing_api::{
    GrantPairing, PairingAnswer, PairingView, WithdrawPairing, may_write, view_pairing, view_pairings,
};
use shared::wire::subject::{pairing_audit, pairing_key};
use shared::wire::topology::{buckets, streams};

use crate::hourly_allowance::HourlyAllowance;

/// Maximum number of codes that an account sends in an hour.
pub const MAX_CODES: u32 = 60;
/// Maximum number of wrong codes that are tried in an hour.
pub const MAX_WRONG_CODES: u32 = 10;
/// Age from which a message is answered with no code, in milliseconds: its sender does not wait for an answer any more.
const MAX_MESSAGE_AGE_MS: i64 = 600_000;
/// Time for which a sender that was looked up counts as paired while the pairings cannot be read ([`PairingStore::was_paired`]).
const REMEMBERED_FOR: Duration = Duration::from_mins(10);
/// Maximum number of senders that are remembered as paired.
const MAX_REMEMBERED: usize = 10_000;
/// Number of tries of a change that others contend for.
const MAX_TRIES: u32 = 8;

/// The reason why a request about a pairing fails.
#[derive(Debug, thiserror::Error)]
pub enum PairingError {
    /// The code grants nothing.
    #[error(transparent)]
    Code(#[from] UseCodeError),
    /// Too many wrong codes were tried.
    #[error("{MAX_WRONG_CODES} wrong codes were tried within an hour; no other one is accepted until the hour is over")]
    TooMany,
    /// The sender has neither a pairing nor a code.
    #[error(
        "`{sender}` is not paired with {channel}/{account} and has no code; `nexus channel pairings` lists those who do"
    )]
    UnknownSender {
        /// Channel of the account.
        channel: String,
        /// Name of the account.
        account: String,
        /// The platform's id of the sender.
        sender: String,
    },
    /// Others change the pairing all the time.
    #[error("pairing `{0}`: too many concurrent updates")]
    Contended(String),
    /// The bucket or the record cannot be read.
    #[error("failed to read pairings: {0}")]
    Read(#[from] ReadStreamError),
    /// The bucket cannot be written.
    #[error("failed to write a pairing: {0}")]
    Write(#[from] CasError),
    /// The record, or the message with the code, cannot be published.
    #[error("failed to publish: {0}")]
    Publish(#[from] PublishError),
}

/// The pairings of all accounts. Clones share it.
#[derive(Debug, Clone)]
pub struct PairingStore {
    bus: Bus,
    kv: Kv<Pairing>,
    clock: SharedClock,
    ids: SharedIds,
    /// Where the owner is told of strangers.
    owners_place: Option<DeliveryContext>,
    /// Codes that each account sent, as `{channel}/{account}`.
    codes: Arc<Mutex<BTreeMap<String, HourlyAllowance>>>,
    wrong: Arc<Mutex<HourlyAllowance>>,
    /// Senders that were paired when they were looked up, by their keys, with the time.
    paired: Arc<Mutex<BTreeMap<String, Instant>>>,
}

/// A pairing as bucket and `AUDIT` together say.
struct KnownPairing {
    pairing: Option<Pairing>,
    /// Revision of the value, under which it is changed.
    revision: u64,
    /// Last decision in `AUDIT`.
    last: Option<PairingDecision>,
    /// Sequence of that decision, behind which the next one is written; 0 = there is none.
    last_sequence: u64,
}

impl PairingStore {
    /// Returns the pairings on `bus`.
    #[must_use]
    pub fn new(bus: Bus, clock: SharedClock, ids: SharedIds) -> Self {
        Self {
            kv: bus.kv(buckets::PAIRINGS),
            bus,
            clock,
            ids,
            owners_place: None,
            codes: Arc::default(),
            wrong: Arc::default(),
            paired: Arc::default(),
        }
    }

    /// Returns these pairings, of which `place` is told when a stranger is sent a code; `None` = nobody is told.
    #[must_use]
    pub fn telling(self, place: Option<DeliveryContext>) -> Self {
        Self {
            owners_place: place,
            ..self
        }
    }

    /// Returns whether the sender of `event` is paired with its account, from the leader: a decision holds for the next
    /// message.
    ///
    /// # Errors
    /// Returns [`PairingError`] if the bucket or `AUDIT` cannot be read.
    pub async fn is_paired(&self, event: &Event) -> Result<bool, PairingError> {
        let known = self.find(&event.channel, event.account(), &event.from.id).await?;
        let is_paired = may_write(known.pairing.as_ref(), known.last.as_ref());
        self.remember(event, is_paired);
        Ok(is_paired)
    }

    /// Returns whether the sender of `event` was paired when it was looked up last, at most ten minutes ago. It counts only
    /// while the pairings cannot be read, and then a withdrawal by another replica is not known.
    #[must_use]
    pub fn was_paired(&self, event: &Event) -> bool {
        let key = pairing_key(&event.channel, event.account(), &event.from.id);
        let paired = self.paired.lock().unwrap_or_else(PoisonError::into_inner);
        let at = paired.get(&key);
        at.is_some_and(|at| self.clock.monotonic().saturating_duration_since(*at) < REMEMBERED_FOR)
    }

    fn remember(&self, event: &Event, is_paired: bool) {
        let (key, now) = (
            pairing_key(&event.channel, event.account(), &event.from.id),
            self.clock.monotonic(),
        );
        let mut paired = self.paired.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_paired {
            paired.remove(&key);
            return;
        }
        if paired.len() >= MAX_REMEMBERED {
            paired.retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED_FOR);
        }
        if paired.len() < MAX_REMEMBERED || paired.contains_key(&key) {
            paired.insert(key, now);
        }
    }

    /// Sends a code to the sender of `event`, a stranger, unless the sender has one. The code is stored before it is
    /// sent; the same event again sends the same message. A message of more than ten minutes ago gets none.
    ///
    /// # Errors
    /// Returns [`PairingError`] if that cannot be done now.
    pub async fn offer_code(&self, event: &Event) -> Result<(), PairingError> {
        let (channel, account, sender) = (event.channel.as_str(), event.account(), event.from.id.as_str());
        let mut is_counted = false;
        for _ in 0..MAX_TRIES {
            let known = self.find(channel, account, sender).await?;
            let now = self.clock.now();
            let pairing = match offer_code(known.pairing, event, now, make_code(self.ids.ulid())) {
                OfferStep::Nothing => return Ok(()),
                OfferStep::Repeat(pairing) => return self.send_code(&pairing, event).await,
                OfferStep::Store(pairing) => pairing,
            };

            let is_old = now.since(event.timestamp) > MAX_MESSAGE_AGE_MS;
            if is_old || (!is_counted && !self.may_send_code(channel, account)) {
                return Ok(());
            }
            is_counted = true;

            match self.write(&pairing, known.revision).await {
                Ok(()) => {}
                Err(CasError::Conflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }

            tracing::info!(
                channel,
                account,
                sender,
                name = pairing.name,
                "a stranger asks to be paired; `nexus channel pair {channel}/{account} CODE` lets them write"
            );
            metrics::counter!("nexus_pairing_codes_total", "channel" => channel.to_owned()).increment(1);
            return self.send_code(&pairing, event).await;
        }

        Err(PairingError::Contended(pairing_key(channel, account, sender)))
    }

    /// Sends the code of `pairing` to the sender of `event`, and tells the owner of it.
    async fn send_code(&self, pairing: &Pairing, event: &Event) -> Result<(), PairingError> {
        if let Some(reply) = code_reply(pairing, event) {
            self.bus.publish(OutgoingMessage::reply(&reply)).await?;
        }
        let place = self.owners_place.as_ref();
        if let Some(notice) = place.and_then(|place| stranger_notice(pairing, event, place)) {
            self.bus.publish(OutgoingMessage::reply(&notice)).await?;
        }
        Ok(())
    }

    /// Lets the receiver of the code of `request` write.
    ///
    /// # Errors
    /// Returns [`PairingError`] if the code is wrong or void, or if that cannot be done now.
    pub async fn grant(&self, request: &GrantPairing) -> Result<PairingAnswer, PairingError> {
        if self.lock_wrong().is_spent(MAX_WRONG_CODES, self.clock.monotonic()) {
            return Err(PairingError::TooMany);
        }

        for _ in 0..MAX_TRIES {
            let now = self.clock.now();
            let entries = self.kv.entries().await?.into_iter().map(|(_, entry)| entry.value);
            let of_account = |one: &Pairing| one.channel == request.channel && one.account == request.account;
            let found = match find_by_code(entries.filter(of_account), &request.code, now) {
                Ok(found) => found,
                Err(error) => {
                    self.lock_wrong().spend(self.clock.monotonic());
                    return Err(error.into());
                }
            };

            let known = self.find(&found.channel, &found.account, &found.sender).await?;
            // The code was withdrawn, and the bucket is older than that.
            if known.last.as_ref().is_some_and(|last| found.is_withdrawn_by(last)) {
                self.lock_wrong().spend(self.clock.monotonic());
                return Err(UseCodeError::Unknown.into());
            }
            // It was replaced just now.
            if known
                .pairing
                .as_ref()
                .is_none_or(|pairing| pairing.offer != found.offer)
            {
                continue;
            }
            if may_write(known.pairing.as_ref(), known.last.as_ref()) {
                return Ok(self.answer(&found, known.last.as_ref(), false));
            }
            if let Some(answer) = self.decide(found, &known, true).await? {
                return Ok(answer);
            }
        }

        Err(PairingError::Contended(format!(
            "{}/{}",
            request.channel, request.account
        )))
    }

    /// Lets the sender that `request` names write no more, and makes the sender's code void.
    ///
    /// # Errors
    /// Returns [`PairingError`] if the sender is not known, or if that cannot be done now.
    pub async fn withdraw(&self, request: &WithdrawPairing) -> Result<PairingAnswer, PairingError> {
        let WithdrawPairing {
            channel,
            account,
            sender,
        } = request;

        for _ in 0..MAX_TRIES {
            let known = self.find(channel, account, sender).await?;
            let pairing = match (&known.pairing, &known.last) {
                (Some(pairing), _) => pairing.clone(),
                // The bucket was lost: a pairing withdrawn then cannot come back with it.
                (None, Some(_)) => empty_pairing(request),
                (None, None) => {
                    return Err(PairingError::UnknownSender {
                        channel: channel.clone(),
                        account: account.clone(),
                        sender: sender.clone(),
                    });
                }
            };

            let is_over = known.last.as_ref().is_some_and(|last| !last.granted);
            if is_over && !pairing.is_granted() && !pairing.is_waiting(self.clock.now()) {
                return Ok(self.answer(&pairing, known.last.as_ref(), false));
            }
            if let Some(answer) = self.decide(pairing, &known, false).await? {
                return Ok(answer);
            }
        }

        Err(PairingError::Contended(pairing_key(channel, account, sender)))
    }

    /// Returns the pairings of all accounts, without codes.
    ///
    /// # Errors
    /// Returns [`PairingError`] if the bucket or `AUDIT` cannot be read.
    pub async fn list(&self) -> Result<Vec<PairingView>, PairingError> {
        let entries = self.kv.entries().await?;
        let pairings = entries.into_iter().map(|(_, entry)| entry.value).collect();
        let records = self.bus.pairing_records().await?;
        Ok(view_pairings(pairings, records, self.clock.now()))
    }

    /// Writes the decision `granted` about `pairing`, to `AUDIT` first, directly behind the decision that `known` has: a grant
    /// thus never follows a withdrawal that it has not seen. Returns `None` if record or value have changed meanwhile.
    async fn decide(
        &self,
        pairing: Pairing,
        known: &KnownPairing,
        granted: bool,
    ) -> Result<Option<PairingAnswer>, PairingError> {
        let record = pairing.record(granted, self.clock.now());
        let subject = pairing_audit(&record.channel, &record.account, &record.sender);
        let message = OutgoingMessage::new(subject, &record).expect_last(known.last_sequence);
        match self.bus.publish(message).await {
            Ok(_) => {}
            Err(PublishError::WrongLastSequence { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }

        if !granted {
            let key = pairing_key(&record.channel, &record.account, &record.sender);
            let mut paired = self.paired.lock().unwrap_or_else(PoisonError::into_inner);
            paired.remove(&key);
        }
        let pairing = pairing.decided(record.decision.clone());
        match self.write(&pairing, known.revision).await {
            Ok(()) => {}
            Err(CasError::Conflict { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }

        let PairingRecord {
            channel,
            account,
            sender,
            decision,
        } = record;
        tracing::info!(channel, account, sender, granted, "pairing decided");
        Ok(Some(self.answer(&pairing, Some(&decision), true)))
    }

    /// Writes `pairing` under `revision`. One without a decision lives as long as its code.
    async fn write(&self, pairing: &Pairing, revision: u64) -> Result<(), CasError> {
        let key = pairing_key(&pairing.channel, &pairing.account, &pairing.sender);
        let written = match pairing.decision {
            Some(_) => self.kv.update(&key, pairing, revision).await,
            None => {
                let lasts = Duration::from_millis(CODE_LASTS_MS.unsigned_abs());
                self.kv.update_ttl(&key, pairing, revision, lasts).await
            }
        };
        written.map(drop)
    }

    /// Returns the pairing of `sender`. One that `AUDIT` has as withdrawn is so, with its code, even if the bucket is older.
    async fn find(&self, channel: &str, account: &str, sender: &str) -> Result<KnownPairing, PairingError> {
        let (pairing, revision) = self.kv.find(&pairing_key(channel, account, sender)).await?;
        let subject = pairing_audit(channel, account, sender);
        let stored = self.bus.last_on_subject(streams::AUDIT, &subject).await?;
        let last_sequence = stored.as_ref().map_or(0, |stored| stored.sequence);
        let last = stored.map(|stored| match stored.decode::<PairingRecord>() {
            Ok(record) => record.decision,
            // Nothing that cannot be read lets anybody in.
            Err(error) => {
                tracing::warn!(channel, account, sender, %error, "unreadable record of a pairing; it counts as withdrawn");
                PairingDecision {
                    granted: false,
                    at: stored.published_at,
                }
            }
        });

        let pairing = pairing.map(|pairing| match &last {
            Some(last) if pairing.is_withdrawn_by(last) => {
                tracing::warn!(
                    channel,
                    account,
                    sender,
                    "a pairing or its code was withdrawn, and KV `pairings` is older than that"
                );
                pairing.decided(last.clone())
            }
            Some(_) | None => pairing,
        });
        Ok(KnownPairing {
            pairing,
            revision,
            last,
            last_sequence,
        })
    }

    fn answer(&self, pairing: &Pairing, last: Option<&PairingDecision>, changed: bool) -> PairingAnswer {
        PairingAnswer {
            pairing: view_pairing(pairing, last, self.clock.now()),
            changed,
        }
    }

    /// Returns whether the account may send one more code, and counts it. Warns of the first one in an hour that it may not.
    fn may_send_code(&self, channel: &str, account: &str) -> bool {
        let now = self.clock.monotonic();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let allowance = codes.entry(format!("{channel}/{account}")).or_default();
        let may_send = !allowance.is_spent(MAX_CODES, now);
        if !may_send && !allowance.is_spent(MAX_CODES + 1, now) {
            tracing::warn!(
                channel,
                account,
                "strangers get no codes: the account sent {MAX_CODES} within an hour"
            );
        }

        if !allowance.is_spent(MAX_CODES + 1, now) {
            allowance.spend(now);
        }
        may_send
    }

    fn lock_wrong(&self) -> std::sync::MutexGuard<'_, HourlyAllowance> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pairing of the sender that `request` names, without code and decision.
fn empty_pairing(request: &WithdrawPairing) -> Pairing {
    let WithdrawPairing {
        channel,
        account,
        sender,
    } = request.clone();
    Pairing {
        channel,
        account,
        sender,
        name: None,
        offer: None,
        decision: None,
    }
}
