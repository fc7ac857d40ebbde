//! Secrets: referenced in the configuration, read from a file or variable, never shown.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use super::config::environment;

/// Maximum size of a secret file, in bytes.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// Form of a reference, for messages.
const EXPECTED: &str = "a reference, `env:NAME` or `file:/path`";

/// A secret read through a reference: `env:NAME` (a variable of the process) or `file:/path` (without its last line
/// break).
///
/// Deserialising resolves the reference, so a missing secret is a fault of the configuration. Printing and serialising
/// show the reference only.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue {
    reference: String,
    value: String,
}

impl SecretValue {
    /// Returns the secret itself. Pass it on; do not log, store or send it elsewhere.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.value
    }

    /// Reference of the secret: `env:NAME` or `file:/path`.
    #[must_use]
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// Returns a secret that was received from another party, which is shown as `reference`.
    #[must_use]
    pub const fn received(reference: String, value: String) -> Self {
        Self { reference, value }
    }

    /// Reads the secret that `reference` names. The error names the missing part and never repeats a value.
    pub fn resolve(reference: &str) -> Result<Self, ResolveSecretError> {
        let value = if let Some(name) = reference.strip_prefix("env:") {
            let found = environment::read_variable(name);
            found.ok_or_else(|| ResolveSecretError::Unset { name: name.to_owned() })?
        } else if let Some(path) = reference.strip_prefix("file:") {
            read_file(path)?
        } else {
            return Err(ResolveSecretError::NotAReference);
        };

        if value.is_empty() {
            return Err(ResolveSecretError::Empty {
                reference: reference.to_owned(),
            });
        }

        Ok(Self {
            reference: reference.to_owned(),
            value,
        })
    }
}

/// Reason why a secret cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResolveSecretError {
    /// The configuration holds something else than a reference, perhaps the secret itself.
    #[error("expected {EXPECTED}")]
    NotAReference,
    /// The variable is not set.
    #[error("environment variable {name} is not set")]
    Unset {
        /// Name of the variable.
        name: String,
    },
    /// The variable or file exists and is empty.
    #[error("{reference} is empty")]
    Empty {
        /// Reference as configured.
        reference: String,
    },
    /// The file cannot be read as text.
    #[error("failed to read secret file {path}: {source}")]
    Read {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is larger than any secret.
    #[error("secret file {path} exceeds {MAX_SECRET_BYTES} bytes")]
    TooLarge {
        /// Path of the file.
        path: String,
    },
}

fn read_file(path: &str) -> Result<String, ResolveSecretError> {
    let failed = |source| ResolveSecretError::Read {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_SECRET_BYTES {
        return Err(ResolveSecretError::TooLarge { path: path.to_owned() });
    }

    let text = std::fs::read_to_string(path).map_err(failed)?;
    let line = text
        .strip_suffix('\n')
        .map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));

    Ok(line.to_owned())
}

// By hand: a secret is not printed.
impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.reference)
    }
}

impl Serialize for SecretValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.reference)
    }
}

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretReference)
    }
}

struct SecretReference;

/// Rejects other types without repeating their values: a number in this place is likely the secret itself.
fn type_error<E: serde::de::Error>(what: &'static str) -> E {
    E::invalid_type(Unexpected::Other(what), &EXPECTED)
}

impl Visitor<'_> for SecretReference {
    type Value = SecretValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, reference: &str) -> Result<SecretValue, E> {
        SecretValue::resolve(reference).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<SecretValue, E> {
        Err(type_error("number"))
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<SecretValue, E> {
        Err(type_error("number"))
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<SecretValue, E> {
        Err(type_error("number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let read: Result<SecretValue, _> = serde_json::from_str(text);
        match (&read, expected) {
            (Ok(secret), Ok(value)) => assert_eq!(secret.reveal(), value),
            (Err(error), Err(message)) => assert!(error.to_string().contains(message), "{error}"),
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => panic!("{read:?} for {text}"),
        }
    }

    #[test]
    fn a_reference_is_resolved_when_read() {
        check(r#""env:CARGO_PKG_NAME""#, Ok("shared"));
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "s3cret\r\n").expect("written");
        check(&format!("\"file:{}\"", file.path().display()), Ok("s3cret"));
    }

    #[test]
    fn what_is_missing_is_named() {
        check(
            r#""env:NEXUS_NO_SUCH_VARIABLE""#,
            Err("environment variable NEXUS_NO_SUCH_VARIABLE is not set"),
        );
        check(
            r#""file:/no/such/file""#,
            Err("failed to read secret file /no/such/file"),
        );
    }

    #[test]
    fn a_literal_secret_is_refused_and_not_repeated() {
        for literal in [r#""hunter2""#, "8675309", "1.5"] {
            check(literal, Err("expected a reference, `env:NAME` or `file:/path`"));
            let error = serde_json::from_str::<SecretValue>(literal)
                .expect_err("refused")
                .to_string();
            assert!(!error.contains("hunter2") && !error.contains("8675309"), "{error}");
        }
    }

    #[test]
    fn printing_shows_the_reference_only() {
        let secret = SecretValue::resolve("env:CARGO_PKG_NAME").expect("set by cargo");
        assert_eq!(format!("{secret:?}"), "Secret(env:CARGO_PKG_NAME)");
        assert_eq!(
            serde_json::to_string(&secret).expect("serialises"),
            r#""env:CARGO_PKG_NAME""#
        );
    }
}
