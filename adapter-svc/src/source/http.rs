//! Source `http`: `POST /v1/events` with a bearer token.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use subtle::{Choice, ConstantTimeEq};
use tracing::Instrument;

use super::events::read;
use crate::error::Refusal;
use crate::gateway::{Gateway, read_body};
use crate::normalize::self_asserted;
use crate::trace::accept_span;

/// Largest body, in bytes: a full batch of ordinary events.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Who may post events: SHA-256 of each token, never a token.
#[derive(Clone)]
pub struct Access {
    open: bool,
    tokens: Vec<[u8; 32]>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("open", &self.open)
            .field("tokens", &self.tokens.len())
            .finish()
    }
}

impl Access {
    /// For everybody where `open`, else for who has a token with one of these hashes (hex).
    ///
    /// # Errors
    /// `key: what is expected`.
    pub fn new(open: bool, hashes: &[String]) -> Result<Self, String> {
        let parse = |text: &String| {
            hex::decode(text)
                .ok()
                .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
        };
        let tokens: Option<Vec<_>> = hashes.iter().map(parse).collect();
        match tokens {
            Some(tokens) => Ok(Self { open, tokens }),
            None => Err("tokens: the SHA-256 of each token, 64 hex digits (never the token itself)".to_owned()),
        }
    }

    /// Whether a request with this `Authorization` may post.
    #[must_use]
    pub fn allows(&self, authorization: Option<&str>) -> bool {
        self.open || self.proves(authorization)
    }

    /// Whether this `Authorization` is one of the tokens. Compares with every token, in constant time.
    fn proves(&self, authorization: Option<&str>) -> bool {
        let Some((scheme, token)) = authorization.and_then(|text| text.split_once(' ')) else {
            return false;
        };
        let given = crate::source::webhook::signature::sha256(&[token.trim().as_bytes()]);
        let known = self
            .tokens
            .iter()
            .fold(Choice::from(0), |found, hash| found | hash.ct_eq(&given));
        scheme.eq_ignore_ascii_case("bearer") && bool::from(known)
    }

    /// Whether a request with `headers`, which may post, also proves who it is from.
    fn check(&self, headers: &HeaderMap) -> Result<bool, Refusal> {
        let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if self.allows(authorization) {
            Ok(self.proves(authorization))
        } else {
            Err(Refusal::Unauthorized)
        }
    }
}

/// `POST /v1/events`: all of the body's events are taken, or none is.
///
/// # Errors
/// [`Refusal`], as JSON with a status.
pub async fn post(State(gateway): State<Gateway>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let proven = gateway.access.check(&parts.headers)?;
    let body = read_body(&parts.headers, body, MAX_BODY_BYTES).await?;
    let mut events = read(&parts.headers, &body, gateway.clock.now())?;
    if !proven {
        events.iter_mut().for_each(self_asserted);
    }
    let (span, carrier) = accept_span(&parts.headers);
    gateway
        .intake
        .accept("http", &events, &carrier)
        .instrument(span)
        .await?;
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    Ok(axum::Json(json!({ "accepted": ids.len(), "ids": ids })).into_response())
}

#[cfg(test)]
mod tests {
    use super::super::webhook::signature::sha256_hex;
    use super::*;

    #[test]
    fn a_token_is_known_by_its_hash() {
        let access = Access::new(false, &[sha256_hex(&[b"one"]), sha256_hex(&[b"two"])]).unwrap();
        for (header, allowed) in [
            (Some("Bearer two"), true),
            (Some("bearer  one"), true),
            (Some("Basic one"), false),
            (Some("Bearer three"), false),
            (Some("two"), false),
            (None, false),
        ] {
            assert_eq!(access.allows(header), allowed, "{header:?}");
        }
        let open = Access::new(true, &[sha256_hex(&[b"one"])]).unwrap();
        assert!(open.allows(None) && !open.proves(None) && open.proves(Some("Bearer one")));
        assert!(Access::new(false, &["two".to_owned()]).is_err());
    }
}
