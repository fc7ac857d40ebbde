//! Channel `discord`: each part is a message that an account's bot creates.
//!
//! The text is Discord's Markdown. A platform's id of a part is `{channel}/{message}`, as in the event of a received
//! message. Discord recognises a repeated call by its nonce, for some minutes; after that the channel's messages are
//! searched for it, and `on_doubt` of the account decides if they do not tell. An address that goes on after refusals is barred (10,000 in ten minutes), so that an empty bucket of calls is
//! waited for, and a refusal is not repeated. Source: <https://discord.com/developers/docs/resources/message#create-message>,
//! <https://discord.com/developers/docs/topics/rate-limits>.

mod answer;
mod change;
mod file;
mod message;
mod search;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use reqwest::header::AUTHORIZATION;
use reqwest::{Method, RequestBuilder};
use shared::clock::SharedClock;
use shared::model::dispatch::DeliveryContext;
use shared::model::time::UnixMillis;
use shared::platform::discord::{ChannelPlace, DiscordAccount, USER_AGENT, is_snowflake};
use shared::platform::policy::DoubtPolicy;

use super::http::CallTimeouts;
use super::raw_answer::{ANSWER_BYTES, PAGE_BYTES, call_for_answer, open_client, upload_time};
use super::{Acknowledgement, Channel, ChannelTraits, MessageReaction, SendRequest, TypingPlace};
use crate::account_gate::{CallRate, ChatPace, SendPace};
use crate::attempt::{CallOutcome, LimitScope, PartSearch, Refusal, Repetition};
use crate::chunk::{ChunkLimit, LengthUnit};
use crate::markdown::discord::MESSAGE;
use crate::plan::{PartLayout, TextFormat};
use answer::{ApiAnswer, error_outcome, read_answer, read_change};
use change::{MessageId, edit_body};
use file::file_form;
use message::{CreateMessage, PlaceNeeds, part_nonce, target_channel};
use search::{PAGE, PageResult, SearchTerms, bot_user};

/// Maximum number of lines of a part: clients fold longer messages.
const MAX_LINES: usize = 17;

/// Maximum number of channels that are remembered.
const MAX_CHANNELS: usize = 10_000;

/// Maximum number of pages of a channel that are searched for a part.
const MAX_PAGES: usize = 20;

/// Maximum size of a file: what Discord takes from a bot in a server without boosts.
const MAX_UPLOAD_BYTES: u64 = 10 * 1024 * 1024;

/// Time for which Discord shows that a bot writes.
const TYPING_LASTS: Duration = Duration::from_secs(10);

/// Time for which Discord recognises a nonce. The vendor says "the past few minutes".
const NONCE_LASTS: Duration = Duration::from_mins(2);

/// Returns whether `emoji` may be a reaction on Discord.
pub(crate) fn is_reaction(emoji: &str) -> bool {
    change::is_reaction(emoji)
}

/// The rates at which a bot may send.
#[derive(Debug, Clone, Copy)]
pub struct DiscordPaces {
    /// Rate of all messages of an account.
    pub account: CallRate,
    /// Rate of the messages to a channel.
    pub chat: CallRate,
}

impl DiscordPaces {
    /// Discord's own figures: 50 calls a second in all, of which other programs may need some, and five messages in five
    /// seconds to a channel.
    pub const OFFICIAL: Self = Self {
        account: CallRate {
            burst: 5,
            interval: Duration::from_millis(25),
        },
        chat: CallRate {
            burst: 4,
            interval: Duration::from_millis(1_050),
        },
    };
}

/// What is known of the channels of all accounts, by account and channel.
#[derive(Debug, Default)]
struct KnownChannels {
    places: HashMap<(String, String), ChannelPlace>,
    /// Times until which the buckets of calls are empty.
    empty: HashMap<(String, String), Instant>,
}

/// Channel `discord`; see the module.
#[derive(Debug)]
pub struct DiscordChannel {
    client: reqwest::Client,
    accounts: BTreeMap<String, DiscordAccount>,
    paces: DiscordPaces,
    /// Maximum time until the whole answer has arrived.
    whole: Duration,
    known: Mutex<KnownChannels>,
    clock: SharedClock,
}

