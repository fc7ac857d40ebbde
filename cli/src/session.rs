//! `nexus session`: where sessions stand, orders to them, and letting a quarantined one run again.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::model::ledger::LedgerRecord;
use shared::model::session::SessionRef;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::LEDGER;

use crate::args::{Common, SessionAction, SessionName, SessionOrderOptions};
use crate::output::{bus, json as print, table};

/// How long a broker may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Runs the command.
///
/// # Errors
/// Where there is no such session, no broker answers, or the server cannot be asked.
pub async fn execute(common: &Common, action: SessionAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        SessionAction::Release(name) => {
            let answer = ask(&bus, "release", named(&name), ANSWER).await?;
            let why = answer["why"].as_str().unwrap_or_default();
            println!(
                "{}/{} is released; it was quarantined because its {why}",
                name.persona, name.session
            );
            Ok(())
        }
        SessionAction::List { persona, limit } => list(common, &bus, persona.as_deref(), limit).await,
        SessionAction::Show(name) => print(&ask(&bus, "show", named(&name), ANSWER).await?),
        SessionAction::Tail { name, count, all } => tail(&bus, name, count.unwrap_or(u64::MAX), all).await,
        SessionAction::Abort(order) => give(&bus, "abort", &order, json!({})).await,
        SessionAction::Interrupt(order) => give(&bus, "interrupt", &order, json!({})).await,
        SessionAction::Reset(order) => give(&bus, "reset", &order, json!({})).await,
        SessionAction::Queue {
            order,
            mode,
            debounce_ms,
            cap,
            overflow,
        } => {
            let mut settings = json!({ "mode": mode, "debounce_ms": debounce_ms, "cap": cap, "overflow": overflow });
            if let Some(map) = settings.as_object_mut() {
                map.retain(|_, value| !value.is_null());
            }
            give(&bus, "queue", &order, settings).await
        }
        SessionAction::Fork { name, to, turn } => {
            let mut question = named(&name);
            question["to"] = to.into();
            question["turn"] = turn.into();
            print(&ask(&bus, "fork", question, ANSWER).await?)
        }
        SessionAction::Wait { name, seconds } => {
            let mut question = named(&name);
            question["timeout_ms"] = (seconds * 1_000).into();
            let answer = ask(&bus, "wait", question, ANSWER + Duration::from_secs(seconds)).await?;
            if answer["idle"] != json!(true) {
                bail!("{}/{} is not idle after {seconds} s", name.persona, name.session);
            }
            Ok(())
        }
    }
}

fn named(name: &SessionName) -> Value {
    json!({ "persona": name.persona, "session": name.session })
}

async fn ask(bus: &Bus, endpoint: &str, question: Value, patience: Duration) -> Result<Value> {
    let subject = format!("nexus.svc.session.{endpoint}");
    let answer = bus.request(&subject, Headers::new(), &question, patience).await;
    answer.with_context(|| format!("a broker could not be asked to {endpoint}"))
}

async fn give(bus: &Bus, endpoint: &str, order: &SessionOrderOptions, settings: Value) -> Result<()> {
    let mut question = named(&order.name);
    question["reason"] = order.reason.as_str().into();
    question["settings"] = settings;
    print(&ask(bus, endpoint, question, ANSWER).await?)
}

async fn list(common: &Common, bus: &Bus, persona: Option<&str>, limit: usize) -> Result<()> {
    let answer = ask(bus, "list", json!({ "persona": persona, "limit": limit }), ANSWER).await?;
    if common.json {
        return print(&answer["sessions"]);
    }
    let mut rows = table(&["persona", "session", "records"]);
    let sessions = answer["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for one in sessions {
        let named = &one["session"];
        rows.add_row([
            text(&named["persona"]),
            text(&named["session"]),
            one["records"].to_string(),
        ]);
    }
    println!("{rows}\n{} of {} sessions", sessions.len(), answer["total"]);
    Ok(())
}

async fn tail(bus: &Bus, name: SessionName, count: u64, all: bool) -> Result<()> {
    let session = SessionRef {
        persona: name.persona,
        session: name.session,
    };
    let from = if all {
        1
    } else {
        bus.stream_state(LEDGER).await?.last + 1
    };
    let mut records = bus.ordered(LEDGER, &[subject::ledger(&session)], from).await?;
    for _ in 0..count {
        let message = records.next().await;
        let record: LedgerRecord = message
            .decode()
            .with_context(|| format!("ledger entry {}", message.sequence))?;
        let line = json!({ "sequence": message.sequence, "at": record.at, "append": record.append, "entries": record.entries });
        println!("{line}");
    }
    Ok(())
}
