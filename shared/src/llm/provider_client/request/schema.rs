//! JSON Schema in the form of providers that enforce it strictly. *Pure.*

use serde_json::{Map, Value};

/// Members whose values are schemas by name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Members whose value is one schema.
const ONE: [&str; 3] = ["items", "additionalProperties", "not"];
/// Members whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Returns `schema` with closed objects. If `all_required`, each property is required too (OpenAI's strict form).
pub(super) fn close_objects(schema: &Value, all_required: bool) -> Value {
    let Value::Object(members) = schema else {
        return schema.clone();
    };
    let mut closed: Map<String, Value> = members
        .iter()
        .map(|(name, value)| (name.clone(), close_member(name, value, all_required)))
        .collect();

    let is_object = closed.get("type").is_some_and(|kind| kind == "object") || closed.contains_key("properties");
    if !is_object {
        return Value::Object(closed);
    }

    closed
        .entry("additionalProperties".to_owned())
        .or_insert(Value::Bool(false));

    if all_required && let Some(Value::Object(properties)) = closed.get("properties") {
        let mut required: Vec<Value> = properties.keys().cloned().map(Value::String).collect();
        if let Some(Value::Array(named)) = closed.get("required") {
            let more: Vec<Value> = named.iter().filter(|name| !required.contains(name)).cloned().collect();
            required.extend(more);
        }
        closed.insert("required".to_owned(), Value::Array(required));
    }

    Value::Object(closed)
}

fn close_member(name: &str, value: &Value, all_required: bool) -> Value {
    let below = |schema: &Value| close_objects(schema, all_required);
    match value {
        Value::Object(schemas) if NAMED.contains(&name) => {
            let schemas = schemas.iter().map(|(name, schema)| (name.clone(), below(schema)));
            Value::Object(schemas.collect())
        }
        Value::Array(schemas) if LISTS.contains(&name) => Value::Array(schemas.iter().map(below).collect()),
        _ if ONE.contains(&name) => below(value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            value.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_closed_at_every_depth_and_required_where_asked() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "default": {"type": "object"}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
            },
            "required": ["name"]
        });

        let closed = close_objects(&schema, false);
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["properties"]["list"]["items"]["additionalProperties"], false);
        assert_eq!(closed["properties"]["name"], schema["properties"]["name"]);
        assert_eq!(closed["required"], json!(["name"]));

        let all = close_objects(&schema, true);
        assert_eq!(all["required"], json!(["name", "list"]));
        assert_eq!(all["properties"]["list"]["items"]["required"], json!(["n"]));

        let open = json!({"type": "object", "additionalProperties": true});
        assert_eq!(close_objects(&open, true), open);
    }
}
