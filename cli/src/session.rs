//! `nexus session`: status of sessions, commands to them, and the release of a quarantined one.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use serde_json::{Value, json};
use shared::bus::{Bus, RequestError};
use shared::model::ledger::LedgerRecord;
use shared::model::session::SessionRef;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::LEDGER;

use crate::args::{Common, SessionAction, SessionName, SessionOrderOptions};
use crate::output::{bus, json as print, plain, print as say, table};

/// Longest time that a broker may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest wait that a broker is asked for at once, in seconds: a broker that is asked for more answers after 300.
const LONGEST_WAIT: u64 = 240;

/// Runs the command.
///
/// # Errors
/// Fails if there is no such session, if no broker answers, or if the server cannot be asked.
pub async fn execute(common: &Common, action: SessionAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        SessionAction::Release(name) => {
            let answer = ask(&bus, "release", named(&name), ANSWER).await?;
            if common.json {
                return print(&answer);
            }
            let why = answer["why"].as_str().unwrap_or_default();

            say(&format!(
                "{}/{} is released; it was quarantined because its {why}\n",
                name.persona, name.session
            ))
        }
        SessionAction::List { persona, limit } => list(common, &bus, persona.as_deref(), limit).await,
        SessionAction::Show(name) => shown(common, &standing(&bus, &name).await?),
        SessionAction::Tail { name, count, all } => tail(&bus, name, count.unwrap_or(u64::MAX), all).await,
        SessionAction::Abort(order) => give(common, &bus, "abort", &order, json!({})).await,
        SessionAction::Interrupt(order) => give(common, &bus, "interrupt", &order, json!({})).await,
        SessionAction::Reset(order) => give(common, &bus, "reset", &order, json!({})).await,
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
            give(common, &bus, "queue", &order, settings).await
        }
        SessionAction::Fork { name, to, turn } => {
            let mut question = named(&name);
            question["to"] = to.into();
            question["turn"] = turn.into();
            shown(common, &ask(&bus, "fork", question, ANSWER).await?)
        }
        SessionAction::Wait { name, seconds } => wait(common, &bus, &name, seconds).await,
    }
}

fn named(name: &SessionName) -> Value {
    json!({ "persona": name.persona, "session": name.session })
}

async fn ask(bus: &Bus, endpoint: &str, question: Value, patience: Duration) -> Result<Value> {
    let subject = format!("nexus.svc.session.{endpoint}");
    match bus.request(&subject, Headers::new(), &question, patience).await {
        Err(RequestError::Service { text, .. }) => bail!("{text}"),
        answer => answer.with_context(|| format!("no broker could be asked to {endpoint}")),
    }
}

async fn wait(common: &Common, bus: &Bus, name: &SessionName, seconds: u64) -> Result<()> {
    let mut left = seconds;
    loop {
        let now = left.min(LONGEST_WAIT);
        left -= now;
        let mut question = named(name);
        question["timeout_ms"] = (now * 1_000).into();
        let answer = ask(bus, "wait", question, ANSWER + Duration::from_secs(now)).await?;
        let idle = answer["idle"] == json!(true);

        if (idle || left == 0) && common.json {
            print(&answer)?;
        }

        match (idle, left) {
            (true, _) if common.json => return Ok(()),
            (true, _) => return say(&format!("{}/{} is idle\n", name.persona, name.session)),
            (false, 0) => bail!("{}/{} is not idle after {seconds} s", name.persona, name.session),
            (false, _) => {}
        }
    }
}

async fn give(common: &Common, bus: &Bus, endpoint: &str, order: &SessionOrderOptions, settings: Value) -> Result<()> {
    let mut question = named(&order.name);
    question["reason"] = order.reason.as_str().into();
    question["settings"] = settings;

    let answer = ask(bus, endpoint, question, ANSWER).await?;
    if common.json {
        return print(&answer);
    }

    let (persona, session) = (&order.name.persona, &order.name.session);
    let id = answer["id"].as_str().unwrap_or_default();

    say(&format!("{endpoint} is ordered of {persona}/{session}: {id}\n"))
}

