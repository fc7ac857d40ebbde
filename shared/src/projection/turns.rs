//! Changes of the agent tables that follow from the ledger entries of one message. *Pure.*
//!
//! Most entries belong to the turn under way without naming it, so the fold gets the turn that the session's earlier
//! messages left running and returns the one that this message leaves running.

use serde_json::Value;
use ulid::Ulid;

use crate::model::approval::{ApprovalRequest, ApprovalStatus};
use crate::model::intent::service::ProposeIntent;
use crate::model::ledger::{
    DispatchRef, DropReason, LedgerEntry, LedgerRecord, ToolCall, ToolOutcome, TurnFailure, TurnUsage,
};
use crate::model::reply::Reply;
use crate::model::session::SessionRef;

/// Changes that follow from one ledger message.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SessionRows<'a> {
    pub(super) turns: Vec<TurnChange<'a>>,
    pub(super) messages: Vec<MessageRow<'a>>,
    pub(super) tools: Vec<ToolChange<'a>>,
    pub(super) ends: Vec<DispatchEnd>,
    pub(super) approvals: Vec<ApprovalChange<'a>>,
    pub(super) intents: Vec<IntentChange>,
    pub(super) tokens_in: u64,
    pub(super) tokens_out: u64,
    /// Name of the model that answered last, if an entry names it.
    pub(super) model: Option<&'a str>,
    /// The turn that the next one follows, if this message changes that; the inner `None` after a reset.
    pub(super) head: Option<Option<String>>,
    /// Id of the turn that is under way after this message.
    pub(super) running: Option<String>,
}

/// A turn that began, ended, or both.
#[derive(Debug, PartialEq)]
pub(super) struct TurnChange<'a> {
    pub(super) id: String,
    pub(super) started: Option<StartedTurn<'a>>,
    pub(super) ended: Option<EndedTurn>,
}

#[derive(Debug, PartialEq)]
pub(super) struct StartedTurn<'a> {
    pub(super) parent: Option<String>,
    pub(super) dispatches: &'a [DispatchRef],
}

#[derive(Debug, PartialEq)]
pub(super) struct EndedTurn {
    pub(super) status: &'static str,
    pub(super) replied: bool,
    /// Reason for the failure or interruption.
    pub(super) outcome: Option<String>,
}

/// One message in a turn.
#[derive(Debug, PartialEq)]
pub(super) struct MessageRow<'a> {
    pub(super) id: String,
    pub(super) turn: String,
    pub(super) role: &'static str,
    pub(super) content: &'a str,
}

/// News about a tool call.
#[derive(Debug, PartialEq)]
pub(super) struct ToolChange<'a> {
    pub(super) turn: String,
    pub(super) call: &'a str,
    pub(super) name: Option<&'a str>,
    pub(super) arguments: Option<&'a Value>,
    pub(super) started: bool,
    pub(super) ended: bool,
    /// Outcome of the call, once the hooks after the call have seen it: they may withhold some of it.
    pub(super) outcome: Option<&'a ToolOutcome>,
}

/// A dispatch that went into a turn, or will not.
#[derive(Debug, PartialEq)]
pub(super) struct DispatchEnd {
    pub(super) dispatch: Ulid,
    pub(super) turn: Option<String>,
    /// Reason why it will not, for people.
    pub(super) dropped: Option<String>,
    /// Whether this end counts, and not a former one.
    pub(super) replaces: bool,
}

