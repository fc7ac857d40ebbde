//! Messages of a later release: every schema is read with optional fields that it does not have, in every object of it.

use ciborium::value::Value as Cbor;
use serde_json::{Value, json};
use shared::wire::envelope::{PayloadFormat, WireMessage, decode, encode, encode_payload};
use shared::wire::headers::CONTENT_TYPE;
use shared::wire::unknown::carry_over;

/// Name of the field of a later release.
const LATER: &str = "x_later";

/// Objects whose keys are data of a type, so that a further key is no unknown field: the end of their paths.
const KEYED: [&str; 4] = ["/accounts", "/bookings", "/spent", "/state"];

/// Objects that an agent writes, and that are read strictly wherever they are.
const STRICT: [&str; 2] = ["/wish/schedule", "/wish/scope"];

/// Each object of `value` can have a field that this release does not know: the message is read in both formats, the
/// known fields are as before, and a changed record that replaces the message has the field still.
pub(crate) fn check_unknown_fields<T: WireMessage + PartialEq + std::fmt::Debug>(name: &str, value: &T, json: &Value) {
    assert!(
        T::WRITTEN == T::VERSION || value.to_earlier().is_some(),
        "{name}: version {} is not written yet, and the one before cannot be written any more",
        T::VERSION
    );

    let mut faults = Vec::new();
    for path in objects(json, String::new()) {
        if KEYED.iter().chain(&STRICT).any(|end| path.ends_with(end)) {
            continue;
        }

        let mut later = json.clone();
        later.pointer_mut(&path).expect("an object")[LATER] = json!({"deep": [1, {"er": "é"}]});
        for format in [PayloadFormat::Json, PayloadFormat::Cbor] {
            if let Err(fault) = check_one(value, &later, &path, format) {
                faults.push(format!("{path} in {}: {fault}", format.content_type()));
            }
        }
    }
    assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
}

fn check_one<T: WireMessage + PartialEq>(
    value: &T,
    later: &Value,
    path: &str,
    format: PayloadFormat,
) -> Result<(), String> {
    let (_, mut headers) = encode(value, format);
    headers.insert(CONTENT_TYPE, format.content_type());
    let payload = match format {
        PayloadFormat::Json => encode_payload(later, format),
        // Keys of a map may be numbers, which JSON writes as texts.
        PayloadFormat::Cbor => encode_payload(&with_field(value, path), format),
    };
    let read: T = decode(&headers, &payload).map_err(|error| error.to_string())?;

    // What is written again has the field, or all else is as before. At the top it is kept by whoever passes it on.
    let again = serde_json::to_value(&read).map_err(|error| error.to_string())?;
    let is_kept = again
        .pointer(path)
        .is_some_and(|object| object[LATER] == later.pointer(path).expect("it")[LATER]);
    if !is_kept && (T::KEEPS_UNKNOWN && path.is_empty() || read != *value) {
        return Err("the field is lost".to_owned());
    }

    let carried = carry_over(&headers, &payload, value).map_err(|error| error.to_string())?;
    let carried = carried.unwrap_or_else(|| encode_payload(&read, PayloadFormat::Cbor));
    let written: Cbor = ciborium::from_reader(carried.as_ref()).map_err(|error| error.to_string())?;
    let written = serde_json::to_value(written).map_err(|error| error.to_string())?;
    if written.pointer(path).is_none_or(|object| object.get(LATER).is_none()) {
        return Err("the field is lost if the record is changed".to_owned());
    }

    let (_, cbor) = encode(value, PayloadFormat::Cbor);
    let again = decode::<T>(&cbor, &carried);
    again
        .map(drop)
        .map_err(|error| format!("what is written again is not read: {error}"))
}

/// Returns `value` with the field of a later release in the object at `path`.
fn with_field<T: WireMessage>(value: &T, path: &str) -> Cbor {
    let mut whole = Cbor::serialized(value).expect("a value");
    let mut place = &mut whole;
    for step in path.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        let is_step = |key: &Cbor| {
            let number = key.as_integer().map(|number| i128::from(number).to_string());
            key.as_text() == Some(&step) || number.as_ref() == Some(&step)
        };
        let found = if place.is_map() {
            let map = place.as_map_mut().expect("a map");
            map.iter_mut().find(|(key, _)| is_step(key)).map(|(_, value)| value)
        } else {
            let list = place.as_array_mut().expect("a list");
            step.parse().ok().and_then(|index: usize| list.get_mut(index))
        };
        place = found.expect("the object is there");
    }

    let later = Cbor::serialized(&json!({"deep": [1, {"er": "é"}]})).expect("a value");
    let map = place.as_map_mut().expect("an object");
    map.push((Cbor::Text(LATER.to_owned()), later));
    whole
}

/// Returns the paths of all objects in `value`, as JSON Pointers.
fn objects(value: &Value, at: String) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let inside = fields.iter().flat_map(|(name, field)| {
                objects(field, format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")))
            });
            let inside: Vec<String> = inside.collect();
            std::iter::once(at).chain(inside).collect()
        }
        Value::Array(entries) => {
            let inside = entries.iter().enumerate();
            inside
                .flat_map(|(index, entry)| objects(entry, format!("{at}/{index}")))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}
