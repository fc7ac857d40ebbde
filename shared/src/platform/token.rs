//! Tokens of accounts: named without being shown, and renewed while the process runs.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::process::SecretValue;

/// Number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 16;

/// Returns the beginning of the hash of `token`, by which a changed token can be told without being known.
#[must_use]
pub fn hash_token(token: &SecretValue) -> String {
    let digest = Sha256::digest(token.reveal().as_bytes());
    let mut hash = data_encoding::HEXLOWER.encode(&digest);
    hash.truncate(HASH_DIGITS);
    hash
}

/// The token of an account: the configured one, until the platform has given another. Clones are one token.
#[derive(Clone)]
pub struct RenewableToken {
    configured: SecretValue,
    renewed: Arc<watch::Sender<Option<SecretValue>>>,
}

impl RenewableToken {
    /// Returns the token that is to be used now.
    #[must_use]
    pub fn current(&self) -> SecretValue {
        let renewed = self.renewed.borrow().clone();
        renewed.unwrap_or_else(|| self.configured.clone())
    }

    /// Returns the token of the configuration.
    #[must_use]
    pub const fn configured(&self) -> &SecretValue {
        &self.configured
    }

    /// Sets the token that is used from now on.
    pub fn renew(&self, token: SecretValue) {
        self.renewed.send_replace(Some(token));
    }

    /// Returns a view that tells of each renewed token.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<SecretValue>> {
        self.renewed.subscribe()
    }
}

// By hand: the configuration has the reference of a secret in this place.
impl<'de> Deserialize<'de> for RenewableToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let configured = SecretValue::deserialize(deserializer)?;
        Ok(Self {
            configured,
            renewed: Arc::new(watch::Sender::new(None)),
        })
    }
}

// By hand: accounts are compared as they are configured.
impl PartialEq for RenewableToken {
    fn eq(&self, other: &Self) -> bool {
        self.configured == other.configured
    }
}

impl Eq for RenewableToken {}

// By hand, as above.
impl fmt::Debug for RenewableToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.configured.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clone_has_the_renewed_token_and_none_shows_it() {
        let token: RenewableToken = serde_json::from_str(r#""env:CARGO_PKG_NAME""#).expect("read");
        let (clone, mut told) = (token.clone(), token.watch());
        assert_eq!(clone.current().reveal(), "shared");

        token.renew(SecretValue::received("KV".to_owned(), "xoxe.xoxb-new".to_owned()));
        assert_eq!(clone.current().reveal(), "xoxe.xoxb-new");
        assert!(told.has_changed().expect("it lives"));
        assert_eq!(told.borrow_and_update().as_ref(), Some(&clone.current()));
        assert_eq!(token.configured().reveal(), "shared");
        assert!(!format!("{token:?} {:?}", token.current()).contains("new"));
    }
}
