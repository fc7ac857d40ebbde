//! Runs the turn of an agent that thinks in steps: executes the steps that its machine ([`crate::turn::steps`]) wants,
//! until the turn is over.
//!
//! The model's request is assembled once for each owner. If a call that must run needs a tool whose server is away,
//! the request is assembled again once the tool is back.

use std::time::Duration;

use shared::clock::pause;
use shared::model::approval::ApprovalStatus;
use shared::model::ledger::ToolCall;
use shared::wire::agent::{AgentRequest, ToolDescription};

use super::Worker;
use super::ask::UnansweredQuestions;
use super::hooks::{HookedSteps, PointVerdict};
use super::step::{StepInputs, StepOutcome};
use super::turn::TurnOutcome;
use crate::agent::context::{ContextSettings, assemble_request};
use crate::agent::personas::Persona;
use crate::agent::port::{OfferedTool, StepAgent};
use crate::approval::question::find_initiator;
use crate::error::RunSessionError;
use crate::session::PendingDispatch;
use crate::turn::Turn;
use crate::turn::steps::{StepContext, TurnStep, next};

/// Wait before a turn checks again whether a missing tool is back.
const TOOLS_AGAIN: Duration = Duration::from_secs(1);

/// Progress of a turn under one owner.
#[derive(Default)]
struct Pace {
    patience: UnansweredQuestions,
    paces: HookedSteps,
}

impl Worker<'_> {
    /// Runs `turn` from the state of its journal to its end.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner or must be handed back.
    pub(super) async fn run_stepped_turn(
        &mut self,
        turn: &Turn,
        pendings: &[PendingDispatch],
        persona: &Persona,
        stepper: &dyn StepAgent,
    ) -> Result<TurnOutcome, RunSessionError> {
        let mut pace = Pace::default();
        loop {
            // The offers may change between attempts, when a server of tools comes back.
            let asked = self.claimed.session.persona.clone();
            let tools = tokio::time::timeout(self.time_left(), stepper.offered_tools(&asked));
            let Some(Ok(offers)) = self.wait_beside(std::pin::pin!(tools)).await? else {
                return Ok(self.ended_by(PointVerdict::Over));
            };

            let request = self.model_request(turn, pendings, persona, &offers);
            let thinking = StepInputs {
                turn,
                persona,
                stepper,
                offers,
                request,
                initiator: find_initiator(pendings),
                moment: self.hooked_turn(turn, pendings),
            };

            if let Some(ended) = Box::pin(self.take_steps(&thinking, &mut pace)).await? {
                return Ok(ended);
            }

            // The check above sees whether the turn was canceled meanwhile.
            self.wait_beside(std::pin::pin!(pause(TOOLS_AGAIN))).await?;
        }
    }

    /// Returns the request for the model.
    fn model_request(
        &self,
        turn: &Turn,
        pendings: &[PendingDispatch],
        persona: &Persona,
        offers: &[OfferedTool],
    ) -> AgentRequest {
        let tools: Vec<ToolDescription> = offers.iter().map(|offer| offer.description.clone()).collect();
        let setting = ContextSettings {
            persona,
            tools: &tools,
            presets: &self.broker.personas.permission_levels,
        };

        // The time is the same each time the turn is resumed, so that its model calls share one beginning.
        let began = self.owner.fold().running.as_ref().map(|running| running.began_at);
        let began = began.unwrap_or_else(|| self.broker.clock.now());

        assemble_request(setting, &self.claimed.session, self.owner.fold(), turn, pendings, began)
    }

    /// Executes steps until the turn is over; returns `None` if the turn waits for a tool whose server is away.
    async fn take_steps(
        &mut self,
        thinking: &StepInputs<'_>,
        pace: &mut Pace,
    ) -> Result<Option<TurnOutcome>, RunSessionError> {
        let Pace { patience, paces } = pace;
        loop {
            self.look_up().await?;

            if self.canceled.is_some() {
                return Ok(Some(self.canceled_turn(String::new())));
            }

            let situation = StepContext {
                held_ms: self.claimed.hold.held_ms(),
                steering: self.machine.is_steering(),
            };
            let running = self.owner.fold().running.as_ref();
            let Some(step) = running.map(|running| next(running, situation)) else {
                return Ok(Some(Self::limit_reached("journal")));
            };

            let stepped = match step {
                TurnStep::Ask { step } => match self.before_model(&thinking.moment, step, paces).await? {
                    PointVerdict::On => self.ask_model(thinking, step, patience).await?,
                    hooked @ (PointVerdict::Denied(_) | PointVerdict::Over) => self.stopped_by(hooked),
                },
                TurnStep::Run { call } if self.waits_for(thinking, &call, false) => return Ok(None),
                TurnStep::Run { call } => match self.before_batch(&thinking.moment, paces).await? {
                    PointVerdict::On => self.admit_call(thinking, call).await?,
                    hooked @ (PointVerdict::Denied(_) | PointVerdict::Over) => self.stopped_by(hooked),
                },
                TurnStep::Recover { call } if self.waits_for(thinking, &call, true) => return Ok(None),
                TurnStep::Recover { call } => self.recover_call(thinking, call).await?,
                TurnStep::Observe { call, outcome } => self.observe_call(thinking, call, outcome).await?,
                TurnStep::Skip { call, outcome } => {
                    self.not_used(&call.call, "a newer message came first");
                    self.stage_finished(call.call, outcome);
                    StepOutcome::On
                }
                TurnStep::Finish { content, attachments } => {
                    StepOutcome::Ended(TurnOutcome::Settled { content, attachments })
                }
                TurnStep::Fail { limit } => StepOutcome::Ended(Self::limit_reached(limit)),
            };

            if let StepOutcome::Ended(ended) = stepped {
                return Ok(Some(ended));
            }
        }
    }

    /// Returns whether the turn must wait for the tool of `call`, whose server is away: the call was approved by a
    /// human, or it was `begun` and may be begun again. Any other call is answered at once.
    fn waits_for(&self, thinking: &StepInputs<'_>, call: &ToolCall, begun: bool) -> bool {
        if thinking.offer(&call.name).is_some() || self.time_left().is_zero() {
            return false;
        }

        let running = self.owner.fold().running.as_ref();
        let asked = running.and_then(|running| running.last_asked(&call.call));
        let is_approved = asked.is_some_and(|asked| asked.status == ApprovalStatus::Approved);
        if !begun && !is_approved {
            return false;
        }

        let away = thinking
            .stepper
            .unreachable_tool(&self.claimed.session.persona, &call.name);
        away.is_some_and(|away| !begun || away.idempotent)
    }
}
