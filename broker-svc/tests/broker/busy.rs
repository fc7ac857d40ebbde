//! Three brokers, and messages for one session that come while its turn runs on one of them.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::CoreSubscription;
use shared::clock::{Clock as _, SystemClock};
use shared::model::ledger::{DropReason, LedgerEntry};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::session::{QueueMode, SessionRef};
use shared::model::time::UnixMillis;
use shared::testing::{connect_to, eventually};
use shared::wire::subject;
use ulid::Ulid;

use crate::bench::{Bench, Running, dispatch, session};
use crate::sizes::is_long;
use crate::stepping::{Effect, SUBJECT, Scripted, answer, effect};

struct Busy {
    bench: Bench,
    brokers: Vec<Running>,
    asked: CoreSubscription,
    main: SessionRef,
}

impl Busy {
    async fn start() -> Self {
        let bench = Bench::start().await;
        let asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
        bench.bus.flush().await.expect("it is known");

        let mut brokers = Vec::new();
        for name in ["b1", "b2", "b3"] {
            let agent = Scripted {
                bus: connect_to(&bench.server.url(), "test").await,
                asks: SUBJECT.to_owned(),
                tools: vec![("look", true), ("web_search", true)],
            };
            brokers.push(bench.run_answering(name, Arc::new(agent)).await);
        }

        Self {
            bench,
            brokers,
            asked,
            main: session("main"),
        }
    }

    async fn send(&self, event: u64, mode: QueueMode, change: impl FnOnce(&mut shared::model::dispatch::Dispatch)) {
        let mut one = dispatch(&self.main, event);
        one.queue_mode = Some(mode);
        change(&mut one);
        self.bench.publish(&one).await;
        self.bench.claim(&self.main).await;
    }

    /// The next effect that somebody is about to have, and where to answer.
    async fn effect(&mut self) -> (Effect, String) {
        effect(&mut self.asked).await
    }

    async fn answer(&self, to: &str, text: &str, tools: &[&str]) {
        answer(&self.bench.bus, to, text, tools).await;
    }

    async fn replies(&self, count: usize) -> Vec<String> {
        eventually("the replies", async || self.bench.replies().await.len() >= count).await;
        let replies = self.bench.replies().await;
        replies.into_iter().map(|reply| reply.content).collect()
    }

