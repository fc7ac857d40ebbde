//! Telegram: a header contains the secret token that was passed to `setWebhook`. *Pure.*
//!
//! Source: <https://core.telegram.org/bots/api#setwebhook>. Nothing is signed; the delivery's id is the `update_id`
//! in the body.

use axum::http::HeaderMap;
use shared::model::time::UnixMillis;

use super::signature::{SignatureChecks, SignatureError, VerifiedSignature, required_header};

const TOKEN: &str = "x-telegram-bot-api-secret-token";

/// Checks a request against the scheme.
///
/// # Errors
/// Returns [`SignatureError::Missing`] without the header, and [`SignatureError::Mismatch`] if no secret is the
/// token.
pub fn verify(
    checks: &SignatureChecks,
    headers: &HeaderMap,
    _body: &[u8],
    _now: UnixMillis,
) -> Result<VerifiedSignature, SignatureError> {
    let token = required_header(headers, TOKEN)?.as_bytes();
    let known = checks.keys.iter().fold(false, |found, key| key.equals(token) | found);
    if known {
        Ok(VerifiedSignature::default())
    } else {
        Err(SignatureError::Mismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::tests::{checks, headers};
    use super::*;

    #[test]
    fn the_token_must_be_the_secret() {
        let check = |pairs: &[(&str, &str)]| verify(&checks("s3-cret_"), &headers(pairs), b"{}", UnixMillis(0));
        let name = "X-Telegram-Bot-Api-Secret-Token";
        assert_eq!(check(&[(name, "s3-cret_")]), Ok(VerifiedSignature::default()));
        assert_eq!(check(&[(name, "s3-cret")]), Err(SignatureError::Mismatch));
        assert_eq!(check(&[(name, "")]), Err(SignatureError::Mismatch));
        assert!(matches!(check(&[]), Err(SignatureError::Missing { .. })));
    }
}
