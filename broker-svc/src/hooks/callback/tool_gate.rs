//! A call that an agent is about to make itself: its gates, and the humans that they ask.
//!
//! The state of a question is decided in KV alone, so any broker continues if another died. The session's ledger gets
//! a message about the question, as about every decision; if that was lost, the agent's next request sends it again.

use serde_json::Value;
use shared::model::approval::{ApprovalAsk, ApprovalStatus, ConfirmationTerms};
use shared::model::ledger::ToolCall;
use shared::model::session::SessionRef;

use super::{GateAnswer, context_texts};
use crate::approval::external_tool::{
    CallDisposition, NewestQuestion, PriorDecision, as_written, id_of, prior_decision, settle_call,
};
use crate::approval::machine::MAX_EDITED_BYTES;
use crate::approval::question::{AskingTurn, MAX_ASKS, find_initiator};
use crate::approval::store::KeepApprovalError;
use crate::broker::BrokerContext;
use crate::hooks::gate::{GateDecision, combine_asks};
use crate::hooks::hooked_turn::HookedTurn;
use crate::session::PendingDispatch;
use crate::turn::Turn;
use crate::turn::arguments::args_hash;
use crate::turn::journal::RunningTurn;

/// Maximum number of questions about an agent's own calls in one turn.
const MAX_ASKED: usize = 64;
/// Maximum number of times a call is judged because its question changed meanwhile.
const MAX_ROUNDS: u32 = 8;

/// A call that its gates let through: its arguments, how humans must be asked, and the texts for the model.
type Through = (Value, Option<ApprovalAsk>, Vec<String>);

/// The check of one call of an agent; see the module.
pub(super) struct ToolGate<'a> {
    pub(super) broker: &'a BrokerContext,
    pub(super) session: &'a SessionRef,
    pub(super) running: &'a RunningTurn,
    pub(super) turn: &'a Turn,
    pub(super) pendings: &'a [PendingDispatch],
    pub(super) moment: HookedTurn,
    pub(super) call: ToolCall,
    pub(super) attempt: Option<&'a str>,
}

