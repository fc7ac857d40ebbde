//! `nexus session`: status of sessions, commands to them, and the release of a quarantined one.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::operator::tail::TailMessages;
use shared::wire::topology::streams::LEDGER;

use crate::args::{Common, SendChoice, SessionAction, SessionName, SessionOrderOptions};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Cell, Column, LinePrinter, Table, View, Zone, escape_controls, reader_zone};
use crate::service::call_service;
use crate::tail::Tail;

/// Longest time that a broker may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest wait that a broker is asked for at once, in seconds: a broker that is asked for more answers after 300.
const LONGEST_WAIT: u64 = 240;

/// Runs the command.
///
/// # Errors
/// Fails if there is no such session, if no broker answers, or if the server cannot be asked.
pub async fn execute(common: &Common, action: SessionAction) -> Result<()> {
    let bus = connect_bus(common).await?;
    match action {
        SessionAction::Release(name) => {
            let answer = ask_broker(&bus, "release", name_json(&name), ANSWER).await?;
            let why = answer["why"].as_str().unwrap_or_default();
            let sentence = format!("{} is released; it was quarantined because its {why}", full_name(&name));
            View::one(full_name(&name), &answer)?.line(sentence).show(common)
        }
        SessionAction::List { persona, limit } => list_sessions(common, &bus, persona.as_deref(), limit).await,
        SessionAction::Show(name) => show_session(common, &read_state(&bus, &name).await?),
        SessionAction::Tail { name, limit, all } => {
            tail_ledger(common, &bus, name, limit.unwrap_or(u64::MAX), all).await
        }
        SessionAction::Abort(order) => give_order(common, &bus, "abort", &order, json!({})).await,
        SessionAction::Interrupt(order) => give_order(common, &bus, "interrupt", &order, json!({})).await,
        SessionAction::Reset(order) => give_order(common, &bus, "reset", &order, json!({})).await,
        SessionAction::Queue {
            order,
            mode,
            debounce_ms,
            cap,
            overflow,
        } => {
            let (mode, overflow) = (
                mode.as_ref().and_then(value_name),
                overflow.as_ref().and_then(value_name),
            );
            let mut settings = json!({ "mode": mode, "debounce_ms": debounce_ms, "cap": cap, "overflow": overflow });
            if let Some(map) = settings.as_object_mut() {
                map.retain(|_, value| !value.is_null());
            }
            give_order(common, &bus, "queue", &order, json!({ "settings": settings })).await
        }
        SessionAction::Send { order, decision } => {
            let send = value_name(&decision).filter(|_| decision != SendChoice::Default);
            give_order(common, &bus, "send", &order, json!({ "send": send })).await
        }
        SessionAction::Fork { name, to, turn } => {
            let mut question = name_json(&name);
            question["to"] = to.into();
            question["turn"] = turn.into();
            show_session(common, &ask_broker(&bus, "fork", question, ANSWER).await?)
        }
        SessionAction::Wait { name, seconds } => wait(common, &bus, &name, seconds).await,
    }
}

