//! Rules: conjunctions of predicates, and `@match`, their one-line notation. *Pure.*

use super::facts::{EventFacts, EventField};
use super::pattern::GlobPattern;

/// Most predicates of one rule, and most patterns of one predicate.
const MAX_PREDICATES: usize = 32;
const MAX_PATTERNS: usize = 1_000;

/// A field, and patterns of which one must match one of its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPredicate {
    /// Field that is tested.
    pub field: EventField,
    /// Alternative patterns; never empty.
    pub patterns: Vec<GlobPattern>,
}

/// Predicates that must all hold; the empty rule matches every event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct MatchRule {
    predicates: Vec<FieldPredicate>,
}

/// Reason why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseRuleError {
    /// The text has no pairs.
    #[error("expected at least one `field=value` pair")]
    Empty,
    /// A word is not a pair.
    #[error("`{0}`: expected `field=value[,value…]`")]
    NoPair(String),
    /// The field does not exist.
    #[error(
        "unknown field `{0}`: expected channel, account, source, direction, from, role, kind, peer, parent, guild, team, thread, type, tag, content or metadata.…"
    )]
    UnknownField(String),
    /// The field never has this value.
    #[error("`{field}={value}`: expected {expected}")]
    UnknownValue {
        /// Name of the field.
        field: &'static str,
        /// Value of the pair, as written.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A quoted value does not end.
    #[error("unterminated quoted value")]
    OpenQuote,
    /// The rule has too many pairs or values.
    #[error("expected at most {MAX_PREDICATES} pairs with at most {MAX_PATTERNS} values each")]
    TooLong,
}

impl MatchRule {
    /// Creates a rule of `predicates`.
    #[must_use]
    pub fn new(predicates: impl IntoIterator<Item = FieldPredicate>) -> Self {
        Self {
            predicates: predicates.into_iter().map(normalize_predicate).collect(),
        }
    }

    /// Parses the text of `@match`: pairs `field=value[,value…]` that must all hold. `*` in a value matches any text; a
    /// value with spaces or commas is in double quotes.
    ///
    /// # Errors
    /// Returns [`ParseRuleError`] if the text is invalid.
    pub fn parse(text: &str) -> Result<Self, ParseRuleError> {
        let mut predicates = Vec::new();
        for word in split_words(text, char::is_whitespace)? {
            let (name, wanted) = word
                .split_once('=')
                .filter(|(name, wanted)| !name.is_empty() && !wanted.is_empty())
                .ok_or_else(|| ParseRuleError::NoPair(word.to_owned()))?;
            let field = EventField::parse(name).ok_or_else(|| ParseRuleError::UnknownField(name.to_owned()))?;

            let patterns = split_words(wanted, |c| c == ',')?;
            if patterns.is_empty() {
                return Err(ParseRuleError::NoPair(word.to_owned()));
            }

            let patterns: Vec<GlobPattern> = patterns
                .into_iter()
                .map(|text| GlobPattern::parse(&unquote_text(text)))
                .collect();
            check(&field, &patterns)?;

            predicates.push(FieldPredicate { field, patterns });
        }

        // The bounds limit the work that one hook causes for each event.
        let too_long = |predicate: &FieldPredicate| predicate.patterns.len() > MAX_PATTERNS;
        if predicates.len() > MAX_PREDICATES || predicates.iter().any(too_long) {
            return Err(ParseRuleError::TooLong);
        }

        if predicates.is_empty() {
            return Err(ParseRuleError::Empty);
        }

        Ok(Self::new(predicates))
    }

    /// Returns the predicates of the rule.
    #[must_use]
    pub fn predicates(&self) -> &[FieldPredicate] {
        &self.predicates
    }

    /// Returns whether the rule tests the direction.
    #[must_use]
    pub fn names_direction(&self) -> bool {
        self.predicates
            .iter()
            .any(|predicate| predicate.field == EventField::Direction)
    }

    /// Returns whether the rule tests for `tag`. A pattern that every tag matches names none.
    #[must_use]
    pub fn names_tag(&self, tag: &str) -> bool {
        let mut tested = self
            .predicates
            .iter()
            .filter(|predicate| predicate.field == EventField::Tag);
        tested.any(|predicate| {
            let mut patterns = predicate.patterns.iter();
            patterns.any(|pattern| !pattern.longest_literal().is_empty() && pattern.matches_value(tag))
        })
    }

    pub(super) fn holds_for(&self, facts: &EventFacts<'_>) -> bool {
        let holds = |predicate: &FieldPredicate| {
            facts.any_value(&predicate.field, |value| {
                predicate.patterns.iter().any(|pattern| pattern.matches_value(value))
            })
        };
        self.predicates.iter().all(holds)
    }
}

/// Returns the predicate in normal form: the event's text is compared in lower case.
fn normalize_predicate(predicate: FieldPredicate) -> FieldPredicate {
    let FieldPredicate { field, patterns } = predicate;
    let patterns = if field == EventField::Content {
        patterns.into_iter().map(GlobPattern::lower_case).collect()
    } else {
        patterns
    };
    FieldPredicate { field, patterns }
}

