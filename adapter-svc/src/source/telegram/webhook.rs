//! Bots to which Telegram posts: the holder of an account sets its webhook and stores the posted updates, and every replica has
//! a door for the posts.
//!
//! Source: <https://core.telegram.org/bots/api#setwebhook>.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shared::bus::Bus;
use shared::clock::{SharedClock, SharedIds, pause};
use shared::model::time::UnixMillis;
use shared::platform::bot_api::WebhookInfo;
use shared::platform::policy::DirectPolicy;
use shared::platform::telegram::{ReceiveMode, TELEGRAM, TelegramAccount};
use shared::process::ShutdownSignal;
use shared::wire::watermark::SourceWatermark;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::BotAccount;
use super::client::{BotCallError, BotClient};
use super::posted::PostedUpdates;
use super::progress::UpdateProgress;
use crate::source::door::PostLetters;
use crate::source::port::{CALL_RETRY, PutEventsError, Source, SourceEnd, SourceSink};
use crate::source::posts::PostQueue;
use crate::source::posts::reader::{PostReader, PostState};
use crate::source::posts::shared_watch::SharedPosts;
use crate::source::webhook::signature::{SignatureChecks, SigningKey};

/// Time between two looks at the webhook.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Time after which an account whose token was refused is tried again.
const TOKEN_AGAIN: Duration = Duration::from_mins(5);
/// Maximum wait that the vendor may ask for.
const MAX_ASKED: Duration = Duration::from_hours(24);
/// Age from which a failed post says nothing about the state of the account, in seconds.
const FAILED_LATELY_S: i64 = 300;
/// Longest wait after failed calls.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Maximum wait of a post for the account's identity, which is asked for at start.
const IDENTITY_WAIT: Duration = Duration::from_secs(2);

/// The result of a look at an account's webhook.
#[derive(Debug)]
struct WebhookLook {
    /// State of the account: sound, or its fault.
    state: Result<String, String>,
    /// What Telegram says about the webhook; `None` if it was not the account's, and nothing was posted.
    found: Option<WebhookInfo>,
}

impl WebhookLook {
    /// Returns whether everything that Telegram had is posted, apart from updates that are on their way. `until` is the time
    /// up to which that was so at a former look.
    fn is_complete(&self, until: UnixMillis) -> bool {
        self.found.as_ref().is_some_and(|found| {
            let failed = found.last_error_date.map(UnixMillis::from_seconds);
            found.pending_update_count == 0 || failed.is_none_or(|failed| failed < until)
        })
    }
}

/// A bot to which Telegram posts, as its holder sees it.
#[derive(Debug)]
pub struct TelegramWebhookSource {
    name: String,
    account: TelegramAccount,
    client: BotClient,
    ids: SharedIds,
    posts: SharedPosts,
}

impl TelegramWebhookSource {
    /// Returns the source of the account `name`, which calls by `http`, and takes the account's posts from `posts`.
    #[must_use]
    pub fn new(
        name: String,
        account: TelegramAccount,
        http: reqwest::Client,
        ids: SharedIds,
        posts: SharedPosts,
    ) -> Self {
        Self {
            client: BotClient::new(http, account.clone()),
            name,
            account,
            ids,
            posts,
        }
    }

    /// Sets the webhook if it is not the account's, and returns the state of the account.
    async fn look(&self, sink: &SourceSink) -> Result<WebhookLook, BotCallError> {
        let bot = self.client.identify().await?;
        let (Some(url), Some(secret)) = (self.account.posted_url(&self.name), &self.account.webhook_secret) else {
            return Ok(WebhookLook {
                state: Err("`webhook_url` or `webhook_secret` is missing".to_owned()),
                found: None,
            });
        };
        let mut found = Some(self.client.webhook().await?);
        if let Some(other) = found.take_if(|found| found.url != url.as_str()) {
            if !other.url.is_empty() {
                tracing::warn!(
                    account = self.name,
                    "another webhook is set for the bot; it is replaced"
                );
            }
            self.client.set_webhook(&url, secret).await?;
        }

        let failed_lately = |at: i64| sink.now().0 / 1_000 - at < FAILED_LATELY_S;
        let failing = found.as_ref().and_then(|found| {
            let said = found.last_error_message.as_ref()?;
            let fails = found.pending_update_count > 0 && found.last_error_date.is_some_and(failed_lately);
            fails.then(|| format!("{} updates wait, Telegram says: {said}", found.pending_update_count))
        });
        let state = match failing {
            Some(words) => Err(words),
            None => Ok(format!("receiving by webhook as @{}", bot.username)),
        };
        Ok(WebhookLook { state, found })
    }

