//! Approvals of intents, in KV `approvals`: requested once, and decided by compare-and-set, so that a decision and the
//! expiry have one winner.
//!
//! An approver may decide before the intent is due: then the request is stored with the decision, and read at the
//! intent's time. A timer for the expiry is stored before the request, so that it finishes the work of a process that
//! died after a decision. Source: `docs/design/sessions.md` §8; `docs/design/schedules.md` §3.5 (Approval requirement).

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shared::bus::{Bus, CasError, Kv, KvEntry, OutgoingMessage, PublishError};
use shared::model::approval::{ApprovalRequest, ApprovalStatus, ApprovalTrail, ConfirmationTerms};
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentStatus};
use shared::model::time::UnixMillis;
use shared::wire::topology::buckets::APPROVALS;

use super::card::approval_card;
use super::error::HandleIntentError;
use super::timers;

/// Time before an intent is due at which its approver is asked, milliseconds.
pub const ASK_AHEAD_MS: i64 = 15 * 60_000;
/// Time that an approver has after the intent is due, or after a later request, milliseconds.
pub const EXPIRES_AFTER_MS: i64 = 15 * 60_000;
/// Time that a decided approval is kept after its intent is due.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Attempts at one decision while others decide.
const MAX_TRIES: u32 = 16;

/// Reads and writes the approvals of intents.
#[derive(Debug)]
pub struct IntentApprovals {
    bus: Bus,
    values: Kv<ConfirmationTerms>,
}

/// Decision of a person on an approval.
#[derive(Debug, Clone, Copy)]
pub struct IntentDecision<'a> {
    /// Whether the person approves the intent.
    pub approve: bool,
    /// Id of the person who decides.
    pub by: &'a str,
    /// Comment of the person, if they gave one.
    pub response: Option<&'a str>,
}

/// Returns the key of the approval that `intent` needs in its present state. Each schedule and each occurrence has an
/// approval of its own.
#[must_use]
pub fn key(intent: &Intent) -> String {
    let id = intent.intent.id;
    match (intent.status, intent.due) {
        (IntentStatus::Proposed, _) => format!("intent.{id}.admission"),
        (_, Some(due)) => format!("intent.{id}.{due}"),
        (_, None) => format!("intent.{id}.condition-{}", intent.lineage.len()),
    }
}

