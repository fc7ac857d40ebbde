//! Finds the channels and threads of a bot whose histories may have messages of a time.
//!
//! Direct channels are not among them: the vendor lists none to a bot. Sources:
//! <https://discord.com/developers/docs/resources/user#get-current-user-guilds>,
//! <https://discord.com/developers/docs/resources/guild#get-guild-channels>,
//! <https://discord.com/developers/docs/resources/channel#list-public-archived-threads>.

use shared::platform::discord::is_snowflake;
use shared::platform::discord::snowflake::snowflake_time;
use shared::wire::operator::backfill::SkippedConversation;

use super::api_error::ApiCallError;
use super::client::{DiscordClient, GUILD_PAGE};
use super::listed_place::ListedPlace;
use crate::source::port::history::{FoundConversations, HistorySpan};
use crate::source::port::history_calls::{HistoryCalls, HistoryRefused};

/// Types of channels that have messages: text, of a voice channel, announcements, of a stage.
const WITH_MESSAGES: [u64; 4] = [0, 2, 5, 13];
/// Types of channels that have threads: text, announcements, forums, media.
const WITH_THREADS: [u64; 4] = [0, 5, 15, 16];

/// Returns the channels and threads that the bot of `client` finds.
pub(super) async fn find_places(
    client: &DiscordClient,
    span: HistorySpan,
    calls: &HistoryCalls,
) -> Result<FoundConversations, HistoryRefused> {
    let mut finder = PlaceFinder {
        client,
        span,
        calls,
        found: FoundConversations::default(),
    };
    for guild in finder.guilds().await? {
        finder.search_guild(&guild).await;
    }
    Ok(finder.found)
}

/// A search of guilds.
struct PlaceFinder<'a> {
    client: &'a DiscordClient,
    span: HistorySpan,
    calls: &'a HistoryCalls,
    found: FoundConversations,
}

impl PlaceFinder<'_> {
    /// Returns the bot's guilds.
    async fn guilds(&self) -> Result<Vec<String>, HistoryRefused> {
        let (mut guilds, mut after) = (Vec::new(), String::from("0"));
        loop {
            let page = self
                .calls
                .make(|| async {
                    self.client
                        .guilds_after(&after)
                        .await
                        .map_err(ApiCallError::into_history_error)
                })
                .await?;
            let Some(last) = page.last() else { return Ok(guilds) };
            after.clone_from(last);
            let is_last = page.len() < GUILD_PAGE;
            guilds.extend(page);
            if is_last {
                return Ok(guilds);
            }
        }
    }

    async fn search_guild(&mut self, guild: &str) {
        let channels = self.calls.make(|| async {
            self.client
                .guild_channels(guild)
                .await
                .map_err(ApiCallError::into_history_error)
        });
        let channels = match channels.await {
            Ok(channels) => channels,
            Err(refused) => return self.skip(guild, refused),
        };
        for channel in &channels {
            self.add(channel);
        }

        let active = self.calls.make(|| async {
            self.client
                .active_threads(guild)
                .await
                .map_err(ApiCallError::into_history_error)
        });
        match active.await {
            Ok(page) => page.threads.iter().for_each(|thread| self.add(thread)),
            Err(refused) => self.skip(guild, refused),
        }
        for channel in channels.iter().filter(|channel| WITH_THREADS.contains(&channel.kind)) {
            self.search_archive(&channel.id).await;
        }
    }

    /// Adds the public threads of `channel` that are archived, down to those that were archived before the time.
    async fn search_archive(&mut self, channel: &str) {
        let mut before: Option<String> = None;
        loop {
            let page = self.calls.make(|| async {
                let page = self.client.archived_threads(channel, before.as_deref()).await;
                page.map_err(ApiCallError::into_history_error)
            });
            let page = match page.await {
                Ok(page) => page,
                Err(refused) => return self.skip(channel, refused),
            };
            page.threads.iter().for_each(|thread| self.add(thread));

            let last = page.threads.last().and_then(|thread| thread.thread_metadata.as_ref());
            let last = last.and_then(|metadata| metadata.archive_timestamp.clone());
            // Those that were archived earlier have no message of the time. One place twice would be read for ever.
            let has_more = |at: &String| {
                let time: Option<jiff::Timestamp> = at.parse().ok();
                let is_within = time.is_some_and(|time| time.as_millisecond() >= self.span.since.0);
                page.has_more && is_within && before.as_ref() != Some(at)
            };
            match last.filter(has_more) {
                Some(last) => before = Some(last),
                None => return,
            }
        }
    }

    /// Adds `place`, if it may have messages of the time. One that never had a message has none.
    fn add(&mut self, place: &ListedPlace) {
        let is_thread = place.thread_metadata.is_some();
        let newest = place.last_message_id.as_deref().and_then(snowflake_time);
        let is_read = is_thread || WITH_MESSAGES.contains(&place.kind);
        if is_read && is_snowflake(&place.id) && newest.is_some_and(|newest| newest >= self.span.since) {
            self.found.conversations.push(place.id.clone());
        }
    }

    fn skip(&mut self, place: &str, HistoryRefused(reason): HistoryRefused) {
        let conversation = place.to_owned();
        self.found.skipped.push(SkippedConversation { conversation, reason });
    }
}
