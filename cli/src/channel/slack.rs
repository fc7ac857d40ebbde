//! What Slack says about an app: `auth.test`, with the rights of its token, and `apps.connections.open` for a socket, which
//! only makes an address. Nothing is changed there.
//!
//! Source: <https://docs.slack.dev/reference/methods/auth.test>,
//! <https://docs.slack.dev/reference/methods/apps.connections.open>,
//! <https://docs.slack.dev/reference/scopes/metadata.message.read>.

use anyhow::Result;
use reqwest::Client;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shared::platform::slack::{SlackAccount, SlackReceive};
use shared::platform::slack_api::{WebAnswer, is_credential_error};
use shared::process::SecretValue;

use super::finding::CheckFinding;
use super::platform_call::{CallFault, PlatformAnswer, open_client, send_request};

/// Header with the rights of the token that called.
const SCOPES: &str = "x-oauth-scopes";
/// Purpose of the rights by which a message is found whose sending had no answer.
const SEARCHES: &str = "searches for messages whose sending had no answer";

#[derive(Debug, Deserialize)]
struct TestedToken {
    team: Option<String>,
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
struct OpenedConnection {
    #[expect(dead_code, reason = "the address is a secret; that there is one is enough")]
    url: String,
}

/// Asks Slack about the app of `account`.
///
/// # Errors
/// Fails if no HTTP client can be made.
pub(super) async fn check_slack(account: &SlackAccount) -> Result<Vec<CheckFinding>> {
    let client = open_client(concat!("nexus/", env!("CARGO_PKG_VERSION")))?;
    let tested = call::<TestedToken>(&client, account, "auth.test", &account.token.current()).await;
    let (tested, headers) = match tested {
        Ok(found) => found,
        Err(CallFault::Token(said)) if account.rotation().is_some() => {
            let text = format!(
                "{said}: the configured token has ended, as rotated ones do; the services renew it, and part `slack/NAME token` \
                 of their /readyz says whether they could"
            );
            return Ok(vec![CheckFinding::partial("token", text)]);
        }
        Err(CallFault::Token(said)) => {
            let text =
                format!("{said}: the token is not accepted; *OAuth & Permissions* of the app shows the bot token");
            return Ok(vec![CheckFinding::fault("token", text)]);
        }
        Err(CallFault::Other(said)) => return Ok(vec![CheckFinding::fault("token", said)]),
    };

    let name = |name: Option<String>| name.unwrap_or_else(|| "?".to_owned());
    let shown = format!("the app is @{} in {}", name(tested.user), name(tested.team));
    let mut findings = vec![CheckFinding::sound("token", shown), judge_scopes(account, &headers)];
    findings.push(check_reception(&client, account).await);
    Ok(findings)
}

async fn call<T: DeserializeOwned>(
    client: &Client,
    account: &SlackAccount,
    method: &str,
    token: &SecretValue,
) -> Result<(T, HeaderMap), CallFault> {
    let request = client.post(account.method_url(method)).bearer_auth(token.reveal());
    let answer = send_request("Slack", request).await?;
    let result = read_answer(&answer)?;
    Ok((result, answer.headers))
}

/// Returns the result in `answer`. Its body decides, and not its status.
fn read_answer<T: DeserializeOwned>(answer: &PlatformAnswer) -> Result<T, CallFault> {
    let status = answer.status;
    let strange = |_| {
        let text = format!("the answer (status {status}) is not one of Slack's Web API: is `base_url` right?");
        CallFault::Other(text)
    };
    let read: WebAnswer = serde_json::from_slice(&answer.body).map_err(strange)?;
    if read.ok {
        return serde_json::from_slice(&answer.body).map_err(strange);
    }

    let word = read.error.unwrap_or_default();
    let needed = read.needed.map(|scope| format!(" (it needs {scope})"));
    let said = format!("Slack says {word}{}", needed.unwrap_or_default());
    Err(if is_credential_error(&word) {
        CallFault::Token(said)
    } else {
        CallFault::Other(said)
    })
}

/// A right of an app.
#[derive(Debug, Clone, Copy)]
struct AppScope {
    name: &'static str,
    purpose: &'static str,
    /// Whether nothing works without it; without another right, only its purpose fails.
    essential: bool,
}

/// Returns the rights that `account` uses.
///
/// The search for a message whose sending had no answer reads the conversation, so an account that only sends uses those
/// rights too.
fn used_scopes(account: &SlackAccount) -> Vec<AppScope> {
    let (receives, has_groups) = match account.receive {
        SlackReceive::Events | SlackReceive::Socket => {
            let groups = account.groups.as_ref();
            (true, groups.is_some_and(|groups| !groups.is_empty()))
        }
        SlackReceive::None => (false, false),
    };
    let scope = |name, purpose, essential| AppScope {
        name,
        purpose,
        essential,
    };
    let history = |name, received, is_received| {
        let purpose = if is_received { received } else { SEARCHES };
        scope(name, purpose, is_received)
    };

    let mut used = vec![
        scope("chat:write", "answers", true),
        history("im:history", "direct messages", receives),
        history("channels:history", "messages of channels", has_groups),
        scope(
            "groups:history",
            "messages of private channels, and searches there",
            false,
        ),
        scope(
            "mpim:history",
            "messages of group conversations, and searches there",
            false,
        ),
        scope("metadata.message:read", SEARCHES, false),
        scope("reactions:write", "reactions of agents", false),
    ];
    if has_groups {
        used.push(scope("app_mentions:read", "mentions", true));
    }
    if receives {
        used.push(scope("files:read", "files of messages", false));
    }
    used
}

fn judge_scopes(account: &SlackAccount, headers: &HeaderMap) -> CheckFinding {
    let Some(has) = headers.get(SCOPES).and_then(|value| value.to_str().ok()) else {
        return CheckFinding::sound("scopes", "Slack does not say which rights the token has");
    };
    let has: Vec<&str> = has.split(',').map(str::trim).collect();
    let mut missing = used_scopes(account);
    missing.retain(|scope| !has.contains(&scope.name));
    if missing.is_empty() {
        return CheckFinding::sound("scopes", "the token has the rights that the account uses");
    }

    let is_fault = missing.iter().any(|scope| scope.essential);
    let named = missing
        .iter()
        .map(|scope| format!("{} ({})", scope.name, scope.purpose))
        .collect::<Vec<_>>()
        .join(", ");
    let remedy = "add them on *OAuth & Permissions* of the app, and install it again";
    if is_fault {
        return CheckFinding::fault("scopes", format!("the token lacks {named}: {remedy}"));
    }
    let text = format!("the token lacks {named}: only these fail. If you want them, {remedy}");
    CheckFinding::partial("scopes", text)
}

/// Asks whether the account can receive as it is configured, as far as Slack says.
async fn check_reception(client: &Client, account: &SlackAccount) -> CheckFinding {
    let token = match (account.receive, &account.app_token) {
        (SlackReceive::None, _) => return CheckFinding::sound("receive", "the account does not receive"),
        (SlackReceive::Events, _) | (SlackReceive::Socket, None) => {
            let text = "Slack posts events, and says nothing about the address and the signing secret: *Event Subscriptions* \
                        of the app verifies them";
            return CheckFinding::sound("receive", text);
        }
        (SlackReceive::Socket, Some(token)) => token,
    };
    match call::<OpenedConnection>(client, account, "apps.connections.open", token).await {
        Ok(_) => CheckFinding::sound("receive", "the app may open a socket"),
        Err(CallFault::Token(said)) => {
            let text = format!(
                "{said}: the app's token is not accepted; it begins with `xapp-` and needs the scope connections:write"
            );
            CheckFinding::fault("receive", text)
        }
        Err(CallFault::Other(said)) => {
            let text = format!("{said}: is Socket Mode switched on for the app?");
            CheckFinding::fault("receive", text)
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::{Path, State};
    use axum::response::{IntoResponse as _, Response};
    use axum::routing::post;
    use axum::{Json, Router};
    use serde_json::{Value, json};
    use shared::platform::accounts::read_platforms;

    use super::*;

    /// What the stand-in says by method, and the rights that it names.
    #[derive(Clone)]
    struct Answers {
        tested: Value,
        opened: Value,
        scopes: &'static str,
    }

    const ALL: &str = "app_mentions:read,channels:history,chat:write,files:read,groups:history,im:history,\
                       metadata.message:read,mpim:history,reactions:write";

    fn sound_answers() -> Answers {
        Answers {
            tested: json!({"ok": true, "team": "Acme", "user": "nexus", "team_id": "T1", "user_id": "U7"}),
            opened: json!({"ok": true, "url": "wss://wss-primary.slack.com/link/?ticket=secret"}),
            scopes: ALL,
        }
    }

    async fn answer(State(answers): State<Answers>, Path(method): Path<String>) -> Response {
        let body = match method.as_str() {
            "auth.test" => answers.tested,
            "apps.connections.open" => answers.opened,
            other => json!({"ok": false, "error": format!("unknown_method {other}")}),
        };
        ([(SCOPES, answers.scopes)], Json(body)).into_response()
    }

    /// What is found about the account with `more`, if Slack answers so.
    async fn check(answers: Answers, more: &str) -> Vec<CheckFinding> {
        check_as("xoxb-secret", answers, more).await
    }

    /// As [`check`], with the token `token`.
    async fn check_as(token: &str, answers: Answers, more: &str) -> Vec<CheckFinding> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let routes = Router::new().route("/api/{method}", post(answer)).with_state(answers);
        tokio::spawn(async move { axum::serve(listener, routes).await });

        let folder = tempfile::tempdir().expect("a folder");
        let secret = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            format!("file:{}", path.display())
        };
        let (token, app) = (secret("token", token), secret("app", "xapp-secret"));
        let signing = secret("signing", "8f742231b10e8888abcd99yyyzzz85a5");
        let text = format!(
            "slack: {{accounts: {{main: {{token: '{token}', app_token: '{app}', signing_secret: '{signing}', \
             base_url: 'http://{address}'{more}}}}}}}"
        );
        let accounts = read_platforms(&text).expect("the file is read");
        let findings = check_slack(&accounts.slack.accounts["main"]).await.expect("a client");
        let is_told = |finding: &CheckFinding| finding.detail.contains("ticket") || finding.detail.contains("xoxb-s");
        assert!(!findings.iter().any(is_told), "{findings:?}");
        findings
    }

    fn faults(findings: &[CheckFinding]) -> Vec<&'static str> {
        let faults = findings.iter().filter(|finding| !finding.ok);
        faults.map(|finding| finding.what).collect()
    }

