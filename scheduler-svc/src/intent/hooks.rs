//! Running a hook as the action of an intent: hook-svc is asked, and its answer ends the firing.
//!
//! A firing that is cut off between the question and the answer asks again: a hook run by an intent runs at least once.

use std::time::Duration;

use shared::bus::{Bus, RequestError};
use shared::model::event::Event;
use shared::model::hook_api::{HookRun, RunHook};
use shared::model::intent::{Intent, IntentCode};
use shared::wire::headers::Headers;

use super::error::HandleIntentError;
use super::machine::Ending;

/// How long a hook's answer is awaited: less than the ack wait of the timer that asks.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

fn ending(code: IntentCode, why: String) -> Ending {
    Ending { code, why }
}

/// Runs the hook that `intent` names upon `event`.
///
/// # Errors
/// [`HandleIntentError`] where nobody serves hooks at the moment: to be tried again.
pub async fn run(bus: &Bus, intent: &Intent, event: &Event) -> Result<Ending, HandleIntentError> {
    let hook = intent.intent.parameters.get("hook");
    let hook = hook.and_then(serde_json::Value::as_str).unwrap_or_default();
    let question = RunHook {
        hook: hook.to_owned(),
        event: serde_json::to_value(event).unwrap_or_default(),
        now: None,
    };
    let asked = bus.request("nexus.svc.hook.run", Headers::new(), &question, ANSWER_WITHIN);
    match asked.await {
        Ok(HookRun { error: Some(error), .. }) => Ok(ending(IntentCode::TurnFailed, error)),
        Ok(run) => Ok(ending(IntentCode::Done, format!("fired: {}", run.fired))),
        Err(error @ RequestError::NoResponder { .. }) => Err(error.into()),
        Err(error @ (RequestError::Timeout { .. } | RequestError::Service { .. } | RequestError::Answer { .. })) => {
            Ok(ending(IntentCode::TurnFailed, error.to_string()))
        }
    }
}
