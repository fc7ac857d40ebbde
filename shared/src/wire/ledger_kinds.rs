//! Ledger records with entries of kinds that only a later release knows. *Pure.* Source: `docs/design/sessions.md` §3.
//!
//! A broker cannot fold such a record, and leaves the session to a broker that can. A reader of single entries
//! (the read model, the scheduler, the search for lost replies) reads those that it knows.

use ciborium::value::Value;

use super::envelope::{DecodeError, PayloadFormat, decode, encode_payload, format_of, parse, parse_value};
use super::headers::Headers;
use crate::model::ledger::{LedgerEntry, LedgerRecord};

/// Returns the kinds of a record's entries that this release does not know.
pub(super) fn newer_kinds(record: &Value) -> impl Iterator<Item = String> + '_ {
    let entries = field(record, "entries").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| {
        let kind = field(entry, "kind").and_then(Value::as_text)?;
        (!is_known(kind)).then(|| kind.to_owned())
    })
}

fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let found = value.as_map()?.iter().find(|(key, _)| key.as_text() == Some(name));
    found.map(|(_, value)| value)
}

/// Returns whether `kind` is a kind of [`LedgerEntry`]: serde alone knows their names.
fn is_known(kind: &str) -> bool {
    let bare = serde_json::json!({ "kind": kind });
    match serde_json::from_value::<LedgerEntry>(bare) {
        Ok(_) => true,
        Err(error) => !error.to_string().starts_with(&format!("unknown variant `{kind}`")),
    }
}

/// Decodes a record without its entries of kinds that only a later release knows; the record may have no entries then.
/// For readers to whom each entry means something by itself.
///
/// # Errors
/// Returns the errors of [`decode`], but not [`DecodeError::NewerPart`].
pub fn decode_known(headers: &Headers, payload: &[u8]) -> Result<LedgerRecord, DecodeError> {
    let error = match decode::<LedgerRecord>(headers, payload) {
        Err(error @ DecodeError::NewerPart { .. }) => error,
        decoded => return decoded,
    };

    let format = format_of::<LedgerRecord>(headers)?;
    let mut written = parse_value(format, payload).ok_or(error)?;
    let fields = written.as_map_mut().into_iter().flatten();
    for (_, entries) in fields.filter(|(key, _)| key.as_text() == Some("entries")) {
        let known = |entry: &Value| field(entry, "kind").and_then(Value::as_text).is_some_and(is_known);
        entries
            .as_array_mut()
            .into_iter()
            .for_each(|entries| entries.retain(known));
    }

    parse(PayloadFormat::Cbor, &encode_payload(&written, PayloadFormat::Cbor))
}

#[cfg(test)]
mod tests {
    use ciborium::cbor;

    use super::*;
    use crate::model::ledger::AppendId;
    use crate::model::time::UnixMillis;
    use crate::wire::envelope::encode;

    fn written() -> Value {
        cbor!({
            "append" => {"broker" => "b", "epoch" => 1, "counter" => 2},
            "at" => 5,
            "entries" => [
                {"kind" => "reply_published", "turn" => "01ARZ3NDEKTSV4RRFFQ69G5FAV", "by" => "a later release"},
                {"kind" => "turn_weighed", "grams" => 3},
            ],
        })
        .expect("a record")
    }

    fn known() -> LedgerRecord {
        LedgerRecord {
            append: AppendId {
                broker: "b".to_owned(),
                epoch: 1,
                counter: 2,
            },
            at: UnixMillis(5),
            held_ms: 0,
            entries: vec![LedgerEntry::ReplyPublished {
                turn: "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().expect("an id"),
            }],
        }
    }

    #[test]
    fn a_record_with_an_unknown_kind_is_a_later_releases() {
        let known = known();
        for format in [PayloadFormat::Cbor, PayloadFormat::Json] {
            let (_, headers) = encode(&known, format);
            let payload = encode_payload(&written(), format);
            let error = decode::<LedgerRecord>(&headers, &payload).expect_err("it cannot be folded");
            assert!(error.is_newer(), "{error}");
            assert!(error.to_string().contains("turn_weighed"), "{error}");
            assert_eq!(decode_known(&headers, &payload).expect("the known entries"), known);
        }
    }

    #[test]
    fn a_broken_record_is_malformed() {
        let (_, headers) = encode(&known(), PayloadFormat::Cbor);
        let payload = encode_payload(
            &cbor!({"entries" => [{"kind" => "owned"}]}).expect("a value"),
            PayloadFormat::Cbor,
        );
        let error = decode::<LedgerRecord>(&headers, &payload).expect_err("fields are missing");
        assert_eq!(error.reason(), "malformed", "{error}");
        assert!(decode_known(&headers, &payload).is_err());
    }
}
