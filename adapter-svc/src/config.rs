//! `[adapter]` of `nexus.toml`: what it says, its defaults, and how it becomes sources.

mod beside;
mod webhook;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shared::process::Secret;
use shared::process::key;

use crate::approvals::Callbacks;
use crate::gateway::client::Networks;
use crate::gateway::hosts::is_local;
use crate::source::events::access::{Access, HttpConfig};
use crate::source::webhook::endpoint::{Endpoint, Scheme};
use crate::source::webhook::signature::{Checks, Key};
use crate::source::webhook::standard;

pub use webhook::WebhookConfig;

/// Smallest spool that is of use, in bytes.
const MIN_SPOOL_BYTES: u64 = 64 * 1024;

/// When an HTTP request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accept {
    /// After the event is on this host's disk; it is published afterwards.
    #[default]
    Spool,
    /// After JetStream has it.
    Stream,
}

/// `[adapter]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterConfig {
    /// Where HTTP is served; port 0 = any free one.
    pub listen: SocketAddr,
    /// Further host names by which it may be called where `listen` is a loopback address, without port.
    pub hosts: Vec<String>,
    /// Directory of the spool; it belongs to one process.
    pub data_dir: PathBuf,
    /// When a request is answered.
    pub accept: Accept,
    /// Largest spool, in bytes; beyond it input is refused with 503.
    pub spool_max_bytes: u64,
    /// How many events are in hand of the publisher at once.
    pub publish_in_flight: usize,
    /// How many connections are open at once; beyond that, one without a request in work is ended for each new one.
    pub max_connections: usize,
    /// How many of them one address may have (IPv6: one /64).
    pub max_connections_per_address: usize,
    /// Proxies in front, as CIDR blocks: their connections are not bounded by address, and the last address in
    /// `X-Forwarded-For` that is not one of theirs is the client's.
    pub trusted_proxies: Vec<String>,
    /// How many requests are worked on at once; more are refused with 503.
    pub max_concurrent: usize,
    /// How many requests an address may make in a second; more are refused with 429. Absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_address_per_second: Option<u32>,
    /// How many of these an address that was quiet may make at once.
    pub per_address_burst: u32,
    /// How long a request may take, in milliseconds.
    pub request_timeout_ms: u64,
    /// How long a request's head may take to arrive, in milliseconds.
    pub header_timeout_ms: u64,
    /// Sources at `/hooks/{name}`.
    pub webhook: BTreeMap<String, WebhookConfig>,
    /// `/v1/events`.
    pub http: HttpConfig,
    /// The chat page.
    pub webchat: WebchatConfig,
    /// `/approvals/{id}`.
    pub approvals: ApprovalsConfig,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            hosts: Vec::new(),
            data_dir: PathBuf::from(".nexus/adapter"),
            accept: Accept::default(),
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
            webhook: BTreeMap::new(),
            http: HttpConfig::default(),
            webchat: WebchatConfig::default(),
            approvals: ApprovalsConfig::default(),
        }
    }
}

/// `[adapter.approvals]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalsConfig {
    /// What signs the callbacks of platforms, base64 with or without `whsec_`; without it none is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Further ones, while they are rotated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// What signs the callbacks that speak for a channel, by its name; where one is listed, none speaks for another.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<String, CallbackSecrets>,
    /// What signs the links of cards, as `broker.approvals.link.secret`; without it no link is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_secret: Option<Secret>,
}

/// `[adapter.approvals.channels.<name>]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallbackSecrets {
    /// What signs its callbacks, base64 with or without `whsec_`.
    pub secret: Secret,
    /// Further ones, while they are rotated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
}

impl ApprovalsConfig {
    /// What links are checked against; none where there is no secret.
    #[must_use]
    pub fn links(&self) -> Option<Checks> {
        let secret = self.link_secret.as_ref()?;
        Some(Checks {
            keys: vec![Key::new(secret.reveal())],
            tolerance_s: default_tolerance(),
        })
    }

    /// What callbacks are checked against; none where there is no secret.
    ///
    /// # Errors
    /// `key: what is expected`.
    pub fn callbacks(&self) -> Result<Option<Callbacks>, String> {
        let any = checks("approvals.secret", self.secret.iter().chain(&self.secrets))?;
        let mut channels = BTreeMap::new();
        for (name, of) in &self.channels {
            let key = format!("approvals.channels.{name}.secret");
            let secrets = std::iter::once(&of.secret).chain(&of.secrets);
            channels.insert(name.clone(), checks(&key, secrets)?.unwrap_or_default());
        }

        match (any, channels.is_empty()) {
            (Some(_), false) => Err("approvals.secret: for all channels, or for each its own in `channels`".to_owned()),
            (Some(any), true) => Ok(Some(Callbacks::Any(any))),
            (None, false) => Ok(Some(Callbacks::Own(channels))),
            (None, true) => Ok(None),
        }
    }
}

