//! Channel `slack`: each part is a `chat.postMessage` of an account's app.
//!
//! The text is Slack's mrkdwn, in which nothing that a model wrote calls anybody. A platform's id of a part is
//! `{channel}/{ts}`, as in the event of a received message. Slack recognises no repetition of a call: `on_doubt` of the
//! account decides about one without an answer. Each message carries the id of its event as metadata, by which a message
//! that may be there is found before it is sent again. Redirects are not followed.
//! Source: <https://docs.slack.dev/reference/methods/chat.postMessage>, <https://docs.slack.dev/apis/web-api/rate-limits>.

mod answer;
mod change;
mod message;
mod search;
mod status;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use shared::model::dispatch::DeliveryContext;
use shared::model::time::UnixMillis;
use shared::platform::slack::SlackAccount;

use super::http::CallTimeouts;
use super::raw_answer::{ANSWER_BYTES, PAGE_BYTES, USER_AGENT, call_for_answer, open_client};
use super::{Acknowledgement, Channel, ChannelTraits, MessageReaction, SendRequest, TypingPlace};
use crate::account_gate::{CallRate, ChatPace, SendPace};
use crate::attempt::{CallOutcome, PartSearch, Refusal};
use crate::chunk::{ChunkLimit, LengthUnit};
use crate::markdown::slack::MESSAGE;
use crate::outgoing_files::MAX_FILE_BYTES;
use crate::plan::{PartLayout, TextFormat};
use answer::{read_answer, read_change, read_status};
use change::MessageStamp;
use message::{PostMessage, thread_of};
use search::{PageResult, SearchTerms, read_own_bot};
use status::{WRITING, status_body};

/// Maximum number of pages of a conversation that are searched for a part.
const MAX_PAGES: usize = 20;

/// Time for which Slack shows the status of a thread in which the app sends nothing.
const STATUS_LASTS: Duration = Duration::from_mins(2);
/// The same of an account with previews, whose turns set it once: it is a message that ends a status, and not the edit that
/// makes a preview whole.
const STATUS_OF_PREVIEWED: Duration = Duration::from_hours(1);

/// Returns whether `emoji` may be a reaction on Slack.
pub(crate) fn is_reaction(emoji: &str) -> bool {
    change::is_reaction(emoji)
}

/// The rates at which an app may send.
#[derive(Debug, Clone, Copy)]
pub struct SlackPaces {
    /// Rate of all messages of an account.
    pub account: CallRate,
    /// Rate of the messages to one channel or person.
    pub channel: CallRate,
}

impl SlackPaces {
    /// Slack's own figures: one a second to a channel, with short bursts, and several hundred a minute in a workspace.
    pub const OFFICIAL: Self = Self {
        account: CallRate {
            burst: 10,
            interval: Duration::from_millis(200),
        },
        channel: CallRate {
            burst: 2,
            interval: Duration::from_secs(1),
        },
    };
}

/// Channel `slack`; see the module.
#[derive(Debug)]
pub struct SlackChannel {
    client: reqwest::Client,
    accounts: BTreeMap<String, SlackAccount>,
    paces: SlackPaces,
    /// Maximum time until the whole answer has arrived.
    whole: Duration,
}

impl SlackChannel {
    /// Creates the channel with `accounts` by name, which call at `paces`.
    ///
    /// # Errors
    /// Returns the HTTP client's error if it cannot be set up, for example without TLS.
    pub fn new(
        accounts: BTreeMap<String, SlackAccount>,
        timeouts: CallTimeouts,
        paces: SlackPaces,
    ) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: open_client(timeouts.connect, USER_AGENT)?,
            accounts,
            paces,
            whole: timeouts.whole,
        })
    }
}

impl SlackChannel {
    /// Returns whether one of `bots` may be the bot of `account`: it is, or its id cannot be learned.
    async fn may_be_own(&self, account: &SlackAccount, bots: &BTreeSet<String>) -> bool {
        if bots.is_empty() {
            return false;
        }
        let request = self.client.post(account.method_url("auth.test"));
        let request = request.bearer_auth(account.token.current().reveal());
        let answer = call_for_answer(request, self.whole, ANSWER_BYTES).await;
        let own = answer.ok().and_then(|answer| read_own_bot(&answer));
        own.is_none_or(|own| bots.contains(&own))
    }

    /// Sets the status of the thread `place` to `words`; none of them take it back.
    async fn set_status(&self, place: &TypingPlace<'_>, words: &str) -> CallOutcome {
        let refused = |reason: String| CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason,
        };
        let Some(account) = self.accounts.get(place.account) else {
            return refused(format!("no account `{}`", place.account));
        };
        let Some(body) = status_body(place, words) else {
            return refused("Slack shows in threads alone that an app writes".to_owned());
        };
        let request = self.client.post(account.method_url("assistant.threads.setStatus"));
        let request = request.bearer_auth(account.token.current().reveal()).json(&body);
        match call_for_answer(request, self.whole, ANSWER_BYTES).await {
            Ok(answer) => read_status(&answer, place.now),
            Err(outcome) => outcome,
        }
    }

    /// Makes the change of the message `id` that `call`, a method and its body, makes of its stamp.
    async fn change<'a>(
        &self,
        shipment: &SendRequest<'_>,
        id: &'a str,
        call: impl Fn(MessageStamp<'a>) -> Result<(&'static str, serde_json::Value), CallOutcome> + Send,
    ) -> CallOutcome {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return shipment.unknown_account();
        };
        let Some(message) = MessageStamp::parse(id) else {
            return shipment.unknown_message(id);
        };
        let (method, body) = match call(message) {
            Ok(call) => call,
            Err(outcome) => return outcome,
        };
        let request = self.client.post(account.method_url(method));
        let request = request.bearer_auth(account.token.current().reveal()).json(&body);
        match call_for_answer(request, self.whole, ANSWER_BYTES).await {
            Ok(answer) => read_change(&answer, id, method, shipment.now),
            Err(outcome) => outcome,
        }
    }
}

