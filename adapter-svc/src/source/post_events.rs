//! Source `http`: `POST /v1/events` with a bearer token.

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tracing::Instrument;

use super::events::read;
use crate::error::RequestRejection;
use crate::gateway::GatewayState;
use crate::trace::accept_span;

/// Maximum size of a body, in bytes: a full batch of ordinary events.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Handles `POST /v1/events`: either all of the body's events are accepted, or none is. The response has the ids
/// under which they are stored.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status.
pub async fn post_events(State(gateway): State<GatewayState>, request: Request) -> Result<Response, RequestRejection> {
    let (parts, body) = request.into_parts();
    let authorization = parts
        .headers
        .get(header::AUTHORIZATION)
        .map(|value| value.to_str().unwrap_or_default());

    // The token is checked before the body is read, so that strangers cannot use up the memory.
    let scope = gateway
        .access
        .scope_of(authorization)
        .ok_or(RequestRejection::Unauthorized)?;
    let body = gateway.reception.read_body(&parts, body, MAX_BODY_BYTES).await?;
    let events = read(&parts.headers, &body, scope, gateway.clock.now())?;

    let (span, carrier) = accept_span(&parts.headers);
    gateway
        .intake
        .accept_events("http", &events, &carrier)
        .instrument(span)
        .await?;

    // The ids may differ from the posted ones: they have the prefix of the token's source.
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    Ok(axum::Json(json!({ "accepted": ids.len(), "ids": ids })).into_response())
}
