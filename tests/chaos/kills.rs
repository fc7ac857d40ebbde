//! Every service killed at random instants under load, NATS among them.

use std::collections::BTreeSet;
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock};
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::wire::topology::streams::{CLAIMS, DELIVERIES, EVENTS, INVOCATIONS};
use tests::eventually::{WorkLeft, eventually, eventually_while_progressing};
use tests::load::{Gateways, Load, send};
use tests::record::{Record, read_all};
use tests::tally::Tally;
use tests::world::{Setup, World};

use crate::killer::{Choices, kill_nats, kill_service, tell};

/// How long something may take once the kills are over, and how long the work that is left may stand still.
pub(crate) const SETTLE: Duration = Duration::from_secs(240);

/// Most missing events that are looked for by name.
const MOST_NAMED: u64 = 50;
/// Most events among which they are looked for: to read more takes longer than the work may stand still.
const MOST_READ: u64 = 100_000;

/// A hook that answers every event of the load in a session of its conversation.
pub(crate) const ANSWER: &str = r#"/** @name answer */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "chaos" || e.direction !== "received") return { fire: false };
  return { fire: true, routing: { session: "s-" + e.peer.id },
    deliveryContext: { channel: "nats", accountId: "chaos", peerId: e.peer.id, replyToId: e.id } };
};
"#;

/// A hook that notes every fifth event in another persona's session.
pub(crate) const NOTE: &str = r#"/** @name note
 * @priority 80 */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "chaos" || e.direction !== "received" || Number(e.content) % 5 !== 0) return { fire: false };
  return { fire: true, routing: { persona: "auditor", session: "note-" + e.peer.id },
    deliveryContext: { channel: "nats", accountId: "notes", peerId: e.peer.id } };
};
"#;

pub(crate) fn setup(servers: usize) -> Setup {
    Setup {
        replicas: 2,
        servers,
        hooks: vec![("answer.ts", ANSWER.to_owned()), ("note.ts", NOTE.to_owned())],
        ..Setup::default()
    }
}

pub(crate) fn is_long() -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "`make chaos` chooses the long form by a variable"
    )]
    let form = std::env::var("NEXUS_CHAOS");
    form.is_ok_and(|form| form == "long")
}

/// The number in variable `name`, `usual` where there is none: whoever runs a long form says so what the machine bears.
pub(crate) fn told_number(name: &str, usual: u64) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever runs the long form says what the machine bears by a variable"
    )]
    let told = std::env::var(name);
    told.map_or(usual, |told| {
        let number = told.parse::<u64>().ok().filter(|number| *number > 0);
        number.unwrap_or_else(|| panic!("{name}={told}: a number, 1 at least"))
    })
}

/// Waits until nothing waits to be done, as long as it becomes less: a look at whole streams is work that the services
/// have to wait for.
async fn nothing_waits(world: &World) {
    let count = async |stream| {
        let state = world.bus.stream_state(stream).await;
        state.map(|state| state.messages).map_err(|error| WorkLeft {
            count: u64::MAX,
            why: error.to_string(),
        })
    };

    eventually_while_progressing("nothing waits", SETTLE, async || {
        let (events, evaluated) = (count(EVENTS).await?, count(INVOCATIONS).await?);
        let waiting = count(DELIVERIES).await? + count(CLAIMS).await?;
        if evaluated >= events && waiting == 0 {
            return Ok(());
        }

        // Reading whole streams is work too: only where few events are missing.
        let unevaluated = events.saturating_sub(evaluated);
        let missing = match unevaluated {
            1..=MOST_NAMED if waiting == 0 && events <= MOST_READ => unrecorded(world).await,
            _ => String::new(),
        };
        let logs = world.logs();
        Err(WorkLeft {
            count: unevaluated + waiting,
            why: format!("{evaluated} of {events} are evaluated, {waiting} wait\n{missing}{logs}"),
        })
    })
    .await;
}

