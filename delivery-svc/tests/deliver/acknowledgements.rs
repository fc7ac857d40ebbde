//! Messages are marked as taken while a turn runs, and as answered or failed behind its reply: each once, and never at the
//! reply's expense. What has no reply is not taken any more.

use std::collections::BTreeMap;

use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::DeliveryContext;
use shared::model::live::WritingBeat;
use shared::model::reply::{Reply, SendDecision};
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;
use ulid::Ulid;

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
    send_beat(world, reply, false).await;
}

/// A broker says that the turn of `reply` is over without one.
async fn last_beat(world: &World, reply: &Reply) {
    send_beat(world, reply, true).await;
}

async fn send_beat(world: &World, reply: &Reply, is_over: bool) {
    let beat = WritingBeat {
        turn: reply.turn,
        target: reply.delivery_context.clone(),
        preview: None,
        is_over,
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

/// Waits until the message that `reply` answers in `chat` is marked as taken.
async fn taken(world: &World, bot: &BotApi, reply: &Reply, message: &str) {
    let mark = format!("setMessageReaction {message} 👀");
    eventually("the message is marked as taken", async || {
        beat(world, reply).await;
        bot.changes().contains(&mark)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_fails_or_says_nothing_takes_its_message_no_more() {
    let (world, bot, app) = (World::start().await, BotApi::start(&[]).await, WebApi::start(&[]).await);
    let marks = "acknowledge: {taken: '👀', answered: '👌', failed: '👎'}";
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), bot.account("123456:AbC-dEf_1", marks))]),
        slack: BTreeMap::from([(
            "bot".to_owned(),
            app.account("xoxb-bot", "acknowledge: {taken: ':eyes:', answered: '✅'}"),
        )]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    // The reply says that the turn has failed.
    let failed = Reply {
        failed: true,
        ..answer_to(1, (TELEGRAM, "77"), "5")
    };
    taken(&world, &bot, &failed, "77/5").await;
    world.publish(&failed).await;
    // A reply that the platform refuses for good is none.
    let refused = answer_to(2, (TELEGRAM, "78"), "6");
    taken(&world, &bot, &refused, "78/6").await;
    eventually("the first one has failed", async || {
        bot.changes().contains(&"setMessageReaction 77/5 👎".to_owned())
    })
    .await;
    // No other call may meet the refusal.
    eventually("its chat is shown that the bot writes", async || {
        bot.changes().contains(&"sendChatAction 78/0 typing".to_owned())
    })
    .await;
    bot.lie(Lie::Blocked);
    world.publish(&refused).await;
    eventually("the second one has failed", async || {
        bot.changes().contains(&"setMessageReaction 78/6 👎".to_owned())
    })
    .await;

    // A turn that was aborted, or says nothing. A beat of it that comes late takes nothing.
    let silent = answer_to(3, (TELEGRAM, "79"), "7");
    taken(&world, &bot, &silent, "79/7").await;
    last_beat(&world, &silent).await;
    beat(&world, &silent).await;
    let next = answer_to(4, (TELEGRAM, "80"), "8");
    taken(&world, &bot, &next, "80/8").await;
    let of = |chat: &str| -> Vec<String> {
        let marks = reactions(bot.changes()).into_iter();
        marks.filter(|mark| mark.contains(chat)).collect()
    };
    eventually("the mark is taken back", async || of(" 79/").len() == 2).await;
    assert_eq!(of(" 79/"), ["setMessageReaction 79/7 👀", "setMessageReaction 79/7 "]);
    assert_eq!(of(" 77/").len() + of(" 78/").len(), 4, "{:?}", bot.changes());

    // Without a sign of failure the mark is taken back, and the answer's is not made.
    let plain = Reply {
        failed: true,
        ..answer_to(5, (SLACK, "D1"), "1700000000.000001")
    };
    world.publish(&plain).await;
    eventually("the mark is taken back", async || !app.changes().is_empty()).await;
    world.settled().await;
    assert_eq!(app.changes(), ["reactions.remove D1/1700000000.000001 eyes"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_the_sessions_policy_denies_takes_its_message_no_more() {
    let (world, bot) = (World::start().await, BotApi::start(&[]).await);
    let marks = "acknowledge: {taken: '👀', answered: '👌'}";
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), bot.account("123456:AbC-dEf_1", marks))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    // No beat tells what the session's policy is.
    let denied = Reply {
        send: Some(SendDecision::Deny),
        ..answer_to(1, (TELEGRAM, "77"), "5")
    };
    taken(&world, &bot, &denied, "77/5").await;
    world.publish(&denied).await;
    eventually("the mark is taken back", async || reactions(bot.changes()).len() == 2).await;
    // One that was not marked is left alone.
    let turn = Ulid::from_parts(SystemClock.now().plus(60_000).0.unsigned_abs(), 2);
    let unmarked = Reply {
        id: turn,
        turn,
        send: Some(SendDecision::Deny),
        ..answer_to(2, (TELEGRAM, "78"), "6")
    };
    world.publish(&unmarked).await;
    world.settled().await;
    assert_eq!(
        reactions(bot.changes()),
        ["setMessageReaction 77/5 👀", "setMessageReaction 77/5 "]
    );
    assert_eq!(bot.texts(77), Vec::<String>::new());
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_of_a_former_owner_is_taken_back_when_the_reply_is_denied() {
    let (world, bot) = (World::start().await, BotApi::start(&[]).await);
    let marks = "acknowledge: {taken: '👀', answered: '👌'}";
    let setup = || Setup {
        telegram: BTreeMap::from([("bot".to_owned(), bot.account("123456:AbC-dEf_1", marks))]),
        ..Setup::default()
    };
    let former = world.replica("a", setup());
    let denied = Reply {
        send: Some(SendDecision::Deny),
        ..answer_to(1, (TELEGRAM, "77"), "5")
    };
    taken(&world, &bot, &denied, "77/5").await;
    former.stop().await;

    let next = world.replica("b", setup());
    world.publish(&denied).await;
    eventually("the mark is taken back", async || reactions(bot.changes()).len() == 2).await;
    assert_eq!(
        reactions(bot.changes()),
        ["setMessageReaction 77/5 👀", "setMessageReaction 77/5 "]
    );
    world.settled().await;
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_one_accounts_reactions_is_kept_and_leaves_the_others_alone() {
    const FLOOD: u64 = 80;

    let (world, flooded, calm) = (World::start().await, BotApi::start(&[]).await, BotApi::start(&[]).await);
    let marks = "acknowledge: {answered: '👌'}";
    let setup = Setup {
        telegram: BTreeMap::from([
            ("bot".to_owned(), flooded.account("123456:AbC-dEf_1", marks)),
            ("calm".to_owned(), calm.account("123457:AbC-dEf_1", marks)),
        ]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    // The platform limits the reactions again and again, while many answers are sent.
    for seconds in [8, 1, 1] {
        flooded.lie_to_change(Lie::Limit(seconds));
    }
    for number in 1..=FLOOD {
        let peer = (100 + number).to_string();
        world.publish(&answer_to(number, (TELEGRAM, &peer), "5")).await;
    }
    eventually("every answer is sent", async || {
        (1..=FLOOD).all(|number| {
            let chat = i64::try_from(100 + number).expect("small");
            flooded.texts(chat).len() == 1
        })
    })
    .await;
    eventually("the first limit is met", async || {
        !reactions(flooded.changes()).is_empty()
    })
    .await;

    let mut other = answer_to(FLOOD + 1, (TELEGRAM, "77"), "5");
    other.delivery_context.account_id = Some("calm".to_owned());
    other.delivery_context.reply_to_id = Some("telegram:calm/77/5".to_owned());
    world.publish(&other).await;
    eventually("the other account marks its answer", async || {
        reactions(calm.changes()) == ["setMessageReaction 77/5 👌"]
    })
    .await;

    // What was limited is marked after the waits, and nothing before.
    eventually("answers are marked after the waits", async || {
        reactions(flooded.changes()).len() > 3
    })
    .await;
    assert_eq!((flooded.early_changes(), calm.early_changes()), (0, 0));
    world.settled().await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_another_replica_marks_once_more_and_ends_the_mark() {
    let (world, bot) = (World::start().await, BotApi::start(&[]).await);
    let marks = "acknowledge: {taken: '👀', answered: '👌'}";
    let setup = || Setup {
        telegram: BTreeMap::from([("bot".to_owned(), bot.account("123456:AbC-dEf_1", marks))]),
        ..Setup::default()
    };
    let of = |chat: &str| -> Vec<String> {
        let marks = reactions(bot.changes()).into_iter();
        marks.filter(|mark| mark.contains(chat)).collect()
    };
    let replica = world.replica("a", setup());
    let (answered, silent) = (answer_to(1, (TELEGRAM, "77"), "5"), answer_to(2, (TELEGRAM, "78"), "6"));
    taken(&world, &bot, &answered, "77/5").await;
    taken(&world, &bot, &silent, "78/6").await;
    replica.kill();

    // The turns go on. One of them is over before the next owner has heard a beat of it.
    let next = world.replica("b", setup());
    let again = "setMessageReaction 77/5 👀";
    eventually("the next owner marks the message", async || {
        beat(&world, &answered).await;
        of(" 77/") == [again, again]
    })
    .await;
    beat(&world, &answered).await;
    eventually("the other mark is taken back", async || {
        last_beat(&world, &silent).await;
        of(" 78/").len() > 1
    })
    .await;
    world.publish(&answered).await;
    eventually("it is answered", async || of(" 77/").len() == 3).await;
    world.settled().await;

    assert_eq!(of(" 77/"), [again, again, "setMessageReaction 77/5 👌"]);
    let marks = of(" 78/");
    let [first, others @ ..] = marks.as_slice() else {
        panic!("{marks:?}")
    };
    assert_eq!(first, "setMessageReaction 78/6 👀");
    assert!(
        others.iter().all(|mark| mark == "setMessageReaction 78/6 "),
        "{others:?}"
    );
    next.stop().await;
}
