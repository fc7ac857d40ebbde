//! Reads what a socket brings: dispatches become events, which are stored before they are confirmed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde_json::Value;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::{Event, EventDirection};
use shared::platform::discord::{ChannelPlace, DIRECT_CHANNEL, DISCORD, DiscordAccount};
use shared::platform::policy::AccessPolicy;
use tokio::sync::{mpsc, watch};

use super::account_context::{AccountContext, SourceResult};
use super::client::{ApiCallError, DiscordClient};
use super::drive::LinkItem;
use super::link::{Dispatch, GatewaySession};
use super::message::Interaction;
use super::normalize::{DispatchPayload, dispatch_channel, dispatch_events, refused_payload};
use super::places::KnownPlaces;
use super::progress::DiscordProgress;
use super::{DiscordBot, MessagePlace, RefuseDispatchError};
use crate::source::port::access::apply_access;
use crate::source::port::{SourceEnd, SourceSink};

/// Maximum number of dispatches that are stored together.
const BATCH: usize = 100;

/// Time within which the guilds of a session list their channels; then histories are read.
const LISTS_WITHIN: Duration = Duration::from_secs(5);

/// Number of deletions that are remembered, so that a repeated one is no second event.
const REMEMBERED: usize = 1_000;

/// What became of a call.
enum CallAnswer<T> {
    Found(T),
    /// The vendor refuses it for good.
    Refused,
    /// It is to be made again.
    Again,
}

