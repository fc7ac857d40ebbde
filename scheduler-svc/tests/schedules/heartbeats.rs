//! A heartbeat is left out while its session has something to run, the first one too.

use std::sync::Arc;

use scheduler_svc::schedules::heartbeat::{PREFIX, heartbeat_specs};
use scheduler_svc::schedules::keeper::ScheduleWriter;
use shared::bus::claim;
use shared::clock::{Clock as _, SystemClock};
use shared::model::session::SessionRef;
use shared::testing::ManualClock;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::streams::CLAIMS;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_session_is_not_woken() {
    let world = World::start().await;
    let clock = ManualClock::at(SystemClock.now());
    let keeper = ScheduleWriter::new(world.bus.clone(), Arc::new(clock.clone()));
    let personas = "personas: {atlas: {heartbeat: {every: 30m, session: inner}}}";
    let specs = heartbeat_specs(personas, clock.now()).expect("a heartbeat");
    keeper
        .schedule_book()
        .replace_schedules(PREFIX, &specs, clock.now())
        .await
        .expect("it is said");

    let id = specs[0].id.as_str();
    keeper.advance_schedule(id, None).await.expect("planned");
    let inner = SessionRef {
        persona: "atlas".to_owned(),
        session: "inner".to_owned(),
    };

    let beat = async || {
        let next = world.record(id).await.and_then(|record| record.next);
        clock.set(next.expect("a beat is planned").due);
        keeper.advance_schedule(id, None).await.expect("looked");
        let record = world.record(id).await.expect("a record");
        (record.fired, record.skipped)
    };

    claim::publish(&world.bus, &inner, &TraceCarrier::default())
        .await
        .expect("it has something to run");
    assert_eq!(beat().await, (0, 1), "the first beat");

    let claimed = world
        .bus
        .last_on_subject(CLAIMS, &subject::claim(&inner))
        .await
        .expect("CLAIMS");
    claim::release(&world.bus, claimed.expect("a claim").sequence)
        .await
        .expect("it is done");

    assert_eq!(beat().await, (1, 1));

    claim::publish(&world.bus, &inner, &TraceCarrier::default())
        .await
        .expect("it has something to run");
    assert_eq!(beat().await, (1, 2));
    assert_eq!(world.fired().await.get(id).map(Vec::len), Some(1));
}
