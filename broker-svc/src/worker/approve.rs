//! Calls that a human must confirm: asked for, suspended, resumed, and run with exactly the approved arguments.
//!
//! The question is in KV, with its timers, before the ledger records that the turn waits. Its id follows from turn,
//! call and arguments, so a broker that reaches the same call again asks the same question. Once the ledger records
//! the wait, nothing of the turn is in memory; the decision arrives as a message of the session. Source:
//! `docs/design/sessions.md` §8.

use serde_json::Value;
use shared::model::approval::{
    ApprovalAsk, ApprovalDecision, ApprovalRequest, ApprovalStatus, ConfirmationTerms, DecisionProof,
};
use shared::model::dispatch::derived_ulid;
use shared::model::ledger::{DropReason, LedgerEntry, ToolCall, ToolOutcome};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::unknown::UnknownFields;

use super::Worker;
use super::hooks::PointVerdict;
use super::step::{CallConfirmation, StepInputs, StepOutcome};
use super::turn::TurnOutcome;
use crate::approval::machine::DecisionInput;
use crate::approval::question::{AskingTurn, MAX_ASKS, message_author};
use crate::approval::reply::{ChannelReply, read};
use crate::approval::store::{DecisionOutcome, decision_of};
use crate::error::RunSessionError;
use crate::hooks::GateDecision;
use crate::hooks::gate::combine_asks;
use crate::session::{InboxItem, PendingDispatch};
use crate::turn::arguments::args_hash;
use crate::turn::journal::{CallApproval, call_standing};

/// Maximum size of a schema that is kept with a question, bytes of JSON. Arguments for a larger schema are checked
/// only when the call would run.
const MAX_SCHEMA_BYTES: usize = 16 * 1_024;

/// Messages that a look found, sorted by their relation to approvals.
#[derive(Debug, Default)]
pub(super) struct ApprovalPoll {
    /// Messages that go to the machine.
    pub(super) others: Vec<InboxItem>,
    /// Messages that decided an approval and are done.
    pub(super) words: Vec<PendingDispatch>,
    /// Questions that agents ask by themselves, with their sequences in `DISPATCHES`.
    pub(super) questions: Vec<(u64, ApprovalRequest)>,
    /// Messages about approvals that KV has no news of: their sequences, and the approval ids that they name.
    pub(super) empty: Vec<(u64, String)>,
}

