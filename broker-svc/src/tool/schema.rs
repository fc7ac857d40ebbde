//! Checks whether arguments fit a tool's JSON Schema. *Pure.*
//!
//! The usual keywords of tools' schemas are checked: `type`, `enum`, `const`, `required`, `properties`,
//! `additionalProperties`, `items`, bounds of numbers, texts and lists, `anyOf`, `oneOf`, `allOf`, `not`, and
//! references within the schema. Other keywords demand nothing here; references to elsewhere let nothing pass, and
//! are never followed: a schema may come from a third party's server.

use serde_json::{Map, Value};

/// Maximum depth to which a schema is checked; deeper, nothing passes.
const MAX_DEPTH: usize = 64;

/// Returns the first reason why `arguments` do not fit `schema`; `None` if they fit.
#[must_use]
pub fn find_misfit(schema: &Value, arguments: &Value) -> Option<String> {
    let root = Checker { root: schema };
    root.check(schema, arguments, "arguments", 0).err()
}

struct Checker<'a> {
    root: &'a Value,
}

type Checked = Result<(), String>;

impl Checker<'_> {
    fn check(&self, schema: &Value, value: &Value, at: &str, depth: usize) -> Checked {
        let rules = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(rules) if depth < MAX_DEPTH => rules,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                return Err(format!("{at}: is not allowed"));
            }
        };

        if let Some(reference) = rules.get("$ref").and_then(Value::as_str) {
            let found = reference.strip_prefix('#').and_then(|path| self.root.pointer(path));
            let found = found.ok_or_else(|| format!("{at}: the schema's `{reference}` cannot be read"))?;
            self.check(found, value, at, depth + 1)?;
        }

        kind(rules, value, at)?;
        check_bounds(rules, value, at)?;
        self.check_combined(rules, value, at, depth)?;

        match value {
            Value::Object(members) => self.check_object(rules, members, at, depth),
            Value::Array(items) => match rules.get("items") {
                Some(schema) => (items.iter().enumerate())
                    .try_for_each(|(index, item)| self.check(schema, item, &format!("{at}[{index}]"), depth + 1)),
                None => Ok(()),
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn check_object(
        &self,
        rules: &Map<String, Value>,
        members: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> Checked {
        let required = rules.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !members.contains_key(name) {
                return Err(format!("{at}.{name}: is missing"));
            }
        }

        let known = rules.get("properties").and_then(Value::as_object);
        for (name, member) in members {
            let schema = known.and_then(|known| known.get(name));
            let schema = schema.or_else(|| rules.get("additionalProperties"));
            if let Some(schema) = schema {
                self.check(schema, member, &format!("{at}.{name}"), depth + 1)?;
            }
        }

        Ok(())
    }

    fn check_combined(&self, rules: &Map<String, Value>, value: &Value, at: &str, depth: usize) -> Checked {
        let list = |key: &str| rules.get(key).and_then(Value::as_array);
        let fits = |schema: &Value| self.check(schema, value, at, depth + 1).is_ok();

        for schema in list("allOf").into_iter().flatten() {
            self.check(schema, value, at, depth + 1)?;
        }

        if list("anyOf").is_some_and(|all| !all.iter().any(fits)) {
            return Err(format!("{at}: fits none of what it may be"));
        }

        if list("oneOf").is_some_and(|all| all.iter().filter(|schema| fits(schema)).count() != 1) {
            return Err(format!("{at}: does not fit exactly one of what it may be"));
        }

        match rules.get("not") {
            Some(schema) if fits(schema) => Err(format!("{at}: is what it must not be")),
            Some(_) | None => Ok(()),
        }
    }
}

fn kind(rules: &Map<String, Value>, value: &Value, at: &str) -> Checked {
    let is = |kind: &Value| match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some(_) | None => false,
    };

    let fits = match rules.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(is),
        Some(kind) => is(kind),
    };

    if !fits {
        return Err(format!("{at}: expected {}", rules["type"]));
    }

    let one_of = rules.get("enum").and_then(Value::as_array);
    if one_of.is_some_and(|all| !all.contains(value)) {
        return Err(format!("{at}: expected one of {}", rules["enum"]));
    }

    match rules.get("const") {
        Some(only) if only != value => Err(format!("{at}: expected {only}")),
        Some(_) | None => Ok(()),
    }
}

