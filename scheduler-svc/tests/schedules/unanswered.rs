//! Nobody answers whether the last firing is over (hook-svc is down): it counts as under way, for an hour and no longer.

use std::sync::Arc;

use scheduler_svc::schedules::keeper::ScheduleWriter;
use shared::clock::{Clock as _, SystemClock};
use shared::model::schedule::{OverlapPolicy, SchedulePolicies, ScheduleRecord, ScheduleSpec};
use shared::testing::ManualClock;

use crate::world::{World, spec};

const MINUTE_MS: i64 = 60_000;

fn every_ten_minutes(name: &str, overlap: OverlapPolicy) -> ScheduleSpec {
    ScheduleSpec {
        policies: SchedulePolicies {
            overlap,
            ..SchedulePolicies::default()
        },
        ..spec(&format!("config:{name}"), "every 10m")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_tell_of_holds_back_for_an_hour_and_no_longer() {
    let world = World::start().await;
    let clock = ManualClock::at(SystemClock.now());
    let keeper = ScheduleWriter::new(world.bus.clone(), Arc::new(clock.clone()));
    let specs = [
        every_ten_minutes("leaves-out", OverlapPolicy::Skip),
        every_ten_minutes("waits", OverlapPolicy::BufferOne),
    ];

    let next_of = async |id: &str| -> ScheduleRecord {
        keeper.advance_schedule(id, None).await.expect("planned");
        let planned = world.record(id).await.and_then(|record| record.next);
        clock.set(planned.expect("it is planned").due);
        keeper.advance_schedule(id, None).await.expect("looked");
        world.record(id).await.expect("a record")
    };

    for spec in &specs {
        let id = spec.id.as_str();
        let one = std::slice::from_ref(spec);
        let said = keeper
            .schedule_book()
            .replace_schedules("config:", one, clock.now())
            .await;
        said.expect("it is said");

        let first = next_of(id).await;
        let fired_at = first.last.expect("it has fired").at;
        assert_eq!((first.fired, first.skipped), (1, 0), "nothing came before the first");

        for round in 1..=5 {
            let held_back = next_of(id).await;
            assert_eq!(held_back.fired, 1, "{round}: {held_back:?}");
        }

        clock.set(fired_at.plus(61 * MINUTE_MS));
        keeper.advance_schedule(id, None).await.expect("looked");
        let over = next_of(id).await;

        assert!(over.fired >= 2, "it does not stand for ever: {over:?}");

        let events = world.fired().await.get(id).map(Vec::len);
        assert_eq!(events, usize::try_from(over.fired).ok(), "{over:?}");
    }
}
