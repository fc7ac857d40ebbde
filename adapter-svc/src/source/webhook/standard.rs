//! Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`. *Pure.*
//!
//! Source: <https://github.com/standard-webhooks/standard-webhooks/tree/main/spec>. The signed
//! text is `{id}.{timestamp}.{body}`, with HMAC-SHA-256; the signature header lists `v1,{base64}` separated by
//! spaces. Svix sends the same in `svix-id`, `svix-timestamp`, `svix-signature`
//! (<https://docs.svix.com/receiving/verifying-payloads/how-manual>).

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use shared::model::time::UnixMillis;
use shared::process::key::{self, WeakKeyError};

use super::signature::{
    HashAlgorithm, SignatureChecks, SignatureError, SigningKey, VerifiedSignature, parse_seconds, required_header,
};

/// The names of the headers with id, timestamp and signature.
type Names = [&'static str; 3];
const OWN: Names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
const SVIX: Names = ["svix-id", "svix-timestamp", "svix-signature"];

/// Returns the key of a secret `whsec_{base64}`, with or without the prefix.
///
/// # Errors
/// Returns [`WeakKeyError`] if the secret is not base64 of 24 to 64 bytes.
pub fn key(secret: &str) -> Result<SigningKey, WeakKeyError> {
    key::standard_key(secret).map(SigningKey::new)
}

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
    let has_svix_only = headers.contains_key(SVIX[0]) && !headers.contains_key(OWN[0]);
    let [id, timestamp, signature] = if has_svix_only { SVIX } else { OWN };
    let id = required_header(headers, id)?;
    let written = required_header(headers, timestamp)?;
    let timestamp = parse_seconds(timestamp, written)?;
    let given: Vec<Vec<u8>> = required_header(headers, signature)?
        .split(' ')
        // Other versions, such as `v1a` with public keys, are ignored.
        .filter_map(|one| one.strip_prefix("v1,"))
        .filter_map(|one| STANDARD.decode(one).ok())
        .collect();

    checks.check_age(timestamp, now)?;
    checks.check_signature(
        HashAlgorithm::Sha256,
        &[id.as_bytes(), b".", written.as_bytes(), b".", body],
        &given,
    )?;

    Ok(VerifiedSignature {
        delivery_id: Some(id.to_owned()),
        timestamp: Some(timestamp),
    })
}

#[cfg(test)]
mod tests {
    use super::super::signature::tests::headers;
    use super::*;

    const ID: &str = OWN[0];
    const TIMESTAMP: &str = OWN[1];
    const SIGNATURE: &str = OWN[2];

    // The vector of the reference libraries' tests (standard-webhooks, Svix).
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const MESSAGE: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const AT: i64 = 1_614_265_330;

    fn check(signature: &str, at: i64, body: &[u8]) -> Result<VerifiedSignature, SignatureError> {
        let checks = SignatureChecks {
            keys: vec![SigningKey::new(*b"other"), key(SECRET).unwrap()],
            tolerance_s: 300,
        };
        let map = headers(&[(ID, MESSAGE), (TIMESTAMP, &AT.to_string()), (SIGNATURE, signature)]);
        verify(&checks, &map, body, UnixMillis::from_seconds(at))
    }

    #[test]
    fn the_published_vector_is_accepted_within_its_time_only() {
        let verified = check(SIGNED, AT + 10, BODY).unwrap();
        assert_eq!(verified.delivery_id.as_deref(), Some(MESSAGE));
        assert_eq!(verified.timestamp, Some(AT));
        assert!(matches!(
            check(SIGNED, AT + 301, BODY),
            Err(SignatureError::Expired { age_s: 301, .. })
        ));
        assert!(matches!(
            check(SIGNED, AT - 301, BODY),
            Err(SignatureError::Expired { age_s: -301, .. })
        ));

        assert_eq!(check(SIGNED, AT, b"{}"), Err(SignatureError::Mismatch));
    }

    #[test]
    fn svix_names_the_same_headers_otherwise() {
        let checks = SignatureChecks {
            keys: vec![key(SECRET).unwrap()],
            tolerance_s: 300,
        };
        let at = AT.to_string();
        let svix = [(SVIX[0], MESSAGE), (SVIX[1], at.as_str()), (SVIX[2], SIGNED)];
        let verified = verify(&checks, &headers(&svix), BODY, UnixMillis::from_seconds(AT)).unwrap();

        assert_eq!(verified.delivery_id.as_deref(), Some(MESSAGE));

        // The two sets are never mixed: a header that is not signed under its own name has no effect.
        let mixed = [
            (ID, "msg_2"),
            (SVIX[0], MESSAGE),
            (SVIX[1], at.as_str()),
            (SVIX[2], SIGNED),
        ];

        assert!(verify(&checks, &headers(&mixed), BODY, UnixMillis::from_seconds(AT)).is_err());
    }

    #[test]
    fn one_good_signature_among_several_suffices() {
        let several = format!("v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v2,xyz {SIGNED} v1,!!");
        assert!(check(&several, AT, BODY).is_ok());
        assert_eq!(check("v1, v1a,abc", AT, BODY), Err(SignatureError::Mismatch));
        assert_eq!(
            check(&SIGNED.replace("v1,", "v2,"), AT, BODY),
            Err(SignatureError::Mismatch)
        );
    }

    #[test]
    fn what_is_missing_or_unreadable_is_named() {
        let checks = SignatureChecks {
            keys: vec![key(SECRET).unwrap()],
            tolerance_s: 300,
        };
        let map = headers(&[(ID, MESSAGE), (SIGNATURE, SIGNED)]);
        let missing = verify(&checks, &map, BODY, UnixMillis(0)).unwrap_err();

        assert_eq!(
            missing,
            SignatureError::Missing {
                header: TIMESTAMP.to_owned()
            }
        );

        let map = headers(&[(ID, MESSAGE), (TIMESTAMP, "yesterday"), (SIGNATURE, SIGNED)]);
        assert!(matches!(
            verify(&checks, &map, BODY, UnixMillis(0)),
            Err(SignatureError::Malformed { .. })
        ));
        assert_eq!(key("whsec_***"), Err(WeakKeyError::NotBase64));
    }
}
