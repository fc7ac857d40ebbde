//! Files of replies: what every platform that takes them must do, by one function and its fixtures.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use shared::attachments::AttachmentStore;
use shared::clock::SystemClock;
use shared::model::event::Attachment;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;

use crate::bot_api::{BotApi, Lie as BotLie};
use crate::discord_api::{DiscordApi, Misdeed};
use crate::form::shown_file;
use crate::web_api::{Lie as WebLie, WebApi};
use crate::world::{Setup, World, reply};

/// A picture of one pixel.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";

/// A platform as the contract sees it.
struct Fixture {
    channel: &'static str,
    peer: &'static str,
    setup: Box<dyn Fn() -> Setup>,
    /// Texts and files that are shown, in order.
    shown: Box<dyn Fn() -> Vec<String>>,
    /// The next call has no answer, though the message is there.
    silence: Box<dyn Fn()>,
    /// Whether a call that was made twice shows a file twice.
    doubles: bool,
}

async fn telegram() -> Fixture {
    let api = BotApi::start(&[]).await;
    let (shown, silenced) = (api.clone(), api.clone());
    Fixture {
        channel: TELEGRAM,
        peer: "77",
        setup: Box::new(move || Setup {
            telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", ""))]),
            ..Setup::default()
        }),
        shown: Box::new(move || shown.shown()),
        silence: Box::new(move || silenced.lie(BotLie::Silent)),
        doubles: true,
    }
}

async fn slack() -> Fixture {
    let api = WebApi::start(&[]).await;
    let (shown, silenced) = (api.clone(), api.clone());
    Fixture {
        channel: SLACK,
        peer: "D1",
        setup: Box::new(move || Setup {
            slack: BTreeMap::from([("bot".to_owned(), api.account("xoxb-bot", ""))]),
            ..Setup::default()
        }),
        shown: Box::new(move || shown.texts("D1")),
        silence: Box::new(move || silenced.lie(WebLie::Silent)),
        doubles: false,
    }
}

async fn discord() -> Fixture {
    let api = DiscordApi::start(&[]).await;
    let (shown, silenced) = (api.clone(), api.clone());
    Fixture {
        channel: DISCORD,
        peer: "77",
        setup: Box::new(move || Setup {
            discord: BTreeMap::from([("bot".to_owned(), api.account("MTk4NjI.Cl2FMQ.ZnCjm1XV", ""))]),
            ..Setup::default()
        }),
        shown: Box::new(move || shown.texts(77)),
        silence: Box::new(move || silenced.misdo(Misdeed::Silent)),
        doubles: false,
    }
}

impl Fixture {
    fn reply(&self, number: u64, content: &str, files: Vec<Attachment>) -> Reply {
        let mut reply = reply(number, self.channel, self.peer);
        reply.delivery_context.account_id = Some("bot".to_owned());
        reply.content = content.to_owned();
        reply.attachments = files;
        reply
    }
}

/// Stores `bytes`; the attachment of them.
async fn stored(world: &World, name: &str, mime_type: &str, media_type: &str, bytes: &[u8]) -> Attachment {
    let store = AttachmentStore::new(&world.bus, Arc::new(SystemClock));
    let hash = store.store(Bytes::copy_from_slice(bytes)).await.expect("stored");
    let mut file = Attachment {
        filename: Some(name.to_owned()),
        mime_type: Some(mime_type.to_owned()),
        media_type: media_type.to_owned(),
        ..Attachment::default()
    };
    file.set_stored(&hash, bytes.len() as u64);
    file
}

