//! Every service killed at random instants under load, NATS among them.

use std::time::Duration;

use tests::eventually::eventually;
use tests::load::{Gateways, Load, send};
use tests::record::Record;
use tests::world::{Setup, World};

use crate::killer::{Choices, kill_nats, kill_service, tell};

/// How long the rest may take once the kills are over.
pub(crate) const SETTLE: Duration = Duration::from_secs(120);

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

/// Waits until the streams show no fault, and answers what they hold.
pub(crate) async fn settled(world: &World, accepted: &std::collections::BTreeSet<String>) -> Record {
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

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_anything_costs_nothing() {
    let (kills, seed) = if is_long() { (200, 2) } else { (40, 1) };
    let mut choices = Choices::new(seed);
    let mut world = World::start(setup(1)).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);
    let seconds = if is_long() { 150 } else { 40 };
    let load = Load {
        events: 200 * seconds,
        rate: 200,
        sessions: 100,
        copies: 1,
    };
    let sending = tokio::spawn(send(load, gateways.clone()));
    for number in 0..kills {
        kill_service(&mut world, &mut choices, number, &gateways).await;
        if number % (kills / 5) == kills / 10 {
            kill_nats(&mut world, &mut choices, 0).await;
        }
    }
    let accepted = sending.await.expect("the load was sent");
    world.stack.ready().await.expect("everything comes up again");
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
        "{kills} kills and 5 of nats: {} events, {} turns",
        accepted.len(),
        record.turns().len()
    );
}
