//! Executes the steps of a turn, the effects that [`super::stepped_turn`] arrives at.
//!
//! Each step is in the ledger before anything outside learns of it: the model's answer before its tools run,
//! `tool_started` before the tool, steering messages before the model is asked. Hooks run before and after the model,
//! before a batch of calls, and around each call; humans are asked if a call's gates require it.

use std::time::Duration;

use serde_json::Value;
use shared::model::ledger::{DispatchRef, LedgerEntry, ToolCall, ToolOutcome};
use shared::model::permission::{PermissionLevel, glob_matches, is_tool_permitted};
use shared::model::time::millis_of;
use tokio_util::sync::CancellationToken;

use super::Worker;
use super::ask::{UnansweredQuestions, duration_millis};
use super::hooks::PointVerdict;
use super::step::{CallConfirmation, StepInputs, StepOutcome};
use super::turn::TurnOutcome;
use crate::agent::context::steered_content;
use crate::agent::port::{AgentAnswer, AskAgentError, ModelAnswer, ModelCall, ModelQuestion, ToolInvocation};
use crate::approval::scope::identify_party;
use crate::error::RunSessionError;
use crate::hooks::HookPoint;
use crate::session::SteeringMessage;
use crate::turn::arguments::{args_hash, bounded_outcome};
use crate::turn::bounds::excess_of;
use crate::turn::steps::{INTERRUPTED, left_ms, reserve};
use crate::turn::{NextStep, bound_content};

/// Time that a tool has to stop by itself once its turn is canceled.
const STOP_GRACE: Duration = Duration::from_millis(50);

