//! Record of the outcomes of every hook for one event. *Pure.*
//!
//! The record is the event's done-marker, so it must always be storable: texts of scripts are cut, and if it is still
//! too large for one message, [`slim_record`] keeps only the essential parts (outcomes and dispatch ids).

use shared::model::event::EventId;
use shared::model::hook::HookResult;
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome, HookPasses};
use shared::model::time::UnixMillis;

use crate::runner::CallUsage;

/// Reason for a suppressed fire: the event is too deep in its causal chain.
pub const TOO_MANY_HOPS: &str = "too_many_hops";

/// Reason for a suppressed fire: another bot wrote the event, and is answered in its conversation often already.
pub const TOO_MANY_BOT_ANSWERS: &str = "too_many_bot_answers";

/// Reason for a suppressed fire: another event won the one-shot hook.
pub const ONE_SHOT_ALREADY_FIRED: &str = "one_shot_already_fired";

/// Reason for a suppressed fire: the hook was disabled meanwhile.
pub const HOOK_DISABLED: &str = "hook_disabled";

/// Reason for a suppressed fire: the hook was deleted meanwhile, and another may have its name.
pub const HOOK_REPLACED: &str = "hook_replaced";

/// Reason for a skipped hook: its breaker is open.
pub const BREAKER_OPEN: &str = "breaker_open";

/// Reason for a skipped hook: its author had no place for it in time.
pub const DEFERRED_TOO_LONG: &str = "deferred_too_long";

/// Reason for a suppressed fire: the hook had passed before, and others fired because of it.
pub const DECIDED_BEFORE: &str = "decided_before";

/// Reason for a suppressed fire of a `@fallback` hook: another hook routed the event.
pub const ROUTED_BY_ANOTHER: &str = "routed_by_another";

/// Longest error text of a script in a record, in bytes.
const MAX_ERROR_BYTES: usize = 2_048;

/// Longest stack of a script in a record, in bytes.
const MAX_STACK_BYTES: usize = 8_192;

/// Longest error text that [`slim_record`] keeps, in bytes.
const SLIM_ERROR_BYTES: usize = 64;

/// Result of one event's evaluation.
#[derive(Debug, Clone)]
pub struct EvaluationSummary {
    /// Id of the event.
    pub event_id: EventId,
    /// Sequence of the event in `EVENTS`.
    pub event_seq: u64,
    /// Instance id of this replica.
    pub evaluated_by: String,
    /// Time when the evaluation began.
    pub started_at: UnixMillis,
    /// Time when the last hook was done.
    pub finished_at: UnixMillis,
    /// Number of hooks that passed.
    pub passed: u32,
    /// Records of the other hooks.
    pub hooks: Vec<HookInvocation>,
    /// Passes that were not reported yet, by hook.
    pub passes: Vec<HookPasses>,
}

/// Creates the record of one hook, without usage.
#[must_use]
pub fn new_invocation(hook_id: &str, latency_us: u64, outcome: HookOutcome) -> HookInvocation {
    HookInvocation {
        hook_id: hook_id.to_owned(),
        latency_us,
        outcome,
        llm_calls: 0,
        llm_tokens_in: 0,
        llm_tokens_out: 0,
        llm_cost_usd: 0.0,
        search_calls: 0,
    }
}

/// Returns `invocation` with the usage of its hook's calls to the host.
#[must_use]
pub fn billed_invocation(invocation: HookInvocation, spent: CallUsage) -> HookInvocation {
    let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    HookInvocation {
        llm_calls: spent.llm_calls,
        llm_tokens_in: tokens(spent.llm_tokens_in),
        llm_tokens_out: tokens(spent.llm_tokens_out),
        llm_cost_usd: spent.llm_cost_usd,
        search_calls: spent.search_calls,
        ..invocation
    }
}

/// Returns the outcome of a failed hook, with its texts cut.
#[must_use]
pub fn failed_outcome(error: &str, stack: Option<&str>) -> HookOutcome {
    HookOutcome::Failed {
        error: cut_text(error, MAX_ERROR_BYTES).to_owned(),
        stack: stack.map(|text| cut_text(text, MAX_STACK_BYTES).to_owned()),
    }
}