#[async_trait]
impl Channel for SlackChannel {
    fn traits(&self, account: &str) -> ChannelTraits {
        let account = self.accounts.get(account);
        let limit = account.and_then(|account| account.text_limit).map(|max| ChunkLimit {
            max,
            unit: LengthUnit::Characters,
        });
        let on_doubt = account.map(|account| account.on_doubt).unwrap_or_default();
        let previews = account.is_some_and(|account| account.previews);

        ChannelTraits {
            layout: PartLayout {
                format: TextFormat::Slack,
                limit: Some(limit.unwrap_or(MESSAGE)),
                max_lines: None,
            },
            waits_for_remote: true,
            repetition: on_doubt.into(),
            finds_parts: true,
            typing_lasts: Some(if previews { STATUS_OF_PREVIEWED } else { STATUS_LASTS }),
            previews,
            max_file_bytes: Some(MAX_FILE_BYTES),
        }
    }

    fn pace<'a>(&self, target: &'a DeliveryContext) -> Option<ChatPace<'a>> {
        // Slack counts by channel, whatever the thread.
        Some(ChatPace {
            chat: target.peer_id.as_deref().unwrap_or_default(),
            pace: SendPace {
                account: self.paces.account,
                chat: self.paces.channel,
            },
        })
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return shipment.unknown_account();
        };
        if let Some(file) = &shipment.part.file {
            return self.send_file(account, shipment, file).await;
        }
        let message = match PostMessage::from_part(
            account,
            shipment.reply,
            shipment.part,
            shipment.parts,
            shipment.event_id.as_str(),
        ) {
            Ok(message) => message,
            Err(error) => {
                return CallOutcome::Refused {
                    refusal: Refusal::Permanent,
                    reason: error.to_string(),
                };
            }
        };

        let url = account.method_url("chat.postMessage");
        let request = self
            .client
            .post(url)
            .bearer_auth(account.token.current().reveal())
            .json(&message);
        match call_for_answer(request, self.whole, ANSWER_BYTES).await {
            Ok(answer) => read_answer(&answer, shipment.now),
            Err(outcome) => outcome,
        }
    }

    async fn find(&self, shipment: &SendRequest<'_>, since: UnixMillis) -> PartSearch {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return PartSearch::Unknown;
        };
        let (channel, event) = (shipment.peer(), shipment.event_id.as_str());
        let Ok(thread) = thread_of(account, shipment.reply, channel) else {
            return PartSearch::Unknown;
        };
        let Some(terms) = SearchTerms::new(channel, thread, event, since) else {
            return PartSearch::Unknown;
        };
        let terms = terms.with_file(shipment.part.file.as_ref());

        let (mut cursor, mut nameless) = (None, BTreeSet::new());
        for _ in 0..MAX_PAGES {
            let url = terms.page_url(account, cursor.as_deref());
            let request = self.client.get(url).bearer_auth(account.token.current().reveal());
            let page = match call_for_answer(request, self.whole, PAGE_BYTES).await {
                Ok(answer) => terms.read_page(&answer, &mut nameless, shipment.now),
                Err(outcome) => return PartSearch::Failed { outcome },
            };
            match page {
                PageResult::Ended(PartSearch::Absent) if self.may_be_own(account, &nameless).await => {
                    return PartSearch::Unknown;
                }
                PageResult::Ended(search) => return search,
                PageResult::Next(next) => cursor = Some(next),
            }
        }

        PartSearch::Unknown
    }

    async fn edit(&self, shipment: &SendRequest<'_>, message: &str) -> CallOutcome {
        let call = |stamp: MessageStamp<'_>| Ok(("chat.update", stamp.update_body(shipment.part)));
        self.change(shipment, message, call).await
    }

    async fn delete(&self, shipment: &SendRequest<'_>, message: &str) -> CallOutcome {
        let call = |stamp: MessageStamp<'_>| Ok(("chat.delete", stamp.delete_body()));
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
        let call = |stamp: MessageStamp<'_>| {
            stamp.reaction_call(reaction).ok_or_else(|| CallOutcome::Refused {
                refusal: Refusal::Permanent,
                reason: format!("`{}` is not the name of a reaction, as in :eyes:", reaction.emoji),
            })
        };
        self.change(shipment, message, call).await
    }

    fn shows_typing(&self, place: &TypingPlace<'_>) -> bool {
        status_body(place, WRITING).is_some()
    }

    async fn typing(&self, place: &TypingPlace<'_>) -> CallOutcome {
        self.set_status(place, WRITING).await
    }

    async fn end_typing(&self, place: &TypingPlace<'_>) {
        if let CallOutcome::Refused { reason, .. } = self.set_status(place, "").await {
            tracing::debug!(reason, "failed to take the status of a thread back");
        }
    }
}
