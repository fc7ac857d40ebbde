//! Reads channels' histories: what was written while no session was there. Source:
//! <https://discord.com/developers/docs/resources/message#get-channel-messages>.

use std::time::Duration;

use serde_json::Value;
use shared::clock::{Clock as _, SystemClock};

use super::account_context::SourceResult;
use super::client::{ApiCallError, PAGE};
use super::normalize::DispatchPayload;
use super::reader::GatewayReader;

impl GatewayReader<'_> {
    /// Returns the wait before the next page of a history is read; `None` = there is none to read.
    pub(super) fn until_backfill(&self) -> Option<Duration> {
        self.progress.next_pending(None)?;
        let from = self.backfill_from?;
        Some(from.saturating_duration_since(SystemClock.monotonic()))
    }

    /// Reads and stores the next page of a history.
    pub(super) async fn read_history(&mut self) -> SourceResult<()> {
        // In turn, so that a channel that cannot be read now holds up no other.
        let Some((channel, after)) = self.progress.next_pending(self.last_read.as_deref()) else {
            return Ok(());
        };
        self.last_read = Some(channel.clone());
        self.check_held()?;

        match self.client.messages_after(&channel, after).await {
            Ok(page) => self.store_page(&channel, after, page).await,
            Err(error) if error.is_final() => {
                let now = self.sink.now();
                let gap = self.progress.give_up_channel(&channel, after, &error.to_string(), now);
                let position = self.progress.to_position(now);
                Ok(self.sink.gap(&gap, position).await?)
            }
            Err(error) => self.wait_for_history(&error),
        }
    }

    async fn store_page(&mut self, channel: &str, after: u64, page: Vec<Value>) -> SourceResult<()> {
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

        let mut events = Vec::new();
        for (_, message) in &messages {
            let around = self.find_surroundings(channel, message, false).await?;
            let payload = DispatchPayload {
                kind: "MESSAGE_CREATE",
                data: message,
                token: channel,
            };
            events.extend(self.normalize(&around, payload).await);
        }

        // The end of a history is an empty page: until then others may write.
        self.progress.note_page(channel, messages.last().map(|(id, _)| *id));
        let now = self.sink.now();
        let position = self.progress.to_position(now);
        self.sink.put(events, position).await?;
        self.report();
        Ok(())
    }

    fn wait_for_history(&mut self, error: &ApiCallError) -> SourceResult<()> {
        let wait = self.context.wait_after(error, 1)?;
        tracing::warn!(account = self.context.name, %error, "failed to read a channel's history; retrying");
        self.backfill_from = Some(SystemClock.monotonic() + wait);
        Ok(())
    }
}
