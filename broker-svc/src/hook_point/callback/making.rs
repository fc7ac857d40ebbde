//! A call that an agent is about to make itself: its gates, and the humans that they ask.
//!
//! The state of a question is decided in KV alone, so any broker continues if another died. The session's ledger gets
//! a message about the question, as about every decision; if that was lost, the agent's next request sends it again.

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

/// Maximum number of questions about an agent's own calls in one turn.
const MAX_ASKED: usize = 64;
/// Maximum number of times a call is judged because its question changed meanwhile.
const MAX_ROUNDS: u32 = 8;

/// A call that its gates let through: its arguments, how humans must be asked, and the texts for the model.
type Through = (Value, Option<Ask>, Vec<String>);

/// The check of one call of an agent; see the module.
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
    /// Returns the decision for the agent.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; asking again completes the missing steps.
    pub(super) async fn decided(&self) -> Result<Answer, KeepApprovalError> {
        for _ in 0..MAX_ROUNDS {
            // Read in each round, because another broker or the approver may have changed it.
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

            // The gates run again for each decision: an approver may have edited the arguments.
            let (arguments, ask, context) = match self.gate(newest).await? {
                Ok(gated) => gated,
                Err(reason) => return Ok(Answer::Deny { reason }),
            };
            match settled(newest, &arguments, ask) {
                Settled::Run => return Ok(allow(arguments, context)),
                Settled::Denied(reason) => return Ok(Answer::Deny { reason }),
                Settled::Use if self.give(question).await? => return Ok(allow(arguments, context)),
                // Another process changed the question first: judge again.
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

    /// Returns the newest question about the call.
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

    /// Returns the answer that makes the agent wait; `None` if the time to decide is over.
    async fn waits(&self, question: Option<&Confirmation>) -> Result<Option<Answer>, KeepApprovalError> {
        let Some(question) = question else { return Ok(None) };
        if self.broker.clock.now() >= question.request.expires_at {
            self.broker.desk().lapse(&question.request.id).await?;
            return Ok(None);
        }

        if !self.running.has_asked(&question.request.id) {
            // The broker that asked may have died before it sent any notice.
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

    /// Runs the gates on the call's arguments, which an approver may have edited. Returns what they let through, or
    /// why the call must not run.
    async fn gate(&self, newest: Option<&Newest>) -> Result<Result<Through, String>, KeepApprovalError> {
        let approved = newest.filter(|newest| newest.question.status == ApprovalStatus::Approved);
        // Each time that the gates see the call, their records must have other ids.
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
            // The gates refuse what was approved: the approval must not be usable for anything else.
            Gated::Denied { error } => {
                if let Some(approved) = approved {
                    let desk = self.broker.desk();
                    desk.bring(&approved.question.request.id, ApprovalStatus::Canceled)
                        .await?;
                }
                return Ok(Err(error));
            }
            Gated::Run { arguments } => (arguments, None),
            Gated::Ask { ask, arguments } => (arguments, Some(*ask)),
        };

        // The operator's rules and the hooks' demands are joined to one question.
        let personas = &self.broker.personas;
        let flagged = personas.confirmations(self.session, self.turn.works_for(), &call.name, &arguments);
        let ask = together(flagged.cloned().chain(asked));

        Ok(Ok((arguments, ask, texts(&ran))))
    }

    /// Asks humans, as the question `number` about the call; `None` if another process has asked something else
    /// meanwhile.
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
                "the arguments have {bytes} bytes; an approval allows at most {MAX_EDITED_BYTES}"
            ));
        }

        if self.running.asked.len() >= MAX_ASKED {
            return deny(format!("this turn has requested {MAX_ASKED} approvals already"));
        }

        let desk = self.broker.desk();
        // The earlier question is about other arguments: an answer to it must not count any more.
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

        // The hash of the agent's own arguments is kept, so that its repetition is recognized.
        let written = args_hash(&self.call.arguments);
        let call = ToolCall {
            arguments,
            ..self.call.clone()
        };

        let wanted = asking.question(self.id_of(number), call, ask, Some(written.clone()));
        let standing = desk.ask(&wanted).await?;
        // The question was decided, or asked with other arguments, between the two steps.
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
