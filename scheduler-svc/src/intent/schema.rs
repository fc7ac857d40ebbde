//! JSON Schemas of kinds' parameters: the part of the standard that is needed to say what an agent may give. *Pure.*
//!
//! Read: `type` (one name or several), `properties`, `required`, `additionalProperties` (true or false), `items`, `enum`,
//! `const`, `minLength`, `maxLength` (characters), `minimum`, `maximum`, `minItems`, `maxItems`; `title`, `description`,
//! `default`, `examples` and `$schema` say nothing. A schema with any other keyword is refused as a whole: what is not
//! understood is not taken for met. Source: JSON Schema 2020-12, Validation.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Deepest nesting of a schema, in levels.
const MAX_DEPTH: usize = 16;

/// A schema, read.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    types: Vec<Type>,
    properties: BTreeMap<String, Self>,
    required: Vec<String>,
    closed: bool,
    items: Option<Box<Self>>,
    one_of: Option<Vec<Value>>,
    length: (Option<u64>, Option<u64>),
    range: (Option<f64>, Option<f64>),
    count: (Option<u64>, Option<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

/// A place in a value, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// JSON pointer; empty = the whole.
    pub path: String,
    /// What is wrong.
    pub why: String,
}

impl Type {
    fn from_name(name: &Value) -> Result<Self, String> {
        match name.as_str() {
            Some("null") => Ok(Self::Null),
            Some("boolean") => Ok(Self::Boolean),
            Some("integer") => Ok(Self::Integer),
            Some("number") => Ok(Self::Number),
            Some("string") => Ok(Self::String),
            Some("array") => Ok(Self::Array),
            Some("object") => Ok(Self::Object),
            Some(_) | None => Err(format!("type: {name} is none")),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }

    fn matches_value(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }
}

fn read_whole(keyword: &str, value: &Value) -> Result<Option<u64>, String> {
    value
        .as_u64()
        .map(Some)
        .ok_or_else(|| format!("{keyword}: expected a whole number, not negative"))
}

fn read_number(keyword: &str, value: &Value) -> Result<Option<f64>, String> {
    value
        .as_f64()
        .map(Some)
        .ok_or_else(|| format!("{keyword}: expected a number"))
}

impl Schema {
    /// Reads `schema`.
    ///
    /// # Errors
    /// The keyword that is wrong, or not understood.
    pub fn parse(schema: &Value) -> Result<Self, String> {
        Self::parse_at(schema, 0)
    }

    fn parse_at(schema: &Value, depth: usize) -> Result<Self, String> {
        let keywords = schema.as_object().ok_or("a schema is an object")?;
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        let mut read = Self::default();
        for (keyword, value) in keywords {
            read.apply_keyword(keyword, value, depth)?;
        }
        Ok(read)
    }

    fn apply_keyword(&mut self, keyword: &str, value: &Value, depth: usize) -> Result<(), String> {
        match keyword {
            "type" => {
                let names = value.as_array().map_or_else(|| vec![value.clone()], Clone::clone);
                self.types = names.iter().map(Type::from_name).collect::<Result<_, _>>()?;
            }
            "properties" => {
                for (name, schema) in value.as_object().ok_or("properties: expected an object")? {
                    let schema =
                        Self::parse_at(schema, depth + 1).map_err(|why| format!("properties.{name}: {why}"))?;
                    self.properties.insert(name.clone(), schema);
                }
            }
            "required" => {
                let names = value.as_array().ok_or("required: expected a list")?;
                let named = |name: &Value| name.as_str().map(str::to_owned).ok_or("required: expected names");
                self.required = names.iter().map(named).collect::<Result<_, _>>()?;
            }
            "additionalProperties" => {
                self.closed = !value.as_bool().ok_or("additionalProperties: expected true or false")?;
            }
            "items" => {
                let items = Self::parse_at(value, depth + 1).map_err(|why| format!("items: {why}"))?;
                self.items = Some(Box::new(items));
            }
            "enum" => self.one_of = Some(value.as_array().ok_or("enum: expected a list")?.clone()),
            "const" => self.one_of = Some(vec![value.clone()]),
            "minLength" => self.length.0 = read_whole(keyword, value)?,
            "maxLength" => self.length.1 = read_whole(keyword, value)?,
            "minimum" => self.range.0 = read_number(keyword, value)?,
            "maximum" => self.range.1 = read_number(keyword, value)?,
            "minItems" => self.count.0 = read_whole(keyword, value)?,
            "maxItems" => self.count.1 = read_whole(keyword, value)?,
            "title" | "description" | "default" | "examples" | "$schema" => {}
            other => return Err(format!("{other}: this keyword is not understood")),
        }

        Ok(())
    }

