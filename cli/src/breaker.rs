//! `nexus breaker list|reset`: lists hooks that keep failing, and lets them run again, through hook-svc.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::breaker::{Breaker, BreakerState};
use shared::bus::Bus;
use shared::wire::operator::breakers::{BreakerList, ListBreakers, ResetBreaker};

use crate::args::{BreakerAction, Common};
use crate::complain;
use crate::connect::connect_caller;
use crate::output::{Column, Table, View, reader_zone};
use crate::service::call_service;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs the command.
///
/// # Errors
/// Fails if the hook has no open breaker, or if hook-svc does not answer.
pub async fn execute(common: &Common, action: BreakerAction) -> Result<()> {
    let caller = connect_caller(common).await?;
    match action {
        BreakerAction::List { all } => list_breakers(common, &caller.bus, all).await,
        BreakerAction::Reset { hook } => {
            let by = caller.name;
            let request = ResetBreaker { hook, by };
            let former: Breaker = ask(&caller.bus, "reset", &request).await?;
            let hook = &request.hook;
            let sentence = format!("{hook} runs again; it had failed {} times in a row", former.failures);
            View::one(hook, &former)?.line(sentence).show(common)
        }
    }
}

async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    call_service(
        bus,
        "hook-svc",
        &format!("nexus.svc.breaker.{endpoint}"),
        question,
        PATIENCE,
    )
    .await
}

/// Returns all breakers, or those that are not at rest, in the order of their hooks' ids.
async fn read_breakers(bus: &Bus, all: bool) -> Result<Vec<Breaker>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let list: BreakerList = ask(bus, "list", &ListBreakers { all, after }).await?;
        for (key, why) in &list.unreadable {
            complain!("the breaker of {key} cannot be read: {why}");
        }
        found.extend(list.breakers);
        if !list.more {
            return Ok(found);
        }
        after = found.last().map(|breaker: &Breaker| breaker.hook_id.clone());
    }
}

async fn list_breakers(common: &Common, bus: &Bus, all: bool) -> Result<()> {
    let shown = read_breakers(bus, all).await?;
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
