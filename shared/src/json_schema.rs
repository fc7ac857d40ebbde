//! JSON Schemas: the parameters of intents and the arguments of tools are checked by the same code. *Pure.*
//!
//! The crate `jsonschema` compiles a schema and checks values. This module adds the rules that the crate leaves open:
//!
//! - Nothing is fetched: a reference leads to a place in the same schema (`#` or `#/…`), or the schema is refused.
//! - Everything is bounded: the size and the depth of a schema, the memory of its patterns, and the work of one check
//!   (`cost`). Patterns run in time linear in the text, so look-around and back-references are not supported.
//! - A schema of ours ([`JsonSchema::parse_own`]) is refused if it has a keyword that would not be checked, because a
//!   keyword that is not understood must not count as met. A schema of a tool ([`JsonSchema::parse_foreign`]) is not
//!   ours to refuse: such a keyword, `format` and a pattern that is not supported are annotations there.
//!
//! Source: JSON Schema 2020-12, Core and Validation; `docs/adr/0022-json-schema-by-jsonschema.md`.

mod cost;
mod keywords;
mod soundness;
#[cfg(test)]
mod tests;

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::Value;

use keywords::subschemas_mut;
use soundness::{Origin, check_soundness};

/// Maximum size of a schema, in bytes of JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 * 1_024;
/// Maximum number of schemas that are nested within each other.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Maximum memory of one compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1_024 * 1_024;
/// Maximum length of the text of a fault, in characters; a schema may list any number of values.
const MAX_PROBLEM_CHARS: usize = 500;

/// A compiled schema.
#[derive(Debug)]
pub struct JsonSchema {
    validator: Validator,
    /// The schema as it was read, which the cost of a check is estimated from.
    root: Value,
}

/// A schema cannot be used. `at` is the JSON pointer to the place in the schema; empty = the whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSchemaError {
    /// The schema is too large.
    #[error("the schema has {bytes} bytes, at most {MAX_SCHEMA_BYTES} are allowed")]
    Size {
        /// Size of the schema, in bytes of JSON.
        bytes: usize,
    },
    /// The schema is nested too deeply.
    #[error("{}: more than {MAX_SCHEMA_DEPTH} schemas are nested within each other", Place(.at))]
    Depth {
        /// Place in the schema.
        at: String,
    },
    /// A keyword would not be checked.
    #[error("{}: the keyword `{keyword}` is not supported", Place(.at))]
    Keyword {
        /// Place of the schema that has the keyword.
        at: String,
        /// Name of the keyword.
        keyword: String,
    },
    /// A reference leads out of the schema, or nowhere.
    #[error("{}: the reference `{reference}` is not a place in the schema", Place(.at))]
    Reference {
        /// Place of the schema that has the reference.
        at: String,
        /// The reference.
        reference: String,
    },
    /// The schema breaks a rule of JSON Schema.
    #[error("{}: {problem}", Place(.at))]
    Invalid {
        /// Place in the schema.
        at: String,
        /// Broken rule, for people.
        problem: String,
    },
}

/// A value does not fit a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaMismatch {
    /// JSON pointer to the place in the value; empty = the whole.
    pub path: String,
    /// Fault of the value there, for people. The value itself is not quoted.
    pub problem: String,
}

impl std::error::Error for SchemaMismatch {}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}", self.problem),
            path => write!(f, "{path}: {}", self.problem),
        }
    }
}

/// A JSON pointer into a schema, for people.
struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "the schema" } else { self.0 })
    }
}

impl JsonSchema {
    /// Compiles `schema`, which an operator or this project has written, as JSON Schema 2020-12.
    ///
    /// ```
    /// use serde_json::json;
    /// use shared::json_schema::JsonSchema;
    ///
    /// let schema = json!({ "type": "object", "properties": { "size": { "minimum": 1 } } });
    /// let schema = JsonSchema::parse_own(&schema).unwrap();
    /// assert_eq!(schema.check(&json!({ "size": 3 })), Ok(()));
    /// assert_eq!(schema.check(&json!({ "size": 0 })).unwrap_err().path, "/size");
    ///
    /// let error = JsonSchema::parse_own(&json!({ "minimun": 1 })).unwrap_err();
    /// assert_eq!(error.to_string(), "the schema: the keyword `minimun` is not supported");
    /// ```
    ///
    /// # Errors
    /// [`ParseSchemaError`] if the schema exceeds a bound, breaks a rule, or has a keyword that would not be checked.
    pub fn parse_own(schema: &Value) -> Result<Self, ParseSchemaError> {
        check_soundness(schema, Origin::Own)?;
        Self::compile(schema.clone(), Draft::Draft202012)
    }

