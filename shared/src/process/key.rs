//! Required strength of a configured secret. *Pure.*
//!
//! Anyone can forge signatures of a secret that is short or empty, so such a secret is rejected when the configuration
//! is read. Source: `docs/design/trust.md` §6; Standard Webhooks, "Signature scheme": keys have 24 to 64 bytes.

use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Optional prefix of a Standard Webhooks secret; the rest is base64.
const PREFIX: &str = "whsec_";
/// Allowed sizes of a Standard Webhooks key, in bytes after decoding.
pub const STANDARD_BYTES: RangeInclusive<usize> = 24..=64;
/// Minimum size of a secret that a vendor chose as a text, in bytes.
pub const MIN_TEXT_BYTES: usize = 8;
/// Size in bytes below which a vendor's secret causes a warning.
pub const SOUND_TEXT_BYTES: usize = 16;

/// Reason why a secret cannot be used as a key. None of the texts shows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WeakKeyError {
    /// The secret is not base64.
    #[error("expected base64, with or without `whsec_`")]
    NotBase64,
    /// No byte remains after decoding, or the text is empty.
    #[error("is empty")]
    Empty,
    /// The decoded key has a size that Standard Webhooks does not allow, in bytes.
    #[error("the decoded key has {0} bytes; expected 24 to 64 (`openssl rand -base64 32` makes one)")]
    Size(usize),
    /// The text is too short; contains its size in bytes.
    #[error("has {0} bytes; expected at least {MIN_TEXT_BYTES}")]
    Short(usize),
}

/// Decodes the key of a Standard Webhooks secret: base64 of 24 to 64 bytes, with or without the prefix `whsec_`.
///
/// # Errors
/// Returns [`WeakKeyError`] if it is not base64, is empty, or has another size.
pub fn standard_key(secret: &str) -> Result<Vec<u8>, WeakKeyError> {
    let text = secret.trim();
    let key = STANDARD
        .decode(text.strip_prefix(PREFIX).unwrap_or(text))
        .map_err(|_| WeakKeyError::NotBase64)?;
    match key.len() {
        0 => Err(WeakKeyError::Empty),
        size if STANDARD_BYTES.contains(&size) => Ok(key),
        size => Err(WeakKeyError::Size(size)),
    }
}

/// Returns the bytes of a secret that a vendor chose: the text itself, at least [`MIN_TEXT_BYTES`] long.
///
/// # Errors
/// Returns [`WeakKeyError::Empty`] or [`WeakKeyError::Short`] if the text is empty or too short.
pub fn text(secret: &str) -> Result<&[u8], WeakKeyError> {
    match secret.trim().len() {
        0 => Err(WeakKeyError::Empty),
        size if size < MIN_TEXT_BYTES => Err(WeakKeyError::Short(size)),
        _ => Ok(secret.as_bytes()),
    }
}

/// Returns whether a vendor's secret is so short that the operator is warned of it, although it can be used.
#[must_use]
pub fn is_short(secret: &str) -> bool {
    secret.trim().len() < SOUND_TEXT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standard_key_has_24_to_64_bytes() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for (bytes, expected) in [(24, Ok(())), (64, Ok(()))] {
            assert_eq!(standard_key(&of(bytes)).map(|_| ()), expected, "{bytes}");
        }

        for bytes in [1, 15, 23, 65] {
            assert_eq!(standard_key(&of(bytes)), Err(WeakKeyError::Size(bytes)));
        }

        for empty in ["", "whsec_", " whsec_\n"] {
            assert_eq!(standard_key(empty), Err(WeakKeyError::Empty), "{empty:?}");
        }

        assert_eq!(standard_key("whsec_***"), Err(WeakKeyError::NotBase64));
    }

    #[test]
    fn a_text_has_8_bytes_and_is_warned_of_below_16() {
        assert_eq!(text(" "), Err(WeakKeyError::Empty));
        assert_eq!(text("seven77"), Err(WeakKeyError::Short(7)));
        assert_eq!(text("eight888"), Ok(&b"eight888"[..]));
        assert!(is_short("fifteen-letters") && !is_short("sixteen--letters"));
    }
}
