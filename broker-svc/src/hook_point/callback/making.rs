//! A call that an agent is about to make itself: its gates, and the humans whom they want asked.
//!
//! What becomes of a question is decided in KV alone, so any broker goes on where another died. The session's ledger is
//! told of it by a message, as of every decision; where that was lost, the agent's next question sends it again.

use serde_json::Value;
use shared::model::approval::{ApprovalStatus, Ask, Confirmation};
use shared::model::ledger::ToolCall;
use shared::model::session::SessionRef;

use super::{Answer, texts};
use crate::approval::desk::KeepApprovalError;
use crate::approval::machine::MAX_EDITED_BYTES;
use crate::approval::outside::{Known, Newest, Settled, as_written, id_of, known, settled};
use crate::approval::question::{Asking, MAX_ASKS, initiator};
use crate::broker::Broker;
use crate::hook_point::gate::{Gated, together};
use crate::hook_point::moment::Moment;
use crate::session::Pending;
use crate::turn::Turn;
use crate::turn::arguments::args_hash;
use crate::turn::journal::Running;

/// Questions about an agent's own calls that one turn may have asked.
const MAX_ASKED: usize = 64;
/// How often a call is judged anew because its question was changed meanwhile.
const MAX_ROUNDS: u32 = 8;

/// What a call that its gates let through runs with, how they want humans asked, and what they say to the model.
type Through = (Value, Option<Ask>, Vec<String>);

/// See the module.
pub(super) struct Making<'a> {
    pub(super) broker: &'a Broker,
    pub(super) session: &'a SessionRef,
    pub(super) running: &'a Running,
    pub(super) turn: &'a Turn,
    pub(super) pendings: &'a [Pending],
    pub(super) moment: Moment,
    pub(super) call: ToolCall,
    pub(super) attempt: Option<&'a str>,
}

