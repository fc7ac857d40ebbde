//! The clocks of real processes, as a test sets them while they run.

use shared::clock::{Clock as _, SystemClock};
use shared::model::event::Event;
use shared::model::ledger::LedgerRecord;
use shared::model::time::UnixMillis;
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::{ANSWER, PATIENCE, event, send, session};

const DAY_MS: i64 = 24 * 3_600_000;

/// How many days `at` is ahead of the host's clock, to the nearest.
fn days_ahead(at: UnixMillis) -> i64 {
    (at.since(SystemClock.now()) + DAY_MS / 2).div_euclid(DAY_MS)
}

/// When the adapter received event `id`.
async fn received(world: &World, id: &str) -> Result<UnixMillis, String> {
    let stored = world.bus.read_history(streams::EVENTS, "nexus.ev.>", 1, 1_000).await;
    let stored = stored.map_err(|error| error.to_string())?;
    let events = stored.iter().filter_map(|message| message.decode::<Event>().ok());
    let found = events.into_iter().find(|event| event.id.as_str() == id);
    found
        .map(|event| event.received_at)
        .ok_or_else(|| format!("no event {id}"))
}

/// When the newest record of the session of `peer` was written.
async fn written(world: &World, peer: &str) -> Result<UnixMillis, String> {
    let subject = subject::ledger(&session(peer));
    let newest = world.bus.last_on_subject(streams::LEDGER, &subject).await;
    let newest = newest.map_err(|error| error.to_string())?;
    let newest = newest.ok_or_else(|| format!("no ledger of {peer}\n{}", world.logs()))?;
    let record: LedgerRecord = newest.decode().map_err(|error| error.to_string())?;
    Ok(record.at)
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_follow_the_clock_of_a_test_and_go_on_after_a_day_in_which_they_were_suspended() {
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        sets_clock: true,
        ..Setup::default()
    })
    .await;

    let clock = world.clock();
    let one_day = u64::try_from(DAY_MS).expect("a day");

    // One replica alone, as on a host of its own.
    clock.set("adapter-svc-0", DAY_MS, one_day);
    send(&world, &event("e2e:a/1", "a", "hello")).await;
    let at = eventually("the event", PATIENCE, async || received(&world, "e2e:a/1").await).await;

    assert_eq!(days_ahead(at), 1);

    let at = eventually("the turn", PATIENCE, async || written(&world, "a").await).await;
    assert_eq!(days_ahead(at), 0);

    // The others all at once: their leases are long over, and they take new ones.
    clock.set_ahead(2 * one_day);
    send(&world, &event("e2e:b/1", "b", "hello")).await;
    let at = eventually("the turn after two days", PATIENCE, async || written(&world, "b").await).await;

    assert_eq!(days_ahead(at), 2);
}
