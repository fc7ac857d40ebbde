//! `[adapter]` of `nexus.toml`: what it says, its defaults, and how it becomes sources.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shared::process::Secret;

use crate::approvals::Callbacks;
use crate::source::http::Access;
use crate::source::webhook::endpoint::{Dedupe, Endpoint, Scheme};
use crate::source::webhook::generic::HmacConfig;
use crate::source::webhook::mapping::Mapping;
use crate::source::webhook::signature::{Checks, Key};
use crate::source::webhook::standard;

/// Longest name of a webhook source, in bytes.
const MAX_SOURCE_NAME_BYTES: usize = 64;
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
    /// How many connections are open at once; more wait to be accepted.
    pub max_connections: usize,
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

/// What `secrets`, which stand at `key`, check; none where there are none.
fn checks<'a>(key: &str, secrets: impl Iterator<Item = &'a Secret>) -> Result<Option<Checks>, String> {
    let keys: Option<Vec<Key>> = secrets.map(|secret| standard::key(secret.reveal())).collect();
    match keys {
        None => Err(format!("{key}: base64, with or without `whsec_`")),
        Some(keys) if keys.is_empty() => Ok(None),
        Some(keys) => Ok(Some(Checks {
            keys,
            tolerance_s: default_tolerance(),
        })),
    }
}

/// `[adapter.webhook.<source>]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// How its requests are known.
    pub scheme: Scheme,
    /// The secret shared with the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Further ones, while they are rotated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// How far a signed timestamp may lie from now, in seconds; 0 = any distance (replays are then possible).
    #[serde(default = "default_tolerance")]
    pub tolerance_s: u32,
    /// What tells deliveries apart where the platform has no id for them.
    #[serde(default)]
    pub dedupe: Dedupe,
    /// Header that says the event's type; short for `mapping.type = "header:…"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type_header: Option<String>,
    /// Further headers for `metadata.headers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// How `scheme = "hmac"` signs.
    #[serde(default)]
    pub hmac: HmacConfig,
    /// What Meta's subscription must name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_token: Option<Secret>,
    /// Where the fields stand.
    #[serde(default)]
    pub mapping: Mapping,
}

/// Five minutes, as every scheme proposes.
const fn default_tolerance() -> u32 {
    300
}

/// `[adapter.http]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// SHA-256, in hex, of each bearer token that may post events.
    pub tokens: Vec<String>,
    /// Whether events are taken without a token. Absent: exactly where no token is configured and `listen` is a
    /// loopback address, so that a laptop works at once and nothing else is open by accident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
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
}

impl Default for WebchatConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            account: "default".to_owned(),
            max_sockets: 1_000,
        }
    }
}

impl AdapterConfig {
    /// What is wrong with it, as `key: what is expected`.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, value) in [
            ("publish_in_flight", self.publish_in_flight),
            ("max_connections", self.max_connections),
            ("max_concurrent", self.max_concurrent),
            ("webchat.max_sockets", self.webchat.max_sockets),
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
        faults.extend(self.approvals.callbacks().err());
        if let Err(fault) = self.access() {
            faults.push(format!("http.{fault}"));
        }
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

    /// Who may post events.
    ///
    /// # Errors
    /// `key: what is expected`.
    pub fn access(&self) -> Result<Access, String> {
        let open = self
            .http
            .open
            .unwrap_or(self.http.tokens.is_empty() && self.listen.ip().is_loopback());
        Access::new(open, &self.http.tokens)
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

impl WebhookConfig {
    fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > MAX_SOURCE_NAME_BYTES || !name.chars().all(plain) {
            faults.push("name: letters, digits, `-`, `_` and `.`, at most 64".to_owned());
        }
        if self.scheme == Scheme::Hmac {
            faults.extend(self.hmac.faults().into_iter().map(|fault| format!("hmac.{fault}")));
        }
        if let Err(fault) = self.endpoint(name) {
            faults.push(fault);
        }
        faults
    }

    fn keys(&self) -> Result<Vec<Key>, String> {
        let secrets = self.secret.iter().chain(&self.secrets);
        let keys: Option<Vec<Key>> = secrets.map(|secret| self.scheme.key(secret.reveal())).collect();
        match keys {
            None => Err("secret: not empty; for `standard` base64, with or without `whsec_`".to_owned()),
            Some(keys) if keys.is_empty() && self.scheme != Scheme::Unsigned => Err(format!(
                "secret: `{}` needs one; `unsigned` must be said",
                self.scheme.name()
            )),
            Some(keys) => Ok(keys),
        }
    }

    fn endpoint(&self, name: &str) -> Result<Endpoint, String> {
        let mut mapping = self.mapping.clone();
        if let Some(header) = &self.event_type_header {
            let pick = format!("header:{header}").try_into();
            mapping.event_type = Some(pick.map_err(|_| "event_type_header: the name of an HTTP header".to_owned())?);
        }
        Ok(Endpoint {
            name: name.to_owned(),
            scheme: self.scheme,
            checks: Checks {
                keys: self.keys()?,
                tolerance_s: self.tolerance_s,
            },
            hmac: self.hmac.clone(),
            verify_token: self.verify_token.as_ref().map(|token| Key::new(token.reveal())),
            dedupe: self.dedupe,
            headers: self.headers.iter().map(|header| header.to_ascii_lowercase()).collect(),
            mapping,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        toml::from_str::<AdapterConfig>(text).expect("it parses").faults()
    }

    #[test]
    fn the_default_is_open_on_loopback_only() {
        let mut config = AdapterConfig::default();
        assert_eq!(config.faults(), Vec::<String>::new());
        assert!(config.access().unwrap().allows(None));
        config.listen = "0.0.0.0:80".parse().unwrap();
        assert!(!config.access().unwrap().allows(None));
    }

    #[test]
    fn every_fault_is_named_with_its_key() {
        let text = r#"
            spool_max_bytes = 1
            max_concurrent = 0
            per_address_per_second = 0
            http.tokens = ["plain"]
            [webhook."a b"]
            scheme = "unsigned"
            [webhook.gh]
            scheme = "github"
            [webhook.own]
            scheme = "hmac"
            hmac.signed = "{nothing}"
        "#;
        let faults = check(text).join("\n");
        for key in [
            "max_concurrent:",
            "per_address_per_second,",
            "spool_max_bytes:",
            "http.tokens:",
            "webhook.a b.name:",
            "webhook.gh.secret:",
            "webhook.own.hmac.signed:",
            "webhook.own.secret:",
        ] {
            assert!(faults.contains(key), "{key} in {faults}");
        }
    }
}
