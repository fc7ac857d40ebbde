//! The rules for a schema that JSON Schema leaves open: bounds, references, and keywords of schemas of ours. *Pure.*

use jsonschema::Draft;
use serde_json::Value;

use super::keywords::{is_own, subschemas};
use super::{MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, ParseSchemaError};

/// Keywords that lead elsewhere.
const UNSUPPORTED_REFERENCES: [&str; 2] = ["$dynamicRef", "$recursiveRef"];

/// The author of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This project, or an operator.
    Own,
    /// A tool's author.
    Foreign,
}

/// Checks the size of `schema`, and each schema in it by the rules for `origin`.
///
/// # Errors
/// The first rule that `schema` breaks.
pub(super) fn check_soundness(schema: &Value, origin: Origin) -> Result<(), ParseSchemaError> {
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(ParseSchemaError::Size { bytes });
    }

    let walk = Walk { root: schema, origin };
    walk.check(schema, "", 0)
}

struct Walk<'a> {
    root: &'a Value,
    origin: Origin,
}

impl Walk<'_> {
    fn check(&self, schema: &Value, at: &str, depth: usize) -> Result<(), ParseSchemaError> {
        if depth > MAX_SCHEMA_DEPTH {
            return Err(ParseSchemaError::Depth { at: at.to_owned() });
        }

        // The compiler refuses a schema that is neither an object nor a truth value.
        let Some(keywords) = schema.as_object() else {
            return Ok(());
        };
        if let Some(reference) = self.unsupported_reference(schema, depth) {
            return Err(ParseSchemaError::Reference {
                at: at.to_owned(),
                reference: reference.to_owned(),
            });
        }

        let unknown = keywords.keys().find(|keyword| !is_own(keyword));
        if let (Origin::Own, Some(keyword)) = (self.origin, unknown) {
            return Err(ParseSchemaError::Keyword {
                at: at.to_owned(),
                keyword: keyword.clone(),
            });
        }

        for (keyword, value) in keywords {
            for (place, below) in subschemas(keyword, value) {
                self.check(below, &format!("{at}/{keyword}{place}"), depth + 1)?;
            }
        }

        Ok(())
    }

    /// Returns a reference of `schema` that the estimate of a check's cost could not follow.
    fn unsupported_reference<'s>(&self, schema: &'s Value, depth: usize) -> Option<&'s str> {
        let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
        if let Some(elsewhere) = UNSUPPORTED_REFERENCES.into_iter().find_map(text) {
            return Some(elsewhere);
        }

        // At the root an id is only the schema's name; below, it changes the base from which references are
        // resolved. Draft 4 alone calls it `id`, which is a plain annotation otherwise.
        let is_fourth = [self.root, schema]
            .into_iter()
            .any(|schema| Draft::default().detect(schema) == Draft::Draft4);
        let base = text("$id").or_else(|| text("id").filter(|_| is_fourth));
        if depth > 0 && base.is_some() {
            return base;
        }

        text("$ref").filter(|reference| resolve(self.root, reference).is_none())
    }
}

/// Returns the place in `root` that `reference` leads to; `None` if it leads elsewhere or nowhere.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = percent_encoding::percent_decode_str(reference.strip_prefix('#')?);
    root.pointer(&pointer.decode_utf8().ok()?)
}
