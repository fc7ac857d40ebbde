//! Serves `nexus.svc.approval.*`, through which every human decision passes. Source: `docs/design/sessions.md` §8.
//!
//! The bucket also holds the approvals of intents, which belong to the scheduler: `decide` checks that the owner
//! decides and forwards the decision.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{RequestError, ServiceHandle, ServiceSpec};
use shared::model::approval::ConfirmationTerms;
use shared::model::approval_api::{ApprovalAnswer, ApprovalList, DecideApproval, GetApproval, ListApprovals};
use shared::model::intent::service::{DecideIntent, IntentAnswer};
use shared::wire::headers::Headers;
use ulid::Ulid;

use super::machine::DecisionInput;
use super::scope::identify_party;
use super::store::lost::by_records;
use super::store::{DecisionOutcome, KeepApprovalError};
use crate::broker::BrokerContext;

/// Number of approvals listed if the request names none.
const LISTED: usize = 50;
/// Maximum number of approvals in one list.
const MAX_LISTED: usize = 1_000;
/// Prefix of the ids of intents' approvals.
const INTENT: &str = "intent.";
/// Maximum wait for the scheduler's response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Code and text with which an endpoint refuses a request.
pub type EndpointError = (usize, String);

/// Serves the endpoints until the handle is dropped.
///
/// # Errors
/// Returns the client's error text if the service cannot be announced.
pub async fn serve(broker: &Arc<BrokerContext>) -> Result<ServiceHandle, String> {
    let mut spec = ServiceSpec::new("approval", "approvals: list, get, decide");
    let with = |broker: &Arc<BrokerContext>| Arc::clone(broker);
    let at = with(broker);
    spec = spec.endpoint("list", move |question| list(Arc::clone(&at), question));
    let at = with(broker);
    spec = spec.endpoint("get", move |question| get(Arc::clone(&at), question));
    let at = with(broker);
    spec = spec.endpoint("decide", move |question| {
        let at = Arc::clone(&at);
        async move { handle_decision(&at, question).await }
    });

    broker.bus.serve(spec).await
}

fn to_refusal(error: &KeepApprovalError) -> EndpointError {
    (503, error.to_string())
}

fn unknown_approval(id: &str) -> EndpointError {
    (404, format!("there is no approval {id}"))
}

/// Returns `confirmation` without its code, which must appear on its card alone.
fn without_code(mut confirmation: ConfirmationTerms) -> ConfirmationTerms {
    confirmation.trail.code = None;
    confirmation
}

async fn list(broker: Arc<BrokerContext>, question: ListApprovals) -> Result<ApprovalList, EndpointError> {
    let all = broker.desk().list_all().await.map_err(|error| to_refusal(&error))?;
    let limit = if question.limit == 0 { LISTED } else { question.limit };

    let mut approvals = Vec::new();
    for one in all {
        if approvals.len() >= limit.min(MAX_LISTED) {
            break;
        }
        let one = recorded(&broker, one).await?;
        if question.status.is_none_or(|status| status == one.status) {
            approvals.push(without_code(one));
        }
    }

    Ok(ApprovalList { approvals })
}

/// Returns `standing` as its records say that it ended.
async fn recorded(broker: &BrokerContext, standing: ConfirmationTerms) -> Result<ConfirmationTerms, EndpointError> {
    let ended = by_records(broker, standing).await;
    ended.map_err(|error| (503, error.to_string()))
}

async fn get(broker: Arc<BrokerContext>, question: GetApproval) -> Result<ConfirmationTerms, EndpointError> {
    let desk = broker.desk();
    if question.id.starts_with(INTENT) {
        let all = desk.list_all().await.map_err(|error| to_refusal(&error))?;
        let found = all.into_iter().find(|one| one.request.id == question.id);
        return found.map(without_code).ok_or_else(|| unknown_approval(&question.id));
    }
    let found = desk.get(&question.id).await.map_err(|error| to_refusal(&error))?;
    let found = found.ok_or_else(|| unknown_approval(&question.id))?;
    recorded(&broker, found).await.map(without_code)
}

/// Applies a decision, from any way in.
///
/// # Errors
/// Returns code and text: 403 wrong scope, 404 unknown, 409 decided otherwise or changed, 400 invalid, 503 try again.
pub async fn handle_decision(
    broker: &BrokerContext,
    question: DecideApproval,
) -> Result<ApprovalAnswer, EndpointError> {
    // The scheduler owns the approvals of intents.
    if question.id.starts_with(INTENT) {
        return decide_intent(broker, &question).await;
    }

    let desk = broker.desk();
    let id = question.id.clone();

    let word = DecisionInput {
        approve: question.approve,
        arguments: question.arguments,
        shown_hash: question.arguments_hash,
        response: question.response,
        via: question.via,
    };

    match desk
        .decide_approval(&id, &question.by, &word)
        .await
        .map_err(|error| to_refusal(&error))?
    {
        DecisionOutcome::Stands { confirmation, changed } => Ok(ApprovalAnswer {
            id,
            status: confirmation.status,
            changed,
            votes: confirmation.trail.votes.iter().map(|vote| vote.by.clone()).collect(),
        }),
        DecisionOutcome::Refused(refused) => Err((refused.http_code(), refused.to_string())),
        DecisionOutcome::Unknown => Err(unknown_approval(&question.id)),
    }
}

/// Applies a decision on an intent's approval, which only the owner may make.
async fn decide_intent(broker: &BrokerContext, question: &DecideApproval) -> Result<ApprovalAnswer, EndpointError> {
    let speaker = identify_party(&question.by, &broker.desk().identities());
    if !speaker.is_owner() {
        return Err((403, format!("{} is not the owner", speaker.name)));
    }

    if question.arguments.is_some() {
        return Err((400, "the parameters of an intent cannot be edited".to_owned()));
    }

    // The key of an intent's approval is `intent.{id}.…`.
    let id = question.id.split('.').nth(1).and_then(|id| id.parse::<Ulid>().ok());
    let handed = DecideIntent {
        id: id.ok_or_else(|| unknown_approval(&question.id))?,
        approve: question.approve,
        by: speaker.name,
        response: question.response.clone(),
    };

    // The scheduler owns the approvals of intents: it alone may change them.
    let asked = broker
        .bus
        .request("nexus.svc.intent.decide", Headers::new(), &handed, PATIENCE);
    let answer: IntentAnswer = asked.await.map_err(|error| match error {
        RequestError::Service { code, text, .. } => (usize::from(code), text),
        error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }) => {
            (503, error.to_string())
        }
    })?;

    let standing = broker.desk().list_all().await.map_err(|error| to_refusal(&error))?;
    // Several approvals may name the intent; a request with the intent's id alone means the newest.
    let of_intent =
        |one: &ConfirmationTerms| one.request.id.starts_with(INTENT) && one.request.call == answer.id.to_string();
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
