//! Ledger records with entries of kinds that only a later release knows. *Pure.* Source: `docs/design/sessions.md` §3.
//!
//! A broker cannot fold such a record, and leaves the session to a broker that can. A reader of single entries
//! (the read model, the scheduler, the search for lost replies) reads those that it knows.

use ciborium::value::Value;
use serde::{Deserialize, Deserializer};

use super::envelope::{
    DecodeError, PayloadFormat, WireMessage as _, decode, encode_payload, format_of, parse, parse_by, parse_value,
    version_of,
};
use super::headers::Headers;
use super::unknown::lenient;
use crate::model::ledger::{AppendId, LedgerEntry, LedgerRecord, TagFirstEntry};
use crate::model::time::UnixMillis;

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
    match decode_in_one_pass(headers, payload) {
        Some(record) => Ok(record),
        None => decode_buffered(headers, payload),
    }
}

/// Decodes a record as [`decode`] does, if the kind is the first field of each entry, as Nexus writes it. Readers of
/// single entries read every record of every session, so that serde's buffer would cost them much. `None` says nothing
/// about the record.
fn decode_in_one_pass(headers: &Headers, payload: &[u8]) -> Option<LedgerRecord> {
    let version = version_of::<LedgerRecord>(headers).ok()?;
    if payload.len() > LedgerRecord::MAX_BYTES || version != LedgerRecord::VERSION {
        return None;
    }

    let format = format_of::<LedgerRecord>(headers).ok()?;
    let TagFirstRecord(record) = parse_by::<LedgerRecord, TagFirstRecord>(format, payload).ok()?;
    record.check().is_ok().then_some(record)
}

/// A record whose entries have their kinds first, with fields that this release does not know.
struct TagFirstRecord(LedgerRecord);

impl<'de> Deserialize<'de> for TagFirstRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Known(#[serde(with = "RecordFields")] LedgerRecord);

        lenient(deserializer).map(|Known(record)| Self(record))
    }
}

/// The fields of [`LedgerRecord`].
#[derive(Deserialize)]
#[serde(remote = "LedgerRecord")]
struct RecordFields {
    append: AppendId,
    at: UnixMillis,
    #[serde(default)]
    held_ms: u64,
    #[serde(deserialize_with = "read_entries")]
    entries: Vec<LedgerEntry>,
}

fn read_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LedgerEntry>, D::Error> {
    struct Entry(LedgerEntry);

    impl<'de> Deserialize<'de> for Entry {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            TagFirstEntry::read(deserializer).map(Self)
        }
    }

    let entries = Vec::<Entry>::deserialize(deserializer)?;
    Ok(entries.into_iter().map(|Entry(entry)| entry).collect())
}

