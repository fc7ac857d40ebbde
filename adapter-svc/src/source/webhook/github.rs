//! GitHub: `X-Hub-Signature-256: sha256={hex}` over the body. *Pure.*
//!
//! Source: <https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries>. Only the body is signed,
//! so its hash is the event's id: a repeated delivery has the same body. `X-GitHub-Delivery` and `X-GitHub-Event` are
//! metadata.

use axum::http::HeaderMap;
use shared::model::time::UnixMillis;

use super::signature::{
    HashAlgorithm, SignatureChecks, SignatureError, VerifiedSignature, malformed_header, required_header,
};

const SIGNATURE: &str = "x-hub-signature-256";
/// Header with the name of a delivery, which is not signed.
pub(super) const DELIVERY: &str = "x-github-delivery";

/// Checks a request against the scheme.
///
/// # Errors
/// Returns [`SignatureError`] if the signature is missing, malformed or wrong.
pub fn verify(
    checks: &SignatureChecks,
    headers: &HeaderMap,
    body: &[u8],
    _now: UnixMillis,
) -> Result<VerifiedSignature, SignatureError> {
    hub_signature(checks, headers, body)?;
    Ok(VerifiedSignature::default())
}

/// Checks that `X-Hub-Signature-256` signs `body`; Meta uses the same header.
pub(super) fn hub_signature(checks: &SignatureChecks, headers: &HeaderMap, body: &[u8]) -> Result<(), SignatureError> {
    const EXPECTED: &str = "`sha256=` and 64 hex digits";
    let text = required_header(headers, SIGNATURE)?;
    let digits = text
        .strip_prefix("sha256=")
        .ok_or_else(|| malformed_header(SIGNATURE, EXPECTED))?;
    let given = hex::decode(digits).map_err(|_| malformed_header(SIGNATURE, EXPECTED))?;
    checks.check_signature(HashAlgorithm::Sha256, &[body], &[given])
}

#[cfg(test)]
mod tests {
    use super::super::signature::tests::{checks, headers};
    use super::*;

    // The vector of GitHub's documentation.
    const SECRET: &str = "It's a Secret to Everybody";
    const BODY: &[u8] = b"Hello, World!";
    const SIGNED: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    fn check(secret: &str, signature: &str, body: &[u8]) -> Result<VerifiedSignature, SignatureError> {
        let map = headers(&[("X-Hub-Signature-256", signature), (DELIVERY, "72d3162e")]);
        verify(&checks(secret), &map, body, UnixMillis(0))
    }

    #[test]
    fn the_published_vector_is_accepted() {
        assert_eq!(
            check(SECRET, SIGNED, BODY),
            Ok(VerifiedSignature::default()),
            "no header is vouched for"
        );
        assert_eq!(check("another", SIGNED, BODY), Err(SignatureError::Mismatch));
        assert_eq!(check(SECRET, SIGNED, b"Hello, World"), Err(SignatureError::Mismatch));
    }

    #[test]
    fn an_unreadable_signature_is_named() {
        for bad in ["", "sha1=aa", "sha256=xyz", &SIGNED[7..]] {
            assert!(
                matches!(check(SECRET, bad, BODY), Err(SignatureError::Malformed { .. })),
                "{bad}"
            );
        }

        assert_eq!(
            check(SECRET, &SIGNED[..SIGNED.len() - 2], BODY),
            Err(SignatureError::Mismatch)
        );
    }
}