fn check_bounds(rules: &Map<String, Value>, value: &Value, at: &str) -> Checked {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a length that is no longer exact is beyond any bound"
    )]
    let count = |count: usize| count as f64;
    let (size, keys) = match value {
        Value::Number(number) => (number.as_f64(), ["minimum", "maximum"]),
        Value::String(text) => (Some(count(text.chars().count())), ["minLength", "maxLength"]),
        Value::Array(items) => (Some(count(items.len())), ["minItems", "maxItems"]),
        Value::Null | Value::Bool(_) | Value::Object(_) => return Ok(()),
    };

    let [least, most] = keys.map(|key| rules.get(key).and_then(Value::as_f64));
    let size = size.unwrap_or_default();
    if let Some(least) = least.filter(|least| size < *least) {
        return Err(format!("{at}: {} {least}, found {size}", keys[0]));
    }

    match most.filter(|most| size > *most) {
        Some(most) => Err(format!("{at}: {} {most}, found {size}", keys[1])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn misfits_are_told_by_their_place() {
        let schema = json!({
            "type": "object", "required": ["path"], "additionalProperties": false,
            "properties": {
                "path": {"type": "string", "minLength": 1, "maxLength": 3},
                "depth": {"$ref": "#/$defs/depth"},
                "kinds": {"type": "array", "items": {"enum": ["file", "folder"]}, "maxItems": 2},
                "when": {"anyOf": [{"type": "null"}, {"type": "integer"}]}
            },
            "$defs": {"depth": {"type": "integer", "minimum": 1}}
        });

        let check = |arguments: Value, expected: Option<&str>| {
            let told = find_misfit(&schema, &arguments);
            match expected {
                None => assert_eq!(told, None, "{arguments}"),
                Some(part) => assert!(
                    told.as_deref().is_some_and(|told| told.contains(part)),
                    "{arguments}: {told:?}"
                ),
            }
        };

        check(
            json!({"path": "äöü", "depth": 2.0, "kinds": ["file"], "when": null}),
            None,
        );
        check(json!([]), Some("arguments: expected \"object\""));
        check(json!({}), Some("arguments.path: is missing"));
        check(json!({"path": 1}), Some("arguments.path: expected \"string\""));
        check(json!({"path": ""}), Some("minLength"));
        check(json!({"path": "long"}), Some("maxLength"));
        check(json!({"path": "a", "depth": 0}), Some("arguments.depth: minimum 1"));

        check(json!({"path": "a", "depth": 1.5}), Some("integer"));
        check(json!({"path": "a", "kinds": ["file", "x"]}), Some("arguments.kinds[1]"));
        check(
            json!({"path": "a", "kinds": ["file", "file", "file"]}),
            Some("maxItems"),
        );
        check(json!({"path": "a", "when": "now"}), Some("arguments.when"));
        check(
            json!({"path": "a", "other": 1}),
            Some("arguments.other: is not allowed"),
        );
    }

    #[test]
    fn a_schema_elsewhere_or_without_end_lets_nothing_pass() {
        for reference in ["file:///etc/passwd", "http://127.0.0.1:1/x", "#/nowhere", "#"] {
            assert!(
                find_misfit(&json!({"$ref": reference}), &json!({})).is_some(),
                "{reference}"
            );
        }
    }

    #[test]
    fn one_all_and_not_are_heeded() {
        let schema = json!({"oneOf": [{"type": "integer"}, {"type": "number"}], "not": {"const": 7}});
        assert!(find_misfit(&schema, &json!(1)).is_some(), "both fit");
        assert_eq!(find_misfit(&schema, &json!(1.5)), None);
        let schema = json!({"allOf": [{"minimum": 1}, {"maximum": 3}], "not": {"const": 2}});
        assert_eq!(find_misfit(&schema, &json!(1)), None);
        assert!(find_misfit(&schema, &json!(2)).is_some() && find_misfit(&schema, &json!(4)).is_some());
    }
}
