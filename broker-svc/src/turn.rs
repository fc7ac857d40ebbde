//! The turn: its ledger entries, the next step after an answer or its absence, and its recovery. *Pure.*
//!
//! A turn's id follows from its dispatches, so a turn that is run again is the same turn with the same reply. The
//! commit is `turn_completed{reply}`; nothing is published before it is in the ledger. Source:
//! `docs/design/sessions.md` §3.

pub mod arguments;
pub mod bounds;
pub mod journal;
pub mod steps;
pub mod used;

use shared::model::dispatch::{DeliveryContext, DispatchCause, derived_ulid};
use shared::model::event::{Attachment, EventId, MAX_HOPS};
use shared::model::ledger::{DispatchRef, LedgerCursor, LedgerEntry, TurnFailure, TurnLimits};
use shared::model::permission::{PermissionPresets, PermissionSet};
use shared::model::reply::{Reply, SendDecision};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::agent::message_text::{shorten_text, with_names};
use crate::agent::personas::PersonaLimits;
use crate::agent::port::{AgentAnswer, AskAgentError, MAX_ANSWER_BYTES, TurnFiles, TurnOrigin};
use crate::ledger::state::{MAX_HISTORY_TEXT, SessionState};
use crate::session::PendingDispatch;
use journal::RunningTurn;
use shared::model::permission::combine::merge_permissions;
use shared::wire::unknown::UnknownFields;

/// Mark at the end of an answer that was cut.
const CUT_MARK: &str = "… [cut]";
/// Number of unreadable answers after which a turn fails.
pub const MAX_MALFORMED: u32 = 3;

/// Next step after a question to the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum NextStep {
    /// Commit the answer.
    Complete(AgentAnswer),
    /// Ask the same question again, after a wait.
    AskAgain,
    /// End the turn with this failure.
    Fail(TurnFailure),
}

/// One turn of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Id of the turn, which follows from its dispatches.
    pub id: Ulid,
    /// Id of the turn before it.
    pub parent: Option<Ulid>,
    /// Dispatches that the turn answers.
    pub dispatches: Vec<DispatchRef>,
    /// Permissions of the turn.
    pub permissions: PermissionSet,
    /// Limits of the turn.
    pub limits: TurnLimits,
    session: SessionRef,
    delivery: DeliveryContext,
    causation: DispatchCause,
    works_for: Vec<SessionRef>,
    /// Files of the messages that the turn answers.
    files: TurnFiles,
    /// The session's own send policy as the turn begins, or is taken over.
    send: Option<SendDecision>,
}

/// Metadata key of an agent's message that names the sessions on whose behalf it is sent.
pub const WORKS_FOR: &str = "works_for";

impl Turn {
    /// Creates the turn that answers `pendings`, of which there is at least one, in `session`, which folds to `fold`.
    /// The last of them determines the destination of the answer.
    #[must_use]
    pub fn for_pendings(
        session: &SessionRef,
        fold: &SessionState,
        pendings: &[PendingDispatch],
        limits: &PersonaLimits,
        presets: &PermissionPresets,
    ) -> Self {
        let permissions: Vec<&PermissionSet> = pendings.iter().map(|p| &p.dispatch.permissions).collect();
        let ids: Vec<String> = pendings.iter().map(|p| p.dispatch.id.to_string()).collect();
        // The turn's id follows from its dispatches: a broker that starts it again starts the same turn.
        let parts: Vec<&str> = std::iter::once("turn").chain(ids.iter().map(String::as_str)).collect();

        // The time comes from the id, which a repetition shares, and not from the dispatch's own timestamp.
        let began = pendings.first().map(|p| p.dispatch.id.timestamp_ms());
        let began = UnixMillis(began.and_then(|at| i64::try_from(at).ok()).unwrap_or(0));
        let with_content = |pending: &PendingDispatch| DispatchRef {
            content: with_names(
                shorten_text(&pending.dispatch.message.content, MAX_HISTORY_TEXT),
                &pending.dispatch.message.attachments,
            ),
            stranger: pending.stranger().map(str::to_owned),
            ..pending.dispatch_ref()
        };

        let (delivery, causation) = answer_destination(pendings);
        Self {
            id: derived_ulid(began, &parts),
            parent: fold.head,
            dispatches: pendings.iter().map(with_content).collect(),
            permissions: merge_permissions(&permissions, presets),
            limits: limits.of_turn(),
            session: session.clone(),
            delivery,
            causation,
            works_for: works_for(pendings),
            files: turn_files(pendings),
            send: fold.send,
        }
    }

