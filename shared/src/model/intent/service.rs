//! Requests to and responses of `nexus.svc.intent.*`, in JSON. *Pure.* Source: `docs/design/schedules.md` §3.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::{Intent, IntentRecord, IntentRejection, IntentSchedule, IntentStatus, IntentWish};
use crate::model::dispatch::DeliveryContext;
use crate::model::event::EventId;
use crate::model::permission::PermissionSet;
use crate::model::time::UnixMillis;
use crate::wire::unknown::read_strict;

/// Name of the service. Its endpoints are
/// `nexus.svc.intent.{propose,cancel,reschedule,list,get,decide,session_reset}`.
pub const SERVICE: &str = "intent";
/// Maximum number of intents in one response of `list`.
pub const MAX_LISTED: usize = 200;

/// `propose`: an agent, or an operator in its name, requests an intent. The response is an [`IntentAnswer`] in either
/// case, admitted or refused. A repeated request with the same id gets the first response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposeIntent {
    /// Id derived from the cause (turn and tool call), so that a repeated request is the same intent; absent = a new
    /// id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Ulid>,
    /// The intent that the agent requests.
    pub wish: IntentWish,
    /// Persona that requests it.
    pub agent: String,
    /// Key of the session that requests it.
    pub session: String,
    /// Turn that requests it; absent if an operator does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Ulid>,
    /// Permissions of the requesting turn with its presets filled in; the intent's turns have at most these.
    pub permissions: PermissionSet,
    /// Destination of the requesting turn's reply; the intent's turns reply there too.
    pub delivery_context: DeliveryContext,
    /// Event that the requesting turn answers: a firing of the intent makes the causal chain one hop longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation: Option<EventId>,
}

/// `cancel`: cancels an intent and interrupts its running turn. The response is an [`IntentAnswer`]; 404 if there is
/// no such intent, 409 if it is already final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelIntent {
    /// Id of the intent.
    pub id: Ulid,
    /// Persona that asks, which finds only its own intents; absent = an operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Turn that asks. It is not interrupted, even if it is the intent's own turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Ulid>,
    /// Name of the operator, if no agent asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Reason for the cancellation, for people.
    #[serde(default)]
    pub reason: String,
}

/// `reschedule`: changes the schedule of a pending intent. The response is an [`IntentAnswer`], with a rejection if
/// the new schedule is not admitted (the intent is then unchanged); 404 if there is no such intent, 409 if it is not
/// pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RescheduleIntent {
    /// Id of the intent.
    pub id: Ulid,
    /// New schedule of the intent.
    #[serde(deserialize_with = "read_strict")]
    pub schedule: IntentSchedule,
    /// Persona that asks, which finds only its own intents; absent = an operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name of the operator, if no agent asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Reason for the change, for people.
    #[serde(default)]
    pub reason: String,
}

/// `list`: returns an [`IntentList`], oldest change first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListIntents {
    /// Return only intents of this persona.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Return only intents that this session requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Return only intents in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<IntentStatus>,
    /// Place after which to continue: `next` of the response before; 0 = from the start.
    #[serde(default)]
    pub after: u64,
    /// Maximum number of intents; absent = 50, at most [`MAX_LISTED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The response to `list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IntentList {
    /// The intents found, oldest change first.
    pub intents: Vec<Intent>,
    /// Place at which to continue; absent = there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// `get`: returns an [`IntentHistory`]; 404 if there is no such intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetIntent {
    /// Id of the intent.
    pub id: Ulid,
    /// Persona that asks, which finds only its own intents; absent = an operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// The response to `get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentHistory {
    /// Current value of the intent.
    pub intent: Intent,
    /// Transitions of the intent from `AUDIT`, in order.
    pub history: Vec<IntentRecord>,
}

/// `session_reset`: a session's history was reset, so intents that wait for the end of its chat are due. The response
/// is an [`IntentList`] of these. Repeating the request has no further effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellReset {
    /// Persona of the session.
    pub agent: String,
    /// Key of the session.
    pub session: String,
    /// Time of the reset; intents requested later are not affected.
    pub at: UnixMillis,
}

/// `decide`: an approver's decision. The response is an [`IntentAnswer`]; the same decision again gets the same
/// response, and a different one gets 409.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideIntent {
    /// Id of the intent.
    pub id: Ulid,
    /// Whether to approve; `false` denies.
    pub approve: bool,
    /// Name of the approver, which is never an agent.
    pub by: String,
    /// Comment of the approver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// The state of an intent after a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentAnswer {
    /// Id of the intent.
    pub id: Ulid,
    /// State of the intent.
    pub status: IntentStatus,
    /// Time of the next firing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// Reason for refusing the intent or its new schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<IntentRejection>,
    /// Id of the approval for which it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
}

impl IntentAnswer {
    /// Returns the answer with the current state of `intent`.
    #[must_use]
    pub fn from_intent(intent: &Intent) -> Self {
        Self {
            id: intent.intent.id,
            status: intent.status,
            due: intent.due,
            rejection: intent.rejection.clone(),
            approval: None,
        }
    }
}
