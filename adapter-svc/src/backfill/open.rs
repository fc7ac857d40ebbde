//! Opens the histories of the accounts in `channels.yaml`.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use shared::clock::SharedClock;
use shared::platform::slack::SlackAccount;
use shared::platform::telegram::{TELEGRAM, TelegramAccount};

use super::accounts::BackfillAccounts;
use crate::source::discord::account_context::AccountContext;
use crate::source::discord::history::DiscordHistory;
use crate::source::port::history::AccountHistory;
use crate::source::slack::begun_threads::BegunThreads;
use crate::source::slack::client::open_http;
use crate::source::slack::history::SlackHistory;

/// The reason why accounts on Telegram have no history. Source: <https://core.telegram.org/bots/api#getting-updates>.
const TELEGRAM_HAS_NONE: &str = "Telegram keeps what was sent to a bot for 24 hours, hands it over once, and has no call \
                                 by which a bot reads earlier messages";

/// Returns the accounts, each with its history if its platform has one; those of Slack know `threads`.
///
/// # Errors
/// Fails if an HTTP client cannot be made.
pub fn open_histories(
    telegram: &BTreeMap<String, TelegramAccount>,
    slack: &BTreeMap<String, SlackAccount>,
    discord: &BTreeMap<String, AccountContext>,
    threads: &BegunThreads,
    clock: &SharedClock,
) -> anyhow::Result<BackfillAccounts> {
    let mut histories: Vec<Arc<dyn AccountHistory>> = Vec::new();
    // A host without accounts needs no client.
    if !slack.is_empty() {
        let http = open_http().context("slack: cannot make an HTTP client")?;
        for (name, account) in slack {
            let history = SlackHistory::new(
                name.clone(),
                account.clone(),
                http.clone(),
                threads.clone(),
                clock.clone(),
            );
            histories.push(Arc::new(history));
        }
    }
    for context in discord.values() {
        histories.push(Arc::new(DiscordHistory::new(context.clone())));
    }

    let absent = telegram.keys().map(|name| (TELEGRAM, name.clone(), TELEGRAM_HAS_NONE));
    Ok(BackfillAccounts::new(histories, absent))
}
