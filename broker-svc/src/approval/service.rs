//! Serves `nexus.svc.approval.*`, through which every human decision passes. Source: `docs/design/sessions.md` §8.
//!
//! The bucket also holds the approvals of intents, which belong to the scheduler: `decide` checks that the owner
//! decides and forwards the decision.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{RequestError, ServiceHandle, ServiceSpec};
use shared::model::approval::Confirmation;
use shared::model::approval_api::{ApprovalAnswer, ApprovalList, DecideApproval, GetApproval, ListApprovals};
use shared::model::intent::service::{DecideIntent, IntentAnswer};
use shared::wire::headers::Headers;
use ulid::Ulid;

use super::desk::lost::by_records;
use super::desk::{KeepApprovalError, Said};
use super::machine::Word;
use super::scope::who;
use crate::broker::Broker;

/// Number of approvals listed if the request names none.
const LISTED: usize = 50;
/// Maximum number of approvals in one list.
const MAX_LISTED: usize = 1_000;
/// Prefix of the ids of intents' approvals.
const INTENT: &str = "intent.";
/// Maximum wait for the scheduler's response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Code and text with which an endpoint refuses a request.
pub type Refusal = (usize, String);

/// Serves the endpoints until the handle is dropped.
///
/// # Errors
/// Returns the client's error text if the service cannot be announced.
pub async fn serve(broker: &Arc<Broker>) -> Result<ServiceHandle, String> {
    let mut spec = ServiceSpec::new("approval", "approvals: list, get, decide");
    let with = |broker: &Arc<Broker>| Arc::clone(broker);
    let at = with(broker);
    spec = spec.endpoint("list", move |question| list(Arc::clone(&at), question));
    let at = with(broker);
    spec = spec.endpoint("get", move |question| get(Arc::clone(&at), question));
    let at = with(broker);
    spec = spec.endpoint("decide", move |question| {
        let at = Arc::clone(&at);
        async move { decide(&at, question).await }
    });

    broker.bus.serve(spec).await
}

fn failed(error: &KeepApprovalError) -> Refusal {
    (503, error.to_string())
}

fn unknown(id: &str) -> Refusal {
    (404, format!("there is no approval {id}"))
}

/// Returns `confirmation` without its code, which must appear on its card alone.
fn shown(mut confirmation: Confirmation) -> Confirmation {
    confirmation.trail.code = None;
    confirmation
}

async fn list(broker: Arc<Broker>, question: ListApprovals) -> Result<ApprovalList, Refusal> {
    let all = broker.desk().all().await.map_err(|error| failed(&error))?;
    let limit = if question.limit == 0 { LISTED } else { question.limit };

    let mut approvals = Vec::new();
    for one in all {
        if approvals.len() >= limit.min(MAX_LISTED) {
            break;
        }
        let one = recorded(&broker, one).await?;
        if question.status.is_none_or(|status| status == one.status) {
            approvals.push(shown(one));
        }
    }

    Ok(ApprovalList { approvals })
}

/// Returns `standing` as its records say that it ended.
async fn recorded(broker: &Broker, standing: Confirmation) -> Result<Confirmation, Refusal> {
    let ended = by_records(broker, standing).await;
    ended.map_err(|error| (503, error.to_string()))
}

async fn get(broker: Arc<Broker>, question: GetApproval) -> Result<Confirmation, Refusal> {
    let desk = broker.desk();
    if question.id.starts_with(INTENT) {
        let all = desk.all().await.map_err(|error| failed(&error))?;
        let found = all.into_iter().find(|one| one.request.id == question.id);
        return found.map(shown).ok_or_else(|| unknown(&question.id));
    }
    let found = desk.get(&question.id).await.map_err(|error| failed(&error))?;
    let found = found.ok_or_else(|| unknown(&question.id))?;
    recorded(&broker, found).await.map(shown)
}

/// Applies a decision, from any way in.
///
/// # Errors
/// Returns code and text: 403 wrong scope, 404 unknown, 409 decided otherwise or changed, 400 invalid, 503 try again.
pub async fn decide(broker: &Broker, question: DecideApproval) -> Result<ApprovalAnswer, Refusal> {
    if question.id.starts_with(INTENT) {
        return decide_intent(broker, &question).await;
    }

    let desk = broker.desk();
    let id = question.id.clone();

    let word = Word {
        approve: question.approve,
        arguments: question.arguments,
        shown_hash: question.arguments_hash,
        response: question.response,
        via: question.via,
    };

    match desk
        .say(&id, &question.by, &word)
        .await
        .map_err(|error| failed(&error))?
    {
        Said::Stands { confirmation, changed } => Ok(ApprovalAnswer {
            id,
            status: confirmation.status,
            changed,
            votes: confirmation.trail.votes.iter().map(|vote| vote.by.clone()).collect(),
        }),
        Said::Refused(refused) => Err((refused.code(), refused.to_string())),
        Said::Unknown => Err(unknown(&question.id)),
    }
}

/// Applies a decision on an intent's approval, which only the owner may make.
async fn decide_intent(broker: &Broker, question: &DecideApproval) -> Result<ApprovalAnswer, Refusal> {
    let speaker = who(&question.by, &broker.desk().identities());
    if !speaker.is_owner() {
        return Err((403, format!("{} is not the owner", speaker.name)));
    }

    if question.arguments.is_some() {
        return Err((400, "the parameters of an intent are not edited".to_owned()));
    }

    let id = question.id.split('.').nth(1).and_then(|id| id.parse::<Ulid>().ok());
    let handed = DecideIntent {
        id: id.ok_or_else(|| unknown(&question.id))?,
        approve: question.approve,
        by: speaker.name,
        response: question.response.clone(),
    };

    let asked = broker
        .bus
        .request("nexus.svc.intent.decide", Headers::new(), &handed, PATIENCE);
    let answer: IntentAnswer = asked.await.map_err(|error| match error {
        RequestError::Service { code, text, .. } => (usize::from(code), text),
        error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }) => {
            (503, error.to_string())
        }
    })?;

    let standing = broker.desk().all().await.map_err(|error| failed(&error))?;
    // Several approvals may name the intent; a request with the intent's id alone means the newest.
    let of_intent =
        |one: &Confirmation| one.request.id.starts_with(INTENT) && one.request.call == answer.id.to_string();
    let standing = standing.into_iter().find(of_intent);
    match standing {
        Some(standing) => Ok(ApprovalAnswer {
            id: standing.request.id,
            status: standing.status,
            changed: true,
            votes: Vec::new(),
        }),
        None => Err((
            404,
            format!("intent {} is {}, and has no approval", answer.id, answer.status),
        )),
    }
}