    /// Notes that everything is stored that Telegram had, if `look` says so, and tells of which time updates are missing:
    /// Telegram throws away what it could not post in time.
    async fn note_complete(
        &self,
        posts: &mut PostState<PostedUpdates<'_>>,
        look: &WebhookLook,
        sink: &SourceSink,
    ) -> Result<(), PutEventsError> {
        let now = sink.now();
        let progress = &mut posts.account.progress;
        if look.is_complete(progress.complete_until()) {
            let vendor_now = self.client.platform_time().unwrap_or(now);
            let gap = progress.find_gap(vendor_now);
            // Noted with the gap, so that no crash between them makes a second one. Posts that wait are durable.
            progress.note_complete(vendor_now);
            if let Some(gap) = gap {
                let position = posts.position(now);
                return sink.gap(&gap, position).await;
            }
        }

        if posts.account.progress.is_note_due(now) {
            let position = posts.position(now);
            sink.put(Vec::new(), position).await?;
        }
        Ok(())
    }

    /// Looks until Telegram answers, and reports the state of the account.
    async fn next_look(&self, sink: &SourceSink) -> Result<WebhookLook, SourceEnd> {
        let mut failures = 0;
        while sink.is_held() {
            match self.look(sink).await {
                Ok(look) => {
                    sink.report(look.state.as_deref().map_err(String::as_str));
                    return Ok(look);
                }
                Err(error) => {
                    failures += 1;
                    self.wait_failed(&error, failures, sink).await?;
                }
            }
        }
        Err(SourceEnd::Fenced)
    }

    /// Asks until Telegram says who the bot is.
    async fn next_bot(&self, sink: &SourceSink) -> Result<i64, SourceEnd> {
        let mut failures = 0;
        while sink.is_held() {
            match self.client.identify().await {
                Ok(bot) => return Ok(bot.id),
                Err(error) => {
                    failures += 1;
                    self.wait_failed(&error, failures, sink).await?;
                }
            }
        }
        Err(SourceEnd::Fenced)
    }

    /// Reports `error`, the last of `failures`, and waits before the next call.
    async fn wait_failed(&self, error: &BotCallError, failures: u32, sink: &SourceSink) -> Result<(), SourceEnd> {
        if let BotCallError::Unauthorized(_) = error {
            return Err(SourceEnd::Stopped {
                reason: error.to_string(),
                again: Some(TOKEN_AGAIN),
            });
        }

        metrics::counter!("nexus_source_failures_total", "source" => TELEGRAM).increment(1);
        sink.report(Err(&format!("failed to look at the webhook: {error}")));
        pause(wait_after(error, failures, self.ids.draw_jitter())).await;
        Ok(())
    }

    /// Looks at the webhook again and again, and notes how far the account is complete.
    async fn keep_looking(&self, reader: &PostReader<'_, PostedUpdates<'_>>, sink: &SourceSink) -> SourceEnd {
        loop {
            let look = match self.next_look(sink).await {
                Ok(look) => look,
                Err(end) => return end,
            };
            let noted = self.note_complete(&mut *reader.lock().await, &look, sink).await;
            if let Err(error) = noted {
                return error.into();
            }
            pause(LOOK_EVERY).await;
        }
    }

    /// Returns how far the updates of the bot `bot_id` are stored, as the watermark `from` says.
    fn resume(&self, bot_id: i64, from: Option<&SourceWatermark>, sink: &SourceSink) -> UpdateProgress {
        let vendor_now = self.client.platform_time().unwrap_or_else(|| sink.now());
        let mut progress = UpdateProgress::resume(bot_id, &self.account.token_hash(), from, vendor_now);
        // The offset of the time when the bot was polled says nothing any more: the posts confirm updates.
        progress.position.offset = None;
        progress
    }
}

