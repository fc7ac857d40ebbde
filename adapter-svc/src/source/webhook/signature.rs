//! Common parts of the signature schemes: keys, the constant-time comparison, the age of a timestamp. *Pure.*
//!
//! A scheme is one function `verify(checks, headers, body, now) -> Result<Verified, SignatureError>` in a file of its
//! own. No error and no `Debug` output here contains a key or an expected signature.

use axum::http::HeaderMap;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256, Sha512};
use shared::model::time::UnixMillis;
use subtle::{Choice, ConstantTimeEq};

/// Maximum number of signatures of one request that are checked; the schemes list several during a rotation of keys.
pub(crate) const MAX_SIGNATURES: usize = 16;

/// A signing key. Its `Debug` output hides the key on purpose.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey(Vec<u8>);

impl SigningKey {
    /// Creates a key of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns whether `given` is this key, in constant time for a given length.
    #[must_use]
    pub fn equals(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }
}

// By hand: a key is not printed.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The keys and the tolerance with which a source's requests are checked.
#[derive(Debug, Clone, Default)]
pub struct SignatureChecks {
    /// Keys of which any one suffices, so that keys can be rotated.
    pub keys: Vec<SigningKey>,
    /// Maximum distance of a signed timestamp from now in either direction, in seconds; 0 = any distance.
    pub tolerance_s: u32,
}

/// The data that a valid signature proves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifiedSignature {
    /// Platform's id of this delivery, which is the same when it delivers again.
    pub delivery_id: Option<String>,
    /// Signed timestamp, in seconds since the epoch.
    pub timestamp: Option<i64>,
}

/// The reason why a request is not authentic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A required header is missing.
    #[error("header `{header}` is missing")]
    Missing {
        /// Name of the header.
        header: String,
    },
    /// A header is present, but cannot be parsed.
    #[error("header `{header}` is malformed: expected {expected}")]
    Malformed {
        /// Name of the header.
        header: String,
        /// Expected value, for people.
        expected: &'static str,
    },
    /// No signature of the request was made with a key of the source.
    #[error("no signature matches")]
    Mismatch,
    /// The signed timestamp is too far from now.
    #[error("signature is {age_s} s old; the tolerance is {tolerance_s} s")]
    Expired {
        /// Age of the timestamp, in seconds; negative if it lies ahead.
        age_s: i64,
        /// Tolerance of the source, in seconds.
        tolerance_s: u32,
    },
}

/// The hash function of a keyed signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HashAlgorithm {
    /// HMAC-SHA-1, for senders that support nothing newer.
    Sha1,
    /// HMAC-SHA-256, the default.
    #[default]
    Sha256,
    /// HMAC-SHA-512.
    Sha512,
}

/// Returns the value of `header`, which must be present and consist of visible ASCII.
pub(crate) fn required_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, SignatureError> {
    let value = headers.get(name).ok_or_else(|| SignatureError::Missing {
        header: name.to_owned(),
    })?;
    value.to_str().map_err(|_| malformed_header(name, "visible ASCII"))
}

/// Returns the error for a header that cannot be parsed.
pub(crate) fn malformed_header(name: &str, expected: &'static str) -> SignatureError {
    SignatureError::Malformed {
        header: name.to_owned(),
        expected,
    }
}

/// Parses the seconds in the `text` of `header`.
pub(crate) fn parse_seconds(header: &str, text: &str) -> Result<i64, SignatureError> {
    match text.parse::<i64>() {
        Ok(seconds) if seconds >= 0 => Ok(seconds),
        Ok(_) | Err(_) => Err(malformed_header(header, "seconds since the epoch")),
    }
}

/// Returns the code of the concatenated `parts` under `key`.
pub(crate) fn compute_code(algorithm: HashAlgorithm, key: &SigningKey, parts: &[&[u8]]) -> Vec<u8> {
    match algorithm {
        HashAlgorithm::Sha1 => compute_mac::<Hmac<sha1::Sha1>>(key, parts),
        HashAlgorithm::Sha256 => compute_mac::<Hmac<Sha256>>(key, parts),
        HashAlgorithm::Sha512 => compute_mac::<Hmac<Sha512>>(key, parts),
    }
}

