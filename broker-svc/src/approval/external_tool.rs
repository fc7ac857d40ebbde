//! Approvals of calls that an agent runs itself: the response of its turn's gate. *Pure.*
//!
//! The questions about such a call have numbers, from 0: their ids follow from turn, call and number, so that any
//! broker finds the newest of them in KV, which alone decides. The agent asks the gate again, with the same call,
//! until there is a decision, and is given an approved call once: for the attempt that it names, or for the first
//! that asks.

use serde_json::Value;
use shared::model::approval::{ApprovalAsk, ApprovalStatus, AskedIn, ConfirmationTerms, DeciderScope};
use shared::model::dispatch::derived_ulid;
use shared::model::ledger::ToolCall;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::question::MAX_ASKS;
use crate::turn::arguments::args_hash;

/// Returns the id of question `number` about the call `call` of `turn`, which began at `began`.
#[must_use]
pub fn id_of(began: UnixMillis, turn: Ulid, call: &str, number: usize) -> String {
    let parts = ["outside", &turn.to_string(), call, &number.to_string()];
    derived_ulid(began, &parts).to_string()
}

/// Returns whether `asked` is about a call that the agent runs itself.
#[must_use]
pub fn is_outside(asked: Option<&AskedIn>) -> bool {
    asked.is_some_and(|asked| asked.outside.is_some())
}

/// The newest question about a call.
#[derive(Debug, Clone, PartialEq)]
pub struct NewestQuestion {
    /// Number of the question, counted from 0.
    pub number: usize,
    /// The question with its state.
    pub question: ConfirmationTerms,
    /// Arguments as an approver last edited them, if the agent's own arguments are still those.
    pub edited: Option<Value>,
}

impl NewestQuestion {
    /// Returns the question `number` after `before`, about arguments that the agent wrote with the hash `written`.
    #[must_use]
    pub fn with_previous(before: Option<Self>, number: usize, question: ConfirmationTerms, written: &str) -> Self {
        let edited = question.trail.edited.as_ref().map(|edited| edited.arguments.clone());
        let edited = edited.filter(|_| as_written(&question) == Some(written));
        Self {
            number,
            edited: edited.or(before.and_then(|before| before.edited)),
            question,
        }
    }
}

/// Knowledge about a call before its gates see it.
#[derive(Debug, Clone, PartialEq)]
pub enum PriorDecision {
    /// No decision that ends it, or an approval: its gates must see it.
    Open,
    /// The question is not answered yet.
    Waits,
    /// The call was given to this very attempt before, with these arguments.
    Given(Value),
    /// The call must not run; the text says why.
    Denied(String),
}

/// Returns the decision of `newest`, the newest question about `call`, for `attempt`, in which the agent makes the
/// call.
#[must_use]
pub fn prior_decision(newest: Option<&NewestQuestion>, call: &ToolCall, attempt: Option<&str>) -> PriorDecision {
    let Some(NewestQuestion { question: newest, .. }) = newest else {
        return PriorDecision::Open;
    };
    if newest.request.tool != call.name {
        let tool = &newest.request.tool;
        return PriorDecision::Denied(format!(
            "`{}` is the id of a call of `{tool}`: each call needs an id of its own",
            call.call
        ));
    }

    // The agent's own arguments are compared, not those that hooks or approvers made of them.
    let same = as_written(newest) == Some(args_hash(&call.arguments).as_str());
    let used = newest.status == ApprovalStatus::Consumed;
    // The same attempt repeats its request because it did not receive the answer.
    if used && same && attempt.is_some() && attempt == newest.trail.used_by.as_deref() {
        return PriorDecision::Given(standing_arguments(newest));
    }

    // Other arguments need another question.
    if !used && !same {
        return PriorDecision::Open;
    }

    match newest.status {
        ApprovalStatus::Consumed => PriorDecision::Denied(format!(
            "`{}` was allowed before, and an approval is used once; only the agent knows if it made the call",
            call.call
        )),
        ApprovalStatus::Pending => PriorDecision::Waits,
        ApprovalStatus::Denied => {
            let said = newest.response.as_ref().map(|said| format!(": {said}"));
            let by = newest.decided_by.as_deref().unwrap_or_default();
            PriorDecision::Denied(format!("denied by {by}{}", said.unwrap_or_default()))
        }
        ApprovalStatus::Expired => {
            PriorDecision::Denied("not approved: the approval expired without a decision".to_owned())
        }
        ApprovalStatus::Canceled => PriorDecision::Denied("not approved: the approval was canceled".to_owned()),
        ApprovalStatus::Approved | ApprovalStatus::Superseded => PriorDecision::Open,
    }
}

/// Next step after the gates have let a call through.
#[derive(Debug, Clone, PartialEq)]
pub enum CallDisposition {
    /// The call runs: no human must be asked.
    Run,
    /// The call runs if its approval can be used for it now.
    Use,
    /// Humans are asked; the question before this one is superseded.
    Ask {
        /// Scope and times of the question.
        ask: ApprovalAsk,
        /// Number of the new question.
        number: usize,
    },
    /// The call must not run; the text says why.
    Denied(String),
}

/// Returns the next step for a call that its gates let through with `arguments`; `ask` is how they want humans asked,
/// and `newest` is the newest question about the call. Once asked, a call runs only with the approved arguments.
#[must_use]
pub fn settle_call(newest: Option<&NewestQuestion>, arguments: &Value, ask: Option<ApprovalAsk>) -> CallDisposition {
    let Some(NewestQuestion {
        number,
        question: newest,
        ..
    }) = newest
    else {
        return ask.map_or(CallDisposition::Run, |ask| CallDisposition::Ask { ask, number: 0 });
    };

    // An approval counts only if its approvers are at least those that the gates demand now.
    let covers = |scope: &DeciderScope| {
        let asked = newest.request.asked_in.as_deref();
        asked.is_some_and(|asked| asked.scope.covers(scope))
    };
    let approved = newest.status == ApprovalStatus::Approved && newest.standing_hash() == args_hash(arguments);
    if approved && ask.as_ref().is_none_or(|ask| covers(&ask.scope)) {
        return CallDisposition::Use;
    }

    // An agent that changes its arguments each time must not keep people busy for ever.
    let number = number + 1;
    if number >= MAX_ASKS {
        return CallDisposition::Denied(format!(
            "not approved: its arguments changed after each of {MAX_ASKS} approvals"
        ));
    }

    // Without a gate's own demand, the same approvers are asked about the new arguments.
    let as_before = || ApprovalAsk {
        policy: newest.request.policy.clone(),
        scope: newest
            .request
            .asked_in
            .as_deref()
            .map(|asked| asked.scope.clone())
            .unwrap_or_default(),
        expires_ms: None,
        escalate_at: None,
        reason: newest
            .request
            .asked_in
            .as_deref()
            .and_then(|asked| asked.reason.clone()),
    };

    CallDisposition::Ask {
        ask: ask.unwrap_or_else(as_before),
        number,
    }
}

/// Returns the hash of the arguments of `newest` as the agent wrote them.
#[must_use]
pub fn as_written(newest: &ConfirmationTerms) -> Option<&str> {
    newest.request.asked_in.as_deref()?.outside.as_deref()
}

/// Returns the present arguments: the approver's if they were edited, else those that were asked for.
fn standing_arguments(newest: &ConfirmationTerms) -> Value {
    let edited = newest.trail.edited.as_ref().map(|edited| &edited.arguments);
    edited.unwrap_or(&newest.request.arguments).clone()
}

#[cfg(test)]
mod tests;
