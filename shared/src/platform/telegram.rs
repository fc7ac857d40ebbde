//! Accounts on Telegram: a bot each, by its token.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Url;
use serde::Deserialize;

use super::base_url::BaseUrl;
use super::policy::{AccessPolicy, AcknowledgePolicy, DirectPolicy, DoubtPolicy, GroupPolicy, PlacePolicy};
use super::token::hash_token;
use crate::process::SecretValue;
use crate::process::config::{KeyFault, is_plain_name};

/// Name of the channel.
pub const TELEGRAM: &str = "telegram";

/// Id of the general topic of a group with topics: of the one whose messages name none.
pub const GENERAL_TOPIC: &str = "1";

/// Base URL of Telegram's own servers.
const OFFICIAL: &str = "https://api.telegram.org";

/// Length of a webhook's secret, in characters: the vendor's maximum, and our minimum.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// Maximum time for an album to be complete, in milliseconds.
const MAX_ALBUM_WAIT_MS: u64 = 10_000;

/// Maximum wait for further texts of a person, in milliseconds.
const MAX_DEBOUNCE_MS: u64 = 5_000;

/// One account: a bot of Telegram.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelegramAccount {
    /// The bot's token, as its maker (`@BotFather`) shows it.
    pub token: SecretValue,
    /// Server of the Bot API: Telegram's, one of your own, or a stand-in.
    #[serde(default = "official_url")]
    pub base_url: BaseUrl,
    /// How messages are received.
    #[serde(default)]
    pub receive: ReceiveMode,
    /// Address of adapter-svc on the internet, with [`ReceiveMode::Webhook`]: Telegram posts to `/telegram/{account}` below it.
    #[serde(default)]
    pub webhook_url: Option<BaseUrl>,
    /// Secret by which Telegram's posts are known, with [`ReceiveMode::Webhook`].
    #[serde(default)]
    pub webhook_secret: Option<SecretValue>,
    /// Who may write to the bot directly.
    #[serde(default)]
    pub direct: DirectPolicy,
    /// User ids that may write directly, except with [`DirectPolicy::Open`].
    #[serde(default)]
    pub allow: BTreeSet<i64>,
    /// Settings by group: a chat id, or `*` for all others. Groups that it does not name are ignored;
    /// if it is absent, all are ([`TelegramAccount::place_policy`]).
    #[serde(default)]
    pub groups: Option<BTreeMap<String, GroupPolicy<i64>>>,
    /// Treatment of a message whose sending had no answer: Telegram does not recognise a repetition.
    #[serde(default)]
    pub on_doubt: DoubtPolicy,
    /// Whether an answer is shown while it is made, by a message that is edited until it is whole.
    #[serde(default)]
    pub previews: bool,
    /// Reactions to a message that is taken, and to one that is answered.
    #[serde(default)]
    pub acknowledge: AcknowledgePolicy,
    /// Maximum length of a sent message, in UTF-16 units of its text; `None` = Telegram's own limit.
    #[serde(default)]
    pub text_limit: Option<usize>,
    /// Maximum wait for further files of an album, in milliseconds.
    #[serde(default = "default_album_wait_ms")]
    pub album_wait_ms: u64,
    /// Wait for further texts of the same person in a chat, which become one event with the first, in milliseconds;
    /// 0 = none do. None without receiving.
    #[serde(default)]
    pub debounce_ms: u64,
}

/// How an account's messages are received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiveMode {
    /// adapter-svc asks for them with `getUpdates`.
    #[default]
    Poll,
    /// Telegram posts them to adapter-svc, at `webhook_url`.
    Webhook,
    /// Not at all: the account only sends.
    None,
}

impl TelegramAccount {
    /// Returns the rules that say who may use the account.
    #[must_use]
    pub fn access(&self) -> AccessPolicy<'_, i64> {
        AccessPolicy {
            direct: self.direct,
            allow: &self.allow,
            groups: self.groups.as_ref(),
        }
    }

    /// Returns the settings in `topic` of the group `chat`, `None` = in the general topic; `None` if the group's messages are
    /// ignored.
    #[must_use]
    pub fn place_policy(&self, chat: i64, topic: Option<&str>) -> Option<PlacePolicy<'_, i64>> {
        let topic = topic.unwrap_or(GENERAL_TOPIC);
        self.access().place_policy(&chat.to_string(), None, Some(topic))
    }

    /// Returns the URL of a method of the Bot API. It contains the token: print neither it nor an error that may have
    /// it (`reqwest::Error::without_url` removes it).
    #[must_use]
    pub fn method_url(&self, method: &str) -> Url {
        self.base_url.join(&format!("bot{}/{method}", self.token.reveal()))
    }

    /// Returns the URL to which Telegram posts the updates of the account `name`; `None` if it posts none.
    #[must_use]
    pub fn posted_url(&self, name: &str) -> Option<Url> {
        match self.receive {
            ReceiveMode::Webhook => Some(self.webhook_url.as_ref()?.join(&webhook_path(name))),
            ReceiveMode::Poll | ReceiveMode::None => None,
        }
    }

    /// Returns the URL of the file at `path`. It contains the token, as [`TelegramAccount::method_url`].
    #[must_use]
    pub fn file_url(&self, path: &str) -> Url {
        self.base_url.join(&format!("file/bot{}/{path}", self.token.reveal()))
    }

    /// Returns the beginning of the token's hash, by which a changed token can be told without being known.
    #[must_use]
    pub fn token_hash(&self) -> String {
        hash_token(&self.token)
    }
}

