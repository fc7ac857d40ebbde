//! `nexus.svc.held.{list,decide}`: held messages, of which it is unknown whether they took effect.
//!
//! A decision is recorded in `AUDIT`, then stored in the bucket, and only then the message is published, under an id of its
//! own. If the process is killed in between, the same request does the rest.

use shared::bus::HoldError;
use shared::bus::{Bus, CasError, OutgoingMessage, PublishError, ReadStreamError, ServiceSpec, claim};
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::model::dispatch::Dispatch;
use shared::wire::envelope::{DecodeError, decode};
use shared::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, MSG_ID, TraceCarrier, WRITER};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil, held_key};
use shared::wire::operator::check_speaker;
use shared::wire::operator::held_messages::{
    DecideHeld, HeldDecided, HeldDecision, HeldList, HeldRecord, ListHeld, ListedHeld, MAX_LISTED_HELD,
};
use shared::wire::subject::held_audit;
use shared::wire::topology::streams::AUDIT;
use ulid::Ulid;

use super::Refusal;

/// Prefix of the id of a message that is published again.
const REDO: &str = "redo:";
/// Number of tries of a decision that others contend for.
const MAX_TRIES: u32 = 8;

/// The reason why a request about a held message fails.
#[derive(Debug, thiserror::Error)]
pub enum HeldError {
    /// Nothing with this id is held.
    #[error("nothing with id {0} is held (`nexus recover list`)")]
    Absent(Ulid),
    /// Another decision was made before.
    #[error("{id} was decided before: {decision}")]
    Decided {
        /// Id of the message.
        id: Ulid,
        /// The decision.
        decision: &'static str,
    },
    /// Its dispatch cannot be read.
    #[error("{id} cannot be read: {error}")]
    Unreadable {
        /// Id of the message.
        id: Ulid,
        /// Error of its payload.
        error: DecodeError,
    },
    /// Its payload is no base64.
    #[error("{0} has no payload")]
    Payload(Ulid),
    /// The name of the operator is not valid.
    #[error("{0}")]
    Speaker(String),
    /// Others decide at the same time.
    #[error("{0}: too many concurrent requests; ask again")]
    Contended(Ulid),
    /// The bucket or a stream cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The decision cannot be stored.
    #[error("failed to store the decision: {0}")]
    Write(CasError),
    /// The message or a record cannot be published; the decision stands.
    #[error("failed to publish: {0}; ask again")]
    Publish(#[from] PublishError),
    /// The dead letter beside the message cannot be deleted; the decision stands.
    #[error("failed to delete the dead letter: {0}; ask again")]
    Letter(#[from] HoldError),
}

/// Where held messages are decided.
#[derive(Debug, Clone)]
pub struct HeldDesk {
    bus: Bus,
    clock: SharedClock,
}

/// Returns the service over `desk`.
#[must_use]
pub fn service_spec(desk: &HeldDesk) -> ServiceSpec {
    let (listing, deciding) = (desk.clone(), desk.clone());
    ServiceSpec::new("held", "held messages: list, decide")
        .endpoint("list", move |question: ListHeld| {
            let desk = listing.clone();
            async move { desk.list(question).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("decide", move |request: DecideHeld| {
            let desk = deciding.clone();
            async move { desk.decide(&request).await.map_err(|error| refusal(&error)) }
        })
}

impl HeldDesk {
    /// Returns the desk over `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: &SharedClock) -> Self {
        Self {
            bus: bus.clone(),
            clock: clock.clone(),
        }
    }

    async fn list(&self, question: ListHeld) -> Result<HeldList, HeldError> {
        let survey = self.bus.held_bucket().survey().await?;
        let mut held: Vec<HeldMessage> = survey.entries.into_iter().map(|(_, entry)| entry.value).collect();
        held.retain(|one| question.all || one.wanted == HeldUntil::Decided);
        held.sort_by_key(|one| (one.at, one.sequence));
        Ok(HeldList {
            total: held.len(),
            held: held.into_iter().take(MAX_LISTED_HELD).map(ListedHeld::from).collect(),
            unreadable: survey.unread.into_iter().take(MAX_LISTED_HELD).collect(),
        })
    }

    /// Decides a held message, and publishes it if it is to be done again.
    ///
    /// # Errors
    /// Returns [`HeldError`]. After an error of the server the same request does the rest.
    pub async fn decide(&self, request: &DecideHeld) -> Result<HeldDecided, HeldError> {
        check_speaker(&request.by).map_err(HeldError::Speaker)?;
        for _ in 0..MAX_TRIES {
            let (held, revision) = self.find(request.id).await?;
            match held.wanted {
                HeldUntil::Decided if !self.record(&held, request).await? => continue,
                HeldUntil::Decided => {
                    let wanted = request.decision.wanted();
                    match self.bus.decide_held(&held, wanted, revision).await {
                        Ok(()) => {}
                        Err(CasError::Conflict { .. }) => continue,
                        Err(error) => return Err(HeldError::Write(error)),
                    }
                }
                wanted @ (HeldUntil::Redo | HeldUntil::Skip) => {
                    // The same decision again does the rest of it.
                    if wanted != request.decision.wanted() {
                        return Err(decided_before(request.id, wanted));
                    }
                }
            }

            if request.decision == HeldDecision::Redo {
                self.publish(&held).await?;
            }
            self.bus.take_held_letters(&held).await?;
            tracing::info!(id = %held.id, by = request.by, decision = request.decision.name(), "held message decided");
            return Ok(HeldDecided {
                id: held.id,
                kind: held.kind,
                decision: request.decision,
            });
        }

        Err(HeldError::Contended(request.id))
    }

    /// Returns the held message `id`, with its revision.
    async fn find(&self, id: Ulid) -> Result<(HeldMessage, u64), HeldError> {
        for kind in [HeldKind::Dispatch, HeldKind::Delivery] {
            if let Some(entry) = self.bus.held_bucket().get(&held_key(kind, id)).await? {
                return Ok((entry.value, entry.revision));
            }
        }
        Err(HeldError::Absent(id))
    }

    /// Records the decision, unless it is recorded. Returns whether it is: false if another request was first.
    async fn record(&self, held: &HeldMessage, request: &DecideHeld) -> Result<bool, HeldError> {
        let subject = held_audit(&held.key());
        let last = self.bus.last_on_subject(AUDIT, &subject).await?;
        let known = last.as_ref().and_then(|stored| stored.decode::<HeldRecord>().ok());
        if let Some(known) = known.filter(|known| known.held_since == held.at) {
            // A process was killed between the record and the bucket: the record decides.
            return match known.wanted == request.decision {
                true => Ok(true),
                false => Err(decided_before(held.id, known.wanted.wanted())),
            };
        }

        let record = HeldRecord {
            kind: held.kind,
            id: held.id,
            held_since: held.at,
            wanted: request.decision,
            by: request.by.clone(),
            at: self.clock.now(),
        };
        let last = last.map_or(0, |stored| stored.sequence);
        let out = OutgoingMessage::new(subject, &record).expect_last(last);
        match self.bus.publish(out).await {
            Ok(_) => Ok(true),
            Err(PublishError::WrongLastSequence { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes `held` again: a dispatch under an id that is derived from its own, so that its session treats it as a
    /// new one; a delivery unchanged, because the deliverer reads the stored decision.
    async fn publish(&self, held: &HeldMessage) -> Result<(), HeldError> {
        // These headers belong to the first publication: with them the server would drop or refuse the second.
        let of_the_first = [MSG_ID, EXPECTED_LAST_SUBJECT_SEQUENCE, WRITER];
        let kept = held
            .headers
            .iter()
            .filter(|(name, _)| !of_the_first.iter().any(|left_out| name.eq_ignore_ascii_case(left_out)));
        let headers: Headers = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let payload = held.payload_bytes().ok_or(HeldError::Payload(held.id))?;

        match held.kind {
            HeldKind::Delivery => {
                let out = OutgoingMessage::raw(held.subject.clone(), headers, payload.into()).repeated();
                self.bus.publish(out.msg_id(format!("{REDO}{}", held.id))).await?;
            }
            HeldKind::Dispatch => {
                let was: Dispatch =
                    decode(&headers, &payload).map_err(|error| HeldError::Unreadable { id: held.id, error })?;
                let id = HeldMessage::redone_id(was.id);
                let target = was.target.clone();
                let again = OutgoingMessage::new(held.subject.clone(), &Dispatch { id, ..was });
                self.bus.publish(again.msg_id(id.to_string())).await?;
                // Without a claim no broker would read the session's subject.
                claim::publish(&self.bus, &target, &TraceCarrier::default()).await?;
            }
        }

        Ok(())
    }
}

fn decided_before(id: Ulid, wanted: HeldUntil) -> HeldError {
    let decision = match wanted {
        HeldUntil::Decided => "held",
        HeldUntil::Redo => "redo",
        HeldUntil::Skip => "skip",
    };
    HeldError::Decided { id, decision }
}

/// Returns the status and the text of `error`.
fn refusal(error: &HeldError) -> Refusal {
    let status = match error {
        HeldError::Absent(_) => 404,
        HeldError::Speaker(_) => 400,
        HeldError::Decided { .. } | HeldError::Unreadable { .. } | HeldError::Payload(_) | HeldError::Contended(_) => {
            409
        }
        HeldError::Read(_) | HeldError::Write(_) | HeldError::Publish(_) | HeldError::Letter(_) => {
            tracing::warn!(error = describe_error(error), "request about a held message failed");
            503
        }
    };
    (status, error.to_string())
}