impl ToolGate<'_> {
    /// Returns the decision for the agent.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; asking again completes the missing steps.
    pub(super) async fn decide_call(&self) -> Result<GateAnswer, KeepApprovalError> {
        for _ in 0..MAX_ROUNDS {
            // Read in each round, because another broker or the approver may have changed it.
            let newest = self.newest_question().await?;
            let newest = newest.as_ref();
            let question = newest.map(|newest| &newest.question);
            match prior_decision(newest, &self.call, self.attempt) {
                PriorDecision::Open => {}
                PriorDecision::Denied(reason) => return Ok(GateAnswer::Deny { reason }),
                PriorDecision::Waits => match self.keep_waiting(question).await? {
                    Some(answer) => return Ok(answer),
                    None => continue,
                },
                PriorDecision::Given(arguments) => match self.consume_approval(question).await? {
                    true => return Ok(allow_answer(arguments, Vec::new())),
                    false => continue,
                },
            }

            // The gates run again for each decision: an approver may have edited the arguments.
            let (arguments, ask, context) = match self.run_gates(newest).await? {
                Ok(gated) => gated,
                Err(reason) => return Ok(GateAnswer::Deny { reason }),
            };
            match settle_call(newest, &arguments, ask) {
                CallDisposition::Run => return Ok(allow_answer(arguments, context)),
                CallDisposition::Denied(reason) => return Ok(GateAnswer::Deny { reason }),
                CallDisposition::Use if self.consume_approval(question).await? => {
                    return Ok(allow_answer(arguments, context));
                }
                // Another process changed the question first: judge again.
                CallDisposition::Use => {}
                CallDisposition::Ask { ask, number } => {
                    if let Some(answer) = self.ask_humans(question, number, arguments, &ask).await? {
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
    async fn newest_question(&self) -> Result<Option<NewestQuestion>, KeepApprovalError> {
        let written = args_hash(&self.call.arguments);
        let mut newest = None;
        for number in 0..MAX_ASKS {
            let Some(question) = self.broker.desk().get(&self.id_of(number)).await? else {
                break;
            };
            newest = Some(NewestQuestion::with_previous(newest, number, question, &written));
        }
        Ok(newest)
    }

    /// Returns the answer that makes the agent wait; `None` if the time to decide is over.
    async fn keep_waiting(
        &self,
        question: Option<&ConfirmationTerms>,
    ) -> Result<Option<GateAnswer>, KeepApprovalError> {
        let Some(question) = question else { return Ok(None) };
        if self.broker.clock.now() >= question.request.expires_at {
            self.broker.desk().expire_if_due(&question.request.id).await?;
            return Ok(None);
        }

        if !self.running.has_asked(&question.request.id) {
            // The broker that asked may have died before it sent any notice.
            self.broker.desk().request_approval(question).await?;
            self.broker.desk().announce_question(question).await?;
        }

        Ok(Some(ask_answer(question)))
    }

    async fn consume_approval(&self, question: Option<&ConfirmationTerms>) -> Result<bool, KeepApprovalError> {
        match question {
            Some(question) => {
                self.broker
                    .desk()
                    .consume_approval(&question.request.id, self.attempt)
                    .await
            }
            None => Ok(false),
        }
    }

    /// Runs the gates on the call's arguments, which an approver may have edited. Returns the arguments that they let
    /// through, or why the call must not run.
    async fn run_gates(&self, newest: Option<&NewestQuestion>) -> Result<Result<Through, String>, KeepApprovalError> {
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

        let (gated, ran) = self.broker.hooks().run_gate(&moment, &call).await;
        let (arguments, asked) = match gated {
            // The gates refuse an approved call: the approval must not be usable for anything else.
            GateDecision::Denied { error } => {
                if let Some(approved) = approved {
                    let desk = self.broker.desk();
                    desk.write_ledger_status(&approved.question.request.id, ApprovalStatus::Canceled)
                        .await?;
                }
                return Ok(Err(error));
            }
            GateDecision::Run { arguments } => (arguments, None),
            GateDecision::Ask { ask, arguments } => (arguments, Some(*ask)),
        };

        // The operator's rules and the hooks' demands are joined to one question.
        let personas = &self.broker.personas;
        let flagged = personas.confirmations(self.session, self.turn.works_for(), &call.name, &arguments);
        let ask = combine_asks(flagged.cloned().chain(asked));

        Ok(Ok((arguments, ask, context_texts(&ran))))
    }

    /// Asks humans, as the question `number` about the call; `None` if another process has asked something else
    /// meanwhile.
    async fn ask_humans(
        &self,
        before: Option<&ConfirmationTerms>,
        number: usize,
        arguments: Value,
        ask: &ApprovalAsk,
    ) -> Result<Option<GateAnswer>, KeepApprovalError> {
        let deny = |reason: String| Ok(Some(GateAnswer::Deny { reason }));
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
            desk.write_ledger_status(&before.request.id, ApprovalStatus::Superseded)
                .await?;
        }

        let asking = AskingTurn {
            session: self.session,
            turn: self.running.turn,
            initiator: find_initiator(self.pendings),
            origin: self.turn.origin(),
            now: self.broker.clock.now(),
        };

        // The hash of the agent's own arguments is kept, so that its repetition is recognized.
        let written = args_hash(&self.call.arguments);
        let call = ToolCall {
            arguments,
            ..self.call.clone()
        };

        let wanted = asking.into_question(self.id_of(number), call, ask, Some(written.clone()));
        let standing = desk.request_approval(&wanted).await?;
        // The question was decided, or asked with other arguments, between the two steps.
        if as_written(&standing) != Some(&written) || standing.status != ApprovalStatus::Pending {
            return Ok(None);
        }

        tracing::info!(
            session = %self.session, approval = standing.request.id, tool = standing.request.tool,
            "approval requested for an external tool call"
        );
        desk.announce_question(&standing).await?;

        Ok(Some(ask_answer(&standing)))
    }
}

fn ask_answer(question: &ConfirmationTerms) -> GateAnswer {
    GateAnswer::Ask {
        approval: question.request.id.clone(),
        policy: question.request.policy.clone(),
        expires_at: question.request.expires_at,
    }
}

const fn allow_answer(arguments: Value, context: Vec<String>) -> GateAnswer {
    GateAnswer::Allow {
        tool_input: Some(arguments),
        tool_response: None,
        context,
    }
}
