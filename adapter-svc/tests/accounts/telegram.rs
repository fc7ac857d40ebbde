//! Telegram's source: the contract of sources, and what the vendor does besides.

use std::sync::Arc;

use adapter_svc::source::port::Source;
use adapter_svc::source::telegram::client::open_http;
use adapter_svc::source::telegram::poll::TelegramSource;
use adapter_svc::source::telegram::shared_http::SharedHttp;
use serde_json::json;
use shared::clock::SharedClock;
use shared::model::event::PlatformIds;
use shared::model::time::UnixMillis;
use shared::platform::accounts::read_platforms;
use shared::platform::telegram::TELEGRAM;
use shared::testing::{SeededIds, eventually};
use shared::wire::watermark::SourceWatermark;

use crate::bot_api::{BotApi, BotFaults};
use crate::contract::{Platform, check_source};
use crate::dropped::check_dropped;
use crate::world::{START, World};

pub(crate) const MAIN: &str = "77:main-secret";
pub(crate) const OTHER: &str = "78:other-secret";

/// The stand-in with a token for each account.
struct Telegram(BotApi);

fn token(account: &str) -> &'static str {
    if account == "main" { MAIN } else { OTHER }
}

impl Telegram {
    fn set(&self, account: &str, change: impl FnOnce(&mut BotFaults)) {
        let mut faults = BotFaults::default();
        change(&mut faults);
        self.0.set(token(account), faults);
    }
}

/// The content of `channels.yaml` for the stand-in.
pub(crate) fn channels(world: &World, api: &BotApi, main: &str) -> String {
    let (main, other, base) = (world.secret(main), world.secret(OTHER), &api.base);
    format!(
        "telegram: {{accounts: {{main: {{token: '{main}', base_url: '{base}', direct: open, album_wait_ms: 300}}, \
         other: {{token: '{other}', base_url: '{base}', direct: open}}}}}}"
    )
}

/// The source of account `main` of `channels`, the content of `channels.yaml`, with the clock `clock`.
pub(crate) fn polled_source(channels: &str, clock: SharedClock) -> Arc<dyn Source> {
    let accounts = read_platforms(channels).expect("sound accounts");
    let account = accounts.telegram.accounts["main"].clone();
    let http = SharedHttp::new(open_http().expect("a client"));
    let ids = Arc::new(SeededIds::new(7));
    Arc::new(TelegramSource::new("main".to_owned(), account, http, clock, ids))
}

/// The message `number` from user `number % 7`.
pub(crate) fn message(number: i64, at: UnixMillis) -> serde_json::Value {
    let user = 100 + number % 7;
    json!({"message_id": number, "date": at.0 / 1_000, "from": {"id": user, "first_name": "Ann"},
           "chat": {"id": user, "type": "private"}, "text": format!("message {number}")})
}