    /// Compiles `schema`, which a tool has sent, by the version of JSON Schema that it names; 2020-12 if it names none
    /// that is known.
    ///
    /// # Errors
    /// [`ParseSchemaError`] if the schema exceeds a bound, breaks a rule, or refers to a place outside of it.
    pub fn parse_foreign(schema: &Value) -> Result<Self, ParseSchemaError> {
        check_soundness(schema, Origin::Foreign)?;
        let named = Draft::default().detect(schema);
        let draft = if named == Draft::Unknown {
            Draft::default()
        } else {
            named
        };

        Self::compile(schema.clone(), draft).or_else(|error| {
            let mut reduced = schema.clone();
            remove_unsupported_patterns(&mut reduced);
            // If no pattern was at fault, the first error stands.
            if reduced == *schema {
                Err(error)
            } else {
                Self::compile(reduced, draft)
            }
        })
    }

    fn compile(schema: Value, draft: Draft) -> Result<Self, ParseSchemaError> {
        let compiled = options().with_draft(draft).build(&schema);
        let validator = compiled.map_err(|error| ParseSchemaError::Invalid {
            at: error.instance_path().as_str().to_owned(),
            problem: shortened(&error.to_string()),
        })?;

        Ok(Self {
            validator,
            root: schema,
        })
    }

    /// Checks whether `value` fits.
    ///
    /// # Errors
    /// [`SchemaMismatch`] names the first fault that is found, or says that the check would take too long.
    pub fn check(&self, value: &Value) -> Result<(), SchemaMismatch> {
        cost::check_cost(&self.root, value)?;
        self.validator.validate(value).map_err(|error| mismatch(&error))
    }
}

fn options() -> ValidationOptions<'static> {
    let patterns = PatternOptions::regex()
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_BYTES);
    jsonschema::options()
        .offline()
        .should_validate_formats(false)
        .with_pattern_options(patterns)
}

/// Removes each `pattern` that does not compile from `schema` and from the schemas in it.
fn remove_unsupported_patterns(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };

    let pattern = members.get("pattern").filter(|pattern| pattern.is_string());
    let is_unsupported =
        pattern.is_some_and(|pattern| options().build(&serde_json::json!({ "pattern": pattern })).is_err());
    if is_unsupported {
        members.shift_remove("pattern");
    }

    for (keyword, value) in members {
        subschemas_mut(keyword, value)
            .into_iter()
            .for_each(remove_unsupported_patterns);
    }
}

/// Returns the fault that `error` reports, without the value.
fn mismatch(error: &ValidationError<'_>) -> SchemaMismatch {
    let path = error.instance_path().as_str();
    if let ValidationErrorKind::AdditionalProperties { unexpected }
    | ValidationErrorKind::UnevaluatedProperties { unexpected } = error.kind()
        && let Some(name) = unexpected.first()
    {
        return SchemaMismatch {
            path: format!("{path}/{}", escaped(name)),
            problem: "there is no such property".to_owned(),
        };
    }

    let problem = if let ValidationErrorKind::Enum { options } = error.kind() {
        format!("expected one of {options}")
    } else if let ValidationErrorKind::Required { property } = error.kind() {
        format!("{property} is missing")
    } else if let ValidationErrorKind::FalseSchema = error.kind() {
        "no value is allowed here".to_owned()
    } else {
        error.masked_with("the value").to_string()
    };

    SchemaMismatch {
        path: path.to_owned(),
        problem: shortened(&problem),
    }
}

/// Returns `name` as a segment of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn shortened(problem: &str) -> String {
    match problem.char_indices().nth(MAX_PROBLEM_CHARS) {
        Some((end, _)) => format!("{}…", &problem[..end]),
        None => problem.to_owned(),
    }
}
