use serde_json::{Value, json};

use super::*;

/// Checks that `value` fits `schema`, or that the first fault is at `path` with words that contain `words`.
#[expect(clippy::needless_pass_by_value, reason = "it is written at the place of the call")]
#[track_caller]
fn check(schema: &Value, value: Value, fault: Option<(&str, &str)>) {
    let own = JsonSchema::parse_own(schema).expect("sound").check(&value);
    let foreign = JsonSchema::parse_foreign(schema).expect("sound").check(&value);
    assert_eq!(own, foreign, "one meaning: {schema} of {value}");

    match (own, fault) {
        (Ok(()), None) => {}
        (Err(mismatch), Some((path, words))) => {
            assert_eq!(mismatch.path, path, "{schema} of {value}: {mismatch}");
            assert!(mismatch.problem.contains(words), "{schema} of {value}: {mismatch}");
        }
        (found, expected) => panic!("{schema} of {value}: {found:?}, expected {expected:?}"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn every_keyword_is_checked_and_names_its_place() {
    for (schema, good, bad, path, words) in [
        (
            json!({ "type": "string" }),
            json!("x"),
            json!(5),
            "",
            "not of type \"string\"",
        ),
        (
            json!({ "type": ["string", "null"] }),
            json!(null),
            json!([]),
            "",
            "\"string\"",
        ),
        (
            json!({ "type": "integer", "minimum": 1, "maximum": 3 }),
            json!(3),
            json!(4),
            "",
            "maximum of 3",
        ),
        (json!({ "type": "integer" }), json!(2.0), json!(2.5), "", "integer"),
        (
            json!({ "exclusiveMinimum": 0, "multipleOf": 2 }),
            json!(2),
            json!(0),
            "",
            "minimum of 0",
        ),
        (
            json!({ "minLength": 2, "maxLength": 3 }),
            json!("äöü"),
            json!("ä"),
            "",
            "shorter than 2",
        ),
        (
            json!({ "pattern": "^[a-z]+$" }),
            json!("abc"),
            json!("ab1"),
            "",
            "[a-z]",
        ),
        (
            json!({ "enum": ["a", 1, 2, 3, 4] }),
            json!(1),
            json!("b"),
            "",
            "[\"a\",1,2,3,4]",
        ),
        (
            json!({ "const": true }),
            json!(true),
            json!(false),
            "",
            "true was expected",
        ),
        (
            json!({ "required": ["a"] }),
            json!({ "a": 1 }),
            json!({}),
            "",
            "\"a\" is missing",
        ),
        (
            json!({ "properties": { "a/b": { "type": "null" } } }),
            json!({ "c": 1 }),
            json!({ "a/b": 1 }),
            "/a~1b",
            "null",
        ),
        (
            json!({ "properties": { "a": {} }, "additionalProperties": false }),
            json!({ "a": [1] }),
            json!({ "b/~": 1 }),
            "/b~1~0",
            "no such property",
        ),
        (
            json!({ "items": { "type": "boolean" } }),
            json!([true]),
            json!([true, 1]),
            "/1",
            "boolean",
        ),
        (
            json!({ "minItems": 1, "maxItems": 2 }),
            json!([0]),
            json!([]),
            "",
            "less than 1",
        ),
        (
            json!({ "uniqueItems": true }),
            json!([1, 2]),
            json!([1, 1]),
            "",
            "unique",
        ),
        (
            json!({ "anyOf": [{ "type": "null" }, { "type": "integer" }] }),
            json!(1),
            json!("x"),
            "",
            "anyOf",
        ),
        (
            json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }),
            json!(1.5),
            json!(1),
            "",
            "oneOf",
        ),
        (
            json!({ "allOf": [{ "minimum": 1 }, { "maximum": 3 }] }),
            json!(2),
            json!(4),
            "",
            "maximum of 3",
        ),
        (json!({ "not": { "const": 7 } }), json!(1), json!(7), "", "not allowed"),
        (
            json!({ "if": { "required": ["a"] }, "then": { "required": ["b"] } }),
            json!({ "a": 1, "b": 1 }),
            json!({ "a": 1 }),
            "",
            "\"b\" is missing",
        ),
        (
            json!({ "properties": { "n": { "$ref": "#/$defs/a%20b" } }, "$defs": { "a b": { "minimum": 1 } } }),
            json!({ "n": 1 }),
            json!({ "n": 0 }),
            "/n",
            "minimum of 1",
        ),
    ] {
        check(&schema, good, None);
        check(&schema, bad, Some((path, words)));
    }
}

#[test]
fn a_value_is_not_quoted_and_a_fault_has_a_bound() {
    let secret = JsonSchema::parse_own(&json!({ "maxLength": 3 })).expect("sound");
    let mismatch = secret.check(&json!("password")).expect_err("too long");
    assert!(!mismatch.to_string().contains("password"), "{mismatch}");

    let many: Vec<String> = (0..1_000).map(|number| format!("value {number}")).collect();
    let many = JsonSchema::parse_own(&json!({ "enum": many })).expect("sound");
    let mismatch = many.check(&json!(0)).expect_err("not listed");
    assert_eq!(mismatch.problem.chars().count(), MAX_PROBLEM_CHARS + 1, "{mismatch}");
}

#[test]
fn a_keyword_that_is_not_checked_is_refused_in_a_schema_of_ours_only() {
    for (schema, at, named) in [
        (json!({ "minimun": 1 }), "", "minimun"),
        (
            json!({ "properties": { "a": { "format": "uri" } } }),
            "/properties/a",
            "format",
        ),
        (
            json!({ "items": { "anyOf": [{}, { "x-hint": 1 }] } }),
            "/items/anyOf/1",
            "x-hint",
        ),
        (json!({ "definitions": {} }), "", "definitions"),
    ] {
        match JsonSchema::parse_own(&schema) {
            Err(ParseSchemaError::Keyword { at: found, keyword }) => {
                assert_eq!((found.as_str(), keyword.as_str()), (at, named));
            }
            other => panic!("{schema}: {other:?}"),
        }

        let foreign = JsonSchema::parse_foreign(&schema).expect("an annotation");
        assert_eq!(foreign.check(&json!({ "a": "no uri" })), Ok(()), "{schema}");
    }

    // A property may have any name.
    let schema =
        json!({ "properties": { "format": {}, "$ref": { "type": "string" }, "x": { "default": { "y": 1 } } } });
    check(&schema, json!({ "$ref": 1 }), Some(("/$ref", "string")));
}

#[test]
fn a_schema_that_breaks_a_rule_is_refused() {
    let keyword = |schema: Value| match JsonSchema::parse_own(&schema) {
        Err(ParseSchemaError::Invalid { at, problem }) => {
            assert!(!problem.is_empty());
            assert!(JsonSchema::parse_foreign(&schema).is_err(), "{schema}");
            at
        }
        other => panic!("{schema}: {other:?}"),
    };

    assert_eq!(keyword(json!({ "type": "text" })), "/type");
    assert_eq!(keyword(json!({ "maxLength": -1 })), "/maxLength");
    assert_eq!(
        keyword(json!({ "properties": { "a": { "required": "a" } } })),
        "/properties/a/required"
    );
    assert_eq!(keyword(json!({ "oneOf": [] })), "/oneOf");
    assert_eq!(keyword(json!(5)), "");
}

#[test]
fn no_reference_leads_out_of_a_schema() {
    for reference in [
        "file:///etc/passwd",
        "http://127.0.0.1:1/x",
        "other.json",
        "#/nowhere",
        "#anchor",
        "/x",
    ] {
        for schema in [
            json!({ "$ref": reference }),
            json!({ "properties": { "a": { "$ref": reference } } }),
            json!({ "$id": "http://127.0.0.1:1/root", "$ref": reference }),
        ] {
            let refused = JsonSchema::parse_foreign(&schema).expect_err("it leads out");
            assert!(
                matches!(&refused, ParseSchemaError::Reference { reference: named, .. } if named == reference),
                "{refused}"
            );
        }
    }

    for schema in [
        json!({ "$dynamicRef": "#a" }),
        json!({ "properties": { "a": { "$id": "http://127.0.0.1:1/a" } } }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "properties": { "a": { "id": "b" } } }),
    ] {
        let refused = JsonSchema::parse_foreign(&schema).expect_err("another base");
        assert!(matches!(refused, ParseSchemaError::Reference { .. }), "{refused}");
    }

    let named = JsonSchema::parse_foreign(&json!({ "$id": "http://127.0.0.1:1/x", "items": { "id": "plain" } }));
    assert_eq!(named.expect("only a name").check(&json!([1])), Ok(()));
}

