//! Running a hook as the action of an intent: its event names the hook, and the record of the event tells how it ended.
//!
//! The event is a timer of the hook's own, so hook-svc evaluates it as it does any event: whatever is published or killed
//! again, one event, one record, one dispatch.

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

/// Waits between looks after the event is published; later ones are the timer's.
const LOOKS: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
    Duration::from_millis(4_000),
];
/// How long hook-svc is awaited for whether a hook is there.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The code of "there is no such hook".
const ABSENT: u16 = 404;

/// Waits for the end of the hook that `intent` runs upon `event`; none = it is left to the timer.
///
/// # Errors
/// [`HandleIntentError`] where the record cannot be read.
pub async fn await_hook(bus: &Bus, intent: &Intent, event: &Event) -> Result<Option<FiringEnd>, HandleIntentError> {
    for wait in LOOKS {
        pause(wait).await;
        if let Some(ending) = hook_ending(bus, intent, event).await? {
            return Ok(Some(ending));
        }
    }
    Ok(None)
}

/// How the hook that `intent` runs upon `event` ended, if it has.
///
/// # Errors
/// [`HandleIntentError`] where the record cannot be read.
pub async fn hook_ending(bus: &Bus, intent: &Intent, event: &Event) -> Result<Option<FiringEnd>, HandleIntentError> {
    // Whatever its partition: `EVENTS`, which says that, may have lost the event.
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
        // A later record says what it did.
        Some(HookOutcome::Deferred) => return Ok(None),
        // A record tells of hooks that did more than pass.
        None => match check_hook(bus, hook).await {
            Ok(Ok(())) => (IntentCode::Done, "passed".to_owned()),
            Ok(Err(why)) => (IntentCode::TurnFailed, why),
            Err(error) => {
                let intent = intent.intent.id;
                tracing::warn!(event_id = %event.id, %intent, hook, %error, "failed to check the hook of an intent; retrying later");
                return Ok(None);
            }
        },
    };

    Ok(Some(FiringEnd { code, why }))
}

/// Whether the hook of this name sees events, or why not; an error where nobody can tell now.
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
            HookStatus::Disabled => Err(format!("the hook `{hook}` is switched off")),
            HookStatus::Errored => Err(format!("the hook `{hook}` does not parse")),
        }),
        Err(RequestError::Service { code: ABSENT, .. }) => Ok(Err(format!("there is no hook `{hook}`"))),
        Err(error) => Err(error),
    }
}
