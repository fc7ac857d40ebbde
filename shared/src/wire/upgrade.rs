//! Reading the version before: one step per type, from n−1 to n. *Pure.* Source: `docs/design/wire.md` §6 (Schema).
//!
//! Nothing is released yet, so no older version is read; a type's first step is added here together with the golden
//! file of the version that it leads to.

use super::envelope::{DecodeError, Format, Wire};

/// Reads a payload written as `version`, one older than `T::VERSION`.
///
/// # Errors
/// [`DecodeError::TooOld`] where no step leads from it.
pub(super) fn decode_older<T: Wire>(version: u16, _format: Format, _payload: &[u8]) -> Result<T, DecodeError> {
    Err(DecodeError::TooOld {
        schema: T::SCHEMA,
        found: version,
    })
}