    /// Creates the turn `running` of `session`, which a former owner began as the answer to `pendings`.
    #[must_use]
    pub fn from_running(
        session: &SessionRef,
        fold: &SessionState,
        running: &RunningTurn,
        pendings: &[PendingDispatch],
    ) -> Self {
        let (delivery, causation) = answer_destination(pendings);
        Self {
            id: running.turn,
            parent: fold.head,
            dispatches: running.dispatches.clone(),
            permissions: running.permissions.clone(),
            limits: running.limits,
            session: session.clone(),
            delivery,
            causation,
            works_for: works_for(pendings),
            files: turn_files(pendings),
            send: fold.send,
        }
    }

    /// Returns the source of the turn and the destination of its answer.
    #[must_use]
    pub fn origin(&self) -> TurnOrigin {
        TurnOrigin {
            delivery: self.delivery.clone(),
            causation: self.causation.clone(),
            works_for: self.works_for.clone(),
            files: self.files.clone(),
            send: self.send,
        }
    }

    /// Returns the sessions that the turn works for.
    #[must_use]
    pub fn works_for(&self) -> &[SessionRef] {
        &self.works_for
    }

    /// Returns whether the ledger has the turn's beginning; if so, also the agent's answer from that time, which is
    /// neither asked for nor paid for again.
    #[must_use]
    pub fn recorded_answer(&self, fold: &SessionState) -> Option<Option<AgentAnswer>> {
        let running = fold.running.as_ref().filter(|running| running.turn == self.id)?;
        let answer = running.last_answer().filter(|(_, _, calls)| calls.is_empty());
        Some(answer.map(|(_, content, _)| AgentAnswer {
            content: content.to_owned(),
            attachments: running.last_attachments().to_vec(),
            ..AgentAnswer::default()
        }))
    }

    /// Returns the entry of the turn's beginning, written before anything outside learns of the turn.
    #[must_use]
    pub fn started_entry(&self) -> LedgerEntry {
        LedgerEntry::TurnStarted {
            turn: self.id,
            parent: self.parent,
            dispatches: self.dispatches.clone(),
            permissions: self.permissions.clone(),
            limits: self.limits,
        }
    }

    /// Returns the entries of a turn that the agent answered, for one record. The answer's attachments are part of
    /// the reply.
    #[must_use]
    pub fn completed_entries(&self, answer: AgentAnswer, cursor: LedgerCursor) -> [LedgerEntry; 2] {
        let AgentAnswer {
            content,
            attachments,
            usage,
        } = answer;
        let content = bound_content(content);
        let completed = self.settled_entry(content.clone(), attachments, cursor);

        let answered = LedgerEntry::ModelAnswered {
            opaque: None,
            attachments: Vec::new(),
            model: None,
            step: 1,
            content,
            tool_calls: Vec::new(),
            usage,
        };

        [answered, completed]
    }

    /// Returns the commit alone, for a turn whose model's answer is in the ledger already.
    #[must_use]
    pub fn settled_entry(&self, content: String, attachments: Vec<Attachment>, cursor: LedgerCursor) -> LedgerEntry {
        let said = !content.is_empty() || !attachments.is_empty();
        LedgerEntry::TurnCompleted {
            turn: self.id,
            reply: said.then(|| Box::new(self.build_reply(content, attachments))),
            head: self.id,
            cursor,
        }
    }

    /// Returns the entry of a canceled turn; its partial answer is kept and not delivered.
    #[must_use]
    pub fn interrupted_entry(&self, reason: String, partial: String, cursor: LedgerCursor) -> LedgerEntry {
        LedgerEntry::TurnInterrupted {
            turn: self.id,
            reason,
            partial: bound_content(partial),
            cursor,
        }
    }

    /// Returns the entry of a failed turn, with a reply that tells the user.
    #[must_use]
    pub fn failed_entry(&self, failure: TurnFailure, cursor: LedgerCursor) -> LedgerEntry {
        let told = Reply {
            failed: true,
            ..self.build_reply(message_of(&failure, &self.session.persona), Vec::new())
        };
        LedgerEntry::TurnFailed {
            turn: self.id,
            failure,
            reply: Some(Box::new(told)),
            cursor,
        }
    }

    fn build_reply(&self, content: String, attachments: Vec<Attachment>) -> Reply {
        Reply {
            id: self.id,
            turn: self.id,
            session: self.session.clone(),
            delivery_context: self.delivery.clone(),
            content,
            attachments,
            interactive: None,
            causation: self.causation.clone(),
            action: None,
            unknown: UnknownFields::default(),
            send: self.send,
            failed: false,
        }
    }
}