    /// Whether `value` fits.
    ///
    /// # Errors
    /// The first place that does not.
    pub fn check(&self, value: &Value) -> Result<(), Misfit> {
        self.check_at(value, "")
    }

    fn check_at(&self, value: &Value, path: &str) -> Result<(), Misfit> {
        let misfit = |why: String| {
            Err(Misfit {
                path: path.to_owned(),
                why,
            })
        };

        if !self.types.is_empty() && !self.types.iter().any(|wanted| wanted.matches_value(value)) {
            let names: Vec<&str> = self.types.iter().map(|wanted| wanted.name()).collect();
            return misfit(format!("expected {}", names.join(" or ")));
        }

        if let Some(values) = &self.one_of
            && !values.contains(value)
        {
            return misfit(format!("expected one of {}", Value::from(values.clone())));
        }

        let within = match value {
            Value::String(text) => {
                out_of_range(self.length, text.chars().count() as u64).map(|why| format!("characters: {why}"))
            }
            Value::Array(items) => out_of_range(self.count, items.len() as u64).map(|why| format!("items: {why}")),
            Value::Number(number) => out_of_range(self.range, number.as_f64().unwrap_or(f64::NAN)),
            Value::Null | Value::Bool(_) | Value::Object(_) => None,
        };

        if let Some(why) = within {
            return misfit(why);
        }

        match value {
            Value::Object(object) => self.check_object(object, path),
            Value::Array(list) => self.check_items(list, path),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn check_object(&self, object: &Map<String, Value>, path: &str) -> Result<(), Misfit> {
        if let Some(name) = self.required.iter().find(|name| !object.contains_key(*name)) {
            return Err(Misfit {
                path: path.to_owned(),
                why: format!("`{name}` is missing"),
            });
        }

        for (name, value) in object {
            let place = || format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
            match self.properties.get(name) {
                Some(schema) => schema.check_at(value, &place())?,
                None if self.closed => {
                    return Err(Misfit {
                        path: place(),
                        why: format!("there is no `{name}`"),
                    });
                }
                None => {}
            }
        }

        Ok(())
    }

    fn check_items(&self, list: &[Value], path: &str) -> Result<(), Misfit> {
        let Some(schema) = &self.items else { return Ok(()) };
        for (index, value) in list.iter().enumerate() {
            schema.check_at(value, &format!("{path}/{index}"))?;
        }
        Ok(())
    }
}

fn out_of_range<T: PartialOrd + Copy + std::fmt::Display>(
    (least, most): (Option<T>, Option<T>),
    found: T,
) -> Option<String> {
    match (least, most) {
        (Some(least), _) if found < least => Some(format!("{found}, at least {least} expected")),
        (_, Some(most)) if found > most => Some(format!("{found}, at most {most} allowed")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_keyword_has_its_say() {
        for (schema, good, bad, path) in [
            (json!({ "type": "string" }), json!("x"), json!(5), ""),
            (json!({ "type": ["string", "null"] }), json!(null), json!([]), ""),
            (
                json!({ "type": "integer", "minimum": 1, "maximum": 3 }),
                json!(3),
                json!(4),
                "",
            ),
            (json!({ "type": "integer" }), json!(2.0), json!(2.5), ""),
            (json!({ "minLength": 2, "maxLength": 3 }), json!("äöü"), json!("ä"), ""),
            (json!({ "enum": ["a", 1] }), json!(1), json!("b"), ""),
            (json!({ "const": true }), json!(true), json!(false), ""),
            (json!({ "required": ["a"] }), json!({ "a": 1 }), json!({}), ""),
            (
                json!({ "properties": { "a/b": { "type": "null" } } }),
                json!({ "c": 1 }),
                json!({ "a/b": 1 }),
                "/a~1b",
            ),
            (
                json!({ "properties": { "a": {} }, "additionalProperties": false }),
                json!({ "a": [1] }),
                json!({ "b": 1 }),
                "/b",
            ),
            (
                json!({ "items": { "type": "boolean" }, "maxItems": 2 }),
                json!([true]),
                json!([true, 1]),
                "/1",
            ),
            (json!({ "minItems": 1 }), json!([0]), json!([]), ""),
        ] {
            let read = Schema::parse(&schema).expect("understood");
            assert_eq!(read.check(&good), Ok(()), "{schema}");
            assert_eq!(read.check(&bad).expect_err("it does not fit").path, path, "{schema}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let mut deep = json!({});
        for _ in 0..20 {
            deep = json!({ "items": deep });
        }

        for schema in [
            json!({ "type": "text" }),
            json!({ "pattern": "x" }),
            json!({ "properties": { "a": { "oneOf": [] } } }),
            json!({ "maxLength": -1 }),
            json!(true),
            deep,
        ] {
            assert!(Schema::parse(&schema).is_err(), "{schema}");
        }
    }
}
