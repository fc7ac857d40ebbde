//! Bounds on the memory that an answer takes while it is decoded. *Pure.*

use serde_json::Value;

use super::DecodeFault;

/// Maximum size of a part other than the text that comes in pieces (the arguments of one call, one thought), in bytes.
const MAX_PIECES_BYTES: usize = 1024 * 1024;
/// Memory of a value besides its text, and of a list or an object besides its values, in bytes; rather too high than
/// too low.
pub(super) const VALUE_BYTES: usize = 160;
const CONTAINER_BYTES: usize = 512;

/// Appends the next piece of a part other than the answer's text.
pub(super) fn append_piece(buffer: &mut String, piece: &str) -> Result<(), DecodeFault> {
    append_bounded(buffer, piece, MAX_PIECES_BYTES)
}

/// Appends `piece`, up to `limit` bytes in total. Grows by doubling, but never reserves beyond the limit.
pub(super) fn append_bounded(buffer: &mut String, piece: &str, limit: usize) -> Result<(), DecodeFault> {
    let wanted = buffer.len() + piece.len();
    if wanted > limit {
        return Err(DecodeFault::Large("streamed text", limit));
    }

    if wanted > buffer.capacity() {
        let capacity = wanted.max(buffer.capacity() * 2).min(limit);
        buffer.reserve_exact(capacity - buffer.len());
    }

    buffer.push_str(piece);
    Ok(())
}

/// Returns the memory of a value in bytes, rather too high than too low. Values are at most as deep as their parser
/// allows: 128.
pub(super) fn value_weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(values) => CONTAINER_BYTES + values.iter().map(value_weight).sum::<usize>(),
        Value::Object(map) => {
            let members = map
                .iter()
                .map(|(name, value)| name.len() + VALUE_BYTES + value_weight(value));
            CONTAINER_BYTES + members.sum::<usize>()
        }
    }
}
