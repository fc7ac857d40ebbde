//! Accounts show that they write while a turn runs, and not after its reply.

use std::collections::BTreeMap;

use delivery_svc::destination::partition_of;
use shared::model::dispatch::DeliveryContext;
use shared::model::live::WritingBeat;
use shared::model::reply::Reply;
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::partition::partition_owners;
use shared::wire::subject;
use shared::wire::topology::{PARTITIONS, streams};
use ulid::Ulid;

use crate::bot_api::BotApi;
use crate::discord_api::DiscordApi;
use crate::handover::holder;
use crate::web_api::{Lie, WebApi};
use crate::world::{Setup, World, reply};

/// A reply to `peer` of account `bot` on `channel`.
fn to_peer(number: u64, channel: &str, peer: &str) -> Reply {
    let mut reply = reply(number, channel, peer);
    reply.delivery_context.account_id = Some("bot".to_owned());
    reply
}

/// A broker sends a beat of `turn`, which answers in `target`.
async fn beat(world: &World, turn: Ulid, target: &DeliveryContext) {
    send_beat(world, turn, target, false).await;
}

/// As [`beat`]; the last one of a turn that `is_over`.
async fn send_beat(world: &World, turn: Ulid, target: &DeliveryContext, is_over: bool) {
    let target = target.clone();
    let subject = subject::live(&target);
    let payload = serde_json::to_vec(&WritingBeat {
        turn,
        target,
        preview: None,
        is_over,
    })
    .expect("JSON");
    world.bus.core_publish(&subject, &Headers::new(), payload.into()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_turn_shows_that_it_writes_and_its_reply_ends_that_on_every_platform() {
    let world = World::start().await;
    let (bot, app, client) = (
        BotApi::start(&[]).await,
        WebApi::start(&[]).await,
        DiscordApi::start(&[]).await,
    );
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), bot.account("123456:AbC-dEf_1", ""))]),
        slack: BTreeMap::from([("bot".to_owned(), app.account("xoxb-bot", ""))]),
        discord: BTreeMap::from([("bot".to_owned(), client.account("MTk4NjI.Cl2FMQ.ZnCjm1XV", ""))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    // Whether a beat is heard shows only in a call: it is repeated until the replica listens, as brokers do.
    let (telegram, discord) = (to_peer(1, TELEGRAM, "77"), to_peer(2, DISCORD, "77"));
    for (sent, seen) in [(&telegram, "sendChatAction 77/0 typing"), (&discord, "POST 77/typing ")] {
        eventually("the platform shows it", async || {
            beat(&world, sent.turn, &sent.delivery_context).await;
            [bot.changes(), client.changes()]
                .concat()
                .iter()
                .any(|call| call == seen)
        })
        .await;
        // Slack shows nothing outside of threads.
        beat(&world, sent.turn, &to_peer(3, SLACK, "D1").delivery_context).await;
    }

    let before = (bot.changes().len(), client.changes().len());
    for reply in [&telegram, &discord] {
        world.publish(reply).await;
    }
    world.settled().await;

    // Beats that come late show nothing more; that they were heard shows the next turn's, which is behind them.
    for late in [&telegram, &discord] {
        beat(&world, late.turn, &late.delivery_context).await;
    }
    let next = to_peer(4, TELEGRAM, "78");
    eventually("the next turn is shown", async || {
        beat(&world, next.turn, &next.delivery_context).await;
        bot.changes().iter().any(|call| call == "sendChatAction 78/0 typing")
    })
    .await;
    let of = |calls: Vec<String>, chat: &str| calls.iter().filter(|call| call.contains(chat)).count();
    assert_eq!(
        (of(bot.changes(), " 77/"), of(client.changes(), "77/typing")),
        before,
        "a late beat"
    );
    assert_eq!(app.changes(), Vec::<String>::new());
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_of_slack_shows_a_turn_until_its_message_or_its_end_and_an_app_that_may_not_still_sends() {
    let (world, app) = (
        World::start().await,
        WebApi::start(&[Lie::Error("missing_scope")]).await,
    );
    let setup = Setup {
        slack: BTreeMap::from([("bot".to_owned(), app.account("xoxb-bot", ""))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    let in_thread = |number: u64, thread: &str| {
        let mut reply = to_peer(number, SLACK, "C1");
        reply.delivery_context.thread_id = Some(thread.to_owned());
        reply
    };
    let calls = |thread: &str, words: &str| {
        let call = format!("assistant.threads.setStatus C1/{thread} {words}");
        app.changes().iter().filter(|made| **made == call).count()
    };
    let shown = async |reply: &Reply, thread: &str, count: usize| {
        eventually("the thread shows it", async || {
            beat(&world, reply.turn, &reply.delivery_context).await;
            calls(thread, "is writing…") == count
        })
        .await;
    };

    // The app lacks the right for it, and sends its message.
    let refused = in_thread(1, "1767326125.000001");
    shown(&refused, "1767326125.000001", 1).await;
    world.publish(&refused).await;
    world.settled().await;
    assert_eq!(app.texts("C1").len(), 1);
    assert!(world.dead_letters().await.is_empty());

    // A message ends the status; the next turn in the thread is shown although two minutes are not over.
    const THREAD: &str = "1767326125.000002";
    let first = in_thread(2, THREAD);
    shown(&first, THREAD, 1).await;
    world.publish(&first).await;
    world.settled().await;
    let second = in_thread(3, THREAD);
    shown(&second, THREAD, 2).await;

    // It says nothing: its status is taken back, once.
    eventually("it is taken back", async || {
        send_beat(&world, second.turn, &second.delivery_context, true).await;
        calls(THREAD, "") == 1
    })
    .await;
    shown(&in_thread(4, THREAD), THREAD, 3).await;
    assert_eq!(calls(THREAD, ""), 1);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_broker_died_is_not_shown_again_so_that_the_platform_stops_by_itself() {
    let (world, bot) = (World::start().await, BotApi::start(&[]).await);
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), bot.account("123456:AbC-dEf_1", ""))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    let (dead, running) = (to_peer(1, TELEGRAM, "77"), to_peer(2, TELEGRAM, "78"));
    let shown = |chat: &str| {
        let call = format!("sendChatAction {chat}/0 typing");
        bot.changes().iter().filter(|made| **made == call).count()
    };
    eventually("the platform shows it", async || {
        beat(&world, dead.turn, &dead.delivery_context).await;
        shown("77") > 0
    })
    .await;

    // No beat of it comes any more. Another turn is shown three times, which takes longer than Telegram shows one call.
    let before = shown("77");
    eventually("another turn is shown again and again", async || {
        beat(&world, running.turn, &running.delivery_context).await;
        shown("78") >= 3
    })
    .await;
    assert_eq!(shown("77"), before, "nothing shows it but its broker's beats");

    // Another broker goes on with the turn: it is shown again.
    eventually("the turn is shown again", async || {
        beat(&world, dead.turn, &dead.delivery_context).await;
        shown("77") > before
    })
    .await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_two_replicas_the_owner_of_the_partition_alone_shows_it_and_stops_after_the_reply() {
    let (world, bot) = (World::start().await, BotApi::start(&[]).await);
    let names: Vec<String> = (0..8).map(|number| format!("bot{number}")).collect();
    let setup = || {
        let account = |name: &String| (name.clone(), bot.account("123456:AbC-dEf_1", ""));
        Setup {
            telegram: names.iter().map(account).collect(),
            ..Setup::default()
        }
    };
    let replicas = [world.replica("a", setup()), world.replica("b", setup())];
    // No partition moves during the test.
    let owners = partition_owners(PARTITIONS, &["a".to_owned(), "b".to_owned()]);
    eventually("each has its share", async || {
        for (partition, owner) in (0..).zip(&owners) {
            if holder(&world.bus, partition).await.as_ref() != Some(owner) {
                return false;
            }
        }
        true
    })
    .await;

    let replies: Vec<Reply> = (1..)
        .zip(&names)
        .map(|(number, name)| {
            let mut reply = to_peer(number, TELEGRAM, &(100 + number).to_string());
            reply.delivery_context.account_id = Some(name.clone());
            reply
        })
        .collect();
    let shown = |reply: &Reply| {
        let chat = reply.delivery_context.peer_id.clone().unwrap_or_default();
        let call = format!("sendChatAction {chat}/0 typing");
        bot.changes().iter().filter(|made| **made == call).count()
    };
    for reply in &replies {
        eventually("the platform shows it", async || {
            beat(&world, reply.turn, &reply.delivery_context).await;
            shown(reply) > 0
        })
        .await;
        world.publish(reply).await;
    }
    world.settled().await;

    let before: Vec<usize> = replies.iter().map(shown).collect();
    for reply in &replies {
        beat(&world, reply.turn, &reply.delivery_context).await;
    }
    let next = to_peer(40, TELEGRAM, "140");
    let next = Reply {
        delivery_context: DeliveryContext {
            account_id: Some(names[0].clone()),
            ..next.delivery_context.clone()
        },
        ..next
    };
    eventually("the next turn is shown", async || {
        beat(&world, next.turn, &next.delivery_context).await;
        shown(&next) > 0
    })
    .await;
    assert_eq!(replies.iter().map(shown).collect::<Vec<_>>(), before, "a late beat");
    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_partition_of_a_destination_is_the_servers() {
    let world = World::start().await;
    for number in 1..=20 {
        let mut reply = to_peer(number, TELEGRAM, "77");
        reply.delivery_context.account_id = Some(format!("büro {number}"));
        let sequence = world.publish(&reply).await;
        let stored = world.bus.at_sequence(streams::DELIVERIES, sequence).await;
        let stored = stored.expect("the stream answers").expect("it is there");
        let parsed = subject::parse_delivery(&stored.subject).expect("a delivery");
        assert_eq!(parsed.partition, partition_of(&reply.delivery_context));
    }
}
