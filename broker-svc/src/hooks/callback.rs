//! `nexus.svc.turn.gate`: the hooks of a tool call for agents that run their tools themselves.
//!
//! An agent of runner `nats` or `process` asks before a tool runs (`PreToolUse`) and after (`PostToolUse`), for the
//! turn that it works on. Any broker can respond: the session's ledger has the turn's permissions and its owner. Only
//! the owner writes the ledger, so hook runs are recorded here in `AUDIT` alone. The service does not wait for
//! humans: the agent gets the id of the approval, and asks again.

mod tool_gate;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::bus::{ServiceHandle, ServiceSpec};
use shared::model::ledger::{ToolCall, ToolOutcome};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use self::tool_gate::ToolGate;
use super::hooked_turn::HookedTurn;
use super::point::HookPoint;
use super::runs::TurnHookRun;
use crate::broker::BrokerContext;
use crate::ledger::writer::load;
use crate::queue::inbox::DispatchSearch;
use crate::session::PendingDispatch;
use crate::turn::Turn;
use crate::turn::journal::RunningTurn;
use shared::model::permission::is_tool_permitted;

/// Code for an invalid request.
const WRONG: usize = 400;
/// Code if the turn is not under way.
const OVER: usize = 409;
/// Code if the request cannot be served now.
const UNAVAILABLE: usize = 503;

/// Maximum length of the id of a call or of an attempt, bytes.
const MAX_ID_BYTES: usize = 256;

/// A tool call that an agent is about to make, or has made.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRequest {
    /// The turn that the agent works on (`AgentRequest/1`).
    pub turn: Ulid,
    /// Session of the turn.
    pub session: SessionRef,
    /// The hook point: `PreToolUse` or `PostToolUse`.
    pub hook_event_name: String,
    /// The agent's own id of the call, the same at both points.
    pub tool_use_id: String,
    /// Name of the tool.
    pub tool_name: String,
    /// Arguments of the tool: an object.
    pub tool_input: Value,
    /// Result of the tool, at `PostToolUse`.
    #[serde(default)]
    pub tool_response: Option<Value>,
    /// Name of this attempt to make the call: an approved call is given to one attempt, even if that one asks several
    /// times.
    #[serde(default)]
    pub attempt: Option<String>,
}

/// Decision of the hooks about the call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum GateAnswer {
    /// The call may run with these arguments, or the result may be read as given here.
    Allow {
        /// Arguments to run with, at `PreToolUse`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_input: Option<Value>,
        /// Result to read, at `PostToolUse`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_response: Option<Value>,
        /// Texts of hooks for the model.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        context: Vec<String>,
    },
    /// The call must not run, or its result must not be read.
    Deny {
        /// Reason for the refusal, for the model to read.
        reason: String,
    },
    /// A human is asked, at `PreToolUse`: ask again with the same call until there is another answer.
    Ask {
        /// Id of the approval.
        approval: String,
        /// Name of the rule that asks.
        policy: String,
        /// Time at which the approval lapses, Unix milliseconds.
        expires_at: UnixMillis,
    },
}

/// Code and text with which a request is refused.
type Refusal = (usize, String);

/// Serves the service `turn` for `broker`.
///
/// # Errors
/// Returns the client's error text if the service cannot be announced.
pub async fn serve(broker: &Arc<BrokerContext>) -> Result<ServiceHandle, String> {
    let at = Arc::clone(broker);
    let spec = ServiceSpec::new("turn", "Running turns: the hooks of an agent's own tool calls");
    let spec = spec.endpoint("gate", move |asked: GateRequest| {
        let broker = Arc::clone(&at);
        async move { answer_call(&broker, asked).await }
    });
    broker.bus.serve(spec).await
}

