//! What stands behind an intent that is over, or in whose place another came, is cleared away whoever was cut off.

use scheduler_svc::intent::reconcile;
use scheduler_svc::intent::store::key;
use serde_json::json;
use shared::model::intent::book::{AgentBook, IntentBooking};
use shared::model::intent::service::{CancelIntent, DecideIntent};
use shared::model::intent::{IntentCode, IntentStatus};
use shared::wire::topology::buckets::INTENTS;
use ulid::Ulid;

use crate::world::{World, proposal, ulid};

impl World {
    /// An intent `number` in the place of `old`, written by a replica that was killed right behind.
    async fn cut_off(&self, number: u128, old: u128) {
        let store = &self.desks[0].clerk.store;
        let mut value = store.find(None, ulid(old)).await.expect("there").value;
        value.intent.id = ulid(number);
        value.intent.supersedes = Some(ulid(old));
        value.records.iter_mut().for_each(|record| record.intent = ulid(number));
        let created = self.bus.kv(INTENTS).create(&key("default", ulid(number)), &value).await;
        created.expect("written");
    }

    async fn last_code(&self, number: u128) -> IntentCode {
        self.history(ulid(number)).await.last().expect("one").code
    }

    async fn book(&self) -> (AgentBook, u64) {
        let found = self.bus.kv(INTENTS).get("a.default").await.expect("KV");
        let entry = found.expect("a book");
        (entry.value, entry.revision)
    }

    /// Puts reservations without a day into the book, as a replica leaves them that is killed before it settles.
    async fn book_again(&self, numbers: &[u128]) {
        let (mut book, revision) = self.book().await;
        for number in numbers {
            let booking = IntentBooking {
                due: None,
                firings: 1,
                tokens: 1,
            };
            book.bookings.insert(ulid(*number), booking);
        }

        self.bus
            .kv(INTENTS)
            .update("a.default", &book, revision)
            .await
            .expect("written");
    }

    async fn booked(&self) -> Vec<Ulid> {
        self.book().await.0.bookings.into_keys().collect()
    }
}

fn cancel(number: u128) -> CancelIntent {
    CancelIntent {
        id: ulid(number),
        agent: None,
        turn: None,
        by: Some("casey".to_owned()),
        reason: "no".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_whose_place_is_taken_never_fires_beside_the_other() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);

    for old in [10, 20, 30, 40] {
        world.propose(old, json!({})).await;
    }

    world.propose(11, json!({ "supersedes": ulid(10).to_string() })).await;
    assert_eq!(world.last_code(10).await, IntentCode::Superseded);

    world.cut_off(21, 20).await;
    let again = || proposal(21, json!({}));
    let (left, right) = tokio::join!(one.propose_intent(again()), two.propose_intent(again()));

    assert_eq!(left.expect("there"), right.expect("there"));
    assert_eq!(world.last_code(20).await, IntentCode::Superseded, "asked again");

    let strict = json!({ "supersedes": ulid(30).to_string(), "approval": "before_admission" });
    world.propose(31, strict).await;
    assert_eq!(world.status(ulid(30)).await, IntentStatus::Pending, "nobody has agreed");

    let yes = || DecideIntent {
        id: ulid(31),
        approve: true,
        by: "casey".to_owned(),
        response: None,
    };

    let (left, right) = tokio::join!(one.decide_intent(yes()), two.decide_intent(yes()));
    left.and(right).expect("the same word twice");
    assert_eq!(world.status(ulid(31)).await, IntentStatus::Pending);
    assert_eq!(world.last_code(30).await, IntentCode::Superseded);

    world.cut_off(41, 40).await;
    let due = one.clerk.store.find(None, ulid(41)).await.expect("there").value.due;
    let due = due.expect("a time");
    world.clock.set(due);
    one.clerk
        .handle_due("default", ulid(41), due, None)
        .await
        .expect("fired");

    assert_eq!(world.status(ulid(41)).await, IntentStatus::Running);
    assert_eq!(
        world.last_code(40).await,
        IntentCode::Superseded,
        "before the other fired"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_that_no_intent_stands_behind_are_freed() {
    let world = World::start(1).await;
    let (desk, shutdown) = (&world.desks[0], &world.shutdown);

    let daily = json!({ "schedule": {
        "type": "cron", "expression": "0 9 * * *", "zone": "UTC", "until": "2099-01-01T00:00"
    } });
    for number in 1..=3 {
        let asked = world.propose(number, daily.clone()).await;
        assert_eq!(asked.status, IntentStatus::Pending, "{asked:?}");
    }

    for number in [2, 3] {
        desk.cancel_intent(cancel(number)).await.expect("withdrawn");
    }

    assert_eq!(world.booked().await, [ulid(1)]);

    world.book_again(&[2, 3, 4]).await;
    desk.cancel_intent(cancel(3)).await.expect("the same again");
    assert_eq!(
        world.booked().await,
        [ulid(1), ulid(2), ulid(4)],
        "settled behind the first"
    );

    reconcile::reconcile_all(&desk.clerk, u64::MAX, shutdown)
        .await
        .expect("walked");
    assert_eq!(world.booked().await, [ulid(1), ulid(4)], "4 may be on its way");

    world.clock.advance(11 * 60_000);
    reconcile::reconcile_all(&desk.clerk, u64::MAX, shutdown)
        .await
        .expect("walked");
    assert_eq!(world.booked().await, [ulid(1)]);
}
