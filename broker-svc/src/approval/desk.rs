//! Where approvals are kept, and from where they are told to their sessions.
//!
//! KV `approvals` decides a race by compare-and-set; the session's ledger decides whether an approved call has run. A
//! decision is stored, then audited, then published to the session with an id of its own, then claimed for: whoever
//! repeats it does all of it again, and so does the sweeper.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, CasError, Entry, Kv, Outgoing, PublishError, ReadStreamError, claim};
use shared::clock::SharedClock;
use shared::model::approval::{
    ApprovalDecision, ApprovalRecord, ApprovalStatus, ApprovalTimer, ApprovalTimerPurpose, Confirmation, Party,
    SessionDecision,
};
use shared::model::identity::Identities;
use shared::model::reply::Reply;
use shared::wire::headers::{CAUSATION, Carrier, HOPS, REPEATED};
use shared::wire::subject;
use shared::wire::topology::buckets::APPROVALS;

use super::card::{Why, cards, code};
use super::machine::{Outcome, Refused, Word, brought, say};
use super::scope::who;
use super::timers;
use crate::config::ApprovalsConfig;

/// Tries of one change while others change the same.
const MAX_TRIES: u32 = 16;
/// How long one that is over stays to be looked up; `AUDIT` keeps it for ever.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);

/// An approval could not be kept, or told.
#[derive(Debug, thiserror::Error)]
pub enum KeepApprovalError {
    /// The bucket cannot be read or written, or a message not be published.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// Others change it all the time.
    #[error("approval {0} is changed by others all the time")]
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

/// What came of somebody's word.
#[derive(Debug)]
pub enum Said {
    /// It stands so now; `changed` says whether by this word.
    Stands {
        /// How.
        confirmation: Box<Confirmation>,
        /// Whether the word changed it.
        changed: bool,
    },
    /// Nothing.
    Refused(Refused),
    /// There is no such approval.
    Unknown,
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    bus: Bus,
    clock: SharedClock,
    values: Kv<Confirmation>,
    identities: Arc<Identities>,
    config: ApprovalsConfig,
}

/// The key of the approval `id` of a turn.
fn key(id: &str) -> String {
    format!("ask.{}.{id}", code(id))
}

/// What the session is told of `confirmation`.
#[must_use]
pub fn decision_of(confirmation: &Confirmation) -> ApprovalDecision {
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

impl Desk {
    /// On `bus`, for the persons of `identities`.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock, identities: Arc<Identities>, config: ApprovalsConfig) -> Self {
        Self {
            values: bus.kv(APPROVALS),
            bus: bus.clone(),
            clock,
            identities,
            config,
        }
    }

    /// Who is who.
    #[must_use]
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    async fn entry(&self, id: &str) -> Result<Option<Entry<Confirmation>>, KeepApprovalError> {
        Ok(self.values.get(&key(id)).await?)
    }

    /// The approval `id`, from the leader.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where the bucket cannot be asked.
    pub async fn get(&self, id: &str) -> Result<Option<Confirmation>, KeepApprovalError> {
        Ok(self.entry(id).await?.map(|entry| entry.value))
    }

    /// The id of the newest approval that is named by the letters `code`.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where the bucket cannot be asked.
    pub async fn id_of(&self, code: &str) -> Result<Option<String>, KeepApprovalError> {
        let subject = format!("$KV.{APPROVALS}.ask.{}.*", subject::token(code));
        let stored = self.bus.last_on_subject(&format!("KV_{APPROVALS}"), &subject).await?;
        Ok(stored.and_then(|stored| stored.subject.rsplit('.').next().map(str::to_owned)))
    }

    /// Everything in the bucket, the intents' approvals among it, newest first.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where the bucket cannot be asked.
    pub async fn all(&self) -> Result<Vec<Confirmation>, KeepApprovalError> {
        let mut all: Vec<Confirmation> = self.values.entries().await?.into_iter().map(|(_, e)| e.value).collect();
        all.sort_by_key(|confirmation| std::cmp::Reverse(confirmation.requested_at));
        Ok(all)
    }

    /// Asks: timers, then the question, then its cards. Asked before, it stands as it stands, and the cards go out
    /// under the same ids.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; asking again does the rest.
    pub async fn ask(&self, wanted: &Confirmation) -> Result<Confirmation, KeepApprovalError> {
        let id = &wanted.request.id;
        let timer = |purpose| ApprovalTimer {
            approval: id.clone(),
            purpose,
        };
        timers::set(
            &self.bus,
            &timer(ApprovalTimerPurpose::Expire),
            wanted.request.expires_at,
        )
        .await?;
        if let Some(at) = wanted.request.asked_in.as_ref().and_then(|asked| asked.escalate_at) {
            timers::set(&self.bus, &timer(ApprovalTimerPurpose::Escalate), at).await?;
        }
        let standing = match self.values.create(&key(id), wanted).await {
            Ok(_) => wanted.clone(),
            Err(CasError::Conflict { .. }) => match self.get(id).await? {
                Some(standing) => standing,
                None => return Err(KeepApprovalError::Contended(id.clone())),
            },
            Err(error) => return Err(error.into()),
        };
        self.audit(
            &standing,
            "asked",
            Some(&standing.requested_by),
            standing.trail.via.as_deref(),
        )
        .await?;
        if standing.status == ApprovalStatus::Pending {
            self.send(&standing, Why::Asked).await?;
        }
        Ok(standing)
    }

    async fn send(&self, confirmation: &Confirmation, why: Why) -> Result<(), KeepApprovalError> {
        for card in cards(confirmation, why, &self.identities, &self.config) {
            self.answer(&card).await?;
        }
        Ok(())
    }

    /// Sends `reply`; sent before, it is delivered once.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where the server does not take it now.
    pub async fn answer(&self, reply: &Reply) -> Result<(), KeepApprovalError> {
        let out = Outgoing::new(subject::delivery(&reply.delivery_context), reply)
            .msg_id(reply.id.to_string())
            .header(CAUSATION, reply.causation.event.as_str())
            .header(HOPS, reply.causation.hops.to_string())
            .header(REPEATED, "1");
        match self.bus.publish(out).await {
            Ok(_) => Ok(()),
            // What no server takes keeps nobody from deciding by another way.
            Err(error @ (PublishError::TooLarge { .. } | PublishError::Rejected { .. })) => {
                tracing::warn!(reply = %reply.id, %error, "card is not sent");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes `next`; one that is over vanishes in time.
    async fn write(&self, id: &str, next: &Confirmation, revision: u64) -> Result<u64, CasError> {
        match next.status {
            ApprovalStatus::Pending | ApprovalStatus::Approved => self.values.update(&key(id), next, revision).await,
            ApprovalStatus::Rejected
            | ApprovalStatus::Expired
            | ApprovalStatus::Cancelled
            | ApprovalStatus::Superseded
            | ApprovalStatus::Consumed => self.values.update_ttl(&key(id), next, revision, KEPT).await,
        }
    }

    /// Takes the word of `by` on the approval `id`, and tells the session where it is decided.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; saying it again does the rest.
    pub async fn say(&self, id: &str, by: &Party, word: &Word) -> Result<Said, KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(Entry { value, revision }) = self.entry(id).await? else {
                return Ok(Said::Unknown);
            };
            let Some(asked) = value.request.asked_in.as_deref() else {
                return Ok(Said::Unknown);
            };
            let who = who(by, &self.identities);
            let said = say(&value, asked, &who, word, &self.identities, self.clock.now());
            let next = match said {
                Outcome::Changed(next) => *next,
                Outcome::Unchanged => {
                    self.tell(&value).await?;
                    return Ok(Said::Stands {
                        confirmation: Box::new(value),
                        changed: false,
                    });
                }
                Outcome::Lapsed => {
                    self.lapse(id).await?;
                    continue;
                }
                Outcome::Refused(refused) => {
                    self.refuse(&value, &who.name, word, &refused).await?;
                    return Ok(Said::Refused(refused));
                }
            };
            match self.write(id, &next, revision).await {
                Ok(_) => {}
                Err(CasError::Conflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
            let what = match next.status {
                ApprovalStatus::Pending => "voted",
                decided @ (ApprovalStatus::Approved
                | ApprovalStatus::Rejected
                | ApprovalStatus::Expired
                | ApprovalStatus::Cancelled
                | ApprovalStatus::Superseded
                | ApprovalStatus::Consumed) => decided.name(),
            };
            self.audit(&next, what, Some(&who.name), Some(&word.via)).await?;
            self.tell(&next).await?;
            metrics::counter!("nexus_broker_approvals_total", "status" => what).increment(1);
            return Ok(Said::Stands {
                confirmation: Box::new(next),
                changed: true,
            });
        }
        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Ends the waiting for `id` where its time is over, and tells the session how it stands.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; doing it again does the rest.
    pub async fn lapse(&self, id: &str) -> Result<Option<Confirmation>, KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(Entry { value, revision }) = self.entry(id).await? else {
                return Ok(None);
            };
            let now = self.clock.now();
            if value.status != ApprovalStatus::Pending || now < value.request.expires_at {
                self.tell(&value).await?;
                return Ok(Some(value));
            }
            let Some(next) = brought(&value, ApprovalStatus::Expired, now) else {
                return Ok(Some(value));
            };
            match self.write(id, &next, revision).await {
                Ok(_) => {}
                Err(CasError::Conflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
            metrics::counter!("nexus_broker_approvals_total", "status" => "expired").increment(1);
            self.audit(&next, next.status.name(), None, None).await?;
            self.tell(&next).await?;
            return Ok(Some(next));
        }
        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Writes what the session's ledger says became of `id`. What was written before stays.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; the ledger says it in any case.
    pub async fn bring(&self, id: &str, to: ApprovalStatus) -> Result<(), KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(Entry { value, revision }) = self.entry(id).await? else {
                return Ok(());
            };
            let Some(next) = brought(&value, to, self.clock.now()) else {
                return Ok(());
            };
            match self.write(id, &next, revision).await {
                Ok(_) => return self.audit(&next, to.name(), None, None).await,
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Tells the owner of `id`, which nobody has decided for long.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; doing it again does the rest.
    pub async fn escalate(&self, id: &str) -> Result<(), KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(Entry { mut value, revision }) = self.entry(id).await? else {
                return Ok(());
            };
            if value.status != ApprovalStatus::Pending {
                return Ok(());
            }
            if value.trail.escalated_at.is_none() {
                value.trail.escalated_at = Some(self.clock.now());
                match self.values.update(&key(id), &value, revision).await {
                    Ok(_) => {}
                    Err(CasError::Conflict { .. }) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            self.audit(&value, "escalated", None, None).await?;
            return self.send(&value, Why::Escalated).await;
        }
        Err(KeepApprovalError::Contended(id.to_owned()))
    }

    /// Tells the session how `confirmation` stands, where it is decided and the approved call has not begun.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; the sweeper tells it later.
    pub async fn tell(&self, confirmation: &Confirmation) -> Result<(), KeepApprovalError> {
        let Some(asked) = confirmation.request.asked_in.as_deref() else {
            return Ok(());
        };
        match confirmation.status {
            ApprovalStatus::Approved | ApprovalStatus::Rejected | ApprovalStatus::Expired => {}
            ApprovalStatus::Pending
            | ApprovalStatus::Consumed
            | ApprovalStatus::Cancelled
            | ApprovalStatus::Superseded => return Ok(()),
        }
        let decided = SessionDecision {
            target: asked.session.clone(),
            decision: decision_of(confirmation),
            at: confirmation.decided_at.unwrap_or(confirmation.requested_at),
        };
        let id = format!("{}:{}", confirmation.request.id, confirmation.status.name());
        let out = Outgoing::new(subject::dispatch(&asked.session), &decided).msg_id(id);
        self.bus.publish(out).await?;
        claim::publish(&self.bus, &asked.session, &Carrier::default()).await?;
        Ok(())
    }

    async fn refuse(
        &self,
        standing: &Confirmation,
        by: &str,
        word: &Word,
        why: &Refused,
    ) -> Result<(), KeepApprovalError> {
        tracing::info!(approval = standing.request.id, by, via = word.via, %why, "word on an approval is refused");
        let record = ApprovalRecord {
            response: Some(why.to_string()),
            at: self.clock.now(),
            ..record(standing, "refused", Some(by), Some(&word.via))
        };
        let out = Outgoing::new(subject::approval_audit(&standing.request.id), &record);
        self.bus.publish(out).await?;
        Ok(())
    }

    async fn audit(
        &self,
        confirmation: &Confirmation,
        what: &str,
        by: Option<&str>,
        via: Option<&str>,
    ) -> Result<(), KeepApprovalError> {
        let record = ApprovalRecord {
            at: self.clock.now(),
            ..record(confirmation, what, by, via)
        };
        let id = format!(
            "{}:{what}:{}:{}",
            record.approval,
            by.unwrap_or_default(),
            record.after_hash
        );
        let out = Outgoing::new(subject::approval_audit(&record.approval), &record).msg_id(id);
        self.bus.publish(out).await?;
        Ok(())
    }
}

fn record(confirmation: &Confirmation, what: &str, by: Option<&str>, via: Option<&str>) -> ApprovalRecord {
    let request = &confirmation.request;
    ApprovalRecord {
        approval: request.id.clone(),
        what: what.to_owned(),
        at: confirmation.requested_at,
        by: by.map(str::to_owned),
        via: via.map(str::to_owned),
        response: confirmation.response.clone(),
        before_hash: request.arguments_hash.clone(),
        after_hash: confirmation.standing_hash().to_owned(),
        session: request.asked_in.as_deref().map(|asked| asked.session.clone()),
        tool: request.tool.clone(),
    }
}