/// Names the events that have no record, those that are stored twice, and the dead letters.
async fn unrecorded(world: &World) -> String {
    let record = Record::read(&world.bus).await;
    let evaluated: BTreeSet<&str> = record
        .invocations
        .iter()
        .map(|(_, one)| one.event_id.as_str())
        .collect();
    let without = record
        .events
        .iter()
        .filter(|(_, event)| !evaluated.contains(event.id.as_str()))
        .map(|(sequence, event)| format!("{} at {sequence} has no record\n", event.id));
    let dead = record
        .dead
        .iter()
        .map(|(_, letter)| format!("dead letter: {} {}\n", letter.reason, letter.detail));
    let repeated = format!("{} events are stored again\n", record.repeated_events);
    without.chain(dead).chain([repeated]).collect()
}

/// Waits until the streams show no fault, and answers what they hold.
pub(crate) async fn settled(world: &World, accepted: &BTreeSet<String>) -> Record {
    nothing_waits(world).await;
    eventually("every promise is kept", SETTLE, async || {
        let record = Record::read(&world.bus).await;
        let faults = record.faults(accepted);
        if faults.is_empty() {
            Ok(record)
        } else {
            Err(format!("{}\n{}", faults.join("\n"), world.logs()))
        }
    })
    .await
}

/// As [`settled`], of more messages than fit into memory. `patience` is how long the streams may be read.
pub(crate) async fn settled_tally(world: &World, accepted: &BTreeSet<String>, patience: Duration) -> Tally {
    nothing_waits(world).await;
    eventually("every promise is kept", patience, async || {
        let tally = Tally::read(&world.bus).await;
        let faults = tally.faults(accepted);
        if faults.is_empty() {
            Ok(tally)
        } else {
            Err(format!("{}\n{}", faults.join("\n"), world.logs()))
        }
    })
    .await
}

/// Waits until each minute that began in the run has its tick; answers how many there are. That none is there twice, the record says.
async fn every_minute_ticked(world: &World, begun: UnixMillis, ended: UnixMillis) -> usize {
    let minute = |at: UnixMillis| at.0.div_euclid(60_000);
    // The one that it began in may have begun before anybody ticked.
    let expected: BTreeSet<i64> = (minute(begun) + 1..=minute(ended)).collect();

    eventually("each minute has its tick", SETTLE, async || {
        let events: Vec<(u64, Event)> = read_all(&world.bus, EVENTS).await;
        let ids = events
            .iter()
            .filter_map(|(_, event)| event.id.as_str().strip_prefix("timer:tick:"));
        let ticks: Vec<i64> = ids.filter_map(|minute| minute.parse().ok()).collect();
        let missing: Vec<&i64> = expected.iter().filter(|minute| !ticks.contains(minute)).collect();

        if missing.is_empty() {
            Ok(expected.len())
        } else {
            Err(format!("{missing:?} of {expected:?} are missing\n{}", world.logs()))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_anything_costs_nothing() {
    let (kills, seed) = if is_long() { (200, 2) } else { (20, 1) };
    let mut choices = Choices::new(seed);
    let mut world = World::start(setup(1)).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);
    let seconds = if is_long() { 150 } else { 20 };

    let load = Load {
        events: 200 * seconds,
        rate: 200,
        sessions: 100,
        copies: 1,
    };

    let begun = SystemClock.now();
    let sending = tokio::spawn(send(load, gateways.clone()));

    let mut under_load = 0;
    for number in 0..kills {
        under_load += u32::from(!sending.is_finished());
        kill_service(&mut world, &mut choices, number, &gateways).await;
        if number % (kills / 5) == kills / 10 {
            kill_nats(&mut world, &mut choices, 0).await;
        }
    }

    let accepted = sending.await.expect("the load was sent");
    world.stack.ready().await.expect("everything comes up again");
    let minutes = every_minute_ticked(&world, begun, SystemClock.now()).await;
    let record = settled(&world, &accepted).await;

    assert_eq!(accepted.len() as u64, load.events);

    let answers = record
        .dispatches
        .iter()
        .filter(|(_, dispatch)| dispatch.hook_id == "answer")
        .count();
    assert_eq!(answers as u64, load.events, "one dispatch of `answer` per event");
    assert_eq!(
        record.turns().len() as u64,
        load.events + load.events / 5,
        "and one of `note` for every fifth"
    );

    println!(
        "{kills} kills, {under_load} of them while events came, and 5 of nats: {} events, {minutes} minutes, {} turns",
        accepted.len(),
        record.turns().len()
    );
}
