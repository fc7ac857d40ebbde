//! The source that polls a bot's updates with `getUpdates`.
//!
//! Source: <https://core.telegram.org/bots/api#getupdates>. One poller a token: the vendor answers 409 to a second one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;
use shared::clock::{SharedClock, SharedIds, pause};
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::platform::telegram::{TELEGRAM, TelegramAccount, is_own_webhook};
use shared::wire::watermark::SourceWatermark;

use super::client::{BATCH, BotCallError, BotClient};
use super::normalize::update_events;
use super::posted::PostedUpdates;
use super::privacy::without_own_messages;
use super::progress::UpdateProgress;
use super::shared_http::SharedHttp;
use super::{BotAccount, RefuseUpdateError};
use crate::source::merge::{MergeMemory, MergeWaits, MessageMerger, ReadyEvent, note_decision};
use crate::source::port::access::apply_access;
use crate::source::port::{CALL_RETRY, PutEventsError, Source, SourceEnd, SourceSink};
use crate::source::posts::late_looks::LateLooks;

/// Time for which the server waits for the first update of a call.
const LONG_POLL: Duration = Duration::from_secs(50);
/// Time without a completed call after which new connections are made: a connection may be dead without an error.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Wait before a webhook that excludes polling is looked for again.
const WEBHOOK_AGAIN: Duration = Duration::from_secs(60);

/// Time after which an account whose token was refused is tried again.
const TOKEN_AGAIN: Duration = Duration::from_mins(5);

/// Maximum wait that the vendor may ask for.
const MAX_ASKED: Duration = Duration::from_hours(24);

/// Least time between two calls that bring nothing.
const LEAST_POLL: Duration = Duration::from_secs(1);

/// Time limit for telling clients that their presses have arrived.
const ANSWER_PRESSES: Duration = Duration::from_secs(5);
/// Shortest wait after the vendor named another poller.
const CONFLICT_WAIT: Duration = Duration::from_secs(5);
/// A bot whose updates are polled.
#[derive(Debug)]
pub struct TelegramSource {
    name: String,
    account: TelegramAccount,
    http: SharedHttp,
    clock: SharedClock,
    ids: SharedIds,
}

impl TelegramSource {
    /// Returns the source of the account `name`, which calls by `http`.
    #[must_use]
    pub const fn new(
        name: String,
        account: TelegramAccount,
        http: SharedHttp,
        clock: SharedClock,
        ids: SharedIds,
    ) -> Self {
        Self {
            name,
            account,
            http,
            clock,
            ids,
        }
    }
}

#[async_trait]
impl Source for TelegramSource {
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
        let poller = UpdatePoller::open(self, sink, from.as_ref()).await;
        let ended = match poller {
            Ok(mut poller) => poller.poll().await,
            Err(end) => Err(end),
        };
        ended.unwrap_or_else(|end| end)
    }
}

/// A running source, with the updates that it has read and not yet confirmed.
struct UpdatePoller<'a> {
    source: &'a TelegramSource,
    sink: &'a SourceSink,
    client: BotClient,
    /// Number of the client's HTTP client.
    http_number: u64,
    bot: BotAccount,
    progress: UpdateProgress,
    /// Looks for posts of the time in which the account received by webhook.
    looks: LateLooks,
    merger: MessageMerger<i64>,
    /// Updates that were handled and are not yet confirmed, so that the server sends them again.
    handled: BTreeSet<i64>,
    /// Number of calls that failed one after the other.
    failures: u32,
    completed_at: Instant,
}

/// The end of a source, as the error that ends its loop.
type Ended<T> = Result<T, SourceEnd>;