impl DiscordChannel {
    /// Creates the channel with `accounts` by name, which call at `paces`. `clock` measures how long buckets are empty.
    ///
    /// # Errors
    /// Returns the HTTP client's error if it cannot be set up, for example without TLS.
    pub fn new(
        accounts: BTreeMap<String, DiscordAccount>,
        timeouts: CallTimeouts,
        paces: DiscordPaces,
        clock: SharedClock,
    ) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: open_client(timeouts.connect, USER_AGENT)?,
            accounts,
            paces,
            whole: timeouts.whole,
            known: Mutex::default(),
            clock,
        })
    }

    fn known(&self) -> MutexGuard<'_, KnownChannels> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the call `request` for `account`; returns its answer, or the outcome of a call without one.
    async fn call(&self, account: &DiscordAccount, request: RequestBuilder) -> Result<ApiAnswer, CallOutcome> {
        self.call_within(account, request, self.whole, ANSWER_BYTES).await
    }

    /// Makes the call `request` for `account` within `whole`, of whose answer at most `bound` bytes are read.
    async fn call_within(
        &self,
        account: &DiscordAccount,
        request: RequestBuilder,
        whole: Duration,
        bound: usize,
    ) -> Result<ApiAnswer, CallOutcome> {
        let request = request.header(AUTHORIZATION, account.authorization());
        call_for_answer(request, whole, bound).await.map(ApiAnswer::from)
    }

    /// Makes the change of the message `id` that `call`, a method, a path and a body, makes of it.
    async fn change<'a>(
        &self,
        shipment: &SendRequest<'_>,
        id: &'a str,
        call: impl Fn(MessageId<'a>) -> (Method, String, Option<serde_json::Value>) + Send,
    ) -> CallOutcome {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return shipment.unknown_account();
        };
        let Some(message) = MessageId::parse(id) else {
            return shipment.unknown_message(id);
        };
        let (method, path, body) = call(message);
        let gone_is_made = method == Method::DELETE;
        let request = self.client.request(method, account.base_url.join(&path));
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };

        match self.call(account, request).await {
            Ok(answer) => read_change(&answer, id, gone_is_made, shipment.now),
            Err(outcome) => outcome,
        }
    }

    /// Returns what `channel` is, asked once; `None` if it cannot be learned now.
    ///
    /// # Errors
    /// Returns the outcome of the part if it cannot be sent either: a refused token, a limit.
    async fn find_place(
        &self,
        account: &DiscordAccount,
        key: &(String, String),
        now: UnixMillis,
    ) -> Result<Option<ChannelPlace>, CallOutcome> {
        if let Some(place) = self.known().places.get(key) {
            return Ok(Some(place.clone()));
        }

        let (_, channel) = key;
        let url = account.base_url.join(&format!("channels/{channel}"));
        let Ok(answer) = self.call(account, self.client.get(url)).await else {
            return Ok(None);
        };
        let Ok(place) = serde_json::from_slice::<ChannelPlace>(&answer.body) else {
            let outcome = error_outcome(&answer, now);
            let ends = matches!(outcome, Some(CallOutcome::Reauth { .. } | CallOutcome::Limited { .. }));
            return match outcome {
                Some(outcome) if ends => Err(outcome),
                Some(_) | None => Ok(None),
            };
        };

        let mut known = self.known();
        if known.places.len() >= MAX_CHANNELS {
            known.places.clear();
        }
        known.places.insert(key.clone(), place.clone());
        Ok(Some(place))
    }

    /// Returns the time for which the channel of `key` takes no call, as its last answer said.
    fn empty_for(&self, key: &(String, String)) -> Option<Duration> {
        let mut known = self.known();
        let until = *known.empty.get(key)?;
        let left = until.saturating_duration_since(self.clock.monotonic());
        if left.is_zero() {
            known.empty.remove(key);
            return None;
        }
        Some(left)
    }

    /// Notes what `answer`, which has just come, says of the bucket of `key`. A call may take long, so that the time at which it
    /// began says nothing.
    fn note_bucket(&self, key: &(String, String), answer: &ApiAnswer) {
        let Some(lasts) = answer.headers.reset_after() else {
            return;
        };
        let until = self.clock.monotonic() + lasts;
        let mut known = self.known();
        if known.empty.len() >= MAX_CHANNELS {
            known.empty.clear();
        }
        known.empty.insert(key.clone(), until);
    }
}

#[async_trait]
impl Channel for DiscordChannel {
    fn traits(&self, account: &str) -> ChannelTraits {
        let account = self.accounts.get(account);
        let limit = account.and_then(|account| account.text_limit).map(|max| ChunkLimit {
            max,
            unit: LengthUnit::Characters,
        });

        ChannelTraits {
            layout: PartLayout {
                format: TextFormat::Discord,
                limit: Some(limit.unwrap_or(MESSAGE)),
                max_lines: Some(MAX_LINES),
            },
            waits_for_remote: true,
            repetition: Repetition::RecognisedFor {
                lasts: NONCE_LASTS,
                then: account.map_or(DoubtPolicy::AtLeastOnce, |account| account.on_doubt),
            },
            finds_parts: true,
            typing_lasts: Some(TYPING_LASTS),
            previews: account.is_some_and(|account| account.previews),
            max_file_bytes: Some(MAX_UPLOAD_BYTES),
        }
    }

