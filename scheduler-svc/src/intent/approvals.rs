//! A human's word on an intent, in KV `approvals`: asked for once, decided by compare-and-set, so that a decision racing
//! the expiry has one winner.
//!
//! An approver may decide before the intent is due: then the request is made decided, and found so at its time. Before
//! the request is stored, a timer for its expiry is: whoever crashes after a decision, the timer brings it to its end.
//! Source: `docs/design/sessions.md` §8; `docs/design/schedules.md` §3.5 (Approval requirement).

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shared::bus::{Bus, CasError, Entry, Kv, Outgoing, PublishError};
use shared::model::approval::{ApprovalRequest, ApprovalStatus, Confirmation, Trail};
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentStatus};
use shared::model::time::UnixMillis;
use shared::wire::topology::buckets::APPROVALS;

use super::card::approval_card;
use super::error::HandleIntentError;
use super::timers;

/// How long before an intent is due its approver is asked, milliseconds.
pub const ASK_AHEAD_MS: i64 = 15 * 60_000;
/// How long an approver has once it is due, or was asked behind that, milliseconds.
pub const EXPIRES_AFTER_MS: i64 = 15 * 60_000;
/// How long one that is over stays to be looked up, counted from when its intent is due.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Tries of one decision while others decide.
const MAX_TRIES: u32 = 16;

/// Where approvals are.
#[derive(Debug)]
pub struct IntentApprovals {
    bus: Bus,
    values: Kv<Confirmation>,
}

/// A decision.
#[derive(Debug, Clone, Copy)]
pub struct IntentDecision<'a> {
    /// Yes or no.
    pub approve: bool,
    /// Who says so.
    pub by: &'a str,
    /// What they say.
    pub response: Option<&'a str>,
}

/// The approval that `intent` needs where it stands. A new schedule needs a new one, and so does each occurrence.
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

fn new_request(intent: &Intent, now: UnixMillis) -> Confirmation {
    let record = &intent.intent;
    let expires_at = now.max(intent.due.unwrap_or(now)).plus(EXPIRES_AFTER_MS);
    let arguments = serde_json::json!({
        "kind": record.kind, "parameters": record.parameters, "schedule": record.schedule, "scope": record.scope,
    });

    Confirmation {
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
        trail: Trail::default(),
    }
}

fn retention(intent: &Intent, now: UnixMillis) -> Duration {
    let ahead = intent.due.map_or(0, |due| due.since(now));
    KEPT + Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
}

impl IntentApprovals {
    /// On `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            values: bus.kv(APPROVALS),
            bus: bus.clone(),
        }
    }

    /// Where the approval of `intent` stands; asked for where nobody has asked yet, and lapsed where its time is over.
    ///
    /// # Errors
    /// [`HandleIntentError`] where the bucket cannot be read or written.
    pub async fn ask_approval(&self, intent: &Intent, now: UnixMillis) -> Result<Confirmation, HandleIntentError> {
        let id = intent.intent.id;
        for _ in 0..MAX_TRIES {
            let Some(Entry { value, revision }) = self.values.get(&key(intent)).await? else {
                let asked = new_request(intent, now);
                let nominal = intent.due.unwrap_or(now);
                let timer = timers::new_timer(intent, TimerPurpose::Approval, nominal);
                timers::set_timer(&self.bus, &timer, asked.request.expires_at).await?;

                match self.values.create(&key(intent), &asked).await {
                    Ok(_) => {
                        self.send_card(intent, &asked).await?;
                        return Ok(asked);
                    }
                    Err(CasError::Conflict { .. }) => continue,
                    Err(error) => return Err(HandleIntentError::from_cas(id, error)),
                }
            };

            if value.status != ApprovalStatus::Pending {
                return Ok(value);
            }

            if now < value.request.expires_at {
                // Whoever asked may have been cut off before anybody was told.
                self.send_card(intent, &value).await?;
                return Ok(value);
            }

            let lapsed = Confirmation {
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

    /// Tells the conversation that asked; told before, it is delivered once.
    async fn send_card(&self, intent: &Intent, asked: &Confirmation) -> Result<(), HandleIntentError> {
        let Some(card) = approval_card(intent, asked)? else {
            return Ok(());
        };
        match self.bus.publish(Outgoing::reply(&card).repeated()).await {
            Ok(_) => Ok(()),
            // What no server takes keeps nobody from deciding.
            Err(error @ (PublishError::TooLarge { .. } | PublishError::Rejected { .. })) => {
                tracing::warn!(
                    intent = %intent.intent.id, delivery = %card.id, event_id = %card.causation.event,
                    session = %card.session, %error, "failed to send an approval card"
                );
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether somebody was asked for the approval of `intent`, or has decided it.
    ///
    /// # Errors
    /// [`HandleIntentError`] where the bucket cannot be read.
    pub async fn was_asked(&self, intent: &Intent) -> Result<bool, HandleIntentError> {
        Ok(self.values.get(&key(intent)).await?.is_some())
    }

    /// Decides the approval of `intent`; the same decision again is fine, another one is not.
    ///
    /// # Errors
    /// [`HandleIntentError::Decided`] where it was decided otherwise, or has lapsed.
    pub async fn decide_approval(
        &self,
        intent: &Intent,
        decision: IntentDecision<'_>,
        now: UnixMillis,
    ) -> Result<Confirmation, HandleIntentError> {
        let id = intent.intent.id;
        let wanted = if decision.approve {
            ApprovalStatus::Approved
        } else {
            ApprovalStatus::Denied
        };

        for _ in 0..MAX_TRIES {
            let (asked, revision) = match self.values.get(&key(intent)).await? {
                Some(entry) => (entry.value, entry.revision),
                None => (new_request(intent, now), 0),
            };
            if asked.status == wanted {
                return Ok(asked);
            }

            if asked.status != ApprovalStatus::Pending || now >= asked.request.expires_at {
                let by = asked.decided_by.as_deref().unwrap_or("nobody");
                return Err(HandleIntentError::Decided(format!(
                    "the approval was decided otherwise already, by {by}, or has lapsed"
                )));
            }

            let decided = Confirmation {
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
