//! Tokens that are kept on the bus: sealed with a key that only processes with the secret of the account's app have.
//!
//! A reader of the bucket, of a backup of it or of a server's disk finds no token that a platform takes. The cipher is
//! AES-256-GCM with a random nonce in front; the key is HMAC-SHA256 of a fixed text under the secret. The place of the tokens is
//! authenticated too, so that those of one account cannot be put in the place of another's.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use data_encoding::BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Text of which the key is made.
const DOMAIN: &[u8] = b"nexus-account-tokens/1";

/// The key of one app's tokens.
#[derive(Debug)]
pub(super) struct TokenSeal(RandomizedNonceKey);

impl TokenSeal {
    /// Returns the key of the app with the secret `secret`.
    pub(super) fn of_secret(secret: &str) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
        mac.update(DOMAIN);
        let key: [u8; 32] = mac.finalize().into_bytes().into();
        Self(RandomizedNonceKey::new(&AES_256_GCM, &key).expect("a key of 32 bytes"))
    }

    /// Returns `plain` as it is kept at `place`.
    pub(super) fn seal(&self, place: &str, plain: &[u8]) -> String {
        let mut sealed = plain.to_vec();
        let nonce = self
            .0
            .seal_in_place_append_tag(Aad::from(place.as_bytes()), &mut sealed);
        let nonce = nonce.expect("a text of this size can be sealed");
        let mut kept: Vec<u8> = nonce.as_ref().to_vec();
        kept.append(&mut sealed);
        BASE64.encode(&kept)
    }

    /// Returns the text that was sealed for `place`; `None` if it was not, or with another key.
    pub(super) fn open(&self, place: &str, kept: &str) -> Option<Vec<u8>> {
        let kept = BASE64.decode(kept.as_bytes()).ok()?;
        let (nonce, sealed) = kept.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = self.0.open_in_place(nonce, Aad::from(place.as_bytes()), &mut sealed);
        opened.ok().map(|plain| plain.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_and_place_open_what_is_sealed() {
        let seal = TokenSeal::of_secret("client-secret");
        let kept = seal.seal("slack.main", b"xoxe.xoxb-1");
        assert!(!kept.contains("xox"));
        assert_ne!(
            kept,
            seal.seal("slack.main", b"xoxe.xoxb-1"),
            "each has a nonce of its own"
        );

        let opened = TokenSeal::of_secret("client-secret").open("slack.main", &kept);
        assert_eq!(opened.as_deref(), Some(&b"xoxe.xoxb-1"[..]));
        assert_eq!(seal.open("slack.other", &kept), None);
        assert_eq!(TokenSeal::of_secret("another").open("slack.main", &kept), None);
        for broken in ["", "AAAA", "not base64!", &kept[4..]] {
            assert_eq!(seal.open("slack.main", broken), None, "{broken}");
        }
    }
}
