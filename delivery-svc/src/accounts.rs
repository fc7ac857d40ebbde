//! The accounts that replies are sent through, from `channels.yaml`.
//!
//! ```yaml
//! webhook:
//!   accounts:
//!     demo: { url: "https://example.com/hook", secret: "env:DEMO_SECRET", format: slack, text_limit: 3000 }
//! bridges:
//!   whatsapp:
//!     accounts:
//!       work: { url: "https://bridge.example.com/whatsapp", secret: "env:BRIDGE_SECRET" }
//! ```
//!
//! A bridged channel may have any name except those of Nexus's own channels (`webchat`, `nats`, `telegram`, …). Its
//! replies are sent to the account's URL like those of `webhook`, to a program there that serves the platform.
//! [`shared::platform`] reads the rest of the file. Source: `docs/design/channels.md` §2; `docs/design/operations.md`
//! §1.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use shared::model::origin::is_sealed_channel;
use shared::platform::accounts::{ChannelsFile, ReadAccountsError, is_platform, read_channels};
use shared::platform::discord::{DISCORD, DiscordAccount};
use shared::platform::policy::AcknowledgePolicy;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::platform::telegram::{TELEGRAM, TelegramAccount};
use shared::process::SecretValue;
use shared::process::config::{KeyFault, MAX_NAME_BYTES, is_plain_name};

use crate::channel::signature::SigningKey;
use crate::channel::webhook::{self, WebhookEndpoint};
use crate::channel::{self, nats};
use crate::chunk::{ChunkLimit, LengthUnit};
use crate::markdown::{LEAST_LINES, LEAST_SIZE, discord, slack, telegram};
use crate::plan::{PartLayout, TextFormat};

/// The endpoints of webhooks and bridges, by channel and account.
pub type AccountEndpoints = BTreeMap<String, HashMap<String, WebhookEndpoint>>;

/// All accounts that replies are sent through.
#[derive(Debug, Default)]
pub struct ChannelAccounts {
    /// Endpoints of webhooks and bridges.
    pub endpoints: AccountEndpoints,
    /// Bots of Telegram, by account.
    pub telegram: BTreeMap<String, TelegramAccount>,
    /// Bots of Discord, by account.
    pub discord: BTreeMap<String, DiscordAccount>,
    /// Apps of Slack, by account.
    pub slack: BTreeMap<String, SlackAccount>,
}

impl ChannelAccounts {
    /// Returns the hashes of the tokens that platforms may refuse, by `{channel}:{account}`.
    #[must_use]
    pub fn token_hashes(&self) -> BTreeMap<String, String> {
        let telegram = self.telegram.iter();
        let telegram = telegram.map(|(name, account)| (format!("{TELEGRAM}:{name}"), account.token_hash()));
        let discord = self.discord.iter();
        let discord = discord.map(|(name, account)| (format!("{DISCORD}:{name}"), account.token_hash()));
        let slack = self.slack.iter();
        let slack = slack.map(|(name, account)| (format!("{SLACK}:{name}"), account.token_hash()));
        telegram.chain(discord).chain(slack).collect()
    }
}

/// An account of channel `webhook`, or of a bridge.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookAccount {
    url: String,
    secret: SecretValue,
    /// Form of the text.
    #[serde(default)]
    format: TextFormat,
    /// Maximum length of a part, in the unit of the form.
    #[serde(default)]
    text_limit: Option<usize>,
    /// Maximum number of lines of a part.
    #[serde(default)]
    line_limit: Option<usize>,
}

