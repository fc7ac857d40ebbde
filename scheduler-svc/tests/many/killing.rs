//! Schedulers killed again and again, and the server with them, during the whole life of many intents: admission, firing,
//! many due at once, ends. Afterwards each has gone one way, `AUDIT` tells it as KV does, there is one event, one dispatch
//! and one turn for each firing, and nothing is reserved for what is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use scheduler_svc::intent::store::STREAM;
use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage, RequestError};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::{Dispatch, derived_ulid};
use shared::model::event::{Event, EventId};
use shared::model::intent::book::AgentBook;
use shared::model::intent::service::{CancelIntent, IntentAnswer, ProposeIntent, RescheduleIntent};
use shared::model::intent::{IntentCode, IntentStatus};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::testing::sample;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use tokio::task::{JoinHandle, JoinSet};
use ulid::Ulid;

use crate::fill::wish;
use crate::scheduler::Scheduler;
use crate::streams::{Begins, all, dispatched, fired, intents, told};

/// Intents of one agent.
const EACH: u64 = 40;
/// Asked for at once.
const AT_ONCE: usize = 16;
/// How long anything may take while everything is killed.
const PATIENCE: Duration = Duration::from_secs(480);
/// The server dies once one of so many that are due at once has fired: amid their firings.
const AMID: u64 = 10;

/// So many rounds of kills follow behind that.
const KILLS_BEHIND: usize = 8;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lot {
    /// Of all sorts.
    pub(crate) mixed: u64,
    /// Besides, all due in one second.
    pub(crate) together: u64,
    /// How far ahead that second lies, seconds.
    pub(crate) ahead: i64,
    /// With recurring ones.
    pub(crate) long: bool,
}

/// Kills schedulers until it is told to stop.
struct Killer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    task: JoinHandle<[Scheduler; 2]>,
}

