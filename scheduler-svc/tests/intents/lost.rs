//! What an intent has published and its stream has lost: published again, once, and known again by its id.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use scheduler_svc::intent::store::key;
use serde_json::{Value, json};
use shared::bus::{OutgoingMessage, StoredMessage};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{Intent, IntentStatus};
use shared::model::invocation::{HookInvocation, HookOutcome};
use shared::model::order::SessionOrder;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::testing::eventually_some;
use shared::wire::headers::{Headers, REPEATED};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::subject;
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::{DELIVERIES, DISPATCHES, EVENTS, INVOCATIONS, PARKED, RECEIPTS};
use shared::wire::topology::topology;

use crate::world::{PATIENCE, World, completed, ulid};

const MINUTE_MS: i64 = 60_000;
/// The shortest duplicate window that a stream has here.
const WINDOW: Duration = Duration::from_millis(100);

impl World {
    /// Intent `number` of `wish` has fired; nobody has taken what it published.
    async fn has_fired(&self, number: u128, wish: Value) -> UnixMillis {
        let due = self.propose(number, wish).await.due.expect("a time");
        self.clock.set(due);
        self.fires(number, due).await;
        due
    }

    async fn fires(&self, number: u128, due: UnixMillis) {
        let clerk = &self.desks[0].clerk;
        clerk
            .handle_due("default", ulid(number), due, None)
            .await
            .expect("fired");
    }

    /// The timer of the firing `due` rings, `minutes` behind it.
    async fn look(&self, number: u128, due: UnixMillis, minutes: i64) {
        self.clock.set(due.plus(minutes * MINUTE_MS));
        let timer = IntentTimer {
            intent: ulid(number),
            agent: "default".to_owned(),
            purpose: TimerPurpose::Outcome,
            nominal: due,
        };
        self.desks[0].clerk.handle_timer(&timer).await.expect("looked");
    }

    /// The messages of `stream` on `subject` that are no orders.
    async fn stored(&self, stream: &str, subject: &str) -> Vec<StoredMessage> {
        let mut stored = self
            .bus
            .read_history(stream, subject, 1, 1_000)
            .await
            .expect("readable");
        stored.retain(|stored| stored.decode::<SessionOrder>().is_err());
        stored
    }

    /// `stream` is another one, without a message.
    async fn made_anew(&self, stream: &str) {
        assert!(self.bus.delete_stream(stream).await.expect("deleted"));
        self.bus.ensure_topology(&topology(1), false).await.expect("made again");
    }

    /// `stream` forgets ids of messages at once.
    async fn forgets_ids(&self, stream: &str) {
        let ask = async |what: &str, payload: Vec<u8>| -> Value {
            let subject = format!("$JS.API.STREAM.{what}.{stream}");
            let answer = self
                .bus
                .request_bytes(&subject, &Headers::new(), Bytes::from(payload), PATIENCE)
                .await;
            let answer: Value = serde_json::from_slice(&answer.expect("an answer").payload).expect("JSON");
            assert!(answer["error"].is_null(), "{answer}");
            answer
        };

        let mut config = ask("INFO", Vec::new()).await["config"].clone();
        config["duplicate_window"] = json!(u64::try_from(WINDOW.as_nanos()).expect("short"));
        ask("UPDATE", config.to_string().into_bytes()).await;
    }
}

fn dispatched(stored: &StoredMessage) -> Dispatch {
    stored.decode().expect("a dispatch")
}

fn is_marked(stored: &StoredMessage) -> bool {
    stored.headers.get(REPEATED).is_some()
}

