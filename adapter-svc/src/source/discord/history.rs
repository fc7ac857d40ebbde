//! Reads what a bot's channels kept, page by page, the oldest message first.
//!
//! The message that began a thread in a channel is in the channel; the thread's others are in the thread, which is a channel
//! of its own. Source: <https://discord.com/developers/docs/resources/message#get-channel-messages>.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::platform::discord::snowflake::{first_id_at, time_of};
use shared::platform::discord::{ChannelPlace, DISCORD, is_snowflake};
use shared::platform::policy::DirectPolicy;
use tokio::sync::{Mutex, OnceCell};

use super::account_context::AccountContext;
use super::api_error::ApiCallError;
use super::client::DiscordClient;
use super::history_listing::find_places;
use super::lookups::mentions_roles;
use super::normalize::{DispatchPayload, dispatch_events};
use super::reader::apply_policy;
use super::{DiscordBot, MessagePlace};
use crate::source::port::history::{AccountHistory, FoundConversations, HistoryPage, HistorySpan};
use crate::source::port::history_calls::{HistoryCalls, HistoryRefused};

/// The histories of one bot's account.
#[derive(Debug)]
pub struct DiscordHistory {
    context: AccountContext,
    client: DiscordClient,
    bot: OnceCell<DiscordBot>,
    /// Channel that was read last, and what it is.
    place: Mutex<Option<(String, MessagePlace)>>,
}

impl DiscordHistory {
    /// Returns the histories of the account of `context`.
    #[must_use]
    pub fn new(context: AccountContext) -> Self {
        Self {
            client: DiscordClient::new(&context),
            context,
            bot: OnceCell::new(),
            place: Mutex::default(),
        }
    }

    /// Returns who the bot is. It is asked once.
    async fn identify(&self, calls: &HistoryCalls) -> Result<&DiscordBot, HistoryRefused> {
        let ask = || async {
            let own = calls.make(|| async { self.client.identify().await.map_err(ApiCallError::into_history_error) });
            own.await.map(|own| DiscordBot {
                name: self.context.name.clone(),
                user_id: own.id,
                username: own.username,
            })
        };
        self.bot.get_or_try_init(ask).await
    }

    /// Returns what `channel` is, with the bot's roles there if `messages` mention roles.
    async fn surroundings(
        &self,
        channel: &str,
        messages: &[(u64, Value)],
        bot: &DiscordBot,
        calls: &HistoryCalls,
    ) -> Result<MessagePlace, HistoryRefused> {
        let mut known = self.place.lock().await;
        let mut around = match known.take().filter(|(name, _)| name == channel) {
            Some((_, around)) => around,
            None => {
                let place = calls.make(|| async {
                    self.client
                        .channel(channel)
                        .await
                        .map_err(ApiCallError::into_history_error)
                });
                let place: ChannelPlace = place.await?;
                MessagePlace {
                    place,
                    own_roles: BTreeSet::new(),
                }
            }
        };

        if let Some(guild) = around.place.guild_id.clone()
            && messages.iter().any(|(_, message)| mentions_roles(message))
        {
            let roles = calls.make(|| async {
                let roles = self.client.own_roles(&guild, &bot.user_id).await;
                roles.map_err(ApiCallError::into_history_error)
            });
            around.own_roles = roles.await?.into_iter().collect();
        }
        *known = Some((channel.to_owned(), around.clone()));
        Ok(around)
    }

    /// Adds the events of `message`, as the account's settings leave them, to `page`.
    fn add_events(&self, page: &mut HistoryPage, bot: &DiscordBot, around: &MessagePlace, message: &Value) {
        let payload = DispatchPayload {
            kind: "MESSAGE_CREATE",
            data: message,
            token: "history",
        };
        match dispatch_events(bot, around, payload, self.context.clock.now()) {
            Ok(mut events) => {
                for event in &mut events {
                    apply_policy(&self.context.account, event);
                }
                page.events.extend(events);
            }
            Err(reason) => {
                let account = &self.context.name;
                tracing::debug!(account, %reason, "message of a history is no event");
                metrics::counter!("nexus_source_refused_total", "source" => DISCORD, "reason" => reason.name())
                    .increment(1);
                page.passed_over += 1;
            }
        }
    }
}

#[async_trait]
impl AccountHistory for DiscordHistory {
    fn channel(&self) -> &'static str {
        DISCORD
    }

    fn account(&self) -> &str {
        &self.context.name
    }

    fn direct_policy(&self) -> DirectPolicy {
        self.context.account.direct
    }

    fn merges_texts(&self) -> bool {
        self.context.account.debounce_ms > 0
    }

    fn is_conversation(&self, text: &str) -> bool {
        is_snowflake(text)
    }

    async fn find_conversations(
        &self,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<FoundConversations, HistoryRefused> {
        find_places(&self.client, span, calls).await
    }

    async fn read_page(
        &self,
        conversation: &str,
        position: &Value,
        span: HistorySpan,
        calls: &HistoryCalls,
    ) -> Result<HistoryPage, HistoryRefused> {
        let bot = self.identify(calls).await?;
        // A position that cannot be read is that of the beginning: the same events are read again.
        let read_until = position.as_str().and_then(|id| id.parse::<u64>().ok());
        let after = read_until.unwrap_or_else(|| first_id_at(span.since).saturating_sub(1));
        let read = calls.make(|| async {
            let page = self.client.messages_after(conversation, after).await;
            page.map_err(ApiCallError::into_history_error)
        });
        let read = read.await?;

        let is_last = read.is_empty();
        let messages = ordered(read, after);
        let newest = messages.last().map(|(id, _)| *id);
        let is_over = is_last || newest.is_none_or(|newest| time_of(newest) > span.until);
        let messages: Vec<_> = messages
            .into_iter()
            .filter(|(id, _)| time_of(*id) <= span.until)
            .collect();

        let mut page = HistoryPage {
            next: newest.filter(|_| !is_over).map(|newest| json!(newest.to_string())),
            ..HistoryPage::default()
        };
        if messages.is_empty() {
            return Ok(page);
        }
        let around = self.surroundings(conversation, &messages, bot, calls).await?;
        for (_, message) in &messages {
            self.add_events(&mut page, bot, &around, message);
        }
        Ok(page)
    }
}

/// Returns those of `messages` that are behind `after`, with their ids, the oldest first. The vendor's order is the newest
/// first.
fn ordered(messages: Vec<Value>, after: u64) -> Vec<(u64, Value)> {
    let identified = messages.into_iter().filter_map(|message| {
        let id: u64 = message.get("id")?.as_str()?.parse().ok()?;
        // One that is not behind would be read for ever.
        (id > after).then_some((id, message))
    });
    let mut ordered: Vec<(u64, Value)> = identified.collect();
    ordered.sort_by_key(|(id, _)| *id);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_put_in_the_order_of_its_ids_and_what_is_not_behind_is_left_out() {
        let page = ["9", "30", "7", "11", "x"].map(|id| json!({ "id": id })).to_vec();
        let ids: Vec<u64> = ordered(page, 7).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, [9, 11, 30]);
        assert!(ordered(vec![json!({}), json!(null)], 0).is_empty());
    }
}
