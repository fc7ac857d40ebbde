//! Discord: what its servers answer, and what becomes of the reply.

use std::collections::BTreeMap;
use std::time::Duration;

use delivery_svc::account_gate::CallRate;
use delivery_svc::channel::discord::DiscordPaces;
use serde_json::json;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::platform::discord::DISCORD;
use shared::testing::eventually;

use crate::discord_api::{DIRECT, DiscordApi, Misdeed};
use crate::world::{Replica, Setup, World, reply};

const TOKEN: &str = "MTk4NjI.Cl2FMQ.ZnCjm1XV";
const OTHER: &str = "MTk4NjI.Cl2FMQ.another";

/// A channel of a guild.
const GENERAL: u64 = 100;

/// A reply of account `account` to `channel`.
fn to_channel(number: u64, account: &str, channel: u64) -> Reply {
    let mut reply = reply(number, DISCORD, &channel.to_string());
    let target = &mut reply.delivery_context;
    target.account_id = Some(account.to_owned());
    target.reply_to_id = Some(format!("discord:{account}/{channel}/42"));
    reply.content = format!("**{number}** @everyone");
    reply
}

/// A set-up with account `bot` on `api`, with `keys`.
fn with_bot(api: &DiscordApi, keys: &str) -> Setup {
    Setup {
        discord: BTreeMap::from([("bot".to_owned(), api.account(TOKEN, keys))]),
        ..Setup::default()
    }
}

