//! One configured webhook source, parsed: its scheme, keys and mapping, and the choice of the scheme's function. *Pure.*

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::time::UnixMillis;

use super::generic::HmacConfig;
use super::mapping::{Mapping, Pick};
use super::signature::{Checks, Key, SignatureError, Verified};
use super::{generic, github, meta, slack, standard, stripe, telegram};

/// How a source's requests are known to be its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Standard Webhooks.
    #[serde(alias = "standard-webhooks", alias = "standard_webhooks")]
    Standard,
    /// Stripe.
    Stripe,
    /// GitHub.
    Github,
    /// Slack.
    Slack,
    /// Telegram's secret token.
    Telegram,
    /// Meta.
    Meta,
    /// A keyed hash as configured.
    #[serde(alias = "generic")]
    Hmac,
    /// Nothing is checked: whoever reaches the port is believed.
    Unsigned,
}

impl Scheme {
    /// The word in configuration and in `metadata.scheme`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Stripe => "stripe",
            Self::Github => "github",
            Self::Slack => "slack",
            Self::Telegram => "telegram",
            Self::Meta => "meta",
            Self::Hmac => "hmac",
            Self::Unsigned => "unsigned",
        }
    }

    /// The key that `secret` stands for; `None` where the scheme cannot use it.
    #[must_use]
    pub fn key(self, secret: &str) -> Option<Key> {
        match self {
            Self::Standard => standard::key(secret),
            Self::Stripe | Self::Github | Self::Slack | Self::Telegram | Self::Meta | Self::Hmac | Self::Unsigned => {
                (!secret.is_empty()).then(|| Key::new(secret))
            }
        }
    }

    /// Where this scheme's sender writes the delivery's id and the event's type, when configuration does not say.
    fn places(self) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Standard => (None, Some("/type")),
            Self::Stripe => (Some("/id"), Some("/type")),
            Self::Github => (None, Some("header:x-github-event")),
            Self::Slack => (Some("/event_id"), Some("/event/type")),
            Self::Telegram => (Some("/update_id"), None),
            Self::Meta => (None, Some("/entry/0/changes/0/field")),
            Self::Hmac | Self::Unsigned => (None, Some("/type")),
        }
    }
}

/// What tells one delivery from another where the platform has no id for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// The signed timestamp and the body; without one, every request is an event of its own.
    #[default]
    Auto,
    /// The body: the same body is the same event.
    Body,
}

/// A source at `/hooks/{name}`.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// Its scheme.
    pub scheme: Scheme,
    /// Its keys and tolerance.
    pub checks: Checks,
    /// How [`Scheme::Hmac`] signs.
    pub hmac: HmacConfig,
    /// What Meta's subscription must name.
    pub verify_token: Option<Key>,
    /// What tells deliveries apart.
    pub dedupe: Dedupe,
    /// Further headers for `metadata.headers`, in lower case.
    pub headers: Vec<String>,
    /// Where the fields stand.
    pub mapping: Mapping,
}

impl Endpoint {
    /// Whether the request comes from the source, and what its signature vouches for.
    ///
    /// # Errors
    /// [`SignatureError`] says why it is not believed.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: UnixMillis) -> Result<Verified, SignatureError> {
        match self.scheme {
            Scheme::Standard => standard::verify(&self.checks, headers, body, now),
            Scheme::Stripe => stripe::verify(&self.checks, headers, body, now),
            Scheme::Github => github::verify(&self.checks, headers, body, now),
            Scheme::Slack => slack::verify(&self.checks, headers, body, now),
            Scheme::Telegram => telegram::verify(&self.checks, headers, body, now),
            Scheme::Meta => meta::verify(&self.checks, headers, body, now),
            Scheme::Hmac => generic::verify(&self.hmac, &self.checks, headers, body, now),
            Scheme::Unsigned => Ok(Verified::default()),
        }
    }

    /// The platform's id of this delivery: what the signature vouches for, else what the mapping finds.
    #[must_use]
    pub fn delivery_id(&self, verified: &Verified, headers: &HeaderMap, payload: &Value) -> Option<String> {
        let found = || place(self.mapping.id.as_ref(), self.scheme.places().0, headers, payload);
        verified.delivery_id.clone().filter(|id| !id.is_empty()).or_else(found)
    }

    /// The event's type, where the request says one.
    #[must_use]
    pub fn event_type(&self, headers: &HeaderMap, payload: &Value) -> Option<String> {
        place(
            self.mapping.event_type.as_ref(),
            self.scheme.places().1,
            headers,
            payload,
        )
    }
}

fn place(configured: Option<&Pick>, default: Option<&str>, headers: &HeaderMap, payload: &Value) -> Option<String> {
    match (configured, default) {
        (Some(pick), _) => pick.text(headers, payload),
        (None, Some(text)) => Pick::try_from(text.to_owned()).ok()?.text(headers, payload),
        (None, None) => None,
    }
}
