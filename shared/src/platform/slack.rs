//! Accounts on Slack: an app each, as it is installed in one workspace, by its bot token.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Url;
use serde::Deserialize;

use super::base_url::BaseUrl;
use super::policy::{AccessPolicy, AcknowledgePolicy, DirectPolicy, DoubtPolicy, GroupPolicy};
use super::slack_api::{is_conversation_id, is_user_id};
use super::token::{RenewableToken, hash_token};
use crate::process::SecretValue;
use crate::process::config::{KeyFault, is_plain_name};

/// Name of the channel.
pub const SLACK: &str = "slack";

/// Base URL of Slack's own servers.
const OFFICIAL: &str = "https://slack.com";

/// Least length of a signing secret, in characters: half the length of those that Slack makes.
const MIN_SECRET_CHARACTERS: usize = 16;

/// Forms of a bot token: a lasting one, and one that is rotated.
const TOKEN_PREFIXES: [&str; 2] = ["xoxb-", "xoxe.xoxb-"];

/// Maximum wait for further texts of a person over a socket, in milliseconds. Slack waits three seconds for the
/// acknowledgement of a payload, which is given once its event is stored, and sends it again otherwise.
pub const MAX_DEBOUNCE_MS: u64 = 2_000;
/// Maximum wait for further texts that Slack posts, in milliseconds: a post is answered once its event is kept.
const MAX_POSTED_DEBOUNCE_MS: u64 = 5_000;

/// Form of a bot token that is rotated.
pub(super) const ROTATED_PREFIXES: [&str; 1] = ["xoxe.xoxb-"];

/// Form of a token with which a rotated one is renewed.
pub(super) const REFRESH_PREFIXES: [&str; 1] = ["xoxe-"];

/// Form of an app's own token.
const APP_TOKEN_PREFIXES: [&str; 1] = ["xapp-"];

/// One account: an app of Slack in one workspace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlackAccount {
    /// The app's bot token, as Slack shows it after the installation.
    pub token: RenewableToken,
    /// The token with which a rotated bot token is renewed, as Slack shows it after the installation.
    #[serde(default)]
    pub refresh_token: Option<SecretValue>,
    /// The app's id as a client, with a refresh token.
    #[serde(default)]
    pub client_id: Option<SecretValue>,
    /// The app's secret as a client, with a refresh token.
    #[serde(default)]
    pub client_secret: Option<SecretValue>,
    /// The app's signing secret, with [`SlackReceive::Events`].
    #[serde(default)]
    pub signing_secret: Option<SecretValue>,
    /// The app's own token, with [`SlackReceive::Socket`].
    #[serde(default)]
    pub app_token: Option<SecretValue>,
    /// Server of the Web API: Slack's, or a stand-in.
    #[serde(default = "official_url")]
    pub base_url: BaseUrl,
    /// How messages are received.
    #[serde(default)]
    pub receive: SlackReceive,
    /// Who may write to the app directly.
    #[serde(default)]
    pub direct: DirectPolicy,
    /// User ids that may write directly, except with [`DirectPolicy::Open`], which lets everybody.
    #[serde(default)]
    pub allow: BTreeSet<String>,
    /// Settings by channel or group conversation: its id, or `*` for all others. Those that it does not name are
    /// ignored; if it is absent, all are.
    #[serde(default)]
    pub groups: Option<BTreeMap<String, GroupPolicy<String>>>,
    /// Treatment of a message whose sending had no answer: Slack does not recognise a repetition.
    #[serde(default)]
    pub on_doubt: DoubtPolicy,
    /// Whether an answer is shown while it is made, by a message that is edited until it is whole.
    #[serde(default)]
    pub previews: bool,
    /// Reactions to a message that is taken, and to one that is answered.
    #[serde(default)]
    pub acknowledge: AcknowledgePolicy,
    /// Maximum length of a sent message, in characters; `None` = the most that Slack shows whole.
    #[serde(default)]
    pub text_limit: Option<usize>,
    /// Wait for further texts of the same person in a conversation, which become one event with the first, in milliseconds;
    /// 0 = none do. None without receiving.
    #[serde(default)]
    pub debounce_ms: u64,
}