/// Returns the name of an option's value, as the command line and the broker spell it.
fn value_name(value: &impl clap::ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

fn name_json(name: &SessionName) -> Value {
    json!({ "persona": name.persona, "session": name.session })
}

fn full_name(name: &SessionName) -> String {
    format!("{}/{}", name.persona, name.session)
}

async fn ask_broker(bus: &Bus, endpoint: &str, question: Value, patience: Duration) -> Result<Value> {
    let subject = format!("nexus.svc.session.{endpoint}");
    call_service(bus, "broker-svc", &subject, &question, patience).await
}

async fn wait(common: &Common, bus: &Bus, name: &SessionName, seconds: u64) -> Result<()> {
    let mut left = seconds;
    loop {
        let now = left.min(LONGEST_WAIT);
        left -= now;
        let mut question = name_json(name);
        question["timeout_ms"] = (now * 1_000).into();
        let answer = ask_broker(bus, "wait", question, ANSWER + Duration::from_secs(now)).await?;
        let is_idle = answer["idle"] == json!(true);

        let full = full_name(name);
        if is_idle {
            let sentence = format!("{full} is idle");
            return View::one(full, &answer)?.line(sentence).show(common);
        }

        if left == 0 {
            if common.json {
                View::one(full.clone(), &answer)?.show(common)?;
            }
            return Err(failure(Exit::No, format!("{full} is not idle after {seconds} s")));
        }
    }
}

async fn give_order(
    common: &Common,
    bus: &Bus,
    endpoint: &str,
    order: &SessionOrderOptions,
    mut question: Value,
) -> Result<()> {
    question["persona"] = order.name.persona.as_str().into();
    question["session"] = order.name.session.as_str().into();
    question["reason"] = order.reason.as_str().into();

    let answer = ask_broker(bus, endpoint, question, ANSWER).await?;
    let id = answer["id"].as_str().unwrap_or_default().to_owned();
    let sentence = format!(
        "{endpoint} sent to {} as order {id}; see `nexus session show`",
        full_name(&order.name)
    );

    View::one(id, &answer)?.line(sentence).show(common)
}

/// Returns the status of the session of `name`, as a broker answers it.
///
/// # Errors
/// Fails if there is no such session, or if no broker answers.
pub async fn read_state(bus: &Bus, name: &SessionName) -> Result<Value> {
    ask_broker(bus, "show", name_json(name), ANSWER).await
}

/// Returns that the agent of a session's running turn cannot be reached, and why, if a broker says so.
#[must_use]
pub fn absence_text(view: &Value, zone: &Zone) -> Option<String> {
    let away = view["running"]["away"].as_object()?;
    let since = away.get("since").and_then(Value::as_i64).unwrap_or_default();
    let since = zone.date_time(UnixMillis(since));
    let why = away.get("why").and_then(Value::as_str).unwrap_or_default();
    // The sentence says it already.
    let why = why.strip_prefix("failed to call the agent: ").unwrap_or(why);
    Some(format!("agent unreachable since {since}: {}", escape_controls(why)))
}

/// Describes the state of a session in one sentence.
fn state_text(view: &Value, zone: &Zone) -> String {
    let running = &view["running"];
    let quarantine = &view["quarantined"];
    match (&running["turn"], &running["awaits"], &view["idle"]) {
        _ if view["awaits_release"].is_string() => value_text(&view["awaits_release"]),
        _ if quarantine.is_object() => {
            let since = quarantine["since"].as_i64().unwrap_or_default();
            let since = zone.date_time(UnixMillis(since));
            format!("quarantined since {since}: its {}", value_text(&quarantine["why"]))
        }
        (Value::String(turn), Value::String(approval), _) => format!("turn {turn} waits for approval {approval}"),
        (Value::String(turn), _, _) => {
            let calls = format!("turn {turn} runs, {} model calls", running["model_calls"]);
            match absence_text(view, zone) {
                Some(absence) => format!("{calls}; {absence}"),
                None => calls,
            }
        }
        (_, _, Value::Bool(true)) => "idle".to_owned(),
        (_, _, _) => "messages are queued".to_owned(),
    }
}

/// Returns a JSON value as text: a string without its quotes, nothing for `null`.
fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Shows the status of a session, as `show` and `fork` return it.
fn show_session(common: &Common, view: &Value) -> Result<()> {
    let usage = &view["usage"];
    let named = &view["session"];
    let full = format!("{}/{}", value_text(&named["persona"]), value_text(&named["session"]));
    let queue = view["queue"].as_object().into_iter().flatten();
    let queue: Vec<String> = queue
        .map(|(name, value)| format!("{name} {}", value_text(value)))
        .collect();

    let tokens = format!(
        "{} in, {} out, $ {}",
        usage["tokens_in"], usage["tokens_out"], usage["cost_usd"]
    );
    let fields = [
        ("session", Cell::from(&full)),
        ("state", state_text(view, &reader_zone(common)).into()),
        ("waiting", value_text(&view["waiting"]).into()),
        ("history", format!("{} turns", view["turns_in_history"]).into()),
        ("tokens", tokens.into()),
        ("newest", value_text(&view["head"]).into()),
        ("model", value_text(&view["model"]).into()),
        ("queue", queue.join(", ").into()),
    ];

    View::one(full, view)?.fields(fields).show(common)
}

async fn list_sessions(common: &Common, bus: &Bus, persona: Option<&str>, limit: usize) -> Result<()> {
    let question = json!({ "persona": persona, "limit": limit });
    let answer = ask_broker(bus, "list", question, ANSWER).await?;
    let sessions = answer["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();

    let columns = [Column::id("PERSONA"), Column::id("SESSION"), Column::number("RECORDS")];
    let table = Table::new(&columns).with(sessions, |one| {
        let named = &one["session"];
        [
            value_text(&named["persona"]).into(),
            value_text(&named["session"]).into(),
            value_text(&one["records"]).into(),
        ]
    });

    let ids = sessions.iter().map(|one| {
        let named = &one["session"];
        format!("{}/{}", value_text(&named["persona"]), value_text(&named["session"]))
    });
    let count = format!("{} of {} sessions", sessions.len(), answer["total"]);

    View::list(sessions, table)?.ids(ids).line(count).show(common)
}

async fn tail_ledger(common: &Common, bus: &Bus, name: SessionName, limit: u64, all: bool) -> Result<()> {
    let question = TailMessages {
        streams: vec![LEDGER.to_owned()],
        session: Some(SessionRef {
            persona: name.persona,
            session: name.session,
        }),
        last: if all { u64::MAX } else { 0 },
        whole: true,
        ..TailMessages::default()
    };
    let mut tail = Tail::begin(bus, question);

    let columns = [
        (Column::time("AT"), 19),
        (Column::number("SEQUENCE"), 8),
        (Column::text("ENTRIES"), 0),
    ];
    let printer = LinePrinter::new(common, &columns);
    let mut left = limit;
    while left > 0 {
        for message in tail.next(left).await? {
            left -= 1;
            let sequence = message.sequence;
            let record = message.payload.unwrap_or_default();
            let at = record["at"].as_i64().map_or(message.at, UnixMillis);
            let item = json!({
                "sequence": sequence, "at": at, "append": record["append"], "entries": record["entries"],
            });
            let cells = [at.into(), sequence.into(), message.text.into()];
            printer.print(&sequence.to_string(), &item, &cells)?;
        }
    }

    Ok(())
}
