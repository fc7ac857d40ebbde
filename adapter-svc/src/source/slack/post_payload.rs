//! `POST /slack/{account}`: events, presses and commands, as Slack posts them.
//!
//! Slack waits three seconds for an answer, and posts an event again at once, after a minute and after five. Source:
//! <https://docs.slack.dev/apis/events-api/#responding>.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use shared::model::event::Event;
use shared::platform::slack::SLACK;
use shared::wire::headers::TraceCarrier;
use tracing::Instrument;

use super::endpoint::{PAYLOAD_WITHIN, SlackEndpoint};
use super::normalize::payload_events;
use super::privacy::unreadable_payload;
use super::{RefusePayloadError, SlackBot};
use crate::encoded_event::NoteStep;
use crate::error::{AcceptEventsError, RequestRejection};
use crate::gateway::GatewayState;
use crate::source::door::PostTime;
use crate::source::webhook::payload::{self, ReadPayloadError};
use crate::source::webhook::{MAX_BODY_BYTES, slack};
use crate::trace::accept_span;

/// Events after which the account's token may not be valid any more.
const RIGHTS_EVENTS: [&str; 2] = ["app_uninstalled", "tokens_revoked"];

/// Handles `POST /slack/{account}`: 200 once the events, or the dead letter of a payload that cannot be read, are durable,
/// or if the payload is none for this installation.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status. Slack posts the payload again then.
pub async fn post_payload(
    State(gateway): State<GatewayState>,
    account: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, RequestRejection> {
    let account = account.map(|Path(name)| name).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let endpoint = gateway
        .slack
        .get(&account)
        .ok_or_else(|| RequestRejection::UnknownAccount(account.chars().take(64).collect()))?;

    let body = gateway.reception.read_body(&parts, body, MAX_BODY_BYTES).await?;
    let (now, time) = (gateway.clock.now(), PostTime::start(&gateway.clock, PAYLOAD_WITHIN));
    // The signature covers the raw bytes, so it is checked before they are parsed.
    slack::verify(&endpoint.checks, &parts.headers, &body, now)?;

    let taken = match payload::read(&parts.headers, &body) {
        Ok(payload) => take_payload(&gateway, &account, endpoint, (&parts.headers, &payload), &time).await,
        Err(error) => refuse_body(endpoint, &account, &body, &error, &time).await,
    };
    if taken.is_err() {
        endpoint.record.note_refused(gateway.clock.now());
    }
    taken
}

/// Stores the events of `payload`, which Slack has posted to the account `account` with `headers`.
async fn take_payload(
    gateway: &GatewayState,
    account: &str,
    endpoint: &SlackEndpoint,
    (headers, payload): (&HeaderMap, &Value),
    time: &PostTime,
) -> Result<Response, RequestRejection> {
    if let Some(challenge) = slack::url_challenge(payload) {
        return Ok(axum::Json(json!({ "challenge": challenge })).into_response());
    }
    if inner_kind(payload).is_some_and(|kind| RIGHTS_EVENTS.contains(&kind)) {
        endpoint.recheck();
    }

    let now = gateway.clock.now();
    let bot = endpoint.identity().await.ok_or(RequestRejection::UnknownIdentity)?;
    let events = match payload_events(&bot, payload, now) {
        Ok(events) => events,
        Err(reason) => return refuse_payload(endpoint, &bot, payload, &reason, time).await,
    };

    let ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
    let (span, carrier) = accept_span(headers);
    let stored = store_events(gateway, (account, endpoint), events, time, &carrier).instrument(span);
    let stored = tokio::time::timeout(time.left(), stored).await;
    stored.unwrap_or(Err(AcceptEventsError::Busy.into()))?;

    let retry = headers.get("x-slack-retry-num").and_then(|value| value.to_str().ok());
    tracing::info!(
        account,
        events = ids.len(),
        event_id = ids.first().map(String::as_str),
        retry,
        "payload of Slack accepted"
    );
    Ok(StatusCode::OK.into_response())
}

/// Makes `events` of the account durable: for its holder, who merges texts, or as they are.
async fn store_events(
    gateway: &GatewayState,
    (account, endpoint): (&str, &SlackEndpoint),
    mut events: Vec<Event>,
    time: &PostTime,
    carrier: &TraceCarrier,
) -> Result<(), RequestRejection> {
    if let Some(queue) = &endpoint.queue {
        // The holder applies the settings to merged events. A thread that begins here is noted before the post is answered.
        for event in &mut events.clone() {
            endpoint.apply_settings(event).await;
        }
        let encoded = queue.encode_events(&events, carrier);
        let accepted = gateway.intake.accept_queued(SLACK, account, encoded);
        return accepted.await.map_err(RequestRejection::from);
    }

    for event in &mut events {
        endpoint.apply_settings(event).await;
    }
    let store = async |events: &[Event], steps: &[NoteStep]| {
        let accepted = gateway.intake.accept_posted(SLACK, account, (events, steps), carrier);
        accepted.await.map_err(RequestRejection::from)
    };
    let may_spool = gateway.intake.keeps_on_disk();
    endpoint.door.store_with_pairings(events, time, may_spool, store).await
}

/// Notes the payload `payload`, which makes no event because of `reason`. One that cannot be read becomes a dead letter,
/// and comes again until that is stored.
async fn refuse_payload(
    endpoint: &SlackEndpoint,
    bot: &SlackBot,
    payload: &Value,
    reason: &RefusePayloadError,
    time: &PostTime,
) -> Result<Response, RequestRejection> {
    note_refused(&bot.name, payload, reason);
    if reason.is_unreadable() {
        let kept = unreadable_payload(bot, payload);
        let detail = reason.to_string();
        let given_up = endpoint.door.letters.give_up(&kept, reason.name(), &detail, time);
        if !given_up.await {
            return Err(AcceptEventsError::Busy.into());
        }
    }
    Ok(StatusCode::OK.into_response())
}

/// Notes that `body`, which Slack has signed, is no payload because of `error`, and makes a dead letter of it.
async fn refuse_body(
    endpoint: &SlackEndpoint,
    account: &str,
    body: &[u8],
    error: &ReadPayloadError,
    time: &PostTime,
) -> Result<Response, RequestRejection> {
    let reason = RefusePayloadError::Malformed(format!("body: {error}"));
    note_refused(account, &Value::Null, &reason);
    // In a text that cannot be parsed a code of ours cannot be found, so nothing of it is kept.
    let kept = json!({"left_out_bytes": body.len()});
    let detail = reason.to_string();
    let given_up = endpoint.door.letters.give_up(&kept, reason.name(), &detail, time);
    if given_up.await {
        Ok(StatusCode::OK.into_response())
    } else {
        Err(AcceptEventsError::Busy.into())
    }
}

/// Returns the kind of the event in an envelope.
fn inner_kind(payload: &Value) -> Option<&str> {
    payload.pointer("/event/type").and_then(Value::as_str)
}

/// Counts and logs that a payload is no event.
pub(super) fn note_refused(account: &str, payload: &Value, reason: &RefusePayloadError) {
    metrics::counter!("nexus_source_refused_total", "source" => SLACK, "reason" => reason.name()).increment(1);
    let event_id = payload.get("event_id").and_then(Value::as_str);
    match reason {
        RefusePayloadError::Echo | RefusePayloadError::NoConversation(_) | RefusePayloadError::NoEdit => {
            tracing::debug!(account, event_id, %reason, "payload is no event");
        }
        RefusePayloadError::WrongTeam(_) => {
            tracing::warn!(account, event_id, %reason, "payload of another workspace refused");
        }
        RefusePayloadError::Malformed(_) | RefusePayloadError::Id(_) => {
            tracing::error!(account, event_id, %reason, "payload refused");
        }
    }
}