fn hash(arguments: &Value) -> String {
    Sha256::digest(arguments.to_string().as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn new_request(intent: &Intent, now: UnixMillis) -> ConfirmationTerms {
    let record = &intent.intent;
    // Counted from the due time, so that an early request does not expire before the intent is due.
    let expires_at = now.max(intent.due.unwrap_or(now)).plus(EXPIRES_AFTER_MS);
    let arguments = serde_json::json!({
        "kind": record.kind, "parameters": record.parameters, "schedule": record.schedule, "scope": record.scope,
    });

    ConfirmationTerms {
        request: ApprovalRequest {
            id: key(intent),
            call: record.id.to_string(),
            tool: format!("intent:{}", record.kind),
            arguments_hash: hash(&arguments),
            arguments,
            policy: "intents".to_owned(),
            approvers: vec!["owner".to_owned()],
            expires_at,
            asked_in: None,
        },
        status: ApprovalStatus::Pending,
        requested_by: format!("agent:{}", record.agent),
        requested_at: now,
        decided_at: None,
        decided_by: None,
        response: None,
        trail: ApprovalTrail::default(),
    }
}

fn retention(intent: &Intent, now: UnixMillis) -> Duration {
    let ahead = intent.due.map_or(0, |due| due.since(now));
    KEPT + Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
}

impl IntentApprovals {
    /// Creates a store on `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            values: bus.kv(APPROVALS),
            bus: bus.clone(),
        }
    }

    /// Returns the approval of `intent`. Requests it if it does not exist, and marks it expired if its time is over.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket cannot be read or written.
    pub async fn ask_approval(&self, intent: &Intent, now: UnixMillis) -> Result<ConfirmationTerms, HandleIntentError> {
        let id = intent.intent.id;
        for _ in 0..MAX_TRIES {
            let Some(KvEntry { value, revision }) = self.values.get(&key(intent)).await? else {
                let asked = new_request(intent, now);
                // The timer is stored before the request, so that no request can be without an expiry.
                let nominal = intent.due.unwrap_or(now);
                let timer = timers::new_timer(intent, TimerPurpose::Approval, nominal);
                timers::set_timer(&self.bus, &timer, asked.request.expires_at).await?;

                match self.values.create(&key(intent), &asked).await {
                    Ok(_) => {
                        self.send_card(intent, &asked).await?;
                        return Ok(asked);
                    }
                    // Another replica has stored the request: it is read in the next round.
                    Err(CasError::Conflict { .. }) => continue,
                    Err(error) => return Err(HandleIntentError::from_cas(id, error)),
                }
            };

            if value.status != ApprovalStatus::Pending {
                return Ok(value);
            }

            if now < value.request.expires_at {
                // The process that stored the request may have died before it sent the card.
                self.send_card(intent, &value).await?;
                return Ok(value);
            }

            // The compare-and-set decides between the expiry and a decision at the same moment.
            let lapsed = ConfirmationTerms {
                status: ApprovalStatus::Expired,
                decided_at: Some(now),
                ..value
            };
            let kept = retention(intent, now);
            match self.values.update_ttl(&key(intent), &lapsed, revision, kept).await {
                Ok(_) => return Ok(lapsed),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(HandleIntentError::from_cas(id, error)),
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    /// Sends the card to the conversation that requested the intent. A repeated card is delivered once.
    async fn send_card(&self, intent: &Intent, asked: &ConfirmationTerms) -> Result<(), HandleIntentError> {
        let Some(card) = approval_card(intent, asked)? else {
            return Ok(());
        };

        match self.bus.publish(OutgoingMessage::reply(&card).repeated()).await {
            Ok(_) => Ok(()),
            // An approver can decide without a card, so a card that the server never accepts must not block the intent.
            Err(error @ (PublishError::TooLarge { .. } | PublishError::Rejected { .. })) => {
                tracing::warn!(
                    intent = %intent.intent.id, delivery_id = %card.id, event_id = %card.causation.event,
                    session = %card.session, %error, "failed to send an approval card"
                );
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether an approval of `intent` was requested or decided.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket cannot be read.
    pub async fn was_asked(&self, intent: &Intent) -> Result<bool, HandleIntentError> {
        Ok(self.values.get(&key(intent)).await?.is_some())
    }

    /// Decides the approval of `intent`. Repeating the same decision succeeds.
    ///
    /// # Errors
    /// Returns [`HandleIntentError::Decided`] if the approval was decided differently or has expired.
    pub async fn decide_approval(
        &self,
        intent: &Intent,
        decision: IntentDecision<'_>,
        now: UnixMillis,
    ) -> Result<ConfirmationTerms, HandleIntentError> {
        let id = intent.intent.id;
        let wanted = if decision.approve {
            ApprovalStatus::Approved
        } else {
            ApprovalStatus::Denied
        };

        for _ in 0..MAX_TRIES {
            // An approver may decide before the request exists: then it is stored with the decision.
            let (asked, revision) = match self.values.get(&key(intent)).await? {
                Some(entry) => (entry.value, entry.revision),
                None => (new_request(intent, now), 0),
            };
            if asked.status == wanted {
                return Ok(asked);
            }

            if asked.status != ApprovalStatus::Pending || now >= asked.request.expires_at {
                return Err(HandleIntentError::Decided(match &asked.decided_by {
                    Some(by) => format!("the approval is already {} by {by}", asked.status.name()),
                    None => "the approval has expired".to_owned(),
                }));
            }

            let decided = ConfirmationTerms {
                status: wanted,
                decided_at: Some(now),
                decided_by: Some(decision.by.to_owned()),
                response: decision.response.map(ToOwned::to_owned),
                ..asked
            };

            let kept = retention(intent, now);
            match self.values.update_ttl(&key(intent), &decided, revision, kept).await {
                Ok(_) => return Ok(decided),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(HandleIntentError::from_cas(id, error)),
            }
        }

        Err(HandleIntentError::Conflict(id))
    }
}