    async fn stop(self) {
        for broker in self.brokers {
            broker.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_steers_is_seen_by_the_next_model_call_and_skips_what_was_not_begun() {
    let mut busy = Busy::start().await;
    busy.send(1, QueueMode::Followup, |_| {}).await;
    let (first, to) = busy.effect().await;

    assert_eq!((first.id.as_str(), first.heard.len()), ("1", 1));

    busy.answer(&to, "let me search", &["web_search", "web_search"]).await;
    let (tool, to) = busy.effect().await;
    assert_eq!(tool.id, "1-1");

    busy.send(2, QueueMode::Steer, |_| {}).await;
    busy.answer(&to, "found", &[]).await;
    let (second, to) = busy.effect().await;

    assert_eq!(
        (second.name.as_str(), second.id.as_str()),
        ("model", "2"),
        "the second search is skipped"
    );
    assert!(second.heard[1].ends_with("message 2"), "{second:?}");
    assert!(
        second.heard[1].contains("not the owner"),
        "a stranger's words are marked: {second:?}"
    );

    busy.answer(&to, "both", &[]).await;
    assert_eq!(busy.replies(1).await, ["both"]);

    let entries = busy.bench.entries(&busy.main).await;
    let skipped = |entry: &LedgerEntry| matches!(entry, LedgerEntry::ToolFinished { call, outcome: shared::model::ledger::ToolOutcome::Skipped { .. }, .. } if call == "1-2");
    assert!(entries.iter().any(skipped), "{entries:#?}");

    busy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_interrupts_cancels_at_once_and_the_newest_runs() {
    let mut busy = Busy::start().await;
    busy.send(1, QueueMode::Followup, |_| {}).await;
    let (_, _) = busy.effect().await;
    busy.send(2, QueueMode::Followup, |_| {}).await;
    let clock = SystemClock;
    let before = clock.monotonic();
    busy.send(3, QueueMode::Interrupt, |_| {}).await;

    let (next, to) = busy.effect().await;
    let took = clock.monotonic().saturating_duration_since(before);
    assert!(next.heard.last().is_some_and(|said| said == "message 3"), "{next:?}");

    println!("interrupted and begun anew in {took:?}");
    // The contract's bound on a machine of our own; else everybody builds beside us.
    let most = Duration::from_millis(if is_long() { 200 } else { 60_000 });
    assert!(took < most, "{took:?}");

    busy.answer(&to, "three", &[]).await;
    assert_eq!(busy.replies(1).await, ["three"]);

    let entries = busy.bench.entries(&busy.main).await;
    let partial = entries.iter().find_map(|entry| {
        let LedgerEntry::TurnInterrupted { partial, .. } = entry else {
            return None;
        };
        Some(partial.as_str())
    });

    assert_eq!(partial, Some("thinking"), "what it had said is kept: {entries:#?}");

    let superseded = |entry: &LedgerEntry| matches!(entry, LedgerEntry::DispatchDropped { reason, .. } if *reason == DropReason::Superseded);
    assert_eq!(entries.iter().filter(|entry| superseded(entry)).count(), 1);

    busy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_collected_become_one_turn_for_each_place() {
    let mut busy = Busy::start().await;
    busy.send(1, QueueMode::Followup, |_| {}).await;
    let (_, to) = busy.effect().await;

    for (event, peer) in [(2, "a"), (3, "b"), (4, "a")] {
        let place = |one: &mut shared::model::dispatch::Dispatch| one.delivery_context.peer_id = Some(peer.to_owned());
        busy.send(event, QueueMode::Collect, place).await;
    }

    busy.answer(&to, "one", &[]).await;
    let (both, to) = busy.effect().await;
    let said = &both.heard[both.heard.len() - 2..];

    assert!(
        said[0].ends_with("message 2") && said[1].ends_with("message 4"),
        "{said:?}"
    );

    busy.answer(&to, "two and four", &[]).await;
    let (other, to) = busy.effect().await;
    assert_eq!(other.heard.last().map(String::as_str), Some("message 3"));

    busy.answer(&to, "three", &[]).await;
    assert_eq!(busy.replies(3).await, ["one", "two and four", "three"]);

    busy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_to_abort_ends_the_turn_and_drops_what_waits() {
    let mut busy = Busy::start().await;
    busy.send(1, QueueMode::Followup, |_| {}).await;
    let (_, _) = busy.effect().await;
    busy.send(2, QueueMode::Followup, |_| {}).await;

    let order = SessionOrder {
        id: Ulid::from(1_u128),
        target: busy.main.clone(),
        wanted: OrderKind::Abort,
        by: "ada".to_owned(),
        reason: "enough".to_owned(),
        at: UnixMillis(1),
    };

    let out = shared::bus::OutgoingMessage::new(subject::dispatch(&busy.main), &order);
    busy.bench.bus.publish(out).await.expect("an order is stored");
    busy.bench.claim(&busy.main).await;
    eventually("the order is carried out", async || {
        let entries = busy.bench.entries(&busy.main).await;
        entries.iter().any(|entry| matches!(entry, LedgerEntry::Ordered { .. }))
    })
    .await;

    let entries = busy.bench.entries(&busy.main).await;
    let ended = |entry: &LedgerEntry| matches!(entry, LedgerEntry::TurnInterrupted { .. });
    let aborted = |entry: &LedgerEntry| matches!(entry, LedgerEntry::DispatchDropped { reason, .. } if *reason == DropReason::Aborted);

    assert_eq!(entries.iter().filter(|e| ended(e)).count(), 1, "{entries:#?}");
    assert_eq!(entries.iter().filter(|e| aborted(e)).count(), 1, "{entries:#?}");

    eventually("the claim is given back", async || busy.bench.claims().await == 0).await;
    assert!(busy.bench.replies().await.is_empty());

    busy.stop().await;
}
