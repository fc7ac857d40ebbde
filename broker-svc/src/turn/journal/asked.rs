//! Approvals that are asked for in a running turn, and their decisions. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::approval::{ApprovalAsk, ApprovalDecision, ApprovalRequest, ApprovalStatus};
use shared::model::ledger::ToolCall;
use shared::model::time::UnixMillis;

use super::RunningTurn;
use crate::approval::external_tool::is_outside;
use crate::turn::arguments::args_hash;
use crate::turn::used::RecordTime;

/// An approval that a turn waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedApproval {
    /// Id of the approval.
    pub approval: String,
    /// Time at which the approval lapses.
    pub expires_at: UnixMillis,
}

/// An approval that was asked for in a running turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskedApproval {
    /// Id of the approval.
    pub approval: String,
    /// Id of the call that it is about.
    pub call: String,
    /// Hash of the arguments that were asked about.
    pub arguments_hash: String,
    /// Status of the approval according to the ledger.
    pub status: ApprovalStatus,
    /// Arguments as the approver edited them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<Value>,
    /// Name of the person who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Note that the approver wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Scope and times of the question.
    pub ask: ApprovalAsk,
    /// Whether the agent runs the call itself and has asked by itself: then KV decides about the approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
}

impl AskedApproval {
    /// Returns whether the approval is open: it is not decided or, if KV decides, the call may still be given out.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        match self.status {
            ApprovalStatus::Pending => true,
            ApprovalStatus::Approved => self.outside,
            ApprovalStatus::Denied
            | ApprovalStatus::Expired
            | ApprovalStatus::Canceled
            | ApprovalStatus::Superseded
            | ApprovalStatus::Consumed => false,
        }
    }
}

/// State of a call's approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallApproval {
    /// No approval was asked for.
    None,
    /// An approval was asked for, and is not decided.
    Pending,
    /// Exactly these arguments are approved.
    Approved,
    /// The approval was used, and the ledger does not have the call's beginning: it is unknown whether the call ran.
    Used,
    /// The call was denied.
    Denied {
        /// Name of the person who denied it.
        by: String,
        /// Note that the person wrote.
        response: Option<String>,
    },
    /// The approval expired without a decision.
    Expired,
    /// The approval was canceled: the turn no longer waits for it.
    Canceled,
    /// Other arguments were approved, or asked about.
    Superseded,
}

/// Returns the approval state of the call `call` of `running`. `arguments_hash` is the hash of its final arguments,
/// and `ask` is how its gates want humans asked: an approver's edited arguments may be ones that other persons must
/// approve.
#[must_use]
pub fn call_standing(
    running: &RunningTurn,
    call: &str,
    arguments_hash: &str,
    ask: Option<&ApprovalAsk>,
) -> CallApproval {
    let Some(asked) = running.last_asked(call) else {
        return CallApproval::None;
    };
    match asked.status {
        ApprovalStatus::Pending => CallApproval::Pending,
        ApprovalStatus::Consumed => CallApproval::Used,
        ApprovalStatus::Approved => {
            // Arguments that were edited with the decision are the ones that were approved.
            let edited = asked.edited.as_ref().map(args_hash);
            let same = edited.as_deref().unwrap_or(&asked.arguments_hash) == arguments_hash;
            if same && ask.is_none_or(|ask| asked.ask.scope.covers(&ask.scope)) {
                CallApproval::Approved
            } else {
                CallApproval::Superseded
            }
        }
        ApprovalStatus::Denied => CallApproval::Denied {
            by: asked.decided_by.clone().unwrap_or_default(),
            response: asked.response.clone(),
        },
        ApprovalStatus::Expired => CallApproval::Expired,
        ApprovalStatus::Canceled => CallApproval::Canceled,
        ApprovalStatus::Superseded => CallApproval::Superseded,
    }
}

impl RunningTurn {
    /// Returns the last approval that was asked for `call`.
    #[must_use]
    pub fn last_asked(&self, call: &str) -> Option<&AskedApproval> {
        self.asked.iter().rev().find(|asked| asked.call == call)
    }