/// A new approval, or the end of one.
#[derive(Debug, PartialEq)]
pub(super) enum ApprovalChange<'a> {
    /// The approval was asked for in this turn.
    Asked { request: &'a ApprovalRequest },
    /// The approval was decided, or ended without a decision.
    Decided { id: &'a str, status: ApprovalStatus },
}

/// An unanswered intent, or the end of one.
#[derive(Debug, PartialEq)]
pub(super) enum IntentChange {
    /// The turn of the intent ended without an answer.
    Owed(Box<ProposeIntent>),
    /// The intent with this id is answered for or given up.
    Settled(String),
}

/// Returns the session that `record` opens, if it opens one.
pub(super) fn opened_session(record: &LedgerRecord) -> Option<&SessionRef> {
    record.entries.iter().find_map(|entry| {
        if let LedgerEntry::SessionOpened { session } = entry {
            Some(session)
        } else {
            None
        }
    })
}

/// Returns whether `record` has entries of a turn that an earlier message began.
pub(super) fn continues_turn(record: &LedgerRecord) -> bool {
    record
        .entries
        .iter()
        .find_map(names_a_turn)
        .is_some_and(|began_here| !began_here)
}

/// Returns whether `entry` begins a turn (`true`), needs one to be under way (`false`), or neither (`None`).
const fn names_a_turn(entry: &LedgerEntry) -> Option<bool> {
    match entry {
        LedgerEntry::TurnStarted { .. } => Some(true),
        LedgerEntry::ModelAnswered { .. }
        | LedgerEntry::ToolStarted { .. }
        | LedgerEntry::ToolFinished { .. }
        | LedgerEntry::Steered { .. }
        | LedgerEntry::TurnCompleted { .. }
        | LedgerEntry::TurnFailed { .. }
        | LedgerEntry::TurnInterrupted { .. } => Some(false),
        LedgerEntry::SessionOpened { .. }
        | LedgerEntry::Owned { .. }
        | LedgerEntry::CostReserved { .. }
        | LedgerEntry::ApprovalRequested { .. }
        | LedgerEntry::ApprovalDecided { .. }
        | LedgerEntry::HookRan { .. }
        | LedgerEntry::ContextAdded { .. }
        | LedgerEntry::ToolsHidden { .. }
        | LedgerEntry::ReminderShown { .. }
        | LedgerEntry::IntentRefused { .. }
        | LedgerEntry::IntentOwed { .. }
        | LedgerEntry::IntentSettled { .. }
        | LedgerEntry::PostHooksDue { .. }
        | LedgerEntry::UnseenCallShown { .. }
        | LedgerEntry::PostHookRan { .. }
        | LedgerEntry::PostHookFailed { .. }
        | LedgerEntry::PostHooksSettled { .. }
        | LedgerEntry::ReplyPublished { .. }
        | LedgerEntry::Checkpoint { .. }
        | LedgerEntry::DispatchDropped { .. }
        | LedgerEntry::Compacted { .. }
        | LedgerEntry::SessionReset { .. }
        | LedgerEntry::Ordered { .. } => None,
    }
}

/// Folds `record`, before which the turn `running` was under way.
pub(super) fn fold_record<'a>(record: &'a LedgerRecord, running: Option<&str>) -> SessionRows<'a> {
    let mut rows = SessionRows {
        running: running.map(str::to_owned),
        ..SessionRows::default()
    };
    for entry in &record.entries {
        rows.take(entry);
    }
    rows
}

impl<'a> SessionRows<'a> {
    /// Applies one entry.
    fn take(&mut self, entry: &'a LedgerEntry) {
        match entry {
            LedgerEntry::TurnStarted {
                turn,
                parent,
                dispatches,
                permissions: _,
                limits: _,
            } => self.start(*turn, *parent, dispatches),
            LedgerEntry::ModelAnswered {
                step,
                content,
                tool_calls,
                usage,
                opaque: _,
                attachments: _,
                model,
            } => {
                // Later answers of a turn may leave the model out.
                self.model = model.as_deref().or(self.model);
                self.add_answer(*step, content, tool_calls, *usage);
            }
            LedgerEntry::ToolStarted {
                call,
                name,
                args_hash: _,
                arguments: _,
            } => self.note_tool(call, Some(name), None),
            LedgerEntry::ToolFinished { call, outcome, unseen } => {
                self.note_tool(call, None, Some((!unseen).then_some(outcome)));
            }
            LedgerEntry::Steered { dispatch, backlog: _ } => self.add_steered(dispatch),
            LedgerEntry::TurnCompleted { turn, reply, head, .. } => self.complete(*turn, reply.is_some(), *head),
            LedgerEntry::TurnFailed {
                turn, failure, reply, ..
            } => self.fail(*turn, failure, reply.as_deref()),
            LedgerEntry::TurnInterrupted {
                turn, reason, partial, ..
            } => self.interrupt(*turn, reason, partial),
            LedgerEntry::DispatchDropped {
                dispatch,
                reason,
                detail,
                cursor: _,
            } => self.drop_dispatch(dispatch.id, *reason, detail.as_deref()),
            LedgerEntry::ApprovalRequested { request } => self.approvals.push(ApprovalChange::Asked { request }),
            LedgerEntry::ApprovalDecided { decision, .. } => self.approvals.push(ApprovalChange::Decided {
                id: &decision.id,
                status: decision.status,
            }),
            LedgerEntry::IntentOwed { proposal } => self.intents.push(IntentChange::Owed(proposal.clone())),
            LedgerEntry::IntentSettled { id, note: _ } => self.intents.push(IntentChange::Settled(id.to_string())),
            LedgerEntry::SessionReset { .. } => self.head = Some(None),
            LedgerEntry::SessionOpened { .. }
            | LedgerEntry::Owned { .. }
            | LedgerEntry::CostReserved { .. }
            | LedgerEntry::HookRan { .. }
            | LedgerEntry::ContextAdded { .. }
            | LedgerEntry::ToolsHidden { .. }
            | LedgerEntry::ReminderShown { .. }
            | LedgerEntry::IntentRefused { .. }
            | LedgerEntry::PostHooksDue { .. }
            | LedgerEntry::UnseenCallShown { .. }
            | LedgerEntry::PostHookRan { .. }
            | LedgerEntry::PostHookFailed { .. }
            | LedgerEntry::PostHooksSettled { .. }
            | LedgerEntry::ReplyPublished { .. }
            | LedgerEntry::Checkpoint { .. }
            | LedgerEntry::Compacted { .. }
            | LedgerEntry::Ordered { .. } => {}
        }
    }

