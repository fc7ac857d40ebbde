//! Sections `[trust]` and `[edges.<name>]`: the keys that seal events, and the keys whose seals are accepted. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MAX_NAME_BYTES, is_plain_name};
use crate::model::origin::is_sealed_channel;
use crate::platform::accounts::is_platform;
use crate::process::secret::SecretValue;
use crate::wire::seal::{EdgeKey, SealKey, TrustKeys};

/// Configuration section `[trust]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrustConfig {
    /// Key with which the services seal events: at least 32 bytes in hexadecimal or base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_key: Option<SecretValue>,
    /// Former keys of the cluster, whose seals are still accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub former_keys: Vec<SecretValue>,
}

/// Section `[edges.<name>]`: a publisher outside the cluster that seals its events with a key of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeConfig {
    /// Channel on which the edge publishes; its account there is its name.
    pub channel: String,
    /// Key with which it seals: at least 32 bytes in hexadecimal or base64.
    pub key: SecretValue,
    /// Ids of the persons (`identities.yaml`) for whom it may speak; `*` = all. If absent, it may speak for none, and
    /// its senders are strangers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persons: Vec<String>,
}

/// Edges by their names.
pub type Edges = BTreeMap<String, EdgeConfig>;

impl TrustConfig {
    /// Returns the faults of the section, each as `key: problem`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match &self.cluster_key {
            None => faults.push(
                "cluster_key: required: a reference, `file:/path` or `env:NAME`, to at least 32 random bytes in hexadecimal or \
                 base64, the same for all services; `nexus init` and `nexus up` make one, or: openssl rand -hex 32"
                    .to_owned(),
            ),
            Some(key) => faults.extend(key_fault("cluster_key", key)),
        }

        let former = self.former_keys.iter().enumerate();
        faults.extend(former.filter_map(|(index, key)| key_fault(&format!("former_keys[{index}]"), key)));

        faults
    }

    /// Returns the key ring that seals and checks as configured. Keys with faults are left out
    /// ([`TrustConfig::find_faults`] names them).
    #[must_use]
    pub fn build_trust(&self, edges: &Edges) -> TrustKeys {
        let key = |secret: &SecretValue| SealKey::parse(secret.reveal()).ok();
        let Some(cluster) = self.cluster_key.as_ref().and_then(key) else {
            return TrustKeys::default();
        };

        let former = self.former_keys.iter().filter_map(key).collect();
        let edges = edges.iter().filter_map(|(name, edge)| {
            let known = EdgeKey {
                channel: edge.channel.clone(),
                key: key(&edge.key)?,
                persons: edge.persons.clone(),
            };
            Some((name.clone(), known))
        });

        TrustKeys::new(cluster, former).with_edges(edges.collect())
    }
}

/// Returns the faults of the edges, each as `key: problem`.
#[must_use]
pub fn edge_faults(edges: &Edges) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, edge) in edges {
        if !is_plain_name(name) {
            faults.push(format!(
                "{name}: expected a name of letters, digits, `-`, `_` and `.`, at most {MAX_NAME_BYTES}"
            ));
        }

        if edge.channel.is_empty() || edge.channel.contains(|c: char| c == ':' || c == '/' || c.is_control()) {
            faults.push(format!(
                "{name}.channel: expected a channel's name without `:`, `/` and control characters"
            ));
        }

        // The system's own services publish there, and an edge must not speak for them.
        if is_sealed_channel(&edge.channel) || is_platform(&edge.channel) {
            faults.push(format!(
                "{name}.channel: `{}` belongs to the system itself, expected another",
                edge.channel
            ));
        }

        faults.extend(key_fault(&format!("{name}.key"), &edge.key));
    }

    faults
}

fn key_fault(key: &str, secret: &SecretValue) -> Option<String> {
    let error = SealKey::parse(secret.reveal()).err()?;
    Some(format!("{key}: {}: {error}", secret.reference()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::document::ConfigDocument;
    use super::super::environment::ConfigEnvironment;
    use super::super::fault::ConfigFault;
    use super::*;
    use crate::testing::CLUSTER_KEY;

    fn check(text: &str, expected: &[&str]) {
        let document = ConfigDocument::parse(Path::new("nexus.toml"), text, &ConfigEnvironment::default());
        let trust = document.section("trust", TrustConfig::find_faults);
        let edges = document.section("edges", edge_faults);
        let faults = [trust.faults, edges.faults].concat();
        let faults: Vec<String> = faults.iter().map(ConfigFault::to_string).collect();

        assert_eq!(faults.len(), expected.len(), "{faults:#?}");

        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.starts_with(expected), "{fault}");
        }

        if faults.is_empty() {
            assert!(trust.value.build_trust(&edges.value).cluster_key().is_some());
        }
    }

    #[test]
    fn a_key_is_required_and_its_absence_says_what_to_do() {
        check("", &["nexus.toml: trust.cluster_key: required: a reference"]);
        check(&format!("[trust]\ncluster_key = '{CLUSTER_KEY}'\n"), &[]);
    }

    #[test]
    fn every_fault_is_told() {
        let text = format!(
            "[trust]\ncluster_key = 'env:CARGO_PKG_NAME'\n\
             [edges.'a b']\nchannel = 'timer'\nkey = 'env:CARGO_PKG_NAME'\n\
             [edges.roof]\nchannel = 'lora'\nkey = '{CLUSTER_KEY}'\n"
        );
        let expected = [
            "nexus.toml: trust.cluster_key: env:CARGO_PKG_NAME: expected",
            "nexus.toml: edges.a b: expected a name",
            "nexus.toml: edges.a b.channel: `timer` belongs",
            "nexus.toml: edges.a b.key: env:CARGO_PKG_NAME: expected",
        ];

        check(&text, &expected);
    }
}
