//! Reads channels' histories: what was written while no session was there. Source:
//! <https://discord.com/developers/docs/resources/message#get-channel-messages>.

use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::Value;

use super::account_context::SourceResult;
use super::api_error::ApiCallError;
use super::call_waits::CallRoute;
use super::client::PAGE;
use super::finished_call::FinishedCall;
use super::normalize::DispatchPayload;
use super::reader::GatewayReader;
use super::taken::TakenBatch;

/// Status with which the vendor refuses what the bot may not see.
const FORBIDDEN: u16 = 403;

impl GatewayReader<'_> {
    /// Starts to read the next page of a history that may be read at `now`.
    pub(super) fn start_history(&mut self, now: Instant) {
        let Some((channel, after)) = self.next_history(now) else {
            return;
        };

        self.last_read = Some(channel.clone());
        self.is_reading_history = true;
        let client = self.client.clone();
        let call = async move {
            let page = client.messages_after(&channel, after).await;
            FinishedCall::History(channel, after, page)
        };
        self.calls.push(call.boxed());
    }

    /// Returns the channel whose history may be read at `now`, and the id from which on: in turn, so that a channel that
    /// cannot be read now holds up no other.
    fn next_history(&self, now: Instant) -> Option<(String, u64)> {
        let mut pending = self.progress.pending_after(self.last_read.as_deref());
        let next = pending.find(|(channel, _)| {
            let is_known = self.places.channel(channel).is_some();
            let route = CallRoute::History((*channel).clone());
            is_known && self.waits.wait_of(&route, now).is_none() && !self.lacks_roles(channel)
        });
        next.map(|(channel, after)| (channel.clone(), after))
    }

    /// Returns whether the roles in the guild of `channel` are to be asked for first.
    fn lacks_roles(&self, channel: &str) -> bool {
        let guild = self.places.channel(channel).and_then(|place| place.guild_id.as_ref());
        guild.is_some_and(|guild| self.wanted_roles.contains(guild))
    }

    /// Takes in the `answer` to the call for the page of the history of `channel` behind `after`.
    pub(super) async fn take_page(
        &mut self,
        channel: &str,
        after: u64,
        answer: Result<Vec<Value>, ApiCallError>,
    ) -> SourceResult<()> {
        let route = CallRoute::History(channel.to_owned());
        let page = match answer {
            Ok(page) => page,
            Err(error) if error.is_final() => {
                self.waits.note_refused(&route, &error, self.instant());
                return self.give_up_history(channel, after, &error).await;
            }
            Err(error) => return self.note_failure(&route, &error),
        };
        self.waits.note_success(&route);

        // It is read once more when they are known; places of histories are asked for anyhow.
        if let Some(lookup) = self.missing_for_page(channel, &page) {
            self.wanted_roles.extend(lookup.guild().map(str::to_owned));
            return Ok(());
        }
        self.store_page(channel, after, page).await
    }

    /// Returns the call that must be made before the events of `page`, of the history of `channel`, can be made.
    fn missing_for_page(&self, channel: &str, page: &[Value]) -> Option<CallRoute> {
        let mut lookups = page
            .iter()
            .filter_map(|message| self.missing_lookup(channel, "MESSAGE_CREATE", message, false));
        lookups.next()
    }

    /// Takes in that the history of `channel` cannot be read any more, because of `error`.
    async fn give_up_history(&mut self, channel: &str, after: u64, error: &ApiCallError) -> SourceResult<()> {
        let now = self.now();
        let gap = self.progress.give_up_channel(channel, after, &error.to_string(), now);
        if let ApiCallError::Refused { status: FORBIDDEN, .. } = error {
            self.progress.hide_channel(channel, self.places.rights(channel));
        }
        if gap.is_none() {
            tracing::info!(
                account = self.context.name,
                channel,
                %error,
                "a channel is not for the bot; it is not asked for again until the bot's rights change"
            );
        }
        let position = self.progress.make_position(now);
        let gaps: Vec<_> = gap.into_iter().collect();
        self.put_batch(Vec::new(), &gaps, position).await?;
        self.report();
        Ok(())
    }

    async fn store_page(&mut self, channel: &str, after: u64, page: Vec<Value>) -> SourceResult<()> {
        // The page may have what waits: it is stored before, so that it is known.
        self.texts.close(channel);
        self.store_ready_texts().await?;

        let mut messages: Vec<(u64, Value)> = Vec::with_capacity(PAGE);
        for message in page {
            let id = message.get("id").and_then(Value::as_str).and_then(|id| id.parse().ok());
            // One that is not behind would be read for ever.
            match id.filter(|id| *id > after) {
                Some(id) => messages.push((id, message)),
                None => tracing::error!(
                    account = self.context.name,
                    channel,
                    "a history has a message that was not asked for"
                ),
            }
        }
        // The vendor's order is the newest first.
        messages.sort_by_key(|(id, _)| *id);

        let mut batch = TakenBatch::default();
        let mut events = Vec::with_capacity(messages.len());
        for (_, message) in &messages {
            let around = self.surroundings(channel, "MESSAGE_CREATE", message);
            let payload = DispatchPayload {
                kind: "MESSAGE_CREATE",
                data: message,
                token: channel,
            };
            events.extend(self.read_events(&around, payload, &mut batch));
        }
        self.add_page(channel, events, &mut batch);
        // Before the history is noted as read so far.
        self.decide_texts(&mut batch).await?;

        // The end of a history is an empty page: until then others may write.
        self.progress
            .note_page(channel, after, messages.last().map(|(id, _)| *id));
        self.store_batch(batch).await?;
        self.report();
        Ok(())
    }
}