    fn drop_dispatch(&mut self, dispatch: Ulid, reason: DropReason, detail: Option<&str>) {
        self.ends.push(DispatchEnd {
            dispatch,
            turn: None,
            dropped: Some(reason.describe(detail)),
            replaces: !reason.has_another_end(),
        });
    }

    fn complete(&mut self, turn: Ulid, replied: bool, head: Ulid) {
        self.head = Some(Some(head.to_string()));
        self.end_turn(
            turn,
            EndedTurn {
                status: "completed",
                replied,
                outcome: None,
            },
        );
    }

    fn fail(&mut self, turn: Ulid, failure: &TurnFailure, reply: Option<&'a Reply>) {
        if let Some(reply) = reply {
            let turn = turn.to_string();
            self.add_message(format!("{turn}/reply"), turn, "assistant", &reply.content);
        }

        self.end_turn(
            turn,
            EndedTurn {
                status: "failed",
                replied: reply.is_some(),
                outcome: Some(failure_text(failure)),
            },
        );
    }

    fn interrupt(&mut self, turn: Ulid, reason: &str, partial: &'a str) {
        let id = turn.to_string();
        self.add_message(format!("{id}/partial"), id, "assistant", partial);
        self.end_turn(
            turn,
            EndedTurn {
                status: "interrupted",
                replied: false,
                outcome: Some(reason.to_owned()),
            },
        );
    }

    fn start(&mut self, turn: Ulid, parent: Option<Ulid>, dispatches: &'a [DispatchRef]) {
        let id = turn.to_string();
        for dispatch in dispatches {
            // The id of a message follows from its turn and dispatch, so that a repetition writes the same row.
            self.add_message(
                format!("{id}/user/{}", dispatch.id),
                id.clone(),
                "user",
                &dispatch.content,
            );

            self.ends.push(DispatchEnd {
                dispatch: dispatch.id,
                turn: Some(id.clone()),
                dropped: None,
                replaces: true,
            });
        }

        let started = StartedTurn {
            parent: parent.map(|parent| parent.to_string()),
            dispatches,
        };
        self.turns.push(TurnChange {
            id: id.clone(),
            started: Some(started),
            ended: None,
        });

        self.running = Some(id);
    }

    fn add_answer(&mut self, step: u32, content: &'a str, calls: &'a [ToolCall], usage: TurnUsage) {
        self.tokens_in = self.tokens_in.saturating_add(usage.tokens_in);
        self.tokens_out = self.tokens_out.saturating_add(usage.tokens_out);

        let Some(turn) = self.running.clone() else { return };
        for call in calls {
            self.tools.push(ToolChange {
                turn: turn.clone(),
                call: &call.call,
                name: Some(&call.name),
                arguments: Some(&call.arguments),
                started: false,
                ended: false,
                outcome: None,
            });
        }

        self.add_message(format!("{turn}/assistant/{step}"), turn, "assistant", content);
    }

    /// Records the call of the tool `name`: begun if `ended` is `None`, else ended, with its outcome if that is known
    /// yet.
    fn note_tool(&mut self, call: &'a str, name: Option<&'a str>, ended: Option<Option<&'a ToolOutcome>>) {
        let Some(turn) = self.running.clone() else { return };
        self.tools.push(ToolChange {
            turn,
            call,
            name,
            arguments: None,
            started: ended.is_none(),
            ended: ended.is_some(),
            outcome: ended.flatten(),
        });
    }

    fn add_steered(&mut self, dispatch: &'a DispatchRef) {
        let Some(turn) = self.running.clone() else { return };
        self.ends.push(DispatchEnd {
            dispatch: dispatch.id,
            turn: Some(turn.clone()),
            dropped: None,
            replaces: true,
        });
        self.add_message(format!("{turn}/user/{}", dispatch.id), turn, "user", &dispatch.content);
    }

    fn end_turn(&mut self, turn: Ulid, ended: EndedTurn) {
        let id = turn.to_string();
        if self.running.as_deref() == Some(id.as_str()) {
            self.running = None;
        }

        match self.turns.iter_mut().find(|change| change.id == id) {
            Some(change) => change.ended = Some(ended),
            None => self.turns.push(TurnChange {
                id,
                started: None,
                ended: Some(ended),
            }),
        }
    }

    fn add_message(&mut self, id: String, turn: String, role: &'static str, content: &'a str) {
        if !content.is_empty() {
            self.messages.push(MessageRow {
                id,
                turn,
                role,
                content,
            });
        }
    }
}

fn failure_text(failure: &TurnFailure) -> String {
    match failure {
        TurnFailure::NoAgent => "no_agent".to_owned(),
        TurnFailure::Limit { limit } => format!("limit: {limit}"),
        TurnFailure::Agent { error } => format!("agent: {error}"),
        TurnFailure::BadDispatch { error } => format!("bad_dispatch: {error}"),
    }
}
