//! Order per peer, all peers at once, through one account: one partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use shared::testing::eventually;
use shared::wire::headers::CAUSATION;
use shared::wire::topology::{MAX_PAST_FLOOR, streams};
use tokio::sync::watch;

use crate::world::{Setup, World, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_peer_gets_its_replies_in_order() {
    const PEERS: u64 = 100;
    const REPLIES: u64 = 2_000;

    let world = World::start().await;
    let mut parts = world.bus.core_subscribe("nexus.out.>").await.expect("subscribed");
    world.bus.flush().await.expect("flushed");

    let publish = |n: u64| {
        let world = &world;
        async move { world.publish(&reply(n, "nats", &format!("p{}", n % PEERS))).await }
    };
    for start in (0..REPLIES).step_by(100) {
        futures_util::future::join_all((start..start + 100).map(publish)).await;
    }

    let replica = world.replica("a", Setup::default());
    world.settled().await;

    let mut got: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..REPLIES {
        let message = parts.next().await.expect("a part");
        let part: serde_json::Value = serde_json::from_slice(&message.payload).expect("JSON");
        let cause = message.headers.get(CAUSATION).expect("a cause").to_owned();

        assert!(cause.starts_with("test:"), "{cause}");

        got.entry(message.subject)
            .or_default()
            .push(part["delivery"].as_str().expect("an id").to_owned());
    }

    assert_eq!(got.len() as u64, PEERS);
    assert!(
        got.values()
            .all(|ids| ids.len() as u64 == REPLIES / PEERS && ids.is_sorted())
    );
    assert_eq!(world.sent_events().await.len() as u64, REPLIES);

    replica.stop().await;
}

/// What a receiver was sent so far, and whether it answers those that are slow by now.
#[derive(Clone)]
struct Slow {
    heard: Arc<Mutex<Vec<String>>>,
    answers: watch::Receiver<u32>,
}

/// The first call of `slow` is answered from 1 on, its others from 2 on, everybody else's at once.
async fn slowly(State(mut slow): State<Slow>, body: String) -> StatusCode {
    let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let content = body["data"]["content"].as_str().expect("a text").to_owned();
    let is_slow = body.to_string().contains("\"slow\"");
    let wanted = match content.as_str() {
        _ if !is_slow => 0,
        "echo: 0" => 1,
        _ => 2,
    };

    slow.heard.lock().expect("not poisoned").push(content);
    let answers = slow.answers.wait_for(|answers| *answers >= wanted).await;

    answers.map_or(StatusCode::SERVICE_UNAVAILABLE, |_| StatusCode::OK)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_destination_does_not_hold_up_its_partition() {
    // More than a partition holds at once.
    const REPLIES: u64 = 1_100;
    const IN_ORDER: usize = 50;

    let (answers, answered) = watch::channel(0);
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let slow = Slow {
        heard: Arc::clone(&heard),
        answers: answered,
    };

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = Some(format!("http://{}/hook", listener.local_addr().expect("an address")));
    let router = Router::new().fallback(slowly).with_state(slow);
    tokio::spawn(async move { axum::serve(listener, router).await });

    let world = World::start().await;
    for n in 0..REPLIES {
        world.publish(&reply(n, "webhook", "slow")).await;
    }

    world.publish(&reply(REPLIES, "webhook", "quick")).await;
    let setup = Setup {
        url,
        ..Setup::default()
    };

    let replica = world.replica("a", setup);
    let heard = || heard.lock().expect("not poisoned").clone();
    eventually("the first call is under way", async || !heard().is_empty()).await;

    // All that the partition may hold is given out: far more than a lane holds is behind the first, whatever of it is still
    // on its way.
    let stored = world.bus.read_history(streams::DELIVERIES, "nexus.dl.>", 1, 1).await;
    let stored = stored.expect("the stream is read").pop().expect("a reply");
    let partition = stored.subject.split('.').nth(2).expect("a partition");
    let consumer = format!("delivery-{partition}");
    eventually("its lane is full", async || {
        let lag = world.bus.consumer_lag(streams::DELIVERIES, &consumer).await;
        lag.is_ok_and(|lag| lag.in_hand >= MAX_PAST_FLOOR.unsigned_abs())
    })
    .await;

    answers.send_replace(1);
    let quick = format!("echo: {REPLIES}");
    eventually(
        "another is delivered, and the second of the slow ones begun",
        async || heard().contains(&quick) && heard().len() > 2,
    )
    .await;

    assert_eq!(
        heard().len(),
        3,
        "beside the second of the slow ones, which is not answered"
    );

    answers.send_replace(2);
    eventually("the slow one goes on", async || heard().len() > IN_ORDER).await;
    let of_slow: Vec<String> = heard().into_iter().filter(|content| *content != quick).collect();
    let expected: Vec<String> = (0..of_slow.len()).map(|n| format!("echo: {n}")).collect();

    assert_eq!(of_slow, expected);

    replica.kill();
}
