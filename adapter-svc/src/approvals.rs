//! A human's word on an approval over HTTP: a platform's signed callback. Source: `sessions.md` "Approvals".
//!
//! `POST /approvals/{id}` with the headers of Standard Webhooks: signed over id, timestamp and body, within five minutes,
//! and bound by its body to approval, channel and the hash of the arguments that were shown. The same again is answered
//! as it was; whether the person may decide, broker-svc says.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::bus::RequestError;
use shared::model::approval::Party;
use shared::model::approval_api::{ApprovalAnswer, DecideApproval};
use shared::wire::headers::Headers;

use crate::error::Refusal;
use crate::gateway::{Gateway, read_body};
use crate::source::webhook::standard;

/// Largest body, bytes.
const MAX_BODY_BYTES: usize = 128 * 1024;
/// How long broker-svc's answer is awaited.
const PATIENCE: Duration = Duration::from_secs(10);
/// Channels that no platform speaks for.
const OURS: [&str; 2] = ["cli", "agent"];

/// What a platform says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Callback {
    /// The approval, as in the path.
    approval: String,
    /// The channel on which somebody decided.
    channel: String,
    /// Their id there.
    by: String,
    /// Yes or no.
    approve: bool,
    /// Hash of the arguments that they were shown.
    arguments_hash: String,
    /// The arguments as they want them; absent = as they are.
    #[serde(default)]
    arguments: Option<Value>,
    /// What they wrote.
    #[serde(default)]
    response: Option<String>,
}

/// `POST /approvals/{id}`: 200 once it is decided, or was decided so before.
///
/// # Errors
/// [`Refusal`], as JSON with a status: 401 not signed so, or too old; 400 not bound to this approval.
pub async fn post(
    State(gateway): State<Gateway>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Refusal> {
    let Some(checks) = &gateway.approvals else {
        return Err(Refusal::UnknownPath);
    };
    let Path(id) = id.map_err(|error| malformed(error.body_text(), "path"))?;
    let (parts, body) = request.into_parts();
    let body = read_body(&parts.headers, body, MAX_BODY_BYTES).await?;
    standard::verify(checks, &parts.headers, &body, gateway.clock.now())?;
    let said = read(&id, &body)?;
    let question = DecideApproval {
        id: said.approval,
        approve: said.approve,
        by: Party {
            channel: said.channel,
            id: said.by,
        },
        via: "http".to_owned(),
        arguments: said.arguments,
        arguments_hash: Some(said.arguments_hash),
        response: said.response,
    };
    let asked = gateway
        .bus
        .request("nexus.svc.approval.decide", Headers::new(), &question, PATIENCE);
    Ok(answer(asked.await))
}

/// The callback that `body` is, where it is one about `id`.
fn read(id: &str, body: &[u8]) -> Result<Callback, Refusal> {
    let said: Callback = serde_json::from_slice(body).map_err(|error| malformed(error.to_string(), "body"))?;
    if said.approval != id {
        return Err(malformed("the approval of the path is expected".to_owned(), "approval"));
    }
    if OURS.contains(&said.channel.as_str()) {
        return Err(malformed("the channel of a platform is expected".to_owned(), "channel"));
    }
    Ok(said)
}

const fn malformed(detail: String, place: &'static str) -> Refusal {
    Refusal::Malformed { detail, place }
}

fn answer(asked: Result<ApprovalAnswer, RequestError>) -> Response {
    let refused = |status: StatusCode, message: String| {
        let code = match status {
            StatusCode::FORBIDDEN => "forbidden",
            StatusCode::CONFLICT => "conflict",
            StatusCode::NOT_FOUND => "unknown_approval",
            StatusCode::BAD_REQUEST => "malformed",
            _ => "unavailable",
        };
        let error = json!({"error": {"code": code, "message": message, "where": "approval"}});
        (status, Json(error)).into_response()
    };
    match asked {
        Ok(answer) => Json(answer).into_response(),
        Err(RequestError::Service { code, text, .. }) => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            refused(status, text)
        }
        Err(
            error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }),
        ) => refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_is_bound_to_its_approval_and_speaks_for_a_platform() {
        let body = |approval: &str, channel: &str| {
            json!({"approval": approval, "channel": channel, "by": "2", "approve": true, "arguments_hash": "00"})
                .to_string()
        };
        assert!(read("a1", body("a1", "feishu").as_bytes()).is_ok());
        for (approval, channel) in [("a2", "feishu"), ("a1", "cli"), ("a1", "agent")] {
            assert!(
                read("a1", body(approval, channel).as_bytes()).is_err(),
                "{approval} {channel}"
            );
        }
        assert!(read("a1", b"{}").is_err());
    }
}