/// Parses the accounts in `text`, the content of `channels.yaml`. An empty text has none.
///
/// # Errors
/// Returns [`ReadAccountsError`] with each invalid key and the value that is expected there.
pub fn read(text: &str) -> Result<ChannelAccounts, ReadAccountsError> {
    let mut endpoints = AccountEndpoints::new();
    let file = read_channels(text, |file| {
        let mut faults = add_accounts(file, &mut endpoints);
        let telegram_limits = file.telegram.accounts.iter().map(|(name, bot)| (name, bot.text_limit));
        faults.extend(limit_faults(TELEGRAM, telegram_limits, telegram::MESSAGE.max));
        let discord_limits = file.discord.accounts.iter().map(|(name, bot)| (name, bot.text_limit));
        faults.extend(limit_faults(DISCORD, discord_limits, discord::MESSAGE.max));
        let slack_limits = file.slack.accounts.iter().map(|(name, app)| (name, app.text_limit));
        faults.extend(limit_faults(SLACK, slack_limits, slack::MESSAGE.max));
        faults.extend(reaction_faults(file));
        faults
    })?;
    Ok(ChannelAccounts {
        endpoints,
        telegram: file.telegram.accounts,
        discord: file.discord.accounts,
        slack: file.slack.accounts,
    })
}

/// Returns the faults of the `text_limit`s of accounts of `channel`, by name, whose messages have at most `most`.
fn limit_faults<'a>(
    channel: &str,
    limits: impl Iterator<Item = (&'a String, Option<usize>)>,
    most: usize,
) -> Vec<KeyFault> {
    let sizes = LEAST_SIZE..=most;
    let wrong = limits.filter(|(_, limit)| limit.is_some_and(|limit| !sizes.contains(&limit)));
    wrong
        .map(|(name, _)| {
            let expected = format!("expected {} to {}", sizes.start(), sizes.end());
            KeyFault::new(format!("{channel}.accounts.{name}.text_limit"), expected)
        })
        .collect()
}

/// Returns the faults of the reactions in `file`: each is one that its platform takes.
fn reaction_faults(file: &ChannelsFile<WebhookAccount>) -> Vec<KeyFault> {
    let telegram = file
        .telegram
        .accounts
        .iter()
        .map(|(name, bot)| (name, &bot.acknowledge));
    let discord = file.discord.accounts.iter().map(|(name, bot)| (name, &bot.acknowledge));
    let slack = file.slack.accounts.iter().map(|(name, app)| (name, &app.acknowledge));
    let telegram_emoji = "expected an emoji that Telegram takes as a reaction, as 👀 or 👌";
    let discord_emoji = "expected an emoji, or name:id of a server's own";
    let slack_emoji = "expected the name of a reaction, as in :eyes:";

    let mut faults = Vec::new();
    let mut check = |channel: &str, name: &str, policy: &AcknowledgePolicy, takes: fn(&str) -> bool, expected: &str| {
        for (key, emoji) in [
            ("taken", &policy.taken),
            ("answered", &policy.answered),
            ("failed", &policy.failed),
        ] {
            if emoji.as_deref().is_some_and(|emoji| !takes(emoji)) {
                let key = format!("{channel}.accounts.{name}.acknowledge.{key}");
                faults.push(KeyFault::new(key, expected));
            }
        }
    };
    telegram.for_each(|(name, policy)| check(TELEGRAM, name, policy, channel::telegram::is_reaction, telegram_emoji));
    discord.for_each(|(name, policy)| check(DISCORD, name, policy, channel::discord::is_reaction, discord_emoji));
    slack.for_each(|(name, policy)| check(SLACK, name, policy, channel::slack::is_reaction, slack_emoji));
    faults
}

/// Adds the endpoints of `file` to `accounts`; returns what is wrong with it.
fn add_accounts(file: &ChannelsFile<WebhookAccount>, accounts: &mut AccountEndpoints) -> Vec<KeyFault> {
    let mut faults: Vec<KeyFault> = file.bridges.keys().filter_map(|channel| fault_of(channel)).collect();

    let hooked = (webhook::NAME, webhook::NAME.to_owned(), &file.webhook);
    let bridged = file
        .bridges
        .iter()
        .map(|(channel, section)| (channel.as_str(), format!("bridges.{channel}"), section));

    for (channel, place, section) in std::iter::once(hooked).chain(bridged) {
        for (name, account) in &section.accounts {
            match parse_endpoint(&format!("{place}.accounts.{name}"), account) {
                Ok(endpoint) => {
                    let endpoints = accounts.entry(channel.to_owned()).or_default();
                    endpoints.insert(name.clone(), endpoint);
                }
                Err(found) => faults.extend(found),
            }
        }
    }

    faults
}

