//! A process that stands for a later release in tests of upgrades: each message that it writes has a field more, in the
//! message and in each entry of it, and it knows one kind of ledger entry more. Not part of release builds.
//!
//! A switch rather than a feature of cargo: with a feature, the whole workspace would be built a second time.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use ciborium::value::Value;

use crate::wire::envelope::{PayloadFormat, encode_payload, parse_value};

/// The field that the later release writes.
const FIELD: &str = "x_later";
/// The kind of ledger entries that it knows.
const KIND: &str = "x_later";

/// Whether this process stands for a later release.
static LATER: AtomicBool = AtomicBool::new(false);

/// Lets this process stand for a later release from now on.
pub fn rehearse_later_release() {
    LATER.store(true, Ordering::Relaxed);
}

/// Returns whether this process stands for a later release.
pub(in crate::wire) fn is_later() -> bool {
    LATER.load(Ordering::Relaxed)
}

/// Returns `payload` as the later release writes it.
pub(in crate::wire) fn with_later_fields(payload: Bytes, format: PayloadFormat) -> Bytes {
    let Some(mut written) = parse_value(format, &payload) else {
        return payload;
    };
    add_to(&mut written);
    let fields = written.as_map_mut().into_iter().flatten();
    for (_, entries) in fields.filter(|(name, _)| name.as_text() == Some("entries")) {
        entries.as_array_mut().into_iter().flatten().for_each(add_to);
    }

    encode_payload(&written, format)
}

/// Returns `payload` as the later release reads it: it knows the entries of [`KIND`], which change nothing.
pub(in crate::wire) fn without_later_entries(payload: &[u8], format: PayloadFormat) -> Option<Bytes> {
    let is_later = |entry: &Value| {
        let fields = entry.as_map().into_iter().flatten();
        fields
            .filter(|(name, _)| name.as_text() == Some("kind"))
            .any(|(_, kind)| kind.as_text() == Some(KIND))
    };

    let mut written = parse_value(format, payload)?;
    let mut found = false;
    let fields = written.as_map_mut().into_iter().flatten();
    for entries in fields.filter_map(|(_, value)| value.as_array_mut()) {
        let before = entries.len();
        entries.retain(|entry| !is_later(entry));
        found |= entries.len() < before;
    }
    found.then(|| encode_payload(&written, format))
}

fn add_to(value: &mut Value) {
    let is_new = |map: &Vec<(Value, Value)>| map.iter().all(|(name, _)| name.as_text() != Some(FIELD));
    if let Value::Map(map) = value
        && is_new(map)
    {
        map.push((
            Value::Text(FIELD.to_owned()),
            Value::Array(vec![Value::from(1), Value::Bool(true)]),
        ));
    }
}