    #[tokio::test]
    async fn a_sound_app_has_no_faults_and_each_fault_is_named() {
        let socket = ", receive: socket, groups: {'*': {}}";
        for more in ["", socket, ", receive: none"] {
            let found = check(sound_answers(), more).await;
            assert_eq!(faults(&found), Vec::<&str>::new(), "{more}: {found:?}");
            assert_eq!(found[0].detail, "the app is @nexus in Acme");
            assert!(found.iter().all(|finding| !finding.degraded), "{more}: {found:?}");
        }

        let mut refused = sound_answers();
        refused.tested = json!({"ok": false, "error": "invalid_auth"});
        let found = check(refused, socket).await;
        assert_eq!(faults(&found), ["token"]);
        assert!(found[0].detail.contains("invalid_auth"), "{found:?}");
        let mut strange = sound_answers();
        strange.tested = json!("<html>");
        assert!(check(strange, socket).await[0].detail.contains("base_url"));

        let mut poor = sound_answers();
        poor.scopes = "chat:write, im:history";
        assert_eq!(faults(&check(poor.clone(), "").await), Vec::<&str>::new());
        let found = check(poor, socket).await;
        assert_eq!(faults(&found), ["scopes"]);
        assert!(found[1].detail.contains("app_mentions:read (mentions)"), "{found:?}");

        for (error, words) in [("invalid_auth", "connections:write"), ("internal_error", "Socket Mode")] {
            let mut closed = sound_answers();
            closed.opened = json!({"ok": false, "error": error});
            assert_eq!(faults(&check(closed.clone(), "").await), Vec::<&str>::new());
            let found = check(closed, socket).await;
            assert_eq!(faults(&found), ["receive"], "{error}");
            assert!(found[2].detail.contains(words), "{found:?}");
        }
    }

