//! The question that a human gets about a call, and on whose behalf it is asked. *Pure.*

use shared::model::approval::{
    ApprovalAsk, ApprovalParty, ApprovalRequest, ApprovalStatus, ApprovalTrail, AskedIn, ConfirmationTerms,
    DEFAULT_EXPIRES_MS, DecisionProof, MAX_EXPIRES_MS,
};
use shared::model::ledger::ToolCall;
use shared::model::origin::OWN_ADAPTERS;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::scope::{AGENT, describe_scope};
use crate::agent::port::TurnOrigin;
use crate::session::PendingDispatch;
use crate::turn::arguments::args_hash;

/// Maximum number of questions about one call before it is given up; its arguments change each time.
pub const MAX_ASKS: usize = 8;

/// Returns the author of all of `pendings`; `None` if there are several authors.
#[must_use]
pub fn find_initiator(pendings: &[PendingDispatch]) -> Option<ApprovalParty> {
    let first = pendings.first().map(message_author)?;
    pendings
        .iter()
        .all(|pending| message_author(pending) == first)
        .then_some(first)
}

/// Returns the author of the message of `pending`, as far as the origin of its event proves the author; if one of our
/// own services wrote it, an agent.
#[must_use]
pub fn message_author(pending: &PendingDispatch) -> ApprovalParty {
    let message = &pending.dispatch.message;
    let adapter = pending.dispatch.event_id.adapter();
    let channel = if OWN_ADAPTERS.iter().any(|own| adapter.eq_ignore_ascii_case(own)) {
        AGENT
    } else {
        message.channel.as_deref().unwrap_or(adapter)
    };

    ApprovalParty {
        channel: channel.to_owned(),
        id: message.from.clone(),
        proof: if message.proven {
            DecisionProof::Channel
        } else {
            DecisionProof::Nobody
        },
        person: message.person.clone(),
    }
}

/// The turn in which a question is asked.
#[derive(Debug, Clone)]
pub struct AskingTurn<'a> {
    /// Session of the turn.
    pub session: &'a SessionRef,
    /// Id of the turn.
    pub turn: Ulid,
    /// Author of the messages that the turn answers.
    pub initiator: Option<ApprovalParty>,
    /// Source of the turn and destination of its answer.
    pub origin: TurnOrigin,
    /// Time of the question.
    pub now: UnixMillis,
}

impl AskingTurn<'_> {
    /// Returns the question `id` about `call`, asked as `ask` says; `outside` is as in [`AskedIn`].
    #[must_use]
    pub fn into_question(
        self,
        id: String,
        call: ToolCall,
        ask: &ApprovalAsk,
        outside: Option<String>,
    ) -> ConfirmationTerms {
        // The maximum holds for every policy.
        let lasts = ask.expires_ms.unwrap_or(DEFAULT_EXPIRES_MS).min(MAX_EXPIRES_MS);
        let lasts = i64::try_from(lasts).unwrap_or(i64::MAX);
        let asked_in = AskedIn {
            session: self.session.clone(),
            turn: self.turn,
            scope: ask.scope.clone(),
            initiator: self.initiator,
            reason: ask.reason.clone(),
            escalate_at: ask.escalate_at.map(|part| self.now.plus(part_of(lasts, part))),
            place: self.origin.delivery,
            causation: self.origin.causation,
            outside,
        };

        let request = ApprovalRequest {
            id,
            call: call.call,
            tool: call.name,
            arguments_hash: args_hash(&call.arguments),
            arguments: call.arguments,
            policy: ask.policy.clone(),
            approvers: vec![describe_scope(&ask.scope)],
            expires_at: self.now.plus(lasts),
            asked_in: Some(Box::new(asked_in)),
        };

        ConfirmationTerms {
            request,
            status: ApprovalStatus::Pending,
            requested_by: format!("agent:{}", self.session.persona),
            requested_at: self.now,
            decided_at: None,
            decided_by: None,
            response: None,
            trail: ApprovalTrail::default(),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "seven days in milliseconds are exact in both"
)]
fn part_of(millis: i64, part: f64) -> i64 {
    (millis as f64 * part.clamp(0.0, 1.0)) as i64
}