impl<'a> UpdatePoller<'a> {
    /// Asks who the bot is and whether it may be polled.
    async fn open(source: &'a TelegramSource, sink: &'a SourceSink, from: Option<&SourceWatermark>) -> Ended<Self> {
        let newest = source.http.newest();
        let client = BotClient::new(newest.http, source.account.clone());
        let now = sink.now();

        let mut poller = Self {
            source,
            sink,
            client,
            http_number: newest.number,
            bot: BotAccount {
                name: source.name.clone(),
                bot_id: 0,
                username: String::new(),
            },
            progress: UpdateProgress::resume(0, "", None, now),
            looks: LateLooks::start(source.clock.monotonic()),
            merger: MessageMerger::new(MergeWaits::default(), MergeMemory::default()),
            handled: BTreeSet::new(),
            failures: 0,
            completed_at: source.clock.monotonic(),
        };

        let bot = loop {
            match poller.client.identify().await {
                Ok(bot) => break bot,
                Err(error) => poller.wait_after(error).await?,
            }
        };
        loop {
            let found = match poller.client.webhook().await {
                Ok(found) => found.url,
                Err(error) => {
                    poller.wait_after(error).await?;
                    continue;
                }
            };
            if found.is_empty() {
                break;
            }
            // Nexus has set it, when the account received by webhook. What waits for it is read then.
            if !is_own_webhook(&found, &source.name) {
                return Err(webhook_is_set());
            }
            match poller.client.delete_webhook().await {
                Ok(()) => tracing::info!(account = source.name, "the account's webhook is removed, it is polled"),
                Err(error) => poller.wait_after(error).await?,
            }
        }

        let vendor_now = poller.vendor_now();
        poller.progress = UpdateProgress::resume(bot.id, &source.account.token_hash(), from, vendor_now);
        // Posts of the time in which the account received by webhook come before the updates that wait now.
        poller.store_posted().await?;
        let waits = MergeWaits {
            album_ms: i64::try_from(source.account.album_wait_ms).unwrap_or(i64::MAX),
            alone_until: vendor_now,
            ..MergeWaits::of_texts(source.account.debounce_ms)
        };
        // The numbers of messages ascend within a chat alone.
        let memory = MergeMemory {
            until: None,
            decided: poller.progress.position.closed.clone(),
        };
        poller.merger = MessageMerger::new(waits, memory);
        poller.bot.bot_id = bot.id;
        poller.bot.username = bot.username;
        poller.failures = 0;
        // The first call for updates may take as long as the server waits.
        poller.report_polling();
        Ok(poller)
    }

    /// Stores the posts of the time in which the account received by webhook that are in the bucket by now.
    async fn store_posted(&mut self) -> Ended<()> {
        let posted = PostedUpdates::new(&self.source.account, &self.client, self.progress.clone());
        let posted = posted.into_reader(&self.source.name, self.sink);
        self.progress = Box::pin(posted.drain()).await?.progress;
        Ok(())
    }

    fn report_polling(&self) {
        self.sink.report(Ok(&format!("polling as @{}", self.bot.username)));
    }

    /// Returns the vendor's time, or ours if the vendor does not say.
    fn vendor_now(&self) -> UnixMillis {
        self.client.platform_time().unwrap_or_else(|| self.sink.now())
    }

    /// Reads updates until an operator must do something, or this replica does not hold the account any more.
    async fn poll(&mut self) -> Ended<SourceEnd> {
        loop {
            // A replica that was stopped for a while must not call again.
            if !self.sink.is_held() {
                return Err(SourceEnd::Fenced);
            }

            if self.looks.is_due(self.source.clock.monotonic()) {
                self.store_posted().await?;
            }

            // While updates wait for the rest of their album they are not confirmed, and the server sends them again.
            let floor = self.first_waiting();
            let offset = self.progress.position.offset.or(floor);
            let wait = if floor.is_some() { Duration::ZERO } else { LONG_POLL };
            let begun = self.source.clock.monotonic();
            match self.client.updates(offset, wait).await {
                Ok(updates) => {
                    // A server that does not wait is not asked all the time.
                    let took = self.source.clock.monotonic().saturating_duration_since(begun);
                    if updates.is_empty() && floor.is_none() && took < LEAST_POLL {
                        pause(LEAST_POLL.saturating_sub(took)).await;
                    }

                    // Updates that the call confirmed do not come again; the vendor may give their numbers to others.
                    self.handled
                        .retain(|number| offset.is_some_and(|offset| *number >= offset));
                    self.take_updates(&updates).await?;
                }
                Err(error) => {
                    self.store_due().await?;
                    self.wait_after(error).await?;
                }
            }
        }
    }

    /// Stores the events that wait no more while no updates come. They are confirmed after the next call that succeeds: it
    /// brings them again.
    async fn store_due(&mut self) -> Ended<()> {
        let ready = self.merger.take_ready(self.sink.now());
        if ready.is_empty() {
            return Ok(());
        }
        self.decide_merges(&ready).await?;
        Ok(self.store(ready).await?)
    }

