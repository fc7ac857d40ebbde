//! Decisions about approvals over HTTP: a platform's signed callback, and the link of a card. Source:
//! `docs/design/sessions.md` §8.
//!
//! `POST /approvals/{id}` has the headers of Standard Webhooks: a signature over id, timestamp and body, at most five
//! minutes old. Its body names the approval, the channel and the hash of the arguments that were shown. A repeated
//! callback gets the same response. broker-svc decides whether the person may decide.

pub mod callback_auth;
pub mod link;
pub mod page;

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::bus::RequestError;
use shared::model::approval::ConfirmationTerms;
use shared::model::approval::{ApprovalParty, DecisionProof};
use shared::model::approval_api::{ApprovalAnswer, DecideApproval, GetApproval};
use shared::model::origin::{LINK, is_reserved};
use shared::wire::headers::Headers;

use crate::error::RequestRejection;
use crate::gateway::GatewayState;
use crate::source::webhook::standard;
use link::{LinkClaims, LinkDecision};

/// Maximum size of a body, in bytes.
const MAX_BODY_BYTES: usize = 128 * 1024;
/// Maximum wait for the response of broker-svc.
const PATIENCE: Duration = Duration::from_secs(10);

/// The body of a platform's callback.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Callback {
    /// Id of the approval, as in the path.
    approval: String,
    /// Channel on which the decision was made.
    channel: String,
    /// Id of the party on the channel.
    by: String,
    /// Whether to approve; `false` denies.
    approve: bool,
    /// SHA-256 in hex of the arguments that the party saw.
    arguments_hash: String,
    /// Arguments as the party edited them; absent = unchanged.
    #[serde(default)]
    arguments: Option<Value>,
    /// Comment of the party.
    #[serde(default)]
    response: Option<String>,
}

