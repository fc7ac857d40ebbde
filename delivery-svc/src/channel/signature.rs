//! Standard Webhooks signatures. *Pure.* Source: <https://github.com/standard-webhooks/standard-webhooks>, "Signature
//! scheme".

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use shared::process::key::{WeakKeyError, standard_key};

/// A signing key; its bytes are never shown.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

// By hand: a key is not printed.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// Parses the key in `secret`: base64 of 24 to 64 bytes, with or without the prefix `whsec_`.
    ///
    /// # Errors
    /// Returns [`WeakKeyError`] if `secret` is not such a key.
    pub fn parse(secret: &str) -> Result<Self, WeakKeyError> {
        let bytes = standard_key(secret)?;
        // HMAC accepts keys of any length (RFC 2104 §2).
        Hmac::new_from_slice(&bytes).map(Self).map_err(|_| WeakKeyError::Empty)
    }

    /// Returns the value of `webhook-signature` for the message `id` with `body`, sent at `timestamp` (Unix seconds).
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        for piece in [id.as_bytes(), b".", timestamp.to_string().as_bytes(), b".", body] {
            mac.update(piece);
        }
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vector of the reference libraries (`libraries/*/test`).
    const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn published_vector() {
        for secret in [
            SECRET.to_owned(),
            format!("whsec_{SECRET}"),
            format!(" whsec_{SECRET}\n"),
        ] {
            let key = SigningKey::parse(&secret).expect("a key");
            assert_eq!(key.sign(ID, 1_614_265_330, BODY), SIGNATURE);
        }
    }

    #[test]
    fn unusable_secrets() {
        for (secret, why) in [
            ("whsec_", WeakKeyError::Empty),
            ("not base64!", WeakKeyError::NotBase64),
            ("whsec_c2hvcnQ=", WeakKeyError::Size(5)),
        ] {
            assert_eq!(SigningKey::parse(secret).unwrap_err(), why, "{secret}");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        let key = SigningKey::parse(SECRET).expect("a key");
        assert_eq!(format!("{key:?}"), "SigningKey");
    }
}
