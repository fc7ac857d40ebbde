//! Source `webhook`: `POST /hooks/{source}`, and the GET of Meta's subscription.

pub mod endpoint;
pub mod generic;
pub mod github;
pub mod mapping;
pub mod meta;
pub mod payload;
pub mod signature;
pub mod slack;
pub mod standard;
pub mod stripe;
pub mod telegram;

use std::collections::HashMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use shared::model::event::EventId;
use tracing::Instrument;

use crate::error::RequestRejection;
use crate::gateway::GatewayState;
use crate::normalize;
use crate::trace::accept_span;
use endpoint::{SignatureScheme, VerifiedRequest};

/// Maximum size of a body, in bytes.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Handles `POST /hooks/{source}`: 200 once the event is durable.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status.
pub async fn post_webhook(
    State(gateway): State<GatewayState>,
    source: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, RequestRejection> {
    let source = name(source)?;
    let (parts, body) = request.into_parts();
    let endpoint = gateway
        .webhooks
        .get(&source)
        .ok_or_else(|| RequestRejection::UnknownSource(shorten_name(&source)))?;

    let body = gateway.reception.read_body(&parts, body, MAX_BODY_BYTES).await?;

    let now = gateway.clock.now();
    // The signature covers the raw bytes, so it is checked before they are parsed.
    let verified = endpoint.verify(&parts.headers, &body, now)?;

    let payload = payload::read(&parts.headers, &body)?;
    // Slack signs the check of a subscription like an event, although it is not one.
    if endpoint.scheme == SignatureScheme::Slack
        && let Some(challenge) = slack::url_challenge(&payload)
    {
        return Ok(axum::Json(json!({ "challenge": challenge })).into_response());
    }

    let delivery = VerifiedRequest {
        headers: &parts.headers,
        body: &body,
        payload: &payload,
        verified: &verified,
        now,
        fresh: gateway.ids.ulid(),
    };

    let events = normalize::webhook_events(endpoint, &delivery)?;

    let (span, carrier) = accept_span(&parts.headers);
    gateway
        .intake
        .accept_events("webhook", &events, &carrier)
        .instrument(span)
        .await?;

    let ids: Vec<&EventId> = events.iter().map(|event| &event.id).collect();
    tracing::info!(event_id = %ids[0], events = ids.len(), source, "webhook accepted");

    Ok(axum::Json(json!({ "id": ids[0], "ids": ids })).into_response())
}

/// Handles `GET /hooks/{source}`: the challenge of Meta's subscription.
///
/// # Errors
/// Returns [`RequestRejection`] if the source does not exist or the token is wrong.
pub async fn get(
    State(gateway): State<GatewayState>,
    source: Result<Path<String>, PathRejection>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, RequestRejection> {
    let source = name(source)?;
    let token = gateway
        .webhooks
        .get(&source)
        .and_then(|endpoint| endpoint.verify_token.as_ref());

    let token = token.ok_or_else(|| RequestRejection::UnknownSource(shorten_name(&source)))?;
    match meta::answer_challenge(token, &query) {
        Some(challenge) => Ok(challenge.into_response()),
        None => Err(RequestRejection::Signature(signature::SignatureError::Mismatch)),
    }
}

/// Returns the name of the source from the path.
fn name(path: Result<Path<String>, PathRejection>) -> Result<String, RequestRejection> {
    path.map(|Path(name)| name)
        .map_err(|error| RequestRejection::Malformed {
            detail: error.body_text(),
            place: "path",
        })
}

/// Returns a name from outside, shortened for a response and a log line.
fn shorten_name(name: &str) -> String {
    name.chars().take(64).collect()
}
