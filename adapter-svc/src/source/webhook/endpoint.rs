//! One parsed webhook source: its scheme, keys and mapping, and the selection of the scheme's function. *Pure.*
//!
//! An event's id comes from the part of the request that the scheme's signature covers. A signed body that is
//! repeated with other unsigned headers therefore makes no second event, and a client without the key cannot choose
//! an id. The signed parts of each scheme are in `docs/sources.md`.

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::process::key::{self, WeakKeyError};
use ulid::Ulid;

use super::generic::HmacConfig;
use super::mapping::{FieldMapping, FieldSource};
use super::signature::{SignatureChecks, SignatureError, SigningKey, VerifiedSignature, sha256_hex};
use super::{generic, github, meta, slack, standard, stripe, telegram};

/// The scheme by which a source's requests are authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureScheme {
    /// Standard Webhooks, including Svix.
    #[serde(alias = "standard-webhooks", alias = "standard_webhooks")]
    Standard,
    /// Stripe: a timestamp and signatures in one header.
    Stripe,
    /// GitHub: a signature of the body.
    Github,
    /// Slack: a signature of timestamp and body.
    Slack,
    /// Telegram: a secret token in a header, no signature.
    Telegram,
    /// Meta: a signature of the body, as GitHub's.
    Meta,
    /// A keyed hash as configured.
    #[serde(alias = "generic")]
    Hmac,
    /// No check: every client that reaches the port can post, as a stranger.
    Unsigned,
}

impl SignatureScheme {
    /// Returns the name in configuration and in `metadata.scheme`.
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

    /// Returns the key for `secret`.
    ///
    /// # Errors
    /// Returns [`WeakKeyError`] if the scheme cannot use the secret, or it is too short.
    pub fn key(self, secret: &str) -> Result<SigningKey, WeakKeyError> {
        match self {
            Self::Standard => standard::key(secret),
            Self::Stripe | Self::Github | Self::Slack | Self::Telegram | Self::Meta | Self::Hmac | Self::Unsigned => {
                key::text(secret).map(SigningKey::new)
            }
        }
    }

    /// Returns whether the secret is a text that the vendor or the operator chose.
    #[must_use]
    pub const fn has_text_key(self) -> bool {
        match self {
            Self::Stripe | Self::Github | Self::Slack | Self::Telegram | Self::Meta | Self::Hmac => true,
            Self::Standard | Self::Unsigned => false,
        }
    }

    /// Returns the default places of the delivery's id and of the event's type, for requests of this scheme.
    const fn default_places(self) -> (Option<&'static str>, Option<&'static str>) {
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

/// The identity of a delivery if no signed part has an id for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DedupeRule {
    /// The signed timestamp and the body; without a timestamp, the body alone; for `unsigned`, every request is
    /// another event.
    #[default]
    Auto,
    /// The body: an equal body is the same event. GitHub and Meta sign nothing else, so this always applies to them.
    Body,
}

/// A request whose signature was verified.
#[derive(Debug, Clone, Copy)]
pub struct VerifiedRequest<'a> {
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Body of the request, as received.
    pub body: &'a [u8],
    /// Body of the request, parsed.
    pub payload: &'a Value,
    /// Data that the signature proves.
    pub verified: &'a VerifiedSignature,
    /// Time the request was received.
    pub now: UnixMillis,
    /// A new id, for a delivery that has no other identity.
    pub fresh: Ulid,
}

/// A source at `/hooks/{name}`.
#[derive(Debug, Clone)]
pub struct WebhookEndpoint {
    /// Name of the source.
    pub name: String,
    /// Signature scheme of the source.
    pub scheme: SignatureScheme,
    /// Keys and tolerance of the source.
    pub checks: SignatureChecks,
    /// Parameters of the signature if the scheme is [`SignatureScheme::Hmac`].
    pub hmac: HmacConfig,
    /// Token that Meta's subscription must name.
    pub verify_token: Option<SigningKey>,
    /// Identity of deliveries for which the platform has no id.
    pub dedupe: DedupeRule,
    /// Further headers for `metadata.headers`, in lower case.
    pub headers: Vec<String>,
    /// Places of the event's fields in the request.
    pub mapping: FieldMapping,
    /// Whether its senders may count as persons, and its events may be on `channel`.
    pub persons: bool,
    /// Channel of its events, if it is not `webhook`.
    pub channel: Option<String>,
}