    /// Stores the events of `updates`, and notes how far they may be confirmed.
    async fn take_updates(&mut self, updates: &[Value]) -> Ended<()> {
        let numbers: Vec<i64> = updates.iter().filter_map(update_number).collect();
        // They could not be confirmed, and would come again at once.
        if numbers.len() < updates.len() {
            return self
                .wait_after(BotCallError::Malformed("an update without `update_id`".to_owned()))
                .await;
        }

        let (now, vendor_now) = (self.sink.now(), self.vendor_now());
        self.completed_at = self.source.clock.monotonic();
        self.failures = 0;
        self.report_polling();

        if let Some(gap) = self.progress.find_gap(vendor_now) {
            self.progress.note_gap(gap.to);
            let position = self.progress.to_position(now);
            self.sink.gap(&gap, position).await?;
        }

        for (number, raw) in numbers.iter().zip(updates) {
            if let Err(reason) = self.take_update(*number, raw) {
                self.give_up_update(raw, &reason).await?;
                self.handled.insert(*number);
            }
        }

        let ready = self.merger.take_ready(now);
        let is_quiet = ready.is_empty() && numbers.is_empty();
        self.decide_merges(&ready).await?;

        // A message that waits for its album is not confirmed, and nothing behind it.
        let floor = self.first_waiting();
        let beyond = numbers.iter().max().map(|last| last.saturating_add(1));
        self.progress.position.offset = floor.or(beyond);
        if floor.is_none() {
            self.progress.position.closed.clear();
        }
        // In a busy account something waits at all times.
        if updates.len() < BATCH {
            self.progress.note_complete(self.merger.complete_until(vendor_now));
        }

        if !is_quiet || self.progress.is_note_due(now) {
            self.store(ready).await?;
        }

        // What waits must not hold up other chats for long.
        if let Some(wait) = self.merger.until_due(now) {
            pause(wait).await;
        }
        Ok(())
    }

    /// Returns the lowest number of the updates that wait; `None` if none waits. Nothing from it on may be confirmed.
    fn first_waiting(&self) -> Option<i64> {
        self.merger.keys().copied().min()
    }

    /// Hands the events of the update `number` to the merger. Returns the reason if it has none.
    fn take_update(&mut self, number: i64, raw: &Value) -> Result<(), RefuseUpdateError> {
        if self.handled.contains(&number) || self.merger.keys().any(|waiting| *waiting == number) {
            return Ok(());
        }

        let (now, groups) = (self.sink.now(), self.source.account.groups.as_ref());
        let is_named = |group: &str| groups.is_some_and(|groups| groups.contains_key(group));
        for mut event in update_events(&self.bot, raw, now)? {
            self.progress.follow_move(&mut event, is_named);
            let chat = event.peer.id.clone();
            // One that is stored already is confirmed with the others.
            self.merger.push(&chat, number, event, now);
        }
        Ok(())
    }

    /// Counts an update that makes no event because of `reason`. One that cannot be read becomes a dead letter.
    async fn give_up_update(&self, raw: &Value, reason: &RefuseUpdateError) -> Ended<()> {
        let (account, update) = (&self.source.name, update_number(raw));
        metrics::counter!("nexus_source_refused_total", "source" => TELEGRAM, "reason" => reason.name()).increment(1);
        match reason {
            RefuseUpdateError::Echo | RefuseUpdateError::NoConversation(_) => {
                tracing::debug!(account, update, %reason, "update is no event");
            }
            RefuseUpdateError::Malformed(_) | RefuseUpdateError::UnknownChat(_) | RefuseUpdateError::Id(_) => {
                tracing::error!(account, update, %reason, "update refused");
                // Without the texts of the bot's own messages, which may have codes.
                let payload = without_own_messages(raw, self.bot.bot_id);
                self.sink
                    .give_up_payload(&payload, reason.name(), &reason.to_string())
                    .await?;
            }
        }
        Ok(())
    }

    /// Stores which messages the albums and bursts among `ready` have, before their events are published.
    async fn decide_merges(&mut self, ready: &[ReadyEvent<i64>]) -> Ended<()> {
        let decided: Vec<_> = ready.iter().filter_map(|ready| ready.decision.clone()).collect();
        if decided.is_empty() {
            return Ok(());
        }

        let closed = &mut self.progress.position.closed;
        decided.into_iter().for_each(|decision| note_decision(closed, decision));
        // Only those in the window of one call can come again.
        let excess = closed.len().saturating_sub(2 * BATCH);
        closed.drain(..excess);

        let position = self.progress.to_position(self.sink.now());
        Ok(self.sink.put(Vec::new(), position).await?)
    }

