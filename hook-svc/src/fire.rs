//! One fired hook's way: its turn in the conversation, its last fire if it is one, the dispatch, the claim.
//!
//! Each step may be repeated from the beginning after a crash at any line: the last fire is decided once and
//! answers the same afterwards, the dispatch has the same message id, a claim that is held already is held.

use shared::bus::{Bus, Outgoing, PublishError, claim};
use shared::model::dispatch::Dispatch;
use shared::model::event::{EventId, MAX_HOPS};
use shared::model::hook::{HookResult, StoredAnswer};
use shared::model::invocation::{HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::envelope::Wire;
use shared::wire::headers::{CAUSATION, Carrier, HOPS};
use shared::wire::subject;

use crate::answers::Answers;
use crate::dispatch::{Fire, Rules, build_dispatch};
use crate::error::HandleEventError;
use crate::invocation::{DECIDED_BEFORE, TOO_MANY_HOPS, billed, failure, invocation};
use crate::meters::Meters;
use crate::registry::{LastFire, Registry};
use crate::roster::Traits;
use crate::runner::Spent;
use crate::task::Task;

/// What a hook wants done.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Which hook.
    pub(crate) hook_id: String,
    /// Its evaluation time, microseconds.
    pub(crate) latency_us: u64,
    /// What is known of it.
    pub(crate) traits: Traits,
    /// What it answered: a fire, or to be disabled without one.
    pub(crate) result: Box<HookResult>,
    /// The fire was decided by an earlier delivery of this event.
    pub(crate) decided: bool,
    /// Asked again, the hook might answer otherwise.
    pub(crate) volatile: bool,
    /// What the hook's calls to the host have used.
    pub(crate) spent: Spent,
}

/// What performing wishes needs.
#[derive(Debug)]
pub(crate) struct Performer {
    pub(crate) bus: Bus,
    pub(crate) registry: Registry,
    pub(crate) answers: Answers,
    pub(crate) rules: Rules,
    pub(crate) meters: Meters,
}

impl Performer {
    /// Performs `wish` on behalf of `task`'s event, evaluated at `now`; answers what became of it.
    pub(crate) async fn perform(
        &self,
        task: &Task,
        wish: Wish,
        now: UnixMillis,
        carrier: &Carrier,
    ) -> Result<HookInvocation, HandleEventError> {
        let outcome = if wish.result.fire {
            task.place.clear(&wish.hook_id).await;
            self.fire(task, &wish, now, carrier).await?
        } else {
            self.registry
                .retire(&wish.hook_id)
                .await
                .map_err(|source| undecided(&wish, source))?;
            HookOutcome::Passed
        };
        task.place.done(&wish.hook_id);
        if let HookOutcome::Suppressed { reason } = &outcome {
            self.meters.suppressed.increment(1);
            tracing::info!(event_id = %task.event.id, hook_id = wish.hook_id, reason, "nothing comes of a fire");
        }
        Ok(billed(invocation(&wish.hook_id, wish.latency_us, outcome), wish.spent))
    }

    async fn fire(
        &self,
        task: &Task,
        wish: &Wish,
        now: UnixMillis,
        carrier: &Carrier,
    ) -> Result<HookOutcome, HandleEventError> {
        let event = &task.event;
        if event.hops >= MAX_HOPS {
            return Ok(HookOutcome::Suppressed {
                reason: TOO_MANY_HOPS.to_owned(),
            });
        }
        let last = (wish.traits.one_shot || wish.result.disable_hook) && !wish.decided;
        let result = if last {
            let decision = self
                .registry
                .last_fire(&wish.hook_id, &event.id, &wish.result, now)
                .await;
            match decision.map_err(|source| undecided(wish, source))? {
                LastFire::Won(result) => result,
                LastFire::Lost(reason) => {
                    return Ok(HookOutcome::Suppressed {
                        reason: reason.to_owned(),
                    });
                }
            }
        } else if wish.volatile && !wish.decided {
            match self.first_answer(&event.id, wish).await? {
                Some(result) => result,
                None => {
                    return Ok(HookOutcome::Suppressed {
                        reason: DECIDED_BEFORE.to_owned(),
                    });
                }
            }
        } else {
            wish.result.clone()
        };
        let dispatch = build_dispatch(
            Fire {
                event,
                event_seq: task.sequence,
                hook_id: &wish.hook_id,
                traits: wish.traits,
                result: &result,
                evaluated_at: now,
            },
            &self.rules,
        );
        if let Err(detail) = self.publish(&dispatch, carrier).await? {
            self.meters.failures.increment(1);
            tracing::warn!(event_id = %event.id, hook_id = wish.hook_id, detail, "hook's answer makes no dispatch");
            return Ok(failure(&detail, None));
        }
        if !last && !wish.decided {
            self.registry.fired(&wish.hook_id, now);
        }
        Ok(HookOutcome::Fired {
            dispatch: dispatch.id,
            result,
        })
    }

    /// The answer that counts of a hook that might answer otherwise another time; none where it passed then.
    async fn first_answer(&self, event: &EventId, wish: &Wish) -> Result<Option<Box<HookResult>>, HandleEventError> {
        let fired = StoredAnswer::Fired {
            hook_id: wish.hook_id.clone(),
            result: wish.result.clone(),
        };
        let kept = self
            .answers
            .keep(event, &[fired])
            .await
            .map_err(HandleEventError::Answers)?;
        let counts = kept.into_iter().find(|answer| answer.hook_id() == wish.hook_id);
        Ok(match counts {
            Some(StoredAnswer::Fired { result, .. }) => Some(result),
            Some(StoredAnswer::Passed { .. }) | None => None,
        })
    }

    /// Stores `dispatch`, then its session's claim. The inner error is the hook's own: its answer makes no
    /// dispatch that anybody could take.
    async fn publish(&self, dispatch: &Dispatch, carrier: &Carrier) -> Result<Result<(), String>, HandleEventError> {
        if let Err(detail) = dispatch.check() {
            return Ok(Err(detail));
        }
        let out = Outgoing::new(subject::dispatch(&dispatch.target), dispatch)
            .msg_id(dispatch.id.to_string())
            .header(HOPS, dispatch.causation.hops.to_string())
            .header(CAUSATION, dispatch.event_id.as_str())
            .carrier(carrier);
        match self.bus.publish(out).await {
            Ok(_) => {}
            Err(error @ PublishError::TooLarge { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error.into()),
        }
        self.meters.dispatches.increment(1);
        tracing::debug!(
            event_id = %dispatch.event_id, dispatch_id = %dispatch.id, session = %dispatch.target,
            hook_id = dispatch.hook_id, "dispatch is stored"
        );
        claim::publish(&self.bus, &dispatch.target, carrier).await?;
        Ok(Ok(()))
    }
}

fn undecided(wish: &Wish, source: shared::bus::CasError) -> HandleEventError {
    HandleEventError::LastFire {
        hook_id: wish.hook_id.clone(),
        source,
    }
}
