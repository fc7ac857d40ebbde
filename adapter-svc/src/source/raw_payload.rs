//! The payload of a platform beside the event that was made of it. *Pure.*

use serde_json::{Map, Value, json};

/// Key of the metadata that has an event's payload.
pub const RAW: &str = "raw";

/// Maximum size of a payload in `metadata.raw`, in bytes of JSON.
pub const MAX_RAW_BYTES: usize = 64 * 1024;

/// Keeps the payload `raw` in `metadata`; of a larger one than [`MAX_RAW_BYTES`] its size alone, as `raw_bytes`.
pub fn keep_raw(metadata: &mut Map<String, Value>, raw: Value) {
    let size = serde_json::to_vec(&raw).map_or(usize::MAX, |bytes| bytes.len());
    if size <= MAX_RAW_BYTES {
        metadata.insert(RAW.to_owned(), raw);
    } else {
        metadata.insert("raw_bytes".to_owned(), json!(size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_above_the_bound_is_not_kept_whole() {
        let kept = |bytes: usize| {
            let mut metadata = Map::new();
            // Two of them are the quotation marks.
            keep_raw(&mut metadata, json!("x".repeat(bytes - 2)));
            metadata
        };
        for bytes in [MAX_RAW_BYTES - 1, MAX_RAW_BYTES] {
            assert!(kept(bytes).contains_key(RAW), "{bytes}");
        }
        let above = kept(MAX_RAW_BYTES + 1);
        assert_eq!(Value::from(above), json!({"raw_bytes": MAX_RAW_BYTES + 1}));
    }
}