impl WebhookEndpoint {
    /// Checks that the request comes from the source. Returns the data that its signature proves.
    ///
    /// # Errors
    /// Returns [`SignatureError`] with the reason if the request is not authentic.
    pub fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: UnixMillis,
    ) -> Result<VerifiedSignature, SignatureError> {
        match self.scheme {
            SignatureScheme::Standard => standard::verify(&self.checks, headers, body, now),
            SignatureScheme::Stripe => stripe::verify(&self.checks, headers, body, now),
            SignatureScheme::Github => github::verify(&self.checks, headers, body, now),
            SignatureScheme::Slack => slack::verify(&self.checks, headers, body, now),
            SignatureScheme::Telegram => telegram::verify(&self.checks, headers, body, now),
            SignatureScheme::Meta => meta::verify(&self.checks, headers, body, now),
            SignatureScheme::Hmac => generic::verify(&self.hmac, &self.checks, headers, body, now),
            SignatureScheme::Unsigned => Ok(VerifiedSignature::default()),
        }
    }

    /// Returns the parts of the body that become one event each, if a delivery of this scheme has several: Meta's
    /// entries. Each is a body with only that entry, and with its keys in a fixed order.
    #[must_use]
    pub fn split_entries(&self, payload: &Value) -> Option<Vec<Value>> {
        match self.scheme {
            SignatureScheme::Meta => meta::split_entries(payload),
            SignatureScheme::Standard
            | SignatureScheme::Stripe
            | SignatureScheme::Github
            | SignatureScheme::Slack
            | SignatureScheme::Telegram
            | SignatureScheme::Hmac
            | SignatureScheme::Unsigned => None,
        }
    }

    /// Returns the identity of `delivery`, which is the same when it is delivered again, from the part that its
    /// signature covers: the signed id, otherwise the id in the signed body, otherwise a hash of the signed time and
    /// the body, or of the body.
    #[must_use]
    pub fn item_id(&self, delivery: &VerifiedRequest<'_>) -> String {
        let signed = delivery.verified.delivery_id.clone().filter(|id| !id.is_empty());
        if let Some(id) = signed.or_else(|| self.id_in_body(delivery)) {
            return id;
        }

        match (self.scheme, self.dedupe, delivery.verified.timestamp) {
            (SignatureScheme::Unsigned, DedupeRule::Auto, _) => delivery.fresh.to_string(),
            (SignatureScheme::Github | SignatureScheme::Meta, _, _)
            | (_, DedupeRule::Body, _)
            | (_, DedupeRule::Auto, None) => sha256_hex(&[delivery.body]),
            (_, DedupeRule::Auto, Some(at)) => sha256_hex(&[at.to_string().as_bytes(), b".", delivery.body]),
        }
    }

    /// Returns the platform's own name of this delivery, for people, whether or not it is signed.
    #[must_use]
    pub fn delivery_id(&self, delivery: &VerifiedRequest<'_>) -> Option<String> {
        let header = |name: &str| Some(delivery.headers.get(name)?.to_str().ok()?.to_owned());
        let unsigned = || match self.scheme {
            SignatureScheme::Github => header(github::DELIVERY),
            SignatureScheme::Hmac => self.hmac.id_header.as_deref().and_then(header),
            SignatureScheme::Standard
            | SignatureScheme::Stripe
            | SignatureScheme::Slack
            | SignatureScheme::Telegram
            | SignatureScheme::Meta
            | SignatureScheme::Unsigned => None,
        };

        let signed = delivery.verified.delivery_id.clone();
        signed.or_else(|| self.id_in_body(delivery)).or_else(unsigned)
    }

    /// Returns the id at the configured place, otherwise at the scheme's default place.
    fn id_in_body(&self, delivery: &VerifiedRequest<'_>) -> Option<String> {
        pick_value(
            self.mapping.id.as_ref(),
            self.scheme.default_places().0,
            delivery.headers,
            delivery.payload,
        )
    }

    /// Returns the event's type, if the request has one.
    #[must_use]
    pub fn event_type(&self, headers: &HeaderMap, payload: &Value) -> Option<String> {
        pick_value(
            self.mapping.event_type.as_ref(),
            self.scheme.default_places().1,
            headers,
            payload,
        )
    }
}

fn pick_value(
    configured: Option<&FieldSource>,
    default: Option<&str>,
    headers: &HeaderMap,
    payload: &Value,
) -> Option<String> {
    match (configured, default) {
        (Some(pick), _) => pick.text(headers, payload),
        (None, Some(text)) => FieldSource::try_from(text.to_owned()).ok()?.text(headers, payload),
        (None, None) => None,
    }
}
