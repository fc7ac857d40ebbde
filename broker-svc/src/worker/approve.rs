//! Calls that a human must confirm: asked for, suspended, resumed, and run with exactly the approved arguments.
//!
//! The question is in KV, with its timers, before the ledger records that the turn waits. Its id follows from turn,
//! call and arguments, so a broker that reaches the same call again asks the same question. Once the ledger records
//! the wait, nothing of the turn is in memory; the decision arrives as a message of the session. Source:
//! `docs/design/sessions.md` §8.

use serde_json::Value;
use shared::model::approval::{ApprovalDecision, ApprovalRequest, ApprovalStatus, Ask, Confirmation, Proof};
use shared::model::dispatch::derived_ulid;
use shared::model::ledger::{DropReason, LedgerEntry, ToolCall, ToolOutcome};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;

use super::Worker;
use super::hooks::Hooked;
use super::step::{Confirmed, Stepped, Thinking};
use super::turn::Ended;
use crate::approval::desk::{Said, decision_of};
use crate::approval::machine::Word;
use crate::approval::question::{Asking, MAX_ASKS, author};
use crate::approval::reply::{Heard, read};
use crate::error::RunSessionError;
use crate::hook_point::Gated;
use crate::hook_point::gate::together;
use crate::session::{Arrival, Pending};
use crate::turn::arguments::args_hash;
use crate::turn::journal::{Standing, stands};

/// Maximum size of a schema that is kept with a question, bytes of JSON. Arguments for a larger schema are checked
/// only when the call would run.
const MAX_SCHEMA_BYTES: usize = 16 * 1_024;

/// Messages that a look found, sorted by what they have to do with approvals.
#[derive(Debug, Default)]
pub(super) struct Listened {
    /// Messages that go to the machine.
    pub(super) others: Vec<Arrival>,
    /// Messages that decided an approval and are done.
    pub(super) words: Vec<Pending>,
    /// Questions that agents ask by themselves, with their sequences in `DISPATCHES`.
    pub(super) questions: Vec<(u64, ApprovalRequest)>,
    /// Messages about approvals that KV has no news of: their sequences, and the approval ids that they name.
    pub(super) empty: Vec<(u64, String)>,
}