/// Decodes a record in the way that reads all of them.
fn decode_buffered(headers: &Headers, payload: &[u8]) -> Result<LedgerRecord, DecodeError> {
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
    use proptest::prelude::*;

    use super::*;
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

    /// Returns the record of [`written`] with `entry` as its only one.
    fn record_of(entry: Value) -> Value {
        let mut record = written();
        let mut fields = record.as_map_mut().into_iter().flatten();
        let (_, entries) = fields
            .find(|(key, _)| key.as_text() == Some("entries"))
            .expect("entries");
        *entries = Value::Array(vec![entry]);
        record
    }

    /// Reads `record` in both ways in `format`: what is read in one pass is what is read by way of the buffer. Returns
    /// which of the two read it.
    fn read_twice(record: &Value, format: PayloadFormat) -> (bool, bool) {
        let (_, headers) = encode(&known(), format);
        let payload = encode_payload(record, format);
        let in_one_pass = decode_in_one_pass(&headers, &payload);
        let buffered = decode_buffered(&headers, &payload);
        if let Some(read) = &in_one_pass {
            assert_eq!(buffered.as_ref().ok(), Some(read), "{record:?}: {buffered:?}");
        }

        (in_one_pass.is_some(), buffered.is_ok())
    }

    /// Adds a field of a later release to every map in `value`.
    fn add_later(value: &mut Value) {
        if let Value::Map(fields) = value {
            fields.iter_mut().for_each(|(_, field)| add_later(field));
            fields.push((Value::Text("x_later".to_owned()), Value::Bool(true)));
        } else if let Value::Array(entries) = value {
            entries.iter_mut().for_each(add_later);
        }
    }

    #[test]
    fn every_golden_record_is_read_in_one_pass() {
        let ending = format!(".{}.cbor.hex", LedgerRecord::VERSION);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");
        let mut count = 0;
        for file in std::fs::read_dir(folder).expect("tests/golden") {
            let path = file.expect("a file").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with("ledger-") || !name.ends_with(&ending) {
                continue;
            }

            count += 1;
            let hex = std::fs::read_to_string(&path).expect("a golden file");
            let hex: String = hex.split_whitespace().collect();
            let payload = data_encoding::HEXLOWER.decode(hex.as_bytes()).expect("hex");
            let record: LedgerRecord = decode(&Headers::new(), &payload).expect("a record");
            for format in [PayloadFormat::Cbor, PayloadFormat::Json] {
                let (payload, headers) = encode(&record, format);
                assert_eq!(decode_in_one_pass(&headers, &payload).as_ref(), Some(&record), "{name}");
            }

            // Some entries refuse unknown fields in a part of them, in both ways.
            let mut later = parse_value(PayloadFormat::Cbor, &payload).expect("CBOR");
            add_later(&mut later);
            for format in [PayloadFormat::Cbor, PayloadFormat::Json] {
                let (in_one_pass, buffered) = read_twice(&later, format);
                assert_eq!(in_one_pass, buffered, "{name}");
            }
        }
        assert!(count > 30, "{count} golden files of the ledger");
    }

    /// Reads a record of each of `entries`: `in_one_pass` says whether CBOR and JSON are read so, `is_read` whether the
    /// record is read at all.
    fn check<const N: usize>(
        entries: [Result<Value, ciborium::value::Error>; N],
        in_one_pass: [bool; 2],
        is_read: bool,
    ) {
        for entry in entries {
            let record = record_of(entry.expect("an entry"));
            for (format, in_one_pass) in [PayloadFormat::Cbor, PayloadFormat::Json].into_iter().zip(in_one_pass) {
                let read = read_twice(&record, format);
                assert_eq!(read, (in_one_pass, is_read), "{record:?} in {format:?}");
            }
        }
    }

    #[test]
    fn an_entry_that_begins_with_its_kind_is_read_in_one_pass() {
        let turn = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        check(
            [
                cbor!({"kind" => "owned", "epoch" => 1, "broker" => "b"}),
                // Fields of a later release.
                cbor!({"kind" => "owned", "more" => {"kind" => [1]}, "epoch" => 1, "broker" => "b"}),
                cbor!({"kind" => "session_opened", "session" => {"persona" => "p", "session" => "s", "more" => 1}}),
                cbor!({
                    "kind" => "turn_completed", "turn" => turn, "head" => turn, "cursor" => {"floor" => 1, "more" => 1}
                }),
            ],
            [true, true],
            true,
        );
    }

    #[test]
    fn any_other_entry_is_read_as_before() {
        check(
            [
                cbor!({"epoch" => 1, "broker" => "b", "kind" => "owned"}),
                cbor!({"kind" => "turn_weighed", "grams" => 3}),
            ],
            [false, false],
            true,
        );

        check(
            [
                cbor!("owned"),
                cbor!({"epoch" => 1, "broker" => "b"}),
                cbor!({"kind" => 3, "epoch" => 1, "broker" => "b"}),
                cbor!({"kind" => "owned", "epoch" => 1, "broker" => "b", "kind" => "owned"}),
                cbor!({"kind" => "owned", "epoch" => 1, "broker" => "b", "epoch" => 1}),
                cbor!({"kind" => "owned", "epoch" => 1}),
                cbor!({"kind" => "owned", "epoch" => "1", "broker" => "b"}),
            ],
            [false, false],
            false,
        );
    }

    /// In CBOR, only serde's buffer takes a whole number for a fraction, and an object whose first key is this long.
    #[test]
    fn what_only_the_buffer_reads_is_read() {
        let mut with_long_key =
            cbor!({"kind" => "tool_started", "call" => "c", "name" => "n", "args_hash" => "h"}).expect("an entry");
        let arguments = Value::Map(vec![(Value::Text("k".repeat(5_000)), Value::from(1))]);
        let fields = with_long_key.as_map_mut().expect("a map");
        fields.push((Value::Text("arguments".to_owned()), arguments));

        let whole_cost = cbor!({"kind" => "cost_reserved", "step" => 1, "cost_usd" => 1});
        check([whole_cost, Ok(with_long_key)], [false, true], true);
    }

    proptest! {
        /// Either way may refuse the record. They never read two different ones.
        #[test]
        fn a_flipped_byte_does_not_make_two_records(at in 0_usize..400, to in any::<u8>()) {
            let mut record = known();
            record.entries.push(LedgerEntry::Owned {
                epoch: 3,
                broker: "broker-svc-1".to_owned(),
            });
            record.entries.push(LedgerEntry::ToolStarted {
                call: "c1".to_owned(),
                name: "pay".to_owned(),
                args_hash: "00ff".to_owned(),
                arguments: Some(serde_json::json!({"amount": [5, null], "to": {"name": "ann"}})),
            });

            let (payload, headers) = encode(&record, PayloadFormat::Cbor);
            let mut bytes = payload.to_vec();
            let length = bytes.len();
            bytes[at % length] = to;
            let read = (decode_in_one_pass(&headers, &bytes), decode_buffered(&headers, &bytes));
            if let (Some(in_one_pass), Ok(buffered)) = read {
                prop_assert_eq!(in_one_pass, buffered);
            }
        }
    }
}