/// Returns the error in the name of a bridged channel.
fn fault_of(channel: &str) -> Option<KeyFault> {
    let mut own = [nats::NAME].into_iter().chain(nats::LOCAL);
    let key = format!("bridges.{channel}");
    let is_own = is_sealed_channel(channel) || is_platform(channel) || own.any(|own| own.eq_ignore_ascii_case(channel));
    if is_own {
        return Some(KeyFault::new(key, "the channel is our own; choose another"));
    }
    let expected = format!("expected a name of letters, digits, `-`, `_` and `.`, at most {MAX_NAME_BYTES}");
    (!is_plain_name(channel)).then(|| KeyFault::new(key, expected))
}

fn parse_endpoint(place: &str, account: &WebhookAccount) -> Result<WebhookEndpoint, Vec<KeyFault>> {
    let mut faults = Vec::new();
    let mut fault = |key: &str, expected: &str| faults.push(KeyFault::new(format!("{place}.{key}"), expected));

    // All faults of an account are reported at once.
    let url = reqwest::Url::parse(&account.url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.is_none() {
        fault("url", "expected an http or https URL");
    }

    let key = SigningKey::parse(account.secret.reveal());
    if let Err(error) = &key {
        fault("secret", &error.to_string());
    }

    let layout = parse_layout(account, fault);
    match (url, key) {
        (Some(url), Ok(key)) if faults.is_empty() => Ok(WebhookEndpoint { url, key, layout }),
        (Some(_) | None, Ok(_) | Err(_)) => Err(faults),
    }
}

/// Returns the form and size of the account's parts; calls `fault` with each key that is wrong and what is expected.
fn parse_layout(account: &WebhookAccount, mut fault: impl FnMut(&str, &str)) -> PartLayout {
    let format = account.format;
    let own = format.markup().and_then(|markup| markup.own_limit());
    let (is_cut, least) = match format {
        TextFormat::Markdown | TextFormat::Plain => (true, 1),
        TextFormat::EmailHtml => (false, 1),
        TextFormat::Slack
        | TextFormat::Discord
        | TextFormat::TelegramHtml
        | TextFormat::Whatsapp
        | TextFormat::Signal => (true, LEAST_SIZE),
    };

    let most = own.map_or(usize::MAX, |own| own.max);
    match account.text_limit {
        Some(_) if !is_cut => fault("text_limit", "expected none: an e-mail is not cut"),
        Some(limit) if limit < least => fault("text_limit", &format!("expected at least {least}")),
        Some(limit) if limit > most => fault(
            "text_limit",
            &format!("expected at most {most}, the platform's own limit"),
        ),
        Some(_) | None => {}
    }

    match account.line_limit {
        Some(_) if !is_cut || format == TextFormat::Markdown => {
            fault("line_limit", "expected none: the format is not cut by lines");
        }
        Some(lines) if lines < LEAST_LINES => fault("line_limit", &format!("expected at least {LEAST_LINES}")),
        Some(_) | None => {}
    }

    let unit = own.map_or(LengthUnit::Characters, |own| own.unit);
    PartLayout {
        format,
        limit: account.text_limit.map(|max| ChunkLimit { max, unit }).or(own),
        max_lines: account.line_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_secret(url: &str, secret: &str, limit: usize) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), secret).expect("written");
        let path = file.into_temp_path().keep().expect("kept");
        format!(
            "webhook: {{accounts: {{demo: {{url: '{url}', secret: 'file:{}', text_limit: {limit}}}}}}}",
            path.display()
        )
    }

    #[test]
    fn an_empty_file_has_no_accounts() {
        assert!(read("").expect("read").endpoints.is_empty());
        assert!(read("webhook: {}").expect("read").endpoints.is_empty());
        assert!(read("# none yet\n").expect("read").endpoints.is_empty());
    }

    #[test]
    fn an_account_is_read_with_its_secret() {
        let text = with_secret("http://127.0.0.1:9/x", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 10);
        let endpoints = read(&text).expect("read").endpoints;
        let demo = &endpoints["webhook"]["demo"];

        assert_eq!(demo.url.as_str(), "http://127.0.0.1:9/x");
        assert_eq!(
            demo.layout,
            PartLayout::markdown(Some(ChunkLimit {
                max: 10,
                unit: LengthUnit::Characters
            }))
        );
    }

    /// Returns the layout of an account with `keys`, or the keys that are wrong and what is expected.
    fn layout(keys: &str) -> Result<PartLayout, Vec<String>> {
        let text = with_secret("http://127.0.0.1:9/x", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 10);
        let read = read(&text.replace("text_limit: 10", keys));
        let told = |error: ReadAccountsError| error.0.iter().map(ToString::to_string).collect();
        read.map(|accounts| accounts.endpoints["webhook"]["demo"].layout)
            .map_err(told)
    }

    #[test]
    fn a_format_has_the_limit_of_its_platform() {
        let html = layout("format: telegram_html").expect("a layout");
        assert_eq!(html.limit, Some(telegram::MESSAGE));

        let signal = layout("format: signal, text_limit: 2000").expect("a layout");
        let bytes = LengthUnit::Bytes;
        assert_eq!(
            signal.limit,
            Some(ChunkLimit {
                max: 2_000,
                unit: bytes
            })
        );

        let discord = layout("format: discord, line_limit: 17").expect("a layout");
        assert_eq!((discord.format, discord.max_lines), (TextFormat::Discord, Some(17)));
        assert_eq!(layout("format: email_html").expect("a layout").limit, None);
    }

    #[test]
    fn limits_fit_the_format() {
        for keys in [
            "format: mrkdwn",
            "format: slack, text_limit: 99",
            "format: slack, text_limit: 4001",
            "format: telegram_html, text_limit: 4097",
            "format: signal, text_limit: 2049",
            "format: discord, line_limit: 4",
            "format: email_html, text_limit: 4000",
            "format: email_html, line_limit: 17",
            "line_limit: 17",
            "text_limit: 0",
        ] {
            let faults = layout(keys).expect_err(keys);
            assert_eq!(faults.len(), 1, "{keys}: {faults:?}");
        }
    }

    #[test]
    fn a_channel_of_another_name_is_bridged_and_ours_are_not() {
        let text = with_secret("http://127.0.0.1:9/x", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 10);
        let below = |channel: &str| format!("bridges: {{{}}}", text.replace("webhook:", &format!("{channel}:")));
        let bridged = read(&below("whatsapp")).expect("read").endpoints;
        assert!(bridged["whatsapp"].contains_key("demo"));
        for own in [
            "webhook", "webchat", "nats", "CLI", "http", "timer", "Telegram", "Discord", "slack", "'a b'",
        ] {
            let faults = read(&below(own)).expect_err("refused");
            assert_eq!(faults.0.len(), 1, "{own}: {faults:?}");
        }
    }

    #[test]
    fn a_bot_is_an_account_with_a_limit_in_telegrams_bounds() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "123456:AbC-dEf_1").expect("written");
        let token = file.path().display();
        let with_limit = |limit: usize| {
            read(&format!(
                "telegram: {{accounts: {{bot: {{token: 'file:{token}', text_limit: {limit}}}}}}}"
            ))
        };

        assert!(with_limit(4_096).expect("read").telegram.contains_key("bot"));
        for limit in [99, 4_097] {
            let ReadAccountsError(faults) = with_limit(limit).expect_err("a fault");
            assert_eq!(faults[0].key, "telegram.accounts.bot.text_limit");
        }
    }

    #[test]
    fn a_bot_of_discord_has_a_limit_in_its_bounds() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "MTk4.Cl2FMQ.Zn-Cjm1").expect("written");
        let token = file.path().display();
        let with_limit = |limit: usize| {
            read(&format!(
                "discord: {{accounts: {{bot: {{token: 'file:{token}', text_limit: {limit}}}}}}}"
            ))
        };

        assert!(
            with_limit(2_000)
                .expect("read")
                .token_hashes()
                .contains_key("discord:bot")
        );
        for limit in [99, 2_001] {
            let ReadAccountsError(faults) = with_limit(limit).expect_err("a fault");
            assert_eq!(faults[0].key, "discord.accounts.bot.text_limit");
        }
    }

    #[test]
    fn an_app_is_an_account_with_a_limit_in_slacks_bounds() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "xoxb-1").expect("written");
        let token = file.path().display();
        let with_limit = |limit: usize| {
            read(&format!(
                "slack: {{accounts: {{app: {{token: 'file:{token}', receive: none, text_limit: {limit}}}}}}}"
            ))
        };

        let accounts = with_limit(4_000).expect("read");
        assert!(accounts.slack.contains_key("app") && accounts.token_hashes().contains_key("slack:app"));
        for limit in [99, 4_001] {
            let ReadAccountsError(faults) = with_limit(limit).expect_err("a fault");
            assert_eq!(faults[0].key, "slack.accounts.app.text_limit");
        }
    }

    #[test]
    fn a_reaction_is_one_that_the_platform_takes() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let fault = |channel: &str, token: &str, keys: &str| {
            std::fs::write(file.path(), token).expect("written");
            let token = file.path().display();
            let text = format!("{channel}: {{accounts: {{bot: {{token: 'file:{token}', {keys}}}}}}}");
            let read = read(&text);
            read.err()
                .map(|error| error.0.into_iter().map(|fault| fault.key).collect::<Vec<_>>())
        };
        let bot = |emoji: &str| {
            fault(
                "telegram",
                "123456:AbC-dEf_1",
                &format!("acknowledge: {{answered: '{emoji}'}}"),
            )
        };
        let client = |emoji: &str| {
            fault(
                "discord",
                "MTk4.Cl2FMQ.Zn-Cjm1",
                &format!("acknowledge: {{taken: '{emoji}'}}"),
            )
        };
        let app = |emoji: &str| {
            fault(
                "slack",
                "xoxb-1",
                &format!("receive: none, acknowledge: {{taken: '{emoji}'}}"),
            )
        };

        assert_eq!((bot("👌"), client("✅"), app(":eyes:")), (None, None, None));
        let one = |key: &str| Some(vec![key.to_owned()]);
        assert_eq!(bot("✅"), one("telegram.accounts.bot.acknowledge.answered"));
        assert_eq!(client("eyes"), one("discord.accounts.bot.acknowledge.taken"));
        assert_eq!(app("🦄"), one("slack.accounts.bot.acknowledge.taken"));

        // A webhook shows no reactions.
        std::fs::write(file.path(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("written");
        let secret = file.path().display();
        let webhook = |keys: &str| {
            read(&format!(
                "webhook: {{accounts: {{demo: {{url: 'http://x', secret: 'file:{secret}'{keys}}}}}}}"
            ))
        };
        assert!(webhook("").is_ok() && webhook(", acknowledge: {taken: 👀}").is_err());
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let text = with_secret("ftp://x", "not base64!", 0);
        let ReadAccountsError(faults) = read(&text).expect_err("faults");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert_eq!(faults[0].key, "webhook.accounts.demo.url");
    }

    #[test]
    fn the_secrets_of_all_accounts_are_looked_at() {
        let text = "webhook: {accounts: {a: {url: 'http://x', secret: 'env:NEXUS_NO_SUCH_ONE'}, b: {url: 'http://x', \
                    secret: 'env:NEXUS_NO_SUCH_TWO'}}}\nbridges: {nats: {}}\n";
        let ReadAccountsError(faults) = read(text).expect_err("faults");
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        assert_eq!(
            keys,
            ["webhook.accounts.a.secret", "webhook.accounts.b.secret", "bridges.nats"]
        );
    }

    #[test]
    fn unknown_keys_are_faults() {
        assert!(read("webhok: {}").is_err());
        assert!(read("webhook: {accounts: {demo: {uri: x}}}").is_err());
    }
}
