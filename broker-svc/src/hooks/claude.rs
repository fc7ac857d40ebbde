//! Input and output of a command hook, in the format that existing hook scripts of Claude Code use. *Pure.*
//!
//! Exit 0 with nothing, or with JSON; exit 2 refuses, with standard error as the reason; any other exit is a failure.
//! Source: `docs/design/sessions.md` §7.4; seed 004.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use shared::model::approval::{ApprovalAsk, DeciderScope};

use super::declared::DeclaredHook;
use super::outcome::{HookContext, HookOutcome, RunHookError};
use super::point::HookPoint;
use crate::agent::message_text::shorten_text;

/// Maximum output of a command that is kept, bytes.
pub const MAX_OUTPUT_BYTES: usize = 4_096;
/// Exit code with which a command refuses.
const REFUSES: i32 = 2;
/// Maximum length of a reason, bytes.
const MAX_REASON_BYTES: usize = 2_000;

/// Returns the JSON that a command reads on standard input.
#[must_use]
pub fn hook_input(hook: &DeclaredHook, context: &HookContext, directory: &str) -> Value {
    let point = hook.point;
    let mut asked = Map::new();
    asked.insert("hook".to_owned(), json!(point.name()));
    asked.insert("hook_name".to_owned(), json!(hook.name));
    asked.insert("hook_event_name".to_owned(), json!(point.event_name()));
    asked.insert("session_id".to_owned(), json!(context.metadata_text("session")));
    // The keys below are Claude Code's: its hooks expect all of them, also those that have no meaning here.
    asked.insert("transcript_path".to_owned(), json!(""));
    asked.insert("cwd".to_owned(), json!(directory));
    asked.insert("permission_mode".to_owned(), json!("default"));
    asked.insert("agent_id".to_owned(), json!(context.agent_id));

    asked.insert("user_id".to_owned(), json!(context.user_id));

    for key in ["turn", "step", "event", "channel", "prompt", "users", "tool_calls"] {
        asked.extend(context.metadata.get(key).map(|value| (key.to_owned(), value.clone())));
    }

    if point.is_of_a_call() {
        asked.insert("tool_name".to_owned(), json!(context.tool_name));
        asked.insert("tool_input".to_owned(), context.tool_args.clone());
        asked.extend(
            context
                .metadata
                .get("call")
                .map(|call| ("tool_use_id".to_owned(), call.clone())),
        );

        asked.extend(
            context
                .tool_result
                .as_ref()
                .map(|result| ("tool_response".to_owned(), result.clone())),
        );
    } else if !context.tool_args.is_null() {
        asked.insert("content".to_owned(), context.tool_args.clone());
    }

    // Always false: a hook at the end of a session cannot continue it.
    if point == HookPoint::PostSession {
        asked.insert("stop_hook_active".to_owned(), json!(false));
    }

    Value::Object(asked)
}

