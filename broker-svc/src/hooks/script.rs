//! Script hooks: a TypeScript hook of hook-svc's registry, run in its sandbox by `nexus.svc.hook.run`.
//!
//! The script sees an event on channel `turn`, which no stream has: `ctx.event.metadata` is `HookContext` of seed 002
//! §2. A script that does not fire allows. A script that fires returns in `context.extracted` the fields of
//! `HookResult` of seed 002 §2: `allow`, `error`, `modified_args`, `modified_result`, `side_effects`, `ask`,
//! `context`.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{Bus, RequestError};
use shared::model::event::{Event, EventId};
use shared::model::hook_api::{HookRun, RunHook};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;

use super::declared::DeclaredHook;
use super::hooked_turn::HookedTurn;
use super::outcome::{HookContext, HookOutcome, RunHookError};

/// Channel of the events that scripts see.
pub const CHANNEL: &str = "turn";
/// Subject of the service that runs scripts.
const SERVICE: &str = "nexus.svc.hook.run";

/// Runs the script `script` for `hook`.
///
/// # Errors
/// Returns [`RunHookError`] if there is no outcome.
pub async fn run(
    bus: &Bus,
    hook: &DeclaredHook,
    script: &str,
    moment: &HookedTurn,
    context: &HookContext,
    now: UnixMillis,
) -> Result<HookOutcome, RunHookError> {
    let failed = |error: String| RunHookError::Failed(error);
    let event = script_event(hook, moment, context, now)
        .ok_or_else(|| failed("failed to make an event of the hook's input".to_owned()))?;
    let question = RunHook {
        hook: script.to_owned(),
        event: serde_json::to_value(event).map_err(|error| failed(error.to_string()))?,
        now: Some(now),
    };

    // hook-svc has time-outs of its own; this one bounds the wait of the turn.
    let within = Duration::from_millis(hook.timeout_ms);
    let answer = bus
        .request::<_, HookRun>(SERVICE, Headers::new(), &question, within)
        .await;
    match answer {
        Ok(run) => judge_run(run),
        Err(RequestError::Timeout { .. }) => Err(RunHookError::TimedOut(hook.timeout_ms)),
        Err(RequestError::Service { code, text, .. }) => Err(failed(format!("{code}: {text}"))),
        Err(error @ RequestError::NoResponder { .. }) => Err(RunHookError::Absent(error.to_string())),
        Err(error @ RequestError::Answer { .. }) => Err(failed(error.to_string())),
    }
}

/// Returns the event that a script sees.
fn script_event(hook: &DeclaredHook, moment: &HookedTurn, context: &HookContext, now: UnixMillis) -> Option<Event> {
    let call = context.metadata_text("call");
    let id = format!(
        "{CHANNEL}:{}/{}/{}/{call}",
        moment.turn,
        hook.point.name(),
        moment.progress.turn
    );

    let mut event = Event::new(EventId::parse(id).ok()?, CHANNEL, &moment.session.to_string(), now);
    event.origin = EventOrigin::System;
    event.from.id.clone_from(&context.user_id);
    event.content_types = vec!["text".to_owned()];
    event.content.clone_from(&context.tool_name);
    let Ok(Value::Object(told)) = serde_json::to_value(context) else {
        return None;
    };

    event.metadata = told;
    event.metadata.insert("point".to_owned(), json!(hook.point.name()));

    Some(event)
}

fn judge_run(run: HookRun) -> Result<HookOutcome, RunHookError> {
    if let Some(error) = run.error {
        return Err(RunHookError::Failed(error));
    }

    let said = run.result.filter(|_| run.fired).and_then(|result| result.context);
    let Some(said) = said.and_then(|context| context.extracted) else {
        return if run.fired {
            Err(RunHookError::Failed(
                "the script fired without `context.extracted`".to_owned(),
            ))
        } else {
            Ok(HookOutcome::default())
        };
    };

    let read = serde_json::from_value(Value::Object(said));
    read.map_err(|error| RunHookError::Failed(format!("`context.extracted`: {error}")))
}
