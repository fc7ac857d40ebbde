//! What scripts may ask during a replay: the configured model, within the hooks' budgets, and the read model of a
//! running hook-svc.

use std::sync::Arc;
use std::time::Duration;

use hook_svc::config::HooksConfig;
use hook_svc::llm::{Budget, Limits, LlmHost, model};
use hook_svc::runner::{Answered, Call, CallError, Host, Spent, not_available};
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::clock::{SharedClock, SystemClock};
use shared::llm::LlmConfig;
use shared::process::Shutdown;
use shared::wire::headers::Headers;

/// How long a search may take.
const SEARCH: Duration = Duration::from_secs(30);

/// The host of a replay.
pub(super) fn of(bus: &Bus, config: &HooksConfig, llm: &LlmConfig) -> Arc<dyn Host> {
    let clock: SharedClock = Arc::new(SystemClock);
    let limits = Limits {
        hook_usd: config.llm_daily_usd_per_hook,
        all_usd: config.llm_daily_usd,
    };
    let budget = Budget::new(bus, limits, Arc::clone(&clock));
    let model = model(llm, clock, Shutdown::default());
    Arc::new(LlmHost::new(model, budget, Arc::new(Search { bus: bus.clone() })))
}

/// `search`, asked of whichever replica answers.
#[derive(Debug)]
struct Search {
    bus: Bus,
}

#[async_trait::async_trait]
impl Host for Search {
    async fn call(&self, call: Call) -> Answered {
        if call.name != "search" {
            return not_available(&call.name);
        }
        let subject = "nexus.svc.events.search";
        let asked = self.bus.request(subject, Headers::new(), &call.args, SEARCH).await;
        let found = |reply: Value| -> Value {
            let hits = reply["hits"].as_array().cloned().unwrap_or_default();
            hits.iter()
                .map(|hit| json!({"eventId": hit["event_id"], "score": hit["score"]}))
                .collect()
        };
        Answered {
            outcome: asked
                .map(found)
                .map_err(|error| CallError::new("unavailable", format!("search(): {error}"))),
            spent: Spent {
                search_calls: 1,
                ..Spent::default()
            },
        }
    }
}