/// A running source with what it knows.
#[derive(Debug)]
pub struct GatewayReader<'a> {
    pub(super) context: &'a AccountContext,
    pub(super) sink: &'a SourceSink,
    pub(super) client: DiscordClient,
    pub(super) bot: DiscordBot,
    pub(super) progress: DiscordProgress,
    pub(super) places: KnownPlaces,
    /// Guilds of the session that were not listed yet.
    unlisted: BTreeSet<String>,
    /// Time from which histories are read.
    pub(super) backfill_from: Option<Instant>,
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
    pub fn new(
        context: &'a AccountContext,
        sink: &'a SourceSink,
        client: DiscordClient,
        bot: DiscordBot,
        progress: DiscordProgress,
    ) -> Self {
        Self {
            context,
            sink,
            client,
            bot,
            progress,
            places: KnownPlaces::default(),
            unlisted: BTreeSet::new(),
            backfill_from: Some(SystemClock.monotonic()),
            last_read: None,
            deleted: VecDeque::new(),
            is_live: false,
            lacks_content: false,
        }
    }

    /// Reads `items` until there are no more, and histories meanwhile. `stored` is told up to where events are stored.
    ///
    /// # Errors
    /// Returns the reason why the source ends.
    pub async fn read(&mut self, mut items: mpsc::Receiver<LinkItem>, stored: watch::Sender<u64>) -> SourceResult<()> {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wait = self.until_backfill();
            tokio::select! {
                count = items.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                    if let Some(seq) = self.take_items(std::mem::take(&mut batch), &items).await? {
                        stored.send_replace(seq);
                    }
                }
                () = pause(wait.unwrap_or_default()), if wait.is_some() => self.read_history().await?,
            }
        }
    }

    /// Stores the events of `items`, behind which `later` come. Returns the number of the last dispatch among them.
    async fn take_items(
        &mut self,
        items: Vec<LinkItem>,
        later: &mpsc::Receiver<LinkItem>,
    ) -> SourceResult<Option<u64>> {
        let mut events = Vec::new();
        let (mut last, mut is_new) = (None, false);
        for item in items {
            match item {
                LinkItem::Alive => self.report(),
                LinkItem::Dispatch(dispatch) => {
                    is_new |= dispatch.kind == "READY";
                    last = Some(dispatch.seq);
                    self.take_dispatch(&dispatch, &mut events).await?;
                    if let Some(session) = &mut self.progress.position.session {
                        // Numbers ascend; what comes again is below.
                        session.seq = session.seq.max(dispatch.seq);
                    }
                }
            }
        }

        let now = self.sink.now();
        // What has arrived by now is among them.
        if later.is_empty() {
            self.progress.note_complete(now);
        }
        if !events.is_empty() || is_new || self.progress.is_note_due(now) {
            let position = self.progress.to_position(now);
            self.sink.put(events, position).await?;
        }
        Ok(last)
    }

    /// Takes in `dispatch`, whose events are added to `events`.
    async fn take_dispatch(&mut self, dispatch: &Dispatch, events: &mut Vec<Event>) -> SourceResult<()> {
        let Dispatch { kind, data, .. } = dispatch;
        match kind.as_str() {
            "READY" => return self.begin_session(dispatch, std::mem::take(events)).await,
            "RESUMED" => {
                self.is_live = true;
                self.report();
            }
            "GUILD_DELETE" if data.get("unavailable").and_then(Value::as_bool) != Some(true) => {
                if let Some(guild) = data.get("id").and_then(Value::as_str) {
                    self.progress.leave_guild(guild);
                }
            }
            _ => {}
        }

        let listed = self.places.read_dispatch(kind, data, &self.bot.user_id);
        if kind == "GUILD_CREATE" {
            let guild = data.get("id").and_then(Value::as_str).unwrap_or_default();
            self.progress.enter_guild(guild, self.sink.now());
            for channel in listed {
                self.progress.note_listed(guild, &channel.id, channel.newest);
            }
            self.unlisted.remove(guild);
            if self.unlisted.is_empty() {
                self.backfill_from = self.backfill_from.map(|from| from.min(SystemClock.monotonic()));
            }
        }

        let Some(channel) = dispatch_channel(kind, data) else {
            return Ok(());
        };
        let around = self.find_surroundings(channel, data, true).await?;
        let token = format!("{}/{}", dispatch.session, dispatch.seq);
        let payload = DispatchPayload {
            kind,
            data,
            token: &token,
        };
        events.extend(self.normalize(&around, payload).await);

        let id = data.get("id").and_then(Value::as_str).and_then(|id| id.parse().ok());
        if let (Some(id), "MESSAGE_CREATE") = (id, kind.as_str()) {
            self.progress.note_message(channel, id);
        }
        Ok(())
    }

    /// Takes in that a session was begun. `before` are events of dispatches before it.
    async fn begin_session(&mut self, dispatch: &Dispatch, before: Vec<Event>) -> SourceResult<()> {
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

        let now = self.sink.now();
        let start = self.progress.start_session(session, &guilds, now);
        self.unlisted = guilds.into_iter().collect();
        let wait = if self.unlisted.is_empty() {
            Duration::ZERO
        } else {
            LISTS_WITHIN
        };
        self.backfill_from = Some(SystemClock.monotonic() + wait);
        self.is_live = true;

        if !before.is_empty() {
            self.sink.put(before, start.before).await?;
        }
        match start.gap {
            Some(gap) => self.sink.gap(&gap, start.after).await?,
            None => self.sink.put(Vec::new(), start.after).await?,
        }
        self.report();
        Ok(())
    }

    /// Returns the events of `payload`, as who may write and what was told before leave them.
    pub(super) async fn normalize(&mut self, around: &MessagePlace, payload: DispatchPayload<'_>) -> Vec<Event> {
        let mut events = match dispatch_events(&self.bot, around, payload, self.sink.now()) {
            Ok(events) => events,
            Err(reason) => {
                self.give_up_dispatch(payload, &reason).await;
                Vec::new()
            }
        };
        events.retain(|event| self.is_first_deletion(event));
        for event in &mut events {
            self.lacks_content |= event.metadata.contains_key("intent_missing");
            apply_policy(&self.context.account, event);
        }
        events
    }

    /// Counts a dispatch that makes no event because of `reason`. One that cannot be read becomes a dead letter.
    async fn give_up_dispatch(&self, payload: DispatchPayload<'_>, reason: &RefuseDispatchError) {
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
                self.sink
                    .give_up_payload(&kept, reason.name(), &reason.to_string())
                    .await;
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

    /// Returns what surrounds `data`, which happened in `channel`: known, or asked for. `is_live` says that it came from
    /// the gateway, which names the guild.
    pub(super) async fn find_surroundings(
        &mut self,
        channel: &str,
        data: &Value,
        is_live: bool,
    ) -> SourceResult<MessagePlace> {
        let place = self.find_place(channel, data, is_live).await?;
        let mentions_roles = data.get("mention_roles").and_then(Value::as_array);
        let mentions_roles = mentions_roles.is_some_and(|roles| !roles.is_empty());
        let own_roles = match place.guild_id.as_deref().filter(|_| mentions_roles) {
            Some(guild) => self.find_roles(guild).await?,
            None => BTreeSet::new(),
        };
        Ok(MessagePlace { place, own_roles })
    }

    async fn find_place(&mut self, channel: &str, data: &Value, is_live: bool) -> SourceResult<ChannelPlace> {
        if let Some(known) = self.places.channel(channel) {
            return Ok(known.clone());
        }

        let guild = data.get("guild_id").and_then(Value::as_str).map(str::to_owned);
        let told: Option<Interaction> = serde_json::from_value(data.clone()).ok();
        let told = told.and_then(|interaction| interaction.channel);
        let place = match (told, &guild) {
            (Some(told), _) if told.kind == DIRECT_CHANNEL || told.guild_id.is_some() => told,
            (_, None) if is_live => ChannelPlace {
                kind: DIRECT_CHANNEL,
                ..ChannelPlace::default()
            },
            (_, _) => {
                let place = self.ask_place(channel).await?;
                place.unwrap_or(ChannelPlace {
                    guild_id: guild,
                    ..ChannelPlace::default()
                })
            }
        };
        self.places.note_channel(channel, place.clone());
        Ok(place)
    }

    async fn find_roles(&mut self, guild: &str) -> SourceResult<BTreeSet<String>> {
        if let Some(known) = self.places.roles(guild) {
            return Ok(known.clone());
        }
        let mut roles = BTreeSet::new();
        for failures in 1.. {
            self.check_held()?;
            let answer = self.client.own_roles(guild, &self.bot.user_id).await;
            match self.settle_call(answer, failures).await? {
                CallAnswer::Found(found) => {
                    roles = found.into_iter().collect();
                    break;
                }
                CallAnswer::Refused => break,
                CallAnswer::Again => {}
            }
        }
        self.places.note_roles(guild, roles.clone());
        Ok(roles)
    }

    /// Returns what became of the call that ended with `answer`, number `failures` of those that failed in succession.
    /// One that may be made again is, after the wait in which this returns.
    async fn settle_call<T: Send>(
        &self,
        answer: Result<T, ApiCallError>,
        failures: u32,
    ) -> SourceResult<CallAnswer<T>> {
        let error = match answer {
            Ok(found) => return Ok(CallAnswer::Found(found)),
            Err(error) if error.is_final() => return Ok(CallAnswer::Refused),
            Err(error) => error,
        };

        let wait = self.context.wait_after(&error, failures)?;
        tracing::warn!(account = self.context.name, %error, "call of Discord's API failed; retrying");
        pause(wait).await;
        Ok(CallAnswer::Again)
    }

    /// Returns that the account may be used for a call.
    pub(super) fn check_held(&self) -> SourceResult<()> {
        if self.sink.is_held() {
            Ok(())
        } else {
            Err(SourceEnd::Fenced)
        }
    }

    /// Asks what `channel` is; `None` = the vendor does not say.
    async fn ask_place(&self, channel: &str) -> SourceResult<Option<ChannelPlace>> {
        for failures in 1.. {
            self.check_held()?;
            let answer = self.client.channel(channel).await;
            match self.settle_call(answer, failures).await? {
                CallAnswer::Found(place) => return Ok(Some(place)),
                CallAnswer::Refused => break,
                CallAnswer::Again => {}
            }
        }
        Ok(None)
    }

    /// Reports that the account is read.
    pub(super) fn report(&self) {
        let pending = self.progress.position.pending.len();
        let name = &self.bot.username;
        if self.lacks_content {
            let words = format!(
                "reading as {name}, but messages come without their content; switch on MESSAGE CONTENT INTENT on the \
                 bot's page of the developer portal"
            );
            self.sink.report(Err(&words));
        } else if pending == 0 {
            self.sink.report(Ok(&format!("reading as {name}")));
        } else {
            self.sink
                .report(Ok(&format!("reading as {name}, and the history of {pending} channels")));
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
