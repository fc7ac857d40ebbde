//! Accounts show that they write while a turn runs, and not after its reply.

use std::collections::BTreeMap;

use shared::model::dispatch::DeliveryContext;
use shared::model::live::WritingBeat;
use shared::model::reply::Reply;
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;
use ulid::Ulid;

use crate::bot_api::BotApi;
use crate::discord_api::DiscordApi;
use crate::web_api::WebApi;
use crate::world::{Setup, World, reply};

/// A reply to `peer` of account `bot` on `channel`.
fn to_peer(number: u64, channel: &str, peer: &str) -> Reply {
    let mut reply = reply(number, channel, peer);
    reply.delivery_context.account_id = Some("bot".to_owned());
    reply
}

/// A broker sends a beat of `turn`, which answers in `target`.
async fn beat(world: &World, turn: Ulid, target: &DeliveryContext) {
    let target = target.clone();
    let subject = subject::live(&target);
    let payload = serde_json::to_vec(&WritingBeat { turn, target }).expect("JSON");
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
        // Slack has nothing to show.
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
