//! `nexus breaker list|reset`: lists hooks that keep failing, and lets them run again.

use anyhow::{Result, bail};
use shared::breaker::{Breaker, BreakerState, key_of};
use shared::bus::{Bus, Kv};
use shared::wire::topology::buckets::BREAKERS;

use crate::args::{BreakerAction, Common};
use crate::output::{bus, clock, json, table};
use crate::say;

/// Runs the command.
///
/// # Errors
/// Fails if the hook has no open breaker, or if the server cannot be asked.
pub async fn execute(common: &Common, action: BreakerAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        BreakerAction::List { all } => list(common, &bus, all).await,
        BreakerAction::Reset { hook } => {
            let former = reset(&bus, &hook).await?;
            if common.json {
                return json(&former);
            }
            say!("{hook} runs again; it had failed {} times in a row", former.failures);
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
            BreakerState::Closed => ("closed", String::new()),
            BreakerState::Open { until } => ("open", format!("one probe after {}", clock(*until))),
            BreakerState::HalfOpen { by, until } => ("half-open", format!("probed by {by} until {}", clock(*until))),
        };
        rows.add_row([
            breaker.hook_id.clone(),
            state.to_owned(),
            breaker.failures.to_string(),
            breaker.last_error_at.map(clock).unwrap_or_default(),
            next,
        ]);
    }

    say!("{rows}");
    Ok(())
}

/// Closes the breaker of `hook`, even if replicas write it at the same moment. Returns its former value. Every replica
/// learns of the change at once.
///
/// # Errors
/// Fails if the breaker is closed already, or if the server cannot be asked.
/// Fails if it is at rest already, or the server cannot be asked.
pub async fn reset(bus: &Bus, hook: &str) -> Result<Breaker> {
    let kv: Kv<Breaker> = bus.kv(BREAKERS);
    if let Some(former) = kv.reset(hook).await? {
        return Ok(former);
    }
    if kv.get(&key_of(hook)).await?.is_some() {
        bail!("{hook} has not failed since it last worked");
    }
    bail!("no failure of {hook} is known; see `nexus breaker list --all`")
}

#[cfg(test)]
mod tests {
    use shared::breaker::BreakerPolicy;
    use shared::model::time::UnixMillis;
    use shared::wire::subject::token;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reset_closes_an_open_breaker_and_says_what_it_was() {
        let (_server, bus) = shared::testing::world().await;
        let kv: Kv<Breaker> = bus.kv(BREAKERS);

        let mut open = Breaker::for_hook("work/route", "1");
        for _ in 0..5 {
            open = open
                .after_failure(&BreakerPolicy::default(), "a", UnixMillis(1))
                .expect("it counts");
        }

        kv.create(&token("work/route"), &open).await.expect("stored");
        assert_eq!(reset(&bus, "work/route").await.expect("reset"), open);

        let stored = kv.get(&token("work/route")).await.expect("readable").expect("stored");
        assert!(stored.value.is_at_rest());

        let again = reset(&bus, "work/route").await.expect_err("there is nothing to reset");
        assert!(again.to_string().contains("has not failed since"), "{again}");

        let unknown = reset(&bus, "nobody").await.expect_err("nobody knows it");
        assert!(unknown.to_string().contains("no failure of nobody"), "{unknown}");
    }
}
