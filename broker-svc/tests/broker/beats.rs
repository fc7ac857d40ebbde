//! Beats of turns that answer on a platform: while a turn runs, and a last one if it is over without a reply.

use std::sync::Arc;

use shared::bus::CoreSubscription;
use shared::model::dispatch::DeliveryContext;
use shared::model::ledger::LedgerEntry;
use shared::model::live::{LIVE_SUBJECTS, WritingBeat};
use shared::model::order::OrderKind;
use shared::testing::connect_to;
use ulid::Ulid;

use crate::bench::{Bench, DEADLINE, dispatch, session};
use crate::edited::order;
use crate::stepping::{SUBJECT, Scripted, answer, effect};

/// Waits for the next last beat, and returns its turn.
async fn last_beat(heard: &mut CoreSubscription) -> Ulid {
    loop {
        let next = tokio::time::timeout(DEADLINE, heard.next()).await;
        let message = next.expect("in time").expect("a beat");
        let beat: WritingBeat = serde_json::from_slice(&message.payload).expect("a beat");
        assert_eq!(beat.target.peer_id.as_deref(), Some("77"));
        if beat.is_over {
            return beat.turn;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_over_without_a_reply_says_so_once_the_ledger_has_its_end() {
    let bench = Bench::start().await;
    let mut asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
    let mut heard = bench.bus.core_subscribe(LIVE_SUBJECTS).await.expect("a subscription");
    bench.bus.flush().await.expect("they are known");
    let agent = async || Scripted {
        bus: connect_to(&bench.server.url(), "test").await,
        asks: SUBJECT.to_owned(),
        tools: Vec::new(),
    };
    let running = bench.run_answering("b1", Arc::new(agent().await)).await;
    let main = session("main");

    let mut silent = Vec::new();
    for event in 1..=3 {
        let mut one = dispatch(&main, event);
        one.delivery_context = DeliveryContext {
            channel: "telegram".to_owned(),
            account_id: Some("bot".to_owned()),
            peer_id: Some("77".to_owned()),
            ..DeliveryContext::default()
        };
        bench.publish(&one).await;
        bench.claim(&main).await;
        let (_, to) = effect(&mut asked).await;

        // The second one is answered, and has no last beat.
        if event == 2 {
            answer(&bench.bus, &to, "two", &[]).await;
            bench.until_replies(1).await;
            continue;
        }
        order(&bench, event, &main, OrderKind::Abort).await;
        let ended = loop {
            // One may be sent again.
            let turn = last_beat(&mut heard).await;
            if !silent.contains(&turn) {
                break turn;
            }
        };
        silent.push(ended);

        let mut interrupted = Vec::new();
        for entry in bench.entries(&main).await {
            if let LedgerEntry::TurnInterrupted { turn, .. } = entry {
                interrupted.push(turn);
            }
        }
        assert_eq!(interrupted, silent);
    }
    running.stop().await;

    // The next owner cannot know whether the last beat was sent.
    let running = bench.run_answering("b2", Arc::new(agent().await)).await;
    bench.claim(&main).await;
    assert_eq!(Some(last_beat(&mut heard).await), silent.last().copied());
    running.stop().await;
}