impl Killer {
    /// One after the other, and every third time both; the next only once one is ready again.
    fn begin(mut both: [Scheduler; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicUsize::new(0));
        let (told, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
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
                counted.store(round, Ordering::Relaxed);
            }

            println!("schedulers killed {round} times");
            both
        });

        Self { stop, rounds, task }
    }

    /// Waits until it has killed for `count` more rounds.
    async fn goes_on(&self, count: usize) {
        let rounds = || self.rounds.load(Ordering::Relaxed);
        let wanted = rounds() + count;
        until("the killing goes on", async || {
            (rounds() >= wanted)
                .then_some(())
                .ok_or_else(|| format!("{} of {wanted}", rounds()))
        })
        .await;
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

/// What becomes of intent `number`: it waits for words, recurs (`long` only), is withdrawn, is moved, or just fires; those
/// behind the mixed ones are due at `due`.
fn schedule(number: u64, lot: Lot, due: UnixMillis) -> Value {
    if number >= lot.mixed {
        let seconds = (due.since(SystemClock.now()) / 1_000).max(1);
        return json!({ "type": "after", "seconds": seconds });
    }

    match number % 5 {
        0 => json!({ "type": "event_matches", "deadline_seconds": 3_600, "match": { "contains": words(number) } }),
        1 if lot.long => {
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
async fn asked(bus: Bus, number: u64, lot: Lot, due: UnixMillis) {
    let question: ProposeIntent = serde_json::from_value(json!({
        "id": id(number).to_string(), "wish": wish(schedule(number, lot, due)),
        "agent": agent(number), "session": format!("s{number}"), "permissions": { "level": "full" },
        "delivery_context": { "channel": "webchat", "peerId": format!("p{number}") }
    }))
    .expect("a proposal");

    let answer: Option<IntentAnswer> = ask(&bus, "propose", &question).await;
    assert!(answer.is_some_and(|answer| answer.rejection.is_none()), "{number}");

    if number >= lot.mixed {
        return;
    }

    if number % 5 == 2 {
        let question = CancelIntent {
            id: id(number),
            agent: Some(agent(number)),
            turn: None,
            by: None,
            reason: "no".to_owned(),
        };

        ask::<_, IntentAnswer>(&bus, "cancel", &question).await;
    }

    if number % 5 == 3 {
        let question = RescheduleIntent {
            id: id(number),
            schedule: serde_json::from_value(json!({ "type": "after", "seconds": 2 })).expect("a schedule"),
            agent: Some(agent(number)),
            by: None,
            reason: "sooner".to_owned(),
        };

        ask::<_, IntentAnswer>(&bus, "reschedule", &question).await;
    }
}

/// Plays the brokers: the turn of each dispatch behind `from` completes.
async fn brokers(bus: Bus, mut from: u64) {
    loop {
        for stored in bus
            .read_history(DISPATCHES, "nexus.dispatch.>", from, 256)
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
    let record = sample::whole_turn(dispatch, SystemClock.now());
    let out = OutgoingMessage::new(subject::ledger(&dispatch.target), &record).msg_id(dispatch.id.to_string());
    bus.publish(out).await.expect("appended");
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

/// All of `lot` asked for, moved, withdrawn, fired and ended while schedulers are killed, and the server three times:
/// amid the mixed ones, amid the admission of the others, and amid their firings.
pub(crate) async fn during_all_of_it(bus: &Bus, server: &mut NatsServer, lot: Lot, both: [Scheduler; 2]) {
    let from = Begins::now(bus).await;
    let due = SystemClock.now().plus(lot.ahead * 1_000);
    let count = lot.mixed + lot.together;
    let playing = tokio::spawn(brokers(bus.clone(), from.dispatches));
    let killer = Killer::begin(both);

    let mut asking = JoinSet::new();
    for number in 0..count {
        asking.spawn(asked(bus.clone(), number, lot, due));

        if asking.len() > AT_ONCE {
            asking.join_next().await.expect("one").expect("asked");
        }

        if number == lot.mixed / 2 || number == lot.mixed + lot.together / 2 {
            server.restart().await;
        }
    }

    while let Some(done) = asking.join_next().await {
        done.expect("asked");
    }

    tell_the_words(bus, lot.mixed).await;
    let ahead = due.since(SystemClock.now());
    println!(
        "{count} asked for under kills, {ahead} ms before {} of them are due",
        lot.together
    );

    pause(Duration::from_millis(ahead.max(0).unsigned_abs())).await;
    begun_to_fire(bus, from, lot).await;
    server.restart().await;

    // Amid the firings as well, but not until a slow machine has done all of them between two kills.
    killer.goes_on(KILLS_BEHIND).await;
    let mut both = killer.end().await;
    until("everything is over", async || {
        let values = intents(bus, from.values).await.ok_or("the server does not answer")?;
        let open = values.values().filter(|value| !value.status.is_final());
        let open: Vec<String> = open
            .map(|value| format!("{} {}", value.intent.id, value.status))
            .collect();
        let there = values.len() as u64 == count && open.is_empty();

        there.then_some(()).ok_or_else(|| {
            format!(
                "{} of {count}, {} open: {:?}",
                values.len(),
                open.len(),
                &open[..open.len().min(20)]
            )
        })
    })
    .await;

    let late = SystemClock.now().since(due);
    println!("all over {late} ms behind that second");

    // What the last kill cut off, the walk at the next start brings to its end.
    for scheduler in &mut both {
        scheduler.kill_and_start();
        scheduler.ready().await;
    }

    until("all streams say the same", async || agree(bus, from).await).await;
    until("nothing is reserved for what is over", async || freed(bus).await).await;
    playing.abort();
}

/// Waits until one of so many of those that are due at once has fired; a slow machine may find all of them fired.
async fn begun_to_fire(bus: &Bus, from: Begins, lot: Lot) {
    let together: BTreeSet<Ulid> = (lot.mixed..lot.mixed + lot.together).map(id).collect();
    let wanted = together.len() as u64 / AMID;
    until("they begin to fire", async || {
        let fired = fired(bus, from.events).await.ok_or("the server does not answer")?;
        let count = fired.keys().filter(|intent| together.contains(intent)).count() as u64;
        (count >= wanted)
            .then_some(())
            .ok_or_else(|| format!("{count} of {wanted}"))
    })
    .await;
}

/// Says what every fifth of the `mixed` ones waits for.
async fn tell_the_words(bus: &Bus, mixed: u64) {
    for number in (0..mixed).step_by(5) {
        let source = EventId::parse(format!("webchat:many/{number}")).expect("an id");
        let mut event = Event::new(source, "webchat", "v1", SystemClock.now());
        event.content = words(number);
        event.origin = EventOrigin::visitor("default", "v1");
        let out = OutgoingMessage::event(&event, bus.trust());
        bus.publish(out).await.expect("published");
    }
}

/// Whether each intent has gone one way, with one event and one dispatch for each firing.
async fn agree(bus: &Bus, from: Begins) -> Result<(), String> {
    let away = || "the server does not answer".to_owned();
    let values = intents(bus, from.values).await.ok_or_else(away)?;
    let told = told(bus, from.audit).await.ok_or_else(away)?;
    let fired = fired(bus, from.events).await.ok_or_else(away)?;

    let dispatched = dispatched(bus, from.dispatches).await.ok_or_else(away)?;
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
        for (what, counted) in [("events", fired.get(id)), ("dispatches", dispatched.get(id))] {
            if counted.copied().unwrap_or_default() != firings {
                return Err(format!("{id}: {counted:?} {what} for {firings} firings"));
            }
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
        let ours = stored
            .subject
            .rsplit('.')
            .next()
            .is_some_and(|agent| agent.starts_with("killed-"));
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
