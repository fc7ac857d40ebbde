//! The hook points of a turn, by their names. *Pure.* Source: `docs/design/sessions.md` §7.

/// A place in a turn at which hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookPoint {
    /// Before the first model call of a session, also after a reset of its history.
    PreSession,
    /// Before waiting messages are taken into the turn.
    PreQueueDrain,
    /// After waiting messages were taken into the turn.
    PostQueueDrain,
    /// Before a model call.
    PreStream,
    /// After a model call, before its answer counts.
    PostStream,
    /// Before the first tool call that a model's answer asks for.
    PreTool,
    /// Before each tool call.
    PreToolUse,
    /// After each tool call, before the model reads its result.
    PostToolUse,
    /// After the last tool call that a model's answer asked for.
    PostTool,
    /// After the turn, with any ending.
    PostSession,
}

impl HookPoint {
    /// All points, in the order in which a turn reaches them.
    pub const ALL: [Self; 10] = [
        Self::PreSession,
        Self::PreQueueDrain,
        Self::PostQueueDrain,
        Self::PreStream,
        Self::PostStream,
        Self::PreTool,
        Self::PreToolUse,
        Self::PostToolUse,
        Self::PostTool,
        Self::PostSession,
    ];

    /// Returns the name in the ledger, `AUDIT` and `hooks.yaml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PreSession => "pre_session",
            Self::PreQueueDrain => "pre_queue_drain",
            Self::PostQueueDrain => "post_queue_drain",
            Self::PreStream => "pre_stream",
            Self::PostStream => "post_stream",
            Self::PreTool => "pre_tool",
            Self::PreToolUse => "PreToolUse",
            Self::PostToolUse => "PostToolUse",
            Self::PostTool => "post_tool",
            Self::PostSession => "post_session",
        }
    }

    /// Returns the name that existing hook scripts read (`hook_event_name`).
    #[must_use]
    pub const fn event_name(self) -> &'static str {
        match self {
            Self::PreSession => "SessionStart",
            Self::PreStream => "BeforeModel",
            Self::PostStream => "AfterModel",
            Self::PostSession => "Stop",
            Self::PreQueueDrain
            | Self::PostQueueDrain
            | Self::PreTool
            | Self::PreToolUse
            | Self::PostToolUse
            | Self::PostTool => self.name(),
        }
    }

    /// Returns the point with either name `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|point| point.name() == name || point.event_name() == name)
    }

    /// Returns whether a hook can refuse the next step here.
    #[must_use]
    pub const fn is_gate(self) -> bool {
        match self {
            Self::PreStream | Self::PostStream | Self::PreToolUse => true,
            Self::PreSession
            | Self::PreQueueDrain
            | Self::PostQueueDrain
            | Self::PreTool
            | Self::PostToolUse
            | Self::PostTool
            | Self::PostSession => false,
        }
    }

    /// Returns whether a hook can add text to the conversation here. Between a model's calls and their results it
    /// cannot: every provider requires the results directly after the calls.
    #[must_use]
    pub const fn allows_injection(self) -> bool {
        match self {
            Self::PreSession | Self::PreQueueDrain | Self::PostQueueDrain | Self::PreStream | Self::PostTool => true,
            Self::PostStream | Self::PreTool | Self::PreToolUse | Self::PostToolUse | Self::PostSession => false,
        }
    }

    /// Returns whether the point belongs to one tool call.
    #[must_use]
    pub const fn is_of_a_call(self) -> bool {
        matches!(self, Self::PreToolUse | Self::PostToolUse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_a_point_name_it() {
        for point in HookPoint::ALL {
            assert_eq!(HookPoint::from_name(point.name()), Some(point));
            assert_eq!(HookPoint::from_name(point.event_name()), Some(point));
        }
        assert_eq!(HookPoint::from_name("Stop"), Some(HookPoint::PostSession));
        assert_eq!(HookPoint::from_name("pretooluse"), None);
    }
}
