//! Writing a changed record without losing what another release wrote into it. *Pure.*

use bytes::Bytes;
use ciborium::value::Value;

use crate::wire::envelope::{DecodeError, PayloadFormat, WireMessage, decode, encode_payload, format_of, parse_value};
use crate::wire::headers::Headers;

/// Returns the payload of `value`, which replaces the record with `headers` and `stored`, in CBOR: with the fields of
/// the record that this release does not know. Returns `None` if there are none, so that `value` is written as it is.
///
/// An entry of a list keeps its fields if its known part is unchanged, or if it is at the same place of a list of the
/// same length.
///
/// # Errors
/// Returns [`DecodeError`] if the record is not a `T`.
pub fn carry_over<T: WireMessage>(headers: &Headers, stored: &[u8], value: &T) -> Result<Option<Bytes>, DecodeError> {
    let known: T = decode(headers, stored)?;
    let format = format_of::<T>(headers)?;
    // The usual case: this release would write the same.
    if encode_payload(&known, format) == stored {
        return Ok(None);
    }

    let (Some(written), Some(known), Some(mut next)) = (parse_value(format, stored), value_of(&known), value_of(value))
    else {
        return Ok(None);
    };
    if !add_unknown(&written, &known, &mut next) {
        return Ok(None);
    }

    Ok(Some(encode_payload(&next, PayloadFormat::Cbor)))
}

/// Returns whether the record with `headers` and `stored`, which was read as `known`, has fields that this release does
/// not know.
pub fn has_unknown<T: WireMessage>(headers: &Headers, stored: &[u8], known: &T) -> bool {
    let Ok(format) = format_of::<T>(headers) else {
        return false;
    };
    if encode_payload(known, format) == stored {
        return false;
    }
    let (Some(written), Some(known)) = (parse_value(format, stored), value_of(known)) else {
        return false;
    };

    add_unknown(&written, &known, &mut known.clone())
}

fn value_of<T: serde::Serialize>(value: &T) -> Option<Value> {
    Value::serialized(value).ok()
}

/// Adds to `next` what `written` has and `known`, as this release read it, has not. Returns whether anything was added.
fn add_unknown(written: &Value, known: &Value, next: &mut Value) -> bool {
    match (written, known, next) {
        (Value::Map(written), Value::Map(known), Value::Map(next)) => add_fields(written, known, next),
        (Value::Array(written), Value::Array(known), Value::Array(next)) if written.len() == known.len() => {
            add_to_entries(written, known, next)
        }
        _ => false,
    }
}

fn add_fields(written: &[(Value, Value)], known: &[(Value, Value)], next: &mut Vec<(Value, Value)>) -> bool {
    let mut added = false;
    for (name, value) in written {
        let known = known.iter().find(|(key, _)| is_same_key(key, name));
        let place = next.iter_mut().find(|(key, _)| is_same_key(key, name));
        match (known, place) {
            (None, None) => {
                next.push((name.clone(), value.clone()));
                added = true;
            }
            (Some((_, known)), Some((_, place))) => added |= add_unknown(value, known, place),
            // The field was set or removed by this release.
            (Some(_), None) | (None, Some(_)) => {}
        }
    }
    added
}

/// Returns whether two keys are the same: in JSON, a number is a text.
fn is_same_key(one: &Value, other: &Value) -> bool {
    let number = |key: &Value| key.as_integer().map(|number| i128::from(number).to_string());
    match (one, other) {
        (Value::Integer(_), Value::Text(text)) => number(one).as_ref() == Some(text),
        (Value::Text(text), Value::Integer(_)) => number(other).as_ref() == Some(text),
        (one, other) => one == other,
    }
}

fn add_to_entries(written: &[Value], known: &[Value], next: &mut [Value]) -> bool {
    let same_length = written.len() == next.len();
    let mut taken = vec![false; written.len()];
    let mut added = false;
    for (index, entry) in next.iter_mut().enumerate() {
        let unchanged = |from: usize| !taken[from] && known[from] == *entry;
        let same = (index < known.len() && unchanged(index)).then_some(index);
        let from = same.or_else(|| (0..known.len()).find(|from| unchanged(*from)));
        let from = from.or_else(|| (same_length && !taken[index]).then_some(index));
        if let Some(from) = from {
            taken[from] = true;
            added |= add_unknown(&written[from], &known[from], entry);
        }
    }
    added
}
