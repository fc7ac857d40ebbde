//! Posts of Slack's Events API, signed as Slack signs them. Source: <https://docs.slack.dev/authentication/verifying-requests-from-slack>.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::clock::{Clock as _, SystemClock};

/// Secret with which posts are signed.
pub const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

/// Returns the envelope of `event`.
#[must_use]
pub fn envelope(event: &Value) -> String {
    envelope_of("T1", event)
}

/// Returns the envelope of `event` in the workspace `team`.
#[must_use]
pub fn envelope_of(team: &str, event: &Value) -> String {
    json!({"type": "event_callback", "team_id": team, "api_app_id": "A1", "event": event}).to_string()
}

/// Returns the request that posts `body`, signed now, to the account `main` of the gateway at `gateway`.
///
/// # Panics
/// Panics if the key cannot be used.
pub fn signed_post(client: &reqwest::Client, gateway: &str, body: String) -> reqwest::RequestBuilder {
    signed(client, gateway, "application/json", body)
}

/// Returns the request that posts the interaction `payload`, signed now, as [`signed_post`].
///
/// # Panics
/// Panics if the key cannot be used.
pub fn signed_interaction(client: &reqwest::Client, gateway: &str, payload: &Value) -> reqwest::RequestBuilder {
    let mut form = reqwest::Url::parse("http://form").expect("a URL");
    form.query_pairs_mut().append_pair("payload", &payload.to_string());
    let body = form.query().unwrap_or_default().to_owned();
    signed(client, gateway, "application/x-www-form-urlencoded", body)
}

fn signed(client: &reqwest::Client, gateway: &str, kind: &str, body: String) -> reqwest::RequestBuilder {
    let at = (SystemClock.now().0 / 1_000).to_string();
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("a key");
    mac.update(format!("v0:{at}:{body}").as_bytes());
    let digits: String = mac
        .finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();

    client
        .post(format!("{gateway}/slack/main"))
        .header("content-type", kind)
        .header("x-slack-request-timestamp", at)
        .header("x-slack-signature", format!("v0={digits}"))
        .body(body)
}
