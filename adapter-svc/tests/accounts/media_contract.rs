//! The contract for the files of every platform (`docs/contribute/source.md`): the port `Media`, behind the source or the
//! door that brings the messages.

use serde_json::json;
use sha2::{Digest as _, Sha256};
use shared::model::event::{AttachmentState, RefusedAttachment};
use shared::testing::eventually;

use crate::bot_api::BotApi;
use crate::discord;
use crate::discord_api::{DiscordApi, message, snowflake};
use crate::file_shelf::{FileFault, FileShelf};
use crate::files::{PNG, SLACK, TELEGRAM, document, fetches, post_to_slack, telegram_channels};
use crate::large_files::decided;
use crate::web_api::{SECRET, WebApi};
use crate::world::{Replica, START, World};

/// Bounds that small files reach.
const BOUNDS: &str = "[attachments]\nmax_file_bytes = 1000\nmax_event_bytes = 2000\n";
const BOUND: usize = 1_000;
/// Type of files that are not recognised.
const UNKNOWN: &str = "application/octet-stream";

/// A file that a person sends, and the result that is expected.
struct SentFile {
    id: &'static str,
    bytes: Vec<u8>,
    /// The type that the message names.
    mime_type: &'static str,
    said_bytes: usize,
    fault: FileFault,
    /// The type with which it is stored, or the reason for which it is refused.
    expected: Result<&'static str, RefusedAttachment>,
}

/// A file of `bytes`, of which the message says the size and a type that is another one.
fn whole(id: &'static str, bytes: Vec<u8>, expected: Result<&'static str, RefusedAttachment>) -> SentFile {
    SentFile {
        id,
        said_bytes: bytes.len(),
        bytes,
        mime_type: "image/png",
        fault: FileFault::None,
        expected,
    }
}

/// A small file that is handed out with `fault`.
fn faulty(id: &'static str, fault: FileFault, why: RefusedAttachment) -> SentFile {
    SentFile {
        fault,
        ..whole(id, vec![7], Err(why))
    }
}

fn sent_files() -> Vec<SentFile> {
    let address = "http://169.254.169.254/latest/meta-data".to_owned();
    vec![
        SentFile {
            mime_type: "video/mp4",
            ..whole("picture", PNG.to_vec(), Ok("image/png"))
        },
        whole("empty", Vec::new(), Ok(UNKNOWN)),
        whole("below", vec![7; BOUND - 1], Ok(UNKNOWN)),
        whole("at", vec![7; BOUND], Ok(UNKNOWN)),
        SentFile {
            said_bytes: 5,
            ..whole("above", vec![7; BOUND + 1], Err(RefusedAttachment::TooLarge))
        },
        whole("said", vec![7; BOUND + 1], Err(RefusedAttachment::TooLarge)),
        faulty("gone", FileFault::Status(404), RefusedAttachment::Expired),
        faulty("odd", FileFault::Status(418), RefusedAttachment::Unavailable),
        faulty(
            "moved",
            FileFault::MovesTo(address),
            RefusedAttachment::ForbiddenAddress,
        ),
    ]
}

/// A platform on which people send files to account `main`.
trait FilePlatform {
    /// Where its files are.
    fn shelf(&self) -> &FileShelf;
    /// Somebody sends `file` in the message `number`; the id of the event.
    async fn send(&self, number: i64, file: &SentFile) -> String;
}

/// Sends all files on `platform`, and checks the result for each.
async fn check_media(world: &World, platform: &impl FilePlatform) {
    let files = sent_files();
    let mut ids = Vec::with_capacity(files.len());
    for (number, file) in (1..).zip(&files) {
        platform.shelf().put(file.id, &file.bytes, file.fault.clone());
        ids.push(platform.send(number, file).await);
    }

    for (sent, id) in files.iter().zip(&ids) {
        // Its message is there in any case.
        let file = decided(world, id).await;
        match sent.expected {
            Ok(mime_type) => {
                let hash = hex::encode(Sha256::digest(&sent.bytes));
                assert_eq!(file.stored_hash(), Some(hash.as_str()), "{}: {file:?}", sent.id);
                assert_eq!(file.mime_type.as_deref(), Some(mime_type), "{}", sent.id);
                assert_eq!(file.size_bytes, u64::try_from(sent.bytes.len()).ok(), "{}", sent.id);
            }
            Err(why) => assert_eq!(file.state, AttachmentState::Refused(why), "{}", sent.id),
        }
    }
    assert_eq!(platform.shelf().asked("said"), 0, "its size was known");
    eventually("nothing is left to be fetched", async || fetches(world).await == 0).await;
}

impl FilePlatform for BotApi {
    fn shelf(&self) -> &FileShelf {
        &self.files
    }

    async fn send(&self, number: i64, file: &SentFile) -> String {
        let said = json!({"mime_type": file.mime_type, "file_size": file.said_bytes});
        self.add(TELEGRAM, "message", &document(number, file.id, &said));
        format!("telegram:main/5/{number}")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_telegram_hold_to_the_contract() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_channels(&world, &api);
    let replica = world.replica_with("adapter-svc-0", &channels, BOUNDS).await;
    check_media(&world, &api).await;
    replica.stop().await;
}

/// An app of Slack, and the replica to which Slack posts.
struct PostedApp<'a>(&'a WebApi, &'a Replica);

impl FilePlatform for PostedApp<'_> {
    fn shelf(&self) -> &FileShelf {
        &self.0.files
    }

    async fn send(&self, number: i64, file: &SentFile) -> String {
        let stamp = format!("{}.{number:06}", START.0 / 1_000);
        let shown = json!({
            "id": file.id, "name": "a.bin", "mimetype": file.mime_type, "size": file.said_bytes, "mode": "hosted",
        });
        let event = json!({
            "type": "message", "subtype": "file_share", "channel": "D1", "channel_type": "im", "user": "U5", "text": "look",
            "ts": stamp, "event_ts": stamp, "files": [shown],
        });
        post_to_slack(self.1, &event).await;
        format!("slack:main/D1/{stamp}")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_slack_hold_to_the_contract() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let (token, secret, base) = (world.secret(SLACK), world.secret(SECRET), &api.base);
    let channels = format!(
        "slack: {{accounts: {{main: {{token: '{token}', signing_secret: '{secret}', base_url: '{base}', direct: open}}}}}}"
    );
    let replica = world.replica_with("adapter-svc-0", &channels, BOUNDS).await;
    replica.says("slack/main", "receiving").await;
    check_media(&world, &PostedApp(&api, &replica)).await;
    replica.stop().await;
}

impl FilePlatform for DiscordApi {
    fn shelf(&self) -> &FileShelf {
        &self.files
    }

    async fn send(&self, number: i64, file: &SentFile) -> String {
        let id = snowflake(number, START);
        let url = format!("http://{}/cdn/{}?ex=ffffffff&is=0&hm=0&", self.address, file.id);
        let mut message = message(&id, "1001", "look");
        message["attachments"] = json!([{
            "id": number.to_string(), "filename": "a.bin", "size": file.said_bytes, "content_type": file.mime_type,
            "url": url,
        }]);
        self.write(discord::MAIN, &message);
        format!("discord:main/1001/{id}")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_discord_hold_to_the_contract() {
    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = discord::channels(&world, &api, discord::OPEN);
    let replica = world.replica_with("adapter-svc-0", &channels, BOUNDS).await;
    replica.says(discord::PART, "reading as nexus77").await;
    check_media(&world, &api).await;
    replica.stop().await;
}