/// Returns the path of adapter-svc to which Telegram posts the updates of the account `name`, below its address.
#[must_use]
pub fn webhook_path(name: &str) -> String {
    format!("{TELEGRAM}/{name}")
}

/// Returns whether `url` is a webhook of the account `name`, set by Nexus.
#[must_use]
pub fn is_own_webhook(url: &str, name: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.path().ends_with(&format!("/{}", webhook_path(name))))
}

fn official_url() -> BaseUrl {
    // A URL of this file, which the tests parse.
    BaseUrl::parse(OFFICIAL).unwrap_or_else(|error| unreachable!("{error}"))
}

const fn default_album_wait_ms() -> u64 {
    1_000
}

/// Returns the faults of `accounts` that types cannot express, at keys below `place`.
pub(super) fn account_faults(place: &str, accounts: &BTreeMap<String, TelegramAccount>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();

    for (name, account) in accounts {
        let mut fault = |key: &str, problem: &str| faults.push(KeyFault::new(format!("{place}.{name}{key}"), problem));
        if !is_plain_name(name) {
            fault("", "expected a name of letters, digits, `-`, `_` and `.`, at most 64");
        }

        let token = account.token.reveal();
        if !is_token(token) {
            fault(".token", "expected a bot's token, as in 123456:AbC-dEf_1");
        } else if let Some(other) = owners.insert(token, name) {
            // Two pollers of one bot take each other's messages.
            fault(
                ".token",
                &format!("expected another token than that of `{other}`: a bot is one account"),
            );
        }

        let is_secret = |secret: &SecretValue| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            let text = secret.reveal();
            SECRET_LENGTHS.contains(&text.len()) && text.chars().all(is_allowed)
        };
        match account.receive {
            ReceiveMode::Webhook => {
                if account.webhook_url.is_none() {
                    fault(
                        ".webhook_url",
                        "expected the address of adapter-svc, as in https://nexus.example.com",
                    );
                }
                if !account.webhook_secret.as_ref().is_some_and(is_secret) {
                    fault(
                        ".webhook_secret",
                        "expected 16 to 256 letters, digits, `-` and `_`, with `receive: webhook`",
                    );
                }
            }
            ReceiveMode::Poll | ReceiveMode::None => {
                let given = [
                    (".webhook_url", account.webhook_url.is_some()),
                    (".webhook_secret", account.webhook_secret.is_some()),
                ];
                for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                    fault(key, "expected none without `receive: webhook`");
                }
            }
        }

        if account.album_wait_ms > MAX_ALBUM_WAIT_MS {
            fault(".album_wait_ms", &format!("expected at most {MAX_ALBUM_WAIT_MS}"));
        }
        if let Some(problem) = debounce_fault(account) {
            fault(".debounce_ms", &problem);
        }

        let is_chat = |chat: &str| chat.parse::<i64>().is_ok();
        for (key, problem) in account.access().find_faults(is_chat, "a chat id, as in -1001234567890") {
            fault(&format!(".{key}"), &problem);
        }
        let is_topic = |topic: &str| topic.parse::<i64>().is_ok_and(|topic| topic > 0);
        for (key, problem) in account
            .access()
            .find_topic_faults(is_topic, "the number of a topic, as in 7")
        {
            fault(&format!(".{key}"), &problem);
        }
    }

    faults
}

/// Returns what is wrong with the account's `debounce_ms`.
fn debounce_fault(account: &TelegramAccount) -> Option<String> {
    match account.receive {
        ReceiveMode::Poll | ReceiveMode::Webhook => {
            let is_long = account.debounce_ms > MAX_DEBOUNCE_MS;
            is_long.then(|| format!("expected at most {MAX_DEBOUNCE_MS}"))
        }
        ReceiveMode::None => (account.debounce_ms > 0).then(|| "expected none with `receive: none`".to_owned()),
    }
}

/// Returns whether `text` has the form of a token: the bot's id, a colon, letters, digits, `-` and `_`. Other
/// characters would be another path of the URL.
fn is_token(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.split_once(':').is_some_and(|(bot, secret)| {
        !bot.is_empty()
            && bot.chars().all(|c| c.is_ascii_digit())
            && !secret.is_empty()
            && secret.chars().all(is_allowed)
    })
}
