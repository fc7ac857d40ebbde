//! Reminders: text that is added to the conversation when its trigger is due. *Pure.*
//!
//! Source: seed 004 §2; `docs/design/sessions.md` §7.6. A turn is counted in model calls: 0 before the first was
//! answered.

use serde_json::{Map, Value};

use super::fault::FieldReader;

/// Default number of calls in a row that must have failed for `on_repeated_failure`.
const REPEATED: u32 = 2;

/// A text, and the trigger that adds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnReminder {
    /// Text that is added to the conversation.
    pub text: String,
    /// Trigger that decides when the text is added.
    pub trigger: ReminderTrigger,
}

/// When a reminder is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReminderTrigger {
    /// Before every model call.
    Always,
    /// Every so many model calls, not before the first.
    Interval(u32),
    /// The first time in a session.
    Once,
    /// The first time in a session that so many model calls were answered.
    OnceAfter(u32),
    /// When this many model calls are left of the turn's limit.
    TurnsBeforeMax(u32),
    /// After a tool call that failed.
    OnFailure,
    /// After this many failed tool calls in a row.
    OnRepeatedFailure(u32),
}

/// Progress of a turn, by which a trigger is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReminderProgress {
    /// Number of model calls answered in this turn.
    pub turn: u32,
    /// Maximum number of model calls of the turn.
    pub max: u32,
    /// Number of failed tool calls in a row, the newest among them.
    pub failures: u32,
    /// Whether this reminder was given in this session before.
    pub reminded: bool,
}

impl ReminderTrigger {
    /// Reads `trigger:`, which is `always` if absent: a word, or a word with its number.
    pub(super) fn from_declaration(trigger: Option<Value>, fields: &mut FieldReader<'_>) -> Option<Self> {
        let (word, number) = match trigger {
            None => return Some(Self::Always),
            Some(Value::String(word)) => (word, None),
            Some(Value::Object(map)) if map.len() == 1 => single_entry(map)?,
            Some(_) => (String::new(), None),
        };

        let number = number.map(|number| number.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0));
        match (word.as_str(), number) {
            ("always", None) => Some(Self::Always),
            ("once", None) => Some(Self::Once),
            ("on_failure", None) => Some(Self::OnFailure),
            ("on_repeated_failure", None) => Some(Self::OnRepeatedFailure(REPEATED)),
            ("on_repeated_failure", Some(Some(n))) => Some(Self::OnRepeatedFailure(n)),
            ("interval", Some(Some(n))) => Some(Self::Interval(n)),
            ("once_after", Some(Some(n))) => Some(Self::OnceAfter(n)),
            ("turns_before_max", Some(Some(n))) => Some(Self::TurnsBeforeMax(n)),
            _ => {
                let expected = "expected always, once, on_failure, on_repeated_failure, {interval: N}, {once_after: N}, \
                                {turns_before_max: N} or {on_repeated_failure: N}, N at least 1";
                fields.add_fault("trigger", expected);
                None
            }
        }
    }

    /// Returns whether the trigger is due at `progress`.
    #[must_use]
    pub const fn is_due(self, progress: ReminderProgress) -> bool {
        let ReminderProgress {
            turn,
            max,
            failures,
            reminded,
        } = progress;

        match self {
            Self::Always => true,
            Self::Interval(every) => turn > 0 && turn.is_multiple_of(every),
            Self::Once => !reminded,
            Self::OnceAfter(after) => !reminded && turn >= after,
            Self::TurnsBeforeMax(left) => left <= max && turn == max - left,
            Self::OnFailure => failures > 0,
            Self::OnRepeatedFailure(least) => failures >= least,
        }
    }

    /// Returns whether it matters that the reminder was given before.
    #[must_use]
    pub const fn is_once(self) -> bool {
        matches!(self, Self::Once | Self::OnceAfter(_))
    }
}

fn single_entry(map: Map<String, Value>) -> Option<(String, Option<Value>)> {
    map.into_iter().next().map(|(word, number)| (word, Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(trigger: ReminderTrigger, progress: ReminderProgress, due: bool) {
        assert_eq!(trigger.is_due(progress), due, "{trigger:?} at {progress:?}");
    }

    fn at(turn: u32) -> ReminderProgress {
        ReminderProgress {
            turn,
            max: 10,
            ..ReminderProgress::default()
        }
    }

    #[test]
    fn the_trigger_table() {
        for turn in 0..=30 {
            check(ReminderTrigger::Always, at(turn), true);
            check(ReminderTrigger::Interval(10), at(turn), [10, 20, 30].contains(&turn));
            check(ReminderTrigger::TurnsBeforeMax(3), at(turn), turn == 7);
            check(ReminderTrigger::Once, at(turn), true);
            check(ReminderTrigger::OnceAfter(5), at(turn), turn >= 5);
        }

        let reminded = ReminderProgress {
            reminded: true,
            ..at(6)
        };
        check(ReminderTrigger::Once, reminded, false);
        check(ReminderTrigger::OnceAfter(5), reminded, false);
        check(ReminderTrigger::Always, reminded, true);
        check(ReminderTrigger::TurnsBeforeMax(11), at(0), false);

        let failed = |failures| ReminderProgress { failures, ..at(2) };
        check(ReminderTrigger::OnFailure, failed(0), false);
        check(ReminderTrigger::OnFailure, failed(1), true);
        check(ReminderTrigger::OnRepeatedFailure(3), failed(2), false);
        check(ReminderTrigger::OnRepeatedFailure(3), failed(3), true);
    }
}
