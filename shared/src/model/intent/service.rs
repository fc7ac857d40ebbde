//! Questions to and answers of `nexus.svc.intent.*`, in JSON. *Pure.* Source: `docs/design/schedules.md` §3.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::{Intent, IntentRecord, IntentSchedule, IntentStatus, IntentWish, Rejection};
use crate::model::dispatch::DeliveryContext;
use crate::model::event::EventId;
use crate::model::permission::PermissionSet;
use crate::model::time::UnixMillis;

/// Name of the service: its endpoints are `nexus.svc.intent.{propose,cancel,reschedule,list,get,decide,session_reset}`.
pub const SERVICE: &str = "intent";
/// Most intents of one answer to `list`.
pub const MAX_LISTED: usize = 200;

/// `propose`: an agent, or an operator in its name, asks for an intent. Answered with [`IntentAnswer`], refused or not.
/// The same id again gets the first answer again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposeIntent {
    /// Derived from its cause (turn and tool call), so that a repeated question is the same intent; absent = a fresh one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Ulid>,
    /// What is asked for.
    pub wish: IntentWish,
    /// The asking persona.
    pub agent: String,
    /// The asking session.
    pub session: String,
    /// The asking turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Ulid>,
    /// What the asking turn may do, its presets filled in: the intent's turns may do no more.
    pub permissions: PermissionSet,
    /// Where the asking turn's answer goes; the intent's turns answer there too.
    pub delivery_context: DeliveryContext,
    /// The event that the asking turn answers: an intent's firing makes the chain one longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation: Option<EventId>,
}

/// `cancel`. Answered with [`IntentAnswer`]; 404 where there is none, 409 where it is over. The turn of one that runs is
/// interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelIntent {
    /// Which.
    pub id: Ulid,
    /// The asking persona: only its own are found; absent = an operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The asking turn, where one asks: it is not interrupted, though it be the intent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Ulid>,
    /// Who asks, where no agent does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// `reschedule`. Answered with [`IntentAnswer`]: with a rejection where the new schedule is not admitted (the intent
/// stays as it was then); 404 where there is none, 409 where it is not pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RescheduleIntent {
    /// Which.
    pub id: Ulid,
    /// The new schedule.
    pub schedule: IntentSchedule,
    /// The asking persona: only its own are found; absent = an operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Who asks, where no agent does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// `list`. Answered with [`IntentList`], oldest change first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListIntents {
    /// Only this persona's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Only those that this session asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only those that stand there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<IntentStatus>,
    /// Go on behind this place: `next` of the answer before.
    #[serde(default)]
    pub after: u64,
    /// At most so many; absent = 50, never more than [`MAX_LISTED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Answer of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IntentList {
    /// Those found.
    pub intents: Vec<Intent>,
    /// Where to go on; absent = there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// `get`. Answered with [`IntentHistory`]; 404 where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetIntent {
    /// Which.
    pub id: Ulid,
    /// The asking persona: only its own are found; absent = an operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// Answer of `get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentHistory {
    /// As it stands.
    pub intent: Intent,
    /// Its transitions out of `AUDIT`, in order.
    pub history: Vec<IntentRecord>,
}

/// `session_reset`: a session's history began anew, so what waits for the end of its chat is due. Answered with
/// [`IntentList`]: those that were. The same again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellReset {
    /// The session's persona.
    pub agent: String,
    /// The session.
    pub session: String,
    /// When it began anew: what was asked for later does not count.
    pub at: UnixMillis,
}

/// `decide`: an approver's word. Answered with [`IntentAnswer`]; the same word again is answered alike, another one
/// with 409.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideIntent {
    /// Which.
    pub id: Ulid,
    /// Yes or no.
    pub approve: bool,
    /// Who says so; never an agent.
    pub by: String,
    /// What they say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// Where an intent stands after a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentAnswer {
    /// Which.
    pub id: Ulid,
    /// Where it stands.
    pub status: IntentStatus,
    /// When it fires next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// Why it, or the new schedule, was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// The approval that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
}

impl IntentAnswer {
    /// As `intent` stands.
    #[must_use]
    pub fn of(intent: &Intent) -> Self {
        Self {
            id: intent.intent.id,
            status: intent.status,
            due: intent.due,
            rejection: intent.rejection.clone(),
            approval: None,
        }
    }
}
