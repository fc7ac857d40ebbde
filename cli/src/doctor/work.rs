//! The state of the work: what waits, what was given up, what is paused or parked.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared::breaker::{Breaker, Circuit};
use shared::bus::{Bus, Entry, Kv, partition};
use shared::model::schedule::ScheduleRecord;
use shared::wire::held::HeldUntil;
use shared::wire::session_mark::SessionMark;
use shared::wire::topology::{PARTITIONS, buckets, streams};
use shared::wire::witness::Witnessed;

use super::{Finding, Surroundings};
use crate::output::clock;

/// What waits in front of hooks, sessions and destinations. Waiting is no fault in itself.
pub(super) fn waiting(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let mut deliveries = 0;
        for partition in 0..PARTITIONS {
            let consumer = format!("delivery-{partition}");
            let lag = bus.consumer_lag(streams::DELIVERIES, &consumer).await;
            deliveries += lag.unwrap_or_default().all();
        }

        let hooks = partition::unsettled(bus, streams::EVENTS, "hook").await.unwrap_or(0);
        let mut findings: Vec<Finding> = [("hooks", hooks), ("deliveries", deliveries)]
            .map(|(what, waiting)| Finding::ok(what, format!("{waiting} messages wait")))
            .into();

        if let Ok(state) = bus.stream_state(streams::PARKED).await {
            let detail = format!("{} replies wait behind destinations that fail", state.messages);
            findings.push(if state.messages == 0 {
                Finding::ok("parked", detail)
            } else {
                Finding::warning("parked", detail)
            });
        }

        match crate::backup::waiting(bus).await {
            Ok(Some(count)) => {
                let detail = format!("{count} deliveries wait since a restore (`nexus restore --list`)");
                findings.push(Finding::warning("restored", detail));
            }
            Ok(None) => {}
            Err(error) => findings.push(Finding::fault("restored", format!("{error:#}"))),
        }
        findings
    }
    .boxed_local()
}

/// Messages that were given up: somebody must look.
pub(super) fn dead_letters(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        match bus.stream_state(streams::DLQ).await {
            Ok(state) => {
                let detail = format!("{} (`nexus dlq list`)", state.messages);
                vec![Finding::judged("dead letters", state.messages == 0, detail)]
            }
            Err(error) => vec![Finding::fault("dead letters", error.to_string())],
        }
    }
    .boxed_local()
}

/// Sessions that run, and those that are quarantined.
pub(super) fn sessions(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let mut findings = Vec::new();
        if let Ok(state) = bus.stream_state(streams::CLAIMS).await {
            findings.push(Finding::ok("sessions", format!("{} claimed", state.messages)));
        }

        let marks: Kv<SessionMark> = bus.kv(buckets::SESSION_OVERRIDES);
        for (_, entry) in marks.entries().await.unwrap_or_default() {
            if let Some(why) = &entry.value.quarantined {
                let session = &entry.value.session;
                let detail = format!("{session} is quarantined: {why}; `nexus session release` lets it run");
                findings.push(Finding::fault("quarantine", detail));
            }
        }
        findings
    }
    .boxed_local()
}

/// What nobody can tell to be done or undone, and streams that were put back to an older state.
pub(super) fn held(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let mut findings = Vec::new();
        if let Ok(held) = bus.held().entries().await {
            let is_open = |wanted: HeldUntil| wanted == HeldUntil::Decided;
            let open = held.iter().filter(|(_, entry)| is_open(entry.value.wanted)).count();
            let detail = format!("{open} messages (`nexus recover list`)");
            findings.push(Finding::judged("held", open == 0, detail));
        }
        if let Ok(witnessed) = bus.kv::<Witnessed>(buckets::POSITIONS).entries().await {
            findings.push(positions(&witnessed));
        }
        findings
    }
    .boxed_local()
}

fn positions(witnessed: &[(String, Entry<Witnessed>)]) -> Finding {
    let older: Vec<String> = witnessed
        .iter()
        .filter_map(|(stream, entry)| {
            let until = entry.value.unsettled_until()?;
            Some(format!("{stream} (until {})", clock(until)))
        })
        .collect();
    if older.is_empty() {
        return Finding::ok("positions", "no stream was put back to an older state");
    }
    Finding::warning("positions", format!("put back to an older state: {}", older.join(", ")))
}

/// Hooks that are paused because they keep failing.
pub(super) fn hooks(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let paused = paused_hooks(bus).await;
        let detail = format!("{} are paused after failures", paused.len());
        if paused.is_empty() {
            return vec![Finding::ok("paused hooks", detail)];
        }
        let detail = format!("{detail}: {} (`nexus breaker list`)", paused.join(", "));
        vec![Finding::warning("paused hooks", detail)]
    }
    .boxed_local()
}

async fn paused_hooks(bus: &Bus) -> Vec<String> {
    let breakers: Kv<Breaker> = bus.kv(buckets::BREAKERS);
    let entries = breakers.entries().await.unwrap_or_default();
    let open = entries
        .into_iter()
        .filter(|(_, entry)| !matches!(entry.value.circuit, Circuit::Closed));
    open.map(|(_, entry)| entry.value.hook_id).collect()
}

/// Schedules that somebody paused.
pub(super) fn schedules(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let schedules: Kv<ScheduleRecord> = bus.kv(buckets::SCHEDULES);
        let entries = schedules.entries().await.unwrap_or_default();
        let paused = entries.iter().filter(|(_, entry)| entry.value.paused.is_some()).count();
        let detail = format!("{paused} of {} are paused", entries.len());
        vec![Finding::ok("schedules", detail)]
    }
    .boxed_local()
}
