//! Strangers, their codes, and the operator's decisions.

use std::sync::Arc;
use std::time::Duration;

use adapter_svc::pairing::{MAX_CODES, MAX_WRONG_CODES, PairingStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use shared::bus::RequestError;
use shared::model::event::{Event, EventId, UNPAIRED};
use shared::model::pairing::{CODE_LASTS_MS, Pairing, PairingOffer};
use shared::model::pairing_api::{
    GrantPairing, ListPairings, PairingAnswer, PairingList, PairingState, PairingView, WithdrawPairing,
};
use shared::model::reply::Reply;
use shared::testing::{SeededIds, eventually};
use shared::wire::headers::Headers;
use shared::wire::topology::topology;

use crate::bot_api::BotApi;
use crate::telegram::{MAIN, message};
use crate::world::{START, World};

/// Key of the sender of message 7 in KV `pairings`.
const KEY: &str = "telegram.main.100";

/// The content of `channels.yaml` with one account, which pairs unless `more` says otherwise.
fn channels(world: &World, api: &BotApi, more: &str) -> String {
    let (token, base) = (world.secret(MAIN), &api.base);
    format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}'{more}}}}}}}")
}

/// The replies that wait for delivery, oldest first.
pub(crate) async fn replies(world: &World) -> Vec<Reply> {
    let stored = world.bus.read_history("DELIVERIES", "nexus.dl.>", 1, 1_000).await;
    let stored = stored.expect("the stream is read");
    stored.iter().map(|one| one.decode().expect("a reply")).collect()
}

/// The code that `reply` tells.
pub(crate) fn code(reply: &Reply) -> String {
    let interactive = reply.interactive.as_ref().expect("a notice");
    interactive["code"].as_str().expect("a code").to_owned()
}

async fn ask<A: DeserializeOwned>(world: &World, endpoint: &str, question: &impl Serialize) -> Result<A, RequestError> {
    let subject = format!("nexus.svc.pairing.{endpoint}");
    let patience = Duration::from_secs(10);
    world.bus.request(&subject, Headers::new(), question, patience).await
}

/// Pairs the sender who has `code` with the account `main` of `channel`.
pub(crate) async fn grant(world: &World, channel: &str, code: &str) -> Result<PairingAnswer, RequestError> {
    let request = GrantPairing {
        channel: channel.to_owned(),
        account: "main".to_owned(),
        code: code.to_owned(),
    };
    ask(world, "grant", &request).await
}

fn sender_100() -> WithdrawPairing {
    WithdrawPairing {
        channel: "telegram".to_owned(),
        account: "main".to_owned(),
        sender: "100".to_owned(),
    }
}

async fn list(world: &World) -> Vec<PairingView> {
    let listed: PairingList = ask(world, "list", &ListPairings {}).await.expect("listed");
    listed.pairings
}

