//! Tokens that may post to `/v1/events`: the SHA-256 of each token, never the token. *Pure.*

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shared::process::SecretValue;
use subtle::ConstantTimeEq;

use super::scope::{self, TokenScope};
use crate::source::webhook::signature::sha256;

/// Minimum length of the local token, in bytes.
const MIN_LOCAL_BYTES: usize = 32;

/// The configuration section `[adapter.http]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Tokens that may post events, with their scopes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenConfig>,
    /// Token of this machine's command line: channels `cli` and `http`, no person. `nexus init` and `nexus up` create
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_token: Option<SecretValue>,
    /// Whether events are accepted without a token too, as those of strangers. Refused unless `listen` is a loopback
    /// address and `hosts` names only localhost.
    pub open: bool,
}

/// One entry of `[[adapter.http.tokens]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Name of the token, which is part of the origin of its events.
    pub name: String,
    /// SHA-256 of the token, in hex.
    pub sha256: String,
    /// Source of the token: the prefix of its events' ids.
    pub source: String,
    /// Channels on which it may post.
    pub channels: Vec<String>,
    /// Ids of the persons (`identities.yaml`) as whom the senders of its events may count; `*` = every person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persons: Vec<String>,
}

impl TokenConfig {
    fn hash(&self) -> Option<[u8; 32]> {
        <[u8; 32]>::try_from(hex::decode(&self.sha256).ok()?).ok()
    }

    fn token_scope(&self) -> TokenScope {
        let Self { name, source, .. } = self.clone();
        TokenScope::for_token(name, source, self.channels.clone(), self.persons.clone())
    }
}

/// The tokens of the configuration; see the module.
#[derive(Clone)]
pub struct TokenAccess {
    /// Scope of callers without a token; `None` = they are refused.
    open: Option<Arc<TokenScope>>,
    tokens: Vec<([u8; 32], Arc<TokenScope>)>,
}

// By hand: hashes of tokens are not printed.
impl std::fmt::Debug for TokenAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenAccess")
            .field("open", &self.open.is_some())
            .field("tokens", &self.tokens.len())
            .finish()
    }
}

impl TokenAccess {
    /// Creates the access rules of the configuration `http`.
    ///
    /// # Errors
    /// Returns every error, each as `key: expected value`.
    pub fn new(http: &HttpConfig) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let mut tokens: Vec<([u8; 32], Arc<TokenScope>)> = Vec::new();
        for (index, token) in http.tokens.iter().enumerate() {
            let own = scope::find_faults(&token.name, &token.source, &token.channels);
            faults.extend(own.into_iter().map(|fault| format!("tokens[{index}].{fault}")));

            // The name appears in logs and in ids, where it must mean one token.
            if http.tokens[..index].iter().any(|other| other.name == token.name) {
                faults.push(format!(
                    "tokens[{index}].name: `{}` is taken; names are unique",
                    token.name
                ));
            }

            match token.hash() {
                None => faults.push(format!(
                    "tokens[{index}].sha256: expected the SHA-256 of the token, 64 hex digits (never the token itself)"
                )),
                Some(hash) if tokens.iter().any(|(other, _)| *other == hash) => {
                    faults.push(format!("tokens[{index}].sha256: another token has the same"));
                }
                Some(hash) => tokens.push((hash, Arc::new(token.token_scope()))),
            }
        }

        // The token of this machine is made by `nexus init`, and is not in the list.
        if let Some(secret) = &http.local_token {
            let text = secret.reveal().trim();
            if text.len() < MIN_LOCAL_BYTES {
                faults.push(format!(
                    "local_token: expected at least {MIN_LOCAL_BYTES} bytes; `nexus init` makes one"
                ));
            }

            tokens.push((sha256(&[text.as_bytes()]), Arc::new(TokenScope::for_local_token())));
        }

        let open = http.open.then(|| Arc::new(TokenScope::open()));
        if faults.is_empty() {
            Ok(Self { open, tokens })
        } else {
            Err(faults)
        }
    }

    /// Returns the scope of a request with this `Authorization`; `None` if it is refused. An unknown token is refused
    /// even if callers without a token are accepted, because its events would become those of a stranger.
    #[must_use]
    pub fn scope_of(&self, authorization: Option<&str>) -> Option<&TokenScope> {
        let Some(authorization) = authorization else {
            return self.open.as_deref();
        };
        let (scheme, token) = authorization.split_once(' ')?;
        let given = sha256(&[token.trim().as_bytes()]);

        let mut found = None;
        // Every token is compared, each in constant time.
        for (hash, scope) in &self.tokens {
            if bool::from(hash.ct_eq(&given)) {
                found = Some(&**scope);
            }
        }

        found.filter(|_| scheme.eq_ignore_ascii_case("bearer"))
    }

    /// Returns whether callers without a token are accepted.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::webhook::signature::sha256_hex;

    fn token(name: &str, secret: &str) -> TokenConfig {
        TokenConfig {
            name: name.to_owned(),
            sha256: sha256_hex(&[secret.as_bytes()]),
            source: "shop".to_owned(),
            channels: vec!["crm".to_owned()],
            persons: Vec::new(),
        }
    }

    fn http(tokens: Vec<TokenConfig>, open: bool) -> HttpConfig {
        HttpConfig {
            tokens,
            open,
            local_token: None,
        }
    }

    #[test]
    fn a_token_is_known_by_its_hash() {
        let tokens = vec![token("a", "one"), token("b", "two")];
        let closed = TokenAccess::new(&http(tokens.clone(), false)).unwrap();
        for (header, allowed) in [
            (Some("Bearer two"), true),
            (Some("bearer  one"), true),
            (Some("Basic one"), false),
            (Some("Bearer three"), false),
            (Some("two"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(closed.scope_of(header).is_some(), allowed, "{header:?}");
        }

        let open = TokenAccess::new(&http(tokens, true)).unwrap();
        assert_eq!(open.scope_of(None), Some(&TokenScope::open()));
        assert_ne!(open.scope_of(Some("Bearer one")), Some(&TokenScope::open()));
        assert_eq!(open.scope_of(Some("Bearer three")), None);
    }

    #[test]
    fn faults_are_told_all_at_once() {
        let mut plain = token("a", "one");
        plain.sha256 = "one".to_owned();
        let mut same = token("a", "two");
        same.source = "timer".to_owned();
        let wrong = http(vec![plain, same, token("c", "two")], false);
        let faults = TokenAccess::new(&wrong).unwrap_err();

        for key in [
            "tokens[0].sha256:",
            "tokens[1].name:",
            "tokens[1].source:",
            "tokens[2].sha256:",
        ] {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:?}");
        }
    }
}
