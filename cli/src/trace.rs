//! `nexus trace`: everything that an event led to, with times, from the read model.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::bus::Bus;
use shared::clock::pause;
use shared::model::event::EventId;
use shared::projection::api::{EventTrace, TraceRequest, TraceStage};
use shared::wire::headers::Headers;

use crate::args::{Common, SessionName, TraceOptions};
use crate::output::{brief, bus, clock, json, table};
use crate::say;
use crate::session::{absence, standing};

/// Longest time that one answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Largest number of sessions of one chain whose status is requested.
const MAX_ASKED: usize = 16;
/// Interval at which an incomplete chain is requested again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// Fails if the event is not known.
pub async fn execute(common: &Common, options: TraceOptions) -> Result<()> {
    let bus = bus(common).await?;
    let id = EventId::parse(options.event_id)?;
    let trace = await_complete(&bus, &id, Duration::from_secs(options.wait)).await?;
    let absent = absent(&bus, &trace).await;

    if common.json {
        let mut whole = serde_json::to_value(&trace)?;
        if !absent.is_empty() {
            whole["absent"] = absent.into();
        }
        return json(&whole);
    }

    if trace.event.is_none() {
        bail!("no event {id} is known (yet); see `nexus tail`");
    }

    print(&trace);

    for line in absent {
        say!("{line}");
    }

    Ok(())
}

/// Returns the sessions that an unfinished chain waits for and whose agent cannot be reached, one line each. Sessions
/// without an answer from a broker are left out: the command was asked for the chain.
async fn absent(bus: &Bus, trace: &EventTrace) -> Vec<String> {
    let mut sessions: Vec<&str> = trace.steps.iter().filter_map(|step| step.session.as_deref()).collect();
    sessions.sort_unstable();
    sessions.dedup();

    if trace.complete {
        sessions.clear();
    }

    let mut lines = Vec::new();
    for session in sessions.into_iter().take(MAX_ASKED) {
        let Some((persona, name)) = session.split_once('/') else {
            continue;
        };

        let named = SessionName {
            persona: persona.to_owned(),
            session: name.to_owned(),
        };
        let view = standing(bus, &named).await.unwrap_or_default();
        lines.extend(absence(&view).map(|absence| format!("{session}: {absence}")));
    }

    lines
}

/// Requests the chain once.
///
/// # Errors
/// Fails if no hook-svc answers.
pub async fn ask(bus: &Bus, id: &EventId) -> Result<EventTrace> {
    let question = TraceRequest { event_id: id.clone() };
    bus.request("nexus.svc.events.trace", Headers::new(), &question, ANSWER)
        .await
        .context("the read model is served by hook-svc: does one run?")
}

/// Requests the chain until it is complete, at most for `patience`. Returns the last state.
///
/// # Errors
/// Fails if no hook-svc answers within `patience`.
pub async fn await_complete(bus: &Bus, id: &EventId, patience: Duration) -> Result<EventTrace> {
    let mut last = ask(bus, id).await;
    // The last answer counts, complete or not; the replica that serves it may just be starting.
    let _ = tokio::time::timeout(patience, async {
        while !last.as_ref().is_ok_and(|trace| trace.complete) {
            pause(LOOK_EVERY).await;
            let newer = ask(bus, id).await;
            if newer.is_ok() {
                last = newer;
            }
        }
    })
    .await;

    last
}

const fn name(stage: TraceStage) -> &'static str {
    match stage {
        TraceStage::Event => "event",
        TraceStage::Hook => "hook",
        TraceStage::Dispatch => "dispatch",
        TraceStage::Turn => "turn",
        TraceStage::Tool => "tool",
        TraceStage::Approval => "approval",
        TraceStage::Intent => "intent",
        TraceStage::Delivery => "delivery",
        TraceStage::Sent => "sent",
        TraceStage::DeadLetter => "dead letter",
    }
}

/// Prints a chain as a table: time, time since the start, and step.
pub fn print(trace: &EventTrace) {
    let start = trace.steps.first().map(|step| step.at_ms).unwrap_or_default();
    let mut rows = table(&["time (UTC)", "after", "took", "stage", "id", "what"]);
    for step in &trace.steps {
        let took = step.took_ms.map(|ms| format!("{ms:.1} ms")).unwrap_or_default();
        let stage = format!("{}{}", "  ".repeat(usize::from(step.depth)), name(step.stage));
        let after = format!("+{} ms", step.at_ms.since(start));

        rows.add_row([
            clock(step.at_ms),
            after,
            took,
            stage,
            brief(&step.id, 44),
            brief(&step.detail, 60),
        ]);
    }

    say!("{rows}");

    if trace.cut {
        say!("cut: the chain is longer than what is shown");
    }

    say!("{}", if trace.complete { "complete" } else { "not complete yet" });
}