impl Worker<'_> {
    /// Returns whether the turn waits for an approval.
    pub(super) fn is_suspended(&self) -> bool {
        self.owner.fold().awaited_approval().is_some()
    }

    /// Returns whether a turn was begun that waits for no approval, or whose wait something has ended.
    pub(super) fn goes_on(&self) -> bool {
        let fold = self.owner.fold();
        fold.running.is_some()
            && fold.awaited_approval().is_none_or(|awaited| {
                self.canceled.is_some() || self.machine.is_steering() || self.broker.clock.now() >= awaited.expires_at
            })
    }

    /// Returns whether a waiting turn goes on waiting: no message has ended the wait, and its time is not over.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the approval cannot be read.
    pub(super) async fn stays_suspended(&mut self) -> Result<bool, RunSessionError> {
        let awaited = self.owner.fold().awaited_approval().cloned();
        let Some(awaited) = awaited.filter(|_| self.canceled.is_none()) else {
            return Ok(false);
        };

        if self.machine.is_steering() {
            self.stop_awaiting("superseded by a newer message");
            return Ok(false);
        }

        if self.broker.clock.now() < awaited.expires_at {
            return Box::pin(self.still_waits(&awaited.approval)).await;
        }

        // A decision that came in time wins over the expiry, even if this session learns of it only now.
        let standing = self.broker.desk().expire_if_due(&awaited.approval).await?;
        let decision = match standing.filter(|standing| standing.status != ApprovalStatus::Pending) {
            Some(standing) => decision_of(&standing),
            None => ended_decision(&awaited.approval, ApprovalStatus::Expired, None),
        };

        self.stage_decision(decision);
        Ok(false)
    }

    /// Cancels the approval that the turn waits for, for the reason `why`; the turn goes on without it.
    pub(super) fn stop_awaiting(&mut self, why: &str) {
        let awaited = self.owner.fold().awaited_approval().cloned();
        if let Some(awaited) = awaited {
            self.approvals.mark(awaited.approval.clone(), ApprovalStatus::Canceled);
            self.stage_decision(ended_decision(&awaited.approval, ApprovalStatus::Canceled, Some(why)));
        }
    }

    pub(super) fn stage_decision(&mut self, decision: ApprovalDecision) {
        self.approvals.mark_taken(&decision);
        self.owner.stage_entry(LedgerEntry::ApprovalDecided {
            decision,
            sequence: None,
            cursor: None,
        });
    }

    /// Takes the decisions on approvals out of `arrivals` and answers them. Notices that an approval changed are
    /// looked up in KV. All other messages are passed on.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if a decision cannot be stored or the session has another owner.
    pub(super) async fn take_decisions(&mut self, arrivals: Vec<InboxItem>) -> Result<ApprovalPoll, RunSessionError> {
        let mut listened = ApprovalPoll::default();
        for arrival in arrivals {
            let (pending, heard) = match arrival {
                InboxItem::Decision(told) => {
                    Box::pin(self.look_up_told(told, &mut listened)).await?;
                    continue;
                }
                InboxItem::Dispatch(pending) => match read(&pending.dispatch.message.content) {
                    Some(heard) => (pending, heard),
                    None => {
                        listened.others.push(InboxItem::Dispatch(pending));
                        continue;
                    }
                },
                order @ InboxItem::Order(_) => {
                    listened.others.push(order);
                    continue;
                }
            };

            // Looked up in KV: a code in a text gives no right, it only names an approval.
            match Box::pin(self.broker.desk().id_of(&heard.code)).await {
                Some(id) => {
                    Box::pin(self.decide_heard(&pending, heard, id)).await?;
                    listened.words.push(pending);
                }
                // The code belongs to no approval: the text is a message like any other.
                None => listened.others.push(InboxItem::Dispatch(pending)),
            }
        }

        Ok(listened)
    }

    /// Stages that the message `pending`, a decision on an approval, is done.
    pub(super) fn drop_word(&mut self, pending: &PendingDispatch) {
        let cursor = self.cursor_after(&[pending.sequence]);
        self.owner.stage_entry(LedgerEntry::DispatchDropped {
            dispatch: pending.dispatch_ref(),
            reason: DropReason::ApprovalAnswered,
            detail: None,
            cursor,
        });
    }

    /// Applies a decision that was sent in a channel, and answers it there.
    async fn decide_heard(
        &mut self,
        pending: &PendingDispatch,
        heard: ChannelReply,
        id: String,
    ) -> Result<(), RunSessionError> {
        self.owner.ensure_owned().await?;
        // An approval that the ledger has withdrawn must not be decided.
        self.mark_approvals().await;
        let dispatch = &pending.dispatch;

        let word = DecisionInput {
            approve: heard.approve,
            arguments: None,
            shown_hash: heard.shown,
            response: heard.note,
            via: "chat".to_owned(),
        };

        let mut by = message_author(pending);
        // A code counts only from an account that a platform proves: a token may speak for persons, and decides
        // nothing.
        if !dispatch.message.origin.is_verified() {
            by.proof = DecisionProof::Nobody;
        }

        // Everybody in the conversation reads the answer, and anyone who knows the code may try it: the answer omits
        // the code.
        let told = match self.broker.desk().decide_approval(&id, &by, &word).await? {
            DecisionOutcome::Stands { confirmation, .. } if confirmation.status == ApprovalStatus::Pending => {
                format!("approval noted, {} so far", confirmation.trail.votes.len())
            }
            DecisionOutcome::Stands { confirmation, .. } => format!("the approval is {}", confirmation.status.name()),
            DecisionOutcome::Refused(refused) => refused.to_string(),
            DecisionOutcome::Unknown => "this approval does not exist".to_owned(),
        };

        // A repeated dispatch has the same id at any time of evaluation, so its answer is the same delivery.
        let at = UnixMillis(i64::try_from(dispatch.id.timestamp_ms()).unwrap_or(i64::MAX));
        let answer = Reply {
            id: derived_ulid(at, &["approval", &dispatch.id.to_string()]),
            turn: dispatch.id,
            session: self.claimed.session.clone(),
            delivery_context: dispatch.delivery_context.clone(),
            content: told,
            attachments: Vec::new(),
            interactive: None,
            causation: dispatch.causation.clone(),
            action: None,
            unknown: UnknownFields::default(),
            send: None,
            failed: false,
        };

        self.broker.desk().send_reply(&answer).await?;
        Ok(())
    }

    /// Decides whether `call` runs and with which arguments: unchanged if no human must be asked, as approved if one
    /// was.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if no human could be asked or the session has another owner.
    pub(super) async fn confirm_call(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
    ) -> Result<CallConfirmation, RunSessionError> {
        let Some(running) = self.owner.fold().running.as_ref() else {
            return Ok(CallConfirmation::Run(call));
        };
        let arguments = running.arguments_of(&call);
        let unfit = thinking.misfit(&call.name, &arguments);
        // The model's own arguments were checked with its answer; only an approver's are new.
        if let Some(unfit) = unfit.filter(|_| arguments != call.arguments) {
            let error = format!("the approver's arguments do not fit the tool's schema: {unfit}");
            return Ok(self.finish_denied(call, error));
        }

        let begins_with = ToolCall {
            arguments: arguments.clone(),
            ..call.clone()
        };
        let (gated, asks) = match self.gate_call(&thinking.moment, &begins_with).await? {
            None => return Ok(CallConfirmation::Stepped(self.stopped_by(PointVerdict::Over))),
            Some(GateDecision::Denied { error }) => return Ok(self.finish_denied(call, error)),
            Some(GateDecision::Run { arguments }) => (arguments, None),
            Some(GateDecision::Ask { ask, arguments }) => (arguments, Some(*ask)),
        };

        if gated != arguments
            && let Some(unfit) = thinking.misfit(&call.name, &gated)
        {
            let error = format!("hooks changed the arguments; they do not fit the tool's schema: {unfit}");
            return Ok(self.finish_denied(call, error));
        }

        let (personas, session) = (&self.broker.personas, &self.claimed.session);
        // The persona's rules and the gates ask together, because layers only tighten.
        let flagged = personas.confirmations(session, thinking.turn.works_for(), &call.name, &gated);
        let ask = combine_asks(flagged.cloned().chain(asks));

        self.settle_call(thinking, call, gated, ask).await
    }

    /// Decides whether `call` runs with `arguments`, which its gates let through; `ask` is how they want a human
    /// asked, if they do. Once asked, a call runs only with the approved arguments, even if its gates change later.
    ///
    /// # Errors
    /// Returns the errors of [`Worker::confirm_call`].
    pub(super) async fn settle_call(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
        arguments: Value,
        ask: Option<ApprovalAsk>,
    ) -> Result<CallConfirmation, RunSessionError> {
        let Some(running) = self.owner.fold().running.as_ref() else {
            return Ok(CallConfirmation::Run(ToolCall { arguments, ..call }));
        };
        // Every decision below follows from the ledger, so a new owner of the session decides alike.
        let asked = running.last_asked(&call.call).cloned();
        let standing = call_standing(running, &call.call, &args_hash(&arguments), ask.as_ref());

        let times = running.times_asked(&call.call);
        match (standing, asked, ask) {
            (CallApproval::None, _, None) => Ok(CallConfirmation::Run(ToolCall { arguments, ..call })),
            (CallApproval::None, _, Some(ask)) => {
                let stepped = self.ask_human(thinking, &call, arguments, &ask).await?;
                Ok(CallConfirmation::Stepped(stepped))
            }
            (CallApproval::Pending, ..) => Ok(CallConfirmation::Stepped(StepOutcome::Ended(TurnOutcome::Suspended))),
            // KV may say that a former owner used the approval before it died: then the call may have run.
            (CallApproval::Approved, Some(asked), _)
                if Box::pin(self.broker.desk().was_used(&asked.approval)).await? =>
            {
                Box::pin(self.refuse_used(thinking, ToolCall { arguments, ..call })).await
            }
            (CallApproval::Used, ..) => Box::pin(self.refuse_used(thinking, ToolCall { arguments, ..call })).await,
            (CallApproval::Approved, asked, _) => {
                if let Some(asked) = asked {
                    self.approvals.mark(asked.approval, ApprovalStatus::Consumed);
                }
                Ok(CallConfirmation::Run(ToolCall { arguments, ..call }))
            }
            (CallApproval::Denied { by, response }, ..) => {
                let said = response.map(|said| format!(": {said}")).unwrap_or_default();
                Ok(self.finish_denied(call, format!("denied by {by}{said}")))
            }
            (CallApproval::Expired, ..) => {
                Ok(self.finish_denied(call, "not approved: the approval expired without a decision".to_owned()))
            }
            (CallApproval::Canceled, ..) => {
                Ok(self.finish_denied(call, "not approved: the approval was canceled".to_owned()))
            }
            (CallApproval::Superseded, ..) if times >= MAX_ASKS => {
                let error = format!("not approved: its arguments changed after each of {times} approvals");
                Ok(self.finish_denied(call, error))
            }
            (CallApproval::Superseded, asked, ask) => {
                let ask = ask
                    .or(asked.as_ref().map(|asked| asked.ask.clone()))
                    .unwrap_or_default();

                // An approval that was superseded before has its end in the ledger.
                if let Some(asked) = asked.filter(|asked| asked.status == ApprovalStatus::Approved) {
                    self.approvals.mark(asked.approval.clone(), ApprovalStatus::Superseded);
                    let why = Some("the arguments changed after the approval, or others must approve them");
                    self.stage_decision(ended_decision(&asked.approval, ApprovalStatus::Superseded, why));
                }

                let stepped = self.ask_human(thinking, &call, arguments, &ask).await?;
                Ok(CallConfirmation::Stepped(stepped))
            }
        }
    }

    /// Ends `call` as unknown: its approval was used, but the ledger, which is older than KV, does not have the
    /// beginning of the call. The call may have run, so it is not run again.
    async fn refuse_used(
        &mut self,
        thinking: &StepInputs<'_>,
        call: ToolCall,
    ) -> Result<CallConfirmation, RunSessionError> {
        tracing::warn!(
            session = %self.claimed.session, turn = %thinking.turn.id, call = call.call, tool = call.name,
            "approved call not executed: its approval was already used and the ledger has no result"
        );
        let reason = "its approval was used before; whether the call ran is unknown".to_owned();
        let stepped = self.end_call(thinking, call, ToolOutcome::Unknown { reason }).await?;
        Ok(CallConfirmation::Stepped(stepped))
    }

    fn finish_denied(&mut self, call: ToolCall, error: String) -> CallConfirmation {
        self.not_used(&call.call, "the call was not allowed in the end");
        self.stage_finished(call.call, ToolOutcome::Error { error });
        CallConfirmation::Stepped(StepOutcome::On)
    }

    /// Asks a human about `call` with `arguments` and suspends the turn. If the same question was answered already,
    /// the turn goes on with that answer.
    ///
    /// # Errors
    /// Returns the errors of [`Worker::confirm_call`].
    pub(super) async fn ask_human(
        &mut self,
        thinking: &StepInputs<'_>,
        call: &ToolCall,
        arguments: Value,
        ask: &ApprovalAsk,
    ) -> Result<StepOutcome, RunSessionError> {
        let Some(wanted) = self.approval_question(thinking, call, arguments, ask) else {
            return Ok(StepOutcome::On);
        };

        // Only the broker that owns the session may ask.
        self.owner.ensure_owned().await?;
        let standing = self.broker.desk().request_approval(&wanted).await?;
        let request = standing.request.clone();
        tracing::info!(session = %self.claimed.session, approval = request.id, tool = request.tool, "approval requested");
        self.owner.stage_entry(LedgerEntry::ApprovalRequested { request });

        if standing.status != ApprovalStatus::Pending {
            self.stage_decision(decision_of(&standing));
            return Ok(StepOutcome::On);
        }

        self.owner.commit_staged().await?;
        self.mark_approvals().await;

        Ok(StepOutcome::Ended(TurnOutcome::Suspended))
    }

    fn approval_question(
        &self,
        thinking: &StepInputs<'_>,
        call: &ToolCall,
        arguments: Value,
        ask: &ApprovalAsk,
    ) -> Option<ConfirmationTerms> {
        let running = self.owner.fold().running.as_ref()?;
        let hash = args_hash(&arguments);
        let (turn, times) = (running.turn.to_string(), running.times_asked(&call.call).to_string());
        // The number of earlier questions gives a question that is asked again an id of its own.
        let parts = ["approval", &turn, &call.call, &hash, &times];
        let id = derived_ulid(running.began_at, &parts).to_string();

        let asking = AskingTurn {
            session: &self.claimed.session,
            turn: running.turn,
            initiator: thinking.initiator.clone(),
            origin: thinking.turn.origin(),
            now: self.broker.clock.now(),
        };

        let schema = thinking.offer(&call.name).map(|offer| &offer.description.parameters);
        let schema = schema.filter(|schema| schema.to_string().len() <= MAX_SCHEMA_BYTES);
        let call = ToolCall {
            arguments,
            ..call.clone()
        };

        let mut question = asking.into_question(id, call, ask, None);
        question.trail.schema = schema.cloned().map(Box::new);

        Some(question)
    }

    /// Returns a call that was begun, with the arguments that it was begun with, and marks its approval as used.
    pub(super) fn begun_call(&mut self, call: ToolCall) -> ToolCall {
        let Some(running) = self.owner.fold().running.as_ref() else {
            return call;
        };
        let arguments = running.arguments_of(&call);
        let used = running.last_asked(&call.call).map(|asked| asked.approval.clone());
        if let Some(approval) = used {
            self.approvals.mark(approval, ApprovalStatus::Consumed);
        }
        ToolCall { arguments, ..call }
    }
}

/// Returns a decision on the question `approval` that ended without a human's answer.
pub(super) fn ended_decision(approval: &str, status: ApprovalStatus, why: Option<&str>) -> ApprovalDecision {
    ApprovalDecision {
        id: approval.to_owned(),
        status,
        decided_by: None,
        arguments: None,
        response: why.map(str::to_owned),
    }
}
