//! The work of a check, estimated before it is done. *Pure.*
//!
//! Branches that refer to each other double the work with each level: forty small schemas, or one that refers to itself
//! twice and a value of forty levels, would keep a check busy for years. So the pairs of a schema and a part of the
//! value are counted first, as if each branch were taken. A schema that refers to itself without a step into the value
//! is found by the same walk, as one that is nested without end.

use serde_json::Value;

use super::SchemaMismatch;
use super::keywords::{AppliesTo, applies_to, subschemas};
use super::soundness::resolve;

/// Maximum number of steps of one check; some ten milliseconds.
const MAX_STEPS: usize = 500_000;
/// Maximum number of schemas that are applied within each other: four for each of a value's 128 levels.
const MAX_NESTING: usize = 512;
/// Length of text that takes about as long to match against a pattern as one step, in bytes.
const TEXT_BYTES_A_STEP: usize = 256;

/// Checks that a check of `value` by `schema` ends soon.
///
/// # Errors
/// [`SchemaMismatch`] for the whole value if it does not.
pub(super) fn check_cost(schema: &Value, value: &Value) -> Result<(), SchemaMismatch> {
    let mut walk = Walk { root: schema, steps: 0 };
    walk.apply(schema, value, 0).ok_or_else(|| SchemaMismatch {
        path: String::new(),
        problem: format!(
            "its check would take more than {MAX_STEPS} steps, or more than {MAX_NESTING} within each other"
        ),
    })
}

struct Walk<'a> {
    root: &'a Value,
    steps: usize,
}

impl Walk<'_> {
    /// Counts the steps of applying `schema` to `value`; `None` if a bound is exceeded.
    fn apply(&mut self, schema: &Value, value: &Value, nesting: usize) -> Option<()> {
        self.steps = self.steps.saturating_add(own_steps(schema, value));
        if self.steps > MAX_STEPS || nesting > MAX_NESTING {
            return None;
        }

        let Some(keywords) = schema.as_object() else {
            return Some(());
        };
        if let Some(Value::String(reference)) = keywords.get("$ref") {
            self.apply(resolve(self.root, reference)?, value, nesting + 1)?;
        }

        // To know which parts are not evaluated yet, the schemas beside are applied once more.
        let looks_back = keywords.contains_key("unevaluatedItems") || keywords.contains_key("unevaluatedProperties");
        for _ in 0..=usize::from(looks_back) {
            for (keyword, held) in keywords {
                self.apply_keyword(keyword, held, value, nesting + 1)?;
            }
        }

        Some(())
    }

    fn apply_keyword(&mut self, keyword: &str, held: &Value, value: &Value, nesting: usize) -> Option<()> {
        let part = applies_to(keyword);
        if part == AppliesTo::Nothing {
            return Some(());
        }

        if part == AppliesTo::NamedMember {
            for (name, schema) in held.as_object().into_iter().flatten() {
                if let Some(member) = value.get(name) {
                    self.apply(schema, member, nesting)?;
                }
            }
            return Some(());
        }

        for (_, schema) in subschemas(keyword, held) {
            match part {
                AppliesTo::Nothing | AppliesTo::NamedMember => {}
                AppliesTo::Value => self.apply(schema, value, nesting)?,
                AppliesTo::Members => {
                    for (_, member) in value.as_object().into_iter().flatten() {
                        self.apply(schema, member, nesting)?;
                    }
                }
                AppliesTo::Names => {
                    for (name, _) in value.as_object().into_iter().flatten() {
                        self.apply(schema, &Value::String(name.clone()), nesting)?;
                    }
                }
                AppliesTo::Items => {
                    for item in value.as_array().into_iter().flatten() {
                        self.apply(schema, item, nesting)?;
                    }
                }
            }
        }

        Some(())
    }
}

/// Returns the steps of `schema` itself for `value`, without the schemas in it.
fn own_steps(schema: &Value, value: &Value) -> usize {
    let listed = schema.get("enum").and_then(Value::as_array).map_or(0, Vec::len);
    let matched = match (schema.get("pattern"), value) {
        (Some(_), Value::String(text)) => text.len() / TEXT_BYTES_A_STEP,
        _ => 0,
    };
    1 + listed + matched
}