/// What the `secrets` at `name` check; none if there are none.
fn checks<'a>(name: &str, secrets: impl Iterator<Item = &'a Secret>) -> Result<Option<Checks>, String> {
    let keys: Result<Vec<Key>, _> = secrets.map(|secret| standard::key(secret.reveal())).collect();
    match keys {
        Err(weak) => Err(format!("{name}: {weak}")),
        Ok(keys) if keys.is_empty() => Ok(None),
        Ok(keys) => Ok(Some(Checks {
            keys,
            tolerance_s: default_tolerance(),
        })),
    }
}

/// Five minutes, as every scheme proposes.
const fn default_tolerance() -> u32 {
    300
}

/// `[adapter.webchat]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebchatConfig {
    /// Whether the page is served.
    pub enabled: bool,
    /// Its account.
    pub account: String,
    /// How many pages may be connected at once.
    pub max_sockets: usize,
    /// How many of them from one address (IPv6: one /64).
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
    /// Every fault, as `key: what is expected`.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, value) in [
            ("publish_in_flight", self.publish_in_flight),
            ("max_connections", self.max_connections),
            ("max_connections_per_address", self.max_connections_per_address),
            ("max_concurrent", self.max_concurrent),
            ("webchat.max_sockets", self.webchat.max_sockets),
            ("webchat.max_sockets_per_address", self.webchat.max_sockets_per_address),
        ] {
            if value == 0 {
                faults.push(format!("{key}: at least 1"));
            }
        }

        for (key, value) in [
            ("request_timeout_ms", self.request_timeout_ms),
            ("header_timeout_ms", self.header_timeout_ms),
        ] {
            if value == 0 {
                faults.push(format!("{key}: at least 1 ms"));
            }
        }

        if self.per_address_per_second == Some(0) || self.per_address_burst == 0 {
            faults.push("per_address_per_second, per_address_burst: at least 1".to_owned());
        }

        if self.spool_max_bytes < MIN_SPOOL_BYTES {
            faults.push(format!("spool_max_bytes: at least {MIN_SPOOL_BYTES}"));
        }

        if self.webchat.account.is_empty() || self.webchat.account.contains(|c: char| c == '/' || c.is_control()) {
            faults.push("webchat.account: a name without `/` and control characters".to_owned());
        }

        faults.extend(self.networks().err());
        faults.extend(self.approvals.callbacks().err());

        if let Some(Err(weak)) = self
            .approvals
            .link_secret
            .as_ref()
            .map(|secret| key::text(secret.reveal()))
        {
            faults.push(format!("approvals.link_secret: {weak}"));
        }

        let access = self.access().err().unwrap_or_default();
        faults.extend(access.into_iter().map(|fault| format!("http.{fault}")));
        faults.extend(self.open_fault());

        for (name, source) in &self.webhook {
            faults.extend(
                source
                    .faults(name)
                    .into_iter()
                    .map(|fault| format!("webhook.{name}.{fault}")),
            );
        }

        faults
    }

    /// Returns the proxies that are trusted.
    ///
    /// # Errors
    /// `key: what is expected`.
    pub fn networks(&self) -> Result<Networks, String> {
        Networks::parse(&self.trusted_proxies)
            .map_err(|text| format!("trusted_proxies: `{text}` is neither an address nor a CIDR block"))
    }

    /// Who may post events.
    ///
    /// # Errors
    /// Every fault, each as `key: what is expected`.
    pub fn access(&self) -> Result<Access, Vec<String>> {
        Access::new(&self.http)
    }

    /// Why `/v1/events` may not be open here.
    fn open_fault(&self) -> Option<String> {
        if !self.http.open {
            return None;
        }

        if !self.listen.ip().is_loopback() {
            let listen = self.listen;
            return Some(format!(
                "http.open: `listen` is {listen}; without a token events are taken on a loopback address only"
            ));
        }

        let public = self.hosts.iter().find(|host| !is_local(&host.to_ascii_lowercase()))?;
        Some(format!(
            "http.open: `hosts` names `{public}`, so others reach this address; configure [[adapter.http.tokens]] instead"
        ))
    }

    /// Settings that are sound and weaker than they should be, each as `key: why`.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.http.open {
            let what = "events are taken without a token from every process of this machine";
            warnings.push(format!("http.open: {what}; each is a stranger's"));
        }

        for (name, source) in &self.webhook {
            if source.scheme == Scheme::Unsigned {
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

    /// The webhook sources, parsed. Sources with faults are left out; [`AdapterConfig::faults`] names them.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.webhook
            .iter()
            .filter_map(|(name, source)| source.endpoint(name).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests;
