//! Runs the hook points of a turn and stages what the hooks did for the ledger.

use serde_json::{Value, json};
use shared::model::ledger::{ToolCall, ToolOutcome, TurnFailure};

use super::Worker;
use super::turn::Ended;
use crate::agent::port::AskedCall;
use crate::error::RunSessionError;
use crate::hook_point::reminder::Progress;
use crate::hook_point::runs::Ran;
use crate::hook_point::{Gated, Moment, Point, Said};
use crate::session::Pending;
use crate::turn::Turn;

/// Steps whose hooks have run under this owner.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// Step whose hooks before the model call have run.
    asked: u32,
    /// Step whose hooks before the answer's calls have run.
    batch: u32,
}

/// Outcome of a hook point for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hooked {
    /// The turn goes on unchanged.
    On,
    /// The turn must not go on; the text is the error.
    Denied(String),
    /// The turn is canceled, or its time is over.
    Over,
}

impl Worker<'_> {
    /// Returns the description of the turn that its hooks get.
    pub(super) fn moment(&self, turn: &Turn, pendings: &[Pending]) -> Moment {
        let session = &self.claimed.session;
        let set = self.broker.hooks().of(session, turn.works_for());
        Moment::new(session, turn.id, self.owner.fold().epoch, set, pendings)
    }

    /// Returns `moment` with the progress of the turn so far.
    fn now(&mut self, moment: &Moment) -> Moment {
        let visit = self.turns.count_visit();
        let fold = self.owner.fold();
        let running = fold.running.as_ref();

        let progress = Progress {
            turn: running.map_or(0, |running| running.model_calls()),
            max: running.map_or(0, |running| running.limits.model_calls),
            failures: running.map_or(0, |running| running.failures()),
            reminded: false,
        };

        moment.at(fold.epoch, visit, progress, fold.reminded.clone())
    }

    pub(super) fn ran(&mut self, ran: Vec<Ran>) {
        for ran in ran {
            ran.entries().into_iter().for_each(|entry| self.owner.stage(entry));
        }
    }

    /// Returns the decision of the hooks on `call`; `None` if the turn is canceled or its time is over.
    pub(super) async fn gate(&mut self, moment: &Moment, call: &ToolCall) -> Result<Option<Gated>, RunSessionError> {
        if !moment.set.has(Point::PreToolUse) {
            let arguments = call.arguments.clone();
            return Ok(Some(Gated::Run { arguments }));
        }

        // Effects outside that hooks have over a call rest on the answer that asks for it: that answer must be in the
        // ledger.
        if moment.set.acts(Point::PreToolUse) {
            self.owner.own().await?;
        }

        let (hooks, now) = (self.broker.hooks().clone(), self.now(moment));
        let mut chain = Box::pin(tokio::time::timeout(self.left(), hooks.gate(&now, call)));
        let Some(Ok((gated, ran))) = self.beside(chain.as_mut()).await? else {
            return Ok(None);
        };

        self.ran(ran);
        Ok(Some(gated))
    }

    /// Returns the outcome of `call` for the model, which the hooks may change; `None` if the turn is canceled or its
    /// time is over.
    pub(super) async fn after_call(
        &mut self,
        moment: &Moment,
        call: &ToolCall,
        outcome: ToolOutcome,
    ) -> Result<Option<ToolOutcome>, RunSessionError> {
        if !moment.set.has(Point::PostToolUse) {
            return Ok(Some(outcome));
        }

        let (hooks, now) = (self.broker.hooks().clone(), self.now(moment));
        let mut seen = Box::pin(tokio::time::timeout(self.left(), hooks.after(&now, call, outcome)));
        let Some(Ok((outcome, ran))) = self.beside(seen.as_mut()).await? else {
            return Ok(None);
        };

        self.ran(ran);
        Ok(Some(outcome))
    }

    /// Runs the hooks before model call `step`, once for each step, even if the model has to be asked several times.
    pub(super) async fn before_model(
        &mut self,
        moment: &Moment,
        step: u32,
        paces: &mut Paces,
    ) -> Result<Hooked, RunSessionError> {
        if paces.asked == step {
            return Ok(Hooked::On);
        }

        // These points come once, before the turn's first model call.
        if step == 1 {
            if self.owner.fold().head.is_none()
                && self.point(moment, Point::PreSession, Value::Null).await? == Hooked::Over
            {
                return Ok(Hooked::Over);
            }

            for point in [Point::PreQueueDrain, Point::PostQueueDrain] {
                if self.point(moment, point, Value::Null).await? == Hooked::Over {
                    return Ok(Hooked::Over);
                }
            }
        } else if self.had_calls() && self.point(moment, Point::PostTool, Value::Null).await? == Hooked::Over {
            return Ok(Hooked::Over);
        }

        // Noted only if the hooks let the call pass, because a denied step is not asked.
        let hooked = self.point(moment, Point::PreStream, Value::Null).await?;
        if hooked == Hooked::On {
            paces.asked = step;
        }

        Ok(hooked)
    }

    /// Runs the hooks before the first call of a batch, once for each answer.
    pub(super) async fn before_batch(&mut self, moment: &Moment, paces: &mut Paces) -> Result<Hooked, RunSessionError> {
        let answered = self
            .owner
            .fold()
            .running
            .as_ref()
            .and_then(|running| running.answered());

        let Some((step, calls)) = answered.map(|(step, _, calls)| (step, json!(calls))) else {
            return Ok(Hooked::On);
        };
        if std::mem::replace(&mut paces.batch, step) == step {
            return Ok(Hooked::On);
        }

        self.point(moment, Point::PreTool, calls).await
    }

    fn had_calls(&self) -> bool {
        let running = self.owner.fold().running.as_ref();
        running
            .and_then(|running| running.answered())
            .is_some_and(|(_, _, calls)| !calls.is_empty())
    }

    /// Returns the end of a turn that a hook point stopped.
    pub(super) fn ended_by(&mut self, hooked: Hooked) -> Ended {
        match hooked {
            Hooked::Denied(error) => Ended::Failed(TurnFailure::Agent { error }),
            Hooked::On | Hooked::Over if self.left().is_zero() => Self::over("wall_ms"),
            Hooked::On | Hooked::Over => self.canceled_turn(String::new()),
        }
    }

    /// Runs the hooks of `point`, which rewrite nothing.
    pub(super) async fn point(
        &mut self,
        moment: &Moment,
        point: Point,
        told: Value,
    ) -> Result<Hooked, RunSessionError> {
        Ok(match self.hooks_at(moment, point, told).await? {
            None => Hooked::Over,
            Some(Said {
                denied: Some(error), ..
            }) => Hooked::Denied(error),
            Some(_) => Hooked::On,
        })
    }

    /// Runs the hooks after a model's answer with `content` and `calls`; they may rewrite `content`.
    pub(super) async fn after_model(
        &mut self,
        moment: &Moment,
        content: &mut String,
        calls: &[AskedCall],
    ) -> Result<Hooked, RunSessionError> {
        let told = Value::from(content.as_str());
        let moment = if calls.is_empty() {
            moment.clone()
        } else {
            let call = |call: &AskedCall| json!({"name": call.name, "arguments": call.arguments});
            moment.telling("tool_calls", calls.iter().map(call).collect())
        };

        let Some(said) = self.hooks_at(&moment, Point::PostStream, told).await? else {
            return Ok(Hooked::Over);
        };
        if let Some(error) = said.denied {
            return Ok(Hooked::Denied(error));
        }

        // An answer is text, so a hook's other JSON is kept as its text.
        match said.rewritten {
            Some(Value::String(text)) => *content = text,
            Some(other) => *content = other.to_string(),
            None => {}
        }

        Ok(Hooked::On)
    }

    /// Runs the hooks of `point`, which belongs to no call; `None` if the turn is canceled or its time is over.
    pub(super) async fn hooks_at(
        &mut self,
        moment: &Moment,
        point: Point,
        told: Value,
    ) -> Result<Option<Said>, RunSessionError> {
        if !moment.set.has(point) {
            return Ok(Some(Said::default()));
        }

        let (hooks, now) = (self.broker.hooks().clone(), self.now(moment));
        let mut asked = Box::pin(tokio::time::timeout(self.left(), hooks.at(&now, point, told)));
        let Some(Ok(mut said)) = self.beside(asked.as_mut()).await? else {
            return Ok(None);
        };

        self.ran(std::mem::take(&mut said.ran));
        Ok(Some(said))
    }
}
