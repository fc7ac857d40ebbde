//! Whose queue settings hold for a dispatch, and what a merged turn may do. *Pure.*
//!
//! Source: `docs/design/sessions.md` §2: the dispatch (its hook's result) > the session's own > the channel's > the
//! persona's > the global ones.

use std::collections::BTreeMap;

use shared::model::dispatch::Dispatch;
use shared::model::identity::PermissionPresets;
use shared::model::permission::PermissionSet;
use shared::model::permission::combine::narrows;
use shared::model::session::{Overflow, QueueMode, QueueSettings};

/// How long after the last arrival a `collect` turn begins where nobody says so, milliseconds.
pub const DEBOUNCE_MS: u64 = 1_000;
/// Dispatches that may wait behind a running turn where nobody says so.
pub const CAP: u32 = 20;

/// Settings in force for one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How it meets a busy session.
    pub mode: QueueMode,
    /// How long after the last arrival a `collect` turn begins, milliseconds.
    pub debounce_ms: u64,
    /// Dispatches that may wait behind a running turn; at least 1.
    pub cap: usize,
    /// What becomes of those beyond.
    pub overflow: Overflow,
}

/// What holds for every session of a persona.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policy {
    /// For all channels, the persona's before the global ones.
    pub common: QueueSettings,
    /// By channel.
    pub channels: BTreeMap<String, QueueSettings>,
    /// Presets of tools by level.
    pub presets: PermissionPresets,
}

impl Policy {
    /// What holds for `dispatch` in a session with its `own` settings.
    #[must_use]
    pub fn rules(&self, own: QueueSettings, dispatch: &Dispatch) -> Rules {
        let said = QueueSettings {
            mode: dispatch.queue_mode,
            ..QueueSettings::default()
        };
        let channel = self.channels.get(&dispatch.delivery_context.channel);
        let settings = said.or(own).or(channel.copied().unwrap_or_default()).or(self.common);

        Rules {
            mode: settings.mode.unwrap_or_default(),
            debounce_ms: settings.debounce_ms.unwrap_or(DEBOUNCE_MS),
            cap: settings.cap.unwrap_or(CAP).max(1) as usize,
            overflow: settings.overflow.unwrap_or_default(),
        }
    }

    /// Whether a message that may do what `message` says may be put into a turn that may do what `turn` says: only
    /// where it narrows nothing, because the turn's permissions stand in the ledger.
    #[must_use]
    pub fn may_join(&self, turn: &PermissionSet, message: &PermissionSet) -> bool {
        turn == message || !narrows(turn, message, &self.presets)
    }
}

#[cfg(test)]
mod tests {
    use shared::model::permission::{Level, ToolRules};

    use super::*;
    use crate::sample::dispatch;

    const fn mode(mode: QueueMode) -> QueueSettings {
        QueueSettings {
            mode: Some(mode),
            debounce_ms: None,
            cap: None,
            overflow: None,
        }
    }

    #[test]
    fn the_narrower_settings_win_key_by_key() {
        let mut policy = Policy::default();
        let mut one = dispatch(1, "a", 50);
        let (none, global) = (
            QueueSettings::default(),
            Policy::default().rules(QueueSettings::default(), &one),
        );

        assert_eq!(
            (global.mode, global.debounce_ms, global.cap, global.overflow),
            (QueueMode::Followup, 1_000, 20, Overflow::Summarize)
        );

        policy.common = QueueSettings {
            cap: Some(3),
            ..mode(QueueMode::Collect)
        };
        assert_eq!(policy.rules(none, &one).mode, QueueMode::Collect);

        policy.channels.insert("webchat".to_owned(), mode(QueueMode::Steer));
        assert_eq!(policy.rules(none, &one).mode, QueueMode::Steer);
        assert_eq!(
            policy.rules(mode(QueueMode::Interrupt), &one).mode,
            QueueMode::Interrupt
        );

        one.queue_mode = Some(QueueMode::Followup);
        let rules = policy.rules(mode(QueueMode::Interrupt), &one);
        assert_eq!((rules.mode, rules.cap), (QueueMode::Followup, 3));
    }

    #[test]
    fn a_stranger_does_not_join_the_owners_turn_and_the_owner_joins_a_strangers() {
        let policy = Policy::default();
        let at = |level| PermissionSet {
            level,
            ..PermissionSet::default()
        };

        assert!(policy.may_join(&at(Level::Minimal), &at(Level::Full)));
        assert!(!policy.may_join(&at(Level::Full), &at(Level::Minimal)));

        let careful = PermissionSet {
            tools: Some(ToolRules {
                allow: None,
                deny: vec!["shell".to_owned()],
            }),
            ..at(Level::Full)
        };

        assert!(!policy.may_join(&at(Level::Full), &careful));
        assert!(policy.may_join(&careful, &careful));
    }
}