    async fn store(&mut self, ready: Vec<ReadyEvent<i64>>) -> Result<(), PutEventsError> {
        self.handled
            .extend(ready.iter().flat_map(|ready| ready.keys.iter().copied()));
        let decided: Vec<_> = ready.iter().filter_map(|ready| ready.decision.clone()).collect();
        self.merger.note_stored(&decided);
        // Their events are stored when the position is.
        for closed in &mut self.progress.position.closed {
            closed.is_stored |= decided.iter().any(|one| one == closed);
        }

        let mut events: Vec<Event> = ready.into_iter().map(|ready| ready.event).collect();
        let policy = self.source.account.access();
        events.iter_mut().for_each(|event| apply_access(&policy, event));

        let presses: Vec<String> = events.iter().filter_map(press_id).collect();
        let position = self.progress.to_position(self.sink.now());
        self.sink.put(events, position).await?;

        // The event is durable; a client that is not told waits a little longer.
        let answered = tokio::time::timeout(ANSWER_PRESSES, async {
            for press in &presses {
                self.client.answer_press(press).await?;
            }
            Ok::<(), BotCallError>(())
        });
        match answered.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(account = self.source.name, %error, "failed to answer presses"),
            Err(_) => tracing::debug!(account = self.source.name, "presses were not answered in time"),
        }
        Ok(())
    }

    /// Waits as long as `error` asks for, and stores meanwhile what becomes due.
    async fn wait_after(&mut self, error: BotCallError) -> Ended<()> {
        self.failures = self.failures.saturating_add(1);
        let scheduled = CALL_RETRY
            .delay(self.failures, self.source.ids.draw_jitter())
            .unwrap_or(CONFLICT_WAIT);
        let told = error.to_string();

        let wait = match error {
            BotCallError::Unauthorized(_) => {
                return Err(SourceEnd::Stopped {
                    reason: told,
                    again: Some(TOKEN_AGAIN),
                });
            }
            BotCallError::Conflict(words) if words.contains("webhook") => return Err(webhook_is_set()),
            BotCallError::Conflict(_) => scheduled.max(CONFLICT_WAIT),
            // Never sooner than the vendor says.
            BotCallError::Limited(asked) => asked.min(MAX_ASKED),
            BotCallError::Refused { .. } | BotCallError::Unreachable(_) | BotCallError::Malformed(_) => scheduled,
        };

        let silent = self
            .source
            .clock
            .monotonic()
            .saturating_duration_since(self.completed_at);
        if silent > WATCHDOG {
            match self.source.http.newer_than(self.http_number) {
                Ok(newer) => {
                    self.client = BotClient::new(newer.http, self.source.account.clone());
                    self.http_number = newer.number;
                }
                Err(error) => tracing::warn!(account = self.source.name, %error, "failed to make new connections"),
            }
        }

        tracing::warn!(
            account = self.source.name,
            failures = self.failures,
            error = told,
            wait_ms = wait.as_millis(),
            "call of the Bot API failed; retrying"
        );
        metrics::counter!("nexus_source_failures_total", "source" => TELEGRAM).increment(1);
        self.sink
            .report(Err(&format!("failing for {} s: {told}", silent.as_secs())));

        if !self.sink.is_held() {
            return Err(SourceEnd::Fenced);
        }
        self.rest(wait).await
    }

    /// Waits for `wait`, and stores what becomes due: a limit may last for hours.
    async fn rest(&mut self, wait: Duration) -> Ended<()> {
        let mut left = wait;
        while !left.is_zero() {
            let due = self.merger.until_due(self.sink.now());
            let step = due.map_or(left, |due| due.min(left));
            pause(step).await;
            left = left.saturating_sub(step);
            self.store_due().await?;
        }
        Ok(())
    }
}

fn webhook_is_set() -> SourceEnd {
    SourceEnd::Stopped {
        reason: "a webhook is set for this bot, so it cannot be polled; remove it with deleteWebhook, or set \
                 `receive: none` for the account"
            .to_owned(),
        again: Some(WEBHOOK_AGAIN),
    }
}

fn update_number(raw: &Value) -> Option<i64> {
    raw.get("update_id").and_then(Value::as_i64)
}

/// Returns the id of the press that `event` is; `None` if it is none.
fn press_id(event: &Event) -> Option<String> {
    let press = event.metadata.get("press")?;
    press.get("id").and_then(Value::as_str).map(str::to_owned)
}
