//! `nexus breaker list|reset`: hooks that keep failing, and letting them run again.

use anyhow::{Context as _, Result};
use shared::breaker::{Breaker, Circuit};
use shared::bus::{Bus, Kv};
use shared::wire::subject::token;
use shared::wire::topology::buckets::BREAKERS;

use crate::args::{BreakerAction, Common};
use crate::output::{bus, clock, json, table};

/// Runs the command.
///
/// # Errors
/// Where the hook has no breaker that could be reset, or the server cannot be asked.
pub async fn execute(common: &Common, action: BreakerAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        BreakerAction::List { all } => list(common, &bus, all).await,
        BreakerAction::Reset { hook } => {
            let former = reset(&bus, &hook).await?;
            println!("{hook} runs again; it had failed {} times in a row", former.failures);
            Ok(())
        }
    }
}

async fn list(common: &Common, bus: &Bus, all: bool) -> Result<()> {
    let kv: Kv<Breaker> = bus.kv(BREAKERS);
    let entries = kv.entries().await?;
    let mut shown: Vec<Breaker> = entries
        .into_iter()
        .map(|(_, entry)| entry.value)
        .filter(|breaker| all || !breaker.is_at_rest())
        .collect();
    shown.sort_by(|a, b| a.hook_id.cmp(&b.hook_id));
    if common.json {
        return json(&shown);
    }
    let mut rows = table(&["hook", "state", "failures in a row", "last error (UTC)", "next"]);
    for breaker in shown {
        let (state, next) = match &breaker.circuit {
            Circuit::Closed => ("closed", String::new()),
            Circuit::Open { until } => ("open", format!("one probe after {}", clock(*until))),
            Circuit::HalfOpen { by, until } => ("half-open", format!("probed by {by} until {}", clock(*until))),
        };
        rows.add_row([
            breaker.hook_id.clone(),
            state.to_owned(),
            breaker.failures.to_string(),
            breaker.last_error_at.map(clock).unwrap_or_default(),
            next,
        ]);
    }
    println!("{rows}");
    Ok(())
}

/// Closes the breaker of `hook`; answers what it was. Every replica hears of it at once.
///
/// # Errors
/// Where it is at rest already, or the server cannot be asked.
pub async fn reset(bus: &Bus, hook: &str) -> Result<Breaker> {
    let kv: Kv<Breaker> = bus.kv(BREAKERS);
    let key = token(hook);
    let entry = kv.get(&key).await?.filter(|entry| !entry.value.is_at_rest());
    let entry = entry.with_context(|| format!("{hook} has not failed since it last worked"))?;
    kv.update(&key, &entry.value.reset(), entry.revision).await?;
    Ok(entry.value)
}

#[cfg(test)]
mod tests {
    use shared::breaker::BreakerPolicy;
    use shared::bus::NatsConfig;
    use shared::model::time::UnixMillis;
    use shared::testing::nats::NatsServer;
    use shared::wire::topology::topology;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reset_closes_an_open_breaker_and_says_what_it_was() {
        let server = NatsServer::start().await;
        let config = NatsConfig {
            servers: vec![server.url()],
            ..NatsConfig::default()
        };
        let bus = shared::testing::connect(&config, "test").await;
        bus.ensure(&topology(1), false).await.expect("the topology stands");
        let kv: Kv<Breaker> = bus.kv(BREAKERS);
        let mut open = Breaker::of("work/route", "1");
        for _ in 0..5 {
            open = open
                .failed(&BreakerPolicy::default(), "a", UnixMillis(1))
                .expect("it counts");
        }
        kv.create(&token("work/route"), &open).await.expect("stored");
        assert_eq!(reset(&bus, "work/route").await.expect("reset"), open);
        let stored = kv.get(&token("work/route")).await.expect("readable").expect("stored");
        assert!(stored.value.is_at_rest());
        assert!(reset(&bus, "work/route").await.is_err(), "there is nothing to reset");
    }
}