/// Handles `POST /approvals/{id}`: 200 once the decision is recorded, or if the same one was recorded before.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status: 401 if the signature is invalid or too old; 400 if the body is not for
/// this approval.
pub async fn post_decision(
    State(gateway): State<GatewayState>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, RequestRejection> {
    let Some(callbacks) = &gateway.approvals else {
        return Err(RequestRejection::UnknownPath);
    };

    // The path is not trusted: the signature below binds the decision to its approval.
    let Path(id) = id.map_err(|error| malformed_request(error.body_text(), "path"))?;
    let (parts, body) = request.into_parts();
    let body = gateway.reception.read_body(&parts, body, MAX_BODY_BYTES).await?;
    // The unverified body selects the keys: a wrong channel only selects keys that do not match the signature.
    standard::verify(&callbacks.checks_for(&body), &parts.headers, &body, gateway.clock.now())?;
    let said = read(&id, &body)?;

    let question = DecideApproval {
        id: said.approval,
        approve: said.approve,
        by: ApprovalParty {
            channel: said.channel,
            id: said.by,
            proof: DecisionProof::Vouched,
            person: None,
        },
        via: "http".to_owned(),
        arguments: said.arguments,
        arguments_hash: Some(said.arguments_hash),
        response: said.response,
    };

    let asked = gateway
        .bus
        .request("nexus.svc.approval.decide", Headers::new(), &question, PATIENCE);
    Ok(answer_response(asked.await))
}

/// Handles `GET /approvals/{id}`: the page of a card's link. It decides nothing.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status: 401 if the link is invalid, for another approval, or expired.
pub async fn show_link_page(
    State(gateway): State<GatewayState>,
    id: Result<Path<String>, PathRejection>,
    link: Result<Query<LinkClaims>, QueryRejection>,
) -> Result<Response, RequestRejection> {
    let Some(checks) = &gateway.links else {
        return Err(RequestRejection::UnknownPath);
    };

    let Path(id) = id.map_err(|error| malformed_request(error.body_text(), "path"))?;
    let Query(link) = link.map_err(|error| malformed_request(error.body_text(), "query"))?;
    let now = gateway.clock.now();
    // Verified before the approval is read, so that ids cannot be guessed one by one.
    link.verify(checks, &id, now)?;

    let question = GetApproval { id: id.clone() };
    let asked = gateway
        .bus
        .request("nexus.svc.approval.get", Headers::new(), &question, PATIENCE);
    let asked: Result<ConfirmationTerms, RequestError> = asked.await;

    // The stamp proves to `tap` that the form came from this page, and not from another site.
    let at = now.0.div_euclid(1_000);
    let stamp = checks.keys.first().map(|key| link::page_stamp(key, &id, at, &link.sig));

    Ok(match asked {
        Ok(confirmation) => html_page(
            StatusCode::OK,
            page::question_page(&confirmation, &link, at, &stamp.unwrap_or_default()),
        ),
        Err(error) => html_page(StatusCode::SERVICE_UNAVAILABLE, page::message_page(&error.to_string())),
    })
}

/// Handles `POST /approvals/{id}/decide`: the form of that page.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status: 401 if page or link is invalid, or the page is older than five
/// minutes.
pub async fn post_link_decision(
    State(gateway): State<GatewayState>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, RequestRejection> {
    let Some(checks) = &gateway.links else {
        return Err(RequestRejection::UnknownPath);
    };

    // The same order as for a callback: size, signature, and only then the contents.
    let Path(id) = id.map_err(|error| malformed_request(error.body_text(), "path"))?;
    let (parts, body) = request.into_parts();
    let body = gateway.reception.read_body(&parts, body, MAX_BODY_BYTES).await?;
    let tap: LinkDecision =
        serde_urlencoded::from_bytes(&body).map_err(|error| malformed_request(error.to_string(), "body"))?;
    tap.verify(checks, &id, gateway.clock.now())?;
    let approve = match tap.say.as_str() {
        "approve" => true,
        "deny" => false,
        _ => return Err(malformed_request("expected `approve` or `deny`".to_owned(), "say")),
    };

    let question = DecideApproval {
        id,
        approve,
        by: ApprovalParty {
            channel: LINK.to_owned(),
            id: tap.by,
            proof: DecisionProof::Vouched,
            person: None,
        },
        via: LINK.to_owned(),
        arguments: None,
        // Nothing is decided if other arguments are in force than the card showed.
        arguments_hash: Some(tap.hash),
        response: None,
    };

    let asked = gateway
        .bus
        .request("nexus.svc.approval.decide", Headers::new(), &question, PATIENCE);
    let answer: Result<ApprovalAnswer, RequestError> = asked.await;

    // The page always answers in words, because a person reads it.
    Ok(match answer {
        Ok(answer) => html_page(
            StatusCode::OK,
            page::message_page(&format!("The approval is {}.", answer.status.name())),
        ),
        Err(RequestError::Service { code, text, .. }) => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            html_page(status, page::message_page(&text))
        }
        Err(
            error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }),
        ) => html_page(StatusCode::SERVICE_UNAVAILABLE, page::message_page(&error.to_string())),
    })
}

/// Returns a page that no other page may frame, and that is neither cached nor named in a `Referer`.
fn html_page(status: StatusCode, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
        ),
    ];

    (status, headers, text).into_response()
}

/// Parses `body` as a callback about `id`.
fn read(id: &str, body: &[u8]) -> Result<Callback, RequestRejection> {
    let said: Callback = serde_json::from_slice(body).map_err(|error| malformed_request(error.to_string(), "body"))?;
    if said.approval != id {
        return Err(malformed_request(
            "expected the approval of the path".to_owned(),
            "approval",
        ));
    }
    if is_reserved(&said.channel) {
        return Err(malformed_request(
            "expected the channel of a platform".to_owned(),
            "channel",
        ));
    }
    Ok(said)
}

const fn malformed_request(detail: String, place: &'static str) -> RequestRejection {
    RequestRejection::Malformed { detail, place }
}

fn answer_response(asked: Result<ApprovalAnswer, RequestError>) -> Response {
    // The codes are those of the other routes, so that a caller needs one table of errors.
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

        for (approval, channel) in [("a2", "feishu"), ("a1", "cli"), ("a1", "agent"), ("a1", LINK)] {
            assert!(
                read("a1", body(approval, channel).as_bytes()).is_err(),
                "{approval} {channel}"
            );
        }

        assert!(read("a1", b"{}").is_err());
    }
}
