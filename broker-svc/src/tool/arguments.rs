//! Checks whether arguments fit a tool's JSON Schema. *Pure.*

use serde_json::Value;
use shared::json_schema::JsonSchema;

/// Returns the first reason why `arguments` do not fit `schema`, which a tool has sent; `None` if they fit. Nothing fits
/// a schema that cannot be used.
#[must_use]
pub fn find_misfit(schema: &Value, arguments: &Value) -> Option<String> {
    match JsonSchema::parse_foreign(schema) {
        Ok(schema) => schema.check(arguments).err().map(|mismatch| mismatch.to_string()),
        Err(error) => Some(format!("the schema cannot be used: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_fits_a_schema_that_cannot_be_used() {
        let schema = json!({ "type": "object", "properties": { "n": { "minimum": 1, "x-hint": "small" } } });
        assert_eq!(find_misfit(&schema, &json!({ "n": 1 })), None);
        assert_eq!(
            find_misfit(&schema, &json!({ "n": 0 })).as_deref(),
            Some("/n: the value is less than the minimum of 1")
        );

        for reference in ["file:///etc/passwd", "http://127.0.0.1:1/x", "#/nowhere"] {
            let told = find_misfit(&json!({ "$ref": reference }), &json!({})).expect("it leads elsewhere");
            assert!(told.starts_with("the schema cannot be used"), "{told}");
        }
    }
}
