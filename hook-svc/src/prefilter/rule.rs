//! A rule: predicates that must all hold; and `@match`, the way to write one in a line. *Pure.*

use super::facts::{Facts, Field};
use super::pattern::Pattern;

/// Most predicates of one rule, and most patterns of one predicate.
const MAX_PREDICATES: usize = 32;
const MAX_PATTERNS: usize = 1_000;

/// A field, and the patterns of which one must mean one of its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Predicate {
    /// Which field.
    pub field: Field,
    /// Alternatives; never empty.
    pub patterns: Vec<Pattern>,
}

/// Predicates that must all hold; the empty rule means every event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Rule {
    predicates: Vec<Predicate>,
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseRuleError {
    /// Nothing in it.
    #[error("expected at least one `field=value` pair")]
    Empty,
    /// Not a pair.
    #[error("`{0}`: expected `field=value[,value…]`")]
    NoPair(String),
    /// No such field.
    #[error(
        "`{0}` is no field: channel, account, source, direction, from, role, kind, peer, parent, guild, team, thread, type, tag, content or metadata.… is expected"
    )]
    UnknownField(String),
    /// A word that the field never has.
    #[error("`{field}={value}`: expected {expected}")]
    UnknownValue {
        /// Which field.
        field: &'static str,
        /// Its value as written.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A quoted value that does not end.
    #[error("unterminated quoted value")]
    OpenQuote,
    /// Too much of it.
    #[error("expected at most {MAX_PREDICATES} pairs with at most {MAX_PATTERNS} values each")]
    TooLong,
}

impl Rule {
    /// A rule of `predicates`.
    #[must_use]
    pub fn new(predicates: impl IntoIterator<Item = Predicate>) -> Self {
        Self {
            predicates: predicates.into_iter().map(normal).collect(),
        }
    }

    /// Reads `@match`: pairs `field=value[,value…]` that must all hold, `*` in a value standing for anything, a value
    /// with spaces or commas in double quotes.
    ///
    /// # Errors
    /// [`ParseRuleError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, ParseRuleError> {
        let mut predicates = Vec::new();
        for word in words(text, char::is_whitespace)? {
            let (name, wanted) = word
                .split_once('=')
                .filter(|(name, wanted)| !name.is_empty() && !wanted.is_empty())
                .ok_or_else(|| ParseRuleError::NoPair(word.to_owned()))?;
            let field = Field::parse(name).ok_or_else(|| ParseRuleError::UnknownField(name.to_owned()))?;

            let patterns = words(wanted, |c| c == ',')?;
            if patterns.is_empty() {
                return Err(ParseRuleError::NoPair(word.to_owned()));
            }

            let patterns: Vec<Pattern> = patterns
                .into_iter()
                .map(|text| Pattern::parse(&unquoted(text)))
                .collect();
            check(&field, &patterns)?;

            predicates.push(Predicate { field, patterns });
        }

        let too_long = |predicate: &Predicate| predicate.patterns.len() > MAX_PATTERNS;
        if predicates.len() > MAX_PREDICATES || predicates.iter().any(too_long) {
            return Err(ParseRuleError::TooLong);
        }

        if predicates.is_empty() {
            return Err(ParseRuleError::Empty);
        }

        Ok(Self::new(predicates))
    }

    /// Its predicates.
    #[must_use]
    pub fn predicates(&self) -> &[Predicate] {
        &self.predicates
    }

    /// Whether it asks for a direction.
    #[must_use]
    pub fn names_direction(&self) -> bool {
        self.predicates
            .iter()
            .any(|predicate| predicate.field == Field::Direction)
    }

    pub(super) fn holds(&self, facts: &Facts<'_>) -> bool {
        let holds = |predicate: &Predicate| {
            facts.any(&predicate.field, |value| {
                predicate.patterns.iter().any(|pattern| pattern.matches(value))
            })
        };
        self.predicates.iter().all(holds)
    }
}

/// Text is compared without regard to case.
fn normal(predicate: Predicate) -> Predicate {
    let Predicate { field, patterns } = predicate;
    let patterns = if field == Field::Content {
        patterns.into_iter().map(Pattern::lower_case).collect()
    } else {
        patterns
    };
    Predicate { field, patterns }
}

/// A word that a closed field never has is a mistake, not a rule that never holds.
fn check(field: &Field, patterns: &[Pattern]) -> Result<(), ParseRuleError> {
    let (name, words): (_, &[&str]) = match field {
        Field::Direction => (
            "direction",
            &["received", "sent", "observed", "created", "updated", "deleted"],
        ),
        Field::Kind => ("kind", &["dm", "group", "channel"]),
        Field::Channel
        | Field::Account
        | Field::Source
        | Field::From
        | Field::Role
        | Field::Peer
        | Field::Parent
        | Field::Guild
        | Field::Team
        | Field::Thread
        | Field::Type
        | Field::Tag
        | Field::Content
        | Field::Metadata(_) => return Ok(()),
    };

    let is_unknown = |pattern: &&Pattern| !words.iter().any(|word| pattern.matches(word));
    match patterns.iter().find(is_unknown) {
        None => Ok(()),
        Some(pattern) => Err(ParseRuleError::UnknownValue {
            field: name,
            value: pattern.literal().to_owned(),
            expected: if name == "kind" {
                "dm, group or channel"
            } else {
                "received, sent, observed, created, updated or deleted"
            },
        }),
    }
}

/// `text` cut at `is_end` outside of quotes; empty pieces are left out.
fn words(text: &str, is_end: impl Fn(char) -> bool) -> Result<Vec<&str>, ParseRuleError> {
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

fn unquoted(text: &str) -> String {
    text.replace('"', "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::{Direction, Event, EventId};
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
        let rule = Rule::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rule.holds(&Facts::of(&event())), holds, "{text}");
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
            ("chanel=imessage", "`chanel` is no field: channel, account,"),
            ("direction=recieved", "`direction=recieved`: received, sent,"),
            ("kind=room", "`kind=room`: expected dm, group or channel"),
            ("content=\"open", "unterminated quoted value"),
            ("metadata..a=1", "`metadata..a` is no field"),
        ] {
            let found = Rule::parse(text).expect_err(text).to_string();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    #[test]
    fn a_rule_says_whether_it_asks_for_a_direction() {
        assert!(Rule::parse("direction=updated").expect("a rule").names_direction());
        assert!(!Rule::parse("channel=x").expect("a rule").names_direction());
        let mut changed = event();
        changed.direction = Direction::Updated;
        assert!(
            Rule::parse("direction=updated")
                .expect("a rule")
                .holds(&Facts::of(&changed))
        );
    }
}
