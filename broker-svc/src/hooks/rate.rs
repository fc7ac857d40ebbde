//! `rate_limit`: calls of one connector by one user, counted over all brokers in KV `hook_limits` by compare-and-set.
//!
//! A connector is the MCP server that a tool comes from; a built-in tool is its own. Source: seed 002;
//! `docs/design/trust.md` §6.

use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::{SharedClock, pause};
use shared::model::rate::{RateVerdict, RateWindow};
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_LIMITS;

use super::declared::DeclaredHook;
use super::hooked_turn::HookedTurn;
use super::outcome::{HookContext, HookOutcome, RunHookError};

/// Maximum number of tries of one compare-and-set while other brokers count.
const MAX_TRIES: u32 = 200;
/// Wait between two tries.
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// A limit: at most so many calls in any window of so many milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct CallLimit {
    /// Maximum number of calls in the window.
    pub calls: usize,
    /// Length of the window, milliseconds.
    pub window_ms: u64,
}

/// Counts the call of `context`, and returns whether it may run. A call that was counted is not counted again: the
/// chain may run more than once for one call.
///
/// # Errors
/// Returns [`RunHookError::Failed`] if the count cannot be read or written.
pub async fn admit_call(
    bus: &Bus,
    clock: &SharedClock,
    hook: &DeclaredHook,
    limit: CallLimit,
    moment: &HookedTurn,
    context: &HookContext,
) -> Result<HookOutcome, RunHookError> {
    let kv: Kv<RateWindow> = bus.kv(HOOK_LIMITS);
    // The same user id on another channel is another person.
    let hook = hook.key();
    let connector = connector_of(&context.tool_name);
    let key = [
        hook.as_str(),
        connector,
        context.metadata_text("channel"),
        &context.user_id,
    ];
    let key = key.map(token).join(".");
    let id = format!("{}/{}", moment.turn, context.metadata_text("call"));

    // Whole seconds, and one more: a call that still counts must still be stored.
    let ttl = Duration::from_secs(limit.window_ms.div_ceil(1_000) + 1);
    for _ in 0..MAX_TRIES {
        let entry = kv
            .get(&key)
            .await
            .map_err(|error| RunHookError::Failed(error.to_string()))?;
        let (window, revision) = entry.map_or_else(Default::default, |entry| (entry.value, Some(entry.revision)));
        let written = match window.admit_call(&id, clock.now(), limit.calls, limit.window_ms) {
            RateVerdict::Already => return Ok(HookOutcome::default()),
            RateVerdict::Refused { retry_ms } => return Ok(refused_outcome(limit, context, retry_ms)),
            RateVerdict::As(next) => match revision {
                Some(revision) => kv.update_ttl(&key, &next, revision, ttl).await,
                None => kv.create_ttl(&key, &next, ttl).await,
            },
        };

        match written {
            Ok(_) => return Ok(HookOutcome::default()),
            Err(CasError::Conflict { .. }) => pause(BETWEEN_TRIES).await,
            Err(error) => return Err(RunHookError::Failed(error.to_string())),
        }
    }

    Err(RunHookError::Failed("failed to count the recent calls".to_owned()))
}

/// Returns the connector of `tool`: the server in its name, as Nexus (`{server}__{tool}`) and Claude Code
/// (`mcp__{server}__{tool}`) spell it; a tool without a server is its own connector. A server whose own name contains
/// `__` is counted with those that begin alike, which is stricter and never laxer.
fn connector_of(tool: &str) -> &str {
    let named = tool.strip_prefix("mcp__").filter(|rest| rest.contains("__"));
    let server = named.unwrap_or(tool).split_once("__").map(|(server, _)| server);
    server.filter(|server| !server.is_empty()).unwrap_or(tool)
}

fn refused_outcome(limit: CallLimit, context: &HookContext, retry_ms: u64) -> HookOutcome {
    let CallLimit { calls, window_ms } = limit;
    let (tool, seconds, wait) = (&context.tool_name, window_ms / 1_000, retry_ms.div_ceil(1_000));
    let connector = connector_of(tool);
    HookOutcome {
        side_effects: vec![format!("rate_limit: refused {tool} of {}", context.user_id)],
        ..HookOutcome::denied(format!(
            "rate limit: at most {calls} calls of `{connector}` in {seconds} s; try again in {wait} s"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_one_server_are_one_connector() {
        for (tool, of) in [
            ("erp__read_order", "erp"),
            ("erp__write__order", "erp"),
            ("mcp__erp__read_order", "erp"),
            ("erp_read", "erp_read"),
            ("list_hooks", "list_hooks"),
            ("Bash", "Bash"),
            ("__odd", "__odd"),
            ("mcp__odd", "mcp"),
        ] {
            assert_eq!(connector_of(tool), of, "{tool}");
        }
    }
}
