//! Messages are marked as taken while a turn runs, and as answered behind its reply: each once, and never at the reply's
//! expense.

use std::collections::BTreeMap;

use shared::model::dispatch::DeliveryContext;
use shared::model::live::WritingBeat;
use shared::model::reply::Reply;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;

use crate::bot_api::{BotApi, Lie};
use crate::web_api::WebApi;
use crate::world::{Setup, World, reply};

/// A reply to the message `answered` in `peer`, of account `bot` on `channel`.
fn answer_to(number: u64, (channel, peer): (&str, &str), answered: &str) -> Reply {
    let mut reply = reply(number, channel, peer);
    reply.delivery_context = DeliveryContext {
        account_id: Some("bot".to_owned()),
        reply_to_id: Some(format!("{channel}:bot/{peer}/{answered}")),
        ..reply.delivery_context
    };
    reply
}

/// A broker sends a beat of the turn of `reply`.
async fn beat(world: &World, reply: &Reply) {
    let beat = WritingBeat {
        turn: reply.turn,
        target: reply.delivery_context.clone(),
        preview: None,
    };
    let payload = serde_json::to_vec(&beat).expect("JSON");
    let subject = subject::live(&reply.delivery_context);
    world.bus.core_publish(&subject, &Headers::new(), payload.into()).await;
}

/// Returns the reactions among `changes`.
fn reactions(changes: Vec<String>) -> Vec<String> {
    let is_reaction = |change: &String| change.to_lowercase().contains("reaction");
    changes.into_iter().filter(is_reaction).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_marked_when_it_is_taken_and_when_it_is_answered_each_once() {
    let (world, bot) = (World::start().await, BotApi::start(&[]).await);
    let account = bot.account("123456:AbC-dEf_1", "acknowledge: {taken: '👀', answered: '👌'}");
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), account)]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    let reply = answer_to(1, (TELEGRAM, "77"), "5");
    let taken = "setMessageReaction 77/5 👀".to_owned();
    eventually("the message is marked as taken", async || {
        beat(&world, &reply).await;
        bot.changes().contains(&taken)
    })
    .await;
    // Another beat of the same turn marks nothing; that it was heard shows the next turn's, which is behind it.
    beat(&world, &reply).await;
    let other = answer_to(2, (TELEGRAM, "78"), "6");
    eventually("the other message is marked as taken", async || {
        beat(&world, &other).await;
        bot.changes().contains(&"setMessageReaction 78/6 👀".to_owned())
    })
    .await;

    world.publish(&reply).await;
    eventually("the message is marked as answered", async || {
        bot.changes().contains(&"setMessageReaction 77/5 👌".to_owned())
    })
    .await;
    world.settled().await;

    // A beat that comes late takes no answer back, and an answer to a reaction marks nothing.
    beat(&world, &reply).await;
    world.publish(&answer_to(3, (TELEGRAM, "77"), "5/reaction/9")).await;
    world.publish(&answer_to(4, (TELEGRAM, "79"), "7")).await;
    eventually("the last message is marked", async || {
        bot.changes().contains(&"setMessageReaction 79/7 👌".to_owned())
    })
    .await;
    let of_chat: Vec<String> = reactions(bot.changes())
        .into_iter()
        .filter(|change| change.contains(" 77/"))
        .collect();
    assert_eq!(of_chat, [taken, "setMessageReaction 77/5 👌".to_owned()]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_marked_is_delivered_and_off_is_off() {
    let (world, bot, quiet) = (World::start().await, BotApi::start(&[]).await, BotApi::start(&[]).await);
    let marked = bot.account("123456:AbC-dEf_1", "acknowledge: {answered: '👌'}");
    let setup = Setup {
        telegram: BTreeMap::from([
            ("bot".to_owned(), marked),
            ("quiet".to_owned(), quiet.account("123457:AbC-dEf_1", "")),
        ]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    world.publish(&answer_to(1, (TELEGRAM, "77"), "5")).await;
    eventually("it is marked", async || reactions(bot.changes()).len() == 1).await;
    let mut next = answer_to(2, (TELEGRAM, "78"), "6");
    next.delivery_context.account_id = Some("quiet".to_owned());
    next.delivery_context.reply_to_id = Some("telegram:quiet/78/6".to_owned());
    world.publish(&next).await;
    eventually("it is answered", async || quiet.texts(78).len() == 1).await;
    assert_eq!(reactions(quiet.changes()), Vec::<String>::new());

    // The call of the next mark is refused, and not made again.
    bot.lie_to_change(Lie::Blocked);
    world.publish(&answer_to(3, (TELEGRAM, "77"), "8")).await;
    eventually("it is tried", async || reactions(bot.changes()).len() == 2).await;
    world.publish(&answer_to(4, (TELEGRAM, "77"), "9")).await;
    eventually("the next is marked", async || {
        reactions(bot.changes()).last().map(String::as_str) == Some("setMessageReaction 77/9 👌")
    })
    .await;
    world.settled().await;
    assert_eq!((bot.texts(77).len(), reactions(bot.changes()).len()), (3, 3));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_reactions_add_up_the_answer_takes_the_first_one_back() {
    let (world, app) = (World::start().await, WebApi::start(&[]).await);
    let account = app.account("xoxb-bot", "acknowledge: {taken: ':eyes:', answered: '✅'}");
    let setup = Setup {
        slack: BTreeMap::from([("bot".to_owned(), account)]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    let reply = answer_to(1, (SLACK, "D1"), "1700000000.000001");
    eventually("the message is marked as taken", async || {
        beat(&world, &reply).await;
        !app.changes().is_empty()
    })
    .await;
    world.publish(&reply).await;
    eventually("the first mark is gone", async || app.changes().len() == 3).await;
    let message = "D1/1700000000.000001";
    assert_eq!(
        app.changes(),
        [
            format!("reactions.add {message} eyes"),
            format!("reactions.add {message} white_check_mark"),
            format!("reactions.remove {message} eyes"),
        ]
    );
    replica.stop().await;
}