/// Exit code and outputs of a command that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandExit {
    /// Exit code; none if a signal ended the command.
    pub code: Option<i32>,
    /// Standard output, at most as much as is kept.
    pub stdout: String,
    /// Standard error, at most as much as is kept.
    pub stderr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Answer {
    #[serde(rename = "continue")]
    goes_on: Option<bool>,
    stop_reason: Option<String>,
    decision: Option<String>,
    reason: Option<String>,
    hook_specific_output: Option<Specific>,
    #[serde(flatten)]
    own: Specific,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Specific {
    permission_decision: Option<String>,
    permission_decision_reason: Option<String>,
    updated_input: Option<Value>,
    additional_context: Option<String>,
    updated_output: Option<Value>,
    hidden_tools: Vec<String>,
}

/// Returns the outcome that `exit` means at the point of `hook`.
///
/// # Errors
/// Returns [`RunHookError::Failed`] if it is neither an answer nor a refusal.
pub fn exit_outcome(hook: &DeclaredHook, exit: &CommandExit) -> Result<HookOutcome, RunHookError> {
    let point = hook.point;
    match exit.code {
        Some(0) => {}
        Some(REFUSES) => {
            let reason = exit.stderr.trim();
            let reason = if reason.is_empty() {
                format!("hook `{}` refuses", hook.name)
            } else {
                reason.to_owned()
            };

            let reason = shorten_text(&reason, MAX_REASON_BYTES);
            // After the fact nothing can be refused: the reason is for the model to read.
            return Ok(if point == HookPoint::PostToolUse {
                context_outcome(reason)
            } else {
                HookOutcome::denied(reason)
            });
        }
        Some(code) => return Err(RunHookError::Failed(format!("exit {code}: {}", exit_complaint(exit)))),
        None => {
            return Err(RunHookError::Failed(format!(
                "ended by a signal: {}",
                exit_complaint(exit)
            )));
        }
    }

    // Output that is not JSON is text for the model, but only at the points where Claude Code reads it so.
    let said = exit.stdout.trim();
    if !said.starts_with('{') {
        let text = (point == HookPoint::PreSession || point == HookPoint::PreQueueDrain) && !said.is_empty();
        return Ok(if text {
            context_outcome(said.to_owned())
        } else {
            HookOutcome::default()
        });
    }

    let answer: Answer = serde_json::from_str(said)
        .map_err(|error| RunHookError::Failed(format!("its output is not valid JSON: {error}")))?;
    judge_answer(hook, answer)
}

fn judge_answer(hook: &DeclaredHook, answer: Answer) -> Result<HookOutcome, RunHookError> {
    let nested = answer.hook_specific_output.unwrap_or_default();
    let own = answer.own;
    // Newer hooks nest their answer, older ones do not: the nested one wins.
    let reason = nested
        .permission_decision_reason
        .or(own.permission_decision_reason)
        .or(answer.reason);

    let decision = nested
        .permission_decision
        .or(own.permission_decision)
        .or(answer.decision);
    let context = nested.additional_context.or(own.additional_context);
    let mut said = HookOutcome {
        modified_args: nested.updated_input.or(own.updated_input).filter(Value::is_object),
        modified_result: nested.updated_output.or(own.updated_output),
        hidden_tools: [nested.hidden_tools, own.hidden_tools].concat(),
        context,
        ..HookOutcome::default()
    };

    let refusal = || {
        reason
            .clone()
            .unwrap_or_else(|| format!("hook `{}` refuses", hook.name))
    };

    // `continue: false` wins over any decision, as in Claude Code.
    if answer.goes_on == Some(false) {
        let why = answer.stop_reason.clone().unwrap_or_else(refusal);
        return Ok(HookOutcome::denied(shorten_text(&why, MAX_REASON_BYTES)));
    }

    match decision.as_deref() {
        None | Some("allow" | "approve") => {}
        // The call has run: the reason goes to the model, which can react to it.
        Some("deny" | "block") if hook.point == HookPoint::PostToolUse => {
            said.context
                .get_or_insert_with(|| shorten_text(&refusal(), MAX_REASON_BYTES));
        }
        Some("deny" | "block") => return Ok(HookOutcome::denied(shorten_text(&refusal(), MAX_REASON_BYTES))),
        Some("ask") => {
            said.ask = Some(ApprovalAsk {
                policy: hook.name.clone(),
                scope: DeciderScope::default(),
                expires_ms: None,
                escalate_at: None,
                reason,
            });
        }
        Some(other) => return Err(RunHookError::Failed(format!("decision `{other}` is unknown"))),
    }

    Ok(said)
}

fn context_outcome(text: String) -> HookOutcome {
    HookOutcome {
        context: Some(text),
        ..HookOutcome::default()
    }
}

fn exit_complaint(exit: &CommandExit) -> String {
    let stderr = exit.stderr.trim();
    let said = if stderr.is_empty() { exit.stdout.trim() } else { stderr };
    shorten_text(said, MAX_REASON_BYTES)
}

#[cfg(test)]
mod tests;
