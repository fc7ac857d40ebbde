//! `nexus session`: where sessions stand, orders to them, and letting a quarantined one run again.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use shared::bus::{Bus, claim};
use shared::model::ledger::LedgerRecord;
use shared::model::session::SessionRef;
use shared::wire::headers::{Carrier, Headers};
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;
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
        SessionAction::Release(SessionName { persona, session }) => {
            let session = SessionRef { persona, session };
            let why = release(&bus, &session).await?;
            println!("{session} is released; it was quarantined because its {why}");
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
    let persona = persona.map_or_else(|| "*".to_owned(), subject::token);
    let subjects = bus.subjects(LEDGER, &format!("nexus.ledger.{persona}.*")).await?;
    let name = |token: &str| subject::untoken(token).unwrap_or_else(|| token.to_owned());
    let sessions: Vec<(String, String, u64)> = subjects
        .iter()
        .filter_map(|(subject, records)| {
            let (persona, session) = subject::parse_session(subject)?;
            Some((name(persona), name(session), *records))
        })
        .take(limit)
        .collect();
    if common.json {
        return print(&sessions);
    }
    let mut rows = table(&["persona", "session", "records"]);
    for (persona, session, records) in &sessions {
        rows.add_row([persona, session, &records.to_string()]);
    }
    println!("{rows}\n{} of {} sessions", sessions.len(), subjects.len());
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

/// Takes the quarantine's mark off `session` and claims it; answers why it was quarantined. A broker that has not
/// heard of it yet ends that claim, and claims the session itself once it has.
///
/// # Errors
/// Where the session is not quarantined, or the server cannot be asked.
pub async fn release(bus: &Bus, session: &SessionRef) -> Result<String> {
    let subject = subject::claim(session);
    let key = subject.strip_prefix("nexus.claim.").context("a claim's subject")?;
    let marks = bus.kv::<SessionMark>(SESSION_OVERRIDES);
    let mark = marks.get(key).await?;
    let Some((why, revision)) = mark.and_then(|mark| Some((mark.value.quarantined?, mark.revision))) else {
        bail!("{session} is not quarantined");
    };
    marks.delete(key, Some(revision)).await?;
    claim::publish(bus, session, &Carrier::default()).await?;
    Ok(why)
}

#[cfg(test)]
mod tests {
    use shared::bus::NatsConfig;
    use shared::model::time::UnixMillis;
    use shared::testing::nats::NatsServer;
    use shared::wire::session_mark::ClaimTries;
    use shared::wire::topology::{streams, topology};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_released_session_has_no_mark_and_a_claim() {
        let server = NatsServer::start().await;
        let config = NatsConfig {
            servers: vec![server.url()],
            ..NatsConfig::default()
        };
        let bus = shared::testing::connect(&config, "test").await;
        bus.ensure(&topology(1), false).await.expect("the topology is made");
        let session = SessionRef {
            persona: "default".to_owned(),
            session: "main *".to_owned(),
        };
        let subject = subject::claim(&session);
        let key = subject.strip_prefix("nexus.claim.").expect("a claim's subject");
        let marks = bus.kv::<SessionMark>(SESSION_OVERRIDES);
        let mut mark = SessionMark {
            session: session.clone(),
            quarantined: None,
            tries: Some(ClaimTries { claim: 1, begun: 1 }),
            since: UnixMillis(1),
        };
        marks.put(key, &mark).await.expect("on trial");
        let refused = release(&bus, &session).await.expect_err("not quarantined");
        assert!(refused.to_string().contains("is not quarantined"), "{refused}");
        mark.quarantined = Some("claim came again and again".to_owned());
        marks.put(key, &mark).await.expect("quarantined");
        let why = release(&bus, &session).await.expect("released");
        assert_eq!(why, "claim came again and again");
        assert_eq!(marks.get(key).await.expect("a bucket"), None);
        let claimed = bus.last_on_subject(streams::CLAIMS, &subject).await.expect("claims");
        assert!(claimed.is_some());
    }
}