impl Worker<'_> {
    /// Returns whether the turn waits for an approval.
    pub(super) fn is_suspended(&self) -> bool {
        self.owner.fold().awaited().is_some()
    }

    /// Returns whether a turn was begun that waits for no approval, or whose wait something has ended.
    pub(super) fn goes_on(&self) -> bool {
        let fold = self.owner.fold();
        fold.running.is_some()
            && fold.awaited().is_none_or(|awaited| {
                self.canceled.is_some() || self.machine.is_steering() || self.broker.clock.now() >= awaited.expires_at
            })
    }

    /// Returns whether a waiting turn goes on waiting: no message has ended the wait, and its time is not over.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the approval cannot be read.
    pub(super) async fn stays_suspended(&mut self) -> Result<bool, RunSessionError> {
        let awaited = self.owner.fold().awaited().cloned();
        let Some(awaited) = awaited.filter(|_| self.canceled.is_none()) else {
            return Ok(false);
        };

        if self.machine.is_steering() {
            self.withdraw("superseded by a newer message");
            return Ok(false);
        }

        if self.broker.clock.now() < awaited.expires_at {
            return Box::pin(self.still_waits(&awaited.approval)).await;
        }

        // A decision that came in time wins over the expiry, even if this session learns of it only now.
        let standing = self.broker.desk().lapse(&awaited.approval).await?;
        let decision = match standing.filter(|standing| standing.status != ApprovalStatus::Pending) {
            Some(standing) => decision_of(&standing),
            None => ended(&awaited.approval, ApprovalStatus::Expired, None),
        };

        self.stage_decision(decision);
        Ok(false)
    }

    /// Cancels the approval that the turn waits for, for the reason `why`; the turn goes on without it.
    pub(super) fn withdraw(&mut self, why: &str) {
        let awaited = self.owner.fold().awaited().cloned();
        if let Some(awaited) = awaited {
            self.approvals.mark(awaited.approval.clone(), ApprovalStatus::Canceled);
            self.stage_decision(ended(&awaited.approval, ApprovalStatus::Canceled, Some(why)));
        }
    }

    pub(super) fn stage_decision(&mut self, decision: ApprovalDecision) {
        self.approvals.mark_taken(&decision);
        self.owner.stage(LedgerEntry::ApprovalDecided {
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
    pub(super) async fn hear(&mut self, arrivals: Vec<Arrival>) -> Result<Listened, RunSessionError> {
        let mut listened = Listened::default();
        for arrival in arrivals {
            let (pending, heard) = match arrival {
                Arrival::Decision(told) => {
                    Box::pin(self.look_up_told(told, &mut listened)).await?;
                    continue;
                }
                Arrival::Dispatch(pending) => match read(&pending.dispatch.message.content) {
                    Some(heard) => (pending, heard),
                    None => {
                        listened.others.push(Arrival::Dispatch(pending));
                        continue;
                    }
                },
                order @ Arrival::Order(_) => {
                    listened.others.push(order);
                    continue;
                }
            };

            // Looked up in KV: a code in a text gives no right, it only names an approval.
            match Box::pin(self.broker.desk().id_of(&heard.code)).await {
                Some(id) => {
                    Box::pin(self.obey(&pending, heard, id)).await?;
                    listened.words.push(pending);
                }
                // The code belongs to no approval: the text is a message like any other.
                None => listened.others.push(Arrival::Dispatch(pending)),
            }
        }

        Ok(listened)
    }

    /// Stages that the message `pending`, a decision on an approval, is done.
    pub(super) fn drop_word(&mut self, pending: &Pending) {
        let cursor = self.cursor_after(&[pending.sequence]);
        self.owner.stage(LedgerEntry::DispatchDropped {
            dispatch: pending.reference(),
            reason: DropReason::ApprovalAnswered,
            detail: None,
            cursor,
        });
    }

    /// Applies a decision that was sent in a channel, and answers it there.
    async fn obey(&mut self, pending: &Pending, heard: Heard, id: String) -> Result<(), RunSessionError> {
        self.owner.own().await?;
        // An approval that the ledger has withdrawn must not be decided.
        self.mark_approvals().await;
        let dispatch = &pending.dispatch;

        let word = Word {
            approve: heard.approve,
            arguments: None,
            shown_hash: heard.shown,
            response: heard.note,
            via: "chat".to_owned(),
        };

        let mut by = author(pending);
        // A code counts only from an account that a platform proves: a token may speak for persons, and decides
        // nothing.
        if !dispatch.message.origin.is_verified() {
            by.proof = Proof::Nobody;
        }

        // Everybody in the conversation reads the answer, and anyone who knows the code may try it: the answer omits
        // the code.
        let told = match self.broker.desk().say(&id, &by, &word).await? {
            Said::Stands { confirmation, .. } if confirmation.status == ApprovalStatus::Pending => {
                format!("approval noted, {} so far", confirmation.trail.votes.len())
            }
            Said::Stands { confirmation, .. } => format!("the approval is {}", confirmation.status.name()),
            Said::Refused(refused) => refused.to_string(),
            Said::Unknown => "this approval does not exist".to_owned(),
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
        };

        self.broker.desk().answer(&answer).await?;
        Ok(())
    }

    /// Decides whether `call` runs and with which arguments: unchanged if no human must be asked, as approved if one
    /// was.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if no human could be asked or the session has another owner.
    pub(super) async fn confirm(
        &mut self,
        thinking: &Thinking<'_>,
        call: ToolCall,
    ) -> Result<Confirmed, RunSessionError> {
        let Some(running) = self.owner.fold().running.as_ref() else {
            return Ok(Confirmed::Run(call));
        };
        let arguments = running.arguments_of(&call);
        let unfit = thinking.misfit(&call.name, &arguments);
        // The model's own arguments were checked with its answer; only an approver's are new.
        if let Some(unfit) = unfit.filter(|_| arguments != call.arguments) {
            let error = format!("the approver's arguments do not fit the tool's schema: {unfit}");
            return Ok(self.denied(call, error));
        }

        let begins_with = ToolCall {
            arguments: arguments.clone(),
            ..call.clone()
        };
        let (gated, asks) = match self.gate(&thinking.moment, &begins_with).await? {
            None => return Ok(Confirmed::Stepped(self.stopped(Hooked::Over))),
            Some(Gated::Denied { error }) => return Ok(self.denied(call, error)),
            Some(Gated::Run { arguments }) => (arguments, None),
            Some(Gated::Ask { ask, arguments }) => (arguments, Some(*ask)),
        };

        if gated != arguments
            && let Some(unfit) = thinking.misfit(&call.name, &gated)
        {
            let error = format!("hooks changed the arguments; they do not fit the tool's schema: {unfit}");
            return Ok(self.denied(call, error));
        }

        let (personas, session) = (&self.broker.personas, &self.claimed.session);
        // The persona's rules and the gates ask together, because layers only tighten.
        let flagged = personas.confirmations(session, thinking.turn.works_for(), &call.name, &gated);
        let ask = together(flagged.cloned().chain(asks));

        self.settle(thinking, call, gated, ask).await
    }

    /// Decides whether `call` runs with `arguments`, which its gates let through; `ask` is how they want a human
    /// asked, if they do. Once asked, a call runs only with the approved arguments, even if its gates change later.
    ///
    /// # Errors
    /// Returns the errors of [`Worker::confirm`].
    pub(super) async fn settle(
        &mut self,
        thinking: &Thinking<'_>,
        call: ToolCall,
        arguments: Value,
        ask: Option<Ask>,
    ) -> Result<Confirmed, RunSessionError> {
        let Some(running) = self.owner.fold().running.as_ref() else {
            return Ok(Confirmed::Run(ToolCall { arguments, ..call }));
        };
        // Every decision below follows from the ledger, so a new owner of the session decides alike.
        let asked = running.last_asked(&call.call).cloned();
        let standing = stands(running, &call.call, &args_hash(&arguments), ask.as_ref());

        let times = running.times_asked(&call.call);
        match (standing, asked, ask) {
            (Standing::None, _, None) => Ok(Confirmed::Run(ToolCall { arguments, ..call })),
            (Standing::None, _, Some(ask)) => {
                let stepped = self.ask_human(thinking, &call, arguments, &ask).await?;
                Ok(Confirmed::Stepped(stepped))
            }
            (Standing::Pending, ..) => Ok(Confirmed::Stepped(Stepped::Ended(Ended::Suspended))),
            // KV may say that a former owner used the approval before it died: then the call may have run.
            (Standing::Approved, Some(asked), _) if Box::pin(self.broker.desk().was_used(&asked.approval)).await? => {
                Box::pin(self.used(thinking, ToolCall { arguments, ..call })).await
            }
            (Standing::Used, ..) => Box::pin(self.used(thinking, ToolCall { arguments, ..call })).await,
            (Standing::Approved, asked, _) => {
                if let Some(asked) = asked {
                    self.approvals.mark(asked.approval, ApprovalStatus::Consumed);
                }
                Ok(Confirmed::Run(ToolCall { arguments, ..call }))
            }
            (Standing::Denied { by, response }, ..) => {
                let said = response.map(|said| format!(": {said}")).unwrap_or_default();
                Ok(self.denied(call, format!("denied by {by}{said}")))
            }
            (Standing::Expired, ..) => {
                Ok(self.denied(call, "not approved: the approval expired without a decision".to_owned()))
            }
            (Standing::Canceled, ..) => Ok(self.denied(call, "not approved: the approval was canceled".to_owned())),
            (Standing::Superseded, ..) if times >= MAX_ASKS => {
                let error = format!("not approved: its arguments changed after each of {times} approvals");
                Ok(self.denied(call, error))
            }
            (Standing::Superseded, asked, ask) => {
                let ask = ask
                    .or(asked.as_ref().map(|asked| asked.ask.clone()))
                    .unwrap_or_default();

                // An approval that was superseded before has its end in the ledger.
                if let Some(asked) = asked.filter(|asked| asked.status == ApprovalStatus::Approved) {
                    self.approvals.mark(asked.approval.clone(), ApprovalStatus::Superseded);
                    let why = Some("the arguments changed after the approval, or others must approve them");
                    self.stage_decision(ended(&asked.approval, ApprovalStatus::Superseded, why));
                }

                let stepped = self.ask_human(thinking, &call, arguments, &ask).await?;
                Ok(Confirmed::Stepped(stepped))
            }
        }
    }

    /// Ends `call` as unknown: its approval was used, but the ledger, which is older than KV, does not have the
    /// beginning of the call. The call may have run, so it is not run again.
    async fn used(&mut self, thinking: &Thinking<'_>, call: ToolCall) -> Result<Confirmed, RunSessionError> {
        tracing::warn!(
            session = %self.claimed.session, turn = %thinking.turn.id, call = call.call, tool = call.name,
            "approved call not executed: its approval was already used and the ledger has no result"
        );
        let reason = "its approval was used before; whether the call ran is unknown".to_owned();
        let stepped = self.called(thinking, call, ToolOutcome::Unknown { reason }).await?;
        Ok(Confirmed::Stepped(stepped))
    }

    fn denied(&mut self, call: ToolCall, error: String) -> Confirmed {
        self.not_used(&call.call, "the call was not allowed in the end");
        self.finished(call.call, ToolOutcome::Error { error });
        Confirmed::Stepped(Stepped::On)
    }

    /// Asks a human about `call` with `arguments` and suspends the turn. If the same question was answered already,
    /// the turn goes on with that answer.
    ///
    /// # Errors
    /// Returns the errors of [`Worker::confirm`].
    pub(super) async fn ask_human(
        &mut self,
        thinking: &Thinking<'_>,
        call: &ToolCall,
        arguments: Value,
        ask: &Ask,
    ) -> Result<Stepped, RunSessionError> {
        let Some(wanted) = self.question(thinking, call, arguments, ask) else {
            return Ok(Stepped::On);
        };

        // Only the broker that owns the session may ask.
        self.owner.own().await?;
        let standing = self.broker.desk().ask(&wanted).await?;
        let request = standing.request.clone();
        tracing::info!(session = %self.claimed.session, approval = request.id, tool = request.tool, "approval requested");
        self.owner.stage(LedgerEntry::ApprovalRequested { request });

        if standing.status != ApprovalStatus::Pending {
            self.stage_decision(decision_of(&standing));
            return Ok(Stepped::On);
        }

        self.owner.commit().await?;
        self.mark_approvals().await;

        Ok(Stepped::Ended(Ended::Suspended))
    }

    fn question(&self, thinking: &Thinking<'_>, call: &ToolCall, arguments: Value, ask: &Ask) -> Option<Confirmation> {
        let running = self.owner.fold().running.as_ref()?;
        let hash = args_hash(&arguments);
        let (turn, times) = (running.turn.to_string(), running.times_asked(&call.call).to_string());
        // The number of earlier questions gives a question that is asked again an id of its own.
        let parts = ["approval", &turn, &call.call, &hash, &times];
        let id = derived_ulid(running.began_at, &parts).to_string();

        let asking = Asking {
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

        let mut question = asking.question(id, call, ask, None);
        question.trail.schema = schema.cloned().map(Box::new);

        Some(question)
    }

    /// Returns a call that was begun, with the arguments that it was begun with, and marks its approval as used.
    pub(super) fn begun(&mut self, call: ToolCall) -> ToolCall {
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
pub(super) fn ended(approval: &str, status: ApprovalStatus, why: Option<&str>) -> ApprovalDecision {
    ApprovalDecision {
        id: approval.to_owned(),
        status,
        decided_by: None,
        arguments: None,
        response: why.map(str::to_owned),
    }
}
