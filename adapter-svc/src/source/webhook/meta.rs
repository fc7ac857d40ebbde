//! Meta (WhatsApp, Messenger, Instagram): `X-Hub-Signature-256`, and the subscription's `hub.challenge`. *Pure.*
//!
//! Source: <https://developers.facebook.com/docs/graph-api/webhooks/getting-started>. Neither a delivery id nor a
//! timestamp is signed. A delivery has up to 1,000 entries, and entries that were refused may arrive again in another
//! batch, so each entry is an event, whose id is the entry's hash.

use std::collections::HashMap;

use axum::http::HeaderMap;
use serde_json::{Value, json};
use shared::model::time::UnixMillis;

use super::github::hub_signature;
use super::signature::{SignatureChecks, SignatureError, SigningKey, VerifiedSignature};

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

/// Returns the entries of a delivery, each as a body of its own with ordered keys; `None` if it has no entries.
#[must_use]
pub fn split_entries(payload: &Value) -> Option<Vec<Value>> {
    let entries = payload.get("entry")?.as_array().filter(|entries| !entries.is_empty())?;
    let alone = |entry: &Value| {
        let mut body = json!({ "object": payload.get("object"), "entry": [entry] });
        body.sort_all_objects();
        body
    };
    Some(entries.iter().map(alone).collect())
}

/// Returns the response to a subscription's GET: its `hub.challenge`, if mode and verify token are right.
#[must_use]
pub fn answer_challenge(token: &SigningKey, query: &HashMap<String, String>) -> Option<String> {
    let subscribes = query.get("hub.mode").is_some_and(|mode| mode == "subscribe");
    let known = query
        .get("hub.verify_token")
        .is_some_and(|given| token.equals(given.as_bytes()));
    if subscribes && known {
        query.get("hub.challenge").cloned()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::tests::{checks, headers};
    use super::super::signature::{HashAlgorithm, compute_code};
    use super::*;

    #[test]
    fn a_signed_request_is_accepted() {
        let checks = checks("app-secret");
        let signature = hex::encode(compute_code(HashAlgorithm::Sha256, &checks.keys[0], &[b"{}"]));
        let map = headers(&[("X-Hub-Signature-256", &format!("sha256={signature}"))]);
        assert_eq!(
            verify(&checks, &map, b"{}", UnixMillis(0)),
            Ok(VerifiedSignature::default())
        );
        assert_eq!(
            verify(&checks, &map, b"[]", UnixMillis(0)),
            Err(SignatureError::Mismatch)
        );
    }

    #[test]
    fn each_entry_is_a_body_of_its_own() {
        let split = |text: &str| split_entries(&serde_json::from_str(text).unwrap());
        let both = split(r#"{"object":"page","entry":[{"id":"1","time":5},{"id":"2","time":5}]}"#).unwrap();
        assert_eq!(both[1], json!({"entry": [{"id": "2", "time": 5}], "object": "page"}));

        let again = split(r#"{"entry":[{"time":5,"id":"2"}],"object":"page"}"#).unwrap();
        assert_eq!(
            again[0].to_string(),
            both[1].to_string(),
            "another batch and another order of keys"
        );
        assert_eq!((split("{}"), split(r#"{"entry":[]}"#)), (None, None));
    }

    #[test]
    fn the_challenge_needs_the_token() {
        let ask = |mode: &str, token: &str| {
            let pairs = [
                ("hub.mode", mode),
                ("hub.verify_token", token),
                ("hub.challenge", "1158201444"),
            ];
            let query = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();

            answer_challenge(&SigningKey::new("meatyhamhock"), &query)
        };

        assert_eq!(ask("subscribe", "meatyhamhock").as_deref(), Some("1158201444"));
        assert_eq!(ask("subscribe", "else"), None);
        assert_eq!(ask("unsubscribe", "meatyhamhock"), None);
    }
}
