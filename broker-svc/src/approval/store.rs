//! The store of approvals, which also notifies their sessions.
//!
//! KV `approvals` decides a race by compare-and-set; the session's ledger decides whether an approved call has run. A
//! decision is stored, then audited, then published to the session with an id of its own, then claimed for. A process
//! that repeats the decision repeats all of these steps, and so do the sweeper and the timer of its end. The `AUDIT`
//! record of a change is part of the value that the change led to, and is in `AUDIT` before the next change begins.

mod audit_records;
mod card_sending;
mod codes;
mod external_calls;
pub mod lost;
mod refused_decisions;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use shared::bus::{Bus, CasError, Kv, KvEntry, OutgoingMessage, PublishError, ReadStreamError, claim};
use shared::clock::{IdSource as _, SharedClock, SystemIds};
use shared::model::approval::{
    ApprovalDecision, ApprovalParty, ApprovalStatus, ApprovalTimer, ApprovalTimerPurpose, CardReason,
    ConfirmationTerms, SessionDecision,
};
use shared::model::identity::Identities;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::buckets::APPROVALS;

use self::codes::ApprovalCodes;
use self::refused_decisions::RefusalCounts;
use super::card::{mint_code, plan_cards};
use super::machine::{DecisionEffect, DecisionInput, DecisionRejection, advance_status, apply_decision, by_ledger};
use super::scope::identify_party;
use super::timers;
use crate::config::ApprovalsConfig;

/// Maximum number of tries of one change while other processes change the same approval.
const MAX_TRIES: u32 = 16;
/// Time that a finished approval stays in KV; `AUDIT` keeps it forever.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Error while storing an approval or notifying its session.
#[derive(Debug, thiserror::Error)]
pub enum KeepApprovalError {
    /// The bucket cannot be read or written, or a message cannot be published.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// Other processes keep changing the approval with this id.
    #[error("approval {0}: too many concurrent updates")]
    Contended(String),
}

impl From<PublishError> for KeepApprovalError {
    fn from(error: PublishError) -> Self {
        Self::Cas(CasError::Publish(error))
    }
}

impl From<ReadStreamError> for KeepApprovalError {
    fn from(error: ReadStreamError) -> Self {
        Self::Cas(CasError::Read(error))
    }
}

/// Result of applying a decision to an approval.
#[derive(Debug)]
pub enum DecisionOutcome {
    /// The approval now has this state.
    Stands {
        /// The approval after the decision.
        confirmation: Box<ConfirmationTerms>,
        /// Whether this decision changed it.
        changed: bool,
    },
    /// The decision does not count.
    Refused(DecisionRejection),
    /// There is no approval with this id.
    Unknown,
}

/// Store of approvals; see the module.
#[derive(Debug)]
pub struct ApprovalStore {
    bus: Bus,
    clock: SharedClock,
    values: Kv<ConfirmationTerms>,
    identities: RwLock<Arc<Identities>>,
    config: ApprovalsConfig,
    codes: ApprovalCodes,
    refusals: RefusalCounts,
}

/// Prefix of the keys of turns' approvals; all other keys are approvals of intents.
const ASKED: &str = "ask.";

/// Returns the key of a turn's approval `id`.
fn key(id: &str) -> String {
    format!("{ASKED}{id}")
}

/// Returns the decision that the session gets for `confirmation`.
#[must_use]
pub fn decision_of(confirmation: &ConfirmationTerms) -> ApprovalDecision {
    ApprovalDecision {
        id: confirmation.request.id.clone(),
        status: confirmation.status,
        decided_by: confirmation.decided_by.clone(),
        arguments: confirmation
            .trail
            .edited
            .as_ref()
            .map(|edited| edited.arguments.clone()),
        response: confirmation.response.clone(),
    }
}