/// The configured secrets with which the rotated token of an account is renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRotation {
    /// The first token with which the bot token is renewed. Slack takes it once.
    pub refresh_token: SecretValue,
    /// The app's id as a client.
    pub client_id: SecretValue,
    /// The app's secret as a client.
    pub client_secret: SecretValue,
}

/// How an account's messages are received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlackReceive {
    /// Slack posts them to adapter-svc, signed with the signing secret.
    #[default]
    Events,
    /// adapter-svc opens a socket, over which Slack sends them.
    Socket,
    /// Not at all: the account only sends.
    None,
}

impl SlackAccount {
    /// Returns the rules that say who may use the account.
    #[must_use]
    pub fn access(&self) -> AccessPolicy<'_, String> {
        AccessPolicy {
            direct: self.direct,
            allow: &self.allow,
            groups: self.groups.as_ref(),
        }
    }

    /// Returns the URL of a method of the Web API.
    #[must_use]
    pub fn method_url(&self, method: &str) -> Url {
        self.base_url.join(&format!("api/{method}"))
    }

    /// Returns the beginning of the hash of the configured token, by which a changed token can be told without being known.
    #[must_use]
    pub fn token_hash(&self) -> String {
        hash_token(self.token.configured())
    }

    /// Returns the secrets with which the token is renewed; `None` = it lasts.
    #[must_use]
    pub fn rotation(&self) -> Option<TokenRotation> {
        Some(TokenRotation {
            refresh_token: self.refresh_token.clone()?,
            client_id: self.client_id.clone()?,
            client_secret: self.client_secret.clone()?,
        })
    }
}

fn official_url() -> BaseUrl {
    // A URL of this file, which the tests parse.
    BaseUrl::parse(OFFICIAL).unwrap_or_else(|error| unreachable!("{error}"))
}

/// Returns the faults of `accounts` that types cannot express, at keys below `place`.
pub(super) fn account_faults(place: &str, accounts: &BTreeMap<String, SlackAccount>) -> Vec<KeyFault> {
    let mut faults = repeated_refresh_tokens(place, accounts);
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();

    for (name, account) in accounts {
        let mut fault = |key: &str, problem: &str| faults.push(KeyFault::new(format!("{place}.{name}{key}"), problem));
        if !is_plain_name(name) {
            fault("", "expected a name of letters, digits, `-`, `_` and `.`, at most 64");
        }

        let token = account.token.configured().reveal();
        if !has_token_form(token, &TOKEN_PREFIXES) {
            fault(".token", "expected a bot token, which begins with xoxb-");
        } else if let Some(other) = owners.insert(token, name) {
            // Each message would become an event of both.
            fault(
                ".token",
                &format!("expected another token than that of `{other}`: an app in a workspace is one account"),
            );
        }

        for (key, problem) in rotation_faults(account) {
            fault(key, problem);
        }
        match (account.receive, &account.signing_secret) {
            (SlackReceive::Events, None) => fault(
                ".signing_secret",
                "expected the app's signing secret, or `receive: none` for an account that only sends",
            ),
            (SlackReceive::Events | SlackReceive::Socket | SlackReceive::None, Some(secret))
                if !is_signing_secret(secret.reveal()) =>
            {
                fault(
                    ".signing_secret",
                    "expected the app's signing secret: letters and digits",
                );
            }
            (SlackReceive::Events, Some(_)) | (SlackReceive::Socket | SlackReceive::None, Some(_) | None) => {}
        }
        match (account.receive, &account.app_token) {
            (SlackReceive::Socket, None) => fault(
                ".app_token",
                "expected the app's own token, which begins with xapp-, for `receive: socket`",
            ),
            (SlackReceive::Events | SlackReceive::Socket | SlackReceive::None, Some(token))
                if !has_token_form(token.reveal(), &APP_TOKEN_PREFIXES) =>
            {
                fault(".app_token", "expected the app's own token, which begins with xapp-");
            }
            (SlackReceive::Socket, Some(_)) | (SlackReceive::Events | SlackReceive::None, Some(_) | None) => {}
        }

        if let Some(problem) = debounce_fault(account) {
            fault(".debounce_ms", &problem);
        }
        if !account.allow.iter().all(|user| is_user_id(user)) {
            fault(".allow", "expected user ids, as in U012AB3CD");
        }
        for (key, problem) in account
            .access()
            .find_faults(is_conversation_id, "a channel's id, as in C012AB3CD")
        {
            fault(&format!(".{key}"), &problem);
        }
        let expected = "none: a thread of Slack has no id before it begins";
        for (key, problem) in account.access().find_topic_faults(|_| false, expected) {
            fault(&format!(".{key}"), &problem);
        }
        for (group, policy) in account.groups.iter().flatten() {
            if !policy.allow.iter().all(|user| is_user_id(user)) {
                fault(&format!(".groups.{group}.allow"), "expected user ids, as in U012AB3CD");
            }
        }
    }

    faults
}

