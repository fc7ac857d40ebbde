//! Accounts on Discord: a bot each, by its token; and names of its messages.
//!
//! Source: <https://discord.com/developers/docs/reference>.

pub mod snowflake;

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Url;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::base_url::BaseUrl;
use super::policy::{ANY_GROUP, AccessPolicy, AcknowledgePolicy, DirectPolicy, DoubtPolicy, GroupPolicy};
use super::token::hash_token;
use crate::process::SecretValue;
use crate::process::config::{KeyFault, is_plain_name};

/// Name of the channel.
pub const DISCORD: &str = "discord";

/// Base URL of Discord's REST API, with the version that Nexus speaks.
const OFFICIAL: &str = "https://discord.com/api/v10";

/// Maximum wait for further texts of a person, in milliseconds.
const MAX_DEBOUNCE_MS: u64 = 5_000;

/// Value of `User-Agent`, in the form that the vendor requires.
pub const USER_AGENT: &str = concat!(
    "DiscordBot (",
    env!("CARGO_PKG_REPOSITORY"),
    ", ",
    env!("CARGO_PKG_VERSION"),
    ")"
);

/// One account: a bot of Discord.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscordAccount {
    /// The bot's token, as the developer portal shows it.
    pub token: SecretValue,
    /// REST API: Discord's, or a stand-in's.
    #[serde(default = "official_url")]
    pub base_url: BaseUrl,
    /// Gateway of a stand-in; `None` = the one that the REST API names.
    #[serde(default)]
    pub ws_url: Option<SocketUrl>,
    /// How messages are received.
    #[serde(default)]
    pub receive: ReceiveMode,
    /// Who may write to the bot directly.
    #[serde(default)]
    pub direct: DirectPolicy,
    /// User ids that may write directly, except with [`DirectPolicy::Open`], which lets everybody.
    #[serde(default)]
    pub allow: BTreeSet<u64>,
    /// Settings by channel or guild: an id, or `*` for all others. A channel's go before its guild's. Channels that it
    /// does not name are ignored; if it is absent, all are ([`DiscordAccount::channel_policy`]).
    #[serde(default)]
    pub groups: Option<BTreeMap<String, GroupPolicy<u64>>>,
    /// Treatment of a message whose sending had no answer, once Discord does not recognise a repetition any more.
    #[serde(default)]
    pub on_doubt: DoubtPolicy,
    /// Whether an answer is shown while it is made, by a message that is edited until it is whole.
    #[serde(default)]
    pub previews: bool,
    /// Reactions to a message that is taken, and to one that is answered.
    #[serde(default)]
    pub acknowledge: AcknowledgePolicy,
    /// Maximum length of a sent message, in characters; `None` = Discord's own limit.
    #[serde(default)]
    pub text_limit: Option<usize>,
    /// Wait for further texts of the same person in a channel, which become one event with the first, in milliseconds;
    /// 0 = none do. Only with [`ReceiveMode::Gateway`].
    #[serde(default)]
    pub debounce_ms: u64,
}

/// How an account's messages are received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiveMode {
    /// adapter-svc connects to the gateway.
    #[default]
    Gateway,
    /// Not at all: the account only sends.
    None,
}

/// The URL of a gateway: `wss`, or `ws` to this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketUrl(BaseUrl);

/// The text is no URL of a gateway.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a wss URL, or a ws URL of this machine (127.0.0.1, [::1], localhost), without user, query and fragment"
)]
pub struct ParseSocketUrlError;

impl SocketUrl {
    /// Parses the URL of a gateway.
    ///
    /// # Errors
    /// Returns [`ParseSocketUrlError`] for another scheme, for `ws` to another machine, and for a URL with a user, a
    /// query or a fragment.
    ///
    /// ```
    /// use shared::platform::discord::SocketUrl;
    ///
    /// let url = SocketUrl::parse("wss://gateway.discord.gg/")?;
    /// assert_eq!(url.upgrade_url().as_str(), "https://gateway.discord.gg/?v=10&encoding=json");
    /// assert!(SocketUrl::parse("ws://gateway.discord.gg").is_err());
    /// # Ok::<(), shared::platform::discord::ParseSocketUrlError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ParseSocketUrlError> {
        let rest = text.strip_prefix("ws").ok_or(ParseSocketUrlError)?;
        let base = BaseUrl::parse(&format!("http{rest}")).map_err(|_| ParseSocketUrlError)?;
        Ok(Self(base))
    }

    /// Returns the `http` or `https` URL whose upgrade opens the socket, with the version and form that Nexus speaks.
    #[must_use]
    pub fn upgrade_url(&self) -> Url {
        let mut url = self.0.join("");
        url.set_query(Some("v=10&encoding=json"));
        url
    }
}

impl<'de> Deserialize<'de> for SocketUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