/// The tags of the message `number`, once it is stored.
async fn tags_of(world: &World, number: i64) -> Vec<String> {
    let id = format!("telegram:main/{}/{number}", 100 + number % 7);
    let find = async || world.events().await.into_iter().find(|event| event.id.as_str() == id);
    eventually(&format!("{id} is stored"), async || find().await.is_some()).await;
    find().await.expect("stored").tags
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_one_code_and_writes_once_an_operator_has_used_it() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, "")).await;

    api.add(MAIN, "message", &message(7, START));
    api.add(MAIN, "message", &message(14, START));
    assert_eq!(tags_of(&world, 7).await, [UNPAIRED]);
    assert_eq!(tags_of(&world, 14).await, [UNPAIRED]);
    eventually("the messages are confirmed", async || api.confirmed(MAIN) == 2).await;
    let told = replies(&world).await;
    assert_eq!(told.len(), 1, "one code: {told:?}");
    assert_eq!(told[0].delivery_context.peer_id.as_deref(), Some("100"));
    assert_eq!(told[0].causation.event.as_str(), "telegram:main/100/7");

    // Nothing but the message has the code: no event, and not what the operator is shown.
    let code = code(&told[0]);
    let shown = list(&world).await;
    assert_eq!(
        (shown[0].state, shown[0].sender.as_str()),
        (PairingState::Waiting, "100")
    );
    assert_eq!(shown[0].name.as_deref(), Some("Ann"));
    for text in [
        serde_json::to_string(&shown),
        serde_json::to_string(&world.events().await),
    ] {
        let text = text.expect("JSON");
        assert!(
            !text.contains(&code) && !text.contains(&code.replace('-', "")),
            "{text}"
        );
    }

    // The operator's word holds for the next message.
    assert!(grant(&world, "telegram", "0000-0000").await.is_err());
    let answer = grant(&world, "telegram", &code.to_lowercase()).await.expect("granted");
    assert_eq!((answer.changed, answer.pairing.state), (true, PairingState::Paired));
    let again = grant(&world, "telegram", &code).await.expect("granted before");
    assert!(!again.changed, "an answer may have been lost");
    api.add(MAIN, "message", &message(21, START));
    assert_eq!(tags_of(&world, 21).await, Vec::<String>::new());

    // Others stay strangers, and what is withdrawn is withdrawn.
    api.add(MAIN, "message", &message(8, START));
    assert_eq!(tags_of(&world, 8).await, [UNPAIRED]);
    let answer: PairingAnswer = ask(&world, "withdraw", &sender_100()).await.expect("withdrawn");
    assert_eq!((answer.changed, answer.pairing.state), (true, PairingState::Withdrawn));
    let answer: PairingAnswer = ask(&world, "withdraw", &sender_100()).await.expect("withdrawn before");
    assert!(!answer.changed);
    api.add(MAIN, "message", &message(28, START));
    assert_eq!(tags_of(&world, 28).await, [UNPAIRED]);
    assert!(grant(&world, "telegram", &code).await.is_err(), "its code is void");
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 5).await;
    assert_eq!(
        replies(&world).await.len(),
        2,
        "one for each sender, and none more within the hour"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_bots_old_messages_and_presses_get_no_code() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, "")).await;

    let mut bot = message(7, START);
    bot["from"]["is_bot"] = json!(true);
    let mut group = message(14, START);
    group["chat"] = json!({"id": -5, "type": "supergroup"});
    let mut edit = message(21, START);
    edit["edit_date"] = json!(START.0 / 1_000);
    let press =
        json!({"id": "p1", "from": {"id": 100}, "chat_instance": "c", "data": "yes", "message": message(28, START)});
    for (kind, payload) in [
        ("message", &bot),
        ("message", &group),
        ("message", &message(35, START.plus(-48 * 3_600_000))),
        ("edited_message", &edit),
        ("callback_query", &press),
    ] {
        api.add(MAIN, kind, payload);
    }
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 5).await;
    world.stored(5).await;
    assert_eq!(replies(&world).await, []);

    api.add(MAIN, "message", &message(42, START));
    eventually("the message is answered", async || replies(&world).await.len() == 1).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_that_was_stored_and_not_sent_is_sent_and_once() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, "");

    // Killed between the bucket and the message.
    let pairing = Pairing {
        channel: "telegram".to_owned(),
        account: "main".to_owned(),
        sender: "100".to_owned(),
        name: None,
        offer: Some(PairingOffer {
            code: "K7Q2M9PX".to_owned(),
            cause: EventId::parse("telegram:main/100/7").expect("an id"),
            offered_at: START,
            expires_at: START.plus(CODE_LASTS_MS),
        }),
        decision: None,
    };
    world.bus.kv("pairings").put(KEY, &pairing).await.expect("stored");
    api.add(MAIN, "message", &message(7, START));
    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the message is confirmed", async || api.confirmed(MAIN) == 1).await;
    let told = replies(&world).await;
    assert_eq!(told.iter().map(code).collect::<Vec<_>>(), ["K7Q2-M9PX"]);
    replica.stop().await;

    // Killed before the watermark, and the platform hands everything over again.
    world
        .bus
        .kv::<shared::wire::watermark::SourceWatermark>("watermarks")
        .delete("telegram.main", None)
        .await
        .expect("lost");
    api.add(MAIN, "message", &message(7, START));
    api.add(MAIN, "message", &message(14, START));
    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the messages are confirmed", async || api.confirmed(MAIN) == 3).await;
    assert_eq!(replies(&world).await, told);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_put_back_brings_no_withdrawn_pairing_back() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, "");
    let replica = world.replica("adapter-svc-0", &text).await;
    api.add(MAIN, "message", &message(7, START));
    eventually("a code is sent", async || replies(&world).await.len() == 1).await;
    grant(&world, "telegram", &code(&replies(&world).await[0]))
        .await
        .expect("granted");

    let kv = world.bus.kv::<Pairing>("pairings");
    let yesterday = kv.get(KEY).await.expect("read").expect("a value").value;
    let _: PairingAnswer = ask(&world, "withdraw", &sender_100()).await.expect("withdrawn");
    kv.put(KEY, &yesterday).await.expect("restored");
    let refused = grant(&world, "telegram", &code(&replies(&world).await[0]))
        .await
        .expect_err("its code was withdrawn");
    assert!(
        matches!(refused, RequestError::Service { code: 404, .. }),
        "{refused:?}"
    );

    api.add(MAIN, "message", &message(14, START));
    assert_eq!(tags_of(&world, 14).await, [UNPAIRED]);
    let shown = list(&world).await;
    assert_eq!(
        (shown[0].state, shown[0].is_restored),
        (PairingState::Withdrawn, true),
        "{shown:?}"
    );

    // Nor does a code that was withdrawn before it was used, as after a kill between `AUDIT` and the bucket.
    let waiting = Pairing {
        decision: None,
        ..yesterday.clone()
    };
    kv.put(KEY, &waiting).await.expect("restored");
    assert_eq!(list(&world).await[0].state, PairingState::Withdrawn);
    let refused = grant(&world, "telegram", &code(&replies(&world).await[0]))
        .await
        .expect_err("its code was withdrawn");
    assert!(
        matches!(refused, RequestError::Service { code: 404, .. }),
        "{refused:?}"
    );
    api.add(MAIN, "message", &message(35, START));
    assert_eq!(tags_of(&world, 35).await, [UNPAIRED]);
    assert_eq!(replies(&world).await.len(), 1, "and the sender gets no other one");

    // A grant that the bucket has lost lets nobody in, and is said as well.
    kv.delete(KEY, None).await.expect("lost");
    world.clock.advance(u64::try_from(CODE_LASTS_MS).expect("positive"));
    let later = START.plus(CODE_LASTS_MS);
    api.add(MAIN, "message", &message(21, later));
    eventually("another code is sent", async || replies(&world).await.len() == 2).await;
    grant(&world, "telegram", &code(&replies(&world).await[1]))
        .await
        .expect("granted again");
    kv.delete(KEY, None).await.expect("lost");
    assert_eq!(list(&world).await[0].state, PairingState::Lost);
    replica.stop().await;

    // An allow list knows no pairings.
    kv.put(KEY, &yesterday).await.expect("restored");
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, ", direct: allowlist"))
        .await;
    api.add(MAIN, "message", &message(28, later));
    assert_eq!(tags_of(&world, 28).await, [UNPAIRED]);
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 5).await;
    assert_eq!(replies(&world).await.len(), 2);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_told_of_a_stranger_once() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let told = "pairing_notices = { channel = \"webchat\", peerId = \"owner\" }\n";
    let replica = world
        .replica_with("adapter-svc-0", &channels(&world, &api, ""), told)
        .await;

    api.add(MAIN, "message", &message(7, START));
    api.add(MAIN, "message", &message(14, START));
    eventually("the messages are confirmed", async || api.confirmed(MAIN) == 2).await;
    let sent = replies(&world).await;
    assert_eq!(sent.len(), 2, "a code and a notice: {sent:?}");
    let notice = &sent[1];
    let place = &notice.delivery_context;
    assert_eq!(
        (place.channel.as_str(), place.peer_id.as_deref()),
        ("webchat", Some("owner"))
    );
    assert!(notice.content.contains("`Ann`, id `100`"), "{}", notice.content);
    let code = code(&sent[0]);
    assert!(!notice.content.contains(&code), "{}", notice.content);
    assert!(grant(&world, "telegram", &code).await.expect("granted").changed);
    replica.stop().await;

    // A replica that died before the platform knew that its message was taken: the same messages again.
    let place = notice.delivery_context.clone();
    let store = |seed| {
        PairingStore::new(world.bus.clone(), world.clock.clone(), Arc::new(SeededIds::new(seed)))
            .telling(Some(place.clone()))
    };
    let first = stranger(5, 1);
    store(1).offer_code(&first).await.expect("offered");
    store(2).offer_code(&first).await.expect("offered again");
    store(2).offer_code(&stranger(5, 2)).await.expect("has a code");
    assert_eq!(replies(&world).await.len(), 4, "the one stranger and the other one");
}

