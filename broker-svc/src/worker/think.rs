//! Runs the turn of an agent that thinks in steps: executes what its machine ([`crate::turn::steps`]) wants next,
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
use super::ask::Patience;
use super::hooks::{Hooked, Paces};
use super::step::{Stepped, Thinking};
use super::turn::Ended;
use crate::agent::port::{Offer, Stepper};
use crate::approval::question::initiator;
use crate::context::{Setting, assemble};
use crate::error::RunSessionError;
use crate::personas::Persona;
use crate::session::Pending;
use crate::turn::Turn;
use crate::turn::steps::{Situation, Step, next};

/// Wait before a turn checks again whether a missing tool is back.
const TOOLS_AGAIN: Duration = Duration::from_secs(1);

/// Progress of a turn under one owner.
#[derive(Default)]
struct Pace {
    patience: Patience,
    paces: Paces,
}

impl Worker<'_> {
    /// Runs `turn` from the state of its journal to its end.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner or must be handed back.
    pub(super) async fn think(
        &mut self,
        turn: &Turn,
        pendings: &[Pending],
        persona: &Persona,
        stepper: &dyn Stepper,
    ) -> Result<Ended, RunSessionError> {
        let mut pace = Pace::default();
        loop {
            // The offers may change between attempts, when a server of tools comes back.
            let asked = self.claimed.session.persona.clone();
            let tools = tokio::time::timeout(self.left(), stepper.tools(&asked));
            let Some(Ok(offers)) = self.beside(std::pin::pin!(tools)).await? else {
                return Ok(self.ended_by(Hooked::Over));
            };

            let request = self.request(turn, pendings, persona, &offers);
            let thinking = Thinking {
                turn,
                persona,
                stepper,
                offers,
                request,
                initiator: initiator(pendings),
                moment: self.moment(turn, pendings),
            };

            if let Some(ended) = Box::pin(self.steps(&thinking, &mut pace)).await? {
                return Ok(ended);
            }

            // The check above sees whether the turn was canceled meanwhile.
            self.beside(std::pin::pin!(pause(TOOLS_AGAIN))).await?;
        }
    }

    /// Returns the request for the model.
    fn request(&self, turn: &Turn, pendings: &[Pending], persona: &Persona, offers: &[Offer]) -> AgentRequest {
        let tools: Vec<ToolDescription> = offers.iter().map(|offer| offer.description.clone()).collect();
        let setting = Setting {
            persona,
            tools: &tools,
            presets: &self.broker.personas.permission_levels,
        };

        // The time is the same each time the turn is resumed, so that its model calls share one beginning.
        let began = self.owner.fold().running.as_ref().map(|running| running.began_at);
        let began = began.unwrap_or_else(|| self.broker.clock.now());

        assemble(setting, &self.claimed.session, self.owner.fold(), turn, pendings, began)
    }

    /// Executes steps until the turn is over; returns `None` if the turn waits for a tool whose server is away.
    async fn steps(&mut self, thinking: &Thinking<'_>, pace: &mut Pace) -> Result<Option<Ended>, RunSessionError> {
        let Pace { patience, paces } = pace;
        loop {
            self.look_up().await?;

            if self.canceled.is_some() {
                return Ok(Some(self.canceled_turn(String::new())));
            }

            let situation = Situation {
                held_ms: self.claimed.hold.held_ms(),
                steering: self.machine.is_steering(),
            };
            let running = self.owner.fold().running.as_ref();
            let Some(step) = running.map(|running| next(running, situation)) else {
                return Ok(Some(Self::over("journal")));
            };

            let stepped = match step {
                Step::Ask { step } => match self.before_model(&thinking.moment, step, paces).await? {
                    Hooked::On => self.ask_model(thinking, step, patience).await?,
                    hooked @ (Hooked::Denied(_) | Hooked::Over) => self.stopped(hooked),
                },
                Step::Run { call } if self.waits_for(thinking, &call, false) => return Ok(None),
                Step::Run { call } => match self.before_batch(&thinking.moment, paces).await? {
                    Hooked::On => self.admit(thinking, call).await?,
                    hooked @ (Hooked::Denied(_) | Hooked::Over) => self.stopped(hooked),
                },
                Step::Recover { call } if self.waits_for(thinking, &call, true) => return Ok(None),
                Step::Recover { call } => self.recover(thinking, call).await?,
                Step::Observe { call, outcome } => self.observe(thinking, call, outcome).await?,
                Step::Skip { call, outcome } => {
                    self.not_used(&call.call, "a newer message came first");
                    self.finished(call.call, outcome);
                    Stepped::On
                }
                Step::Finish { content, attachments } => Stepped::Ended(Ended::Settled { content, attachments }),
                Step::Fail { limit } => Stepped::Ended(Self::over(limit)),
            };

            if let Stepped::Ended(ended) = stepped {
                return Ok(Some(ended));
            }
        }
    }

    /// Returns whether the turn must wait for the tool of `call`, whose server is away: the call was approved by a
    /// human, or it was `begun` and may be begun again. Any other call is answered at once.
    fn waits_for(&self, thinking: &Thinking<'_>, call: &ToolCall, begun: bool) -> bool {
        if thinking.offer(&call.name).is_some() || self.left().is_zero() {
            return false;
        }

        let running = self.owner.fold().running.as_ref();
        let asked = running.and_then(|running| running.last_asked(&call.call));
        let is_approved = asked.is_some_and(|asked| asked.status == ApprovalStatus::Approved);
        if !begun && !is_approved {
            return false;
        }

        let away = thinking.stepper.away(&self.claimed.session.persona, &call.name);
        away.is_some_and(|away| !begun || away.idempotent)
    }
}
