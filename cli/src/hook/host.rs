//! Services for scripts during a replay: the configured model, within the hooks' budgets, and the read model of a
//! running hook-svc.

use std::sync::Arc;
use std::time::Duration;

use hook_svc::config::HooksConfig;
use hook_svc::host::llm::{LlmHost, SpendBudget, SpendLimits, model_price, open_model};
use hook_svc::runner::{CallError, CallResult, CallUsage, HostCall, ScriptHost, not_available};
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::clock::{SharedClock, SystemClock};
use shared::llm::LlmConfig;
use shared::model::time::UnixMillis;
use shared::process::ShutdownSignal;

/// Longest time that a search may take.
const SEARCH: Duration = Duration::from_secs(30);

/// Returns the host of a replay.
pub(super) fn of(bus: &Bus, config: &HooksConfig, llm: &LlmConfig) -> Arc<dyn ScriptHost> {
    let clock: SharedClock = Arc::new(SystemClock);
    let limits = SpendLimits {
        hook_usd: config.llm_daily_usd_per_hook,
        all_usd: config.llm_daily_usd,
    };
    let budget = SpendBudget::new(bus, limits, model_price(llm), Arc::clone(&clock));
    let model = open_model(llm, clock, ShutdownSignal::default());
    Arc::new(LlmHost::new(model, budget, Arc::new(Search { bus: bus.clone() })))
}

/// Returns the request `args` of a script for which `now` is the present: the search finds nothing later.
fn up_to(mut args: Value, now: UnixMillis) -> Value {
    // `until` is exclusive, and the event of this moment must be found.
    let present = now.0.saturating_add(1);
    if let Some(args) = args.as_object_mut() {
        let until = args.get("until").and_then(Value::as_i64).unwrap_or(present);
        args.insert("until".to_owned(), until.min(present).into());
    }
    args
}

/// `search`, answered by any replica of hook-svc.
#[derive(Debug)]
struct Search {
    bus: Bus,
}

#[async_trait::async_trait]
impl ScriptHost for Search {
    async fn call(&self, call: HostCall) -> CallResult {
        if call.name != "search" {
            return not_available(&call.name);
        }

        let subject = "nexus.svc.events.search";
        let args = up_to(call.args, call.now);
        let asked = self.bus.ask(subject, &args, SEARCH).await;

        let found = |reply: Value| -> Value {
            let hits = reply["hits"].as_array().cloned().unwrap_or_default();
            hits.iter()
                .map(|hit| json!({"eventId": hit["event_id"], "score": hit["score"]}))
                .collect()
        };

        CallResult {
            outcome: asked
                .map(found)
                .map_err(|error| CallError::new("unavailable", format!("search(): {error}"))),
            spent: CallUsage {
                search_calls: 1,
                ..CallUsage::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_does_not_find_the_future() {
        let check = |args: Value, until: i64| assert_eq!(up_to(args, UnixMillis(100))["until"], until);
        check(json!({"query": "code"}), 101);
        check(json!({"query": "code", "until": null}), 101);
        check(json!({"query": "code", "until": 7}), 7);
        check(json!({"query": "code", "until": 7000}), 101);
    }
}
