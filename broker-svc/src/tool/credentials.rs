//! Which secrets a turn's tools may resolve. Source: `docs/design/sessions.md` §5.
//!
//! `credentials` of a turn's permissions names them; absent, there are none, except at level `full`. They are resolved
//! where a tool uses them and at no other place: neither the question, nor the ledger, nor the log holds one.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::model::permission::{Level, PermissionSet};
use shared::process::Secret;

/// Names of secrets, each with its reference: `env:NAME` or `file:/path`.
pub type References = BTreeMap<String, String>;

/// The secrets of one turn.
#[derive(Debug, Clone)]
pub struct Credentials {
    known: Arc<References>,
    /// None = all.
    granted: Option<Vec<String>>,
}

/// Why a tool does not get a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveCredentialError {
    /// The turn may not use it, or there is none of this name: a model does not learn which there are.
    #[error("credential `{name}` is not granted to this turn")]
    NotGranted {
        /// Which.
        name: String,
    },
    /// It is granted, and what its reference names is not there.
    #[error("failed to read credential `{name}`")]
    Missing {
        /// Which.
        name: String,
    },
}

impl Credentials {
    /// Those of `known` that `permissions` grant.
    #[must_use]
    pub fn of(known: Arc<References>, permissions: &PermissionSet) -> Self {
        let granted = match (&permissions.credentials, permissions.level) {
            (Some(names), _) => Some(names.clone()),
            (None, Level::Full) => None,
            (None, Level::Restricted | Level::Group | Level::Minimal) => Some(Vec::new()),
        };
        Self { known, granted }
    }

    /// Whether a tool of the turn may have `name`.
    ///
    /// # Errors
    /// [`ResolveCredentialError::NotGranted`].
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

    /// The secret `name`.
    ///
    /// # Errors
    /// [`ResolveCredentialError`] says whether it is not granted or not there.
    pub fn resolve(&self, name: &str) -> Result<Secret, ResolveCredentialError> {
        Secret::resolve(self.check(name)?).map_err(|error| {
            tracing::warn!(credential = name, %error, "failed to read a credential");
            ResolveCredentialError::Missing { name: name.to_owned() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(level: Level, granted: Option<&[&str]>, name: &str) -> Result<String, ResolveCredentialError> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        std::fs::write(&path, "s3cret\n").expect("a secret");
        let known = References::from([("github".to_owned(), format!("file:{}", path.display()))]);
        let permissions = PermissionSet {
            level,
            tools: None,
            credentials: granted.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
        };

        let credentials = Credentials::of(Arc::new(known), &permissions);
        credentials.resolve(name).map(|secret| secret.reveal().to_owned())
    }

    #[test]
    fn only_a_granted_credential_can_be_resolved() {
        let secret = || Ok("s3cret".to_owned());
        let not = |name: &str| Err(ResolveCredentialError::NotGranted { name: name.to_owned() });
        assert_eq!(check(Level::Minimal, Some(&["github"]), "github"), secret());
        assert_eq!(check(Level::Restricted, None, "github"), not("github"));
        assert_eq!(check(Level::Group, Some(&["gitlab"]), "github"), not("github"));
        assert_eq!(check(Level::Full, None, "github"), secret(), "the owner has all");
        assert_eq!(
            check(Level::Full, Some(&[]), "github"),
            not("github"),
            "unless said otherwise"
        );

        assert_eq!(check(Level::Full, None, "other"), not("other"));
    }
}
