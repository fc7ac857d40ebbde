//! Arguments that arrive value by value, each with its path (Google's `partialArgs`). *Pure.*

use serde_json::{Map, Value};

use super::DecodeFault;
use super::answer_builder::AnswerBuilder;
use super::memory_bounds::{append_piece, value_weight};

/// Maximum number of steps of one path.
const MAX_STEPS: usize = 64;

/// One step into a value.
#[derive(Debug, PartialEq, Eq)]
enum PathStep {
    Member(String),
    Element(usize),
}

/// Pieces of one call.
#[derive(Debug, Default)]
pub(super) struct PartialPieces {
    /// Path of a text that continues.
    open: Option<String>,
}

impl PartialPieces {
    /// Returns whether a text has begun and not ended.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Puts a piece in its place. A call with a piece that has no place is not executed.
    pub(super) fn place_piece(
        &mut self,
        said: &mut AnswerBuilder,
        call: usize,
        piece: &Value,
    ) -> Result<(), DecodeFault> {
        said.count_kept(value_weight(piece))?;
        let path = piece["jsonPath"].as_str().unwrap_or_default();
        let goes_on = self.open.as_deref() == Some(path);
        let Some(call) = said.call(call) else {
            return Ok(());
        };

        let value = ["stringValue", "numberValue", "boolValue"]
            .into_iter()
            .find_map(|key| piece.get(key))
            .cloned()
            .or_else(|| piece.get("nullValue").map(|_| Value::Null));

        if let Some(value) = value {
            // The call is refused and not the answer: other calls of the same answer may be whole.
            match parse_steps(path).and_then(|steps| find_place(call.arguments_mut(), steps)) {
                None => call.refuse_call(format!("a piece of the arguments has no place: `{path}`")),
                Some(Value::String(before)) if goes_on => append_piece(before, value.as_str().unwrap_or_default())?,
                Some(place) => *place = value,
            }
        }

        self.open = (piece["willContinue"] == true).then(|| path.to_owned());
        Ok(())
    }
}

/// Returns the steps of `$.a.b[0]['c']`, or `None` if it is not such a path.
fn parse_steps(path: &str) -> Option<Vec<PathStep>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        // The depth is bounded, because each step makes a level of the value.
        if steps.len() == MAX_STEPS {
            return None;
        }

        if let Some(name) = rest.strip_prefix('.') {
            let end = name.find(['.', '[']).unwrap_or(name.len());
            if end == 0 {
                return None;
            }
            steps.push(PathStep::Member(name[..end].to_owned()));
            rest = &name[end..];

            continue;
        }

        let inner = rest.strip_prefix('[')?;
        let quote = inner.chars().next().filter(|first| matches!(first, '\'' | '"'));
        let (step, after) = match quote {
            Some(quote) => {
                let (name, after) = inner[1..].split_once(quote)?;
                (PathStep::Member(name.to_owned()), after.strip_prefix(']')?)
            }
            None => {
                let (number, after) = inner.split_once(']')?;
                (PathStep::Element(number.parse().ok()?), after)
            }
        };

        steps.push(step);
        rest = after;
    }

    (!steps.is_empty()).then_some(steps)
}

/// Returns the place in `root` to which `steps` lead. Members and next elements are created, gaps are not.
fn find_place(root: &mut Value, steps: Vec<PathStep>) -> Option<&mut Value> {
    steps.into_iter().try_fold(root, |place, step| match step {
        PathStep::Member(name) => {
            if place.is_null() {
                *place = Value::Object(Map::new());
            }
            Some(place.as_object_mut()?.entry(name).or_insert(Value::Null))
        }
        PathStep::Element(index) => {
            if place.is_null() {
                *place = Value::Array(Vec::new());
            }
            let elements = place.as_array_mut()?;
            if index == elements.len() {
                elements.push(Value::Null);
            }

            elements.get_mut(index)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_read_as_it_is_written_and_makes_no_gaps() {
        let member = |name: &str| PathStep::Member(name.to_owned());
        assert_eq!(
            parse_steps("$.a.b[2]['c d'][\"e\"]"),
            Some(vec![
                member("a"),
                member("b"),
                PathStep::Element(2),
                member("c d"),
                member("e")
            ])
        );

        for wrong in ["", "$", "a", "$.", "$..a", "$[x]", "$['a'", "$[1", "$.a[-1]"] {
            assert_eq!(parse_steps(wrong), None, "{wrong}");
        }

        assert_eq!(parse_steps(&format!("${}", ".a".repeat(65))), None);

        let mut root = json!({});
        let mut put = |path: &str, value: Value| {
            let place = find_place(&mut root, parse_steps(path)?)?;
            *place = value;
            Some(())
        };

        assert_eq!(put("$.a.b[0].c", json!(1)), Some(()));
        assert_eq!(put("$.a.b[1]", json!("two")), Some(()));
        assert_eq!(put("$.a.b[50000000]", json!(3)), None);
        assert_eq!(put("$.a.b[1].d", json!(3)), None);
        assert_eq!(root, json!({"a": {"b": [{"c": 1}, "two"]}}));
    }
}
