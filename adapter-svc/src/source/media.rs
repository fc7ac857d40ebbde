//! The files of all accounts of platforms.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use shared::platform::discord::DISCORD;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::platform::telegram::{TELEGRAM, TelegramAccount};

use super::discord::account_context::AccountContext;
use super::discord::download::DiscordMedia;
use super::slack::client as slack_client;
use super::slack::download::SlackMedia;
use super::telegram::client as telegram_client;
use super::telegram::download::TelegramMedia;
use crate::attachments::Media;
use crate::attachments::download::open_http;
use crate::attachments::fetcher::AccountMedia;

/// Hosts of the platforms' own servers, which no operator chose.
const OFFICIAL: [&str; 3] = ["api.telegram.org", "slack.com", "discord.com"];

/// Returns the files of all accounts. They share connections, because each client has certificates in memory.
///
/// # Errors
/// Returns an error if the system's certificates cannot be loaded.
pub fn open_media(
    telegram: &BTreeMap<String, TelegramAccount>,
    slack: &BTreeMap<String, SlackAccount>,
    discord: &BTreeMap<String, AccountContext>,
) -> anyhow::Result<AccountMedia> {
    // A host without accounts needs no client.
    if telegram.is_empty() && slack.is_empty() && discord.is_empty() {
        return Ok(AccountMedia::new());
    }

    let bases = telegram.values().map(|account| &account.base_url);
    let bases = bases.chain(slack.values().map(|account| &account.base_url));
    let bases = bases.chain(discord.values().map(|context| &context.account.base_url));
    let files = open_http(bases, &OFFICIAL).context("files: cannot make an HTTP client")?;

    let mut media = AccountMedia::new();
    if !telegram.is_empty() {
        let http = telegram_client::open_http().context("telegram: cannot make an HTTP client")?;
        for (name, account) in telegram {
            let of_account = TelegramMedia::new(account.clone(), http.clone(), files.clone());
            insert(&mut media, TELEGRAM, name, of_account);
        }
    }
    if !slack.is_empty() {
        let http = slack_client::open_http().context("slack: cannot make an HTTP client")?;
        for (name, account) in slack {
            let of_account = SlackMedia::new(account.clone(), http.clone(), files.clone());
            insert(&mut media, SLACK, name, of_account);
        }
    }
    for (name, context) in discord {
        insert(&mut media, DISCORD, name, DiscordMedia::new(context, files.clone()));
    }
    Ok(media)
}

fn insert(media: &mut AccountMedia, channel: &'static str, name: &str, of_account: impl Media) {
    media.insert((channel, name.to_owned()), Arc::new(of_account));
}