/// Returns whether `status` is an end that sessions are not notified of: a turn causes it, no human and no timer.
#[must_use]
pub const fn ends_untold(status: ApprovalStatus) -> bool {
    match status {
        ApprovalStatus::Consumed | ApprovalStatus::Canceled | ApprovalStatus::Superseded => true,
        ApprovalStatus::Pending | ApprovalStatus::Approved | ApprovalStatus::Denied | ApprovalStatus::Expired => false,
    }
}

impl ApprovalStore {
    /// Creates a store on `bus`, for the persons of `identities`.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock, identities: Arc<Identities>, config: ApprovalsConfig) -> Self {
        Self {
            values: bus.kv(APPROVALS),
            bus: bus.clone(),
            clock,
            identities: RwLock::new(identities),
            config,
            codes: ApprovalCodes::default(),
            refusals: RefusalCounts::default(),
        }
    }

    /// Returns the persons and their accounts.
    #[must_use]
    pub fn identities(&self) -> Arc<Identities> {
        Arc::clone(&self.identities.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the persons and their accounts; earlier decisions remain.
    pub fn set_identities(&self, identities: Identities) {
        *self.identities.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(identities);
    }

    async fn read_entry(&self, id: &str) -> Result<Option<KvEntry<ConfirmationTerms>>, KeepApprovalError> {
        Ok(self.values.get(&key(id)).await?)
    }

    /// Reads the approval `id` from the leader.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if the bucket cannot be read.
    pub async fn get(&self, id: &str) -> Result<Option<ConfirmationTerms>, KeepApprovalError> {
        Ok(self.read_entry(id).await?.map(|entry| entry.value))
    }

    /// Reads all approvals in the bucket, those of intents included, newest first.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if the bucket cannot be read.
    pub async fn list_all(&self) -> Result<Vec<ConfirmationTerms>, KeepApprovalError> {
        let mut all: Vec<ConfirmationTerms> = self.values.entries().await?.into_iter().map(|(_, e)| e.value).collect();
        all.sort_by_key(|confirmation| std::cmp::Reverse(confirmation.requested_at));
        Ok(all)
    }

    /// Asks a question: sets its timers, stores it, and sends its cards. A question that was asked before keeps its
    /// state, and its cards go out under the same ids.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; asking again completes the missing steps.
    pub async fn request_approval(&self, wanted: &ConfirmationTerms) -> Result<ConfirmationTerms, KeepApprovalError> {
        let id = &wanted.request.id;
        let timer = |purpose| ApprovalTimer {
            approval: id.clone(),
            purpose,
        };

        // Timers first: a question without an expiry would wait for ever if this process died.
        timers::set(
            &self.bus,
            &timer(ApprovalTimerPurpose::Expire),
            wanted.request.expires_at,
        )
        .await?;

        if let Some(at) = wanted.request.asked_in.as_ref().and_then(|asked| asked.escalate_at) {
            timers::set(&self.bus, &timer(ApprovalTimerPurpose::Escalate), at).await?;
        }

        let asker = (Some(wanted.requested_by.as_str()), wanted.trail.via.as_deref());
        // After a restore, `AUDIT` may have records of the question that KV has lost: the count goes on from there.
        let newest = self.newest_record(id, 0).await?;
        let mut wanted = self.with_record(wanted.clone(), newest, "asked", asker);
        wanted.trail.code = Some(mint_code(SystemIds.ulid()));
        wanted.trail.cards = plan_cards(&wanted, CardReason::Asked, &self.identities(), &self.config);

        // The question's id is derived, so a second asker finds the first one's value.
        let standing = match self.values.create(&key(id), &wanted).await {
            Ok(_) => wanted.clone(),
            Err(CasError::Conflict { .. }) => match self.get(id).await? {
                Some(standing) => standing,
                None => return Err(KeepApprovalError::Contended(id.clone())),
            },
            Err(error) => return Err(error.into()),
        };

        // The record is part of the value, so any process can publish it.
        self.ensure_audited(&standing).await?;

        if standing.status == ApprovalStatus::Pending {
            self.send(&standing, CardReason::Asked).await?;
        }

        Ok(standing)
    }

    /// Writes `next` in place of `before`, whose record is in `AUDIT` then; `None` if another process wrote first.
    async fn change_entry(
        &self,
        before: &KvEntry<ConfirmationTerms>,
        next: ConfirmationTerms,
        what: &str,
        by_via: (Option<&str>, Option<&str>),
    ) -> Result<Option<ConfirmationTerms>, KeepApprovalError> {
        // The record of the state before must be in `AUDIT`, because the new value replaces it.
        let audited = self.ensure_audited(&before.value).await?;
        let newest = self.newest_record(&next.request.id, audited).await?;
        let next = self.with_record(next, newest, what, by_via);
        let written = self.write(&next, before.revision).await;

        match written {
            Ok(_) => {
                self.ensure_audited(&next).await?;
                metrics::counter!("nexus_broker_approvals_total", "status" => what.to_owned()).increment(1);
                Ok(Some(next))
            }
            Err(CasError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes `next` over `revision`. A state that the session's ledger has taken expires in time; before that it
    /// stays, even if the session's owner is away for long.
    async fn write(&self, next: &ConfirmationTerms, revision: u64) -> Result<u64, CasError> {
        let key = key(&next.request.id);
        let may_vanish = match next.status {
            ApprovalStatus::Pending | ApprovalStatus::Approved => false,
            ApprovalStatus::Denied | ApprovalStatus::Expired | ApprovalStatus::Consumed => next.trail.taken,
            // No call can run on these.
            ApprovalStatus::Canceled | ApprovalStatus::Superseded => true,
        };

        match may_vanish {
            true => self.values.update_ttl(&key, next, revision, KEPT).await,
            false => self.values.update(&key, next, revision).await,
        }
    }

    /// Applies the decision `word` of `by` to the approval `id`, and notifies the session if the approval is decided.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; repeating the decision completes the missing steps.
    pub async fn decide_approval(
        &self,
        id: &str,
        by: &ApprovalParty,
        word: &DecisionInput,
    ) -> Result<DecisionOutcome, KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(before) = self.read_entry(id).await? else {
                return Ok(DecisionOutcome::Unknown);
            };
            let value = &before.value;
            let Some(asked) = value.request.asked_in.as_deref() else {
                return Ok(DecisionOutcome::Unknown);
            };

            // Read for each attempt: a person who was removed meanwhile must not decide.
            let identities = self.identities();
            let who = identify_party(by, &identities);
            let said = apply_decision(value, asked, &who, word, &identities, self.clock.now());

            let next = match said {
                DecisionEffect::Changed(next) => *next,
                // The earlier attempt may have died before it woke the session.
                DecisionEffect::Unchanged => {
                    self.notify_session(value).await?;
                    return Ok(DecisionOutcome::Stands {
                        confirmation: Box::new(before.value),
                        changed: false,
                    });
                }
                // The expiry is a decision of its own: it is written first, and then the person is told.
                DecisionEffect::Lapsed => {
                    self.expire_if_due(id).await?;
                    continue;
                }
                DecisionEffect::Refused(refused) => {
                    self.record_refusal(value, &who.name, word, &refused).await?;
                    return Ok(DecisionOutcome::Refused(refused));
                }
            };

            let what = match next.status {
                ApprovalStatus::Pending => "voted",
                decided @ (ApprovalStatus::Approved
                | ApprovalStatus::Denied
                | ApprovalStatus::Expired
                | ApprovalStatus::Canceled
                | ApprovalStatus::Superseded
                | ApprovalStatus::Consumed) => decided.name(),
            };

            let by_via = (Some(who.name.as_str()), Some(word.via.as_str()));
            // Another decision was first: this one is judged again.
            let Some(next) = self.change_entry(&before, next, what, by_via).await? else {
                continue;
            };

            self.notify_session(&next).await?;
            return Ok(DecisionOutcome::Stands {
                confirmation: Box::new(next),
                changed: true,
            });
        }

        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Expires the approval `id` if its time is over, and notifies the session of its state.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; a repetition completes the missing steps.
    pub async fn expire_if_due(&self, id: &str) -> Result<Option<ConfirmationTerms>, KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(before) = self.read_entry(id).await? else {
                return Ok(None);
            };

            let now = self.clock.now();
            let lapses = before.value.status == ApprovalStatus::Pending && now >= before.value.request.expires_at;
            let next = lapses.then(|| advance_status(&before.value, ApprovalStatus::Expired, now));
            // Decided before, or too early: the session is told the status that holds.
            let Some(next) = next.flatten() else {
                self.notify_session(&before.value).await?;
                return Ok(Some(before.value));
            };

            let what = next.status.name();
            if let Some(next) = self.change_entry(&before, next, what, (None, None)).await? {
                self.notify_session(&next).await?;
                return Ok(Some(next));
            }
        }

        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Writes the status `to`, which the session's ledger has for `id` and which is final. An approval that was
    /// decided otherwise before stays.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; the ledger has the status in any case.
    pub async fn write_ledger_status(&self, id: &str, to: ApprovalStatus) -> Result<(), KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(before) = self.read_entry(id).await? else {
                return Ok(());
            };
            let taken = &before.value;
            // The ledger has the decision: the value may be deleted from now on.
            if taken.status == to && !taken.trail.taken {
                if self.take(&before).await? {
                    return Ok(());
                }
                continue;
            }

            let Some(next) = by_ledger(&before.value, to, self.clock.now()) else {
                self.ensure_audited(&before.value).await?;
                return Ok(());
            };
            // A process may have died after the decision; after this change no broker would send it any more.
            self.send_decision(&before.value).await?;
            self.send_decision(&next).await?;
            if self
                .change_entry(&before, next, to.name(), (None, None))
                .await?
                .is_some()
            {
                return Ok(());
            }
        }

        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Notifies the owner of the approval `id`, which was not decided for a long time.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; a repetition completes the missing steps.
    pub async fn escalate_approval(&self, id: &str) -> Result<(), KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(before) = self.read_entry(id).await? else {
                return Ok(());
            };
            if before.value.status != ApprovalStatus::Pending {
                return Ok(());
            }

            // Written, but perhaps not sent: the steps after the write are repeated.
            if before.value.trail.escalated_at.is_some() {
                self.ensure_audited(&before.value).await?;
                return self.send(&before.value, CardReason::Escalated).await;
            }

            let mut next = before.value.clone();
            next.trail.escalated_at = Some(self.clock.now());
            let planned = plan_cards(&next, CardReason::Escalated, &self.identities(), &self.config);
            next.trail.cards.extend(planned);

            if let Some(next) = self.change_entry(&before, next, "escalated", (None, None)).await? {
                return self.send(&next, CardReason::Escalated).await;
            }
        }

        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Writes the `AUDIT` record of `confirmation` if it is missing, and notifies the session of the state if it is
    /// decided and the approved call has not begun.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; the sweeper repeats the notice later.
    pub async fn notify_session(&self, confirmation: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        self.ensure_audited(confirmation).await?;
        let Some(asked) = confirmation.request.asked_in.as_deref() else {
            return Ok(());
        };

        if confirmation.status == ApprovalStatus::Pending || ends_untold(confirmation.status) {
            return Ok(());
        }

        // Before the session is woken: until it has taken the decision, the sweeper repeats both.
        self.send_decision(confirmation).await?;

        let decided = SessionDecision {
            target: asked.session.clone(),
            approval: confirmation.request.id.clone(),
            at: confirmation.decided_at.unwrap_or(confirmation.requested_at),
        };
        // One message for each state, so that a repetition is recognized.
        let id = format!("{}:{}", confirmation.request.id, confirmation.status.name());
        let out = OutgoingMessage::new(subject::dispatch(&asked.session), &decided).msg_id(id);
        self.bus.publish(out).await?;
        claim::publish(&self.bus, &asked.session, &TraceCarrier::default()).await?;

        Ok(())
    }
}
