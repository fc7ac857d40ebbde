//! Codes of records in an operator's words. JSON output keeps the codes. *Pure.*

use std::borrow::Cow;

use shared::projection::api::TraceStage;

/// Codes of hook outcomes and dropped dispatches whose own words do not say enough.
const WORDS: [(&str, &str); 17] = [
    ("too_many_hops", "the event has too many hops"),
    ("one_shot_already_fired", "the one-shot hook fired before"),
    ("hook_disabled", "hook is disabled"),
    ("hook_replaced", "hook was replaced"),
    ("breaker_open", "hook is paused"),
    ("deferred_too_long", "not called in time"),
    ("decided_before", "the hook passed before"),
    ("routed_by_another", "another hook routed the event"),
    ("superseded", "replaced by a newer message"),
    (
        "overflow_summarized",
        "too many queued messages; the oldest was dropped, with a note",
    ),
    ("overflow_old", "too many queued messages; the oldest was dropped"),
    ("overflow_new", "too many queued messages; the newest was dropped"),
    ("order_in_doubt", "the order may have been applied before"),
    ("approval_answered", "it answered an approval"),
    ("approval_not_awaited", "no turn waits for its approval"),
    ("approval_unchanged", "its approval did not change"),
    ("approval_asked", "an agent asked for an approval"),
];

/// Returns the words for `code`; another text is returned as it is.
#[must_use]
pub fn explain_code(code: &str) -> Cow<'_, str> {
    let known = WORDS.iter().find(|(known, _)| *known == code);
    let is_code = code.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    match known {
        Some((_, words)) => Cow::Borrowed(words),
        None if is_code => Cow::Owned(code.replace('_', " ")),
        None => Cow::Borrowed(code),
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
        TraceStage::Hook | TraceStage::Turn => detail
            .split_once(": ")
            .map(|(outcome, code)| format!("{outcome}: {}", explain_code(code))),
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
            assert!(WORDS.iter().any(|(_, known)| *known == words), "{code}: {words}");
        }

        // A code without words of its own, and a text that is no code.
        assert_eq!(explain_code("handled_before"), "handled before");
        assert_eq!(explain_code("no channel `a_b`"), "no channel `a_b`");
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