    /// Returns the number of approvals that were asked for `call`.
    #[must_use]
    pub fn times_asked(&self, call: &str) -> usize {
        self.asked.iter().filter(|asked| asked.call == call).count()
    }

    /// Returns the arguments with which the gates of `call` begin: as last edited by an approver, or as the model
    /// wrote them.
    #[must_use]
    pub fn arguments_of(&self, call: &ToolCall) -> Value {
        let edited = self.asked.iter().rev().filter(|asked| asked.call == call.call);
        let edited = edited.filter_map(|asked| asked.edited.as_ref()).next();
        edited.unwrap_or(&call.arguments).clone()
    }

    /// Begins or ends the wait for an approval, at `now`.
    fn wait_or_go_on(&mut self, awaits: Option<AwaitedApproval>, now: RecordTime) {
        match awaits {
            Some(_) => self.used.suspend_at(now),
            None => self.used.resume_at(now),
        }
        self.awaits = awaits;
    }

    /// Returns whether the ledger has the question `approval`.
    #[must_use]
    pub fn has_asked(&self, approval: &str) -> bool {
        self.asked.iter().any(|asked| asked.approval == approval)
    }

    /// Returns whether the ledger has the question `approval` without a decision.
    #[must_use]
    pub fn is_open(&self, approval: &str) -> bool {
        let open = |asked: &AskedApproval| asked.approval == approval && asked.status == ApprovalStatus::Pending;
        self.asked.iter().any(open)
    }

    /// Returns whether the agent itself asked the question `approval`.
    #[must_use]
    pub fn is_outside(&self, approval: &str) -> bool {
        self.asked
            .iter()
            .any(|asked| asked.approval == approval && asked.outside)
    }

    /// Returns the questions that the agent itself asked and that are open for it.
    pub fn open_outside(&self) -> impl Iterator<Item = &AskedApproval> {
        self.asked.iter().filter(|asked| asked.outside && asked.is_open())
    }

    /// Records a question at `now`. The turn waits for a question that its agent asks by itself only once it is
    /// recorded a second time.
    pub(super) fn apply_asked(&mut self, request: &ApprovalRequest, now: RecordTime) {
        let awaited = AwaitedApproval {
            approval: request.id.clone(),
            expires_at: request.expires_at,
        };
        let asked_in = request.asked_in.as_deref();
        let outside = is_outside(asked_in);
        if !outside || self.is_open(&request.id) {
            self.wait_or_go_on(Some(awaited), now);
        }

        if self.has_asked(&request.id) {
            return;
        }

        // The remaining time becomes the time of a follow-up question with the same policy.
        let lasts = u64::try_from(request.expires_at.since(now.at))
            .ok()
            .filter(|ms| *ms > 0);
        self.asked.push(AskedApproval {
            approval: request.id.clone(),
            call: request.call.clone(),
            arguments_hash: request.arguments_hash.clone(),
            status: ApprovalStatus::Pending,
            edited: None,
            decided_by: None,
            response: None,
            ask: ApprovalAsk {
                policy: request.policy.clone(),
                scope: asked_in.map(|asked| asked.scope.clone()).unwrap_or_default(),
                expires_ms: lasts,
                escalate_at: None,
                reason: asked_in.and_then(|asked| asked.reason.clone()),
            },
            outside,
        });
    }

    /// Records the decision of a question, at `now`.
    pub(super) fn apply_decided(&mut self, decision: &ApprovalDecision, now: RecordTime) {
        if self
            .awaits
            .as_ref()
            .is_some_and(|awaited| awaited.approval == decision.id)
        {
            self.wait_or_go_on(None, now);
        }

        if let Some(asked) = self.asked.iter_mut().rev().find(|asked| asked.approval == decision.id) {
            asked.status = decision.status;
            asked.decided_by.clone_from(&decision.decided_by);
            asked.response.clone_from(&decision.response);
            if decision.arguments.is_some() {
                asked.edited.clone_from(&decision.arguments);
            }
        }
    }
}
