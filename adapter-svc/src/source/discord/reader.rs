//! Reads what a socket brings: dispatches become events, which are stored before they are confirmed.
//!
//! A dispatch of which it is not known where it happened waits for a call of the API ([`super::lookups`]), with the later
//! ones of its channel; those of other channels go on, and so does the reading of histories.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use shared::clock::pause;
use shared::model::event::{Event, EventDirection};
use shared::model::time::{UnixMillis, millis_of};
use shared::platform::discord::snowflake::first_id_at;
use shared::platform::discord::{DISCORD, DiscordAccount};
use shared::platform::policy::AccessPolicy;
use tokio::sync::{mpsc, watch};

use super::account_context::{AccountContext, SourceResult};
use super::call_waits::CallWaits;
use super::client::DiscordClient;
use super::deferred::DeferredDispatches;
use super::drive::{HeldDispatch, LinkItem};
use super::finished_call::FinishedCall;
use super::link::{Dispatch, GatewaySession};
use super::normalize::{DispatchPayload, dispatch_channel, dispatch_events, refused_payload};
use super::places::KnownPlaces;
use super::progress::DiscordProgress;
use super::taken::{TakenBatch, WaitingDispatch};
use super::{DiscordBot, MessagePlace, RefuseDispatchError};
use crate::source::merge::{MergeWaits, MessageMerger};
use crate::source::port::SourceSink;
use crate::source::port::access::apply_access;

/// Maximum number of dispatches that are stored together.
const BATCH: usize = 100;

/// Time within which the guilds of a session list their channels; then histories are read.
const LISTS_WITHIN: Duration = Duration::from_secs(5);

/// Number of deletions that are remembered, so that a repeated one is no second event.
const REMEMBERED: usize = 1_000;

/// A running source with what it knows.
#[derive(Debug)]
pub(super) struct GatewayReader<'a> {
    pub(super) context: &'a AccountContext,
    pub(super) sink: &'a SourceSink,
    pub(super) client: DiscordClient,
    pub(super) bot: DiscordBot,
    pub(super) progress: DiscordProgress,
    pub(super) places: KnownPlaces,
    pub(super) waits: CallWaits,
    /// Dispatches that wait for a call.
    pub(super) deferred: DeferredDispatches,
    /// Events that wait for those that may belong to them.
    pub(super) texts: MessageMerger<WaitingDispatch>,
    /// Number of the last dispatch of the session that was taken in, whether or not it waits.
    pub(super) taken_seq: u64,
    /// By channel: the time until which its dispatches but messages are missing, which is told.
    pub(super) told_missing: BTreeMap<String, Instant>,
    /// Guilds whose roles a page of a history needs.
    pub(super) wanted_roles: BTreeSet<String>,
    /// Calls under way: at most one for a place or roles, and one for a history.
    pub(super) calls: FuturesUnordered<BoxFuture<'static, FinishedCall>>,
    pub(super) is_looking_up: bool,
    pub(super) is_reading_history: bool,
    /// Guilds of the session that were not listed yet.
    unlisted: BTreeSet<String>,
    /// Time from which histories are read.
    pub(super) backfill_from: Instant,
    /// Channel of whose history a page was read last.
    pub(super) last_read: Option<String>,
    deleted: VecDeque<String>,
    /// Whether the socket that is open, or was, began or resumed a session.
    pub(super) is_live: bool,
    /// Whether messages come without their content.
    lacks_content: bool,
}

impl<'a> GatewayReader<'a> {
    /// Returns the reader of `bot`, which has read up to `progress`.
    #[must_use]
    pub(super) fn new(
        context: &'a AccountContext,
        sink: &'a SourceSink,
        client: DiscordClient,
        bot: DiscordBot,
        progress: DiscordProgress,
    ) -> Self {
        // Ids ascend with time in all channels.
        let start = i64::try_from(first_id_at(sink.now())).unwrap_or(i64::MAX);
        let memory = progress.position.texts.clone().with_ascending_numbers(start);
        let waits = MergeWaits::of_texts(context.account.debounce_ms);
        Self {
            context,
            sink,
            client,
            bot,
            progress,
            places: KnownPlaces::default(),
            waits: CallWaits::default(),
            deferred: DeferredDispatches::default(),
            texts: MessageMerger::new(waits, memory),
            taken_seq: 0,
            told_missing: BTreeMap::new(),
            wanted_roles: BTreeSet::new(),
            calls: FuturesUnordered::new(),
            is_looking_up: false,
            is_reading_history: false,
            unlisted: BTreeSet::new(),
            backfill_from: context.timer.monotonic(),
            last_read: None,
            deleted: VecDeque::new(),
            is_live: false,
            lacks_content: false,
        }
    }

    /// Returns the vendor's time, by which its ids are made; this host's if the vendor has told none yet.
    pub(super) fn now(&self) -> UnixMillis {
        self.client.vendor_time().unwrap_or_else(|| self.sink.now())
    }