    #[tokio::test]
    async fn a_right_without_which_only_its_purpose_fails_is_no_fault() {
        let socket = ", receive: socket, groups: {'*': {}}";
        let essential = ["chat:write", "im:history", "channels:history", "app_mentions:read"];
        for lacked in ALL.split(',') {
            let mut poor = sound_answers();
            let kept = ALL.split(',').filter(|scope| *scope != lacked).collect::<Vec<_>>();
            poor.scopes = kept.join(",").leak();
            let found = check(poor, socket).await;
            let scopes = found.iter().find(|finding| finding.what == "scopes").expect("rights");
            assert!(scopes.detail.contains(lacked), "{lacked}: {found:?}");
            assert_eq!(scopes.ok, !essential.contains(&lacked), "{lacked}: {found:?}");
            assert_eq!(scopes.degraded, scopes.ok, "{lacked}: {found:?}");
        }

        let mut sender = sound_answers();
        sender.scopes = "chat:write";
        let found = check(sender, ", receive: none").await;
        assert_eq!(faults(&found), Vec::<&str>::new());
        assert!(
            found[1].degraded && found[1].detail.contains("im:history (searches"),
            "{found:?}"
        );
        assert!(!found[1].detail.contains("files:read"), "{found:?}");
    }

    #[tokio::test]
    async fn a_rotated_token_that_has_ended_is_no_fault() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            format!("file:{}", path.display())
        };
        let rotated = format!(
            ", receive: none, refresh_token: '{}', client_id: '{}', client_secret: '{}'",
            secret("refresh", "xoxe-1-secret"),
            secret("id", "1.2"),
            secret("client", "client-secret")
        );
        let mut ended = sound_answers();
        ended.tested = json!({"ok": false, "error": "token_expired"});
        let found = check_as("xoxe.xoxb-secret", ended, &rotated).await;
        assert!(
            found[0].ok && found[0].degraded && found[0].detail.contains("token_expired"),
            "{found:?}"
        );
    }

    /// The manifest of the documentation makes an app that the check finds sound.
    #[test]
    fn the_documented_manifest_has_the_rights_that_are_checked() {
        let page = include_str!("../../../docs/slack.md");
        let (_, manifest) = page.split_once("```json\n").expect("a manifest");
        let (manifest, _) = manifest.split_once("```").expect("its end");
        let manifest: Value = serde_json::from_str(manifest).expect("JSON");
        let granted = manifest["oauth_config"]["scopes"]["bot"].as_array().expect("rights");
        for scope in ALL.split(',') {
            assert!(granted.contains(&json!(scope)), "{scope}");
        }
    }
}
