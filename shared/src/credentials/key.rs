//! Ed25519 keys in the form of NATS.

use nkeys::{KeyPair, KeyPairType};

/// What a key is for; the first letter of its public half says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Signs the accounts' tokens.
    Operator,
    /// Names an account, or signs the tokens of the users of one role.
    Account,
    /// Names a user, and proves that the user is there.
    User,
}

impl KeyKind {
    const fn pair_type(self) -> KeyPairType {
        match self {
            Self::Operator => KeyPairType::Operator,
            Self::Account => KeyPairType::Account,
            Self::User => KeyPairType::User,
        }
    }
}

/// A key with its secret half.
pub struct AuthKey(KeyPair);

// By hand: the secret half is not shown.
impl std::fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AuthKey").field(&self.public()).finish()
    }
}

impl AuthKey {
    /// Makes a key of `random` bytes.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the bytes are no key.
    pub fn of_random(kind: KeyKind, random: [u8; 32]) -> Result<Self, AuthKeyFault> {
        KeyPair::new_from_raw(kind.pair_type(), random)
            .map(Self)
            .map_err(|error| AuthKeyFault(error.to_string()))
    }

    /// Reads a key from its seed, `S…`.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the text is no seed; it does not repeat the text.
    pub fn parse(seed: &str) -> Result<Self, AuthKeyFault> {
        KeyPair::from_seed(seed.trim())
            .map(Self)
            .map_err(|error| AuthKeyFault(error.to_string()))
    }

    /// Returns the public half: 56 characters.
    #[must_use]
    pub fn public(&self) -> String {
        self.0.public_key()
    }

    /// Whether the key is one for `kind`.
    #[must_use]
    pub fn is_for(&self, kind: KeyKind) -> bool {
        let first = match kind {
            KeyKind::Operator => 'O',
            KeyKind::Account => 'A',
            KeyKind::User => 'U',
        };
        self.public().starts_with(first)
    }

    /// Returns the secret half as a seed.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the key has none.
    pub fn seed(&self) -> Result<String, AuthKeyFault> {
        self.0.seed().map_err(|error| AuthKeyFault(error.to_string()))
    }

    /// Signs `bytes`.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the key has no secret half.
    pub fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, AuthKeyFault> {
        self.0.sign(bytes).map_err(|error| AuthKeyFault(error.to_string()))
    }

    /// Whether `signature` over `bytes` is that of the key with the public half `public`.
    #[must_use]
    pub fn has_signed(public: &str, bytes: &[u8], signature: &[u8]) -> bool {
        KeyPair::from_public_key(public).is_ok_and(|key| key.verify(bytes, signature).is_ok())
    }
}

/// Why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a key of NATS: {0}")]
pub struct AuthKeyFault(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_from_its_seed_and_its_secret_is_not_shown() {
        for (kind, first) in [(KeyKind::Operator, 'O'), (KeyKind::Account, 'A'), (KeyKind::User, 'U')] {
            let made = AuthKey::of_random(kind, [7; 32]).expect("a key");
            let seed = made.seed().expect("a seed");
            let read = AuthKey::parse(&format!("{seed}\n")).expect("the same");
            assert_eq!(read.public(), made.public());
            assert!(made.public().starts_with(first) && made.public().len() == 56);
            assert!(made.is_for(kind));
            assert!(!format!("{made:?}").contains(&seed[5..]));

            let signature = read.sign(b"nonce").expect("signed");
            assert!(AuthKey::has_signed(&made.public(), b"nonce", &signature));
            assert!(!AuthKey::has_signed(&made.public(), b"other", &signature));
        }

        let error = AuthKey::parse("SUSECRET").expect_err("no seed");
        assert!(!error.to_string().contains("SUSECRET"), "{error}");
    }
}
