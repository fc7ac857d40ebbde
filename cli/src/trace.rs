//! `nexus trace`: everything that an event led to, with times, from the read model.

use std::time::Duration;

use anyhow::Result;
use shared::bus::Bus;
use shared::clock::pause;
use shared::model::event::EventId;
use shared::projection::api::{EventTrace, TraceRequest, TraceStage};

use crate::args::{Common, SessionName, TraceOptions};
use crate::codes::explain_step;
use crate::connect::connect_bus;
use crate::events::{parse_event_id, unknown_event};
use crate::output::{Column, Table, View, Zone, reader_zone};
use crate::service::ask_service;
use crate::session::{absence_text, read_state};

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
    let id = parse_event_id(options.event_id)?;
    let bus = connect_bus(common).await?;
    let trace = await_complete(&bus, &id, Duration::from_secs(options.wait)).await?;
    if trace.event.is_none() {
        return Err(unknown_event(&id));
    }

    let absent = absent_agents(&bus, &trace, &reader_zone(common)).await;
    let mut whole = serde_json::to_value(&trace)?;
    if !absent.is_empty() {
        whole["absent"] = absent.clone().into();
    }

    let mut view = trace_view(&trace, &whole)?;
    for line in absent {
        view = view.line(line);
    }

    view.show(common)
}

/// Returns the sessions that an unfinished chain waits for and whose agent cannot be reached, one line each. Sessions
/// without an answer from a broker are left out: the command was asked for the chain.
async fn absent_agents(bus: &Bus, trace: &EventTrace, zone: &Zone) -> Vec<String> {
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
        let view = read_state(bus, &named).await.unwrap_or_default();
        lines.extend(absence_text(&view, zone).map(|absence| format!("{session}: {absence}")));
    }

    lines
}

/// Requests the chain once.
///
/// # Errors
/// Fails if no hook-svc answers.
pub async fn ask_trace(bus: &Bus, id: &EventId) -> Result<EventTrace> {
    let question = TraceRequest { event_id: id.clone() };
    ask_service(bus, "hook-svc", "nexus.svc.events.trace", &question, ANSWER).await
}

/// Requests the chain until it is complete, at most for `patience`. Returns the last state.
///
/// # Errors
/// Fails if no hook-svc answers within `patience`.
pub async fn await_complete(bus: &Bus, id: &EventId, patience: Duration) -> Result<EventTrace> {
    let mut last = ask_trace(bus, id).await;
    // The last answer counts, complete or not; the replica that serves it may just be starting.
    let _ = tokio::time::timeout(patience, async {
        while !last.as_ref().is_ok_and(|trace| trace.complete) {
            pause(LOOK_EVERY).await;
            let newer = ask_trace(bus, id).await;
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

/// Returns `trace` for people as a table: time, time since the start, step and its duration. Its JSON is `whole`.
///
/// # Errors
/// Fails if `whole` has no JSON form.
pub fn trace_view<T: serde::Serialize>(trace: &EventTrace, whole: &T) -> Result<View> {
    let start = trace.steps.first().map(|step| step.at_ms).unwrap_or_default();
    let columns = [
        Column::clock("TIME").extra(),
        Column::number("AFTER"),
        Column::number("TOOK").extra(),
        Column::id("STAGE"),
        Column::id("ID"),
        Column::prose("DETAIL"),
    ];
    let table = Table::new(&columns).with(&trace.steps, |step| {
        [
            step.at_ms.into(),
            format!("+{} ms", step.at_ms.since(start)).into(),
            step.took_ms.map(|ms| format!("{ms:.1} ms")).into(),
            format!("{}{}", " ".repeat(usize::from(step.depth)), name(step.stage)).into(),
            (&step.id).into(),
            explain_step(step.stage, &step.detail).into(),
        ]
    });

    let ids: Vec<String> = trace.steps.iter().map(|step| step.id.clone()).collect();
    let view = View::of(whole)?.ids(ids);
    let mut view = view.fields([("begun", start.into())]).table(table);
    if trace.cut {
        view = view.line("cut: the trace is longer than shown");
    }

    Ok(view.line(if trace.complete { "complete" } else { "not complete yet" }))
}
