//! The secrets that a turn's tools may resolve. Source: `docs/design/sessions.md` §5.
//!
//! `credentials` of a turn's permissions names them; if absent, there are none, except at level `full`. They are
//! resolved only at the place where a tool uses them: neither the question, nor the ledger, nor the log holds one.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::process::SecretValue;

/// Names of secrets, each with its reference: `env:NAME` or `file:/path`.
pub type SecretReferences = BTreeMap<String, String>;

/// The secrets of one turn.
#[derive(Debug, Clone)]
pub struct TurnCredentials {
    known: Arc<SecretReferences>,
    /// Names of the granted secrets; none = all.
    granted: Option<Vec<String>>,
}

/// Reason for which a tool does not get a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveCredentialError {
    /// The turn may not use the secret, or there is none of this name: a model does not learn which exist.
    #[error("credential `{name}` is not granted to this turn")]
    NotGranted {
        /// Name of the secret.
        name: String,
    },
    /// The secret is granted, but its reference leads to nothing.
    #[error("failed to read credential `{name}`")]
    Missing {
        /// Name of the secret.
        name: String,
    },
}

impl TurnCredentials {
    /// Returns the secrets of `known` that `permissions` grant.
    #[must_use]
    pub fn granted_by(known: Arc<SecretReferences>, permissions: &PermissionSet) -> Self {
        let granted = match (&permissions.credentials, permissions.level) {
            (Some(names), _) => Some(names.clone()),
            (None, PermissionLevel::Full) => None,
            (None, PermissionLevel::Restricted | PermissionLevel::Group | PermissionLevel::Minimal) => Some(Vec::new()),
        };
        Self { known, granted }
    }

    /// Checks whether a tool of the turn may use `name`, and returns its reference.
    ///
    /// # Errors
    /// Returns [`ResolveCredentialError::NotGranted`] if it may not.
    pub fn check(&self, name: &str) -> Result<&str, ResolveCredentialError> {
        let granted = self
            .granted
            .as_ref()
            .is_none_or(|names| names.iter().any(|granted| granted == name));
        let reference = self.known.get(name).filter(|_| granted);
        reference
            .map(String::as_str)
            .ok_or_else(|| ResolveCredentialError::NotGranted { name: name.to_owned() })
    }

    /// Resolves the secret `name`.
    ///
    /// # Errors
    /// Returns [`ResolveCredentialError`], which says whether the secret is not granted or missing.
    pub fn resolve(&self, name: &str) -> Result<SecretValue, ResolveCredentialError> {
        SecretValue::resolve(self.check(name)?).map_err(|error| {
            tracing::warn!(credential = name, %error, "failed to read a credential");
            ResolveCredentialError::Missing { name: name.to_owned() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(level: PermissionLevel, granted: Option<&[&str]>, name: &str) -> Result<String, ResolveCredentialError> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        std::fs::write(&path, "s3cret\n").expect("a secret");
        let known = SecretReferences::from([("github".to_owned(), format!("file:{}", path.display()))]);
        let permissions = PermissionSet {
            level,
            tools: None,
            credentials: granted.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
        };

        let credentials = TurnCredentials::granted_by(Arc::new(known), &permissions);
        credentials.resolve(name).map(|secret| secret.reveal().to_owned())
    }

    #[test]
    fn only_a_granted_credential_can_be_resolved() {
        let secret = || Ok("s3cret".to_owned());
        let not = |name: &str| Err(ResolveCredentialError::NotGranted { name: name.to_owned() });
        assert_eq!(check(PermissionLevel::Minimal, Some(&["github"]), "github"), secret());
        assert_eq!(check(PermissionLevel::Restricted, None, "github"), not("github"));
        assert_eq!(
            check(PermissionLevel::Group, Some(&["gitlab"]), "github"),
            not("github")
        );
        assert_eq!(
            check(PermissionLevel::Full, None, "github"),
            secret(),
            "the owner has all"
        );
        assert_eq!(
            check(PermissionLevel::Full, Some(&[]), "github"),
            not("github"),
            "unless said otherwise"
        );

        assert_eq!(check(PermissionLevel::Full, None, "other"), not("other"));
    }
}
