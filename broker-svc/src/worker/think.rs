//! A turn of an agent that thinks in steps: what its machine ([`crate::turn::steps`]) wants next, until it is over.
//!
//! What a turn is asked with is assembled once for an owner; where a call that is to run needs a tool whose server is
//! away, it is assembled again once that is there.

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

/// How long a turn waits before it looks again whether a tool is there.
const TOOLS_AGAIN: Duration = Duration::from_secs(1);

/// What a turn has come to in the hands of one owner.
#[derive(Default)]
struct Pace {
    patience: Patience,
    paces: Paces,
}

impl Worker<'_> {
    /// Takes `turn` from where its journal stands to its end.
    ///
    /// # Errors
    /// [`RunSessionError`] where the session is not ours any more or has to be handed back.
    pub(super) async fn think(
        &mut self,
        turn: &Turn,
        pendings: &[Pending],
        persona: &Persona,
        stepper: &dyn Stepper,
    ) -> Result<Ended, RunSessionError> {
        let mut pace = Pace::default();
        loop {
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

            // Whether it was cancelled meanwhile is seen above.
            self.beside(std::pin::pin!(pause(TOOLS_AGAIN))).await?;
        }
    }

    /// What the model is asked with.
    fn request(&self, turn: &Turn, pendings: &[Pending], persona: &Persona, offers: &[Offer]) -> AgentRequest {
        let tools: Vec<ToolDescription> = offers.iter().map(|offer| offer.description.clone()).collect();
        let setting = Setting {
            persona,
            tools: &tools,
            presets: &self.broker.personas.permission_levels,
        };

        // The same whenever the turn is taken up, so that its model calls share one beginning.
        let began = self.owner.fold().running.as_ref().map(|running| running.began_at);
        let began = began.unwrap_or_else(|| self.broker.clock.now());

        assemble(setting, &self.claimed.session, self.owner.fold(), turn, pendings, began)
    }

    /// Goes on with the turn until it is over; none where it waits for a tool whose server is away.
    async fn steps(&mut self, thinking: &Thinking<'_>, pace: &mut Pace) -> Result<Option<Ended>, RunSessionError> {
        let Pace { patience, paces } = pace;
        loop {
            self.look_up().await?;

            if self.cancelled.is_some() {
                return Ok(Some(self.cancelled_turn(String::new())));
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

    /// Whether `call` is to run, or to run again, and its tool is only not there because its server is away: a human has
    /// approved it, or it was `begun` and may be begun again. Any other is answered at once.
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
