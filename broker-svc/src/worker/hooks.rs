//! Runs the hook points of a turn and stages the hooks' outcomes for the ledger.

use serde_json::{Value, json};
use shared::model::ledger::{ToolCall, ToolOutcome, TurnFailure};

use super::Worker;
use super::turn::TurnOutcome;
use crate::agent::port::AskedCall;
use crate::error::RunSessionError;
use crate::hooks::reminder::ReminderProgress;
use crate::hooks::runs::TurnHookRun;
use crate::hooks::{GateDecision, HookPoint, HookedTurn, PointOutcome};
use crate::session::PendingDispatch;
use crate::turn::Turn;

/// Steps whose hooks have run under this owner.
#[derive(Debug, Default)]
pub(super) struct HookedSteps {
    /// Step whose hooks before the model call have run.
    asked: u32,
    /// Step whose hooks before the answer's calls have run.
    batch: u32,
}

/// Outcome of a hook point for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PointVerdict {
    /// The turn goes on unchanged.
    On,
    /// The turn must not go on; the text is the error.
    Denied(String),
    /// The turn is canceled, or its time is over.
    Over,
}

impl Worker<'_> {
    /// Returns the description of the turn that its hooks get.
    pub(super) fn hooked_turn(&self, turn: &Turn, pendings: &[PendingDispatch]) -> HookedTurn {
        let session = &self.claimed.session;
        let set = self.broker.hooks().hooks_of(session, turn.works_for());
        HookedTurn::new(session, turn.id, self.owner.fold().epoch, set, pendings)
    }

    /// Returns `moment` with the progress of the turn so far.
    fn now(&mut self, moment: &HookedTurn) -> HookedTurn {
        let visit = self.turns.count_visit();
        let fold = self.owner.fold();
        let running = fold.running.as_ref();

        let progress = ReminderProgress {
            turn: running.map_or(0, |running| running.model_calls()),
            max: running.map_or(0, |running| running.limits.model_calls),
            failures: running.map_or(0, |running| running.failures_in_row()),
            reminded: false,
        };

        moment.at(fold.epoch, visit, progress, fold.reminded.clone())
    }

    pub(super) fn stage_runs(&mut self, ran: Vec<TurnHookRun>) {
        for ran in ran {
            ran.entries()
                .into_iter()
                .for_each(|entry| self.owner.stage_entry(entry));
        }
    }

    /// Returns the decision of the hooks on `call`; `None` if the turn is canceled or its time is over.
    pub(super) async fn gate_call(
        &mut self,
        moment: &HookedTurn,
        call: &ToolCall,
    ) -> Result<Option<GateDecision>, RunSessionError> {
        if !moment.set.has_hooks(HookPoint::PreToolUse) {
            let arguments = call.arguments.clone();
            return Ok(Some(GateDecision::Run { arguments }));
        }

        // Effects outside that hooks have over a call rest on the answer that asks for it: that answer must be in the
        // ledger.
        if moment.set.has_side_effects(HookPoint::PreToolUse) {
            self.owner.ensure_owned().await?;
        }

        let (hooks, now) = (self.broker.hooks().clone(), self.now(moment));
        let mut chain = Box::pin(tokio::time::timeout(self.time_left(), hooks.run_gate(&now, call)));
        let Some(Ok((gated, ran))) = self.wait_beside(chain.as_mut()).await? else {
            return Ok(None);
        };

        self.stage_runs(ran);
        Ok(Some(gated))
    }

    /// Returns the outcome of `call` for the model, which the hooks may change; `None` if the turn is canceled or its
    /// time is over.
    pub(super) async fn after_call(
        &mut self,
        moment: &HookedTurn,
        call: &ToolCall,
        outcome: ToolOutcome,
    ) -> Result<Option<ToolOutcome>, RunSessionError> {
        if !moment.set.has_hooks(HookPoint::PostToolUse) {
            return Ok(Some(outcome));
        }

        let (hooks, now) = (self.broker.hooks().clone(), self.now(moment));
        let mut seen = Box::pin(tokio::time::timeout(
            self.time_left(),
            hooks.run_after_call(&now, call, outcome),
        ));
        let Some(Ok((outcome, ran))) = self.wait_beside(seen.as_mut()).await? else {
            return Ok(None);
        };

        self.stage_runs(ran);
        Ok(Some(outcome))
    }

    /// Runs the hooks before model call `step`, once for each step, even if the model has to be asked several times.
    pub(super) async fn before_model(
        &mut self,
        moment: &HookedTurn,
        step: u32,
        paces: &mut HookedSteps,
    ) -> Result<PointVerdict, RunSessionError> {
        if paces.asked == step {
            return Ok(PointVerdict::On);
        }

        // These points come once, before the turn's first model call.
        if step == 1 {
            if self.owner.fold().head.is_none()
                && self.run_point(moment, HookPoint::PreSession, Value::Null).await? == PointVerdict::Over
            {
                return Ok(PointVerdict::Over);
            }

            for point in [HookPoint::PreQueueDrain, HookPoint::PostQueueDrain] {
                if self.run_point(moment, point, Value::Null).await? == PointVerdict::Over {
                    return Ok(PointVerdict::Over);
                }
            }
        } else if self.had_calls()
            && self.run_point(moment, HookPoint::PostTool, Value::Null).await? == PointVerdict::Over
        {
            return Ok(PointVerdict::Over);
        }

        // Noted only if the hooks let the call pass, because a denied step is not asked.
        let hooked = self.run_point(moment, HookPoint::PreStream, Value::Null).await?;
        if hooked == PointVerdict::On {
            paces.asked = step;
        }

        Ok(hooked)
    }

    /// Runs the hooks before the first call of a batch, once for each answer.
    pub(super) async fn before_batch(
        &mut self,
        moment: &HookedTurn,
        paces: &mut HookedSteps,
    ) -> Result<PointVerdict, RunSessionError> {
        let answered = self
            .owner
            .fold()
            .running
            .as_ref()
            .and_then(|running| running.last_answer());

        let Some((step, calls)) = answered.map(|(step, _, calls)| (step, json!(calls))) else {
            return Ok(PointVerdict::On);
        };
        if std::mem::replace(&mut paces.batch, step) == step {
            return Ok(PointVerdict::On);
        }

        self.run_point(moment, HookPoint::PreTool, calls).await
    }

    fn had_calls(&self) -> bool {
        let running = self.owner.fold().running.as_ref();
        running
            .and_then(|running| running.last_answer())
            .is_some_and(|(_, _, calls)| !calls.is_empty())
    }

    /// Returns the end of a turn that a hook point stopped.
    pub(super) fn ended_by(&mut self, hooked: PointVerdict) -> TurnOutcome {
        match hooked {
            PointVerdict::Denied(error) => TurnOutcome::Failed(TurnFailure::Agent { error }),
            PointVerdict::On | PointVerdict::Over if self.time_left().is_zero() => Self::limit_reached("wall_ms"),
            PointVerdict::On | PointVerdict::Over => self.canceled_turn(String::new()),
        }
    }

    /// Runs the hooks of `point`, which rewrite nothing.
    pub(super) async fn run_point(
        &mut self,
        moment: &HookedTurn,
        point: HookPoint,
        told: Value,
    ) -> Result<PointVerdict, RunSessionError> {
        Ok(match self.hooks_at(moment, point, told).await? {
            None => PointVerdict::Over,
            Some(PointOutcome {
                denied: Some(error), ..
            }) => PointVerdict::Denied(error),
            Some(_) => PointVerdict::On,
        })
    }

    /// Runs the hooks after a model's answer with `content` and `calls`; they may rewrite `content`.
    pub(super) async fn after_model(
        &mut self,
        moment: &HookedTurn,
        content: &mut String,
        calls: &[AskedCall],
    ) -> Result<PointVerdict, RunSessionError> {
        let told = Value::from(content.as_str());
        let moment = if calls.is_empty() {
            moment.clone()
        } else {
            let call = |call: &AskedCall| json!({"name": call.name, "arguments": call.arguments});
            moment.with_metadata("tool_calls", calls.iter().map(call).collect())
        };

        let Some(said) = self.hooks_at(&moment, HookPoint::PostStream, told).await? else {
            return Ok(PointVerdict::Over);
        };
        if let Some(error) = said.denied {
            return Ok(PointVerdict::Denied(error));
        }

        // An answer is text, so a hook's other JSON is kept as its text.
        match said.rewritten {
            Some(Value::String(text)) => *content = text,
            Some(other) => *content = other.to_string(),
            None => {}
        }

        Ok(PointVerdict::On)
    }

    /// Runs the hooks of `point`, which belongs to no call; `None` if the turn is canceled or its time is over.
    pub(super) async fn hooks_at(
        &mut self,
        moment: &HookedTurn,
        point: HookPoint,
        told: Value,
    ) -> Result<Option<PointOutcome>, RunSessionError> {
        if !moment.set.has_hooks(point) {
            return Ok(Some(PointOutcome::default()));
        }

        let (hooks, now) = (self.broker.hooks().clone(), self.now(moment));
        let mut asked = Box::pin(tokio::time::timeout(self.time_left(), hooks.at(&now, point, told)));
        let Some(Ok(mut said)) = self.wait_beside(asked.as_mut()).await? else {
            return Ok(None);
        };

        self.stage_runs(std::mem::take(&mut said.ran));
        Ok(Some(said))
    }
}
