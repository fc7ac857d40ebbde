//! Reading the previous version: one step per type, from n−1 to n. *Pure.* Source: `docs/design/wire.md` §6 (Schema).
//!
//! Nothing is released yet, so no older version is read. The first step of a type must be added here together with
//! the golden file of the version to which it leads.

use super::{DecodeError, PayloadFormat, WireMessage};

/// Reads a payload written as `version`, which is older than `T::VERSION`.
///
/// # Errors
/// Returns [`DecodeError::TooOld`] if no step reads `version`.
pub(super) fn decode_older<T: WireMessage>(
    version: u16,
    _format: PayloadFormat,
    _payload: &[u8],
) -> Result<T, DecodeError> {
    Err(DecodeError::TooOld {
        schema: T::SCHEMA,
        found: version,
    })
}
