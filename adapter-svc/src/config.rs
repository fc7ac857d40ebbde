//! The section `[adapter]` of `nexus.toml`: its keys, their defaults, and their conversion to sources.

mod attachments;
mod beside;
mod webhook;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shared::model::channel::ConfiguredChannels;
use shared::model::dispatch::DeliveryContext;
use shared::model::event::DEFAULT_ACCOUNT;
use shared::process::SecretValue;
use shared::process::config::KeyFault;
use shared::process::key;

use crate::approvals::callback_auth::CallbackAuth;
use crate::gateway::client_address::TrustedNetworks;
use crate::gateway::hosts::is_local;
use crate::source::events::access::{HttpConfig, TokenAccess};
use crate::source::webhook::endpoint::{SignatureScheme, WebhookEndpoint};
use crate::source::webhook::signature::{SignatureChecks, SigningKey};
use crate::source::webhook::standard;

pub use attachments::AttachmentConfig;
pub use webhook::WebhookConfig;

/// Minimum size of a useful spool, in bytes.
const MIN_SPOOL_BYTES: u64 = 64 * 1024;

/// The time at which an HTTP request gets its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptMode {
    /// After the event is on this host's disk; it is published afterwards.
    #[default]
    Spool,
    /// After JetStream has the event.
    Stream,
}

/// The configuration section `[adapter]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterConfig {
    /// Address at which HTTP is served; port 0 = any free port.
    pub listen: SocketAddr,
    /// Further host names, without port, that are allowed if `listen` is a loopback address.
    pub hosts: Vec<String>,
    /// Directory of the spool; it belongs to one process.
    pub data_dir: PathBuf,
    /// Time at which a request gets its response.
    pub accept: AcceptMode,
    /// Maximum size of the spool, in bytes; beyond it, requests are refused with 503.
    pub spool_max_bytes: u64,
    /// Maximum number of events that are being published at once.
    pub publish_in_flight: usize,
    /// Maximum number of open connections; beyond it, one without a request in progress is ended for each new one.
    pub max_connections: usize,
    /// Maximum number of connections per address (IPv6: per /64).
    pub max_connections_per_address: usize,
    /// Proxies in front of the service, as CIDR blocks. Their connections have no limit per address, and the last
    /// address in `X-Forwarded-For` that is not in these blocks is the client's.
    pub trusted_proxies: Vec<String>,
    /// Maximum number of requests in progress; further ones are refused with 503.
    pub max_concurrent: usize,
    /// Maximum number of requests per second and address; further ones are refused with 429. Absent = unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_address_per_second: Option<u32>,
    /// Maximum number of requests that an address may make at once after a pause.
    pub per_address_burst: u32,
    /// Maximum time of a request, in milliseconds.
    pub request_timeout_ms: u64,
    /// Maximum time for a request's head to arrive, in milliseconds.
    pub header_timeout_ms: u64,
    /// Age from which an event that an account's source reads is stored and fires no hook, except hooks that ask for
    /// backfilled events, in milliseconds.
    pub age_gate_ms: u64,
    /// Maximum number of calls a minute with which a backfill reads an account's histories.
    pub backfill_calls_per_minute: u32,
    /// Conversation in which the owner is told of strangers who were sent a code; absent = in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairing_notices: Option<DeliveryContext>,
    /// Webhook sources at `/hooks/{name}`.
    pub webhook: BTreeMap<String, WebhookConfig>,
    /// Files of messages.
    pub attachments: AttachmentConfig,
    /// Settings of the path `/v1/events`.
    pub http: HttpConfig,
    /// Settings of the chat page.
    pub webchat: WebchatConfig,
    /// Settings of the paths below `/approvals/{id}`.
    pub approvals: ApprovalsConfig,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            hosts: Vec::new(),
            data_dir: PathBuf::from(".nexus/adapter"),
            accept: AcceptMode::default(),
            spool_max_bytes: 1024 * 1024 * 1024,
            publish_in_flight: 1_024,
            max_connections: 1_024,
            max_connections_per_address: 256,
            trusted_proxies: Vec::new(),
            max_concurrent: 256,
            per_address_per_second: None,
            per_address_burst: 100,
            request_timeout_ms: 30_000,
            header_timeout_ms: 10_000,
            age_gate_ms: 24 * 3_600_000,
            backfill_calls_per_minute: 40,
            pairing_notices: None,
            webhook: BTreeMap::new(),
            attachments: AttachmentConfig::default(),
            http: HttpConfig::default(),
            webchat: WebchatConfig::default(),
            approvals: ApprovalsConfig::default(),
        }
    }
}

