//! Files of messages, at signed addresses that are void after about a day.
//!
//! A void address is exchanged for another one with the bot's token; the addresses themselves are asked without it.
//! Source: <https://discord.com/developers/docs/reference#signed-attachment-cdn-urls>.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::Url;
use shared::clock::SharedClock;
use shared::model::event::Attachment;

use super::account_context::AccountContext;
use super::api_error::ApiCallError;
use super::client::DiscordClient;
use crate::attachments::download::FileClient;
use crate::attachments::{FetchFileError, Media};

/// Hosts of files.
const HOSTS: &[&str] = &["cdn.discordapp.com", "media.discordapp.net"];

/// The files of one bot.
#[derive(Debug)]
pub struct DiscordMedia {
    client: DiscordClient,
    files: FileClient,
    clock: SharedClock,
    /// Time before which no address is asked for, because the vendor said so.
    limited_until: Mutex<Option<Instant>>,
}

impl DiscordMedia {
    /// Returns the files of the account of `context`, which downloads by `files`.
    #[must_use]
    pub fn new(context: &AccountContext, files: reqwest::Client) -> Self {
        Self {
            files: FileClient::new(files, &context.account.base_url, HOSTS),
            client: DiscordClient::new(context),
            clock: context.clock.clone(),
            limited_until: Mutex::default(),
        }
    }

    /// Exchanges `address` for another one. No call is made before the end of the wait that the vendor asked for last.
    async fn refresh_address(&self, address: &str) -> Result<Option<String>, FetchFileError> {
        let now = self.clock.monotonic();
        let until = *self.limited_until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = until
            .and_then(|until| until.checked_duration_since(now))
            .filter(|left| !left.is_zero())
        {
            return Err(FetchFileError::NotNow(format!("limited for {} ms", left.as_millis())));
        }
        let fresh = self.client.refresh_address(address).await;
        if let Err(ApiCallError::Limited { after, .. }) = &fresh {
            *self.limited_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(now + *after);
        }
        fresh.map_err(|error| refusal(&error))
    }

    async fn download(&self, address: &str, max: u64) -> Result<Bytes, FetchFileError> {
        let url = Url::parse(address).map_err(|_| FetchFileError::ForbiddenAddress)?;
        self.files.download(url, None, max).await
    }
}

#[async_trait]
impl Media for DiscordMedia {
    async fn fetch(&self, file: &Attachment, max: u64) -> Result<Bytes, FetchFileError> {
        let address = file.handle.as_deref().unwrap_or_default();
        let is_void = file.expires_at.is_some_and(|end| self.clock.now() >= end);
        if !is_void {
            match self.download(address, max).await {
                // Void before its time, or it names none.
                Err(FetchFileError::Expired) => {}
                fetched => return fetched,
            }
        }

        // The token is not shown for an address of another server.
        let url = Url::parse(address).map_err(|_| FetchFileError::ForbiddenAddress)?;
        if !self.files.may_ask(&url) {
            return Err(FetchFileError::ForbiddenAddress);
        }
        let fresh = self.refresh_address(address).await?;
        self.download(&fresh.ok_or(FetchFileError::Expired)?, max).await
    }
}

fn refusal(error: &ApiCallError) -> FetchFileError {
    match error {
        ApiCallError::Refused { status: 400..=499, .. } => FetchFileError::Expired,
        ApiCallError::Refused { .. }
        | ApiCallError::Unauthorized(_)
        | ApiCallError::Limited { .. }
        | ApiCallError::Unreachable(_)
        | ApiCallError::Malformed(_) => FetchFileError::NotNow(error.to_string()),
    }
}
