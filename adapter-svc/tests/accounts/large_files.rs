//! Files at the bounds that hold unless somebody configures others: 20 MiB each. One above them is refused, and its message
//! is there, whether or not the platform says how large it is.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use shared::model::event::{Attachment, AttachmentState, RefusedAttachment};
use shared::testing::eventually_some;

use crate::bot_api::BotApi;
use crate::discord;
use crate::discord_api::{DiscordApi, message, snowflake};
use crate::file_shelf::FileFault;
use crate::files::{TELEGRAM, document, post_to_slack, slack_replica, telegram_channels};
use crate::web_api::WebApi;
use crate::world::{START, World};

/// The largest file that is fetched, in bytes.
const BOUND: usize = 20 * 1024 * 1024;
/// The bound as attachments name it.
const LIMIT: Option<u64> = Some(20 * 1024 * 1024);
/// A file that is not.
const LARGE: usize = 25 * 1_000 * 1_000;

const TOO_LARGE: AttachmentState = AttachmentState::Refused(RefusedAttachment::TooLarge);

fn bytes(length: usize) -> Vec<u8> {
    vec![7; length]
}

/// Waits until it is decided what becomes of the file of the message with the event `id`; the file.
pub(crate) async fn decided(world: &World, id: &str) -> Attachment {
    eventually_some(&format!("the file of {id} is decided"), async || {
        // A file that takes a while follows in an update.
        let newest = world
            .events()
            .await
            .into_iter()
            .rev()
            .find(|event| event.id.as_str() == id)?;
        assert_eq!(newest.content, "look");
        let file = newest.attachments.into_iter().next()?;
        (file.state != AttachmentState::Remote).then_some(file)
    })
    .await
}

fn assert_whole(file: &Attachment) {
    let hash = hex::encode(Sha256::digest(bytes(BOUND)));
    assert_eq!(file.stored_hash(), Some(hash.as_str()), "{file:?}");
    assert_eq!(file.size_bytes, u64::try_from(BOUND).ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_25_mb_is_refused_by_telegram_s_source() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &telegram_channels(&world, &api)).await;
    let cases = [("whole", BOUND, BOUND), ("said", LARGE, LARGE), ("unsaid", LARGE, 5)];
    for (number, (id, length, said)) in (1..).zip(cases) {
        api.files.put(id, &bytes(length), FileFault::None);
        api.add(TELEGRAM, "message", &document(number, id, &json!({"file_size": said})));
    }

    assert_whole(&decided(&world, "telegram:main/5/1").await);
    for number in [2, 3] {
        let file = decided(&world, &format!("telegram:main/5/{number}")).await;
        assert_eq!((file.state, file.max_bytes), (TOO_LARGE, LIMIT), "{number}");
    }
    assert_eq!(api.files.asked("said"), 0, "its size was known");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_25_mb_is_refused_by_slack_s_door() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = slack_replica(&world, &api).await;
    let stamp = |number: i64| format!("{}.{number:06}", START.0 / 1_000);
    let cases = [("F1", BOUND, None), ("F2", LARGE, Some(LARGE)), ("F3", LARGE, None)];
    for (number, (id, length, said)) in (1..).zip(cases) {
        api.files.put(id, &bytes(length), FileFault::Private);
        let mut file = json!({"id": id, "name": "a.bin", "mimetype": "application/octet-stream", "mode": "hosted"});
        if let Some(said) = said {
            file["size"] = Value::from(said);
        }
        let stamp = stamp(number);
        let event = json!({"type": "message", "subtype": "file_share", "channel": "D1", "channel_type": "im",
            "user": "U5", "text": "look", "ts": stamp, "event_ts": stamp, "files": [file]});
        post_to_slack(&replica, &event).await;
    }

    assert_whole(&decided(&world, &format!("slack:main/D1/{}", stamp(1))).await);
    for number in [2, 3] {
        let file = decided(&world, &format!("slack:main/D1/{}", stamp(number))).await;
        assert_eq!((file.state, file.max_bytes), (TOO_LARGE, LIMIT), "{number}");
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_25_mb_is_refused_by_discord_s_source() {
    let (world, api, replica) = discord::start(discord::OPEN).await;
    let cases = [("whole", BOUND, BOUND), ("said", LARGE, LARGE), ("unsaid", LARGE, 5)];
    let address = api.address.clone();
    let write = |api: &DiscordApi, (number, id, said): (i64, &str, usize)| {
        let mut message = message(&snowflake(number, START), "1001", "look");
        message["attachments"] = json!([{"id": number.to_string(), "filename": "a.bin", "size": said,
            "content_type": "application/octet-stream", "url": format!("http://{address}/cdn/{id}?ex=ffffffff&is=0&hm=0&")}]);
        api.write(discord::MAIN, &message);
    };
    for (number, (id, length, said)) in (1..).zip(cases) {
        api.files.put(id, &bytes(length), FileFault::None);
        write(&api, (number, id, said));
    }

    let id = |number: i64| format!("discord:main/1001/{}", snowflake(number, START));
    assert_whole(&decided(&world, &id(1)).await);
    for number in [2, 3] {
        let file = decided(&world, &id(number)).await;
        assert_eq!((file.state, file.max_bytes), (TOO_LARGE, LIMIT), "{number}");
    }
    assert_eq!(api.files.asked("said"), 0, "its size was known");
    replica.stop().await;
}
