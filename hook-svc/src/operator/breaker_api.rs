//! `nexus.svc.breaker.{list,reset}`: circuit breakers of hooks for operators, answered by any replica. The server
//! decides which users may ask.

use shared::breaker::{Breaker, key_of};
use shared::bus::{Bus, CasError, Kv, OutgoingMessage, PublishError, ReadStreamError, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};
use shared::error_chain::describe_error;
use shared::wire::operator::breakers::{BreakerList, BreakerRecord, ListBreakers, MAX_LISTED_BREAKERS, ResetBreaker};
use shared::wire::operator::check_speaker;
use shared::wire::subject::breaker_audit;
use shared::wire::topology::buckets::BREAKERS;
use shared::wire::topology::streams::AUDIT;

/// Number of tries of a reset that others contend for.
const MAX_TRIES: u32 = 8;

/// The reason why a request about breakers fails.
#[derive(Debug, thiserror::Error)]
enum BreakerError {
    /// The hook never failed, or is unknown.
    #[error("{0} has no recorded errors; see `nexus breaker list --all`")]
    Unknown(String),
    /// The breaker is closed.
    #[error("{0} is not paused")]
    NotPaused(String),
    /// Others reset it at the same time.
    #[error("{0}: too many concurrent requests; ask again")]
    Contended(String),
    /// The name of the operator is not valid.
    #[error("{0}")]
    Speaker(String),
    /// The bucket cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The breaker cannot be written.
    #[error(transparent)]
    Write(#[from] CasError),
    /// The record cannot be written.
    #[error("failed to write the record: {0}")]
    Record(#[from] PublishError),
}

/// Where the breakers are handled.
#[derive(Debug, Clone)]
struct BreakerDesk {
    bus: Bus,
    kv: Kv<Breaker>,
    clock: SharedClock,
    ids: SharedIds,
}

/// Returns the service over `bus`.
#[must_use]
pub(super) fn service_spec(bus: &Bus, clock: &SharedClock, ids: &SharedIds) -> ServiceSpec {
    let listing = BreakerDesk {
        kv: bus.kv(BREAKERS),
        bus: bus.clone(),
        clock: clock.clone(),
        ids: ids.clone(),
    };
    let resetting = listing.clone();
    ServiceSpec::new("breaker", "circuit breakers of hooks: list, reset")
        .endpoint("list", move |question: ListBreakers| {
            let desk = listing.clone();
            async move { desk.list(&question).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("reset", move |request: ResetBreaker| {
            let desk = resetting.clone();
            async move { desk.reset(&request).await.map_err(|error| refusal(&error)) }
        })
}

impl BreakerDesk {
    async fn list(&self, question: &ListBreakers) -> Result<BreakerList, BreakerError> {
        let survey = self.kv.survey().await?;
        let mut breakers: Vec<Breaker> = survey
            .entries
            .into_iter()
            .map(|(_, entry)| entry.value)
            .filter(|breaker| question.all || !breaker.is_at_rest())
            .filter(|breaker| question.after.as_ref().is_none_or(|after| breaker.hook_id > *after))
            .collect();
        breakers.sort_by(|a, b| a.hook_id.cmp(&b.hook_id));

        let more = breakers.len() > MAX_LISTED_BREAKERS;
        breakers.truncate(MAX_LISTED_BREAKERS);
        let unreadable = survey.unread.into_iter().take(MAX_LISTED_BREAKERS);
        Ok(BreakerList {
            breakers,
            more,
            unreadable: unreadable.map(|(key, error)| (key, error.to_string())).collect(),
        })
    }

    /// Closes a breaker, even if replicas write it at the same moment. Returns its former value. Every replica learns of
    /// the change at once.
    async fn reset(&self, request: &ResetBreaker) -> Result<Breaker, BreakerError> {
        check_speaker(&request.by).map_err(BreakerError::Speaker)?;
        let hook = &request.hook;
        for _ in 0..MAX_TRIES {
            // The record first: of two requests that read the same, one alone can write its record.
            let last = self.bus.last_on_subject(AUDIT, &breaker_audit(hook)).await?;
            let entry = self.kv.get(&key_of(hook)).await?;
            let breaker = entry.ok_or_else(|| BreakerError::Unknown(hook.clone()))?.value;
            if breaker.is_at_rest() {
                return Err(BreakerError::NotPaused(hook.clone()));
            }
            if !self
                .record(request, &breaker, last.map_or(0, |last| last.sequence))
                .await?
            {
                continue;
            }

            let former = self.kv.reset(hook).await?;
            let former = former.ok_or_else(|| BreakerError::NotPaused(hook.clone()))?;
            tracing::info!(
                hook_id = hook,
                by = request.by,
                failures = former.failures,
                "breaker reset by an operator"
            );
            return Ok(former);
        }

        Err(BreakerError::Contended(hook.clone()))
    }

    /// Records the reset behind the record at `last`. Returns whether it is: false if another request was first.
    async fn record(&self, request: &ResetBreaker, breaker: &Breaker, last: u64) -> Result<bool, BreakerError> {
        let record = BreakerRecord {
            hook_id: request.hook.clone(),
            operation: self.ids.ulid(),
            by: request.by.clone(),
            at: self.clock.now(),
            failures: breaker.failures,
        };
        let out = OutgoingMessage::new(breaker_audit(&request.hook), &record).expect_last(last);
        match self.bus.publish(out).await {
            Ok(_) => Ok(true),
            Err(PublishError::WrongLastSequence { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the status and the text of `error`.
fn refusal(error: &BreakerError) -> (usize, String) {
    let status = match error {
        BreakerError::Unknown(_) => 404,
        BreakerError::NotPaused(_) | BreakerError::Contended(_) => 409,
        BreakerError::Speaker(_) => 400,
        BreakerError::Read(_) | BreakerError::Write(_) | BreakerError::Record(_) => {
            tracing::warn!(error = describe_error(error), "request about a breaker failed");
            503
        }
    };
    (status, error.to_string())
}