impl Worker<'_> {
    pub(super) fn stage_finished(&mut self, call: String, outcome: ToolOutcome) {
        let outcome = bounded_outcome(outcome);
        let unseen = false;
        self.owner
            .stage_entry(LedgerEntry::ToolFinished { call, outcome, unseen });
    }

    /// Stages how `call` ended. If hooks after the call have effects, they run in a step of their own, with the
    /// tool's outcome already in the ledger.
    pub(super) async fn end_call(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
        outcome: ToolOutcome,
    ) -> Result<StepOutcome, RunSessionError> {
        if !thinking.moment.set.has_side_effects(HookPoint::PostToolUse) {
            return self.observe_call(thinking, call, outcome).await;
        }
        self.stage_unseen(call, outcome);
        self.owner.commit_staged().await?;
        Ok(StepOutcome::On)
    }

    fn stage_unseen(&mut self, call: ToolCall, outcome: ToolOutcome) {
        self.owner.stage_entry(LedgerEntry::ToolFinished {
            call: call.call,
            outcome: bounded_outcome(outcome),
            unseen: true,
        });
    }

    /// Shows the outcome of `call` to the hooks after it; the model reads the outcome that they return.
    pub(super) async fn observe_call(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
        outcome: ToolOutcome,
    ) -> Result<StepOutcome, RunSessionError> {
        match self.after_call(&thinking.moment, &call, outcome).await? {
            Some(outcome) => {
                self.stage_finished(call.call, outcome);
                Ok(StepOutcome::On)
            }
            None => Ok(self.stopped_by(PointVerdict::Over)),
        }
    }

    /// Returns the time that the running turn has left; zero without one.
    pub(super) fn time_left(&self) -> Duration {
        let held_ms = self.claimed.hold.held_ms();
        let running = self.owner.fold().running.as_ref();
        Duration::from_millis(running.map_or(0, |running| left_ms(running, held_ms)))
    }

    /// Asks the model once, after the steering messages are put into the turn.
    pub(super) async fn ask_model(
        &mut self,
        thinking: &StepInputs<'_>,
        step: u32,
        patience: &mut UnansweredQuestions,
    ) -> Result<StepOutcome, RunSessionError> {
        if self.drain_steering(thinking).await? == PointVerdict::Over {
            return Ok(self.stopped_by(PointVerdict::Over));
        }

        if let Err(limit) = self.reserve_cost(thinking, step, patience) {
            return Ok(StepOutcome::Ended(Self::limit_reached(limit)));
        }

        // A model call costs money: the ledger must name this owner first, and the claim must hold.
        self.owner.ensure_owned().await?;
        self.owner.check_live()?;
        let left = self.time_left();
        let question = self.model_question(thinking, step, left);
        let asked = self.broker.clock.monotonic();
        let mut partial = String::new();
        let mut said = |text: &str| partial.push_str(text);
        let answer = tokio::time::timeout(left, thinking.stepper.ask_model(&question, &mut said));
        let outcome = self.wait_beside(std::pin::pin!(answer)).await?;
        let ModelCall { outcome, lost_usd } = match outcome {
            None => return Ok(StepOutcome::Ended(self.canceled_turn(partial))),
            Some(Err(_)) => return Ok(StepOutcome::Ended(Self::limit_reached("wall_ms"))),
            Some(Ok(call)) => call,
        };

        let error = match outcome {
            Ok(mut said) => {
                self.turns.note_answer();
                self.stage_lost(step, lost_usd);

                if let Some(failure) = excess_of(&said) {
                    return Ok(StepOutcome::Ended(TurnOutcome::Failed(failure)));
                }

                *patience = UnansweredQuestions::default();
                let hooked = self
                    .after_model(&thinking.moment, &mut said.content, &said.calls)
                    .await?;
                if hooked != PointVerdict::On {
                    // The answer was paid for, so its usage counts, but its text must not be read.
                    self.stage_answer(step, withhold_answer(said));
                    return Ok(self.stopped_by(hooked));
                }

                self.stage_answer(step, said);
                return Ok(StepOutcome::On);
            }
            Err(error) => error,
        };

        self.not_answered(thinking.turn, &error);
        patience.note_lost(lost_usd);
        self.ask_again(thinking, error, asked, patience).await
    }

    /// Stages the cost of the attempts that preceded the answer of model call `step`, if the turn has a limit in US
    /// dollars: the answer replaces the call's reservation with its own cost alone.
    fn stage_lost(&mut self, step: u32, lost_usd: Option<f64>) {
        let running = self.owner.fold().running.as_ref();
        let is_limited = running.is_some_and(|running| running.limits.cost_usd.is_some());
        if let Some(given_up_usd) = lost_usd.filter(|lost| is_limited && *lost > 0.0) {
            self.owner.stage_entry(LedgerEntry::CostReserved {
                step,
                cost_usd: 0.0,
                given_up_usd,
            });
        }
    }

    /// Stages the reservation of the highest expected cost of model call `step`, if the turn has a limit in US dollars.
    ///
    /// # Errors
    /// Returns the name of the limit if the cost exceeds the rest of it.
    fn reserve_cost(
        &mut self,
        thinking: &StepInputs<'_>,
        step: u32,
        patience: &mut UnansweredQuestions,
    ) -> Result<(), &'static str> {
        let running = self.owner.fold().running.as_ref();
        let Some(running) = running.filter(|running| running.limits.cost_usd.is_some()) else {
            return Ok(());
        };

        let question = self.model_question(thinking, step, Duration::ZERO);
        let cost_usd = thinking.stepper.price_usd(&question).unwrap_or(0.0);
        if let Some(entry) = reserve(running, step, cost_usd, patience.take_lost())? {
            self.owner.stage_entry(entry);
        }

        Ok(())
    }

    /// Stages the steering messages that wait for the next model call.
    async fn drain_steering(&mut self, thinking: &StepInputs<'_>) -> Result<PointVerdict, RunSessionError> {
        if !self.machine.is_steering() {
            return Ok(PointVerdict::On);
        }

        let mut hooked = self
            .run_point(&thinking.moment, HookPoint::PreQueueDrain, Value::Null)
            .await?;

        for SteeringMessage { mut pending, backlog } in self.machine.take_steering() {
            self.apply_edit(&mut pending);
            let dispatch = DispatchRef {
                content: steered_content(&pending),
                ..pending.dispatch_ref()
            };
            self.owner.stage_entry(LedgerEntry::Steered { dispatch, backlog });
        }

        if hooked == PointVerdict::On {
            hooked = self
                .run_point(&thinking.moment, HookPoint::PostQueueDrain, Value::Null)
                .await?;
        }

        Ok(hooked)
    }

    fn model_question(&self, thinking: &StepInputs<'_>, step: u32, left: Duration) -> ModelQuestion {
        let running = self.owner.fold().running.as_ref();
        let mut request = thinking.request.clone();
        request.deadline = self.broker.clock.now().plus(millis_of(left));
        let hiding = running.map(|running| running.hiding.as_slice()).unwrap_or_default();
        request
            .tools
            .retain(|tool| !hiding.iter().any(|pattern| glob_matches(pattern, &tool.name)));

        ModelQuestion {
            request,
            so_far: running.map(|running| running.conversation_lines()).unwrap_or_default(),
            step,
            left,
            origin: thinking.turn.origin(),
            quiet: thinking.moment.set.withholds_output(),
            absence: self.turns.absence().cloned(),
        }
    }

    pub(super) fn stopped_by(&mut self, hooked: PointVerdict) -> StepOutcome {
        StepOutcome::Ended(self.ended_by(hooked))
    }

    async fn ask_again(
        &mut self,
        thinking: &StepInputs<'_>,
        error: AskAgentError,
        asked: std::time::Instant,
        patience: &mut UnansweredQuestions,
    ) -> Result<StepOutcome, RunSessionError> {
        let ended = self.broker.clock.monotonic();
        let left_ms = duration_millis(self.time_left());

        let outcome: Result<AgentAnswer, AskAgentError> = Err(error);
        match patience.next_after(outcome, (asked, ended), left_ms, &thinking.persona.limits) {
            NextStep::Fail(failure) => Ok(StepOutcome::Ended(TurnOutcome::Failed(failure))),
            NextStep::Complete(_) => Ok(StepOutcome::On),
            NextStep::AskAgain => match self.wait_to_ask_again(patience).await? {
                true => Ok(StepOutcome::On),
                false => Ok(StepOutcome::Ended(self.canceled_turn(String::new()))),
            },
        }
    }

    /// Stages the model's answer; calls that must not run get their error as outcome.
    fn stage_answer(&mut self, step: u32, said: ModelAnswer) {
        // Numbered by us, so that ids are unique in the turn even if the model's provider repeats its own.
        let id = |index: usize| format!("{step}-{}", index + 1);
        let faults: Vec<(String, Option<String>)> = said
            .calls
            .iter()
            .enumerate()
            .map(|(index, call)| (id(index), call.fault.clone()))
            .collect();

        let calls = said.calls.into_iter().enumerate().map(|(index, call)| ToolCall {
            call: id(index),
            name: call.name,
            arguments: call.arguments,
        });
        self.owner.stage_entry(LedgerEntry::ModelAnswered {
            step,
            content: bound_content(said.content),
            tool_calls: calls.collect(),
            usage: said.usage,
            opaque: said.opaque,
            attachments: said.attachments,
            model: said.model,
        });

        for (call, fault) in faults {
            if let Some(error) = fault {
                self.stage_finished(call, ToolOutcome::Error { error });
            }
        }
    }

    /// Runs a call if the turn may make it; any other call gets the reason as its outcome.
    pub(super) async fn admit_call(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
    ) -> Result<StepOutcome, RunSessionError> {
        if let Some(error) = self.refusal_of(thinking, &call) {
            self.not_used(&call.call, "the call was not allowed in the end");
            self.stage_finished(call.call, ToolOutcome::Error { error });
            return Ok(StepOutcome::On);
        }

        let asked_for = call.arguments.clone();
        let call = match self.confirm_call(thinking, call).await? {
            CallConfirmation::Run(call) => call,
            CallConfirmation::Stepped(stepped) => return Ok(stepped),
        };

        // Arguments as the model asked for them are in its answer already, and the ledger needs no second copy.
        self.owner.stage_entry(LedgerEntry::ToolStarted {
            call: call.call.clone(),
            name: call.name.clone(),
            args_hash: args_hash(&call.arguments),
            arguments: (call.arguments != asked_for).then(|| call.arguments.clone()),
        });

        self.run(thinking, call).await
    }

    /// Returns whether the owner alone, with all of their permissions, wrote the messages that the turn answers.
    fn is_owners(&self, thinking: &StepInputs<'_>) -> bool {
        let identities = self.broker.desk().identities();
        let initiator = thinking.initiator.as_ref();
        let is_owner = initiator.is_some_and(|party| identify_party(party, &identities).is_owner());
        is_owner && thinking.turn.permissions.level == PermissionLevel::Full
    }

    fn refusal_of(&self, thinking: &StepInputs<'_>, call: &ToolCall) -> Option<String> {
        let known = thinking.offer(&call.name).is_some();
        let presets = &self.broker.personas.permission_levels;

        // Both cases get the same error, so that a model does not learn which tools exist.
        let hidden = self
            .owner
            .fold()
            .running
            .as_ref()
            .map(|running| running.hidden.as_slice());

        let hidden = hidden
            .unwrap_or_default()
            .iter()
            .any(|pattern| glob_matches(pattern, &call.name));
        let may = known && !hidden && is_tool_permitted(&call.name, &thinking.turn.permissions, presets);

        (!may).then(|| format!("there is no tool `{}` in this turn", call.name))
    }

    /// Handles a call that a former owner began: repeats it only if the tool is idempotent.
    pub(super) async fn recover_call(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
    ) -> Result<StepOutcome, RunSessionError> {
        let again = thinking.offer(&call.name).is_some_and(|offer| offer.idempotent)
            && self.refusal_of(thinking, &call).is_none();
        let running = self.owner.fold().running.as_ref();
        // A repeated call must have exactly the arguments that its beginning recorded.
        let begun_with = running.and_then(|running| running.begun_with(&call.call)).cloned();

        let call = self.begun_call(call);
        if again {
            let arguments = begun_with.unwrap_or(call.arguments);
            return self.run(thinking, ToolCall { arguments, ..call }).await;
        }

        let reason = INTERRUPTED.to_owned();
        let arguments = begun_with.unwrap_or(call.arguments);
        let outcome = ToolOutcome::Unknown { reason };

        self.end_call(thinking, ToolCall { arguments, ..call }, outcome).await
    }

    async fn run(&mut self, thinking: &StepInputs<'_>, call: ToolCall) -> Result<StepOutcome, RunSessionError> {
        self.owner.ensure_owned().await?;
        self.mark_approvals().await;

        // Appending and marking may have taken long: another broker may own the session by now and run the tool.
        self.owner.check_live()?;
        let cancel = CancellationToken::new();

        // The guard cancels the tool if this wait is dropped.
        let told = cancel.clone().drop_guard();
        let ran = call.clone();
        let left = self.time_left();

        let asked = ToolInvocation {
            session: self.claimed.session.clone(),
            turn: thinking.turn.id,
            epoch: self.owner.fold().epoch,
            call,
            permissions: thinking.turn.permissions.clone(),
            origin: thinking.turn.origin(),
            is_owners: self.is_owners(thinking),
            deadline: self.broker.clock.monotonic() + left,
            cancel: cancel.clone(),
        };

        let mut work = std::pin::pin!(tokio::time::timeout(left, thinking.stepper.call(asked)));
        let outcome = self.wait_beside(work.as_mut()).await?;
        let ended = match outcome {
            Some(Ok(outcome)) => {
                told.disarm();
                return self.end_call(thinking, ran, outcome).await;
            }
            Some(Err(_)) => Self::limit_reached("wall_ms"),
            None => self.canceled_turn(String::new()),
        };

        cancel.cancel();
        let outcome = match tokio::time::timeout(STOP_GRACE, work).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => ToolOutcome::Unknown {
                reason: INTERRUPTED.to_owned(),
            },
        };

        // The turn is over: its end must not wait for hooks.
        match thinking.moment.set.has_hooks(HookPoint::PostToolUse) {
            true => self.stage_unseen(ran, outcome),
            false => self.stage_finished(ran.call, outcome),
        }

        Ok(StepOutcome::Ended(ended))
    }
}

/// Returns the part of an answer that is kept if hooks do not let the answer pass.
fn withhold_answer(said: ModelAnswer) -> ModelAnswer {
    ModelAnswer {
        content: "[withheld]".to_owned(),
        usage: said.usage,
        model: said.model,
        ..ModelAnswer::default()
    }
}