#[async_trait]
impl Source for TelegramWebhookSource {
    fn channel(&self) -> &'static str {
        TELEGRAM
    }

    fn account(&self) -> &str {
        &self.name
    }

    fn direct_policy(&self) -> DirectPolicy {
        self.account.direct
    }

    async fn run(&self, from: Option<SourceWatermark>, sink: &SourceSink) -> SourceEnd {
        // Then the updates' bot and Telegram's time are known. Posts are stored even while the webhook is refused.
        let bot_id = match self.next_bot(sink).await {
            Ok(bot_id) => bot_id,
            Err(end) => return end,
        };
        let progress = self.resume(bot_id, from.as_ref(), sink);
        let posts = PostedUpdates::new(&self.account, &self.client, progress);
        let reader = posts.into_reader(&self.name, sink);
        tokio::select! {
            end = self.keep_looking(&reader, sink) => end,
            end = reader.read(&self.posts) => end,
        }
    }
}

/// Returns the wait after `error`, the last of `failures`.
fn wait_after(error: &BotCallError, failures: u32, jitter: f64) -> Duration {
    let scheduled = CALL_RETRY.delay(failures, jitter).unwrap_or(LONGEST_WAIT);
    match error {
        // Never sooner than the vendor says.
        BotCallError::Limited(asked) => (*asked).min(MAX_ASKED),
        BotCallError::Unauthorized(_) => TOKEN_AGAIN,
        BotCallError::Conflict(_)
        | BotCallError::Refused { .. }
        | BotCallError::Unreachable(_)
        | BotCallError::Malformed(_) => scheduled,
    }
}

/// The accounts to which Telegram posts, by name.
pub type TelegramDoors = HashMap<String, TelegramDoor>;

/// An account to which Telegram posts.
pub struct TelegramDoor {
    /// Checks of the secret of its posts.
    pub checks: SignatureChecks,
    /// Posts that cannot be read.
    pub letters: PostLetters,
    /// Events of the account, until its holder has stored them.
    pub queue: PostQueue,
    known: watch::Receiver<Option<BotAccount>>,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for TelegramDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TelegramDoor(…)")
    }
}

impl TelegramDoor {
    /// Returns who the bot is. Waits for a moment if Telegram has not said it yet; `None` if it does not in time.
    pub async fn identity(&self) -> Option<BotAccount> {
        let mut known = self.known.clone();
        let found = tokio::time::timeout(IDENTITY_WAIT, known.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }
}

/// Parts of the process that the doors use.
#[derive(Debug, Clone)]
pub struct DoorContext {
    /// Bus of posted events and dead letters.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Source of randomness for waits.
    pub ids: SharedIds,
    /// Request to stop the service.
    pub shutdown: ShutdownSignal,
}

/// Opens the doors of those of `accounts` to which Telegram posts, and a task for each that learns who its bot is, by `http`.
pub fn open_doors(
    accounts: &BTreeMap<String, TelegramAccount>,
    http: &reqwest::Client,
    context: &DoorContext,
) -> (TelegramDoors, Vec<JoinHandle<()>>) {
    let (mut doors, mut tasks) = (TelegramDoors::new(), Vec::new());
    for (name, account) in accounts {
        let secret = match (account.receive, &account.webhook_secret) {
            (ReceiveMode::Webhook, Some(secret)) => secret,
            (ReceiveMode::Webhook, None) | (ReceiveMode::Poll | ReceiveMode::None, _) => continue,
        };
        let (sender, known) = watch::channel(None);
        let client = BotClient::new(http.clone(), account.clone());
        let learned = learn_identity(name.clone(), client, sender, context.ids.clone());
        let shutdown = context.shutdown.clone();
        tasks.push(tokio::spawn(async move {
            tokio::select! {
                () = learned => shutdown.requested().await,
                () = shutdown.requested() => {}
            }
        }));
        let door = TelegramDoor {
            checks: SignatureChecks {
                keys: vec![SigningKey::new(secret.reveal())],
                tolerance_s: 0,
            },
            letters: PostLetters::new(TELEGRAM, name.clone(), context.bus.clone(), Arc::clone(&context.clock)),
            queue: PostQueue::new(&context.bus, TELEGRAM, name),
            known,
        };
        doors.insert(name.clone(), door);
    }
    (doors, tasks)
}

/// Asks who the bot of the account `name` is until it is known.
async fn learn_identity(name: String, client: BotClient, known: watch::Sender<Option<BotAccount>>, ids: SharedIds) {
    let mut failures = 0;
    loop {
        match client.identify().await {
            Ok(bot) => {
                known.send_replace(Some(BotAccount {
                    name,
                    bot_id: bot.id,
                    username: bot.username,
                }));
                return;
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(account = name, failures, %error, "failed to identify an account of Telegram");
                pause(wait_after(&error, failures, ids.draw_jitter())).await;
            }
        }
    }
}