async fn answer_call(broker: &BrokerContext, asked: GateRequest) -> Result<GateAnswer, Refusal> {
    let point = HookPoint::from_name(&asked.hook_event_name).filter(|point| point.is_of_a_call());
    let point = point.ok_or_else(|| (WRONG, "hook_event_name: expected PreToolUse or PostToolUse".to_owned()))?;

    // The subject is open to agents, so every field is checked before anything is read.
    if !asked.tool_input.is_object() {
        return Err((WRONG, "tool_input: expected an object".to_owned()));
    }

    if [Some(&asked.tool_use_id), asked.attempt.as_ref()]
        .into_iter()
        .flatten()
        .any(|id| id.len() > MAX_ID_BYTES)
    {
        return Err((
            WRONG,
            format!("tool_use_id, attempt: expected at most {MAX_ID_BYTES} bytes"),
        ));
    }

    // Loaded for each request: any broker answers, not only the owner of the session.
    let unavailable = |error: String| (UNAVAILABLE, error);
    let remembered = load(broker, &asked.session, None)
        .await
        .map_err(|error| unavailable(error.to_string()))?;
    let fold = remembered.fold;
    let running = fold.running.as_ref().filter(|running| running.turn == asked.turn);
    let running = running.ok_or_else(|| (OVER, format!("turn {} is not running", asked.turn)))?;
    let pendings = turn_dispatches(broker, &asked.session, running).await?;
    let turn = Turn::from_running(&asked.session, &fold, running, &pendings);
    let set = broker.hooks().hooks_of(&asked.session, turn.works_for());
    let moment = HookedTurn::new(&asked.session, turn.id, fold.epoch, set, &pendings);

    let call = ToolCall {
        call: asked.tool_use_id,
        name: asked.tool_name,
        arguments: asked.tool_input,
    };

    // After the call nothing can be denied any more: hooks can only change or withhold the result.
    if point == HookPoint::PostToolUse {
        let result = asked.tool_response.unwrap_or_default();
        let (outcome, ran) = broker
            .hooks()
            .run_after_call(&moment, &call, ToolOutcome::Ok { result })
            .await;

        return Ok(match outcome {
            ToolOutcome::Ok { result } => GateAnswer::Allow {
                tool_input: None,
                tool_response: Some(result),
                context: context_texts(&ran),
            },
            ToolOutcome::Error { error: reason }
            | ToolOutcome::Skipped { reason }
            | ToolOutcome::Unknown { reason } => GateAnswer::Deny { reason },
        });
    }

    // The turn's permissions come before hooks and approvals: no person can approve a forbidden tool.
    if !is_tool_permitted(&call.name, &running.permissions, &broker.personas.permission_levels) {
        let reason = format!("`{}` is not permitted in this turn", call.name);
        return Ok(GateAnswer::Deny { reason });
    }

    let making = ToolGate {
        broker,
        session: &asked.session,
        running,
        turn: &turn,
        pendings: &pendings,
        moment,
        call,
        attempt: asked.attempt.as_deref(),
    };

    making
        .decide_call()
        .await
        .map_err(|error| unavailable(error.to_string()))
}

/// Returns the dispatches that `running` was begun for. Without all of them, fewer hooks would bind the turn: the caller
/// must ask again once a lost one is made again.
async fn turn_dispatches(
    broker: &BrokerContext,
    session: &SessionRef,
    running: &RunningTurn,
) -> Result<Vec<PendingDispatch>, Refusal> {
    let mut search = DispatchSearch::new(running.own_dispatches());
    let read = search.read_on(&broker.bus, session).await;
    read.map_err(|error| (UNAVAILABLE, error.to_string()))?;

    match search.missing().first() {
        None => Ok(search.found()),
        Some(lost) => Err((
            UNAVAILABLE,
            format!("dispatch {} of turn {} is lost; try again later", lost.id, running.turn),
        )),
    }
}

/// Returns the texts for the model of the hooks that `ran`.
fn context_texts(ran: &[TurnHookRun]) -> Vec<String> {
    ran.iter().filter_map(|ran| ran.context.clone()).collect()
}