    /// A thread is a channel of its own in the path of a call, which is what Discord counts by: the threads of a channel do
    /// not wait for each other. Source: <https://docs.discord.com/developers/topics/rate-limits>, "top-level resources".
    fn pace<'a>(&self, target: &'a DeliveryContext) -> Option<ChatPace<'a>> {
        let channel = target.thread_id.as_deref().or(target.peer_id.as_deref());
        Some(ChatPace {
            chat: channel.unwrap_or_default(),
            pace: SendPace {
                account: self.paces.account,
                chat: self.paces.chat,
            },
        })
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
        let name = shipment.account();
        let Some(account) = self.accounts.get(name) else {
            return shipment.unknown_account();
        };
        let channel = match target_channel(shipment.reply) {
            Ok(channel) => channel,
            Err(error) => {
                return CallOutcome::Refused {
                    refusal: Refusal::Permanent,
                    reason: error.to_string(),
                };
            }
        };

        // The bucket is empty: the call would be refused, and count against the address.
        let key = (name.to_owned(), channel.to_owned());
        if let Some(after) = self.empty_for(&key) {
            return CallOutcome::Limited {
                after,
                scope: LimitScope::Destination,
                reason: "the channel's bucket of calls is empty".to_owned(),
            };
        }

        let needs = PlaceNeeds::of_part(shipment.reply, shipment.part, shipment.parts, channel);
        let place = if needs.place_matters() {
            match self.find_place(account, &key, shipment.now).await {
                Ok(place) => place,
                Err(outcome) => return outcome,
            }
        } else {
            None
        };
        if !shipment.lease.is_live() {
            return CallOutcome::Withheld;
        }

        let message = CreateMessage::from_part(account, shipment.reply, shipment.part, needs, place.as_ref());
        let url = account.base_url.join(&format!("channels/{channel}/messages"));
        let (request, whole) = match shipment.part.file.as_ref().zip(shipment.file) {
            Some((file, bytes)) => {
                let form = file_form(&message, file, bytes);
                (
                    self.client.post(url).multipart(form),
                    upload_time(self.whole, file.size),
                )
            }
            None => (self.client.post(url).json(&message), self.whole),
        };
        match self.call_within(account, request, whole, ANSWER_BYTES).await {
            Ok(answer) => {
                self.note_bucket(&key, &answer);
                read_answer(&answer, shipment.now)
            }
            Err(outcome) => outcome,
        }
    }

    async fn find(&self, shipment: &SendRequest<'_>, since: UnixMillis) -> PartSearch {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return PartSearch::Unknown;
        };
        let Ok(channel) = target_channel(shipment.reply) else {
            return PartSearch::Unknown;
        };
        let terms = SearchTerms {
            channel,
            nonce: &part_nonce(shipment.reply.id, shipment.part.index),
            own: bot_user(account.token.reveal()),
            since,
        };

        let mut before = None;
        for _ in 0..MAX_PAGES {
            let mut url = account.base_url.join(&format!("channels/{channel}/messages"));
            url.query_pairs_mut().append_pair("limit", &PAGE.to_string());
            if let Some(before) = before {
                url.query_pairs_mut().append_pair("before", &u64::to_string(&before));
            }

            let page = match self
                .call_within(account, self.client.get(url), self.whole, PAGE_BYTES)
                .await
            {
                Ok(answer) => terms.read_page(&answer, before.is_none(), shipment.now),
                Err(outcome) => return PartSearch::Failed { outcome },
            };
            match page {
                PageResult::Ended(search) => return search,
                PageResult::Before(oldest) => before = Some(oldest),
            }
        }

        PartSearch::Unknown
    }

    async fn edit(&self, shipment: &SendRequest<'_>, message: &str) -> CallOutcome {
        let call = |id: MessageId<'_>| (Method::PATCH, id.path(), Some(edit_body(shipment.part)));
        self.change(shipment, message, call).await
    }

    async fn delete(&self, shipment: &SendRequest<'_>, message: &str) -> CallOutcome {
        let call = |id: MessageId<'_>| (Method::DELETE, id.path(), None);
        self.change(shipment, message, call).await
    }

    fn acknowledgement(&self, account: &str) -> Option<Acknowledgement<'_>> {
        let account = self.accounts.get(account)?;
        Some(Acknowledgement {
            policy: &account.acknowledge,
            is_replaced: false,
        })
    }

    async fn react(&self, shipment: &SendRequest<'_>, message: &str, reaction: MessageReaction<'_>) -> CallOutcome {
        let method = if reaction.removed { Method::DELETE } else { Method::PUT };
        let call = |id: MessageId<'_>| (method.clone(), id.reaction_path(reaction), None);
        self.change(shipment, message, call).await
    }

    async fn typing(&self, place: &TypingPlace<'_>) -> CallOutcome {
        let channel = place.thread.unwrap_or(place.peer);
        let account = self.accounts.get(place.account);
        let Some(account) = account.filter(|_| is_snowflake(channel)) else {
            return CallOutcome::Refused {
                refusal: Refusal::Permanent,
                reason: format!("no account `{}`, or `{channel}` is not a channel's id", place.account),
            };
        };

        let url = account.base_url.join(&format!("channels/{channel}/typing"));
        match self.call(account, self.client.post(url)).await {
            Ok(answer) => read_change(&answer, "", false, place.now),
            Err(outcome) => outcome,
        }
    }
}