/// The configuration section `[adapter.approvals]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalsConfig {
    /// Secret that signs platforms' callbacks, base64 with or without `whsec_`; absent = callbacks are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretValue>,
    /// Further secrets, during a rotation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretValue>,
    /// Secrets that sign callbacks of a channel, by its name. If there are any, each may sign only for its own
    /// channel.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<String, CallbackSecrets>,
    /// Secret that signs links of cards, equal to `broker.approvals.link.secret`; absent = links are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_secret: Option<SecretValue>,
}

/// The configuration section `[adapter.approvals.channels.<name>]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallbackSecrets {
    /// Secret that signs its callbacks, base64 with or without `whsec_`.
    pub secret: SecretValue,
    /// Further secrets, during a rotation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretValue>,
}

impl ApprovalsConfig {
    /// Returns the checks of links; `None` if there is no secret.
    #[must_use]
    pub fn link_checks(&self) -> Option<SignatureChecks> {
        let secret = self.link_secret.as_ref()?;
        Some(SignatureChecks {
            keys: vec![SigningKey::new(secret.reveal())],
            tolerance_s: default_tolerance(),
        })
    }

    /// Returns the checks of callbacks; `None` if there is no secret.
    ///
    /// # Errors
    /// Returns `key: expected value`.
    pub fn callback_auth(&self) -> Result<Option<CallbackAuth>, String> {
        let any = checks_of("approvals.secret", self.secret.iter().chain(&self.secrets))?;
        let mut channels = BTreeMap::new();
        for (name, of) in &self.channels {
            let key = format!("approvals.channels.{name}.secret");
            let secrets = std::iter::once(&of.secret).chain(&of.secrets);
            channels.insert(name.clone(), checks_of(&key, secrets)?.unwrap_or_default());
        }

        match (any, channels.is_empty()) {
            (Some(_), false) => Err(
                "approvals.secret: set either this or `secret` of each channel in `approvals.channels`, not both"
                    .to_owned(),
            ),
            (Some(any), true) => Ok(Some(CallbackAuth::Any(any))),
            (None, false) => Ok(Some(CallbackAuth::Own(channels))),
            (None, true) => Ok(None),
        }
    }
}

/// Returns the checks with the `secrets` at `name`; `None` if there are none.
fn checks_of<'a>(
    name: &str,
    secrets: impl Iterator<Item = &'a SecretValue>,
) -> Result<Option<SignatureChecks>, String> {
    let keys: Result<Vec<SigningKey>, _> = secrets.map(|secret| standard::key(secret.reveal())).collect();
    match keys {
        Err(weak) => Err(format!("{name}: {weak}")),
        Ok(keys) if keys.is_empty() => Ok(None),
        Ok(keys) => Ok(Some(SignatureChecks {
            keys,
            tolerance_s: default_tolerance(),
        })),
    }
}

/// Returns five minutes in seconds, the tolerance that every scheme proposes.
const fn default_tolerance() -> u32 {
    300
}

/// The configuration section `[adapter.webchat]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebchatConfig {
    /// Whether the page is served.
    pub enabled: bool,
    /// Account of the page.
    pub account: String,
    /// Maximum number of connected pages.
    pub max_sockets: usize,
    /// Maximum number of connected pages per address (IPv6: per /64).
    pub max_sockets_per_address: usize,
}

impl Default for WebchatConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            account: "default".to_owned(),
            max_sockets: 1_000,
            max_sockets_per_address: 64,
        }
    }
}

impl AdapterConfig {
    /// Returns every error in the configuration, as `key: expected value`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        // Zero would block the service without a word.
        for (key, value) in [
            ("publish_in_flight", self.publish_in_flight),
            ("max_connections", self.max_connections),
            ("max_connections_per_address", self.max_connections_per_address),
            ("max_concurrent", self.max_concurrent),
            ("webchat.max_sockets", self.webchat.max_sockets),
            ("webchat.max_sockets_per_address", self.webchat.max_sockets_per_address),
        ] {
            if value == 0 {
                faults.push(format!("{key}: expected at least 1"));
            }
        }

        for (key, value) in [
            ("request_timeout_ms", self.request_timeout_ms),
            ("header_timeout_ms", self.header_timeout_ms),
            ("age_gate_ms", self.age_gate_ms),
        ] {
            if value == 0 {
                faults.push(format!("{key}: expected at least 1 ms"));
            }
        }

        if self.backfill_calls_per_minute == 0 {
            faults.push("backfill_calls_per_minute: expected at least 1".to_owned());
        }

        if self.per_address_per_second == Some(0) || self.per_address_burst == 0 {
            faults.push("per_address_per_second, per_address_burst: expected at least 1".to_owned());
        }

        if self.spool_max_bytes < MIN_SPOOL_BYTES {
            faults.push(format!("spool_max_bytes: expected at least {MIN_SPOOL_BYTES}"));
        }

        if self.webchat.account.is_empty() || self.webchat.account.contains(|c: char| c == '/' || c.is_control()) {
            faults.push("webchat.account: expected a name without `/` and control characters".to_owned());
        }

