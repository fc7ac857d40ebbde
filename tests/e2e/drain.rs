//! SIGTERM under load: each service ends by itself, in time, with code 0, and nothing is lost.

use std::sync::PoisonError;
use std::time::Duration;

use cli::launch::SERVICES;
use shared::clock::{Clock as _, SystemClock};
use tests::eventually::eventually;
use tests::load::{Gateways, Load, send};
use tests::record::Record;
use tests::world::{Setup, World};

/// How long a service may take, as its configuration says: three times the default, for eleven processes share two cores.
const DRAIN: Duration = Duration::from_secs(30);
/// What the end of the process itself may take on a busy machine: last traces, last log lines.
const MARGIN: Duration = Duration::from_secs(5);
/// How long the rest may take once the load is sent.
const SETTLE: Duration = Duration::from_secs(120);

/// Answers every event of the load in a session of its conversation.
const ANSWER: &str = r#"/** @name answer */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "chaos" || e.direction !== "received") return { fire: false };
  return { fire: true, routing: { session: "s-" + e.peer.id },
    deliveryContext: { channel: "nats", accountId: "drain", peerId: e.peer.id, replyToId: e.id } };
};
"#;

fn tell(world: &World, gateways: &Gateways) {
    *gateways.lock().unwrap_or_else(PoisonError::into_inner) = world.gateways();
}

/// Asks replica `replica` of `name` to end, waits until it has, and starts it again.
async fn roll(world: &mut World, gateways: &Gateways, name: &'static str, replica: u16) {
    let running = world.stack.service(name, replica).expect("it runs");
    let asked = SystemClock.monotonic();
    running.terminate();
    let code = running.ended(DRAIN + MARGIN).await;
    let took = SystemClock.monotonic().saturating_duration_since(asked);
    let tail = running.log_tail();

    assert_eq!(code, Some(0), "{name} ended with {code:?} after {took:?}\n{tail}");

    println!("{name}-{replica} drained in {} ms", took.as_millis());
    tell(world, gateways);
    world.stack.launch(name, replica).expect("it starts again");
    world.stack.ready().await.expect("it comes up again");
    tell(world, gateways);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_drains_under_load_and_nothing_is_lost() {
    let hooks = vec![("answer.ts", ANSWER.to_owned())];
    let environment = vec![(
        "NEXUS__TELEMETRY__DRAIN_TIMEOUT_MS".to_owned(),
        DRAIN.as_millis().to_string(),
    )];

    let mut world = World::start(Setup {
        environment,
        replicas: 2,
        hooks,
        ..Setup::default()
    })
    .await;

    let gateways = Gateways::default();
    tell(&world, &gateways);
    let load = Load {
        events: 2_500,
        rate: 50,
        sessions: 50,
        copies: 1,
    };

    let sending = tokio::spawn(send(load, gateways.clone()));

    for name in SERVICES {
        for replica in 0..2 {
            roll(&mut world, &gateways, name, replica).await;
        }
    }

    let accepted = sending.await.expect("the load was sent");
    let record = eventually("every promise is kept", SETTLE, async || {
        let record = Record::read(&world.bus).await;
        let faults = record.faults(&accepted);
        if faults.is_empty() {
            Ok(record)
        } else {
            Err(format!("{}\n{}", faults.join("\n"), world.logs()))
        }
    })
    .await;

    assert_eq!(accepted.len() as u64, load.events);
    assert_eq!(record.turns().len() as u64, load.events);

    world.stack.stop().await;
}
