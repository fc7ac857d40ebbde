//! `AUDIT` while it takes nothing, and while an intent goes on under the eyes of whoever is shown it.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};
use shared::model::dispatch::Dispatch;
use shared::model::intent::IntentStatus;
use shared::model::intent::service::{GetIntent, RescheduleIntent};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;
use shared::wire::topology::streams::AUDIT;

use crate::world::{PATIENCE, World, completed, ulid};

/// Steps of an intent that somebody looks at all the while.
const STEPS: u64 = 12;

impl World {
    /// What the server says to `payload`.
    async fn stream_api(&self, what: &str, payload: Vec<u8>) -> Value {
        let subject = format!("$JS.API.STREAM.{what}.{AUDIT}");
        let (headers, payload) = (Headers::new(), Bytes::from(payload));
        let answer = self.bus.request_bytes(&subject, &headers, payload, PATIENCE).await;
        let answer: Value = serde_json::from_slice(&answer.expect("an answer").payload).expect("JSON");
        assert!(answer["error"].is_null(), "{answer}");
        answer
    }

    /// Changes what `AUDIT` takes; answers how it was.
    async fn audit_takes(&self, changes: &Value) -> Value {
        let former = self.stream_api("INFO", Vec::new()).await["config"].clone();
        let mut wanted = former.clone();
        for (name, value) in changes.as_object().expect("settings") {
            wanted[name] = value.clone();
        }
        self.stream_api("UPDATE", wanted.to_string().into_bytes()).await;
        former
    }

    /// Intent `number` fires: its nominal time, and what is to be done.
    async fn under_way(&self, number: u128) -> (UnixMillis, Dispatch) {
        let due = self.propose(number, json!({})).await.due.expect("a time");
        self.clock.set(due);
        let timer = IntentTimer {
            intent: ulid(number),
            agent: "default".to_owned(),
            purpose: TimerPurpose::Fire,
            nominal: due,
        };

        self.desks[0].clerk.handle_timer(&timer).await.expect("fired");
        let running = [IntentStatus::Proposed, IntentStatus::Pending, IntentStatus::Running];
        assert_eq!(self.ways(ulid(number)).await, running, "AUDIT has all of it");

        (due, self.dispatches().await.pop().expect("a dispatch").1)
    }

    /// Whether `AUDIT` knows that `number` is over, as KV says.
    async fn is_told(&self, number: u128) -> bool {
        assert_eq!(self.status(ulid(number)).await, IntentStatus::Completed);
        let history = self.desks[0]
            .clerk
            .store
            .read_history(ulid(number))
            .await
            .expect("AUDIT");
        history.last().expect("records").to == IntentStatus::Completed
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_audit_refuses_is_told_there_later_and_once() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    for (number, refusing) in [(1, "every message is too large"), (3, "no message fits in any more")] {
        let (first, second) = (world.under_way(number).await, world.under_way(number + 1).await);
        let full = world.bus.stream_state(AUDIT).await.expect("AUDIT").messages;
        let changes = if number == 1 {
            json!({ "max_msg_size": 1 })
        } else {
            json!({ "max_msgs": full, "discard": "new" })
        };

        let former = world.audit_takes(&changes).await;

        for (number, (due, dispatch)) in [(number, first), (number + 1, second)] {
            world.turn(&dispatch, completed).await;
            let ended = one.clerk.look_for_end("default", ulid(number), due);
            assert!(ended.await.expect("it is over"), "whatever AUDIT says: {refusing}");
            assert!(!world.is_told(number).await, "{refusing}");
        }

        world.audit_takes(&former).await;
        // Another replica comes by before the one that ended it tries again.
        let value = two.clerk.store.find(None, ulid(number + 1)).await.expect("there").value;
        two.clerk.store.ensure_audited(&value).await.expect("told");

        assert!(world.is_told(number + 1).await);

        for number in [number, number + 1] {
            assert_eq!(world.history(ulid(number)).await.len(), 4, "once: {refusing}");
        }
    }

    for number in 1..=4 {
        assert_eq!(world.history(ulid(number)).await.len(), 4, "and never again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_goes_on_is_shown_as_it_is() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    world.propose(1, json!({})).await;
    let over = AtomicBool::new(false);

    let goes_on = async {
        for step in 0..STEPS {
            let moved = RescheduleIntent {
                id: ulid(1),
                schedule: serde_json::from_value(json!({ "type": "after", "seconds": 60 + step })).expect("a schedule"),
                agent: None,
                by: None,
                reason: "moved".to_owned(),
            };

            one.reschedule_intent(moved).await.expect("moved");
        }

        over.store(true, Ordering::Relaxed);
    };

    let look = async || {
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) {
            let question = GetIntent {
                id: ulid(1),
                agent: None,
            };
            let told = two
                .get(question)
                .await
                .expect("it is shown, whoever changes it meanwhile");

            let last = told.history.last().expect("records");
            assert_eq!((last.n, last.to), (told.intent.n, told.intent.status));

            looks += 1;
        }

        looks
    };

    let ((), looks, others) = tokio::join!(goes_on, look(), look());
    assert!(looks > 0 && others > 0);
}
