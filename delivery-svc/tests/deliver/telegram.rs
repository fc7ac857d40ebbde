//! Telegram: what its servers answer, and what becomes of the reply.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use delivery_svc::account_gate::CallRate;
use delivery_svc::channel::telegram::TelegramPaces;
use serde_json::json;
use shared::model::channel::StoppedAccount;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::topology::buckets;

use crate::bot_api::{BotApi, Lie};
use crate::world::{Setup, World, reply};

const TOKEN: &str = "123456:AbC-dEf_1";

/// A reply of account `bot` to `chat`.
fn to_chat(number: u64, account: &str, chat: i64) -> Reply {
    let mut reply = reply(number, TELEGRAM, &chat.to_string());
    reply.delivery_context.account_id = Some(account.to_owned());
    reply.content = format!("**{number}**");
    reply
}

/// A set-up with account `bot` on `api`, with `keys`.
fn with_bot(api: &BotApi, keys: &str) -> Setup {
    Setup {
        telegram: BTreeMap::from([("bot".to_owned(), api.account(TOKEN, keys))]),
        ..Setup::default()
    }
}

/// Delivers one reply to chat 77 of a server that does `lies`, with an account of `keys`; returns what is left.
async fn deliver(lies: &[Lie], keys: &str) -> (World, BotApi, Reply) {
    let (world, api) = (World::start().await, BotApi::start(lies).await);
    let replica = world.replica("a", with_bot(&api, keys));
    let reply = to_chat(1, "bot", 77);
    world.publish(&reply).await;
    world.settled().await;
    replica.stop().await;
    (world, api, reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_sent_as_html_and_its_event_names_the_message() {
    let (world, api, reply) = deliver(&[], "").await;
    assert_eq!(api.texts(77), ["<b>1</b>"]);

    let steps = world.outcomes(&reply.delivery_context).await;
    let ids = vec![vec!["77/1".to_owned()]];
    assert!(
        matches!(&steps[..], [ReceiptStep::Delivered { platform_ids, .. }] if *platform_ids == ids),
        "{steps:?}"
    );

    let events = world.sent_events().await;
    assert_eq!(events[0].metadata["platform"], json!({"ids": ["77/1"], "part": 0}));
    assert_eq!(events[0].content, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_limits_cost_no_attempt_and_no_call_is_earlier_than_told() {
    let mut lies = vec![Lie::Limit(1); 19];
    lies.push(Lie::QuietLimit(1));
    let (world, api, reply) = deliver(&lies, "").await;

    assert_eq!((api.calls().len(), api.early()), (21, 0));
    assert_eq!(api.texts(77), ["<b>1</b>"]);
    assert!(world.dead_letters().await.is_empty());
    let steps = world.outcomes(&reply.delivery_context).await;
    assert!(matches!(
        steps.last(),
        Some(ReceiptStep::Delivered { attempts: 21, .. })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markup_that_telegram_cannot_read_is_sent_plain_once() {
    let (world, api, _) = deliver(&[Lie::Unreadable], "").await;
    let modes: Vec<_> = api
        .calls()
        .iter()
        .map(|call| call.body.get("parse_mode").cloned())
        .collect();
    assert_eq!(modes, [Some(json!("HTML")), None]);
    assert_eq!(api.texts(77), ["1"]);

    let events = world.sent_events().await;
    assert!(!events[0].metadata.contains_key("unconfirmed"));
    assert_eq!(events[0].metadata["platform"], json!({"ids": ["77/2"], "part": 0}));

    let (world, api, _) = deliver(&[Lie::Unreadable, Lie::Unreadable], "").await;
    assert_eq!(api.calls().len(), 2);
    assert_eq!(world.dead_letters().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_a_doubt_that_is_marked_or_ends_the_delivery() {
    for lie in [Lie::Lost, Lie::Gateway] {
        let (world, api, reply) = deliver(&[lie], "").await;
        assert_eq!(api.calls().len(), 2, "{lie:?}");
        assert_eq!(world.sent_events().await[0].metadata["unconfirmed"], json!(true));
        let steps = world.outcomes(&reply.delivery_context).await;
        assert!(
            matches!(steps.last(), Some(ReceiptStep::Delivered { unconfirmed, .. }) if *unconfirmed == [0]),
            "{steps:?}"
        );

        let (world, api, _) = deliver(&[lie], "on_doubt: at_most_once").await;
        assert_eq!(api.calls().len(), 1, "{lie:?}");
        assert!(world.dead_letters().await[0].detail.contains("may have been sent"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_between_call_and_receipt_leaves_at_most_one_double_which_is_marked() {
    let (world, api) = (World::start().await, BotApi::start(&[Lie::Silent]).await);
    let first = world.replica("a", with_bot(&api, ""));
    let reply = to_chat(1, "bot", 77);
    world.publish(&reply).await;
    eventually("the message is sent", async || api.texts(77).len() == 1).await;
    first.kill();

    let second = world.replica("a", with_bot(&api, ""));
    world.settled().await;
    assert_eq!(api.texts(77).len(), 2);
    let events = world.sent_events().await;
    assert_eq!((events.len(), &events[0].metadata["unconfirmed"]), (1, &json!(true)));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_moved_gets_the_message_where_it_is() {
    let (world, api, reply) = deliver(&[Lie::Moved(-1_001)], "").await;
    assert_eq!(api.texts(-1_001), ["<b>1</b>"]);
    let steps = world.outcomes(&reply.delivery_context).await;
    let ids = vec![vec!["-1001/2".to_owned()]];
    assert!(matches!(&steps[..], [ReceiptStep::Delivered { platform_ids, attempts: 1, .. }] if *platform_ids == ids));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_a_dead_letter_that_says_why_and_never_the_token() {
    let (world, api, _) = deliver(&[Lie::Blocked], "").await;
    assert_eq!(api.calls().len(), 1);
    let letters = world.dead_letters().await;
    assert_eq!(letters[0].detail, "403: Forbidden: bot was blocked by the user");

    // A server that is not there: the error of the client knows the URL, which has the token.
    let (world, api) = (World::start().await, BotApi::start(&[]).await);
    let mut setup = with_bot(&api, "");
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", gone.local_addr().expect("an address"));
    drop(gone);
    let account = setup.telegram.get_mut("bot").expect("the account");
    account.base_url = shared::platform::base_url::BaseUrl::parse(&url).expect("a URL");

    let replica = world.replica("a", setup);
    let reply = to_chat(1, "bot", 77);
    world.publish(&reply).await;
    world.settled().await;

    let letters = world.dead_letters().await;
    let told = format!("{letters:?} {:?}", world.receipts(&reply.delivery_context).await);
    assert!(told.contains("no connection"), "{told}");
    assert!(!told.contains("AbC-dEf_1") && !told.contains("/bot"), "{told}");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_stops_its_account_alone_and_is_probed_at_a_bounded_pace() {
    let (world, api) = (World::start().await, BotApi::start(&[]).await);
    api.refuse(&[TOKEN]);
    let mut setup = with_bot(&api, "");
    setup
        .telegram
        .insert("other".to_owned(), api.account("654321:other", ""));
    let replica = world.replica("a", setup);

    for number in 1..=20 {
        world
            .publish(&to_chat(number, "bot", 76 + i64::try_from(number).expect("small")))
            .await;
    }
    eventually("the token is refused three times", async || calls_of(&api, TOKEN) >= 3).await;
    world.publish(&to_chat(21, "other", 77)).await;
    eventually("the other account sends", async || api.texts(77) == ["<b>21</b>"]).await;

    // Calls that were under way at once, and then one at a time: less than one a destination and probe.
    let began = api.calls();
    let first = began.first().expect("a call").at;
    let later = began
        .iter()
        .filter(|call| call.token == TOKEN && call.at.duration_since(first) > Duration::from_millis(400));
    let probes: Vec<_> = later.map(|call| call.at).collect();
    assert!(are_paced(&probes), "{probes:?}");
    assert!(world.dead_letters().await.is_empty());

    api.refuse(&[]);
    world.settled().await;
    assert!(world.dead_letters().await.is_empty());
    let sent: Vec<i64> = (77..=96)
        .filter(|chat| api.texts(*chat).iter().any(|text| text != "<b>21</b>"))
        .collect();
    assert_eq!(sent.len(), 20);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_starts_knows_of_a_refused_token_and_a_new_one_is_used_at_once() {
    let (world, api) = (World::start().await, BotApi::start(&[]).await);
    api.refuse(&[TOKEN]);
    let first = world.replica("a", with_bot(&api, ""));
    world.publish(&to_chat(1, "bot", 77)).await;
    let entries = || world.bus.kv::<StoppedAccount>(buckets::STOPPED_ACCOUNTS);
    eventually("the refusal is shared", async || {
        entries().entries().await.is_ok_and(|entries| entries.len() == 1)
    })
    .await;

    let (key, entry) = entries().entries().await.expect("read").remove(0);
    assert_eq!(key, "telegram.bot");
    assert!(!format!("{entry:?}").contains("AbC-dEf_1"));
    first.kill();

    // With the same token: other chats wait for a probe, all of them.
    let second = world.replica("b", with_bot(&api, ""));
    let before = calls_of(&api, TOKEN);
    for number in 2..=20 {
        world
            .publish(&to_chat(number, "bot", 76 + i64::try_from(number).expect("small")))
            .await;
    }
    eventually("the token is probed", async || calls_of(&api, TOKEN) >= before + 3).await;
    let probes: Vec<_> = api.calls().iter().skip(before).map(|call| call.at).collect();
    assert!(are_paced(&probes), "{probes:?}");
    second.kill();

    // With another token: the entry says nothing about it.
    let renewed = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:renewed", ""))]),
        ..Setup::default()
    };
    let third = world.replica("c", renewed);
    world.settled().await;
    assert!(world.dead_letters().await.is_empty());
    assert_eq!((77..=96).filter(|chat| api.texts(*chat).len() == 1).count(), 20);
    third.stop().await;
}

/// Returns the number of calls with `token`.
fn calls_of(api: &BotApi, token: &str) -> usize {
    api.calls().iter().filter(|call| call.token == token).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_an_account_holds_all_its_chats_and_no_other_account() {
    // The first call is limited, and the account with it.
    let (world, api) = (World::start().await, BotApi::start(&[Lie::Limit(2)]).await);
    let mut setup = with_bot(&api, "");
    setup
        .telegram
        .insert("other".to_owned(), api.account("654321:other", ""));
    let replica = world.replica("a", setup);

    world.publish(&to_chat(1, "bot", 77)).await;
    eventually("the account is limited", async || calls_of(&api, TOKEN) == 1).await;
    let told = api.calls()[0].at;
    eventually("the limit is known", async || {
        !world.outcomes(&to_chat(1, "bot", 77).delivery_context).await.is_empty()
    })
    .await;
    for number in 2..=10 {
        world
            .publish(&to_chat(number, "bot", 76 + i64::try_from(number).expect("small")))
            .await;
    }
    world.publish(&to_chat(11, "other", 200)).await;
    eventually("the other account sends", async || api.texts(200).len() == 1).await;
    world.settled().await;

    let calls = api.calls();
    let own = calls.iter().filter(|call| call.token == TOKEN).skip(1);
    assert!(
        own.clone()
            .all(|call| call.at.duration_since(told) >= Duration::from_secs(2))
    );
    assert_eq!(own.count(), 10);
    let other = calls.iter().find(|call| call.token != TOKEN).expect("a call");
    let last = calls
        .iter()
        .filter(|call| call.token == TOKEN)
        .map(|call| call.at)
        .max();
    assert!(Some(other.at) < last, "it was held back");
    replica.stop().await;
}

/// Whether as many probes came as the pace of half a second allows, wherever each was held up on its way.
fn are_paced(probes: &[Instant]) -> bool {
    let period = match probes {
        [first, .., last] => last.duration_since(*first),
        [_] | [] => Duration::ZERO,
    };
    probes.len() as u128 <= period.as_millis() / 400 + 2
}

/// Rates a hundred times those of Telegram.
const FAST: TelegramPaces = TelegramPaces {
    account: CallRate {
        burst: 1,
        interval: Duration::from_micros(340),
    },
    direct: CallRate {
        burst: 3,
        interval: Duration::from_millis(10),
    },
    group: CallRate {
        burst: 5,
        interval: Duration::from_millis(200),
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_reply_to_a_limited_group_disturbs_no_other_chat_and_no_other_account() {
    let (world, api) = (World::start().await, BotApi::start(&[]).await);
    // As Telegram in a minute, in 2 s: our own pace takes 3 s for as many, and a call may arrive late.
    api.limit(20, Duration::from_secs(2));
    let accounts = [("bot", TOKEN), ("other", "654321:other")];
    let setup = Setup {
        telegram: accounts
            .map(|(name, token)| (name.to_owned(), api.account(token, "text_limit: 100")))
            .into(),
        paces: Some(FAST),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);

    let mut long = to_chat(1, "bot", -1_001);
    let paragraphs: Vec<String> = (10..40).map(|number| format!("{number} {}", "x".repeat(90))).collect();
    long.content = paragraphs.join("\n\n");
    world.publish(&long).await;
    eventually("the long reply has begun", async || calls_of(&api, TOKEN) > 0).await;
    // Only the long reply is under way yet, so that one of its calls is refused.
    api.lie(Lie::Limit(1));
    eventually("a call is refused", async || {
        api.calls().iter().any(|call| !call.is_sent)
    })
    .await;
    for number in 2..=51 {
        world
            .publish(&to_chat(number, "bot", 76 + i64::try_from(number).expect("small")))
            .await;
    }
    world.publish(&to_chat(52, "other", -1_001)).await;
    world.settled().await;

    let calls = api.calls();
    let own = |token: &str| calls.iter().filter(|call| call.token == token && call.is_sent).count();
    assert_eq!((own(TOKEN), own("654321:other")), (80, 1));
    assert_eq!(api.early(), 0, "a call came earlier than its chat was told");
    let refused: Vec<_> = calls.iter().filter(|call| !call.is_sent).collect();
    assert_eq!(refused.len(), 1, "our own pace keeps the group's limit");
    assert_eq!((refused[0].token.as_str(), refused[0].chat), (TOKEN, -1_001));
    assert!(world.dead_letters().await.is_empty());

    // The refused account waits for a second, the other one does not.
    let at = |token: &str| -> Vec<Instant> {
        let own = calls.iter().filter(|call| call.token == token);
        own.map(|call| call.at).collect()
    };
    let told = refused[0].at + Duration::from_secs(1);
    let resumed = at(TOKEN).into_iter().filter(|at| *at >= told);
    assert!(
        at("654321:other").into_iter().min() < resumed.max(),
        "the other account was held back"
    );

    let parts = api.texts(-1_001).into_iter().filter(|text| text.contains("xx"));
    let order: Vec<String> = parts.map(|text| text[..2].to_owned()).collect();
    let expected: Vec<String> = (10..40).map(|number| number.to_string()).collect();
    assert_eq!(order, expected);

    let is_long = |text: &str| text.contains("xx");
    let place = |is: &dyn Fn(&str) -> bool| {
        calls
            .iter()
            .rposition(|call| is(call.body["text"].as_str().unwrap_or_default()))
    };
    assert!(
        place(&|text| !is_long(text)) < place(&is_long),
        "the others did not wait for the long reply"
    );
    replica.stop().await;
}
