//! Questions to Discord about a bot: its identity, its intents, the number of sessions that it may begin, and which of
//! the configured channels and servers it sees. Nothing is changed there.
//!
//! Source: <https://discord.com/developers/docs/resources/user>,
//! <https://discord.com/developers/docs/resources/application#application-object-application-flags>.

use anyhow::Result;
use reqwest::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shared::platform::discord::{DiscordAccount, ReceiveMode, USER_AGENT};
use shared::platform::policy::ANY_GROUP;

use super::finding::CheckFinding;
use super::platform_call::{CallFault, PlatformAnswer, open_client, send_request};

/// Bits of an application that may read the content of messages: of verified bots, and of the others.
const CONTENT_FLAGS: u64 = 1 << 18 | 1 << 19;
/// Number of sessions that adapter-svc leaves to other programs of the bot.
const SPARED_STARTS: u64 = 20;
/// Maximum number of groups that are asked for: Discord bars an address that asks too often for what it may not see.
const MAX_GROUPS: usize = 20;

#[derive(Debug, Deserialize)]
struct OwnUser {
    username: String,
}

#[derive(Debug, Deserialize)]
struct OwnApplication {
    #[serde(default)]
    flags: u64,
}

#[derive(Debug, Deserialize)]
struct GatewayUse {
    session_start_limit: SessionStarts,
}

#[derive(Debug, Deserialize)]
struct SessionStarts {
    remaining: u64,
    reset_after: u64,
}

#[derive(Debug, Deserialize)]
struct GuildName {
    id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    message: String,
}

/// Asks Discord about the bot of `account`.
///
/// # Errors
/// Fails if no HTTP client can be made.
pub(super) async fn check_discord(account: &DiscordAccount) -> Result<Vec<CheckFinding>> {
    let client = open_client(USER_AGENT)?;
    let bot = match call::<OwnUser>(&client, account, "users/@me").await {
        Ok(bot) => bot,
        Err(CallFault::Token(said)) => {
            let text = format!("{said}: the token is not accepted; *Reset Token* on the bot's page shows a new one");
            return Ok(vec![CheckFinding::fault("token", text)]);
        }
        Err(CallFault::Other(said)) => return Ok(vec![CheckFinding::fault("token", said)]),
    };

    let mut findings = vec![CheckFinding::sound("token", format!("the bot is {}", bot.username))];
    match account.receive {
        ReceiveMode::Gateway => {
            let application = call(&client, account, "applications/@me").await;
            findings.push(judge_content(application));
            findings.push(judge_sessions(call(&client, account, "gateway/bot").await));
        }
        ReceiveMode::None => findings.push(CheckFinding::sound("content", "the account does not receive")),
    }
    findings.push(check_groups(&client, account).await);
    Ok(findings)
}

async fn call<T: DeserializeOwned>(client: &Client, account: &DiscordAccount, path: &str) -> Result<T, CallFault> {
    let request = client.get(account.base_url.join(path));
    let request = request.header("authorization", account.authorization());
    read_answer(&send_request("Discord", request).await?)
}

/// Returns the result in `answer`.
fn read_answer<T: DeserializeOwned>(answer: &PlatformAnswer) -> Result<T, CallFault> {
    let status = answer.status;
    if (200..=299).contains(&status) {
        return serde_json::from_slice(&answer.body).map_err(|_| {
            let text = format!("the answer (status {status}) is not one of Discord's API: is `base_url` right?");
            CallFault::Other(text)
        });
    }

    let words: ErrorBody = serde_json::from_slice(&answer.body).unwrap_or_default();
    let said = format!("Discord says {status} {}", words.message).trim_end().to_owned();
    Err(if status == 401 {
        CallFault::Token(said)
    } else {
        CallFault::Other(said)
    })
}

fn judge_content(application: Result<OwnApplication, CallFault>) -> CheckFinding {
    match application {
        Ok(application) if application.flags & CONTENT_FLAGS != 0 => {
            CheckFinding::sound("content", "the bot may read the content of messages")
        }
        Ok(_) => CheckFinding::fault(
            "content",
            "the bot may not read the content of messages, so Discord does not connect it: switch on MESSAGE CONTENT INTENT \
             on the bot's page of the developer portal",
        ),
        Err(CallFault::Token(said) | CallFault::Other(said)) => CheckFinding::fault("content", said),
    }
}

fn judge_sessions(found: Result<GatewayUse, CallFault>) -> CheckFinding {
    let starts = match found {
        Ok(found) => found.session_start_limit,
        Err(CallFault::Token(said) | CallFault::Other(said)) => return CheckFinding::fault("sessions", said),
    };
    let (left, minutes) = (starts.remaining, starts.reset_after.div_ceil(60_000));
    if left > SPARED_STARTS {
        return CheckFinding::sound(
            "sessions",
            format!("{left} more may be begun in the next {minutes} minutes"),
        );
    }
    CheckFinding::fault(
        "sessions",
        format!(
            "only {left} more may be begun in the next {minutes} minutes, and adapter-svc waits: does another program use \
             the bot's token?"
        ),
    )
}