#[test]
fn a_tools_schema_is_read_by_the_version_that_it_names() {
    let list = |version: &str| json!({ "$schema": version, "items": [{ "type": "string" }] });
    let seventh = JsonSchema::parse_foreign(&list("http://json-schema.org/draft-07/schema#")).expect("a list is fine");
    assert_eq!(seventh.check(&json!([5])).expect_err("no string").path, "/0");
    assert!(JsonSchema::parse_foreign(&list("https://json-schema.org/draft/2020-12/schema")).is_err());

    // A version that is not known is neither fetched nor a reason to refuse.
    let unknown = json!({ "$schema": "http://127.0.0.1:1/own", "minimum": 1 });
    let unknown = JsonSchema::parse_foreign(&unknown).expect("read as 2020-12");
    assert!(unknown.check(&json!(0)).is_err());

    let fourth =
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true });
    assert!(
        JsonSchema::parse_foreign(&fourth)
            .expect("sound")
            .check(&json!(1))
            .is_err()
    );
}

#[test]
fn patterns_are_linear_and_others_are_annotations_of_tools() {
    let ahead = json!({ "properties": { "a": { "pattern": "^(?!x)", "maxLength": 3 }, "b": { "pattern": "^b" } } });
    assert!(matches!(
        JsonSchema::parse_own(&ahead),
        Err(ParseSchemaError::Invalid { .. })
    ));

    let foreign = JsonSchema::parse_foreign(&ahead).expect("the pattern is an annotation");
    assert_eq!(foreign.check(&json!({ "a": "x" })), Ok(()));
    assert_eq!(foreign.check(&json!({ "a": "long" })).expect_err("too long").path, "/a");
    assert_eq!(
        foreign
            .check(&json!({ "b": "c" }))
            .expect_err("the other pattern holds")
            .path,
        "/b"
    );

    let huge = json!({ "pattern": "((\\w{100}){100}){100}" });
    assert!(JsonSchema::parse_own(&huge).is_err(), "its memory has a bound");

    // Backtracking would take 2^30 steps.
    let evil = JsonSchema::parse_own(&json!({ "pattern": "^(a|a)*$" })).expect("sound");
    assert!(evil.check(&json!(format!("{}!", "a".repeat(30)))).is_err());
}

