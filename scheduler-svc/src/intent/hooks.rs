//! Runs a hook as the action of an intent. The event of the firing names the hook, and the event's invocation record
//! says how the hook ended.
//!
//! The event is a timer event of that hook, so hook-svc evaluates it like any other: however often it is published, and
//! whichever process dies, there is one event, one record and one dispatch.

use std::time::Duration;

use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::model::event::Event;
use shared::model::hook::HookStatus;
use shared::model::hook_api::{GetHook, HookDetails};
use shared::model::intent::{Intent, IntentCode};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::wire::headers::Headers;
use shared::wire::subject::invocation_anywhere;
use shared::wire::topology::streams::INVOCATIONS;

use super::error::HandleIntentError;
use super::firing::hook_of;
use super::machine::FiringEnd;

/// Pauses between polls after the event is published; after them the timer polls.
const LOOKS: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
    Duration::from_millis(4_000),
];
/// Longest wait for hook-svc to answer whether a hook exists.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Service code of a hook that does not exist.
const ABSENT: u16 = 404;

/// Waits for the end of the hook that `intent` runs with `event`. Returns `None` if the end is left to the timer.
///
/// # Errors
/// Returns [`HandleIntentError`] if the record cannot be read.
pub async fn await_hook(bus: &Bus, intent: &Intent, event: &Event) -> Result<Option<FiringEnd>, HandleIntentError> {
    for wait in LOOKS {
        pause(wait).await;
        if let Some(ending) = hook_ending(bus, intent, event).await? {
            return Ok(Some(ending));
        }
    }
    Ok(None)
}

/// Returns how the hook that `intent` runs with `event` ended, or `None` if it has not ended.
///
/// # Errors
/// Returns [`HandleIntentError`] if the record cannot be read.
pub async fn hook_ending(bus: &Bus, intent: &Intent, event: &Event) -> Result<Option<FiringEnd>, HandleIntentError> {
    // Any partition: `EVENTS`, which determines the partition, may have lost the event.
    let stored = bus
        .last_on_subject(INVOCATIONS, &invocation_anywhere(&event.id))
        .await?;
    let Some(record) = stored.and_then(|stored| stored.decode::<EventInvocations>().ok()) else {
        return Ok(None);
    };

    let hook = hook_of(intent);
    let outcome = record
        .hooks
        .into_iter()
        .find(|run| run.hook_id == hook)
        .map(|run| run.outcome);

    let (code, why) = match outcome {
        Some(HookOutcome::Fired { dispatch, .. }) => (IntentCode::Done, format!("fired: {dispatch}")),
        Some(HookOutcome::Suppressed { reason }) => (IntentCode::Done, reason),
        Some(HookOutcome::Passed) => (IntentCode::Done, "passed".to_owned()),
        Some(HookOutcome::Skipped { reason }) => (IntentCode::TurnFailed, reason),
        Some(HookOutcome::Failed { error, .. }) => (IntentCode::TurnFailed, error),
        // A later record has the outcome of a deferred hook.
        Some(HookOutcome::Deferred) => return Ok(None),
        // A record may omit hooks that passed.
        None => match check_hook(bus, hook).await {
            Ok(Ok(())) => (IntentCode::Done, "passed".to_owned()),
            Ok(Err(why)) => (IntentCode::TurnFailed, why),
            Err(error) => {
                let intent = intent.intent.id;
                tracing::warn!(event_id = %event.id, %intent, hook_id = hook, %error, "failed to check the hook of an intent; retrying later");
                return Ok(None);
            }
        },
    };

    Ok(Some(FiringEnd { code, why }))
}

/// Checks that the hook receives events; returns the reason if it does not. Fails if hook-svc cannot be asked now.
async fn check_hook(bus: &Bus, hook: &str) -> Result<Result<(), String>, RequestError> {
    let question = GetHook {
        name: hook.to_owned(),
        invocations: None,
    };
    let asked = bus.request::<_, HookDetails>("nexus.svc.hook.get", Headers::new(), &question, ANSWER_WITHIN);

    match asked.await {
        Ok(HookDetails { hook: view, .. }) => Ok(match view.status {
            HookStatus::Active | HookStatus::Degraded => Ok(()),
            HookStatus::Paused => Err(format!("the hook `{hook}` is paused")),
            HookStatus::Waiting => Err(format!("the hook `{hook}` waits for a channel")),
            HookStatus::Disabled => Err(format!("the hook `{hook}` is disabled")),
            HookStatus::Errored => Err(format!("the hook `{hook}` does not parse")),
        }),
        Err(RequestError::Service { code: ABSENT, .. }) => Ok(Err(format!("the hook `{hook}` does not exist"))),
        Err(error) => Err(error),
    }
}