/// Returns the destination of the answer to `pendings`, and its causation: both from the last one, with the hops of
/// the longest chain.
fn answer_destination(pendings: &[PendingDispatch]) -> (DeliveryContext, DispatchCause) {
    let last = pendings.last().map(|p| &p.dispatch);
    let delivery = last.map(|d| d.delivery_context.clone()).unwrap_or_default();
    let event = last.map_or_else(no_event, |d| d.causation.event.clone());
    let hops = pendings.iter().map(|p| p.dispatch.causation.hops).max().unwrap_or(0);
    (delivery, DispatchCause { event, hops })
}

/// Returns the stored files of `pendings`.
fn turn_files(pendings: &[PendingDispatch]) -> TurnFiles {
    let files = pendings.iter();
    TurnFiles::of_attachments(files.flat_map(|pending| &pending.dispatch.message.attachments))
}

/// Returns the sessions on whose behalf agents sent `pendings`. Claims of other channels count as well: more hooks
/// only bind more.
#[must_use]
pub fn works_for(pendings: &[PendingDispatch]) -> Vec<SessionRef> {
    let mut sessions: Vec<SessionRef> = Vec::new();
    for pending in pendings {
        let told = pending
            .dispatch
            .message
            .metadata
            .get(WORKS_FOR)
            .cloned()
            .unwrap_or_default();

        let told: Vec<SessionRef> = serde_json::from_value(told).unwrap_or_default();
        for session in told.into_iter().take(usize::from(MAX_HOPS) + 1) {
            if !sessions.contains(&session) {
                sessions.push(session);
            }
        }
    }

    sessions
}

/// Returns the event of a turn without dispatches, which does not occur.
fn no_event() -> EventId {
    EventId::parse("turn:none").expect("a word, a colon and a word")
}

/// Returns `content`, cut to the maximum that is kept and delivered.
#[must_use]
pub fn bound_content(content: String) -> String {
    if content.len() <= MAX_ANSWER_BYTES {
        return content;
    }
    let mut cut = shorten_text(&content, MAX_ANSWER_BYTES - CUT_MARK.len());
    cut.push_str(CUT_MARK);
    cut
}

fn message_of(failure: &TurnFailure, persona: &str) -> String {
    match failure {
        TurnFailure::NoAgent => format!("No agent is available for `{persona}`. Please try again later."),
        TurnFailure::Limit { limit } => format!("The answer exceeded a limit ({limit})."),
        TurnFailure::Agent { .. } => "The answer failed. The operators' log has the reason.".to_owned(),
        TurnFailure::BadDispatch { .. } => {
            "The message could not be read. The operators' log has the reason.".to_owned()
        }
    }
}

/// Returns the next step after the outcome of a question. `left_ms` is the time that the turn has left, `absent_ms`
/// the time that no agent has been reachable, and `malformed` the number of unreadable answers of the turn, this one
/// included.
#[must_use]
pub fn next_after(
    outcome: Result<AgentAnswer, AskAgentError>,
    left_ms: u64,
    absent_ms: u64,
    malformed: u32,
    limits: &PersonaLimits,
) -> NextStep {
    // An answer that is too large for the ledger fails here, where the user can still be told.
    let error = match outcome {
        Ok(answer) => {
            return bounds::attachments_failure(&answer.attachments)
                .map_or_else(|| NextStep::Complete(answer), NextStep::Fail);
        }
        Err(error) => error,
    };
    // A retry makes sense only while the turn has time left.
    let again = if left_ms == 0 {
        NextStep::Fail(TurnFailure::Limit {
            limit: "wall_ms".to_owned(),
        })
    } else {
        NextStep::AskAgain
    };

    // Malformed answers are retried a few times only: an agent that has a bug keeps producing them.
    match error {
        AskAgentError::Refused {
            error,
            retryable: false,
        } => NextStep::Fail(TurnFailure::Agent { error }),
        AskAgentError::NoAgent if absent_ms >= limits.no_agent_ms => NextStep::Fail(TurnFailure::NoAgent),
        error @ AskAgentError::Malformed(_) if malformed >= MAX_MALFORMED => NextStep::Fail(TurnFailure::Agent {
            error: error.to_string(),
        }),
        AskAgentError::NoAgent
        | AskAgentError::Silent(_)
        | AskAgentError::Unreachable(_)
        | AskAgentError::BrokeOff(_)
        | AskAgentError::Malformed(_)
        | AskAgentError::Waits(_)
        | AskAgentError::Refused {
            error: _,
            retryable: true,
        } => again,
    }
}

#[cfg(test)]
mod tests;