#[test]
fn size_and_depth_of_a_schema_have_bounds() {
    let nested = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({ "items": inner }));
    check(&nested(MAX_SCHEMA_DEPTH), json!([[1]]), None);
    let deep = JsonSchema::parse_foreign(&nested(MAX_SCHEMA_DEPTH + 1)).expect_err("too deep");
    assert!(matches!(deep, ParseSchemaError::Depth { .. }), "{deep}");

    let large = json!({ "description": "x".repeat(MAX_SCHEMA_BYTES) });
    let large = JsonSchema::parse_foreign(&large).expect_err("too large");
    assert!(matches!(large, ParseSchemaError::Size { .. }), "{large}");
}

#[test]
fn a_check_without_end_is_refused_before_it_begins() {
    let refused = |schema: &Value, value: &Value| {
        let schema = JsonSchema::parse_foreign(schema).expect("sound");
        let mismatch = schema.check(value).expect_err("it would not end");
        assert!(mismatch.problem.contains("steps"), "{mismatch}");
    };

    refused(&json!({ "$ref": "#" }), &json!({}));
    refused(&json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] }), &json!({}));

    // Each of forty schemas applies the next one twice.
    let twice = |next: &str| json!({ "anyOf": [{ "$ref": next }, { "$ref": next }] });
    let mut chain: serde_json::Map<String, Value> = (0..40)
        .map(|n| (n.to_string(), twice(&format!("#/$defs/{}", n + 1))))
        .collect();
    chain.insert("40".to_owned(), json!({ "type": "null" }));
    refused(&json!({ "$ref": "#/$defs/0", "$defs": chain }), &json!(1));

    // Each level of the value doubles the work.
    let double = json!({ "anyOf": [{ "items": { "$ref": "#" } }, { "items": { "$ref": "#" }, "maxItems": 1 }] });
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    refused(&double, &deep);

    // Closed objects within each other look at the schemas beside them again.
    let closed = (0..40).fold(
        json!({}),
        |inner, _| json!({ "allOf": [inner], "unevaluatedProperties": false }),
    );
    refused(&closed, &json!({ "a": 1 }));

    // Any JSON value by a schema that refers to itself is a usual one.
    let any = json!({ "anyOf": [
        { "type": ["null", "boolean", "number", "string"] },
        { "type": "array", "items": { "$ref": "#" } },
        { "type": "object", "additionalProperties": { "$ref": "#" } }
    ] });
    check(
        &any,
        json!({ "a": [1, { "b": [null, "x"] }], "c": vec![1; 10_000] }),
        None,
    );
    check(&any, deep, None);
}

#[test]
fn the_deepest_check_fits_the_stack_of_a_worker() {
    let tree = json!({ "allOf": [{ "allOf": [{ "properties": { "a": { "$ref": "#" } }, "required": ["a"] }] }] });
    let value = (0..120).fold(json!({}), |inner, _| json!({ "a": inner }));
    let worker = std::thread::Builder::new().stack_size(2 * 1_024 * 1_024);
    let checked = worker.spawn(move || JsonSchema::parse_foreign(&tree).expect("sound").check(&value));
    let checked = checked.expect("a thread").join().expect("it fits");
    assert_eq!(checked.expect_err("the innermost has no `a`").path, "/a".repeat(120));
}
