//! How long a firing's end is looked for, and how far.

use serde_json::json;
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{IntentCode, IntentStatus};
use shared::model::ledger::LedgerEntry;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::world::{World, completed, ulid};

const HOUR_MS: i64 = 3_600_000;
/// More of a busy session than is appended in a turn of it.
const BEHIND: usize = 600;

impl World {
    /// Where `number`, which fired at `due`, stands once its end was looked for `hours` later.
    async fn looked_for(&self, number: u128, due: UnixMillis, hours: i64) -> IntentStatus {
        let timer = IntentTimer {
            intent: ulid(number),
            agent: "default".to_owned(),
            purpose: TimerPurpose::Outcome,
            nominal: due,
        };
        self.clock.set(due.plus(hours * HOUR_MS));
        self.desks[0].clerk.handle_timer(&timer).await.expect("looked");
        self.status(ulid(number)).await
    }

    async fn fired_now(&self, number: u128) -> UnixMillis {
        let due = self.propose(number, json!({})).await.due.expect("a time");
        self.clock.set(due);
        let clerk = &self.desks[0].clerk;
        clerk
            .handle_due("default", ulid(number), due, None)
            .await
            .expect("fired");
        due
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waits_is_waited_for_and_one_that_nobody_begins_is_not() {
    let world = World::start(1).await;
    let due = world.fired_now(1).await;
    let dispatch = world.dispatches().await.pop().expect("a dispatch").1;
    world.begin(&dispatch).await;

    assert_eq!(
        world.looked_for(1, due, 25).await,
        IntentStatus::Running,
        "an approval may wait"
    );
    assert_eq!(world.looked_for(1, due, 8 * 24 + 1).await, IntentStatus::Failed);

    let due = world.fired_now(2).await;
    assert_eq!(world.looked_for(2, due, 23).await, IntentStatus::Running);
    assert_eq!(world.looked_for(2, due, 25).await, IntentStatus::Failed);
    assert_eq!(
        world.history(ulid(2)).await.last().expect("one").code,
        IntentCode::NoOutcome
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_found_behind_much_that_came_later() {
    let world = World::start(1).await;
    let due = world.fired_now(1).await;

    // Nobody hears the bell.
    world.shutdown.trigger();
    let dispatch = world.dispatches().await.pop().expect("a dispatch").1;
    world.turn(&dispatch, completed).await;

    for number in 0..BEHIND {
        let turn = Ulid::from_parts(10, number as u128);
        world
            .append(&dispatch.target, LedgerEntry::ReplyPublished { turn })
            .await;
    }

    assert_eq!(world.looked_for(1, due, 1).await, IntentStatus::Completed);
}