    /// Returns the reading of the clock of waits.
    pub(super) fn instant(&self) -> Instant {
        self.context.timer.monotonic()
    }

    /// Reads `items` until there are no more, and histories meanwhile. `stored` is told up to where events are stored.
    ///
    /// # Errors
    /// Returns the reason why the source ends.
    pub(super) async fn read(
        &mut self,
        mut items: mpsc::Receiver<LinkItem>,
        stored: watch::Sender<u64>,
    ) -> SourceResult<()> {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let now = self.instant();
            self.start_calls(now);
            let wait = self.until_next_call(now);
            let due = self.texts.until_due(self.sink.now());

            tokio::select! {
                count = items.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.take_items(std::mem::take(&mut batch), &items).await?;
                }
                Some(finished) = self.calls.next(), if !self.calls.is_empty() => self.take_call(finished).await?,
                () = pause(due.unwrap_or_default()), if due.is_some() => self.store_ready_texts().await?,
                () = pause(wait.unwrap_or_default()), if wait.is_some() => continue,
            }

            if let Some(session) = &self.progress.position.session {
                stored.send_replace(session.seq);
            }
        }
    }

    /// Stores the events of `items`, behind which `later` come.
    async fn take_items(&mut self, items: Vec<LinkItem>, later: &mpsc::Receiver<LinkItem>) -> SourceResult<()> {
        let mut batch = TakenBatch::default();
        let mut is_new = false;
        for item in items {
            match item {
                LinkItem::Alive => self.report(),
                LinkItem::Dispatch(taken) if taken.dispatch.kind == "READY" => {
                    is_new = true;
                    self.begin_session(&taken.dispatch, std::mem::take(&mut batch)).await?;
                }
                LinkItem::Dispatch(taken) => self.take_dispatch(taken, &mut batch),
            }
        }
        self.release_texts(&mut batch);
        self.decide_texts(&mut batch).await?;

        let now = self.now();
        // What has arrived by now is among them.
        if later.is_empty() && self.deferred.is_empty() {
            self.progress.note_complete(self.texts.complete_until(now));
        }
        if !batch.is_empty() || is_new || self.progress.is_note_due(now) {
            self.store_batch(batch).await?;
        } else {
            self.note_stored();
        }
        Ok(())
    }

    /// Takes in `taken`, unless it waits for a call. What it leads to is added to `batch`.
    fn take_dispatch(&mut self, taken: HeldDispatch, batch: &mut TakenBatch) {
        let Dispatch { kind, data, seq, .. } = &taken.dispatch;
        // Numbers ascend; what comes again is below.
        self.taken_seq = self.taken_seq.max(*seq);
        if kind == "RESUMED" {
            self.is_live = true;
            self.report();
        }
        self.read_surroundings(kind, data);
        batch.gaps.extend(self.progress.take_left_out(self.now()));

        let Some(channel) = dispatch_channel(kind, data).map(str::to_owned) else {
            batch.held.push(taken);
            return;
        };
        if self.deferred.holds(&channel) || self.missing_lookup(&channel, kind, data, true).is_some() {
            self.defer(&channel, taken, batch);
        } else {
            self.add_events(&channel, taken, batch);
        }
    }

    /// Takes in what a dispatch of `kind` says about guilds and channels.
    fn read_surroundings(&mut self, kind: &str, data: &Value) {
        let id = data.get("id").and_then(Value::as_str);
        match kind {
            "GUILD_DELETE" if data.get("unavailable").and_then(Value::as_bool) != Some(true) => {
                if let Some(guild) = id {
                    self.progress.leave_guild(guild);
                }
            }
            "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "CHANNEL_DELETE" | "THREAD_CREATE" | "THREAD_UPDATE" => {
                self.progress.forget_hidden(id);
            }
            "GUILD_UPDATE" | "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE" | "GUILD_ROLE_DELETE" => {
                self.progress.forget_hidden(None);
            }
            "GUILD_MEMBER_UPDATE" => {
                let user = data.pointer("/user/id").and_then(Value::as_str);
                if user == Some(&self.bot.user_id) {
                    self.progress.forget_hidden(None);
                }
            }
            _ => {}
        }

        let listed = self.places.read_dispatch(kind, data, &self.bot.user_id);
        if kind == "GUILD_CREATE" {
            let guild = id.unwrap_or_default();
            self.progress.enter_guild(guild, self.now());
            for channel in listed {
                self.progress
                    .note_listed(guild, &channel.id, channel.newest, channel.rights);
            }
            self.unlisted.remove(guild);
            if self.unlisted.is_empty() {
                self.backfill_from = self.backfill_from.min(self.instant());
            }
        }
    }

    /// Takes in that a session was begun. `before` is of dispatches before it.
    async fn begin_session(&mut self, dispatch: &Dispatch, mut before: TakenBatch) -> SourceResult<()> {
        let data = &dispatch.data;
        let resume_url = data.get("resume_gateway_url").and_then(Value::as_str);
        let session = GatewaySession {
            id: dispatch.session.clone(),
            resume_url: resume_url.unwrap_or_default().to_owned(),
            seq: dispatch.seq,
        };
        let guilds = data
            .get("guilds")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let ids = guilds.iter().filter_map(|guild| guild.get("id")?.as_str());
        let guilds: Vec<String> = ids.map(str::to_owned).collect();

        // What waits does not come again.
        self.texts.close_all();
        self.release_texts(&mut before);
        if !before.is_empty() {
            self.store_batch(before).await?;
        }
        // The session that is over does not bring them again.
        self.leave_deferred_to_histories();
        let now = self.now();
        let start = self.progress.start_session(session, &guilds, now);
        self.taken_seq = dispatch.seq;
        self.unlisted = guilds.into_iter().collect();
        let wait = if self.unlisted.is_empty() {
            Duration::ZERO
        } else {
            LISTS_WITHIN
        };
        self.backfill_from = self.instant() + wait;
        self.is_live = true;

        let gaps: Vec<_> = start.gap.into_iter().chain(self.progress.take_left_out(now)).collect();
        self.put_batch(Vec::new(), &gaps, start.after).await?;
        self.report();
        Ok(())
    }

    /// Returns the events of `payload`, without deletions that were told before, and before the account's settings are applied
    /// ([`apply_policy`]). What cannot be read is added to `batch` as a dead letter.
    pub(super) fn read_events(
        &mut self,
        around: &MessagePlace,
        payload: DispatchPayload<'_>,
        batch: &mut TakenBatch,
    ) -> Vec<Event> {
        let mut events = match dispatch_events(&self.bot, around, payload, self.sink.now()) {
            Ok(events) => events,
            Err(reason) => {
                self.give_up_dispatch(payload, &reason, batch);
                Vec::new()
            }
        };
        events.retain(|event| self.is_first_deletion(event));
        self.lacks_content |= events.iter().any(|event| event.metadata.contains_key("intent_missing"));
        events
    }

    /// Counts a dispatch that makes no event because of `reason`. One that cannot be read becomes a dead letter.
    fn give_up_dispatch(&self, payload: DispatchPayload<'_>, reason: &RefuseDispatchError, batch: &mut TakenBatch) {
        let (account, dispatch) = (&self.context.name, payload.token);
        metrics::counter!("nexus_source_refused_total", "source" => DISCORD, "reason" => reason.name()).increment(1);
        match reason {
            RefuseDispatchError::Echo | RefuseDispatchError::NoConversation(_) | RefuseDispatchError::NoEdit => {
                tracing::debug!(account, dispatch, %reason, "dispatch is no event");
            }
            RefuseDispatchError::Malformed(_) | RefuseDispatchError::Id(_) => {
                tracing::error!(account, dispatch, %reason, "dispatch refused");
                // Without the texts of the bot's own messages, which may have codes.
                let kept = refused_payload(payload.kind, payload.data, &self.bot.user_id);
                batch.add_letter(kept, reason.name(), reason.to_string());
            }
        }
    }

    /// Returns whether `event` is no deletion that was told already: the vendor does not say when it was.
    fn is_first_deletion(&mut self, event: &Event) -> bool {
        if event.direction != EventDirection::Deleted {
            return true;
        }
        let id = event.id.as_str();
        if self.deleted.iter().any(|known| known == id) {
            return false;
        }
        if self.deleted.len() >= REMEMBERED {
            self.deleted.pop_front();
        }
        self.deleted.push_back(id.to_owned());
        true
    }

    /// Reports that the account is read, and what waits.
    pub(super) fn report(&self) {
        let name = &self.bot.username;
        if self.lacks_content {
            let words = format!(
                "reading as {name}, but messages come without their content; switch on MESSAGE CONTENT INTENT on the \
                 bot's page of the developer portal"
            );
            self.sink.report(Err(&words));
            return;
        }

        let pending = match self.progress.position.pending.len() {
            0 => String::new(),
            pending => format!(", and the history of {pending} channels"),
        };
        match self.waits.longest(self.instant()) {
            None => self.sink.report(Ok(&format!("reading as {name}{pending}"))),
            Some((left, what)) => {
                let until = self.sink.now().plus(millis_of(left)).to_rfc3339();
                let words = format!("reading as {name}{pending}; waiting until {until} for {what}");
                self.sink.report(Err(&words));
            }
        }
    }
}

/// Tags `event`, or makes it an observed one, as the settings of `account` say.
pub(super) fn apply_policy(account: &DiscordAccount, event: &mut Event) {
    let peer = &event.peer;
    let policy = account.channel_policy(&peer.id, peer.guild_id.as_deref());
    let groups: BTreeMap<_, _> = policy
        .map(|policy| (peer.id.clone(), policy.clone()))
        .into_iter()
        .collect();
    let policy = AccessPolicy {
        direct: account.direct,
        allow: &account.allow,
        groups: Some(&groups),
    };
    apply_access(&policy, event);
}