impl Making<'_> {
    /// What the agent is told.
    ///
    /// # Errors
    /// [`KeepApprovalError`]; asking again does the rest.
    pub(super) async fn decided(&self) -> Result<Answer, KeepApprovalError> {
        for _ in 0..MAX_ROUNDS {
            let newest = self.newest().await?;
            let newest = newest.as_ref();
            let question = newest.map(|newest| &newest.question);
            match known(newest, &self.call, self.attempt) {
                Known::Open => {}
                Known::Denied(reason) => return Ok(Answer::Deny { reason }),
                Known::Waits => match self.waits(question).await? {
                    Some(answer) => return Ok(answer),
                    None => continue,
                },
                Known::Given(arguments) => match self.give(question).await? {
                    true => return Ok(allow(arguments, Vec::new())),
                    false => continue,
                },
            }

            let (arguments, ask, context) = match self.gate(newest).await? {
                Ok(gated) => gated,
                Err(reason) => return Ok(Answer::Deny { reason }),
            };
            match settled(newest, &arguments, ask) {
                Settled::Run => return Ok(allow(arguments, context)),
                Settled::Denied(reason) => return Ok(Answer::Deny { reason }),
                Settled::Use if self.give(question).await? => return Ok(allow(arguments, context)),
                // Somebody was faster.
                Settled::Use => {}
                Settled::Ask { ask, number } => {
                    if let Some(answer) = self.ask(question, number, arguments, &ask).await? {
                        return Ok(answer);
                    }
                }
            }
        }

        Err(KeepApprovalError::Contended(self.call.call.clone()))
    }

    fn id_of(&self, number: usize) -> String {
        id_of(self.running.began_at, self.running.turn, &self.call.call, number)
    }

    /// The newest question about the call.
    async fn newest(&self) -> Result<Option<Newest>, KeepApprovalError> {
        let written = args_hash(&self.call.arguments);
        let mut newest = None;
        for number in 0..MAX_ASKS {
            let Some(question) = self.broker.desk().get(&self.id_of(number)).await? else {
                break;
            };
            newest = Some(Newest::behind(newest, number, question, &written));
        }
        Ok(newest)
    }

    /// The agent goes on waiting; none where the time to decide is over.
    async fn waits(&self, question: Option<&Confirmation>) -> Result<Option<Answer>, KeepApprovalError> {
        let Some(question) = question else { return Ok(None) };
        if self.broker.clock.now() >= question.request.expires_at {
            self.broker.desk().lapse(&question.request.id).await?;
            return Ok(None);
        }

        if !self.running.has_asked(&question.request.id) {
            // Whoever asked may have died before anybody was told.
            self.broker.desk().ask(question).await?;
            self.broker.desk().announce(question).await?;
        }

        Ok(Some(asks(question)))
    }

    async fn give(&self, question: Option<&Confirmation>) -> Result<bool, KeepApprovalError> {
        match question {
            Some(question) => self.broker.desk().give(&question.request.id, self.attempt).await,
            None => Ok(false),
        }
    }

    /// What the gates make of the call's arguments, which an approver may have edited, and how they want humans asked; or
    /// why it must not run.
    async fn gate(&self, newest: Option<&Newest>) -> Result<Result<Through, String>, KeepApprovalError> {
        let approved = newest.filter(|newest| newest.question.status == ApprovalStatus::Approved);
        // Each time that the gates see the call, their records are others.
        let visit = newest.map_or(0, |newest| 2 * newest.number + 1) + usize::from(approved.is_some());
        let (moment, reminded) = (&self.moment, self.moment.reminded.clone());

        let moment = moment.at(
            moment.epoch,
            u32::try_from(visit).unwrap_or(0),
            moment.progress,
            reminded,
        );

        let edited = newest.and_then(|newest| newest.edited.clone());
        let call = ToolCall {
            arguments: edited.unwrap_or_else(|| self.call.arguments.clone()),
            ..self.call.clone()
        };

        let (gated, ran) = self.broker.hooks().gate(&moment, &call).await;
        let (arguments, asked) = match gated {
            Gated::Denied { error } => {
                if let Some(approved) = approved {
                    let desk = self.broker.desk();
                    desk.bring(&approved.question.request.id, ApprovalStatus::Cancelled)
                        .await?;
                }
                return Ok(Err(error));
            }
            Gated::Run { arguments } => (arguments, None),
            Gated::Ask { ask, arguments } => (arguments, Some(*ask)),
        };

        let personas = &self.broker.personas;
        let flagged = personas.confirmations(self.session, self.turn.works_for(), &call.name, &arguments);
        let ask = together(flagged.cloned().chain(asked));

        Ok(Ok((arguments, ask, texts(&ran))))
    }

    /// Asks humans, as the question `number` about the call; none where somebody has asked otherwise meanwhile.
    async fn ask(
        &self,
        before: Option<&Confirmation>,
        number: usize,
        arguments: Value,
        ask: &Ask,
    ) -> Result<Option<Answer>, KeepApprovalError> {
        let deny = |reason: String| Ok(Some(Answer::Deny { reason }));
        let bytes = arguments.to_string().len();
        if bytes > MAX_EDITED_BYTES {
            return deny(format!(
                "nobody is asked about {bytes} bytes of arguments, at most {MAX_EDITED_BYTES}"
            ));
        }

        if self.running.asked.len() >= MAX_ASKED {
            return deny(format!("humans were asked {MAX_ASKED} times in this turn"));
        }

        let desk = self.broker.desk();
        if let Some(before) = before {
            desk.bring(&before.request.id, ApprovalStatus::Superseded).await?;
        }

        let asking = Asking {
            session: self.session,
            turn: self.running.turn,
            initiator: initiator(self.pendings),
            origin: self.turn.origin(),
            now: self.broker.clock.now(),
        };

        let written = args_hash(&self.call.arguments);
        let call = ToolCall {
            arguments,
            ..self.call.clone()
        };

        let wanted = asking.question(self.id_of(number), call, ask, Some(written.clone()));
        let standing = desk.ask(&wanted).await?;
        if as_written(&standing) != Some(&written) || standing.status != ApprovalStatus::Pending {
            return Ok(None);
        }

        tracing::info!(
            session = %self.session, approval = standing.request.id, tool = standing.request.tool,
            "approval requested for an external tool call"
        );
        desk.announce(&standing).await?;

        Ok(Some(asks(&standing)))
    }
}

fn asks(question: &Confirmation) -> Answer {
    Answer::Ask {
        approval: question.request.id.clone(),
        policy: question.request.policy.clone(),
        expires_at: question.request.expires_at,
    }
}

const fn allow(arguments: Value, context: Vec<String>) -> Answer {
    Answer::Allow {
        tool_input: Some(arguments),
        tool_response: None,
        context,
    }
}