/// Creates the record, with the hooks ordered by id.
#[must_use]
pub fn record(evaluated: EvaluationSummary) -> EventInvocations {
    let EvaluationSummary {
        event_id,
        event_seq,
        evaluated_by,
        started_at,
        finished_at,
        passed,
        mut hooks,
        passes,
    } = evaluated;

    // Sorted, so that repetitions of a record are equal.
    hooks.sort_by(|a, b| a.hook_id.cmp(&b.hook_id));
    EventInvocations {
        event_id,
        event_seq,
        evaluated_by,
        started_at,
        finished_at,
        passed,
        hooks,
        passes,
        is_slim: false,
    }
}

/// Returns `record` without its large parts: results (their dispatches hold them), stacks, long errors.
#[must_use]
pub fn slim_record(mut record: EventInvocations) -> EventInvocations {
    record.is_slim = true;
    record.passes.clear();

    // The facts that other services act by are kept: that a hook fired, and which hook it disabled.
    for hook in &mut record.hooks {
        match &mut hook.outcome {
            HookOutcome::Fired { result, .. } => {
                **result = HookResult {
                    fire: true,
                    disable_hook: result.disable_hook,
                    ..HookResult::default()
                };
            }
            HookOutcome::Failed { error, stack } => {
                *error = cut_text(error, SLIM_ERROR_BYTES).to_owned();
                *stack = None;
            }
            HookOutcome::Passed
            | HookOutcome::Suppressed { .. }
            | HookOutcome::Skipped { .. }
            | HookOutcome::Deferred => {}
        }
    }

    record
}

/// Returns the longest prefix of `text` of at most `bytes` bytes that ends between characters.
fn cut_text(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Completes the record `former` with the deferred evaluations: `made` holds their outcomes, including hooks that stay
/// deferred, and names their evaluator and time.
#[must_use]
pub fn completed_record(former: EventInvocations, made: EvaluationSummary) -> EventInvocations {
    let others = former.hooks.into_iter().filter(|hook| !hook.outcome.is_deferred());
    record(EvaluationSummary {
        passed: former.passed + made.passed,
        hooks: others.chain(made.hooks).collect(),
        started_at: former.started_at,
        ..made
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::session::SessionRef;
    use ulid::Ulid;

    use super::*;

    fn evaluated(hooks: Vec<HookInvocation>) -> EvaluationSummary {
        EvaluationSummary {
            event_id: EventId::parse("webhook:demo/1").expect("valid"),
            event_seq: 7,
            evaluated_by: "hook-1".to_owned(),
            started_at: UnixMillis(1),
            finished_at: UnixMillis(2),
            passed: 3,
            hooks,
            passes: Vec::new(),
        }
    }

    #[test]
    fn hooks_stand_by_id() {
        let passed = |id| new_invocation(id, 1, HookOutcome::Passed);
        let record = record(evaluated(vec![passed("b"), passed("a")]));
        let ids: Vec<_> = record.hooks.iter().map(|hook| hook.hook_id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    #[test]
    fn texts_of_scripts_are_cut_between_characters() {
        let outcome = failed_outcome(&"ä".repeat(MAX_ERROR_BYTES), Some(&"s".repeat(MAX_STACK_BYTES * 2)));
        let HookOutcome::Failed { error, stack } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(error.len(), MAX_ERROR_BYTES);
        assert_eq!(stack.map(|text| text.len()), Some(MAX_STACK_BYTES));
    }

    #[test]
    fn a_slim_record_keeps_outcomes_and_dispatch_ids() {
        let result = json!({"fire": true, "context": {"systemPrompt": "long"}, "disableHook": true});
        let target = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };
        let fired = HookOutcome::Fired {
            dispatch: Ulid::from_parts(1, 2),
            result: serde_json::from_value(result).expect("a result"),
            target: Some(target.clone()),
        };

        let hooks = vec![
            new_invocation("a", 1, fired),
            new_invocation("b", 1, failed_outcome(&"x".repeat(500), Some("at"))),
        ];
        let slim = slim_record(record(evaluated(hooks)));
        let HookOutcome::Fired {
            dispatch,
            result,
            target: kept,
        } = &slim.hooks[0].outcome
        else {
            panic!("{slim:?}")
        };

        assert_eq!(kept.as_ref(), Some(&target));

        assert_eq!(
            (*dispatch, result.context.is_none(), result.disable_hook),
            (Ulid::from_parts(1, 2), true, true)
        );

        let HookOutcome::Failed { error, stack } = &slim.hooks[1].outcome else {
            panic!("{slim:?}")
        };
        assert_eq!((error.len(), stack), (SLIM_ERROR_BYTES, &None));
    }
}
