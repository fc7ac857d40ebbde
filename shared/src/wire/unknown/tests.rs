use std::collections::BTreeMap;

use serde_json::json;

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    #[serde(alias = "numberOf")]
    number: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
struct Outer {
    one: Inner,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    list: Vec<Inner>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    by_name: BTreeMap<String, Inner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maybe: Option<Inner>,
    #[serde(skip)]
    unknown: UnknownFields,
}

keeps_unknown!(Outer);

fn later() -> serde_json::Value {
    json!({
        "colour": {"red": 1},
        "one": {"number": 1, "colour": "blue"},
        "list": [{"number": 2}, {"numberOf": 3, "colour": ["green"]}],
        "by_name": {"a": {"number": 4, "colour": null}},
        "maybe": {"number": 5, "colour": 5.5},
    })
}

#[test]
fn unknown_fields_are_written_again_where_they_were() {
    let read: Outer = serde_json::from_value(later()).expect("it is read");
    assert_eq!(
        (read.list[1].number, read.maybe.as_ref().map(|maybe| maybe.number)),
        (3, Some(5))
    );

    let mut expected = later();
    expected["list"][1] = json!({"number": 3, "colour": ["green"]});
    expected["by_name"]["a"] = json!({"number": 4});
    assert_eq!(serde_json::to_value(&read).expect("JSON"), expected);

    let mut bytes = Vec::new();
    ciborium::into_writer(&read, &mut bytes).expect("CBOR");
    let again: Outer = ciborium::from_reader(bytes.as_slice()).expect("it is read again");
    assert_eq!(again, read);
}

#[test]
fn an_unknown_field_never_replaces_a_known_one() {
    let mut read: Outer = serde_json::from_value(later()).expect("it is read");
    read.unknown.0.push(UnknownField {
        at: vec![PathStep::Field("one")],
        name: "number".to_owned(),
        value: Value::from(9),
    });
    read.maybe = None;
    read.list.clear();

    let written = serde_json::to_value(&read).expect("JSON");
    assert_eq!(written["one"], json!({"number": 1, "colour": "blue"}));
    assert_eq!(written.get("list"), None, "what is gone takes its unknown fields along");
    assert_eq!(written.get("maybe"), None);
}

#[test]
fn what_people_write_is_refused_with_the_field() {
    let strict = serde_json::from_value::<Inner>(json!({"number": 1, "colour": 2})).expect_err("a typing error");
    assert!(strict.to_string().contains("unknown field `colour`"), "{strict}");

    let read = read_strict::<Inner, _>(json!({"number": 1}));
    assert_eq!(read.expect("all known").number, 1);
    let scope = read_strict::<crate::model::approval::DeciderScope, _>(json!({"kind": "named", "names": [], "n": 1}));
    assert!(scope.expect_err("not of this kind").to_string().contains("`n`"));
}

#[test]
fn a_repeated_field_is_refused() {
    let twice = r#"{"one": {"number": 1}, "one": {"number": 2}}"#;
    assert!(serde_json::from_str::<Outer>(twice).is_err());
    let alias = r#"{"one": {"number": 1, "numberOf": 2}}"#;
    assert!(
        serde_json::from_str::<Outer>(alias).is_err(),
        "by its other name as well"
    );
}
