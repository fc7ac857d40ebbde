//! Schedulers killed again and again, and the server once, during the whole life of many intents: in the end each has gone
//! one way, `AUDIT` tells it as KV does, a turn ran for each firing, and nothing is reserved for what is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scheduler_svc::intent::store::STREAM;
use serde_json::{Value, json};
use shared::bus::{Bus, Outgoing, RequestError, Stored};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::{Dispatch, derived_ulid};
use shared::model::event::{Event, EventId};
use shared::model::intent::book::AgentBook;
use shared::model::intent::service::{CancelIntent, IntentAnswer, ProposeIntent, RescheduleIntent};
use shared::model::intent::{Intent, IntentCode, IntentRecord, IntentStatus, firing_of};
use shared::model::ledger::{AppendId, Cursor, DispatchRef, LedgerEntry, LedgerRecord, TurnLimits};
use shared::model::permission::PermissionSet;
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::{AUDIT, DISPATCHES, EVENTS};
use tokio::task::{JoinHandle, JoinSet};
use ulid::Ulid;

use crate::fill::wish;
use crate::scheduler::Scheduler;

/// Intents of one agent.
const EACH: u64 = 40;
/// Asked for at once.
const AT_ONCE: usize = 16;
/// How long anything may take while everything is killed.
const PATIENCE: Duration = Duration::from_secs(240);

/// Kills schedulers until it is told to stop.
struct Killer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<[Scheduler; 2]>,
}

impl Killer {
    /// One after the other, and every third time both; the next only once one is ready again.
    fn begin(mut both: [Scheduler; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut round = 0_usize;
            while !told.load(Ordering::Relaxed) {
                let at = u64::try_from(round).unwrap_or(0) * 613 % 1_700;
                pause(Duration::from_millis(300 + at)).await;
                both[round % 2].kill_and_start();
                if round % 3 == 2 {
                    both[(round + 1) % 2].kill_and_start();
                }
                both[round % 2].ready().await;
                round += 1;
            }
            println!("schedulers killed {round} times");
            both
        });
        Self { stop, task }
    }

    async fn end(self) -> [Scheduler; 2] {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the killer")
    }
}

fn agent(number: u64) -> String {
    format!("killed-{}", number / EACH)
}

fn id(number: u64) -> Ulid {
    derived_ulid(UnixMillis(1), &[&agent(number), &number.to_string()])
}

fn is_ours(agent: &str) -> bool {
    agent.starts_with("killed-")
}

/// What becomes of intent `number`: it waits for words, recurs (`long` only), is withdrawn, is moved, or just fires.
fn schedule(number: u64, long: bool) -> Value {
    match number % 5 {
        0 => json!({ "type": "event_matches", "deadline_seconds": 3_600, "match": { "contains": words(number) } }),
        1 if long => {
            let until = jiff::Timestamp::from_millisecond(SystemClock.now().plus(130_000).0).expect("a time");
            let until = until.strftime("%Y-%m-%dT%H:%M:%S").to_string();
            json!({ "type": "cron", "expression": "* * * * *", "zone": "UTC", "until": until })
        }
        2 | 3 => json!({ "type": "after", "seconds": 600 }),
        _ => json!({ "type": "after", "seconds": 3 + number % 8 }),
    }
}

fn words(number: u64) -> String {
    format!("word {number};")
}

