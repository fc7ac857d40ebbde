//! Codes of records in an operator's words. JSON output keeps the codes. *Pure.*

use std::borrow::Cow;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use shared::model::ledger::DropReason;
use shared::projection::api::TraceStage;

/// Beginning of a step about a message that became no turn; its reason follows.
const NO_TURN: &str = "no turn: ";

/// Codes of hook outcomes, with their meanings.
const HOOK_WORDS: [(&str, &str); 9] = [
    ("too_many_hops", "the event has too many hops"),
    ("too_many_bot_answers", "another bot is answered too often here"),
    ("one_shot_already_fired", "the one-shot hook fired before"),
    ("hook_disabled", "hook is disabled"),
    ("hook_replaced", "hook was replaced"),
    ("breaker_open", "hook is paused"),
    ("deferred_too_long", "not called in time"),
    ("decided_before", "the hook passed before"),
    ("routed_by_another", "another hook routed the event"),
];

/// Returns the words for `code` of a hook's outcome; another text is returned as it is.
#[must_use]
pub fn explain_code(code: &str) -> Cow<'_, str> {
    let known = HOOK_WORDS.iter().find(|(known, _)| *known == code);
    let is_code = code.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    match known {
        Some((_, words)) => Cow::Borrowed(words),
        None if is_code => Cow::Owned(code.replace('_', " ")),
        None => Cow::Borrowed(code),
    }
}

/// Returns the words for the reason why a message became no turn.
const fn drop_words(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Duplicate => "a copy of a message that was queued before",
        DropReason::Superseded => "replaced by a newer message",
        DropReason::Aborted => "the session was aborted",
        DropReason::Withdrawn => "its sender withdrew it",
        DropReason::OverflowSummarized => "too many queued messages; the oldest was dropped, with a note",
        DropReason::OverflowOld => "too many queued messages; the oldest was dropped",
        DropReason::OverflowNew => "too many queued messages; the newest was dropped",
        DropReason::Repeated => "an earlier message has the same id",
        DropReason::Lost => "the stream lost the message; see its dead letter",
        DropReason::Held => "held until an operator decides (`nexus recover`)",
        DropReason::OrderInDoubt => "the order may have been applied before; see its dead letter",
        DropReason::HandledBefore => "the session handled it before a restore or a restart",
        DropReason::Unreadable => "the message cannot be read; see its dead letter",
        DropReason::ApprovalAnswered => "it answered an approval",
        DropReason::ApprovalNotAwaited => "no turn waits for its approval",
        DropReason::ApprovalUnchanged => "its approval did not change",
        DropReason::ApprovalAsked => "an agent asked for an approval",
    }
}

/// Returns the words for `reason`, the name of a [`DropReason`] that a detail may follow; another text is returned as it
/// is.
fn explain_drop(reason: &str) -> Cow<'_, str> {
    let (name, detail) = match reason.split_once(": ") {
        Some((name, detail)) => (name, Some(detail)),
        None => (reason, None),
    };

    let named: Result<DropReason, serde::de::value::Error> = DropReason::deserialize(name.into_deserializer());
    match (named.map(drop_words), detail) {
        (Ok(words), None) => Cow::Borrowed(words),
        (Ok(words), Some(detail)) => Cow::Owned(format!("{words}: {detail}")),
        (Err(_), _) => Cow::Borrowed(reason),
    }
}

/// Returns the detail of a step of a trace with words in place of its code.
///
/// ```
/// use cli::codes::explain_step;
/// use shared::projection::api::TraceStage;
///
/// let words = explain_step(TraceStage::Hook, "skipped: breaker_open");
/// assert_eq!(words, "skipped: hook is paused");
/// ```
#[must_use]
pub fn explain_step(stage: TraceStage, detail: &str) -> String {
    let explained = match stage {
        TraceStage::Hook => detail
            .split_once(": ")
            .map(|(outcome, code)| format!("{outcome}: {}", explain_code(code))),
        TraceStage::Turn => detail
            .strip_prefix(NO_TURN)
            .map(|reason| format!("{NO_TURN}{}", explain_drop(reason))),
        TraceStage::Delivery => detail
            .split_once(' ')
            .map(|(code, rest)| format!("{} {rest}", explain_code(code))),
        TraceStage::Event
        | TraceStage::Dispatch
        | TraceStage::Tool
        | TraceStage::Approval
        | TraceStage::Intent
        | TraceStage::Sent
        | TraceStage::DeadLetter => None,
    };
    explained.unwrap_or_else(|| detail.to_owned())
}

#[cfg(test)]
mod tests {
    use hook_svc::evaluation::record;

    use super::*;

    #[test]
    fn no_reason_of_a_hook_is_shown_as_a_code() {
        let hooks = [
            record::TOO_MANY_HOPS,
            record::TOO_MANY_BOT_ANSWERS,
            record::ONE_SHOT_ALREADY_FIRED,
            record::HOOK_DISABLED,
            record::HOOK_REPLACED,
            record::BREAKER_OPEN,
            record::DEFERRED_TOO_LONG,
            record::DECIDED_BEFORE,
            record::ROUTED_BY_ANOTHER,
        ];
        for code in hooks {
            let words = explain_code(code);
            assert!(HOOK_WORDS.iter().any(|(_, known)| *known == words), "{code}: {words}");
        }

        // A code without words of its own, and a text that is no code.
        assert_eq!(explain_code("not_yet_named"), "not yet named");
        assert_eq!(explain_code("no channel `a_b`"), "no channel `a_b`");
    }

    #[test]
    fn no_reason_of_a_dropped_message_is_shown_as_a_code() {
        for reason in DropReason::ALL {
            let name = reason.name();
            let words = explain_drop(name);
            assert_eq!(words, drop_words(reason), "{name}");
            assert!(words.contains(' ') && !words.contains('_'), "{name}: {words}");

            let detailed = explain_step(
                TraceStage::Turn,
                &format!("{NO_TURN}{}", reason.describe(Some("seq 7"))),
            );
            assert_eq!(detailed, format!("{NO_TURN}{words}: seq 7"));
        }
    }

    #[test]
    fn a_step_without_a_code_is_kept() {
        for (stage, detail, shown) in [
            (
                TraceStage::Hook,
                "failed: timed out after 30000 ms",
                "failed: timed out after 30000 ms",
            ),
            (TraceStage::Hook, "fired: 01J", "fired: 01J"),
            (
                TraceStage::Hook,
                "suppressed: routed_by_another",
                "suppressed: another hook routed the event",
            ),
            (
                TraceStage::Turn,
                "no turn: overflow_new",
                "no turn: too many queued messages; the newest was dropped",
            ),
            (TraceStage::Turn, "completed in session a/b", "completed in session a/b"),
            (
                TraceStage::Turn,
                "failed in session a/b: lost",
                "failed in session a/b: lost",
            ),
            (
                TraceStage::Turn,
                "no turn: held; marked as processed (`recover skip`)",
                "no turn: held; marked as processed (`recover skip`)",
            ),
            (
                TraceStage::Delivery,
                "gave_up on web, attempts 8: gone",
                "gave up on web, attempts 8: gone",
            ),
            (
                TraceStage::Delivery,
                "delivered on web, attempts 1",
                "delivered on web, attempts 1",
            ),
            (TraceStage::Tool, "breaker_open", "breaker_open"),
        ] {
            assert_eq!(explain_step(stage, detail), shown);
        }
    }
}
