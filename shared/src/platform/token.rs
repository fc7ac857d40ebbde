//! Tokens of accounts, named without being shown. *Pure.*

use sha2::{Digest as _, Sha256};

use crate::process::SecretValue;

/// Number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 16;

/// Returns the beginning of the hash of `token`, by which a changed token can be told without being known.
#[must_use]
pub fn hash_token(token: &SecretValue) -> String {
    let digest = Sha256::digest(token.reveal().as_bytes());
    let mut hash = data_encoding::HEXLOWER.encode(&digest);
    hash.truncate(HASH_DIGITS);
    hash
}
