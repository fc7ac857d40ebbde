//! Reasons why a message of a session does not become a turn. *Pure.*

use serde::{Deserialize, Serialize};

/// Reason why a message in `DISPATCHES` is consumed without a turn of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// A dispatch or an order with the same id was handed in before.
    Duplicate,
    /// A newer dispatch interrupted the session before this one ran.
    Superseded,
    /// The session was aborted.
    Aborted,
    /// The sender withdrew the message.
    Withdrawn,
    /// The queue was full; a line about it goes into the context of the next turn.
    OverflowSummarized,
    /// The queue was full, and this was the oldest message.
    OverflowOld,
    /// The queue was full, and this was the newest message.
    OverflowNew,
    /// An earlier message on the same subject has its id.
    Repeated,
    /// `DISPATCHES` has lost it, so that its turn could not go on. It is a dead letter; one that comes later is new.
    Lost,
    /// After a restore, the ledger and `DISPATCHES` do not say whether it ran; an operator decides.
    Held,
    /// After a restore, the ledger and `DISPATCHES` do not say whether the order was applied. It is a dead letter.
    OrderInDoubt,
    /// The ledger consumed it before, which the cursor could not tell. One entry names the last of several.
    HandledBefore,
    /// The message cannot be decoded, or is addressed to another session; `detail` says which. It is also a dead
    /// letter.
    Unreadable,
    /// The message answered the question of an approval.
    ApprovalAnswered,
    /// The message reports the end of an approval that no turn waits for.
    ApprovalNotAwaited,
    /// The message names an approval whose state in KV is unchanged.
    ApprovalUnchanged,
    /// The message reports that an agent asked for an approval.
    ApprovalAsked,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 17] = [
        Self::Duplicate,
        Self::Superseded,
        Self::Aborted,
        Self::Withdrawn,
        Self::OverflowSummarized,
        Self::OverflowOld,
        Self::OverflowNew,
        Self::Repeated,
        Self::Lost,
        Self::Held,
        Self::OrderInDoubt,
        Self::HandledBefore,
        Self::Unreadable,
        Self::ApprovalAnswered,
        Self::ApprovalNotAwaited,
        Self::ApprovalUnchanged,
        Self::ApprovalAsked,
    ];

    /// The names of all reasons.
    pub const NAMES: [&'static str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut next = 0;
        while next < names.len() {
            names[next] = Self::ALL[next].name();
            next += 1;
        }
        names
    };

    /// Returns the reason as it is written on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Superseded => "superseded",
            Self::Aborted => "aborted",
            Self::Withdrawn => "withdrawn",
            Self::OverflowSummarized => "overflow_summarized",
            Self::OverflowOld => "overflow_old",
            Self::OverflowNew => "overflow_new",
            Self::Repeated => "repeated",
            Self::Lost => "lost",
            Self::Held => "held",
            Self::OrderInDoubt => "order_in_doubt",
            Self::HandledBefore => "handled_before",
            Self::Unreadable => "unreadable",
            Self::ApprovalAnswered => "approval_answered",
            Self::ApprovalNotAwaited => "approval_not_awaited",
            Self::ApprovalUnchanged => "approval_unchanged",
            Self::ApprovalAsked => "approval_asked",
        }
    }

    /// Returns the reason for people: its name, followed by `detail` if there is one.
    #[must_use]
    pub fn describe(self, detail: Option<&str>) -> String {
        match detail {
            Some(detail) => format!("{}: {detail}", self.name()),
            None => self.name().to_owned(),
        }
    }

    /// Returns whether the next turn reads a note about the dropped message.
    #[must_use]
    pub const fn leaves_a_note(self) -> bool {
        match self {
            Self::Superseded | Self::OverflowSummarized => true,
            Self::Duplicate
            | Self::Aborted
            | Self::Withdrawn
            | Self::OverflowOld
            | Self::OverflowNew
            | Self::Repeated
            | Self::Lost
            | Self::Held
            | Self::OrderInDoubt
            | Self::HandledBefore
            | Self::Unreadable
            | Self::ApprovalAnswered
            | Self::ApprovalNotAwaited
            | Self::ApprovalUnchanged
            | Self::ApprovalAsked => false,
        }
    }

    /// Returns whether the session is done with the dispatch. The end of a copy says nothing about the dispatch, which may
    /// still wait or run.
    #[must_use]
    pub const fn consumes(self) -> bool {
        match self {
            Self::Duplicate | Self::Repeated | Self::Lost => false,
            Self::Superseded
            | Self::Aborted
            | Self::Withdrawn
            | Self::OverflowSummarized
            | Self::OverflowOld
            | Self::OverflowNew
            | Self::Held
            | Self::OrderInDoubt
            | Self::HandledBefore
            | Self::Unreadable
            | Self::ApprovalAnswered
            | Self::ApprovalNotAwaited
            | Self::ApprovalUnchanged
            | Self::ApprovalAsked => true,
        }
    }

    /// Returns whether another entry tells the outcome of the dispatch: that of its turn, or of its first message.
    #[must_use]
    pub const fn has_another_end(self) -> bool {
        match self {
            Self::Duplicate | Self::Repeated | Self::Lost | Self::HandledBefore => true,
            Self::Superseded
            | Self::Aborted
            | Self::Withdrawn
            | Self::OverflowSummarized
            | Self::OverflowOld
            | Self::OverflowNew
            | Self::Held
            | Self::OrderInDoubt
            | Self::Unreadable
            | Self::ApprovalAnswered
            | Self::ApprovalNotAwaited
            | Self::ApprovalUnchanged
            | Self::ApprovalAsked => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_name_on_the_wire_and_in_text() {
        for reason in DropReason::ALL {
            assert_eq!(serde_json::to_value(reason).expect("JSON"), reason.name());
        }
        // The error of an unknown name lists all that serde knows.
        let unknown = serde_json::from_str::<DropReason>(r#""x""#)
            .expect_err("no reason")
            .to_string();
        assert_eq!(unknown.matches('`').count() / 2 - 1, DropReason::ALL.len(), "{unknown}");

        // A reason that consumes a dispatch is its end, unless the ledger has another one as well.
        assert!(!DropReason::Duplicate.consumes() && !DropReason::Repeated.consumes() && !DropReason::Lost.consumes());
        assert!(DropReason::HandledBefore.consumes() && DropReason::HandledBefore.has_another_end());
        assert!(DropReason::Held.consumes() && !DropReason::Held.has_another_end());

        assert_eq!(
            DropReason::Unreadable.describe(Some("not CBOR")),
            "unreadable: not CBOR"
        );
    }
}
