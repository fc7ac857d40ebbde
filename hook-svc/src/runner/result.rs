//! Validation of a script's result: JSON in either spelling becomes a [`HookResult`]. *Pure.*
//!
//! Source: `docs/design/hooks.md` §2; seed 001 §2 (the unified spelling); seed 003 §8.3 (the older one). Unknown or
//! contradictory fields are never ignored: a typed error names the field. If a hook does not fire, only `fire` and
//! `disableHook` are read.

mod spelling;

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use shared::model::dispatch::DeliveryContext;
use shared::model::hook::{HookContextPatch, HookResult, HookRouting, Transcript};
use shared::model::permission::PermissionSet;
use shared::model::session::QueueMode;
use shared::serde_text::reword_json_problem;

use self::spelling::RemainingFields;

/// Longest result, in bytes of JSON.
pub const MAX_RESULT_BYTES: usize = 256 * 1024;

/// Longest persona, session key, thread or peer, in bytes; it fits into a subject with room to spare.
pub const MAX_KEY_BYTES: usize = 512;

/// Reason why a value is no hook result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResultError {
    /// The result is longer than allowed.
    #[error("the result has {0} bytes; at most {MAX_RESULT_BYTES} are allowed")]
    TooLong(usize),
    /// The result is not JSON.
    #[error("the result is not JSON: {0}")]
    NotJson(String),
    /// A value is not an object.
    #[error("{at} is {found}, expected an object")]
    NotAnObject {
        /// Name of the value.
        at: &'static str,
        /// Type that was found.
        found: &'static str,
    },
    /// A field is unknown.
    #[error("unknown field `{0}`")]
    UnknownField(String),
    /// The value of a field is invalid.
    #[error("`{field}`: {problem}")]
    Malformed {
        /// Name of the field.
        field: String,
        /// Description of the problem.
        problem: String,
    },
    /// A field is given in both spellings, with different values.
    #[error("`{one}` and `{other}` name the same field with different values")]
    Contradiction {
        /// Name in one spelling.
        one: String,
        /// Name in the other spelling.
        other: String,
    },
    /// A key cannot name a session, persona, peer or thread.
    #[error("`{field}` {problem}")]
    BadKey {
        /// Name of the field.
        field: &'static str,
        /// Description of the problem.
        problem: &'static str,
    },
}

/// Validates the result of a script.
///
/// # Errors
/// Returns [`InvalidResultError`], which names the invalid field.
pub fn validate(json: &str) -> Result<HookResult, InvalidResultError> {
    // Before it is parsed, because parsing is the expense.
    if json.len() > MAX_RESULT_BYTES {
        return Err(InvalidResultError::TooLong(json.len()));
    }

    let value: Value = serde_json::from_str(json).map_err(|error| InvalidResultError::NotJson(error.to_string()))?;
    let mut fields = RemainingFields::from_value(value, "result", "")?;
    let fire: Option<bool> = fields.take("fire")?;
    let disable_hook = fields.take_either("disableHook", "disable_hook")?.unwrap_or(false);

    let Some(fire) = fire else {
        return Err(InvalidResultError::Malformed {
            field: "fire".to_owned(),
            problem: "is missing".to_owned(),
        });
    };

    // The other fields have no meaning without a fire, and a script may leave anything in them.
    if !fire {
        return Ok(HookResult {
            disable_hook,
            ..HookResult::default()
        });
    }

    let routed = read_routing(fields.take("routing")?)?;
    let permissions = fields.take::<PermissionSet>("permissions")?;
    let delivery_context = fields.take_either::<DeliveryContext>("deliveryContext", "delivery_context")?;
    let context = read_context(fields.take("context")?)?;
    // A field that is left over is misspelled: it is an error, because it would have no effect.
    fields.expect_empty()?;
    check_delivery(delivery_context.as_ref())?;

    Ok(HookResult {
        fire,
        routing: routed,
        permissions,
        delivery_context,
        context,
        disable_hook,
    })
}

/// Values of the older spelling's `routing.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoutingMode {
    Persona,
    Session,
    Thread,
}