impl Platform for Telegram {
    fn channel(&self) -> &'static str {
        TELEGRAM
    }

    fn reading(&self) -> &'static str {
        "polling"
    }

    fn has_earlier(&self) -> bool {
        true
    }

    fn gap_end(&self, now: UnixMillis) -> UnixMillis {
        // Updates are kept for a day.
        now.plus(-24 * 3_600_000)
    }

    fn channels(&self, world: &World) -> String {
        channels(world, &self.0, MAIN)
    }

    fn source(&self, world: &World) -> Arc<dyn Source> {
        polled_source(&self.channels(world), world.clock.clone())
    }

    fn say(&self, account: &str, number: i64, at: UnixMillis) -> String {
        self.0.add(token(account), "message", &message(number, at));
        format!("telegram:{account}/{}/{number}", 100 + number % 7)
    }

    fn disorder(&self, account: &str) {
        self.set(account, |faults| faults.shuffles = true);
    }

    fn set_away(&self, account: &str, is_away: bool) {
        self.set(account, |faults| faults.is_away = is_away);
    }

    fn forget(&self, account: &str) {
        self.0.forget(token(account));
    }

    fn revoke(&self, account: &str) {
        self.set(account, |faults| faults.is_revoked = true);
    }

    fn confirmed(&self, account: &str) -> usize {
        self.0.confirmed(token(account))
    }

    fn handed(&self, account: &str) -> usize {
        self.0.handed(token(account))
    }

    fn calls(&self, account: &str) -> u64 {
        self.0.polls(token(account))
    }

    fn early(&self, account: &str) -> Vec<String> {
        self.0.early(token(account))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_of_telegram_holds_to_the_contract() {
    check_source(async |world: &World| Telegram(BotApi::start(world.bus.clone(), world.clock.clone()).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_of_telegram_is_dropped_at_each_wait_and_loses_and_doubles_nothing() {
    check_dropped(async |world: &World| Telegram(BotApi::start(world.bus.clone(), world.clock.clone()).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_start_again_hide_no_update() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    api.number_from(MAIN, 900_000);
    let text = channels(&world, &api, MAIN);
    let replica = world.replica("adapter-svc-0", &text).await;
    api.add(MAIN, "message", &message(1, START));
    eventually("the first is confirmed", async || api.confirmed(MAIN) == 1).await;

    // After a quiet week the vendor's numbers are random, and lower ones too.
    api.number_from(MAIN, 5);
    api.add(MAIN, "message", &message(2, START));
    eventually("the second is confirmed", async || api.confirmed(MAIN) == 2).await;
    replica.stop().await;

    // The same bot with another token: its numbers start again, and the old offset is void.
    api.number_from("77:second-secret", 1);
    api.add("77:second-secret", "message", &message(3, START));
    let text = channels(&world, &api, "77:second-secret");
    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the third is confirmed", async || {
        api.confirmed("77:second-secret") == 1
    })
    .await;
    world.stored(3).await;
    assert_eq!(api.early(MAIN), Vec::<String>::new());
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_another_poller_and_limits_are_said_and_passed() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let webhook = BotFaults {
        has_webhook: true,
        ..BotFaults::default()
    };
    api.set(MAIN, webhook);
    let others = BotFaults {
        conflicts: 1,
        ..BotFaults::default()
    };
    api.set(OTHER, others);

    let text = channels(&world, &api, MAIN);
    let replica = world.replica("adapter-svc-0", &text).await;
    // The stand-in refuses every method but those of reading: the webhook is not removed.
    replica.says("telegram/main", "a webhook is set").await;
    replica.says("telegram/other", "terminated by other getUpdates").await;
    for (_, part) in replica.health.readiness().parts {
        assert!(!part.detail.contains("secret"), "{}", part.detail);
    }

    api.add(OTHER, "message", &message(1, START));
    eventually("the other account goes on", async || api.confirmed(OTHER) == 1).await;
    let limited = BotFaults {
        limited: 1,
        ..BotFaults::default()
    };
    api.set(OTHER, limited);
    replica.says("telegram/other", "retry in 1 s").await;
    replica.says("telegram/other", "polling as @nexus78bot").await;
    assert_eq!((api.most_polling(OTHER), api.early(OTHER)), (1, Vec::new()));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_album_is_one_event_and_a_press_is_answered() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, MAIN);
    let replica = world.replica("adapter-svc-0", &text).await;

    for number in 1..=3 {
        let mut photo = message(number * 7, START);
        photo["text"] = json!(null);
        photo["media_group_id"] = json!("a");
        photo["photo"] = json!([{"file_id": format!("f{number}"), "file_unique_id": "u", "width": 1, "height": 1}]);
        api.add(MAIN, "message", &photo);
    }
    api.add(MAIN, "message", &message(28, START));
    api.add(MAIN, "message", &message(4, START));
    // The stand-in sends everything again until the album is confirmed; its clock is the test's.
    eventually("the other chat is stored", async || world.events().await.len() == 1).await;
    assert_eq!(api.confirmed(MAIN), 0);
    world.clock.advance(300);
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 5).await;

    let events = world.stored(3).await;
    let album = events.iter().find(|event| event.id.as_str() == "telegram:main/100/7");
    let album = album.expect("the album");
    assert_eq!(
        PlatformIds::from_event(album).expect("ids").ids,
        ["100/7", "100/14", "100/21"]
    );
    assert_eq!(album.attachments.len(), 3);
    let place = |id: &str| events.iter().position(|event| event.id.as_str() == id).expect("stored");
    assert!(
        place("telegram:main/100/7") < place("telegram:main/100/28"),
        "the chat keeps its order"
    );

    let press =
        json!({"id": "p1", "from": {"id": 100}, "chat_instance": "c", "data": "yes", "message": message(7, START)});
    api.add(MAIN, "callback_query", &press);
    eventually("the press is answered", async || api.pressed(MAIN) == ["p1"]).await;
    let events = world.stored(4).await;
    assert_eq!(events[3].target.as_deref(), Some("telegram:main/100/7"));
    assert_eq!(events[3].content, "yes");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_album_that_was_decided_before_a_crash_has_the_same_messages_after_it() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, MAIN);
    for number in 1..=3 {
        let mut photo = message(number * 7, START);
        photo["media_group_id"] = json!("a");
        photo["photo"] = json!([{"file_id": format!("f{number}"), "width": 1, "height": 1}]);
        api.add(MAIN, "message", &photo);
    }

    // The third message came after the album of two was decided, and then the process was killed.
    let account = &read_platforms(&text).expect("sound").telegram.accounts["main"];
    let decided = SourceWatermark {
        of: format!("bot 77 {}", account.token_hash()),
        position: json!({"closed": [{"place": "100", "name": "a", "messages": [7, 14]}]}),
        complete_until: START,
        by: "killed".to_owned(),
    };
    let kept = world.bus.kv::<SourceWatermark>("watermarks");
    kept.put("telegram.main", &decided).await.expect("written");

    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the album is stored", async || world.events().await.len() == 1).await;
    world.clock.advance(300);
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 3).await;
    let events = world.stored(2).await;
    let ids = |index: usize| PlatformIds::from_event(&events[index]).expect("ids").ids;
    assert_eq!(
        (ids(0), ids(1)),
        (vec!["100/7".to_owned(), "100/14".to_owned()], vec!["100/21".to_owned()])
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_for_the_bot_is_withheld_and_its_own_messages_are_no_events() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, MAIN).replacen("direct: open", "allow: [101], groups: {'*': {}}", 1);
    let replica = world.replica("adapter-svc-0", &text).await;

    let from = |number: i64, sender: i64, chat: &serde_json::Value| {
        json!({"message_id": number, "date": START.0 / 1_000, "from": {"id": sender, "is_bot": sender < 100, "first_name": "A"},
               "chat": chat, "text": "hello"})
    };
    let (private, group) = (
        json!({"id": 101, "type": "private"}),
        json!({"id": -5, "type": "supergroup"}),
    );
    api.add(MAIN, "message", &from(1, 101, &private));
    api.add(MAIN, "message", &message(7, START));
    // The bot's own messages come back: the same, edited, and under another id.
    api.add(MAIN, "message", &from(2, 77, &private));
    api.add(MAIN, "edited_message", &from(2, 77, &private));
    api.add(MAIN, "message", &from(3, 77, &group));
    api.add(MAIN, "message", &from(4, 60, &group));
    api.add(MAIN, "message", &from(5, 101, &group));
    // What belongs to no conversation is confirmed as well.
    api.add(MAIN, "poll", &json!({"id": "1"}));
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 8).await;

    let found: Vec<(String, Vec<String>, &str)> = world
        .stored(4)
        .await
        .into_iter()
        .map(|event| (event.source_id, event.tags, event.direction.name()))
        .collect();
    let has = |id: &str, tags: &[&str], direction: &'static str| {
        let tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        let wanted = (format!("main/{id}"), tags, direction);
        assert!(found.contains(&wanted), "{wanted:?} in {found:?}");
    };
    has("101/1", &[], "received");
    has("100/7", &["unpaired"], "received");
    has("-5/4", &["from_bot"], "observed");
    has("-5/5", &[], "observed");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_of_a_topic_go_before_those_of_its_group() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let groups =
        "groups: {-5: {topics: {1: {require_mention: false}, 7: {require_mention: false}, 8: {allow: [101]}}}}";
    let text = channels(&world, &api, MAIN).replacen("direct: open", groups, 1);
    let replica = world.replica("adapter-svc-0", &text).await;

    for (number, sender, topic) in [
        (1, 101, None),
        (2, 101, Some(7)),
        (3, 101, Some(8)),
        (4, 102, Some(8)),
        (5, 102, Some(9)),
    ] {
        let mut said = json!({"message_id": number, "date": START.0 / 1_000, "from": {"id": sender, "first_name": "A"},
            "chat": {"id": -5, "type": "supergroup", "is_forum": true}, "text": "hello"});
        if let Some(topic) = topic {
            said["message_thread_id"] = json!(topic);
            said["is_topic_message"] = json!(true);
        }
        api.add(MAIN, "message", &said);
    }
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 5).await;

    let found: Vec<(String, Vec<String>, &str)> = world
        .stored(5)
        .await
        .into_iter()
        .map(|event| (event.source_id, event.tags, event.direction.name()))
        .collect();
    for (number, tags, direction) in [
        (1, &[][..], "received"),
        (2, &[][..], "received"),
        (3, &[][..], "observed"),
        (4, &["unlisted"][..], "observed"),
        (5, &[][..], "observed"),
    ] {
        let tags: Vec<String> = tags.iter().map(|tag: &&str| (*tag).to_owned()).collect();
        let wanted = (format!("main/-5/{number}"), tags, direction);
        assert!(found.contains(&wanted), "{wanted:?} in {found:?}");
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_became_a_supergroup_keeps_its_settings_after_a_restart_too() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, MAIN).replacen("direct: open", "groups: {-6: {require_mention: false}}", 1);
    let said = |number: i64, chat: i64, kind: &str, fields: &serde_json::Value| {
        let mut said = json!({"message_id": number, "date": START.0 / 1_000, "from": {"id": 101, "first_name": "A"},
            "chat": {"id": chat, "type": kind}});
        let fields = fields.as_object().expect("fields").clone();
        said.as_object_mut().expect("a message").extend(fields);
        said
    };
    let hello = json!({"text": "hello"});

    let replica = world.replica("adapter-svc-0", &text).await;
    api.add(MAIN, "message", &said(1, -1006, "supergroup", &hello));
    let moved = json!({"migrate_to_chat_id": -1006});
    api.add(MAIN, "message", &said(9, -6, "group", &moved));
    api.add(MAIN, "message", &said(2, -1006, "supergroup", &hello));
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 3).await;
    replica.stop().await;

    let replica = world.replica("adapter-svc-1", &text).await;
    api.add(MAIN, "message", &said(3, -1006, "supergroup", &hello));
    api.add(MAIN, "message", &said(4, -1007, "supergroup", &hello));
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 5).await;
    let found: Vec<(String, Vec<String>, Option<String>)> = world
        .stored(5)
        .await
        .iter()
        .map(|event| {
            let former = event.former_peer().map(str::to_owned);
            (event.source_id.clone(), event.tags.clone(), former)
        })
        .collect();
    for (id, tags, former) in [
        ("-1006/1", &["unlisted"][..], None),
        ("-6/9", &[][..], None),
        ("-1006/2", &[][..], Some("-6")),
        ("-1006/3", &[][..], Some("-6")),
        ("-1007/4", &["unlisted"][..], None),
    ] {
        let tags: Vec<String> = tags.iter().map(|tag: &&str| (*tag).to_owned()).collect();
        let wanted = (format!("main/{id}"), tags, former.map(str::to_owned));
        assert!(found.contains(&wanted), "{wanted:?} in {found:?}");
    }
    replica.stop().await;
}
