//! The hook points of a turn, as its worker comes to them: what hooks say is staged for the ledger here.

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

/// Which steps' hooks have run under this owner.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// Those before the model call of this step.
    asked: u32,
    /// Those before the calls of this step's answer.
    batch: u32,
}

/// How the turn goes on behind a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hooked {
    /// As it would.
    On,
    /// It must not.
    Denied(String),
    /// The turn is cancelled, or its time over.
    Over,
}

impl Worker<'_> {
    /// The turn, to its hooks.
    pub(super) fn moment(&self, turn: &Turn, pendings: &[Pending]) -> Moment {
        let session = &self.claimed.session;
        let set = self.broker.hooks().of(session, turn.works_for());
        Moment::new(session, turn.id, self.owner.fold().epoch, set, pendings)
    }

    /// `moment` as far as the turn has come.
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

    /// What the hooks make of `call`; none where the turn is cancelled, or its time over.
    pub(super) async fn gate(&mut self, moment: &Moment, call: &ToolCall) -> Result<Option<Gated>, RunSessionError> {
        if !moment.set.has(Point::PreToolUse) {
            let arguments = call.arguments.clone();
            return Ok(Some(Gated::Run { arguments }));
        }

        // What is done outside over a call rests upon the answer that asks for it.
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

    /// What the model is to read of `call`, which ended as `outcome`; none where the turn is cancelled, or its time over.
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

    /// What hooks say before model call `step`. It is asked for once a step, however often the model has to be asked.
    pub(super) async fn before_model(
        &mut self,
        moment: &Moment,
        step: u32,
        paces: &mut Paces,
    ) -> Result<Hooked, RunSessionError> {
        if paces.asked == step {
            return Ok(Hooked::On);
        }

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

        let hooked = self.point(moment, Point::PreStream, Value::Null).await?;
        if hooked == Hooked::On {
            paces.asked = step;
        }

        Ok(hooked)
    }

    /// What hooks say before the first call of a batch.
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

    /// The end of a turn that goes no further behind a hook point.
    pub(super) fn ended_by(&mut self, hooked: Hooked) -> Ended {
        match hooked {
            Hooked::Denied(error) => Ended::Failed(TurnFailure::Agent { error }),
            Hooked::On | Hooked::Over if self.left().is_zero() => Self::over("wall_ms"),
            Hooked::On | Hooked::Over => self.cancelled_turn(String::new()),
        }
    }

    /// What the hooks of `point` say, where nothing is rewritten.
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

    /// What a model's answer is once hooks have seen it, with the `calls` that it asks for.
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

        match said.rewritten {
            Some(Value::String(text)) => *content = text,
            Some(other) => *content = other.to_string(),
            None => {}
        }

        Ok(Hooked::On)
    }

    /// What the hooks of `point` say, which is of no call; none where the turn is cancelled, or its time over.
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
