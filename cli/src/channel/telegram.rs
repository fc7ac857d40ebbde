//! Telegram's answers about a bot: `getMe` and `getWebhookInfo`, which change nothing.
//!
//! Source: <https://core.telegram.org/bots/api#getme>, <https://core.telegram.org/bots/api#getwebhookinfo>. The URL of a
//! call has the token, so no error is shown with its URL.

use anyhow::Result;
use reqwest::Url;
use serde::de::DeserializeOwned;
use shared::platform::bot_api::{BotAnswer, BotUser, WebhookInfo};
use shared::platform::telegram::{ReceiveMode, TelegramAccount};

use super::finding::CheckFinding;
use super::platform_call::{CallFault, open_client, send_request};

/// Asks Telegram about the bot of `account`.
///
/// # Errors
/// Fails if no HTTP client can be made.
pub(super) async fn check_telegram(account: &TelegramAccount) -> Result<Vec<CheckFinding>> {
    let client = open_client(concat!("nexus/", env!("CARGO_PKG_VERSION")))?;
    let bot = call::<BotUser>(&client, account, "getMe").await;
    // A token that is not accepted has no webhook to be asked for.
    let webhook = match &bot {
        Ok(_) => Some(call::<WebhookInfo>(&client, account, "getWebhookInfo").await),
        Err(_) => None,
    };
    Ok(judge_bot(account, bot, webhook))
}

async fn call<T: DeserializeOwned>(
    client: &reqwest::Client,
    account: &TelegramAccount,
    method: &str,
) -> Result<T, CallFault> {
    let request = client.post(account.method_url(method)).json(&serde_json::json!({}));
    let answer = send_request("Telegram", request).await?;
    read_answer(answer.status, &answer.body)
}

/// Returns the result in the `body` of an answer with `status`.
fn read_answer<T: DeserializeOwned>(status: u16, body: &[u8]) -> Result<T, CallFault> {
    let Ok(answer) = serde_json::from_slice::<BotAnswer<T>>(body) else {
        let text = format!("the answer (status {status}) is not one of the Bot API: is `base_url` right?");
        return Err(CallFault::Other(text));
    };
    if let (true, Some(result)) = (answer.ok, answer.result) {
        return Ok(result);
    }

    let code = answer.error_code.unwrap_or_else(|| i64::from(status));
    let words = answer.description.unwrap_or_default();
    let said = format!("Telegram says {code} {words}").trim_end().to_owned();
    Err(match code {
        // A token of a wrong form is a path that does not exist.
        401 | 404 => CallFault::Token(said),
        _ => CallFault::Other(said),
    })
}

/// Returns the findings about `account` that follow from the answers.
fn judge_bot(
    account: &TelegramAccount,
    bot: Result<BotUser, CallFault>,
    webhook: Option<Result<WebhookInfo, CallFault>>,
) -> Vec<CheckFinding> {
    let bot = match bot {
        Ok(bot) => bot,
        Err(CallFault::Token(said)) => {
            let text =
                format!("{said}: the token is not accepted; @BotFather shows the bot's token (/mybots, API Token)");
            return vec![CheckFinding::fault("token", text)];
        }
        Err(CallFault::Other(said)) => return vec![CheckFinding::fault("token", said)],
    };

    let mut findings = vec![CheckFinding::sound("token", format!("the bot is @{}", bot.username))];
    findings.extend(webhook.map(|webhook| judge_webhook(account, webhook)));
    findings.push(judge_groups(account, &bot));
    findings
}

fn judge_webhook(account: &TelegramAccount, webhook: Result<WebhookInfo, CallFault>) -> CheckFinding {
    let info = match webhook {
        Ok(info) => info,
        Err(CallFault::Token(said) | CallFault::Other(said)) => return CheckFinding::fault("webhook", said),
    };

    // The path of a webhook often has a secret.
    let host = Url::parse(&info.url)
        .ok()
        .and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_else(|| "another program".to_owned());
    match (info.url.is_empty(), account.receive) {
        (true, ReceiveMode::Webhook) => CheckFinding::fault(
            "webhook",
            "none is set yet: adapter-svc sets it once it holds the account",
        ),
        (false, ReceiveMode::Webhook) => match info.last_error_message {
            Some(said) if info.pending_update_count > 0 => CheckFinding::fault(
                "webhook",
                format!(
                    "{} updates wait for {host}; Telegram says: {said}",
                    info.pending_update_count
                ),
            ),
            Some(_) | None => CheckFinding::sound("webhook", format!("{host} receives the bot's updates")),
        },
        (true, ReceiveMode::Poll) => CheckFinding::sound(
            "webhook",
            format!("none is set, {} updates wait to be read", info.pending_update_count),
        ),
        (true, ReceiveMode::None) => CheckFinding::sound("webhook", "none is set, and the account does not receive"),
        (false, ReceiveMode::None) => CheckFinding::sound("webhook", format!("{host} receives the bot's updates")),
        (false, ReceiveMode::Poll) => CheckFinding::fault(
            "webhook",
            format!(
                "one is set at {host}, so the bot cannot be polled: remove it with deleteWebhook, or set `receive: none` for \
                 the account"
            ),
        ),
    }
}