impl DiscordAccount {
    /// Returns the settings of `channel` of `guild`; `None` if its messages are ignored.
    #[must_use]
    pub fn channel_policy(&self, channel: &str, guild: Option<&str>) -> Option<&GroupPolicy<u64>> {
        let groups = self.groups.as_ref()?;
        let of_guild = || guild.and_then(|guild| groups.get(guild));
        groups.get(channel).or_else(of_guild).or_else(|| groups.get(ANY_GROUP))
    }

    /// Returns the value of `Authorization`. It contains the token.
    #[must_use]
    pub fn authorization(&self) -> String {
        format!("Bot {}", self.token.reveal())
    }

    /// Returns the beginning of the token's hash, by which a changed token can be told without being known.
    #[must_use]
    pub fn token_hash(&self) -> String {
        hash_token(&self.token)
    }
}

/// Returns the name of a message within its account: `{channel}/{message}`. Behind `discord:{account}/` it is the id of
/// the event of a received message. The channel of a message in a thread is the thread.
#[must_use]
pub fn message_name(channel: &str, message: &str) -> String {
    format!("{channel}/{message}")
}

/// Returns whether `text` has the form of an id (a snowflake): the digits of a number above 0.
#[must_use]
pub fn is_snowflake(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok_and(|id| id > 0)
}

/// Type of a direct channel.
pub const DIRECT_CHANNEL: u64 = 1;

/// Types of threads: in an announcement channel, public, private.
pub const THREAD_CHANNELS: [u64; 3] = [10, 11, 12];

/// A channel, as far as both directions use it. Source:
/// <https://discord.com/developers/docs/resources/channel#channel-object>.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ChannelPlace {
    /// Type of the channel.
    #[serde(rename = "type")]
    pub kind: u64,
    /// Guild; `None` in direct channels.
    #[serde(default)]
    pub guild_id: Option<String>,
    /// Of a thread: the channel in which it is. Of another channel: its category.
    #[serde(default)]
    pub parent_id: Option<String>,
    /// Name of the channel.
    #[serde(default)]
    pub name: Option<String>,
    /// Of a thread: who began it.
    #[serde(default)]
    pub owner_id: Option<String>,
}

impl ChannelPlace {
    /// Returns whether it is a direct channel with one person.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.kind == DIRECT_CHANNEL
    }

    /// Returns the channel of which it is a thread; `None` if it is none.
    #[must_use]
    pub fn thread_parent(&self) -> Option<&str> {
        let parent = self.parent_id.as_deref();
        parent.filter(|_| THREAD_CHANNELS.contains(&self.kind))
    }
}

fn official_url() -> BaseUrl {
    // A URL of this file, which the tests parse.
    BaseUrl::parse(OFFICIAL).unwrap_or_else(|error| unreachable!("{error}"))
}

/// Returns the faults of `accounts` that types cannot express, at keys below `place`.
pub(super) fn account_faults(place: &str, accounts: &BTreeMap<String, DiscordAccount>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();

    for (name, account) in accounts {
        let mut fault = |key: &str, problem: &str| faults.push(KeyFault::new(format!("{place}.{name}{key}"), problem));
        if !is_plain_name(name) {
            fault("", "expected a name of letters, digits, `-`, `_` and `.`, at most 64");
        }

        let token = account.token.reveal();
        if !is_token(token) {
            fault(
                ".token",
                "expected a bot's token, three words with dots between them, as in MTk4NjI.Cl2FMQ.ZnCjm1XV, without `Bot `",
            );
        } else if let Some(other) = owners.insert(token, name) {
            fault(
                ".token",
                &format!("expected another token than that of `{other}`: a bot is one account"),
            );
        }

        if let Some(problem) = debounce_fault(account) {
            fault(".debounce_ms", &problem);
        }

        let access = AccessPolicy {
            direct: account.direct,
            allow: &account.allow,
            groups: account.groups.as_ref(),
        };
        for (key, problem) in access.find_faults(
            is_snowflake,
            "the id of a channel or a guild, as in 1457510428359004343",
        ) {
            fault(&format!(".{key}"), &problem);
        }
        for (key, problem) in access.find_topic_faults(is_snowflake, "the id of a thread, as in 1457510428359004343") {
            fault(&format!(".{key}"), &problem);
        }
    }

    faults
}

/// Returns what is wrong with the account's `debounce_ms`.
fn debounce_fault(account: &DiscordAccount) -> Option<String> {
    match account.receive {
        ReceiveMode::Gateway => {
            let is_long = account.debounce_ms > MAX_DEBOUNCE_MS;
            is_long.then(|| format!("expected at most {MAX_DEBOUNCE_MS}"))
        }
        ReceiveMode::None => (account.debounce_ms > 0).then(|| "expected none with `receive: none`".to_owned()),
    }
}

/// Returns whether `text` has the form of a token. Other characters would end the header in which it is.
fn is_token(text: &str) -> bool {
    let words: Vec<&str> = text.split('.').collect();
    let is_word = |word: &&str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    words.len() == 3 && words.iter().all(is_word)
}

#[cfg(test)]
mod tests;
