//! The queue settings that apply to a dispatch, and the permissions of a merged turn. *Pure.*
//!
//! Source: `docs/design/sessions.md` §2: the dispatch (its hook's result) > the session's own > the channel's > the
//! persona's > the global ones.

use std::collections::BTreeMap;

use shared::model::dispatch::Dispatch;
use shared::model::permission::combine::narrows_permissions;
use shared::model::permission::{PermissionPresets, PermissionSet};
use shared::model::session::{OverflowPolicy, QueueMode, QueueSettings};

/// Default delay of a `collect` turn after the last arrival, milliseconds.
pub const DEBOUNCE_MS: u64 = 1_000;
/// Default number of dispatches that may wait behind a running turn.
pub const CAP: u32 = 20;

/// Queue settings in force for one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchSettings {
    /// Behavior of the dispatch if the session is busy.
    pub mode: QueueMode,
    /// Delay of a `collect` turn after the last arrival, milliseconds.
    pub debounce_ms: u64,
    /// Maximum number of dispatches that wait behind a running turn; at least 1.
    pub cap: usize,
    /// Treatment of dispatches beyond the maximum.
    pub overflow: OverflowPolicy,
}

/// Settings that apply to every session of a persona.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueuePolicy {
    /// Settings for all channels, the persona's before the global ones.
    pub common: QueueSettings,
    /// Settings of single channels, by channel.
    pub channels: BTreeMap<String, QueueSettings>,
    /// Presets of tools by permission level.
    pub presets: PermissionPresets,
}

impl QueuePolicy {
    /// Returns the settings for `dispatch` in a session with its `own` settings.
    #[must_use]
    pub fn rules_for(&self, own: QueueSettings, dispatch: &Dispatch) -> DispatchSettings {
        let said = QueueSettings {
            mode: dispatch.queue_mode,
            ..QueueSettings::default()
        };
        let channel = self.channels.get(&dispatch.delivery_context.channel);
        let settings = said.or(own).or(channel.copied().unwrap_or_default()).or(self.common);

        DispatchSettings {
            mode: settings.mode.unwrap_or_default(),
            debounce_ms: settings.debounce_ms.unwrap_or(DEBOUNCE_MS),
            cap: settings.cap.unwrap_or(CAP).max(1) as usize,
            overflow: settings.overflow.unwrap_or_default(),
        }
    }

    /// Returns whether a message with the permissions `message` may be put into a turn with the permissions `turn`:
    /// only if that narrows nothing, because the turn's permissions are in the ledger.
    #[must_use]
    pub fn may_join(&self, turn: &PermissionSet, message: &PermissionSet) -> bool {
        turn == message || !narrows_permissions(turn, message, &self.presets)
    }
}

#[cfg(test)]
mod tests {
    use shared::model::permission::{PermissionLevel, ToolRules};

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
        let mut policy = QueuePolicy::default();
        let mut one = dispatch(1, "a", 50);
        let (none, global) = (
            QueueSettings::default(),
            QueuePolicy::default().rules_for(QueueSettings::default(), &one),
        );

        assert_eq!(
            (global.mode, global.debounce_ms, global.cap, global.overflow),
            (QueueMode::Followup, 1_000, 20, OverflowPolicy::Summarize)
        );

        policy.common = QueueSettings {
            cap: Some(3),
            ..mode(QueueMode::Collect)
        };
        assert_eq!(policy.rules_for(none, &one).mode, QueueMode::Collect);

        policy.channels.insert("webchat".to_owned(), mode(QueueMode::Steer));
        assert_eq!(policy.rules_for(none, &one).mode, QueueMode::Steer);
        assert_eq!(
            policy.rules_for(mode(QueueMode::Interrupt), &one).mode,
            QueueMode::Interrupt
        );

        one.queue_mode = Some(QueueMode::Followup);
        let rules = policy.rules_for(mode(QueueMode::Interrupt), &one);
        assert_eq!((rules.mode, rules.cap), (QueueMode::Followup, 3));
    }

    #[test]
    fn a_stranger_does_not_join_the_owners_turn_and_the_owner_joins_a_strangers() {
        let policy = QueuePolicy::default();
        let at = |level| PermissionSet {
            level,
            ..PermissionSet::default()
        };

        assert!(policy.may_join(&at(PermissionLevel::Minimal), &at(PermissionLevel::Full)));
        assert!(!policy.may_join(&at(PermissionLevel::Full), &at(PermissionLevel::Minimal)));

        let careful = PermissionSet {
            tools: Some(ToolRules {
                allow: None,
                deny: vec!["shell".to_owned()],
            }),
            ..at(PermissionLevel::Full)
        };

        assert!(!policy.may_join(&at(PermissionLevel::Full), &careful));
        assert!(policy.may_join(&careful, &careful));
    }
}