fn compute_mac<M: Mac + KeyInit>(key: &SigningKey, parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(&key.0).expect("an HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

impl SignatureChecks {
    /// Checks that one of `given` is the code of `parts` under one of the keys. Every pair is compared, each in
    /// constant time.
    pub(crate) fn check_signature(
        &self,
        algorithm: HashAlgorithm,
        parts: &[&[u8]],
        given: &[Vec<u8>],
    ) -> Result<(), SignatureError> {
        // No early exit: the time must not depend on the key or signature that matches.
        let mut found = Choice::from(0);
        for key in &self.keys {
            let expected = compute_code(algorithm, key, parts);
            for one in given.iter().take(MAX_SIGNATURES) {
                found |= expected.as_slice().ct_eq(one.as_slice());
            }
        }

        if bool::from(found) {
            Ok(())
        } else {
            Err(SignatureError::Mismatch)
        }
    }

    /// Checks that `timestamp` (seconds) lies within the tolerance around `now`.
    pub(crate) fn check_age(&self, timestamp: i64, now: UnixMillis) -> Result<(), SignatureError> {
        let age_s = now.seconds().saturating_sub(timestamp);
        if self.tolerance_s == 0 || age_s.unsigned_abs() <= u64::from(self.tolerance_s) {
            return Ok(());
        }
        Err(SignatureError::Expired {
            age_s,
            tolerance_s: self.tolerance_s,
        })
    }
}

/// Returns the SHA-256 of the concatenated `parts`.
#[must_use]
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns the SHA-256 of the concatenated `parts`, in hex.
#[must_use]
pub fn sha256_hex(parts: &[&[u8]]) -> String {
    hex::encode(sha256(parts))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns headers of these pairs.
    pub(crate) fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let name: axum::http::HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        map
    }

    /// Returns checks with one key and a tolerance of five minutes.
    pub(crate) fn checks(key: impl Into<Vec<u8>>) -> SignatureChecks {
        SignatureChecks {
            keys: vec![SigningKey::new(key)],
            tolerance_s: 300,
        }
    }

    /// RFC 4231, cases 1 to 4 and 6 (a key longer than the block).
    #[test]
    fn codes_are_those_of_rfc_4231() {
        let cases: [(Vec<u8>, &[u8], &str); 4] = [
            (
                vec![0x0b; 20],
                b"Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xaa; 20],
                &[0xdd; 50],
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
            ),
            (
                vec![0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];

        for (key, data, expected) in cases {
            assert_eq!(
                hex::encode(compute_code(HashAlgorithm::Sha256, &SigningKey::new(key), &[data])),
                expected
            );
        }

        let long = compute_code(HashAlgorithm::Sha512, &SigningKey::new(vec![0x0b; 20]), &[b"Hi There"]);
        assert!(hex::encode(long).starts_with("87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde"));

        let old = compute_code(HashAlgorithm::Sha1, &SigningKey::new(vec![0x0b; 20]), &[b"Hi There"]);
        assert_eq!(hex::encode(old), "b617318655057264e28bc0b6fb378c8ef146be00");
    }

    #[test]
    fn the_tolerance_holds_both_ways_and_zero_is_any() {
        let mut checks = checks("k");
        let now = UnixMillis::from_seconds(1_000);
        for (at, fresh) in [
            (1_000, true),
            (700, true),
            (699, false),
            (1_300, true),
            (1_301, false),
            (i64::MAX, false),
        ] {
            assert_eq!(checks.check_age(at, now).is_ok(), fresh, "{at}");
        }

        checks.tolerance_s = 0;
        assert!(checks.check_age(0, now).is_ok());
    }

    #[test]
    fn a_key_is_never_shown() {
        assert!(!format!("{:?}", checks("hush")).contains("hush"));
    }
}
