//! Stripe: `Stripe-Signature: t=…,v1=…`. *Pure.*
//!
//! Source: <https://docs.stripe.com/webhooks#verify-manually>. The signed text is `{t}.{body}`, with HMAC-SHA-256
//! under the endpoint's secret as written; the header has several `v1` during a rotation of the secret.

use axum::http::HeaderMap;
use shared::model::time::UnixMillis;

use super::signature::{
    HashAlgorithm, SignatureChecks, SignatureError, VerifiedSignature, malformed_header, parse_seconds, required_header,
};

const SIGNATURE: &str = "stripe-signature";

/// Checks a request against the scheme. The delivery's id is the `id` of the event in the body, because Stripe signs
/// each attempt with a new timestamp.
///
/// # Errors
/// Returns [`SignatureError`] if the signature is missing, malformed, too old or wrong.
pub fn verify(
    checks: &SignatureChecks,
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMillis,
) -> Result<VerifiedSignature, SignatureError> {
    let mut written = None;
    let mut given = Vec::new();
    for part in required_header(headers, SIGNATURE)?.split(',') {
        match part.trim().split_once('=') {
            Some(("t", value)) => written = Some(value),
            Some(("v1", value)) => given.extend(hex::decode(value)),
            // Other schemes, such as `v0` of test events, are ignored.
            Some(_) | None => {}
        }
    }

    let written = written.ok_or_else(|| malformed_header(SIGNATURE, "`t=seconds,v1=hex`"))?;
    let timestamp = parse_seconds(SIGNATURE, written)?;
    checks.check_age(timestamp, now)?;
    checks.check_signature(HashAlgorithm::Sha256, &[written.as_bytes(), b".", body], &given)?;

    Ok(VerifiedSignature {
        delivery_id: None,
        timestamp: Some(timestamp),
    })
}

#[cfg(test)]
mod tests {
    use super::super::signature::compute_code;
    use super::super::signature::tests::{checks, headers};
    use super::*;

    const BODY: &[u8] = br#"{"id":"evt_1"}"#;

    fn check(signature: &str, at: i64) -> Result<VerifiedSignature, SignatureError> {
        let map = headers(&[("Stripe-Signature", signature)]);
        verify(&checks("whsec_test"), &map, BODY, UnixMillis::from_seconds(at))
    }

    #[test]
    fn a_signed_request_is_accepted_within_its_time() {
        let good = hex::encode(compute_code(
            HashAlgorithm::Sha256,
            &checks("whsec_test").keys[0],
            &[b"100.", BODY],
        ));
        assert_eq!(check(&format!("t=100,v1={good}"), 100).unwrap().timestamp, Some(100));
        assert!(check(&format!("t=100,v0=aa,v1=00,v1={good}"), 400).is_ok());
        assert!(matches!(
            check(&format!("t=100,v1={good}"), 401),
            Err(SignatureError::Expired { .. })
        ));
        assert_eq!(check(&format!("t=101,v1={good}"), 101), Err(SignatureError::Mismatch));
        assert_eq!(check(&format!("t=100,v0={good}"), 100), Err(SignatureError::Mismatch));
    }

    #[test]
    fn a_header_without_a_time_is_malformed() {
        assert!(matches!(check("v1=aa", 0), Err(SignatureError::Malformed { .. })));
        assert!(matches!(check("t=-5,v1=aa", 0), Err(SignatureError::Malformed { .. })));
    }
}