/// Asks which of the configured channels and servers the bot sees.
async fn check_groups(client: &Client, account: &DiscordAccount) -> CheckFinding {
    let Some(groups) = account.groups.as_ref().filter(|groups| !groups.is_empty()) else {
        return CheckFinding::sound("groups", "none is configured: messages of servers fire nothing");
    };
    let guilds = match call::<Vec<GuildName>>(client, account, "users/@me/guilds").await {
        Ok(guilds) => guilds,
        Err(CallFault::Token(said) | CallFault::Other(said)) => return CheckFinding::fault("groups", said),
    };
    if guilds.is_empty() {
        let text = "groups are configured, and the bot is in no server: *URL Generator* of the developer portal makes the link \
                    that invites it";
        return CheckFinding::fault("groups", text);
    }

    let is_guild = |id: &str| id == ANY_GROUP || guilds.iter().any(|guild| guild.id == id);
    let channels = groups.keys().filter(|id| !is_guild(id));
    let mut unseen = Vec::new();
    for id in channels.take(MAX_GROUPS) {
        let found = call::<serde::de::IgnoredAny>(client, account, &format!("channels/{id}")).await;
        match found {
            Ok(_) => {}
            Err(CallFault::Token(said) | CallFault::Other(said)) => unseen.push(format!("{id} ({said})")),
        }
    }
    if unseen.is_empty() {
        let text = format!(
            "the bot is in {} servers, and sees the configured channels",
            guilds.len()
        );
        return CheckFinding::sound("groups", text);
    }
    CheckFinding::fault(
        "groups",
        format!(
            "the bot sees no server or channel {}: invite it, or give it *View Channels* there",
            unseen.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use axum::extract::{Path, State};
    use axum::http::StatusCode;
    use axum::response::{IntoResponse as _, Response};
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::{Value, json};
    use shared::platform::accounts::read_platforms;

    use super::*;

    /// What the stand-in says by path; what it does not have is 403.
    type Answers = std::collections::BTreeMap<&'static str, (u16, Value)>;

    fn sound_answers() -> Answers {
        let limit = json!({"total": 1_000, "remaining": 900, "reset_after": 3_600_000, "max_concurrency": 1});
        Answers::from([
            ("users/@me", (200, json!({"id": "77", "username": "nexus"}))),
            ("applications/@me", (200, json!({"id": "77", "flags": 1 << 19}))),
            (
                "gateway/bot",
                (200, json!({"url": "wss://gateway", "session_start_limit": limit})),
            ),
            ("users/@me/guilds", (200, json!([{"id": "20", "name": "guild"}]))),
            ("channels/1000", (200, json!({"id": "1000", "type": 0}))),
        ])
    }

    async fn answer(State(answers): State<Answers>, Path(path): Path<String>) -> Response {
        let missing = (403, json!({"message": "Missing Access", "code": 50_001}));
        let (status, body) = answers.get(path.as_str()).unwrap_or(&missing).clone();
        let status = StatusCode::from_u16(status).expect("a status");
        (status, Json(body)).into_response()
    }

    /// What is found about the account with `more`, if Discord answers so.
    async fn check(answers: Answers, more: &str) -> Vec<CheckFinding> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let routes = Router::new().route("/api/{*path}", get(answer)).with_state(answers);
        tokio::spawn(async move { axum::serve(listener, routes).await });

        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "77.a.secret").expect("written");
        let token = file.path().display();
        let text = format!(
            "discord: {{accounts: {{main: {{token: 'file:{token}', base_url: 'http://{address}/api'{more}}}}}}}"
        );
        let accounts = read_platforms(&text).expect("the file is read");
        let findings = check_discord(&accounts.discord.accounts["main"])
            .await
            .expect("a client");
        assert!(
            findings.iter().all(|finding| !finding.detail.contains("secret")),
            "{findings:?}"
        );
        findings
    }

    fn faults(findings: &[CheckFinding]) -> Vec<&'static str> {
        let faults = findings.iter().filter(|finding| !finding.ok);
        faults.map(|finding| finding.what).collect()
    }

    #[tokio::test]
    async fn a_sound_bot_has_no_faults_and_each_fault_is_named() {
        let groups = ", groups: {'20': {}, '1000': {}, '*': {}}";
        let found = check(sound_answers(), groups).await;
        assert_eq!(faults(&found), Vec::<&str>::new(), "{found:?}");
        assert_eq!(found[0].detail, "the bot is nexus");
        assert_eq!(faults(&check(sound_answers(), "").await), Vec::<&str>::new());

        let with = |path: &'static str, status: u16, body: Value| {
            let mut answers = sound_answers();
            answers.insert(path, (status, body));
            answers
        };
        let refused = json!({"message": "401: Unauthorized", "code": 0});
        let found = check(with("users/@me", 401, refused), groups).await;
        assert_eq!(faults(&found), ["token"]);
        assert!(found[0].detail.contains("401: Unauthorized"), "{found:?}");
        let found = check(with("users/@me", 200, json!("<html>")), groups).await;
        assert!(found[0].detail.contains("base_url"), "{found:?}");

        let found = check(with("applications/@me", 200, json!({"flags": 1 << 15})), groups).await;
        assert_eq!(faults(&found), ["content"]);
        assert_eq!(
            faults(&check(with("applications/@me", 200, json!({})), ", receive: none").await),
            Vec::<&str>::new()
        );
        let limit = json!({"remaining": 3, "reset_after": 60_000});
        let found = check(with("gateway/bot", 200, json!({"session_start_limit": limit})), "").await;
        assert_eq!(faults(&found), ["sessions"]);

        assert_eq!(
            faults(&check(with("users/@me/guilds", 200, json!([])), groups).await),
            ["groups"]
        );
        let found = check(sound_answers(), ", groups: {'1000': {}, '1001': {}}").await;
        assert_eq!(faults(&found), ["groups"]);
        assert!(
            found[3].detail.contains("1001 (Discord says 403 Missing Access)"),
            "{found:?}"
        );
    }
}
