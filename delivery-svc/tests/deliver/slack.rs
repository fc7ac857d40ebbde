//! Slack: what its servers answer, and what becomes of the reply.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::platform::slack::SLACK;
use shared::process::SecretValue;
use shared::testing::eventually;

use crate::web_api::{Lie, WebApi};
use crate::world::{Setup, World, reply};

const TOKEN: &str = "xoxb-app-secret";

/// A reply of account `account` to `channel`.
fn to_channel(number: u64, account: &str, channel: &str) -> Reply {
    let mut reply = reply(number, SLACK, channel);
    reply.delivery_context.account_id = Some(account.to_owned());
    reply.content = format!("**{number}**");
    reply
}

/// A set-up with account `app` on `api`, with `keys`.
fn with_app(api: &WebApi, keys: &str) -> Setup {
    Setup {
        slack: BTreeMap::from([("app".to_owned(), api.account(TOKEN, keys))]),
        ..Setup::default()
    }
}

/// Delivers one reply to D1 of a server that does `lies`, with an account of `keys`; returns what is left.
async fn deliver(lies: &[Lie], keys: &str) -> (World, WebApi, Reply) {
    let (world, api) = (World::start().await, WebApi::start(lies).await);
    let replica = world.replica("a", with_app(&api, keys));
    let reply = to_channel(1, "app", "D1");
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;
    (world, api, reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_sent_as_mrkdwn_and_its_event_names_the_message() {
    let (world, api, reply) = deliver(&[], "").await;
    assert_eq!(api.texts("D1"), ["*1*"]);
    let call = api.calls().remove(0);
    assert_eq!(
        (&call.body["unfurl_links"], call.token.as_str()),
        (&json!(false), TOKEN)
    );
    assert_eq!(
        call.body["metadata"]["event_payload"]["event"],
        json!(format!("out:{}/0", reply.id))
    );

    let ids = vec![vec!["D1/1700000000.000001".to_owned()]];
    let steps = world.outcomes(&reply.delivery_context).await;
    assert!(
        matches!(&steps[..], [ReceiptStep::Delivered { platform_ids, .. }] if *platform_ids == ids),
        "{steps:?}"
    );
    let events = world.sent_events().await;
    assert_eq!(
        events[0].metadata["platform"],
        json!({"ids": ["D1/1700000000.000001"], "part": 0})
    );
    assert_eq!(events[0].content, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_limits_cost_no_attempt_and_no_call_is_earlier_than_told() {
    let lies = [Lie::Limit(1), Lie::QuietLimit(1)].repeat(10);
    let (world, api, reply) = deliver(&lies, "").await;
    assert_eq!((api.calls().len(), api.early()), (21, 0));
    assert_eq!(api.texts("D1"), ["*1*"]);
    assert!(world.dead_letters().await.is_empty());
    let steps = world.outcomes(&reply.delivery_context).await;
    assert!(
        matches!(steps.last(), Some(ReceiptStep::Delivered { attempts: 21, .. })),
        "{steps:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_status_200_is_a_dead_letter_that_says_why() {
    for name in ["channel_not_found", "is_archived", "msg_too_long"] {
        let (world, api, _) = deliver(&[Lie::Error(name)], "").await;
        assert_eq!(api.calls().len(), 1, "{name}");
        let letters = world.dead_letters().await;
        assert!(letters[0].detail.contains(name), "{letters:?}");
        assert!(!format!("{letters:?}").contains("secret"), "{letters:?}");
    }

    let (world, api, _) = deliver(&[Lie::Error("service_unavailable")], "").await;
    assert_eq!((api.calls().len(), api.texts("D1").len()), (2, 1));
    assert!(world.dead_letters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_slack_cannot_read_are_sent_plain_once() {
    let (world, api, _) = deliver(&[Lie::Error("invalid_blocks")], "").await;
    let modes: Vec<_> = api.calls().iter().map(|call| call.body["mrkdwn"].clone()).collect();
    assert_eq!(modes, [json!(true), json!(false)]);
    assert_eq!(api.texts("D1"), ["1"]);
    assert!(!world.sent_events().await[0].metadata.contains_key("unconfirmed"));
}

/// The unconfirmed parts of the last receipt; `None` = it is none of a made delivery.
async fn unconfirmed(world: &World, reply: &Reply) -> Option<Vec<u32>> {
    match world.outcomes(&reply.delivery_context).await.pop() {
        Some(ReceiptStep::Delivered { unconfirmed, .. }) => Some(unconfirmed),
        Some(_) | None => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_looked_for_and_the_part_is_sent_only_if_it_is_not_there() {
    for keys in ["", "on_doubt: at_most_once"] {
        for (lie, calls) in [(Lie::Lost, 1), (Lie::Gateway, 2), (Lie::Error("fatal_error"), 2)] {
            let (world, api, reply) = deliver(&[lie], keys).await;
            assert_eq!((api.calls().len(), api.texts("D1").len()), (calls, 1), "{lie:?} {keys}");
            assert_eq!(unconfirmed(&world, &reply).await, Some(Vec::new()), "{lie:?} {keys}");
            let event = &world.sent_events().await[0];
            assert!(!event.metadata.contains_key("unconfirmed"), "{lie:?} {keys}");
            let id = format!("D1/1700000000.{calls:06}");
            assert_eq!(event.metadata["platform"]["ids"], json!([id]), "{lie:?} {keys}");
            let searches = api.searches();
            assert!(
                searches.len() == 1 && searches[0].starts_with("conversations.history?"),
                "{searches:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_appears_after_the_first_search_is_not_sent_twice_unmarked() {
    let late = async |keys: &str, wait| {
        let (world, api) = (World::start().await, WebApi::start(&[Lie::Lost]).await);
        api.delay_messages(1);
        let setup = Setup {
            arrival_wait: wait,
            ..with_app(&api, keys)
        };
        let replica = world.replica("a", setup);
        let reply = to_channel(1, "app", "D1");
        world.publish(&reply).await;
        world.settled().await;
        replica.stop().await;
        (world, api, reply)
    };

    let (world, api, reply) = late("on_doubt: at_most_once", Duration::from_secs(2)).await;
    assert_eq!((api.calls().len(), api.searches().len()), (1, 2));
    assert_eq!(unconfirmed(&world, &reply).await, Some(Vec::new()));

    let (world, api, reply) = late("", Duration::from_mins(2)).await;
    assert_eq!((api.calls().len(), api.searches().len()), (2, 1));
    assert_eq!(unconfirmed(&world, &reply).await, Some(vec![0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_of_several_pages_is_searched_to_its_end() {
    let (world, api) = (World::start().await, WebApi::start(&[Lie::Lost]).await);
    api.chat(5);
    let replica = world.replica("a", with_app(&api, "groups: {'*': {}}"));
    let mut reply = to_channel(1, "app", "C1");
    reply.delivery_context.thread_id = Some("1699999999.000001".to_owned());
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;

    assert_eq!(api.texts("C1").len(), 1);
    let searches = api.searches();
    let is_thread = |search: &String| search.starts_with("conversations.replies?");
    assert!(searches.len() == 3 && searches.iter().all(is_thread), "{searches:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_above_a_mebibyte_is_read_whole() {
    let (world, api) = (World::start().await, WebApi::start(&[Lie::Lost]).await);
    api.chat(1);
    api.pad_chat(3 << 20);
    let replica = world.replica("a", with_app(&api, "on_doubt: at_most_once"));
    let reply = to_channel(1, "app", "D1");
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;
    assert_eq!((api.calls().len(), api.searches().len()), (1, 1));
    assert_eq!(unconfirmed(&world, &reply).await, Some(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_message_without_metadata_may_be_the_part() {
    for keys in ["", "on_doubt: at_most_once"] {
        let (world, api) = (World::start().await, WebApi::start(&[Lie::Lost]).await);
        api.strip_metadata();
        let replica = world.replica("a", with_app(&api, keys));
        let reply = to_channel(1, "app", "D1");
        world.publish(&reply).await;
        world.settled().await;
        replica.stop().await;
        if keys.is_empty() {
            assert_eq!(
                (api.calls().len(), unconfirmed(&world, &reply).await),
                (2, Some(vec![0]))
            );
        } else {
            assert_eq!(api.calls().len(), 1);
            assert!(world.dead_letters().await[0].detail.contains("may have been sent"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_that_cannot_be_looked_for_is_a_doubt_that_is_marked_or_ends_the_delivery() {
    for lie in [Lie::Lost, Lie::Gateway] {
        let (world, api, reply) = deliver_unread(lie, "").await;
        assert_eq!(api.calls().len(), 2, "{lie:?}");
        assert_eq!(world.sent_events().await[0].metadata["unconfirmed"], json!(true));
        assert_eq!(unconfirmed(&world, &reply).await, Some(vec![0]));

        let (world, api, _) = deliver_unread(lie, "on_doubt: at_most_once").await;
        assert_eq!(api.calls().len(), 1, "{lie:?}");
        assert!(world.dead_letters().await[0].detail.contains("may have been sent"));
    }
}

/// As [`deliver`], from an app that may not read the conversation.
async fn deliver_unread(lie: Lie, keys: &str) -> (World, WebApi, Reply) {
    let (world, api) = (World::start().await, WebApi::start(&[lie]).await);
    api.hide_history("missing_scope");
    let replica = world.replica("a", with_app(&api, keys));
    let reply = to_channel(1, "app", "D1");
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;
    (world, api, reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_stays_limited_ends_with_the_attempts_and_a_mark() {
    let (world, api) = (World::start().await, WebApi::start(&[Lie::Lost]).await);
    api.hide_history("ratelimited");
    let replica = world.replica("a", with_app(&api, ""));
    let reply = to_channel(1, "app", "D1");
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;

    // Three attempts: a call, a search, and a search with a call.
    assert_eq!((api.calls().len(), api.searches().len()), (2, 2));
    assert_eq!(unconfirmed(&world, &reply).await, Some(vec![0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_between_call_and_receipt_leaves_no_double() {
    let (world, api) = (World::start().await, WebApi::start(&[Lie::Silent]).await);
    let first = world.replica("a", with_app(&api, ""));
    world.publish(&to_channel(1, "app", "D1")).await;
    eventually("the message is sent", async || api.texts("D1").len() == 1).await;
    first.kill();

    let second = world.replica("a", with_app(&api, ""));
    world.settled().await;
    assert_eq!(api.texts("D1").len(), 1);
    let events = world.sent_events().await;
    assert_eq!(events.len(), 1);
    assert!(!events[0].metadata.contains_key("unconfirmed"));
    assert_eq!(events[0].metadata["platform"]["ids"], json!(["D1/1700000000.000001"]));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_revoked_in_the_middle_stops_its_account_alone() {
    let (world, api) = (World::start().await, WebApi::start(&[]).await);
    let mut setup = with_app(&api, "text_limit: 100");
    setup.slack.insert("other".to_owned(), api.account("xoxb-other", ""));
    let replica = world.replica("a", setup);

    let calls_of = |token: &str| api.calls().iter().filter(|call| call.token == token).count();
    world.publish(&to_channel(1, "app", "D1")).await;
    eventually("the first reply is sent", async || api.texts("D1").len() == 1).await;
    api.refuse(&[(TOKEN, "token_revoked")]);
    for number in 2..=5 {
        world.publish(&to_channel(number, "app", &format!("D{number}"))).await;
    }
    eventually("the token is probed", async || calls_of(TOKEN) >= 3).await;
    world.publish(&to_channel(6, "other", "D6")).await;
    eventually("the other account sends", async || api.texts("D6").len() == 1).await;
    assert!(world.dead_letters().await.is_empty());

    api.refuse(&[]);
    world.settled().await;
    assert!(world.dead_letters().await.is_empty());
    assert!((1..=5).all(|number| api.texts(&format!("D{number}")) == [format!("*{number}*")]));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_holds_all_channels_of_its_account_and_no_other_account() {
    let (world, api) = (World::start().await, WebApi::start(&[Lie::Limit(2)]).await);
    let mut setup = with_app(&api, "");
    setup.slack.insert("other".to_owned(), api.account("xoxb-other", ""));
    let replica = world.replica("a", setup);

    let first = to_channel(1, "app", "C1");
    world.publish(&first).await;
    eventually("the limit is known", async || {
        !world.outcomes(&first.delivery_context).await.is_empty()
    })
    .await;
    let told = api.calls()[0].at;
    for number in 2..=8 {
        world.publish(&to_channel(number, "app", &format!("C{number}"))).await;
    }
    world.publish(&to_channel(9, "other", "C9")).await;
    eventually("the other account sends", async || api.texts("C9").len() == 1).await;
    world.settled().await;

    let calls = api.calls();
    let own: Vec<_> = calls.iter().filter(|call| call.token == TOKEN).skip(1).collect();
    assert!(
        own.iter()
            .all(|call| call.at.duration_since(told) >= Duration::from_secs(2))
    );
    assert_eq!(own.len(), 8);
    let other = calls.iter().find(|call| call.token != TOKEN).expect("a call");
    assert!(
        Some(other.at) < own.iter().map(|call| call.at).max(),
        "it was held back"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_reply_stays_in_its_thread_in_order() {
    let (world, api) = (World::start().await, WebApi::start(&[]).await);
    let replica = world.replica("a", with_app(&api, "text_limit: 100, groups: {'*': {}}"));
    let mut long = to_channel(1, "app", "C1");
    long.delivery_context.reply_to_id = Some("slack:app/C1/1767326125.870439".to_owned());
    let paragraphs: Vec<String> = (10..20).map(|number| format!("{number} {}", "x".repeat(90))).collect();
    long.content = paragraphs.join("\n\n");
    world.publish(&long).await;
    world.settled().await;

    let order: Vec<String> = api.texts("C1").iter().map(|text| text[..2].to_owned()).collect();
    assert_eq!(order, (10..20).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(
        api.calls()
            .iter()
            .all(|call| call.body["thread_ts"] == "1767326125.870439")
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_has_ended_stops_the_account_until_it_is_renewed() {
    let (world, api) = (World::start().await, WebApi::start(&[]).await);
    api.refuse(&[(TOKEN, "token_expired")]);
    let setup = with_app(&api, "");
    let app = setup.slack["app"].clone();
    let replica = world.replica("a", setup);
    let reply = to_channel(1, "app", "D1");
    world.publish(&reply).await;
    eventually("the token is refused", async || !api.calls().is_empty()).await;

    app.token
        .renew(SecretValue::received("KV".to_owned(), "xoxe.xoxb-next".to_owned()));
    world.settled().await;
    replica.stop().await;
    assert_eq!(api.texts("D1"), ["*1*"]);
    let last = api.calls().pop().expect("a call");
    assert_eq!(last.token, "xoxe.xoxb-next");
    assert!(world.dead_letters().await.is_empty());
}