/// A message of the stranger `sender`.
fn stranger(sender: u32, number: u32) -> Event {
    let id = EventId::parse(format!("telegram:main/{sender}/{number}")).expect("an id");
    let mut event = Event::new(id, "telegram", &sender.to_string(), START);
    event.account_id = Some("main".to_owned());
    event.from.id = sender.to_string();
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_send_one_code_and_numbers_are_bounded() {
    let world = World::start().await;
    let store = |seed| PairingStore::new(world.bus.clone(), world.clock.clone(), Arc::new(SeededIds::new(seed)));
    let (one, other) = (store(1), store(2));

    let (first, second) = (stranger(5, 1), stranger(5, 2));
    let (a, b) = tokio::join!(one.offer_code(&first), other.offer_code(&second));
    a.and(b).expect("both are done");
    assert_eq!(replies(&world).await.len(), 1);

    // Many strangers: the account's number an hour.
    for sender in 10..10 + MAX_CODES + 5 {
        other.offer_code(&stranger(sender, 1)).await.expect("done");
    }
    let sent = replies(&world).await.len();
    let most = usize::try_from(MAX_CODES).expect("small") + 1;
    assert!(sent == most || sent == most - 1, "{sent}");

    let request = |code: &str| GrantPairing {
        channel: "telegram".to_owned(),
        account: "main".to_owned(),
        code: code.to_owned(),
    };
    for _ in 0..MAX_WRONG_CODES {
        assert!(one.grant(&request("00000000")).await.is_err());
    }
    let right = code(&replies(&world).await[0]);
    let refused = one.grant(&request(&right)).await.expect_err("too many were wrong");
    assert!(refused.to_string().contains("wrong codes"), "{refused}");
    assert!(!refused.to_string().contains(&right));
    assert!(other.grant(&request(&right)).await.expect("the other replica").changed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_message_gets_no_code() {
    let world = World::start().await;
    let store = PairingStore::new(world.bus.clone(), world.clock.clone(), Arc::new(SeededIds::new(1)));
    let mut late = stranger(5, 1);
    late.timestamp = START.plus(-600_001);
    store.offer_code(&late).await.expect("done");
    assert_eq!(replies(&world).await, []);

    late.timestamp = START.plus(-600_000);
    store.offer_code(&late).await.expect("done");
    assert_eq!(replies(&world).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_that_cannot_be_sent_holds_up_nobody() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, "")).await;

    // The stream refuses every code.
    assert!(world.bus.delete_stream("DELIVERIES").await.expect("deleted"));
    let mut narrow = topology(1);
    for stream in narrow.streams.iter_mut().filter(|stream| stream.name == "DELIVERIES") {
        stream.max_message_bytes = 100;
    }
    world.bus.ensure_topology(&narrow, false).await.expect("made");
    for number in 1..=6 {
        api.add(MAIN, "message", &message(number, START));
    }
    eventually("the messages are confirmed", async || api.confirmed(MAIN) == 6).await;
    world.stored(6).await;

    // Their senders are not tried again, and are sent a code in the next hour.
    assert!(world.bus.delete_stream("DELIVERIES").await.expect("deleted"));
    world
        .bus
        .ensure_topology(&topology(1), false)
        .await
        .expect("made again");
    api.add(MAIN, "message", &message(8, START));
    eventually("the next message is confirmed", async || api.confirmed(MAIN) == 7).await;
    assert_eq!(replies(&world).await, []);
    world.clock.advance(u64::try_from(CODE_LASTS_MS).expect("positive"));
    api.add(MAIN, "message", &message(15, START.plus(CODE_LASTS_MS)));
    eventually("a code is sent", async || replies(&world).await.len() == 1).await;
    replica.stop().await;
}
