//! Key with which tests seal events.

use std::sync::Arc;

use crate::process::config::TrustConfig;
use crate::process::secret::SecretValue;
use crate::wire::seal::TrustKeys;

/// Reference to the key of every test's cluster, as in `trust.cluster_key`.
pub const CLUSTER_KEY: &str = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/src/testing/cluster.key");

/// Returns section `[trust]` of a test's configuration.
#[must_use]
pub fn trust_section() -> String {
    format!("[trust]\ncluster_key = \"{CLUSTER_KEY}\"\n")
}

/// Returns the key ring of a service that is configured with [`trust_section`].
///
/// # Panics
/// Panics if the key cannot be read.
#[must_use]
pub fn trust() -> Arc<TrustKeys> {
    let key = SecretValue::resolve(CLUSTER_KEY).expect("the tests' key is there");
    let config = TrustConfig {
        cluster_key: Some(key),
        ..TrustConfig::default()
    };
    Arc::new(config.build_trust(&std::collections::BTreeMap::new()))
}
