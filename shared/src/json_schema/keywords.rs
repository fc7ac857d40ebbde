//! The keywords of JSON Schema: which hold schemas, and which are allowed in a schema of ours. *Pure.*
//!
//! Source: JSON Schema 2020-12, Core §10 and §11, Validation §6 and §9; earlier versions for `definitions`,
//! `dependencies` and `additionalItems`.

use serde_json::Value;

use super::escaped;

/// The part of a value that the schemas of a keyword apply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AppliesTo {
    /// No part: a reference leads to the schemas.
    Nothing,
    /// The value itself.
    Value,
    /// The member with the name of the schema.
    NamedMember,
    /// Members, at most all.
    Members,
    /// Names of members.
    Names,
    /// Items, at most all.
    Items,
}

/// How a keyword holds schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// One schema, or a list as in versions before 2020-12.
    OneOrList,
    /// One schema under each name.
    Named,
}

/// Keywords that hold schemas.
const APPLICATORS: [(&str, Holds, AppliesTo); 21] = [
    ("$defs", Holds::Named, AppliesTo::Nothing),
    ("additionalItems", Holds::OneOrList, AppliesTo::Items),
    ("additionalProperties", Holds::OneOrList, AppliesTo::Members),
    ("allOf", Holds::OneOrList, AppliesTo::Value),
    ("anyOf", Holds::OneOrList, AppliesTo::Value),
    ("contains", Holds::OneOrList, AppliesTo::Items),
    ("definitions", Holds::Named, AppliesTo::Nothing),
    ("dependencies", Holds::Named, AppliesTo::Value),
    ("dependentSchemas", Holds::Named, AppliesTo::Value),
    ("else", Holds::OneOrList, AppliesTo::Value),
    ("if", Holds::OneOrList, AppliesTo::Value),
    ("items", Holds::OneOrList, AppliesTo::Items),
    ("not", Holds::OneOrList, AppliesTo::Value),
    ("oneOf", Holds::OneOrList, AppliesTo::Value),
    ("patternProperties", Holds::Named, AppliesTo::Members),
    ("prefixItems", Holds::OneOrList, AppliesTo::Items),
    ("properties", Holds::Named, AppliesTo::NamedMember),
    ("propertyNames", Holds::OneOrList, AppliesTo::Names),
    ("then", Holds::OneOrList, AppliesTo::Value),
    ("unevaluatedItems", Holds::OneOrList, AppliesTo::Items),
    ("unevaluatedProperties", Holds::OneOrList, AppliesTo::Members),
];

/// Keywords that a schema of ours may have beside those that hold schemas: checked ones, then annotations.
const OWN: [&str; 30] = [
    "$ref",
    "const",
    "dependentRequired",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "type",
    "uniqueItems",
    "$comment",
    "$schema",
    "default",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords of earlier versions, which 2020-12 does not check.
const FORMER: [&str; 3] = ["additionalItems", "definitions", "dependencies"];

/// Returns whether a schema of ours may have `keyword`.
pub(super) fn is_own(keyword: &str) -> bool {
    OWN.contains(&keyword) || (applicator(keyword).is_some() && !FORMER.contains(&keyword))
}

/// Returns the part of a value that the schemas in `keyword` apply to; [`AppliesTo::Nothing`] if it holds none.
pub(super) fn applies_to(keyword: &str) -> AppliesTo {
    applicator(keyword).map_or(AppliesTo::Nothing, |(_, part)| part)
}

/// Returns the schemas that `keyword` holds with `value`, each with its place below the keyword as a JSON pointer.
pub(super) fn subschemas<'a>(keyword: &str, value: &'a Value) -> Vec<(String, &'a Value)> {
    match applicator(keyword) {
        None => Vec::new(),
        Some((Holds::Named, _)) => {
            let named = value.as_object().into_iter().flatten();
            named
                .map(|(name, schema)| (format!("/{}", escaped(name)), schema))
                .collect()
        }
        Some((Holds::OneOrList, _)) => match value.as_array() {
            Some(list) => list
                .iter()
                .enumerate()
                .map(|(index, schema)| (format!("/{index}"), schema))
                .collect(),
            None => vec![(String::new(), value)],
        },
    }
}

/// As [`subschemas`], to change them.
pub(super) fn subschemas_mut<'a>(keyword: &str, value: &'a mut Value) -> Vec<&'a mut Value> {
    match (applicator(keyword), value) {
        (None, _) => Vec::new(),
        (Some((Holds::Named, _)), Value::Object(named)) => named.values_mut().collect(),
        (Some((Holds::OneOrList, _)), Value::Array(list)) => list.iter_mut().collect(),
        (Some(_), value) => vec![value],
    }
}

fn applicator(keyword: &str) -> Option<(Holds, AppliesTo)> {
    let found = APPLICATORS.iter().find(|(name, _, _)| *name == keyword);
    found.map(|&(_, holds, part)| (holds, part))
}
