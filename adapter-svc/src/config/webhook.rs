//! The section `[adapter.webhook.<source>]`: one webhook source, its checks, and its conversion to an endpoint.

use serde::{Deserialize, Serialize};
use shared::model::origin::{WEBHOOK, is_sealed_channel};
use shared::process::SecretValue;
use shared::process::config::{MAX_NAME_BYTES, is_plain_name};
use shared::process::key;

use super::default_tolerance;
use crate::source::webhook::endpoint::{DedupeRule, SignatureScheme, WebhookEndpoint};
use crate::source::webhook::generic::HmacConfig;
use crate::source::webhook::mapping::{FieldMapping, FieldSource};
use crate::source::webhook::signature::{SignatureChecks, SigningKey};

/// The configuration section `[adapter.webhook.<source>]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// Signature scheme of its requests.
    pub scheme: SignatureScheme,
    /// Secret that is shared with the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretValue>,
    /// Further secrets, during a rotation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretValue>,
    /// Maximum distance of a signed timestamp from now, in seconds; 0 = any distance (replays are then possible).
    #[serde(default = "default_tolerance")]
    pub tolerance_s: u32,
    /// Identity of deliveries for which the platform has no id.
    #[serde(default)]
    pub dedupe: DedupeRule,
    /// Header with the event's type; short for `mapping.type = "header:…"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type_header: Option<String>,
    /// Further headers for `metadata.headers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Signature of `scheme = "hmac"`.
    #[serde(default)]
    pub hmac: HmacConfig,
    /// Token that Meta's subscription must name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_token: Option<SecretValue>,
    /// Places of the event's fields in the request.
    #[serde(default)]
    pub mapping: FieldMapping,
    /// Whether the senders in `mapping.from` may count as persons of `identities.yaml`. This is safe only if the
    /// sender of the webhook proves them.
    #[serde(default)]
    pub persons: bool,
    /// Channel of the events in place of `webhook`; requires `persons`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

impl WebhookConfig {
    /// Returns every error in the source `name`, as `key: expected value`.
    pub(super) fn find_faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if !is_plain_name(name) {
            faults.push(format!(
                "name: expected at most {MAX_NAME_BYTES} letters, digits, `-`, `_` and `.`"
            ));
        }

        if self.scheme == SignatureScheme::Hmac {
            faults.extend(self.hmac.find_faults().into_iter().map(|fault| format!("hmac.{fault}")));
        }

        if let Err(fault) = self.parse_endpoint(name) {
            faults.push(fault);
        }

        if let Some(Err(weak)) = self.verify_token.as_ref().map(|token| key::text(token.reveal())) {
            faults.push(format!("verify_token: {weak}"));
        }

        faults.extend(self.trust_faults());
        faults
    }

    /// Returns errors that would let a client speak for others. Headers are not signed, and no part of `unsigned` is.
    fn trust_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let is_signed = self.scheme != SignatureScheme::Unsigned;
        if is_signed && matches!(self.mapping.id, Some(FieldSource::Header(_))) {
            let expected = "expected a place in the body; headers are not signed";
            faults.push(format!(
                "mapping.id: {expected} (or put `{{id}}` into hmac.signed and set hmac.id_header)"
            ));
        }

        if matches!(self.mapping.id, Some(FieldSource::Constant(_))) {
            faults.push(
                "mapping.id: expected a place in the body; with a constant all deliveries would be one event"
                    .to_owned(),
            );
        }

        // A person may only be named by a part that the signature covers.
        if self.persons && !is_signed {
            faults.push("persons: expected a scheme that signs; an unsigned source proves no person".to_owned());
        }

        for (key, pick) in [("from", &self.mapping.from), ("peer", &self.mapping.peer)] {
            if self.persons && matches!(pick, Some(FieldSource::Header(_))) {
                faults.push(format!(
                    "mapping.{key}: with `persons` expected a place in the body, which is signed"
                ));
            }
        }

        if let Some(channel) = &self.channel {
            if !self.persons {
                faults.push("channel: only a source with `persons = true` may name another channel".to_owned());
            }

            let is_own = channel.eq_ignore_ascii_case(WEBHOOK);
            if channel.is_empty() || (is_sealed_channel(channel) && !is_own) {
                faults.push(format!(
                    "channel: `{channel}` is empty, reserved or a platform's; choose another"
                ));
            }
        }

        faults
    }

    fn keys(&self) -> Result<Vec<SigningKey>, String> {
        let secrets = self.secret.iter().chain(&self.secrets);
        let keys: Result<Vec<SigningKey>, _> = secrets.map(|secret| self.scheme.key(secret.reveal())).collect();
        match keys {
            Err(weak) => Err(format!("secret: {weak}")),
            Ok(keys) if keys.is_empty() && self.scheme != SignatureScheme::Unsigned => Err(format!(
                "secret: `{}` needs one; set `unsigned` if there is none",
                self.scheme.name()
            )),
            Ok(keys) => Ok(keys),
        }
    }

    /// Returns the parsed source `name`.
    pub(super) fn parse_endpoint(&self, name: &str) -> Result<WebhookEndpoint, String> {
        let mut mapping = self.mapping.clone();
        if let Some(header) = &self.event_type_header {
            let pick = format!("header:{header}").try_into();
            mapping.event_type =
                Some(pick.map_err(|_| "event_type_header: expected the name of an HTTP header".to_owned())?);
        }

        Ok(WebhookEndpoint {
            name: name.to_owned(),
            scheme: self.scheme,
            checks: SignatureChecks {
                keys: self.keys()?,
                tolerance_s: self.tolerance_s,
            },
            hmac: self.hmac.clone(),
            verify_token: self.verify_token.as_ref().map(|token| SigningKey::new(token.reveal())),
            dedupe: self.dedupe,
            headers: self.headers.iter().map(|header| header.to_ascii_lowercase()).collect(),
            mapping,
            persons: self.persons,
            channel: self.channel.clone(),
        })
    }
}