async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> Option<A> {
    let subject = format!("nexus.svc.intent.{what}");
    let begun = SystemClock.monotonic();
    loop {
        let asked = bus.request(&subject, Headers::new(), question, Duration::from_secs(3));
        match asked.await {
            Ok(answer) => return Some(answer),
            // The answer to the first time was lost, and it has gone on since.
            Err(RequestError::Service { code: 409, .. }) => return None,
            Err(error) => {
                let waited = SystemClock.monotonic().saturating_duration_since(begun);
                assert!(waited < PATIENCE, "{what}: {error}");
                pause(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Asks for intent `number`, and for what becomes of it.
async fn asked(bus: Bus, number: u64, long: bool) {
    let question: ProposeIntent = serde_json::from_value(json!({
        "id": id(number).to_string(), "wish": wish(schedule(number, long)),
        "agent": agent(number), "session": format!("s{number}"), "permissions": { "level": "full" },
        "delivery_context": { "channel": "webchat", "peerId": format!("p{number}") }
    }))
    .expect("a proposal");
    let answer: Option<IntentAnswer> = ask(&bus, "propose", &question).await;
    assert!(answer.is_some_and(|answer| answer.rejection.is_none()), "{number}");
    if number % 5 == 2 {
        let question = CancelIntent {
            id: id(number),
            agent: Some(agent(number)),
            session: None,
            by: None,
            why: "no".to_owned(),
        };
        ask::<_, IntentAnswer>(&bus, "cancel", &question).await;
    }
    if number % 5 == 3 {
        let question = RescheduleIntent {
            id: id(number),
            schedule: serde_json::from_value(json!({ "type": "after", "seconds": 2 })).expect("a schedule"),
            agent: Some(agent(number)),
            by: None,
            why: "sooner".to_owned(),
        };
        ask::<_, IntentAnswer>(&bus, "reschedule", &question).await;
    }
}

/// Plays the brokers: the turn of each dispatch behind `from` completes.
async fn brokers(bus: Bus, mut from: u64) {
    loop {
        for stored in bus
            .history(DISPATCHES, "nexus.dispatch.>", from, 256)
            .await
            .unwrap_or_default()
        {
            from = stored.sequence + 1;
            if let Ok(dispatch) = stored.decode::<Dispatch>() {
                completes(&bus, &dispatch).await;
            }
        }
        pause(Duration::from_millis(100)).await;
    }
}

async fn completes(bus: &Bus, dispatch: &Dispatch) {
    let turn = Ulid::from_parts(9, dispatch.id.into());
    let started = LedgerEntry::TurnStarted {
        turn,
        parent: None,
        dispatches: vec![DispatchRef {
            id: dispatch.id,
            sequence: 1,
            event_id: dispatch.event_id.clone(),
            content: String::new(),
            stranger: None,
        }],
        permissions: PermissionSet::default(),
        limits: TurnLimits::default(),
    };
    let completed = LedgerEntry::TurnCompleted {
        turn,
        reply: None,
        head: turn,
        cursor: Cursor::default(),
    };
    let record = LedgerRecord {
        append: AppendId {
            broker: "b".to_owned(),
            epoch: 1,
            counter: 1,
        },
        at: SystemClock.now(),
        entries: vec![started, completed],
    };
    let out = Outgoing::new(subject::ledger(&dispatch.target), &record).msg_id(dispatch.id.to_string());
    bus.publish(out).await.expect("appended");
}

/// Everything in `stream` on `subject` behind `from`; none where the server does not answer.
async fn all(bus: &Bus, stream: &str, subject: &str, mut from: u64) -> Option<Vec<Stored>> {
    let mut all = Vec::new();
    loop {
        let page = bus.history(stream, subject, from, 256).await.ok()?;
        let Some(last) = page.last() else { return Some(all) };
        from = last.sequence + 1;
        all.extend(page);
    }
}

/// Waits until `look` has nothing to complain of.
async fn until<F: Future<Output = Result<(), String>>>(what: &str, mut look: impl FnMut() -> F) {
    let begun = SystemClock.monotonic();
    loop {
        let Err(why) = look().await else { return };
        let waited = SystemClock.monotonic().saturating_duration_since(begun);
        assert!(waited < PATIENCE, "{what}: {why}");
        pause(Duration::from_millis(500)).await;
    }
}

async fn intents(bus: &Bus, from: u64) -> Option<BTreeMap<Ulid, Intent>> {
    let values = all(bus, STREAM, "$KV.intents.i.*.*", from).await?;
    let values = values.iter().filter_map(|stored| stored.decode::<Intent>().ok());
    let ours = values.filter(|value| is_ours(&value.intent.agent));
    Some(ours.map(|value| (value.intent.id, value)).collect())
}

async fn last(bus: &Bus, stream: &str) -> u64 {
    bus.stream_state(stream).await.expect("the stream").last
}

/// `count` intents of all sorts, asked for, moved, withdrawn, fired and ended while schedulers are killed.
pub(crate) async fn during_all_of_it(bus: &Bus, server: &mut NatsServer, count: u64, long: bool, both: [Scheduler; 2]) {
    let begins = [last(bus, STREAM).await, last(bus, AUDIT).await, last(bus, EVENTS).await].map(|last| last + 1);
    let playing = tokio::spawn(brokers(bus.clone(), last(bus, DISPATCHES).await + 1));
    let killer = Killer::begin(both);
    let mut asking = JoinSet::new();
    for number in 0..count {
        asking.spawn(asked(bus.clone(), number, long));
        if asking.len() > AT_ONCE {
            asking.join_next().await.expect("one").expect("asked");
        }
        if number == count / 2 {
            server.restart().await;
        }
    }
    while let Some(done) = asking.join_next().await {
        done.expect("asked");
    }
    for number in (0..count).step_by(5) {
        let source = EventId::parse(format!("webchat:many/{number}")).expect("an id");
        let mut event = Event::new(source, "webchat", "v1", SystemClock.now());
        event.content = words(number);
        let out = Outgoing::new(subject::event(&event), &event).msg_id(event.id.as_str());
        bus.publish(out).await.expect("published");
    }
    until("everything is over", async || {
        let values = intents(bus, begins[0]).await.ok_or("the server does not answer")?;
        let open = values.values().filter(|value| !value.status.is_final());
        let open: Vec<String> = open
            .map(|value| format!("{} {}", value.intent.id, value.status))
            .collect();
        let there = values.len() as u64 == count && open.is_empty();
        there
            .then_some(())
            .ok_or_else(|| format!("{} of {count}; {open:?}", values.len()))
    })
    .await;
    let mut both = killer.end().await;
    // What the last kill cut off, the walk at the next start brings to its end.
    for scheduler in &mut both {
        scheduler.kill_and_start();
        scheduler.ready().await;
    }
    until("AUDIT and KV say the same", async || agree(bus, begins).await).await;
    until("nothing is reserved for what is over", async || freed(bus).await).await;
    playing.abort();
}

/// Whether each intent has gone one way, with a turn for each firing.
async fn agree(bus: &Bus, [values, audit, events]: [u64; 3]) -> Result<(), String> {
    let away = || "the server does not answer".to_owned();
    let values = intents(bus, values).await.ok_or_else(away)?;
    let mut told: BTreeMap<Ulid, Vec<IntentRecord>> = BTreeMap::new();
    for stored in all(bus, AUDIT, "nexus.audit.intent.*", audit).await.ok_or_else(away)? {
        let record: IntentRecord = stored.decode().map_err(|error| error.to_string())?;
        told.entry(record.intent).or_default().push(record);
    }
    let mut fired: BTreeMap<Ulid, usize> = BTreeMap::new();
    for stored in all(bus, EVENTS, "nexus.ev.*.timer.>", events).await.ok_or_else(away)? {
        let event: Event = stored.decode().map_err(|error| error.to_string())?;
        if let Some((intent, _)) = firing_of(&event.id) {
            *fired.entry(intent).or_default() += 1;
        }
    }
    for (id, value) in &values {
        let records = told.get(id).map(Vec::as_slice).unwrap_or_default();
        let numbers: Vec<u32> = records.iter().map(|record| record.n).collect();
        let ways = records
            .windows(2)
            .all(|two| two[1].from == Some(two[0].to) && two[0].to.may_become(two[1].to));
        let last = records.last().map(|record| record.to);
        if numbers != (1..=value.n).collect::<Vec<u32>>() || !ways || last != Some(value.status) {
            return Err(format!("{id} is {} at {}: {records:?}", value.status, value.n));
        }
        let firings = records
            .iter()
            .filter(|r| matches!(r.code, IntentCode::Due | IntentCode::ConditionMet));
        let firings = firings.count();
        if fired.get(id).copied().unwrap_or_default() != firings {
            return Err(format!("{id}: {:?} events for {firings} firings", fired.get(id)));
        }
        let expected = match value.status {
            IntentStatus::Completed => firings == value.fired as usize && firings > 0,
            IntentStatus::Canceled => firings == 0,
            IntentStatus::Proposed
            | IntentStatus::Pending
            | IntentStatus::Running
            | IntentStatus::Failed
            | IntentStatus::Rescheduled
            | IntentStatus::Rejected => false,
        };
        if !expected {
            return Err(format!("{id} is {} after {firings} firings: {records:?}", value.status));
        }
    }
    Ok(())
}

async fn freed(bus: &Bus) -> Result<(), String> {
    let books = all(bus, STREAM, "$KV.intents.a.*", 1).await;
    for stored in books.ok_or("the server does not answer")? {
        let ours = stored.subject.rsplit('.').next().is_some_and(is_ours);
        let book: AgentBook = stored.decode().map_err(|error| error.to_string())?;
        let kept: Vec<_> = book
            .bookings
            .iter()
            .filter(|(_, booking)| booking.due.is_none())
            .collect();
        if ours && !kept.is_empty() {
            return Err(format!("{}: {kept:?}", stored.subject));
        }
    }
    Ok(())
}