fn judge_groups(account: &TelegramAccount, bot: &BotUser) -> CheckFinding {
    let Some(groups) = account.groups.as_ref().filter(|groups| !groups.is_empty()) else {
        return CheckFinding::sound("groups", "none is configured: messages of groups fire nothing");
    };
    if !bot.can_join_groups {
        let text = "groups are configured, and the bot may not be added to any: @BotFather /setjoingroups allows it";
        return CheckFinding::fault("groups", text);
    }

    let needs_all = groups.values().any(|group| !group.require_mention);
    match (bot.can_read_all_group_messages, needs_all) {
        (true, _) => CheckFinding::sound(
            "groups",
            "privacy mode is off: the bot sees every message of its groups",
        ),
        (false, false) => CheckFinding::sound(
            "groups",
            "privacy mode is on: the bot sees commands, mentions and replies, which is what `require_mention` needs",
        ),
        (false, true) => CheckFinding::fault(
            "groups",
            "`require_mention` is off and privacy mode is on, so other messages do not reach the bot unless it is an \
             administrator: @BotFather /setprivacy switches it off; then add the bot to its groups again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use shared::platform::accounts::read_platforms;

    use super::*;

    fn account(more: &str) -> TelegramAccount {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "77:secret").expect("written");
        let token = file.path().display();
        let text = format!("telegram: {{accounts: {{main: {{token: 'file:{token}'{more}}}}}}}");
        let read = read_platforms(&text).expect("the file is read");
        read.telegram.accounts["main"].clone()
    }

    fn bot(can_join_groups: bool, can_read_all_group_messages: bool) -> BotUser {
        BotUser {
            id: 77,
            username: "nexusbot".to_owned(),
            can_join_groups,
            can_read_all_group_messages,
        }
    }

    fn webhook(url: &str) -> Option<Result<WebhookInfo, CallFault>> {
        Some(Ok(WebhookInfo {
            url: url.to_owned(),
            pending_update_count: 3,
            last_error_date: None,
            last_error_message: None,
        }))
    }

    fn faults(findings: &[CheckFinding]) -> Vec<&'static str> {
        findings
            .iter()
            .filter(|finding| !finding.ok)
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn what_stands_in_the_way_is_said_in_plain_words() {
        let judge = |more: &str, bot: BotUser, url: &str| judge_bot(&account(more), Ok(bot), webhook(url));
        assert_eq!(faults(&judge("", bot(false, false), "")), Vec::<&str>::new());

        let set = judge("", bot(true, false), "https://example.com/secret-path");
        assert_eq!(faults(&set), ["webhook"]);
        assert!(
            set[1].detail.contains("example.com") && !set[1].detail.contains("secret-path"),
            "{set:?}"
        );
        assert_eq!(
            faults(&judge(", receive: none", bot(true, false), "https://example.com/")),
            Vec::<&str>::new()
        );

        let everything = ", groups: {'*': {require_mention: false}}";
        assert_eq!(faults(&judge(everything, bot(true, false), "")), ["groups"]);
        assert_eq!(faults(&judge(everything, bot(true, true), "")), Vec::<&str>::new());
        assert_eq!(
            faults(&judge(", groups: {'*': {}}", bot(true, false), "")),
            Vec::<&str>::new()
        );
        assert_eq!(faults(&judge(", groups: {'*': {}}", bot(false, true), "")), ["groups"]);
    }

    #[test]
    fn a_refused_token_and_a_wrong_server_are_told_apart() {
        let read = |status: u16, body: &str| read_answer::<BotUser>(status, body.as_bytes());
        let refused = read(
            401,
            r#"{"ok": false, "error_code": 401, "description": "Unauthorized"}"#,
        );
        assert_eq!(
            refused,
            Err(CallFault::Token("Telegram says 401 Unauthorized".to_owned()))
        );
        assert!(matches!(read(404, r#"{"ok": false}"#), Err(CallFault::Token(_))));
        assert!(matches!(read(200, "<html>"), Err(CallFault::Other(said)) if said.contains("base_url")));
        assert!(matches!(
            read(429, r#"{"ok": false, "error_code": 429}"#),
            Err(CallFault::Other(_))
        ));

        let findings = judge_bot(&account(""), refused, None);
        assert_eq!(faults(&findings), ["token"]);
        assert!(findings[0].detail.contains("@BotFather"), "{findings:?}");
    }
}