/// Returns the status of the session of `name`, as a broker answers it.
///
/// # Errors
/// Fails if there is no such session, or if no broker answers.
pub async fn standing(bus: &Bus, name: &SessionName) -> Result<Value> {
    ask(bus, "show", named(name), ANSWER).await
}

/// Returns that the agent of a session's running turn cannot be reached, and why, if a broker says so.
#[must_use]
pub fn absence(view: &Value) -> Option<String> {
    let away = view["running"]["away"].as_object()?;
    let since = away.get("since").and_then(Value::as_i64).unwrap_or_default();
    let since = Timestamp::from_millisecond(since).unwrap_or_default();
    let why = away.get("why").and_then(Value::as_str).unwrap_or_default();
    Some(format!("its agent cannot be reached since {since:.0}: {}", plain(why)))
}

/// Prints the status of a session, as `show` and `fork` return it.
fn shown(common: &Common, view: &Value) -> Result<()> {
    if common.json {
        return print(view);
    }

    let text = |value: &Value| plain(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let running = &view["running"];
    let parked = &view["quarantined"];

    let state = match (&running["turn"], &running["awaits"], &view["idle"]) {
        _ if parked.is_object() => {
            let since = parked["since"].as_i64().unwrap_or_default();
            let since = Timestamp::from_millisecond(since).unwrap_or_default();
            format!("quarantined since {since:.0}: its {}", text(&parked["why"]))
        }
        (Value::String(turn), Value::String(approval), _) => format!("turn {turn} waits for approval {approval}"),
        (Value::String(turn), _, _) => {
            let calls = format!("turn {turn} runs, {} model calls", running["model_calls"]);
            match absence(view) {
                Some(absence) => format!("{calls}; {absence}"),
                None => calls,
            }
        }
        (_, _, Value::Bool(true)) => "idle".to_owned(),
        (_, _, _) => "has something to do".to_owned(),
    };

    let usage = &view["usage"];
    let mut lines = vec![
        (
            "session",
            format!(
                "{}/{}",
                text(&view["session"]["persona"]),
                text(&view["session"]["session"])
            ),
        ),
        ("state", state),
        ("waiting", text(&view["waiting"])),
        ("history", format!("{} turns", view["turns_in_history"])),
        (
            "tokens",
            format!(
                "{} in, {} out, $ {}",
                usage["tokens_in"], usage["tokens_out"], usage["cost_usd"]
            ),
        ),
    ];

    let queue = view["queue"].as_object().into_iter().flatten();
    let queue: Vec<String> = queue.map(|(name, value)| format!("{name} {}", text(value))).collect();
    for (name, value) in [
        ("newest", &view["head"]),
        ("model", &view["model"]),
        ("queue", &Value::from(queue.join(", "))),
    ] {
        if value.as_str().is_some_and(|value| !value.is_empty()) {
            lines.push((name, text(value)));
        }
    }

    let lines: Vec<String> = lines
        .iter()
        .map(|(name, value)| format!("{name:<9}{value}\n"))
        .collect();

    say(&lines.concat())
}

async fn list(common: &Common, bus: &Bus, persona: Option<&str>, limit: usize) -> Result<()> {
    let answer = ask(bus, "list", json!({ "persona": persona, "limit": limit }), ANSWER).await?;
    if common.json {
        return print(&answer["sessions"]);
    }

    let mut rows = table(&["persona", "session", "records"]);
    let sessions = answer["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();

    let text = |value: &Value| plain(value.as_str().unwrap_or_default());
    for one in sessions {
        let named = &one["session"];
        rows.add_row([
            text(&named["persona"]),
            text(&named["session"]),
            one["records"].to_string(),
        ]);
    }

    say(&format!("{rows}\n{} of {} sessions\n", sessions.len(), answer["total"]))
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

    let mut records = bus.read_ordered(LEDGER, &[subject::ledger(&session)], from).await?;
    for _ in 0..count {
        let message = records.next().await;
        let record: LedgerRecord = message
            .decode()
            .with_context(|| format!("ledger entry {}", message.sequence))?;
        let line = json!({ "sequence": message.sequence, "at": record.at, "append": record.append, "entries": record.entries });
        say(&format!("{line}\n"))?;
    }

    Ok(())
}
