//! Slack: `X-Slack-Signature: v0={hex}` over `v0:{timestamp}:{body}`. *Pure.*
//!
//! Source: <https://docs.slack.dev/authentication/verifying-requests-from-slack>. The delivery's id is the `event_id`
//! in the body, because a repeated delivery is signed with a new timestamp.

use axum::http::HeaderMap;
use serde_json::Value;
use shared::model::time::UnixMillis;

use super::signature::{
    HashAlgorithm, SignatureChecks, SignatureError, VerifiedSignature, malformed_header, parse_seconds, required_header,
};

const SIGNATURE: &str = "x-slack-signature";
const TIMESTAMP: &str = "x-slack-request-timestamp";

/// Checks a request against the scheme.
///
/// # Errors
/// Returns [`SignatureError`] if the signature is missing, malformed, too old or wrong.
pub fn verify(
    checks: &SignatureChecks,
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMillis,
) -> Result<VerifiedSignature, SignatureError> {
    const EXPECTED: &str = "`v0=` and 64 hex digits";

    let written = required_header(headers, TIMESTAMP)?;
    let timestamp = parse_seconds(TIMESTAMP, written)?;
    let text = required_header(headers, SIGNATURE)?;
    let digits = text
        .strip_prefix("v0=")
        .ok_or_else(|| malformed_header(SIGNATURE, EXPECTED))?;
    let given = hex::decode(digits).map_err(|_| malformed_header(SIGNATURE, EXPECTED))?;
    checks.check_age(timestamp, now)?;
    checks.check_signature(
        HashAlgorithm::Sha256,
        &[b"v0:", written.as_bytes(), b":", body],
        &[given],
    )?;

    Ok(VerifiedSignature {
        delivery_id: None,
        timestamp: Some(timestamp),
    })
}

/// Returns the challenge of a `url_verification` request, which gets a response and does not become an event.
#[must_use]
pub fn url_challenge(payload: &Value) -> Option<&str> {
    if payload.get("type")?.as_str()? == "url_verification" {
        payload.get("challenge")?.as_str()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::tests::{checks, headers};
    use super::*;

    // The example of Slack's documentation.
    const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";
    const BODY: &str = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    const SIGNED: &str = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    const AT: i64 = 1_531_420_618;

    fn check(signature: &str, at: i64, body: &str) -> Result<VerifiedSignature, SignatureError> {
        let pairs = [
            ("X-Slack-Signature", signature),
            ("X-Slack-Request-Timestamp", "1531420618"),
        ];

        verify(
            &checks(SECRET),
            &headers(&pairs),
            body.as_bytes(),
            UnixMillis::from_seconds(at),
        )
    }

    #[test]
    fn the_published_example_is_accepted_within_its_time() {
        assert_eq!(check(SIGNED, AT, BODY).unwrap().timestamp, Some(AT));
        assert!(matches!(
            check(SIGNED, AT + 301, BODY),
            Err(SignatureError::Expired { .. })
        ));
        assert_eq!(
            check(SIGNED, AT, &BODY.replace("T1DC2JH3J", "T1DC2JH3K")),
            Err(SignatureError::Mismatch)
        );
        assert!(matches!(
            check("v1=00", AT, BODY),
            Err(SignatureError::Malformed { .. })
        ));
    }

    #[test]
    fn only_a_url_verification_has_a_challenge() {
        let ask = serde_json::json!({"type": "url_verification", "challenge": "3eZbrw1aB"});
        assert_eq!(url_challenge(&ask), Some("3eZbrw1aB"));
        assert_eq!(
            url_challenge(&serde_json::json!({"type": "event_callback", "challenge": "x"})),
            None
        );
    }
}
