//! `nexus recover list|redo|skip`: held messages, which scheduler-svc decides for operators.
//!
//! After a restore the streams may have lost the record of finished work. It is then unknown whether a message took
//! effect, and the operator decides.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::wire::held::HeldUntil;
use shared::wire::operator::held_messages::{DecideHeld, HeldDecided, HeldDecision, HeldList, ListHeld};
use ulid::Ulid;

use crate::args::{Common, RecoverAction};
use crate::complain;
use crate::connect::{Caller, connect_caller};
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View};
use crate::service::call_service;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the command.
///
/// # Errors
/// Fails if no message with that id is held, or if scheduler-svc refuses or does not answer.
pub async fn execute(common: &Common, action: RecoverAction) -> Result<()> {
    let caller = connect_caller(common).await?;
    match action {
        RecoverAction::List { all } => list_messages(common, &caller.bus, all).await,
        RecoverAction::Redo { id, .. } => write_decisions(common, &caller, id.as_deref(), HeldDecision::Redo).await,
        RecoverAction::Skip { id, .. } => write_decisions(common, &caller, id.as_deref(), HeldDecision::Skip).await,
    }
}

async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    call_service(
        bus,
        "scheduler-svc",
        &format!("nexus.svc.held.{endpoint}"),
        question,
        PATIENCE,
    )
    .await
}

const fn decision_word(wanted: HeldUntil) -> &'static str {
    match wanted {
        HeldUntil::Decided => "held",
        HeldUntil::Redo => "redo",
        HeldUntil::Skip => "skip",
    }
}

async fn list_messages(common: &Common, bus: &Bus, all: bool) -> Result<()> {
    let HeldList {
        held,
        total,
        unreadable,
    } = ask(bus, "list", &ListHeld { all }).await?;
    for (key, why) in &unreadable {
        complain!("the held message {key} cannot be read: {why}");
    }

    let columns = [
        Column::id("ID"),
        Column::text("KIND"),
        Column::time("SINCE"),
        Column::text("STATE"),
        Column::text("SUBJECT").extra(),
        Column::text("REASON"),
    ];
    let table = Table::new(&columns).with(&held, |one| {
        [
            one.id.to_string().into(),
            one.kind.name().into(),
            one.at.into(),
            decision_word(one.wanted).into(),
            (&one.subject).into(),
            (&one.why).into(),
        ]
    });

    let count = match total - held.len() {
        0 => format!("{total} messages"),
        _ => format!("{} of {total} messages", held.len()),
    };
    View::list(&held, table)?.line(count).show(common)
}

/// Returns the ids that are decided: `id`, or those of all undecided messages.
async fn chosen_ids(bus: &Bus, id: Option<&str>) -> Result<Vec<Ulid>> {
    let Some(id) = id else {
        let list: HeldList = ask(bus, "list", &ListHeld { all: false }).await?;
        return Ok(list.held.into_iter().map(|held| held.id).collect());
    };
    let unknown = |_| {
        failure(
            Exit::NotFound,
            format!("nothing with id {id} is held (`nexus recover list`)"),
        )
    };
    Ok(vec![id.parse::<Ulid>().map_err(unknown)?])
}

/// Decides the held message `id`, or every undecided one. Decisions made before an error are shown all the same.
async fn write_decisions(common: &Common, caller: &Caller, id: Option<&str>, decision: HeldDecision) -> Result<()> {
    let mut decided: Vec<HeldDecided> = Vec::new();
    let mut failed = Ok(());
    // A list has the first of very many: what is left is asked for again.
    loop {
        let ids = chosen_ids(&caller.bus, id).await?;
        let before = decided.len();
        for id in ids {
            let by = caller.name.clone();
            match ask(&caller.bus, "decide", &DecideHeld { id, decision, by }).await {
                Ok(answer) => decided.push(answer),
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        if id.is_some() || failed.is_err() || decided.len() == before {
            break;
        }
    }

    if failed.is_ok() || !decided.is_empty() {
        decisions_view(id.is_some(), &decided)?.show(common)?;
    }
    failed
}

/// Returns the decisions on `decided`: one object if one message `is_named`, else a list.
fn decisions_view(is_named: bool, decided: &[HeldDecided]) -> Result<View> {
    let objects: Vec<Value> = decided
        .iter()
        .map(|one| json!({ "id": one.id, "kind": one.kind.name(), "decision": one.decision.name() }))
        .collect();
    let view = match objects.as_slice() {
        [only] if is_named => View::of(only)?,
        all => View::of(all)?,
    };

    let sentences: Vec<String> = decided
        .iter()
        .map(|one| format!("{} {}: {}", one.kind.name(), one.id, one.decision.name()))
        .collect();

    Ok(view
        .ids(decided.iter().map(|one| one.id.to_string()))
        .line(sentences.join("\n"))
        .line(format!("{} messages", decided.len())))
}
