//! What humans are asked in a running turn, and what they have answered. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::approval::{ApprovalDecision, ApprovalRequest, ApprovalStatus, Ask};
use shared::model::ledger::ToolCall;
use shared::model::time::UnixMillis;

use super::Running;
use crate::approval::outside::is_outside;
use crate::turn::arguments::args_hash;
use crate::turn::used::Stamp;

/// An approval that a turn waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    /// The approval's id.
    pub approval: String,
    /// When it lapses.
    pub expires_at: UnixMillis,
}

/// A human's word that was asked for in a running turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The approval's id.
    pub approval: String,
    /// The call that it is about.
    pub call: String,
    /// Hash of the arguments that were asked for.
    pub arguments_hash: String,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// The arguments as the approver edited them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<Value>,
    /// Who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// What they wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// How it was asked for.
    pub ask: Ask,
    /// The agent runs the call itself and has asked by itself: KV decides what becomes of the approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
}

impl Asked {
    /// Whether nothing has become of it yet: nobody has decided, or where KV decides, the call may be given out still.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        match self.status {
            ApprovalStatus::Pending => true,
            ApprovalStatus::Approved => self.outside,
            ApprovalStatus::Rejected
            | ApprovalStatus::Expired
            | ApprovalStatus::Cancelled
            | ApprovalStatus::Superseded
            | ApprovalStatus::Consumed => false,
        }
    }
}

/// Where a call stands with the humans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody was asked.
    None,
    /// Somebody was, and has not answered.
    Pending,
    /// Exactly these arguments are approved.
    Approved,
    /// The approval was used, and the ledger does not have the call's beginning: whether it ran is unknown.
    Used,
    /// Somebody said no.
    Rejected {
        /// Who.
        by: String,
        /// What they wrote.
        response: Option<String>,
    },
    /// Nobody answered in time.
    Expired,
    /// The question was withdrawn.
    Cancelled,
    /// Other arguments were approved, or asked for.
    Superseded,
}

/// Where the call `call` of `running` stands, whose final arguments have the hash `arguments_hash`, and of which its
/// gates want humans asked as `ask` says: an approver who edits arguments may lead to ones that others must approve.
#[must_use]
pub fn stands(running: &Running, call: &str, arguments_hash: &str, ask: Option<&Ask>) -> Standing {
    let Some(asked) = running.last_asked(call) else {
        return Standing::None;
    };
    match asked.status {
        ApprovalStatus::Pending => Standing::Pending,
        ApprovalStatus::Consumed => Standing::Used,
        ApprovalStatus::Approved => {
            let edited = asked.edited.as_ref().map(args_hash);
            let same = edited.as_deref().unwrap_or(&asked.arguments_hash) == arguments_hash;
            if same && ask.is_none_or(|ask| asked.ask.scope.covers(&ask.scope)) {
                Standing::Approved
            } else {
                Standing::Superseded
            }
        }
        ApprovalStatus::Rejected => Standing::Rejected {
            by: asked.decided_by.clone().unwrap_or_default(),
            response: asked.response.clone(),
        },
        ApprovalStatus::Expired => Standing::Expired,
        ApprovalStatus::Cancelled => Standing::Cancelled,
        ApprovalStatus::Superseded => Standing::Superseded,
    }
}

impl Running {
    /// What a human was last asked about `call`.
    #[must_use]
    pub fn last_asked(&self, call: &str) -> Option<&Asked> {
        self.asked.iter().rev().find(|asked| asked.call == call)
    }

    /// How often a human was asked about `call`.
    #[must_use]
    pub fn times_asked(&self, call: &str) -> usize {
        self.asked.iter().filter(|asked| asked.call == call).count()
    }

    /// The arguments with which the gates of `call` begin: as an approver edited them last, or as the model wrote them.
    #[must_use]
    pub fn arguments_of(&self, call: &ToolCall) -> Value {
        let edited = self.asked.iter().rev().filter(|asked| asked.call == call.call);
        let edited = edited.filter_map(|asked| asked.edited.as_ref()).next();
        edited.unwrap_or(&call.arguments).clone()
    }

    /// Begins to wait, or ends it, at `now`.
    fn wait_or_go_on(&mut self, awaits: Option<Awaited>, now: Stamp) {
        match awaits {
            Some(_) => self.used.suspend(now),
            None => self.used.resume(now),
        }
        self.awaits = awaits;
    }

    /// Whether the ledger has the question `approval`.
    #[must_use]
    pub fn has_asked(&self, approval: &str) -> bool {
        self.asked.iter().any(|asked| asked.approval == approval)
    }

    /// Whether the ledger has the question `approval`, and nobody's answer to it.
    #[must_use]
    pub fn is_open(&self, approval: &str) -> bool {
        let open = |asked: &Asked| asked.approval == approval && asked.status == ApprovalStatus::Pending;
        self.asked.iter().any(open)
    }

    /// Whether the question `approval` was asked by the agent itself.
    #[must_use]
    pub fn is_outside(&self, approval: &str) -> bool {
        self.asked
            .iter()
            .any(|asked| asked.approval == approval && asked.outside)
    }

    /// Takes in that a human was asked, at `now`. What an agent asks by itself its turn waits for once that is said again.
    pub(super) fn ask(&mut self, request: &ApprovalRequest, now: Stamp) {
        let awaited = Awaited {
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

        let lasts = u64::try_from(request.expires_at.since(now.at))
            .ok()
            .filter(|ms| *ms > 0);
        self.asked.push(Asked {
            approval: request.id.clone(),
            call: request.call.clone(),
            arguments_hash: request.arguments_hash.clone(),
            status: ApprovalStatus::Pending,
            edited: None,
            decided_by: None,
            response: None,
            ask: Ask {
                policy: request.policy.clone(),
                scope: asked_in.map(|asked| asked.scope.clone()).unwrap_or_default(),
                expires_ms: lasts,
                escalate_at: None,
                reason: asked_in.and_then(|asked| asked.reason.clone()),
            },
            outside,
        });
    }

    /// Takes in how a question ended, at `now`.
    pub(super) fn decide(&mut self, decision: &ApprovalDecision, now: Stamp) {
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
