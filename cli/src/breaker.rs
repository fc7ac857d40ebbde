//! `nexus breaker list|reset`: lists hooks that keep failing, and lets them run again.

use anyhow::Result;
use shared::breaker::{Breaker, BreakerState, key_of};
use shared::bus::{Bus, Kv};
use shared::wire::topology::buckets::BREAKERS;

use crate::args::{BreakerAction, Common};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View, reader_zone};

/// Runs the command.
///
/// # Errors
/// Fails if the hook has no open breaker, or if the server cannot be asked.
pub async fn execute(common: &Common, action: BreakerAction) -> Result<()> {
    let bus = connect_bus(common).await?;
    match action {
        BreakerAction::List { all } => list_breakers(common, &bus, all).await,
        BreakerAction::Reset { hook } => {
            let former = reset(&bus, &hook).await?;
            let sentence = format!("{hook} runs again; it had failed {} times in a row", former.failures);
            View::one(&hook, &former)?.line(sentence).show(common)
        }
    }
}

async fn list_breakers(common: &Common, bus: &Bus, all: bool) -> Result<()> {
    let kv: Kv<Breaker> = bus.kv(BREAKERS);
    let entries = kv.entries().await?;
    let mut shown: Vec<Breaker> = entries
        .into_iter()
        .map(|(_, entry)| entry.value)
        .filter(|breaker| all || !breaker.is_at_rest())
        .collect();
    shown.sort_by(|a, b| a.hook_id.cmp(&b.hook_id));

    let zone = reader_zone(common);
    let columns = [
        Column::id("HOOK"),
        Column::text("STATE"),
        Column::number("ERRORS"),
        Column::time("LAST ERROR"),
        Column::text("NEXT"),
    ];
    let table = Table::new(&columns).with(&shown, |breaker| {
        let (state, next) = match &breaker.circuit {
            BreakerState::Closed => ("running", String::new()),
            BreakerState::Open { until } => ("paused", format!("one probe after {}", zone.date_time(*until))),
            BreakerState::HalfOpen { by, until } => {
                ("probing", format!("probed by {by} until {}", zone.date_time(*until)))
            }
        };
        [
            (&breaker.hook_id).into(),
            state.into(),
            breaker.failures.into(),
            breaker.last_error_at.into(),
            next.into(),
        ]
    });

    View::list(&shown, table)?.show(common)
}

/// Closes the breaker of `hook`, even if replicas write it at the same moment. Returns its former value. Every replica
/// learns of the change at once.
///
/// # Errors
/// Fails if the breaker is closed already, or if the server cannot be asked.
pub async fn reset(bus: &Bus, hook: &str) -> Result<Breaker> {
    let kv: Kv<Breaker> = bus.kv(BREAKERS);
    if let Some(former) = kv.reset(hook).await? {
        return Ok(former);
    }
    if kv.get(&key_of(hook)).await?.is_some() {
        let text = format!("{hook} is not paused");
        return Err(failure(Exit::Refused, text));
    }

    let text = format!("{hook} has no recorded errors; see `nexus breaker list --all`");
    Err(failure(Exit::NotFound, text))
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
        assert!(again.to_string().contains("work/route is not paused"), "{again}");

        let unknown = reset(&bus, "nobody").await.expect_err("nobody knows it");
        assert!(
            unknown.to_string().contains("nobody has no recorded errors"),
            "{unknown}"
        );
    }
}