/// Delivers one reply to [`GENERAL`] of a server that does `misdeeds`; returns what is left.
async fn deliver(misdeeds: &[Misdeed], keys: &str) -> (World, DiscordApi, Reply) {
    let (world, api) = (World::start().await, DiscordApi::start(misdeeds).await);
    let replica = world.replica("a", with_bot(&api, keys));
    let reply = to_channel(1, "bot", GENERAL);
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;
    (world, api, reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_answers_its_message_calls_nobody_and_its_event_names_the_message() {
    let (world, api, reply) = deliver(&[], "").await;
    let calls = api.calls();
    let body = &calls[0].body;
    assert_eq!(body["allowed_mentions"], json!({"parse": [], "replied_user": false}));
    assert_eq!(
        body["message_reference"],
        json!({"message_id": "42", "fail_if_not_exists": false})
    );
    assert_eq!(body["flags"], 4);
    assert!(!body["content"].as_str().expect("a text").contains("@everyone"));

    let steps = world.outcomes(&reply.delivery_context).await;
    let ids = vec![vec!["100/1000".to_owned()]];
    assert!(
        matches!(&steps[..], [ReceiptStep::Delivered { platform_ids, .. }] if *platform_ids == ids),
        "{steps:?}"
    );
    let events = world.sent_events().await;
    assert_eq!(events[0].metadata["platform"], json!({"ids": ["100/1000"], "part": 0}));
    assert_eq!(events[0].content, "1 @everyone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_reply_has_parts_of_seventeen_lines_in_order_with_buttons_on_the_last() {
    let (world, api) = (World::start().await, DiscordApi::start(&[]).await);
    let replica = world.replica("a", with_bot(&api, ""));
    let mut long = to_channel(1, "bot", DIRECT);
    let lines: Vec<String> = (10..50).map(|number| format!("{number} {}", "x".repeat(150))).collect();
    long.content = lines.join("\n");
    long.interactive = Some(json!({"buttons": [{"label": "Approve", "say": "approve abc"}]}));
    world.publish(&long).await;
    world.settled().await;

    let calls = api.calls();
    assert!(calls.len() >= 4, "{}", calls.len());
    for call in &calls {
        let text = call.body["content"].as_str().expect("a text");
        assert!(text.chars().count() <= 2_000 && text.lines().count() <= 17, "{text}");
    }
    let all = api.texts(DIRECT).concat();
    let places: Vec<_> = (10..50).map(|number| all.find(&format!("{number} x"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    let with_buttons: Vec<bool> = calls.iter().map(|call| !call.body["components"].is_null()).collect();
    assert_eq!(with_buttons.iter().position(|has| *has), Some(calls.len() - 1));
    assert!(
        calls.iter().all(|call| call.body["message_reference"].is_null()),
        "a direct channel"
    );
    assert_eq!(api.looked_up(), 1, "a channel is asked for once");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_cost_no_attempt_and_no_call_is_earlier_than_told() {
    let mut misdeeds = vec![Misdeed::Limit(150); 19];
    misdeeds.push(Misdeed::GlobalLimit(1_200));
    let (world, api, reply) = deliver(&misdeeds, "").await;

    assert_eq!((api.calls().len(), api.early()), (21, 0));
    assert_eq!(api.texts(GENERAL).len(), 1);
    assert!(world.dead_letters().await.is_empty());
    let steps = world.outcomes(&reply.delivery_context).await;
    assert!(matches!(
        steps.last(),
        Some(ReceiptStep::Delivered { attempts: 21, .. })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_threads_of_a_channel_do_not_wait_for_each_other() {
    let (world, api) = (World::start().await, DiscordApi::start(&[]).await);
    let rate = |burst, interval| CallRate { burst, interval };
    let paces = DiscordPaces {
        account: rate(100, Duration::from_millis(1)),
        chat: rate(1, Duration::from_hours(1)),
    };
    let setup = Setup {
        discord_paces: Some(paces),
        ..with_bot(&api, "")
    };
    let replica = world.replica("a", setup);
    let threads = [GENERAL + 1, GENERAL + 2, GENERAL + 3];
    for (number, thread) in (1..).zip(threads) {
        let mut reply = to_channel(number, "bot", GENERAL);
        reply.delivery_context.thread_id = Some(thread.to_string());
        world.publish(&reply).await;
    }
    world.publish(&to_channel(9, "bot", GENERAL)).await;
    world.settled().await;
    for channel in threads.into_iter().chain([GENERAL]) {
        assert_eq!(api.texts(channel).len(), 1, "{channel}");
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_bucket_is_waited_for_without_a_call() {
    let (world, api) = (
        World::start().await,
        DiscordApi::start(&[Misdeed::LastOfBucket(1_500)]).await,
    );
    let replica = world.replica("a", with_bot(&api, ""));
    for number in 1..=3 {
        world.publish(&to_channel(number, "bot", GENERAL)).await;
    }
    world.settled().await;
    assert_eq!((api.calls().len(), api.early(), api.texts(GENERAL).len()), (3, 0, 3));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_all_calls_holds_every_channel_and_no_other_account() {
    let (world, api) = (
        World::start().await,
        DiscordApi::start(&[Misdeed::GlobalLimit(2_000)]).await,
    );
    let mut setup = with_bot(&api, "");
    setup.discord.insert("other".to_owned(), api.account(OTHER, ""));
    let replica = world.replica("a", setup);

    world.publish(&to_channel(1, "bot", GENERAL)).await;
    eventually("the limit is known", async || {
        !world
            .outcomes(&to_channel(1, "bot", GENERAL).delivery_context)
            .await
            .is_empty()
    })
    .await;
    for number in 2..=6 {
        world.publish(&to_channel(number, "bot", GENERAL + number)).await;
    }
    world.publish(&to_channel(7, "other", 200)).await;
    eventually("the other account sends", async || api.texts(200).len() == 1).await;
    world.settled().await;
    assert_eq!(api.early(), 0);
    let calls = api.calls();
    assert_eq!(calls.iter().filter(|call| call.token == TOKEN).count(), 7);
    assert!((2..=6).all(|number| api.texts(GENERAL + number).len() == 1));
    let other = calls.iter().find(|call| call.token == OTHER).expect("a call").at;
    assert!(
        calls.iter().any(|call| call.token == TOKEN && call.at > other),
        "it was held back"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_repeated_and_discord_knows_the_part() {
    for misdeed in [Misdeed::Lost, Misdeed::Gateway] {
        for keys in ["", "on_doubt: at_most_once"] {
            let (world, api, reply) = deliver(&[misdeed], keys).await;
            assert_eq!((api.calls().len(), api.texts(GENERAL).len()), (2, 1), "{misdeed:?}");
            let nonces: Vec<_> = api.calls().into_iter().map(|call| call.body["nonce"].clone()).collect();
            assert_eq!(nonces[0], nonces[1]);
            assert!(!world.sent_events().await[0].metadata.contains_key("unconfirmed"));
            let steps = world.outcomes(&reply.delivery_context).await;
            assert!(
                matches!(steps.last(), Some(ReceiptStep::Delivered { unconfirmed, .. }) if unconfirmed.is_empty()),
                "{steps:?}"
            );
        }
    }
}

/// A replica whose clock is ahead by `ahead`.
fn later(world: &World, api: &DiscordApi, keys: &str, ahead: Duration) -> Replica {
    let setup = Setup {
        ahead,
        ..with_bot(api, keys)
    };
    world.replica("a", setup)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_between_call_and_receipt_doubles_nothing_that_can_be_found() {
    let late = Duration::from_mins(10);
    let at_most_once = "on_doubt: at_most_once";
    for (misdeed, ahead, hides, keys, texts, events) in [
        (Misdeed::Silent, Duration::ZERO, true, "", 1, Some(false)),
        // After some minutes the nonce is not recognised any more: the channel is searched for it.
        (Misdeed::Silent, late, false, "", 1, Some(false)),
        (Misdeed::Silent, late, false, at_most_once, 1, Some(false)),
        (Misdeed::Swallowed, late, false, "", 1, Some(false)),
        (Misdeed::Swallowed, late, false, at_most_once, 1, Some(false)),
        // It cannot be searched, and the part may be there twice: that is said, or it ends.
        (Misdeed::Silent, late, true, "", 2, Some(true)),
        (Misdeed::Silent, late, true, at_most_once, 1, None),
    ] {
        let (world, api) = (World::start().await, DiscordApi::start(&[misdeed]).await);
        let first = world.replica("a", with_bot(&api, keys));
        world.publish(&to_channel(1, "bot", GENERAL)).await;
        eventually("the message is called for", async || api.calls().len() == 1).await;
        first.kill();
        if ahead > Duration::ZERO {
            api.forget_nonces();
        }
        if hides {
            api.hide_history();
        }

        let second = later(&world, &api, keys, ahead);
        world.settled().await;
        assert_eq!(api.texts(GENERAL).len(), texts, "{ahead:?} {keys}");
        let sent = world.sent_events().await;
        let marks: Vec<bool> = sent
            .iter()
            .map(|event| event.metadata.contains_key("unconfirmed"))
            .collect();
        assert_eq!(marks, events.into_iter().collect::<Vec<_>>(), "{ahead:?} {keys}");
        let letters = world.dead_letters().await;
        assert_eq!(letters.len(), usize::from(events.is_none()), "{letters:?}");
        second.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_a_dead_letter_that_says_why_and_never_the_token() {
    let (world, api, _) = deliver(&[Misdeed::Forbidden], "").await;
    assert_eq!(api.calls().len(), 1, "a refusal is not repeated");
    let letters = world.dead_letters().await;
    assert_eq!(letters[0].detail, "403: Missing Access (50001)");

    let (world, api) = (World::start().await, DiscordApi::start(&[]).await);
    let replica = world.replica("a", with_bot(&api, ""));
    let mut nowhere = to_channel(1, "bot", GENERAL);
    nowhere.delivery_context.peer_id = Some("general".to_owned());
    world.publish(&nowhere).await;
    world.publish(&to_channel(2, "none", GENERAL)).await;
    world.settled().await;
    let details: Vec<String> = world
        .dead_letters()
        .await
        .into_iter()
        .map(|letter| letter.detail)
        .collect();
    assert!(
        details
            .iter()
            .any(|detail| detail == "peer `general` is not a channel id of Discord"),
        "{details:?}"
    );
    assert!(
        details.iter().any(|detail| detail.contains("has no account `none`")),
        "{details:?}"
    );
    assert!(details.iter().all(|detail| !detail.contains("ZnCjm1XV")));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_stops_the_account_alone_and_loses_nothing() {
    let (world, api) = (World::start().await, DiscordApi::start(&[]).await);
    api.refuse(&[TOKEN]);
    let mut setup = with_bot(&api, "");
    setup.discord.insert("other".to_owned(), api.account(OTHER, ""));
    let replica = world.replica("a", setup);
    for number in 1..=5 {
        world.publish(&to_channel(number, "bot", DIRECT)).await;
    }
    world.publish(&to_channel(6, "other", 200)).await;
    eventually("the other account sends", async || api.texts(200).len() == 1).await;
    eventually("the refusal is recorded", async || {
        !world
            .outcomes(&to_channel(1, "bot", DIRECT).delivery_context)
            .await
            .is_empty()
    })
    .await;

    api.refuse(&[]);
    world.settled().await;
    assert!(world.dead_letters().await.is_empty());
    assert_eq!(api.texts(DIRECT).len(), 5);
    replica.stop().await;
}