fn text() -> Value {
    json!({ "kind": "send_message", "parameters": { "target": "telegram/5", "text": "hello" } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_is_gone_is_published_again_once() {
    let world = World::start(1).await;
    let due = world.has_fired(1, json!({})).await;
    let first = dispatched(&world.stored(DISPATCHES, ">").await[0]);

    world.look(1, due, 4).await;
    assert_eq!(world.dispatches().await.len(), 1, "it waits for its turn");

    world.made_anew(DISPATCHES).await;
    world.look(1, due, 2).await;
    assert!(world.dispatches().await.is_empty(), "it may be on its way");
    for minutes in [5, 10, 20] {
        world.look(1, due, minutes).await;
        let stored = world.stored(DISPATCHES, ">").await;
        let [again] = &stored[..] else {
            panic!("after {minutes} minutes: {stored:?}")
        };
        assert_eq!(dispatched(again), first, "with all that it was");
        assert!(is_marked(again), "whoever takes it looks for an earlier one");
    }

    assert_eq!(world.events().await.len(), 1, "its event is there");
    world.begin(&first).await;
    world.made_anew(DISPATCHES).await;
    world.look(1, due, 30).await;
    assert!(world.dispatches().await.is_empty(), "its turn has begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_is_held_is_the_operator_s() {
    let world = World::start(1).await;
    let due = world.has_fired(1, json!({})).await;
    let stored = world.stored(DISPATCHES, ">").await.remove(0);
    let held = HeldMessage {
        kind: HeldKind::Dispatch,
        id: dispatched(&stored).id,
        stream: DISPATCHES.to_owned(),
        sequence: stored.sequence,
        subject: stored.subject.clone(),
        headers: Vec::new(),
        payload: HeldMessage::encode_payload(&stored.payload),
        why: "a test".to_owned(),
        at: world.now(),
        wanted: HeldUntil::Decided,
    };
    world.bus.hold_message(&held).await.expect("held");

    world.made_anew(DISPATCHES).await;
    world.look(1, due, 5).await;
    assert!(world.dispatches().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_gone_is_sent_again_until_its_receipt_is_there() {
    let world = World::start(1).await;
    let due = world.has_fired(1, text()).await;
    let first: Reply = world.stored(DELIVERIES, ">").await[0].decode().expect("a reply");

    world.look(1, due, 4).await;
    assert_eq!(world.stored(DELIVERIES, ">").await.len(), 1, "it waits to be sent");

    world.made_anew(DELIVERIES).await;
    for minutes in [5, 10] {
        world.look(1, due, minutes).await;
        let stored = world.stored(DELIVERIES, ">").await;
        let [again] = &stored[..] else {
            panic!("after {minutes} minutes: {stored:?}")
        };
        assert_eq!(again.decode::<Reply>().expect("a reply"), first);
        assert!(is_marked(again), "delivery-svc looks for a receipt");
    }

    // Its destination fails: it is parked, and waits there.
    let parked = world.stored(DELIVERIES, ">").await.remove(0);
    let at = parked.subject.replacen("nexus.dl", "nexus.parked", 1);
    world
        .bus
        .publish(OutgoingMessage::new(at, &first))
        .await
        .expect("parked");
    world.made_anew(DELIVERIES).await;
    world.look(1, due, 20).await;
    assert!(world.stored(DELIVERIES, ">").await.is_empty(), "it is parked");

    world.bus.purge_subject(PARKED, ">").await.expect("purged");
    let receipt = Receipt {
        delivery: first.id,
        session: first.session.clone(),
        target: first.delivery_context.clone(),
        causation: first.causation.clone(),
        at: world.now(),
        card: false,
        changes: None,
        step: ReceiptStep::Delivered {
            attempts: 1,
            parts: 1,
            platform_ids: Vec::new(),
            unconfirmed: Vec::new(),
            live: None,
            plan: None,
        },
    };
    let at = subject::receipt(&first.delivery_context);
    world
        .bus
        .publish(OutgoingMessage::new(at, &receipt).expect_last(0))
        .await
        .expect("stored");
    world.look(1, due, 30).await;

    assert_eq!(world.status(ulid(1)).await, IntentStatus::Completed);
    assert!(world.stored(DELIVERIES, ">").await.is_empty());
    assert_eq!(world.bus.stream_state(RECEIPTS).await.expect("RECEIPTS").messages, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_s_event_that_is_gone_is_published_again_unless_it_has_a_record() {
    let world = World::start(1).await;
    let wish = json!({ "kind": "run_hook", "parameters": { "hook": "nightly" } });
    let due = world.has_fired(1, wish).await;
    let first: Event = world.events().await.remove(0);

    world.look(1, due, 4).await;
    assert_eq!(world.events().await.len(), 1, "it waits for its hook");

    world.made_anew(EVENTS).await;
    for minutes in [5, 10] {
        world.look(1, due, minutes).await;
        assert_eq!(
            world.events().await,
            std::slice::from_ref(&first),
            "after {minutes} minutes"
        );
    }

    let run = HookInvocation {
        hook_id: "nightly".to_owned(),
        latency_us: 1,
        outcome: HookOutcome::Suppressed {
            reason: "cooldown".to_owned(),
        },
        llm_calls: 0,
        llm_tokens_in: 0,
        llm_tokens_out: 0,
        llm_cost_usd: 0.0,
        search_calls: 0,
    };
    world.evaluated(&first, run).await;
    world.made_anew(EVENTS).await;
    world.look(1, due, 20).await;

    assert_eq!(world.status(ulid(1)).await, IntentStatus::Completed, "by its record");
    assert!(world.events().await.is_empty());
    assert_eq!(
        world.bus.stream_state(INVOCATIONS).await.expect("INVOCATIONS").messages,
        1
    );
}

/// A replica comes back after the servers' windows: its firing is the one of before, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_firing_that_is_published_twice_says_so_and_has_one_event() {
    let world = World::start(2).await;
    for stream in [EVENTS, DISPATCHES] {
        world.forgets_ids(stream).await;
    }

    let due = world.has_fired(1, json!({})).await;
    let copies = eventually_some("the window is over", || async {
        let clerk = &world.desks[1].clerk;
        clerk
            .handle_due("default", ulid(1), due, None)
            .await
            .expect("fired again");
        let stored = world.stored(DISPATCHES, ">").await;
        (stored.len() > 1).then_some(stored)
    })
    .await;

    assert_eq!(
        dispatched(&copies[0]),
        dispatched(&copies[1]),
        "with the place of its event"
    );
    assert_eq!((is_marked(&copies[0]), is_marked(&copies[1])), (false, true));
    assert_eq!(world.events().await.len(), 1);
}

/// KV and `AUDIT` are both older than the firing: nothing of the scheduler's own tells of it, but its event is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_firing_that_kv_and_audit_have_forgotten_says_that_it_may_have_been() {
    let world = World::start(1).await;
    for stream in [EVENTS, DISPATCHES] {
        world.forgets_ids(stream).await;
    }

    let due = world.propose(1, json!({})).await.due.expect("a time");
    let pending = world.value(1).await;
    world.clock.set(due);
    world.fires(1, due).await;
    let dispatch = world.dispatches().await.remove(0).1;
    world.turn(&dispatch, completed).await;

    let key = key("default", ulid(1));
    let values = world.bus.kv::<Intent>(INTENTS);
    let round = AtomicU32::new(1);
    let copies = eventually_some("the window is over", || async {
        // `AUDIT` has nothing that is later than this.
        let mut older = pending.clone();
        let ahead = 100 * round.fetch_add(1, Ordering::Relaxed);
        older.n += ahead;
        older.records.iter_mut().for_each(|record| record.n += ahead);

        values.put(&key, &older).await.expect("put back");
        world.clock.set(due.plus(2 * MINUTE_MS));
        world.fires(1, due).await;
        let stored = world.stored(DISPATCHES, ">").await;
        (stored.len() > 1).then_some(stored)
    })
    .await;

    let (first, again) = (dispatched(&copies[0]), dispatched(&copies[1]));
    assert_eq!((again.id, again.event_seq), (first.id, first.event_seq));
    assert!(is_marked(&copies[1]), "its session looks for an earlier one");
    assert_eq!(world.events().await.len(), 1);
}
