//! One configured webhook source, parsed: its scheme, keys and mapping, and the choice of the scheme's function. *Pure.*
//!
//! An event's id comes from what the scheme's signature covers: a signed body that is repeated under another unsigned header
//! makes no second event, and nobody without the key can choose an id. What each scheme signs: `docs/sources.md`.

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::process::key::{self, WeakKeyError};
use ulid::Ulid;

use super::generic::HmacConfig;
use super::mapping::{Mapping, Pick};
use super::signature::{Checks, Key, SignatureError, Verified, sha256_hex};
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
    /// Nothing is checked: every client that reaches the port can post, as a stranger.
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

    /// The key that `secret` stands for.
    ///
    /// # Errors
    /// [`WeakKeyError`] if the scheme cannot use it, or it is too short.
    pub fn key(self, secret: &str) -> Result<Key, WeakKeyError> {
        match self {
            Self::Standard => standard::key(secret),
            Self::Stripe | Self::Github | Self::Slack | Self::Telegram | Self::Meta | Self::Hmac | Self::Unsigned => {
                key::text(secret).map(Key::new)
            }
        }
    }

    /// Whether the sender's secret is a text that the vendor or the operator chose.
    #[must_use]
    pub const fn has_text_key(self) -> bool {
        match self {
            Self::Stripe | Self::Github | Self::Slack | Self::Telegram | Self::Meta | Self::Hmac => true,
            Self::Standard | Self::Unsigned => false,
        }
    }

    /// Where in the body this scheme's sender writes the delivery's id, and where the event's type is, if configuration
    /// does not say.
    const fn places(self) -> (Option<&'static str>, Option<&'static str>) {
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

/// What tells one delivery from another if nothing that is signed has an id for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// The signed timestamp and the body; without a timestamp the body; of `unsigned`, every request is an event of its own.
    #[default]
    Auto,
    /// The body: the same body is the same event. GitHub and Meta sign nothing else, so it always holds for them.
    Body,
}

/// A request that a source's signature vouches for.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body as it came.
    pub body: &'a [u8],
    /// Its body, read.
    pub payload: &'a Value,
    /// What the signature vouches for.
    pub verified: &'a Verified,
    /// When it came.
    pub now: UnixMillis,
    /// A fresh id, for a delivery that nothing identifies.
    pub fresh: Ulid,
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
    /// Whether its senders may count as persons, and its events stand on `channel`.
    pub persons: bool,
    /// The channel of its events, if it is another than `webhook`.
    pub channel: Option<String>,
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

    /// What of the body is one event each, where a delivery of this scheme carries several: Meta's entries. Each is a body
    /// with that entry alone, in one order of keys.
    #[must_use]
    pub fn entries(&self, payload: &Value) -> Option<Vec<Value>> {
        match self.scheme {
            Scheme::Meta => meta::entries(payload),
            Scheme::Standard
            | Scheme::Stripe
            | Scheme::Github
            | Scheme::Slack
            | Scheme::Telegram
            | Scheme::Hmac
            | Scheme::Unsigned => None,
        }
    }

    /// What makes `delivery` the same item when it is delivered again, from what its signature covers: the signed id, else
    /// the id in the signed body, else a hash of the signed time and the body, or of the body.
    #[must_use]
    pub fn item_id(&self, delivery: &Delivery<'_>) -> String {
        let signed = delivery.verified.delivery_id.clone().filter(|id| !id.is_empty());
        if let Some(id) = signed.or_else(|| self.id_in_body(delivery)) {
            return id;
        }

        match (self.scheme, self.dedupe, delivery.verified.timestamp) {
            (Scheme::Unsigned, Dedupe::Auto, _) => delivery.fresh.to_string(),
            (Scheme::Github | Scheme::Meta, _, _) | (_, Dedupe::Body, _) | (_, Dedupe::Auto, None) => {
                sha256_hex(&[delivery.body])
            }
            (_, Dedupe::Auto, Some(at)) => sha256_hex(&[at.to_string().as_bytes(), b".", delivery.body]),
        }
    }

    /// The platform's own name of this delivery, for people: signed or not.
    #[must_use]
    pub fn delivery_id(&self, delivery: &Delivery<'_>) -> Option<String> {
        let header = |name: &str| Some(delivery.headers.get(name)?.to_str().ok()?.to_owned());
        let unsigned = || match self.scheme {
            Scheme::Github => header(github::DELIVERY),
            Scheme::Hmac => self.hmac.id_header.as_deref().and_then(header),
            Scheme::Standard | Scheme::Stripe | Scheme::Slack | Scheme::Telegram | Scheme::Meta | Scheme::Unsigned => {
                None
            }
        };

        let signed = delivery.verified.delivery_id.clone();
        signed.or_else(|| self.id_in_body(delivery)).or_else(unsigned)
    }

    /// The id at the configured place, else at the place where this scheme's sender writes it.
    fn id_in_body(&self, delivery: &Delivery<'_>) -> Option<String> {
        place(
            self.mapping.id.as_ref(),
            self.scheme.places().0,
            delivery.headers,
            delivery.payload,
        )
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
