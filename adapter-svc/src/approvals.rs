//! A human's word on an approval over HTTP: a platform's signed callback, and the link of a card. Source:
//! `docs/design/sessions.md` §8.
//!
//! `POST /approvals/{id}` with the headers of Standard Webhooks: signed over id, timestamp and body, within five minutes,
//! and bound by its body to approval, channel and the hash of the arguments that were shown. The same again is answered
//! as it was; whether the person may decide, broker-svc says.

pub mod link;
pub mod page;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::bus::RequestError;
use shared::model::approval::Confirmation;
use shared::model::approval::{Party, Proof};
use shared::model::approval_api::{ApprovalAnswer, DecideApproval, GetApproval, LINK};
use shared::model::origin::is_reserved;
use shared::wire::headers::Headers;

use crate::error::Refusal;
use crate::gateway::Gateway;
use crate::source::webhook::signature::Checks;
use crate::source::webhook::standard;
use link::{Link, Tap};

/// Largest body, bytes.
const MAX_BODY_BYTES: usize = 128 * 1024;
/// How long broker-svc's answer is awaited.
const PATIENCE: Duration = Duration::from_secs(10);

/// What callbacks are checked against.
#[derive(Debug, Clone)]
pub enum Callbacks {
    /// Whoever signs speaks for every platform's channel.
    Any(Checks),
    /// Whoever signs speaks for one.
    Own(BTreeMap<String, Checks>),
}

impl Callbacks {
    /// What `body` is checked against, by the channel that it speaks for; nothing passes where that is unknown.
    fn of(&self, body: &[u8]) -> Cow<'_, Checks> {
        #[derive(Deserialize)]
        struct Speaks {
            channel: String,
        }

        match self {
            Self::Any(checks) => Cow::Borrowed(checks),
            Self::Own(channels) => {
                let speaks = serde_json::from_slice::<Speaks>(body).ok();
                let own = speaks.and_then(|speaks| channels.get(&speaks.channel));
                own.map_or_else(|| Cow::Owned(Checks::default()), Cow::Borrowed)
            }
        }
    }
}

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
    let Some(callbacks) = &gateway.approvals else {
        return Err(Refusal::UnknownPath);
    };

    let Path(id) = id.map_err(|error| malformed(error.body_text(), "path"))?;
    let (parts, body) = request.into_parts();
    let body = gateway.reception.receive(&parts, body, MAX_BODY_BYTES).await?;
    standard::verify(&callbacks.of(&body), &parts.headers, &body, gateway.clock.now())?;
    let said = read(&id, &body)?;

    let question = DecideApproval {
        id: said.approval,
        approve: said.approve,
        by: Party {
            channel: said.channel,
            id: said.by,
            proof: Proof::Vouched,
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
    Ok(answer(asked.await))
}

/// `GET /approvals/{id}`: the page of a card's link. It decides nothing.
///
/// # Errors
/// [`Refusal`], as JSON with a status: 401 where the link is not ours, not for this approval, or over.
pub async fn look(
    State(gateway): State<Gateway>,
    id: Result<Path<String>, PathRejection>,
    link: Result<Query<Link>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Some(checks) = &gateway.links else {
        return Err(Refusal::UnknownPath);
    };

    let Path(id) = id.map_err(|error| malformed(error.body_text(), "path"))?;
    let Query(link) = link.map_err(|error| malformed(error.body_text(), "query"))?;
    let now = gateway.clock.now();
    link.verify(checks, &id, now)?;

    let question = GetApproval { id: id.clone() };
    let asked = gateway
        .bus
        .request("nexus.svc.approval.get", Headers::new(), &question, PATIENCE);
    let asked: Result<Confirmation, RequestError> = asked.await;

    let at = now.0.div_euclid(1_000);
    let stamp = checks.keys.first().map(|key| link::stamp(key, &id, at, &link.sig));

    Ok(match asked {
        Ok(confirmation) => html(
            StatusCode::OK,
            page::question(&confirmation, &link, at, &stamp.unwrap_or_default()),
        ),
        Err(error) => html(StatusCode::SERVICE_UNAVAILABLE, page::said(&error.to_string())),
    })
}

/// `POST /approvals/{id}/decide`: the form of that page.
///
/// # Errors
/// [`Refusal`], as JSON with a status: 401 where page or link is not ours, or the page older than five minutes.
pub async fn tap(
    State(gateway): State<Gateway>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Refusal> {
    let Some(checks) = &gateway.links else {
        return Err(Refusal::UnknownPath);
    };

    let Path(id) = id.map_err(|error| malformed(error.body_text(), "path"))?;
    let (parts, body) = request.into_parts();
    let body = gateway.reception.receive(&parts, body, MAX_BODY_BYTES).await?;
    let tap: Tap = serde_urlencoded::from_bytes(&body).map_err(|error| malformed(error.to_string(), "body"))?;
    tap.verify(checks, &id, gateway.clock.now())?;
    let approve = match tap.say.as_str() {
        "approve" => true,
        "deny" => false,
        _ => return Err(malformed("`approve` or `deny` is expected".to_owned(), "say")),
    };

    let question = DecideApproval {
        id,
        approve,
        by: Party {
            channel: LINK.to_owned(),
            id: tap.by,
            proof: Proof::Vouched,
            person: None,
        },
        via: LINK.to_owned(),
        arguments: None,
        arguments_hash: Some(tap.hash),
        response: None,
    };

    let asked = gateway
        .bus
        .request("nexus.svc.approval.decide", Headers::new(), &question, PATIENCE);
    let answer: Result<ApprovalAnswer, RequestError> = asked.await;

    Ok(match answer {
        Ok(answer) => html(StatusCode::OK, page::said(&format!("It is {}.", answer.status.name()))),
        Err(RequestError::Service { code, text, .. }) => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            html(status, page::said(&text))
        }
        Err(
            error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }),
        ) => html(StatusCode::SERVICE_UNAVAILABLE, page::said(&error.to_string())),
    })
}

/// A page that no other may frame, keep or be told of.
fn html(status: StatusCode, text: String) -> Response {
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

/// The callback that `body` is, where it is one about `id`.
fn read(id: &str, body: &[u8]) -> Result<Callback, Refusal> {
    let said: Callback = serde_json::from_slice(body).map_err(|error| malformed(error.to_string(), "body"))?;
    if said.approval != id {
        return Err(malformed("the approval of the path is expected".to_owned(), "approval"));
    }
    if is_reserved(&said.channel) {
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

        for (approval, channel) in [("a2", "feishu"), ("a1", "cli"), ("a1", "agent"), ("a1", LINK)] {
            assert!(
                read("a1", body(approval, channel).as_bytes()).is_err(),
                "{approval} {channel}"
            );
        }

        assert!(read("a1", b"{}").is_err());
    }
}
