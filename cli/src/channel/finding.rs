//! A platform's answer about an account, in plain words.

use serde::Serialize;

/// Something that the platform said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CheckFinding {
    /// Subject of the finding.
    pub(super) what: &'static str,
    /// Whether the account can work as configured.
    pub(super) ok: bool,
    /// Whether the account works, but not in everything.
    pub(super) degraded: bool,
    /// The facts, and the remedy if they are wrong.
    pub(super) detail: String,
}

impl CheckFinding {
    pub(super) fn sound(what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            what,
            ok: true,
            degraded: false,
            detail: detail.into(),
        }
    }

    pub(super) fn partial(what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            what,
            ok: true,
            degraded: true,
            detail: detail.into(),
        }
    }

    pub(super) fn fault(what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            what,
            ok: false,
            degraded: false,
            detail: detail.into(),
        }
    }
}
