//! How the platforms write what they post: Telegram's updates, Slack's payloads, and a webhook of the scheme `github`.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::model::time::UnixMillis;

use crate::posts::{PostForm, PostHeaders};
use crate::{slack, telegram, telegram_webhook, web_api};

/// Secret of the webhook.
pub(crate) const WEBHOOK_SECRET: &str = "a secret of thirty-two characters";

/// The hexadecimal HMAC of `parts`.
fn sign(secret: &str, parts: &[&str]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key");
    parts.iter().for_each(|part| mac.update(part.as_bytes()));
    hex::encode(mac.finalize().into_bytes())
}

/// Telegram, whose posts carry a secret.
pub(crate) struct TelegramPosts;

impl PostForm for TelegramPosts {
    fn path(&self) -> &'static str {
        "/telegram/main"
    }

    fn event_id(&self, number: i64, _at: UnixMillis) -> String {
        format!("telegram:main/{}/{number}", 100 + number % 7)
    }

    fn body(&self, number: i64, at: UnixMillis) -> String {
        json!({"update_id": number, "message": telegram::message(number, at)}).to_string()
    }

    fn sign(&self, _body: &str, _now: UnixMillis) -> PostHeaders {
        vec![("x-telegram-bot-api-secret-token", telegram_webhook::SECRET.to_owned())]
    }

    fn forge(&self, _body: &str, _now: UnixMillis) -> Vec<PostHeaders> {
        let other = ("x-telegram-bot-api-secret-token", WEBHOOK_SECRET.to_owned());
        vec![Vec::new(), vec![other]]
    }
}

/// Slack, which signs the time and the body, and says how often it has posted.
pub(crate) struct SlackPosts;

impl SlackPosts {
    fn headers(secret: &str, body: &str, at: UnixMillis) -> PostHeaders {
        let seconds = (at.0 / 1_000).to_string();
        let signature = format!("v0={}", sign(secret, &["v0:", &seconds, ":", body]));
        vec![("x-slack-request-timestamp", seconds), ("x-slack-signature", signature)]
    }
}

impl PostForm for SlackPosts {
    fn path(&self) -> &'static str {
        "/slack/main"
    }

    fn event_id(&self, number: i64, at: UnixMillis) -> String {
        let message = slack::message(number, at, "D1", &json!({}));
        format!("slack:main/D1/{}", message["ts"].as_str().expect("a stamp"))
    }

    fn body(&self, number: i64, at: UnixMillis) -> String {
        let message = slack::message(number, at, "D1", &json!({}));
        let envelope: Value = json!({"type": "event_callback", "token": "verification", "team_id": "T1",
            "api_app_id": "A1", "event_id": format!("Ev{number}"), "event": message,
            "authorizations": [{"team_id": "T1", "user_id": "U7"}]});
        envelope.to_string()
    }

    fn sign(&self, body: &str, now: UnixMillis) -> PostHeaders {
        Self::headers(web_api::SECRET, body, now)
    }

    fn forge(&self, body: &str, now: UnixMillis) -> Vec<PostHeaders> {
        let other_body = body.replace("message", "massage");
        vec![
            Vec::new(),
            Self::headers(WEBHOOK_SECRET, body, now),
            Self::headers(web_api::SECRET, &other_body, now),
            Self::headers(web_api::SECRET, body, now.plus(-301_000)),
        ]
    }
}

/// A webhook of the source `main`, which signs the body.
pub(crate) struct WebhookPosts;

impl WebhookPosts {
    /// Its section below `[adapter]`, or what `prefix` names, with the secret that `reference` says where to find.
    pub(crate) fn section(prefix: &str, reference: &str) -> String {
        format!(
            "[{prefix}webhook.main]\nscheme = \"github\"\nsecret = \"{reference}\"\n\
             mapping.id = \"/id\"\nmapping.content = \"/text\"\n"
        )
    }

    fn headers(secret: &str, body: &str) -> PostHeaders {
        vec![("x-hub-signature-256", format!("sha256={}", sign(secret, &[body])))]
    }
}

impl PostForm for WebhookPosts {
    fn path(&self) -> &'static str {
        "/hooks/main"
    }

    fn event_id(&self, number: i64, _at: UnixMillis) -> String {
        format!("webhook:main/{number}")
    }

    fn body(&self, number: i64, at: UnixMillis) -> String {
        json!({"id": number.to_string(), "text": format!("message {number}"), "at": at}).to_string()
    }

    fn sign(&self, body: &str, _now: UnixMillis) -> PostHeaders {
        Self::headers(WEBHOOK_SECRET, body)
    }

    fn forge(&self, body: &str, _now: UnixMillis) -> Vec<PostHeaders> {
        let other_body = body.replace("message", "massage");
        vec![
            Vec::new(),
            Self::headers(web_api::SECRET, body),
            Self::headers(WEBHOOK_SECRET, &other_body),
        ]
    }
}
