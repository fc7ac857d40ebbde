//! The file by which a user shows itself: its token, and the seed of its key (`.creds`).

use super::key::{AuthKey, AuthKeyFault};
use super::token::{DecodeTokenError, UserClaims};

const TOKEN_LINE: &str = "NATS USER JWT";
const SEED_LINE: &str = "USER NKEY SEED";

/// Content of a `.creds` file.
#[derive(Debug)]
pub struct UserCredentials {
    token: String,
    key: AuthKey,
    claims: UserClaims,
}

impl UserCredentials {
    /// Combines a user's `token` with the user's `key`.
    ///
    /// # Errors
    /// Returns [`CredentialsFault`] if the token cannot be read or is of another key.
    pub fn new(token: String, key: AuthKey) -> Result<Self, CredentialsFault> {
        let claims = UserClaims::decode(&token)?;
        if claims.public != key.public() {
            return Err(CredentialsFault::OtherKey);
        }
        Ok(Self { token, key, claims })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns [`CredentialsFault`], which repeats nothing of the text.
    pub fn parse(text: &str) -> Result<Self, CredentialsFault> {
        let token = between(text, TOKEN_LINE).ok_or(CredentialsFault::Missing(TOKEN_LINE))?;
        let seed = between(text, SEED_LINE).ok_or(CredentialsFault::Missing(SEED_LINE))?;
        Self::new(token.to_owned(), AuthKey::parse(seed)?)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// Returns [`CredentialsFault`] if the key has no secret half.
    pub fn to_text(&self) -> Result<String, CredentialsFault> {
        let (token, seed) = (&self.token, self.key.seed()?);
        Ok(format!(
            "-----BEGIN {TOKEN_LINE}-----\n{token}\n------END {TOKEN_LINE}------\n\n\
             -----BEGIN {SEED_LINE}-----\n{seed}\n------END {SEED_LINE}------\n"
        ))
    }

    /// Token of the user.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Claims of the token.
    #[must_use]
    pub const fn claims(&self) -> &UserClaims {
        &self.claims
    }

    /// Signs the server's `nonce`, as the proof that the user is there.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the key has no secret half.
    pub fn sign(&self, nonce: &[u8]) -> Result<Vec<u8>, AuthKeyFault> {
        self.key.sign(nonce)
    }
}

/// Returns the line between those that begin and end the section `name`.
fn between<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    let is_bound = |line: &str, word: &str| line.starts_with("---") && line.contains(word) && line.contains(name);
    lines.find(|line| is_bound(line, "BEGIN"))?;
    lines.next().filter(|line| !line.is_empty() && !line.starts_with("---"))
}

/// Why credentials cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsFault {
    /// A section is missing.
    #[error("section `{0}` is missing")]
    Missing(&'static str),
    /// The seed is not a key.
    #[error(transparent)]
    Key(#[from] AuthKeyFault),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] DecodeTokenError),
    /// The token was made for another key.
    #[error("the token is that of another key")]
    OtherKey,
}

#[cfg(test)]
mod tests {
    use super::super::key::KeyKind;
    use super::super::token::UserToken;
    use super::*;
    use crate::wire::rights::BusRole;

    fn key(kind: KeyKind, byte: u8) -> AuthKey {
        AuthKey::of_random(kind, [byte; 32]).expect("a key")
    }

    #[test]
    fn credentials_are_read_back_and_faults_repeat_no_secret() {
        let user = key(KeyKind::User, 1);
        let public = user.public();
        let token = UserToken {
            name: "hook",
            role: BusRole::Hook,
            public: &public,
            account: "A",
            channel: None,
            personas: &[],
            expires: None,
        };
        let token = token.sign(&key(KeyKind::Account, 2), 9).expect("signed");
        let text = UserCredentials::new(token.clone(), user)
            .expect("one user")
            .to_text()
            .expect("text");
        let read = UserCredentials::parse(&text).expect("read");
        assert_eq!(
            (read.claims().name.as_str(), read.claims().role),
            ("hook", Some(BusRole::Hook))
        );

        let other = UserCredentials::new(token, key(KeyKind::User, 3));
        assert_eq!(other.expect_err("another key"), CredentialsFault::OtherKey);

        let cut = text.split_once("-----BEGIN USER").expect("two sections").0;
        assert_eq!(
            UserCredentials::parse(cut).expect_err("cut"),
            CredentialsFault::Missing(SEED_LINE)
        );
        let wrong = UserCredentials::parse(&text.replace("\nSU", "\nSX")).expect_err("no seed");
        assert!(
            matches!(wrong, CredentialsFault::Key(_)) && !wrong.to_string().contains("SX"),
            "{wrong}"
        );
    }
}