/// The text comes first, and then each file, with receipts, events and ids of its own; a copy sends nothing again.
async fn check_files(fixture: &Fixture) {
    let world = World::start().await;
    let replica = world.replica("a", (fixture.setup)());
    let picture = stored(&world, "chart.png", "image/png", "image", PNG).await;
    let notes = stored(&world, "notes.txt", "text/plain", "document", b"words").await;
    let mut large = picture.clone();
    large.filename = Some("huge.png".to_owned());
    large.size_bytes = Some(25 * 1_000 * 1_000);
    let sent = fixture.reply(1, "look", vec![picture.clone(), large, notes.clone()]);
    world.publish(&sent).await;
    world.settled().await;

    let shown = (fixture.shown)();
    assert_eq!(shown.len(), 4, "{shown:?}");
    assert_eq!((shown[0].as_str(), &shown[1]), ("look", &shown_file("chart.png", PNG)));
    assert!(
        shown[2].contains("huge.png") && shown[2].contains("at most"),
        "{shown:?}"
    );
    assert_eq!(shown[3], shown_file("notes.txt", b"words"));

    let steps = world.outcomes(&sent.delivery_context).await;
    let Some(ReceiptStep::Delivered { platform_ids, .. }) = steps.last() else {
        panic!("{steps:?}");
    };
    assert!(
        platform_ids.len() == 4 && platform_ids.iter().all(|ids| ids.len() == 1),
        "{platform_ids:?}"
    );
    let events = world.sent_events().await;
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.content.is_empty(), event.attachments.clone()))
        .collect();
    let expected = [
        (false, Vec::new()),
        (true, vec![picture.clone()]),
        (false, Vec::new()),
        (true, vec![notes]),
    ];
    assert_eq!(told, expected, "{}", fixture.channel);
    assert_eq!(events[1].content_types, ["image"]);

    // The same file alone, and one that is gone.
    world.publish(&fixture.reply(2, "", vec![picture.clone()])).await;
    world.settled().await;
    assert_eq!((fixture.shown)().len(), 5);
    let mut gone = picture;
    gone.set_stored(&"0".repeat(64), 5);
    world.publish(&fixture.reply(3, "", vec![gone])).await;
    world.settled().await;
    let letters = world.dead_letters().await;
    assert!(
        letters.len() == 1 && letters[0].detail.contains("not stored any more"),
        "{letters:?}"
    );
    replica.stop().await;
}

/// A replica dies while a file is sent: the next one looks for it where it can, and goes on behind it.
async fn check_crash(fixture: &Fixture) {
    let world = World::start().await;
    let files = vec![
        stored(&world, "a.png", "image/png", "image", PNG).await,
        stored(&world, "b.txt", "text/plain", "document", b"words").await,
    ];
    let sent = fixture.reply(1, "", files);
    let replica = world.replica("a", (fixture.setup)());
    (fixture.silence)();
    world.publish(&sent).await;
    eventually("the first file is there", async || !(fixture.shown)().is_empty()).await;
    replica.kill();

    let replica = world.replica("a", (fixture.setup)());
    world.settled().await;
    replica.stop().await;
    let first = shown_file("a.png", PNG);
    let twice = if fixture.doubles {
        vec![first.clone()]
    } else {
        Vec::new()
    };
    let expected = [vec![first], twice, vec![shown_file("b.txt", b"words")]].concat();
    let mut shown = (fixture.shown)();
    shown.sort();
    assert_eq!(shown, expected, "{}", fixture.channel);
    assert!(world.dead_letters().await.is_empty());
    let unconfirmed = |step: &ReceiptStep| {
        let ReceiptStep::Delivered { unconfirmed, .. } = step else {
            return None;
        };
        Some(!unconfirmed.is_empty())
    };
    let steps = world.outcomes(&sent.delivery_context).await;
    assert_eq!(steps.iter().find_map(unconfirmed), Some(fixture.doubles), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_out_on_telegram() {
    check_files(&telegram().await).await;
    check_crash(&telegram().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_out_on_slack() {
    check_files(&slack().await).await;
    check_crash(&slack().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_out_on_discord() {
    check_files(&discord().await).await;
    check_crash(&discord().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_telegram_does_not_show_is_sent_as_a_document() {
    let (world, api) = (World::start().await, BotApi::start(&[BotLie::Unshowable]).await);
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", ""))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    let picture = stored(&world, "long.png", "image/png", "image", PNG).await;
    let fixture = telegram().await;
    world.publish(&fixture.reply(1, "", vec![picture])).await;
    world.settled().await;
    let methods: Vec<String> = api
        .calls()
        .iter()
        .map(|call| call.body["method"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(methods, ["sendPhoto", "sendDocument"]);
    assert_eq!(api.shown(), [shown_file("long.png", PNG)]);
    replica.stop().await;
}
