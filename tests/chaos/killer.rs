//! Who dies when: a seeded choice, so that a failing run can be told by its seed.

use std::sync::PoisonError;
use std::time::Duration;

use cli::launch::SERVICES;
use shared::clock::pause;
use shared::model::event::Event;
use shared::wire::session_mark::LeaseRecord;
use shared::wire::subject;
use shared::wire::topology::PARTITIONS;
use shared::wire::topology::buckets::ATTEMPTS;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};
use tests::eventually::eventually;
use tests::load::Gateways;
use tests::world::World;

/// How long a replica may take to come up.
pub(crate) const UP: Duration = Duration::from_secs(120);

/// A small generator (splitmix64): the same seed makes the same choices.
#[derive(Debug)]
pub(crate) struct Choices(u64);

impl Choices {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Tells the senders where the adapters are now.
pub(crate) fn tell(world: &World, gateways: &Gateways) {
    *gateways.lock().unwrap_or_else(PoisonError::into_inner) = world.gateways();
}

/// Waits until each event that two runs of hook-svc have tried is evaluated. What is in hand at three unclean ends of its
/// owners is given up, as promised: an event has to have a chance in between, and a replica that is ready may not have come
/// to it yet.
async fn each_has_its_chance(world: &World) {
    let attempts = world.bus.kv::<LeaseRecord>(ATTEMPTS);
    eventually("events that were tried twice are evaluated", UP, async || {
        for partition in 0..PARTITIONS {
            let noted = attempts.find(&format!("attempts.hook.{partition}")).await;
            let (noted, _) = noted.map_err(|error| error.to_string())?;
            let tried = noted.filter(|noted| noted.runs.len() > 1);
            let Some(place) = tried.and_then(|noted| noted.in_progress) else {
                continue;
            };

            let stored = world.bus.at_sequence(EVENTS, place.sequence).await;
            let stored = stored.map_err(|error| error.to_string())?;
            let Some(event) = stored.and_then(|stored| stored.decode::<Event>().ok()) else {
                continue;
            };
            let record = subject::invocation_anywhere(&event.id);
            let record = world.bus.last_on_subject(INVOCATIONS, &record).await;
            if record.map_err(|error| error.to_string())?.is_none() {
                return Err(format!("{} waits in partition {partition}\n{}", event.id, world.logs()));
            }
        }

        Ok(())
    })
    .await;
}

/// Kills a replica without warning and starts it again: each service in turn, the replica and the instant by chance.
pub(crate) async fn kill_service(world: &mut World, choices: &mut Choices, number: usize, gateways: &Gateways) {
    let name = SERVICES[number % SERVICES.len()];
    let replica = u16::try_from(choices.below(2)).unwrap_or(0);
    if name == "hook-svc" {
        for replica in 0..2 {
            let running = world
                .stack
                .service(name, replica)
                .expect("two replicas of every service run");
            running.ready(UP).await.expect("it comes up again");
        }
        each_has_its_chance(world).await;
    }

    pause(Duration::from_millis(choices.below(400))).await;
    world
        .stack
        .service(name, replica)
        .expect("two replicas of every service run")
        .kill();

    tell(world, gateways);
    pause(Duration::from_millis(choices.below(200))).await;
    world.stack.launch(name, replica).expect("it starts again");
    tell(world, gateways);
}

/// Kills server `index` without warning and starts it again.
pub(crate) async fn kill_nats(world: &mut World, choices: &mut Choices, index: usize) {
    world.stack.nats[index].kill();
    pause(Duration::from_millis(100 + choices.below(500))).await;
    world.stack.launch_server(index).expect("the server starts again");
    world.stack.nats[index].ready().await.expect("the server answers again");
}
