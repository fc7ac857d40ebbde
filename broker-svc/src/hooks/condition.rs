//! Conditions on a call's arguments under which a hook runs. *Pure.*

use serde::Deserialize;
use serde_json::Value;
use shared::model::permission::glob_matches;

use super::fault::FieldReader;

/// One condition on one argument. If an argument that is compared by size is not a number, the condition holds: a
/// hook that guards amounts must not be avoidable by spelling an amount in another way.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentCondition {
    /// Dotted path of the argument.
    pub argument: String,
    /// Holds if the argument is greater than this.
    #[serde(default)]
    pub above: Option<f64>,
    /// Holds if the argument is less than this.
    #[serde(default)]
    pub below: Option<f64>,
    /// Holds if the argument equals this value.
    #[serde(default)]
    pub equals: Option<Value>,
    /// Holds if the argument as text matches this glob.
    #[serde(default)]
    pub matches: Option<String>,
}

impl ArgumentCondition {
    pub(super) fn read_all(fields: &mut FieldReader<'_>) -> Vec<Self> {
        let conditions: Vec<Self> = fields.take("when").unwrap_or_default();
        for (index, condition) in conditions.iter().enumerate() {
            let said = [
                condition.above.is_some(),
                condition.below.is_some(),
                condition.equals.is_some(),
                condition.matches.is_some(),
            ];

            if !said.contains(&true) {
                fields.add_fault(&format!("when[{index}]"), "expected above, below, equals or matches");
            }
        }

        conditions
    }

    /// Returns whether the condition holds for `arguments`.
    #[must_use]
    pub fn holds_for(&self, arguments: &Value) -> bool {
        let mut found = Some(arguments);
        for part in self.argument.split('.') {
            found = found.and_then(|value| match value {
                Value::Array(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                    value.get(part)
                }
            });
        }

        let size = found.and_then(as_number);
        // A value that is no number satisfies a bound: another spelling must not avoid the hook.
        let above = self.above.is_none_or(|least| size.is_none_or(|size| size > least));
        let below = self.below.is_none_or(|most| size.is_none_or(|size| size < most));
        let equals = self.equals.as_ref().is_none_or(|value| found == Some(value));
        let text = || match found {
            None => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(value) => Some(value.to_string()),
        };

        let matches = self.matches.as_ref();
        above
            && below
            && equals
            && matches.is_none_or(|pattern| text().is_some_and(|text| glob_matches(pattern, &text)))
    }
}

/// Returns the number in `value`, also if it is written as text.
fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| !number.is_nan()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(condition: Value, arguments: &Value, holds: bool) {
        let condition: ArgumentCondition = serde_json::from_value(condition).expect("a condition");
        assert_eq!(condition.holds_for(arguments), holds, "{condition:?} of {arguments}");
    }

    #[test]
    fn an_amount_is_compared_however_it_is_written() {
        let above = || json!({"argument": "order.amount", "above": 50_000});
        check(above(), &json!({"order": {"amount": 50_000}}), false);
        check(above(), &json!({"order": {"amount": 50_000.01}}), true);
        check(above(), &json!({"order": {"amount": "60000"}}), true);
        check(above(), &json!({"order": {"amount": "6e4 yen"}}), true);
        check(above(), &json!({"amount": 1}), true);
        check(json!({"argument": "n", "above": 1, "below": 3}), &json!({"n": 2}), true);
        check(
            json!({"argument": "n", "above": 1, "below": 3}),
            &json!({"n": 3}),
            false,
        );
    }

    #[test]
    fn text_is_matched_and_values_are_equal() {
        check(
            json!({"argument": "to.0", "matches": "*@example.org"}),
            &json!({"to": ["a@example.org"]}),
            true,
        );
        check(json!({"argument": "to", "matches": "*"}), &json!({}), false);
        check(
            json!({"argument": "mode", "equals": "write"}),
            &json!({"mode": "write"}),
            true,
        );

        check(
            json!({"argument": "mode", "equals": "write"}),
            &json!({"mode": "read"}),
            false,
        );
    }
}
