//! Declarative rules that an event meets, decided before any script runs: `@match` of hook files and routing bindings.
//! *Pure.*
//!
//! A [`MatchRule`] is a conjunction of predicates, each a field and patterns of which one must match one of its values. An
//! [`RuleIndex`] files every rule under its most selective predicate (an exact value, a prefix, or a substring of the
//! text), so that only the few candidate rules are verified for an event: ten thousand rules cost microseconds per
//! event.
//!
//! Source: `docs/design/hooks.md` §8; `docs/contribute/nats-facts.md` "Bun" (native matching).

mod facts;
mod index;
mod pattern;
mod rule;

pub use self::facts::EventField;
pub(crate) use self::facts::{inner_value, scalar_text};
pub use self::index::RuleIndex;
pub use self::pattern::GlobPattern;
pub use self::rule::{FieldPredicate, MatchRule, ParseRuleError};
