//! A hook, its result, and the invocations of hooks for an event, with every field set.

use serde_json::json;
use shared::model::hook::{HookContextPatch, HookMetadata, HookMode, HookOrigin, HookRecord, HookResult, HookRouting};
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome, HookPasses};
use shared::model::session::QueueMode;

use super::{AT, context, id, object, permissions, some, ulid};

pub(crate) fn result() -> HookResult {
    HookResult {
        fire: true,
        routing: Some(HookRouting {
            persona: some("atlas"),
            session: some("family"),
            queue_mode: Some(QueueMode::Collect),
            thread: some("7"),
        }),
        permissions: Some(permissions()),
        delivery_context: Some(context()),
        context: Some(HookContextPatch {
            system_prompt: some("be brief"),
            extracted: Some(object(json!({ "a": 1 }))),
            include_thread_history: Some(false),
            transcripts: Vec::new(),
        }),
        disable_hook: true,
    }
}

pub(crate) fn invocations() -> EventInvocations {
    let outcomes = [
        HookOutcome::Passed,
        HookOutcome::Fired {
            dispatch: ulid(3),
            result: Box::new(result()),
            target: None,
        },
        HookOutcome::Suppressed {
            reason: "one_shot_already_fired".to_owned(),
        },
        HookOutcome::Skipped {
            reason: "breaker_open".to_owned(),
        },
        HookOutcome::Failed {
            error: "TypeError: x".to_owned(),
            stack: some("at a.ts:1"),
        },
    ];

    let hook = |outcome| HookInvocation {
        hook_id: "h".to_owned(),
        latency_us: 120,
        outcome,
        llm_calls: 1,
        llm_tokens_in: 2,
        llm_tokens_out: 3,
        llm_cost_usd: 0.0,
        search_calls: 4,
    };

    EventInvocations {
        event_id: id(),
        event_seq: 99,
        evaluated_by: "hook-svc-0".to_owned(),
        started_at: AT,
        finished_at: AT.plus(3),
        passed: 7,
        hooks: outcomes.into_iter().map(hook).collect(),
        passes: Vec::new(),
        is_slim: false,
    }
}

pub(crate) fn hook() -> HookRecord {
    let root = "hooks".to_owned();
    HookRecord {
        id: "a/b".to_owned(),
        source: "export default () => ({ fire: false })".to_owned(),
        content_hash: "00ff".to_owned(),
        metadata: HookMetadata {
            name: "B".to_owned(),
            description: some("does b"),
            mode: HookMode::OneShot,
            priority: 85,
            timeout_ms: 10_000,
            schedules: vec!["every 30m".to_owned()],
            timezone: some("America/Chicago"),
            fallback: true,
            match_rule: some("channel=imessage"),
            allow_net: Vec::new(),
            needs_channels: Vec::new(),
            other_tags: vec![("see".to_owned(), "x".to_owned())],
        },
        enabled: false,
        origin: HookOrigin::File { root },
        created_by: "operator".to_owned(),
        made_in: None,
        created_at: AT,
        updated_at: AT.plus(1),
        disabled_reason: some("deleted"),
        parse_error: some("line 3"),
    }
}

pub(crate) fn invocations_deferred() -> EventInvocations {
    let mut deferred = invocations();
    deferred.hooks.truncate(1);
    deferred.hooks[0].outcome = HookOutcome::Deferred;
    deferred
}

pub(crate) fn invocations_with_passes() -> EventInvocations {
    EventInvocations {
        passes: vec![HookPasses {
            hook_id: "h".to_owned(),
            count: 12,
            latencies_us: vec![80, 120],
        }],
        ..invocations()
    }
}