fn read_routing(value: Option<Value>) -> Result<Option<HookRouting>, InvalidResultError> {
    let Some(value) = value else { return Ok(None) };
    let mut fields = RemainingFields::from_value(value, "`routing`", "routing.")?;
    let persona: Option<String> = fields.take_either("persona", "agent_id")?;
    let queue_mode: Option<QueueMode> = fields.take_either("queueMode", "queue_mode")?;
    let mode: Option<RoutingMode> = fields.take("mode")?;
    let target: Option<String> = fields.take("target")?;
    let mut session: Option<String> = fields.take("session")?;

    let mut thread: Option<String> = fields.take("thread")?;
    fields.expect_empty()?;

    // `mode` with `target` is another spelling of `session` or `thread`; both may be given if they agree.
    match (mode, target) {
        (_, None) => {}
        (Some(RoutingMode::Session), Some(target)) => merge(&mut session, target, "routing.session")?,
        (Some(RoutingMode::Thread), Some(target)) => merge(&mut thread, target, "routing.thread")?,
        (Some(RoutingMode::Persona) | None, Some(_)) => {
            let problem = "names a session or thread, so `mode` must be `session` or `thread`".to_owned();
            return Err(InvalidResultError::Malformed {
                field: "routing.target".to_owned(),
                problem,
            });
        }
    }

    check_key("routing.persona", persona.as_deref())?;
    check_key("routing.session", session.as_deref())?;
    check_key("routing.thread", thread.as_deref())?;

    Ok(Some(HookRouting {
        persona,
        session,
        queue_mode,
        thread,
    }))
}

fn merge(field: &mut Option<String>, target: String, name: &str) -> Result<(), InvalidResultError> {
    match field {
        Some(given) if *given != target => Err(InvalidResultError::Contradiction {
            one: name.to_owned(),
            other: "routing.target".to_owned(),
        }),
        Some(_) => Ok(()),
        None => {
            *field = Some(target);
            Ok(())
        }
    }
}

fn read_context(value: Option<Value>) -> Result<Option<HookContextPatch>, InvalidResultError> {
    let Some(value) = value else { return Ok(None) };
    let mut fields = RemainingFields::from_value(value, "`context`", "context.")?;
    let system_prompt: Option<String> = fields.take_either("systemPrompt", "prompt")?;
    let extracted: Option<Map<String, Value>> = fields.take("extracted")?;
    let include_thread_history: Option<bool> = fields.take_either("includeThreadHistory", "include_thread")?;
    let transcripts: Option<Vec<Transcript>> = fields.take("transcripts")?;
    fields.expect_empty()?;

    let transcripts = transcripts.unwrap_or_default();
    check_transcripts(&transcripts)?;
    Ok(Some(HookContextPatch {
        system_prompt,
        extracted,
        include_thread_history,
        transcripts,
    }))
}

/// Checks that each attachment has one transcript at most. Whether the event has the attachments is known to the caller.
fn check_transcripts(transcripts: &[Transcript]) -> Result<(), InvalidResultError> {
    let mut indexes = BTreeSet::new();
    match transcripts.iter().find(|transcript| !indexes.insert(transcript.index)) {
        None => Ok(()),
        Some(again) => Err(InvalidResultError::Malformed {
            field: "context.transcripts".to_owned(),
            problem: format!("the attachment {} has two transcripts", again.index),
        }),
    }
}

fn check_delivery(context: Option<&DeliveryContext>) -> Result<(), InvalidResultError> {
    let Some(context) = context else { return Ok(()) };
    check_key("deliveryContext.channel", Some(&context.channel))?;
    check_key("deliveryContext.accountId", context.account_id.as_deref())?;
    check_key("deliveryContext.peerId", context.peer_id.as_deref())?;
    check_key("deliveryContext.threadId", context.thread_id.as_deref())?;
    check_key("deliveryContext.replyToId", context.reply_to_id.as_deref())
}

fn check_key(field: &'static str, key: Option<&str>) -> Result<(), InvalidResultError> {
    let problem = match key {
        None => return Ok(()),
        Some("") => "is empty",
        Some(key) if key.len() > MAX_KEY_BYTES => "has more than 512 bytes",
        Some(key) if key.chars().any(char::is_control) => "holds a control character",
        Some(_) => return Ok(()),
    };
    Err(InvalidResultError::BadKey { field, problem })
}

fn parse_field<T: DeserializeOwned>(field: &str, value: Value) -> Result<T, InvalidResultError> {
    serde_json::from_value(value).map_err(|error| InvalidResultError::Malformed {
        field: field.to_owned(),
        problem: reword_json_problem(&error.to_string()),
    })
}

#[cfg(test)]
mod tests;