        let attachments = self.attachments.find_faults().into_iter();
        faults.extend(attachments.map(|fault| format!("attachments.{fault}")));
        faults.extend(self.trusted_networks().err());
        faults.extend(self.approvals.callback_auth().err());

        if let Some(Err(weak)) = self
            .approvals
            .link_secret
            .as_ref()
            .map(|secret| key::text(secret.reveal()))
        {
            faults.push(format!("approvals.link_secret: {weak}"));
        }

        // Tokens and sources are checked with all others, so that one start shows every fault.
        let access = self.token_access().err().unwrap_or_default();
        faults.extend(access.into_iter().map(|fault| format!("http.{fault}")));
        faults.extend(self.open_fault());
        faults.extend(self.place_fault());

        for (name, source) in &self.webhook {
            faults.extend(
                source
                    .find_faults(name)
                    .into_iter()
                    .map(|fault| format!("webhook.{name}.{fault}")),
            );
        }

        faults
    }

    /// Returns the trusted proxies.
    ///
    /// # Errors
    /// Returns `key: expected value`.
    pub fn trusted_networks(&self) -> Result<TrustedNetworks, String> {
        TrustedNetworks::parse(&self.trusted_proxies)
            .map_err(|text| format!("trusted_proxies: `{text}` is neither an address nor a CIDR block"))
    }

    /// Returns the access rules of `/v1/events`.
    ///
    /// # Errors
    /// Returns every error, each as `key: expected value`.
    pub fn token_access(&self) -> Result<TokenAccess, Vec<String>> {
        TokenAccess::new(&self.http)
    }

    /// Returns the error if `/v1/events` must not be open with this configuration.
    fn open_fault(&self) -> Option<String> {
        if !self.http.open {
            return None;
        }

        if !self.listen.ip().is_loopback() {
            let listen = self.listen;
            return Some(format!(
                "http.open: `listen` is {listen}; without a token events are accepted only on a loopback address"
            ));
        }

        let public = self.hosts.iter().find(|host| !is_local(&host.to_ascii_lowercase()))?;
        Some(format!(
            "http.open: `hosts` names `{public}`, so others reach this address; configure [[adapter.http.tokens]] instead"
        ))
    }

    /// Returns the error if the owner cannot be told of strangers at the configured place.
    fn place_fault(&self) -> Option<String> {
        let place = self.pairing_notices.as_ref()?;
        let is_whole = !place.channel.is_empty() && place.peer_id.as_deref().is_some_and(|peer| !peer.is_empty());
        (!is_whole)
            .then(|| "pairing_notices: expected `channel` and `peerId`, and `accountId` of a platform".to_owned())
    }

    /// Returns the fault of `channels.yaml`, which has the accounts `known`, if the owner cannot be told of strangers by one of them:
    /// each notice would become a dead letter.
    #[must_use]
    pub fn notice_fault(&self, known: &ConfiguredChannels) -> Option<KeyFault> {
        let place = self.pairing_notices.as_ref()?;
        let account = place.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
        let need = format!("{}:{account}", place.channel);
        let is_missing = !place.channel.is_empty() && !known.has_channel(&need);
        is_missing.then(|| {
            KeyFault::whole(format!(
                "expected the account `{need}`, which adapter.pairing_notices names"
            ))
        })
    }

    /// Returns warnings about valid settings that are weaker than recommended, each as `key: reason`.
    #[must_use]
    pub fn find_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.http.open {
            let what = "events are accepted without a token from every process of this machine";
            warnings.push(format!("http.open: {what}; each is a stranger's"));
        }

        for (name, source) in &self.webhook {
            if source.scheme == SignatureScheme::Unsigned {
                let what = "every client that reaches the port can post to it; each event is a stranger's";
                warnings.push(format!("webhook.{name}.scheme: `unsigned`: {what}"));
            }

            let mut secrets = source.secret.iter().chain(&source.secrets);
            if source.scheme.has_text_key() && secrets.any(|secret| key::is_short(secret.reveal())) {
                let least = key::SOUND_TEXT_BYTES;
                warnings.push(format!(
                    "webhook.{name}.secret: shorter than {least} bytes; choose a longer one"
                ));
            }
        }

        let link = self.approvals.link_secret.as_ref();
        if link.is_some_and(|secret| key::is_short(secret.reveal())) {
            let least = key::SOUND_TEXT_BYTES;
            warnings.push(format!(
                "approvals.link_secret: shorter than {least} bytes; choose a longer one"
            ));
        }

        warnings
    }

    /// Returns the parsed webhook sources, without those that have errors; [`AdapterConfig::find_faults`] reports them.
    #[must_use]
    pub fn webhook_endpoints(&self) -> Vec<WebhookEndpoint> {
        self.webhook
            .iter()
            .filter_map(|(name, source)| source.parse_endpoint(name).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests;