/// Returns the refresh tokens that another account has too, each at its key below `place`.
fn repeated_refresh_tokens(place: &str, accounts: &BTreeMap<String, SlackAccount>) -> Vec<KeyFault> {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, account) in accounts {
        let Some(refresh_token) = &account.refresh_token else {
            continue;
        };
        if let Some(other) = owners.insert(refresh_token.reveal(), name) {
            let key = format!("{place}.{name}.refresh_token");
            let problem = format!("expected another refresh token than that of `{other}`: Slack takes it once");
            faults.push(KeyFault::new(key, problem));
        }
    }
    faults
}

/// Returns the keys of the account's rotation that are wrong, each with the value that is expected.
fn rotation_faults(account: &SlackAccount) -> Vec<(&'static str, &'static str)> {
    let mut faults = Vec::new();
    let Some(refresh_token) = &account.refresh_token else {
        for (key, secret) in [
            (".client_id", &account.client_id),
            (".client_secret", &account.client_secret),
        ] {
            if secret.is_some() {
                faults.push((key, "expected none without a `refresh_token`"));
            }
        }
        return faults;
    };

    if !has_token_form(refresh_token.reveal(), &REFRESH_PREFIXES) {
        faults.push((".refresh_token", "expected a refresh token, which begins with xoxe-"));
    }
    if !has_token_form(account.token.configured().reveal(), &ROTATED_PREFIXES) {
        faults.push((
            ".token",
            "expected a rotated token, which begins with xoxe.xoxb-, beside a `refresh_token`",
        ));
    }
    if account.client_id.is_none() {
        faults.push((".client_id", "expected the app's client id beside a `refresh_token`"));
    }
    if account.client_secret.is_none() {
        faults.push((
            ".client_secret",
            "expected the app's client secret beside a `refresh_token`",
        ));
    }
    faults
}

/// Returns what is wrong with the account's `debounce_ms`.
fn debounce_fault(account: &SlackAccount) -> Option<String> {
    match account.receive {
        SlackReceive::Socket => {
            let is_long = account.debounce_ms > MAX_DEBOUNCE_MS;
            is_long.then(|| format!("expected at most {MAX_DEBOUNCE_MS}, because Slack waits no longer than 3 s"))
        }
        SlackReceive::Events => {
            let is_long = account.debounce_ms > MAX_POSTED_DEBOUNCE_MS;
            is_long.then(|| format!("expected at most {MAX_POSTED_DEBOUNCE_MS}"))
        }
        SlackReceive::None => (account.debounce_ms > 0).then(|| "expected none with `receive: none`".to_owned()),
    }
}

/// Returns whether `text` is a token with one of `prefixes`. Other characters could not be in a header.
pub(super) fn has_token_form(text: &str, prefixes: &[&str]) -> bool {
    let rest = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_allowed))
}

fn is_signing_secret(text: &str) -> bool {
    text.len() >= MIN_SECRET_CHARACTERS && text.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
