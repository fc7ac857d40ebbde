//! The stories of Telegram and Slack with stand-ins that others have written.

use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use tests::eventually::eventually;
use tests::npm::Emulator;
use tests::slack::{SECRET, envelope_of, signed_post};
use tests::world::{Setup, World, shipped_hook};

use crate::story::PATIENCE;

/// Starts `telegram-test-api` behind a server that answers the one call that it lacks.
const TELEGRAM: &str = r#"
import http from "node:http";
import { createRequire } from "node:module";
const TelegramServer = createRequire(import.meta.url)("telegram-test-api");

const port = Number(process.argv[2]);
const inner = new TelegramServer({ port: 0, host: "127.0.0.1" });
inner.config.port = await new Promise((resolve) => {
  const probe = http.createServer().listen(0, "127.0.0.1", () => {
    const { port } = probe.address();
    probe.close(() => resolve(port));
  });
});
await inner.start();

const front = http.createServer((request, response) => {
  if (request.url.endsWith("/getWebhookInfo")) {
    request.resume();
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ ok: true, result: { url: "", has_custom_certificate: false, pending_update_count: 0 } }));
    return;
  }
  const { url: path, method, headers } = request;
  const passed = http.request({ host: "127.0.0.1", port: inner.config.port, path, method, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  request.pipe(passed);
});
front.listen(port, "localhost", () => console.log("ready"));
"#;

/// Starts `emulate` with a workspace of a person and an app.
const SLACK: &str = r#"
import { createEmulator } from "emulate";
await createEmulator({
  service: "slack",
  port: Number(process.argv[2]),
  seed: {
    slack: {
      team: { name: "Acme", domain: "acme" },
      users: [{ name: "ann", email: "ann@acme.test" }, { name: "nexus", email: "nexus@acme.test" }],
      channels: [{ name: "support" }],
      tokens: [
        { token: "xoxp-ann", user: "ann", scopes: ["chat:write", "channels:read", "channels:history"] },
        { token: "xoxb-nexus", user: "nexus", scopes: ["chat:write", "channels:read", "channels:history"] },
      ],
    },
  },
});
console.log("ready");
"#;

async fn ask(url: String, token: &str, body: &Value) -> Value {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
    let request = client.expect("a client").post(url).bearer_auth(token).json(body);
    let answered = request.send().await.expect("an answer");
    answered.json().await.expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn telegram_test_api_understands_what_the_bot_says() {
    let Some(emulator) = Emulator::start("telegram-test-api@4.2.1", TELEGRAM).await else {
        return;
    };
    let base = &emulator.base;
    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        channels: format!(
            "telegram: {{accounts: {{main: {{token: 'env:TELEGRAM_TOKEN', base_url: '{base}', direct: allowlist, allow: [11]}}}}}}"
        ),
        environment: vec![("TELEGRAM_TOKEN".to_owned(), "666:secret".to_owned())],
        ..Setup::default()
    })
    .await;

    let person = json!({"id": 11, "first_name": "Ann", "is_bot": false});
    let written = json!({
        "botToken": "666:secret", "date": SystemClock.now().0 / 1_000, "text": "hello", "from": person,
        "chat": {"id": 11, "type": "private", "first_name": "Ann"},
    });
    let posted = ask(format!("{base}/sendMessage"), "", &written).await;
    assert_eq!(posted["ok"], true, "{posted}");

    let read = json!({"token": "666:secret", "chatId": 11});
    let answered = eventually("the person is answered", PATIENCE, async || {
        let answered = ask(format!("{base}/getUpdates"), "", &read).await;
        let messages = answered["result"].as_array().cloned().unwrap_or_default();
        (!messages.is_empty())
            .then_some(messages)
            .ok_or_else(|| format!("{answered}\n{}", world.logs()))
    })
    .await;
    assert_eq!(answered.len(), 1, "{answered:?}");
    assert_eq!(answered[0]["message"]["text"], "echo: hello");
    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emulate_understands_what_the_app_says() {
    let Some(emulator) = Emulator::start("emulate@0.9.0", SLACK).await else {
        return;
    };
    let base = &emulator.base;
    let call = |method: &str| format!("{base}/api/{method}");
    let ids = async |token: &str| {
        let known = ask(call("auth.test"), token, &json!({})).await;
        let read = |key: &str| known[key].as_str().unwrap_or_else(|| panic!("{known}")).to_owned();
        (read("team_id"), read("user_id"))
    };
    let ((team, ann), (_, app)) = (ids("xoxp-ann").await, ids("xoxb-nexus").await);
    let listed = ask(call("conversations.list"), "xoxp-ann", &json!({})).await;
    let channels = listed["channels"].as_array().expect("channels");
    let channel = channels.iter().find(|channel| channel["name"] == "support");
    let channel = channel.and_then(|channel| channel["id"].as_str()).expect("an id");

    let world = World::start(Setup {
        hooks: vec![("answer.ts", crate::slack::ANSWER.to_owned())],
        channels: format!(
            "slack: {{accounts: {{main: {{token: 'env:SLACK_TOKEN', signing_secret: 'env:SLACK_SECRET', base_url: \
             '{base}', allow: [{ann}], groups: {{{channel}: {{}}}}}}}}}}"
        ),
        environment: vec![
            ("SLACK_TOKEN".to_owned(), "xoxb-nexus".to_owned()),
            ("SLACK_SECRET".to_owned(), SECRET.to_owned()),
        ],
        ..Setup::default()
    })
    .await;

    // Its events have no envelope, so the message that it stores is brought as Slack brings it.
    let text = format!("<@{app}> hello");
    let written = json!({"channel": channel, "text": text});
    let posted = ask(call("chat.postMessage"), "xoxp-ann", &written).await;
    let ts = posted["ts"].as_str().unwrap_or_else(|| panic!("{posted}"));
    let event = json!({"type": "message", "channel": channel, "user": ann, "ts": ts, "event_ts": ts, "text": text});
    let client = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
    eventually("the post is taken", PATIENCE, async || {
        let request = signed_post(&client, &world.gateway(), envelope_of(&team, &event));
        let status = request.send().await.map_err(|error| error.to_string())?.status();
        status.is_success().then_some(()).ok_or_else(|| status.to_string())
    })
    .await;

    let thread = json!({"channel": channel, "ts": ts});
    let answer = eventually("the person is answered in the thread", PATIENCE, async || {
        let read = ask(call("conversations.replies"), "xoxp-ann", &thread).await;
        let answer = read["messages"].get(1).cloned();
        answer.ok_or_else(|| format!("{read}\n{}", world.logs()))
    })
    .await;
    let said = [&answer["user"], &answer["thread_ts"], &answer["text"]];
    let expected = [json!(app), json!(ts), json!(format!("echo: &lt;@{app}&gt; hello"))];
    assert_eq!(said, [&expected[0], &expected[1], &expected[2]], "{answer}");
    world.stack.stop().await;
}