/// Rejects a value that a closed field never has: such a rule would never hold.
fn check(field: &EventField, patterns: &[GlobPattern]) -> Result<(), ParseRuleError> {
    let (name, words): (_, &[&str]) = match field {
        EventField::Direction => (
            "direction",
            &["received", "sent", "observed", "created", "updated", "deleted"],
        ),
        EventField::Kind => ("kind", &["dm", "group", "channel"]),
        EventField::Channel
        | EventField::Account
        | EventField::Source
        | EventField::From
        | EventField::Role
        | EventField::Peer
        | EventField::Parent
        | EventField::Guild
        | EventField::Team
        | EventField::Thread
        | EventField::Type
        | EventField::Tag
        | EventField::Content
        | EventField::Metadata(_) => return Ok(()),
    };

    let is_unknown = |pattern: &&GlobPattern| !words.iter().any(|word| pattern.matches_value(word));
    match patterns.iter().find(is_unknown) {
        None => Ok(()),
        Some(pattern) => Err(ParseRuleError::UnknownValue {
            field: name,
            value: pattern.longest_literal().to_owned(),
            expected: if name == "kind" {
                "dm, group or channel"
            } else {
                "received, sent, observed, created, updated or deleted"
            },
        }),
    }
}

/// Splits `text` at `is_end` outside of quotes; empty pieces are left out.
fn split_words(text: &str, is_end: impl Fn(char) -> bool) -> Result<Vec<&str>, ParseRuleError> {
    let mut quoted = false;
    let pieces = text.split(|c: char| {
        quoted ^= c == '"';
        !quoted && is_end(c)
    });

    let pieces: Vec<&str> = pieces.filter(|piece| !piece.is_empty()).collect();

    if quoted {
        return Err(ParseRuleError::OpenQuote);
    }

    Ok(pieces)
}

fn unquote_text(text: &str) -> String {
    text.replace('"', "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::{Event, EventDirection, EventId};
    use shared::model::time::UnixMillis;

    use super::*;

    fn event() -> Event {
        let id = EventId::parse("imessage:1").expect("valid");
        let mut event = Event::new(id, "imessage", "+15551234567", UnixMillis(1));
        event.from.id = "+15551234567".to_owned();
        event.from.roles = vec!["member".to_owned(), "mod".to_owned()];
        event.content = "Your CODE is 4711, Ann".to_owned();
        event.tags = vec!["urgent".to_owned()];
        event.metadata = json!({"event_type": "charge.succeeded", "payload": {"amount": 12, "items": [{"sku": "a"}]}})
            .as_object()
            .expect("an object")
            .clone();

        event
    }

    fn check(text: &str, holds: bool) {
        let rule = MatchRule::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rule.holds_for(&EventFacts::of_event(&event())), holds, "{text}");
    }

    #[test]
    fn all_pairs_must_hold_and_one_value_of_each() {
        for (text, holds) in [
            ("channel=imessage,sms direction=received from=+1555*", true),
            ("channel=sms", false),
            ("channel=imessage direction=sent", false),
            ("channel=* account=default kind=dm", true),
            ("role=mod tag=urgent type=text", true),
            ("role=admin", false),
            ("content=*code*", true),
            ("content=\"*code is*, ann\"", true),
            ("content=\"*pin is*\",\"*Ann\"", true),
            ("metadata.event_type=charge.*", true),
            ("metadata.payload.amount=12 metadata.payload.items.0.sku=a", true),
            ("metadata.payload.amount=13", false),
            ("metadata.payload=*", false),
            ("guild=*", false),
            ("thread=1", false),
        ] {
            check(text, holds);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, error) in [
            ("", "expected at least one `field=value` pair"),
            ("imessage", "`imessage`: expected `field=value[,value…]`"),
            ("channel=", "`channel=`: expected `field=value[,value…]`"),
            ("chanel=imessage", "unknown field `chanel`: expected channel, account,"),
            ("direction=recieved", "`direction=recieved`: expected received, sent,"),
            ("kind=room", "`kind=room`: expected dm, group or channel"),
            ("content=\"open", "unterminated quoted value"),
            ("metadata..a=1", "unknown field `metadata..a`"),
        ] {
            let found = MatchRule::parse(text).expect_err(text).to_string();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    #[test]
    fn a_rule_says_whether_it_asks_for_a_direction() {
        assert!(MatchRule::parse("direction=updated").expect("a rule").names_direction());
        assert!(!MatchRule::parse("channel=x").expect("a rule").names_direction());
        for (text, names) in [
            ("tag=unpaired,urgent", true),
            ("tag=un*", true),
            ("tag=*", false),
            ("channel=unpaired", false),
        ] {
            assert_eq!(
                MatchRule::parse(text).expect("a rule").names_tag("unpaired"),
                names,
                "{text}"
            );
        }
        let mut changed = event();
        changed.direction = EventDirection::Updated;
        assert!(
            MatchRule::parse("direction=updated")
                .expect("a rule")
                .holds_for(&EventFacts::of_event(&changed))
        );
    }
}
