//! A person mentions the app in a channel of Slack and is answered in the thread; the app's own messages that come back
//! fire nothing, and a post that Slack repeats is answered once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::post};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::testing::ModelServer;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::slack::{SECRET, envelope, signed_interaction, signed_post};
use tests::world::{Setup, World};

use crate::approval::{approvals_of, pays};
use crate::own_messages::{about_event, edit_is_of_its_message, resolve_hook, sent_event};
use crate::story::PATIENCE;

const TOKEN: &str = "xoxb-700-secret";

/// Whoever writes to the app is answered.
pub(crate) const ANSWER: &str = "/**\n * @name answer\n * @description Answers what people write to the app.\n * @mode persistent\n \
                      * @priority 50\n * @match channel=slack direction=received\n */\n\
                      export default async (): Promise<HookResult> => ({ fire: true });\n";

/// Slack as one app sees it.
#[derive(Debug, Clone, Default)]
struct WebApi {
    /// Bodies of the messages that the app has posted.
    posted: Arc<Mutex<Vec<Value>>>,
    /// Bodies of the changes of messages.
    changed: Arc<Mutex<Vec<Value>>>,
}

impl WebApi {
    /// Starts the stand-in; returns it and its base URL.
    async fn start() -> (Self, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let api = Self::default();
        let routes = Router::new()
            .route("/api/{method}", post(answer))
            .with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (api, base)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Value>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bodies of the changes of messages.
    fn changes(&self) -> Vec<Value> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was posted: channel, thread, text.
    fn sent(&self) -> Vec<[String; 3]> {
        let text = |body: &Value, key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let read = |body: &Value| ["channel", "thread_ts", "text"].map(|key| text(body, key));
        self.lock().iter().map(read).collect()
    }
}

/// The time stamp of the app's message `number`.
fn own_stamp(number: usize) -> String {
    format!("{}.9{number:05}", SystemClock.now().0 / 1_000)
}

async fn answer(State(api): State<WebApi>, Path(method): Path<String>, body: Option<Json<Value>>) -> Response {
    let answered = match (method.as_str(), body) {
        ("auth.test", _) => json!({"ok": true, "team_id": "T1", "user_id": "U7", "bot_id": "B7", "user": "nexus"}),
        ("chat.postMessage", Some(Json(body))) => {
            let mut posted = api.lock();
            let (channel, ts) = (body["channel"].clone(), own_stamp(posted.len()));
            posted.push(body);
            json!({"ok": true, "channel": channel, "ts": ts, "message": {}})
        }
        ("chat.update", Some(Json(body))) => {
            let answered = json!({"ok": true, "channel": body["channel"], "ts": body["ts"]});
            api.changed.lock().unwrap_or_else(PoisonError::into_inner).push(body);
            answered
        }
        _ => return StatusCode::NOT_IMPLEMENTED.into_response(),
    };
    Json(answered).into_response()
}

/// Posts `event` to the app's account, as Slack does, until it is taken.
async fn bring(world: &World, event: &Value) {
    let body = envelope(event);
    let client = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
    eventually("Slack's post is taken", PATIENCE, async || {
        let request = signed_post(&client, &world.gateway(), body.clone());
        let answered = request.send().await.map_err(|error| error.to_string())?;
        let status = answered.status();
        status.is_success().then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
}

fn message(ts: &str, keys: &Value) -> Value {
    let mut message = json!({"type": "message", "channel": "C1", "user": "U5", "ts": ts, "event_ts": ts});
    for (key, value) in keys.as_object().expect("an object") {
        message[key] = value.clone();
    }
    message
}

async fn has_sent(api: &WebApi, world: &World, expected: &[[&str; 3]]) {
    eventually("the app has answered", PATIENCE, async || {
        let sent = api.sent();
        (sent == expected)
            .then_some(())
            .ok_or_else(|| format!("{sent:?}\n{}", world.logs()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mention_in_a_channel_is_answered_in_its_thread_and_its_echo_fires_nothing() {
    let (api, base) = WebApi::start().await;
    let account = format!(
        "token: 'env:SLACK_TOKEN', signing_secret: 'env:SLACK_SECRET', base_url: '{base}', allow: [U5], groups: {{C1: {{}}}}"
    );
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        channels: format!("slack: {{accounts: {{main: {{{account}}}}}}}"),
        environment: vec![
            ("SLACK_TOKEN".to_owned(), TOKEN.to_owned()),
            ("SLACK_SECRET".to_owned(), SECRET.to_owned()),
        ],
        ..Setup::default()
    })
    .await;

    // Slack posts it as a message and as a mention, and both three times.
    let first = format!("{}.000001", SystemClock.now().0 / 1_000);
    let mention = message(&first, &json!({"text": "<@U7> 1 &lt; 2?"}));
    let mut named = mention.clone();
    named["type"] = json!("app_mention");
    for event in [&mention, &named, &mention, &named, &named, &mention] {
        bring(&world, event).await;
    }
    let answered = ["C1", first.as_str(), "echo: &lt;@U7&gt; 1 &lt; 2?"];
    has_sent(&api, &world, &[answered]).await;

    // What the app has posted comes back: as it is, under another id, and edited. So does another person's talk.
    let own = json!({"user": "U7", "bot_id": "B7", "app_id": "A1", "text": "echo: <@U7> x", "thread_ts": first});
    let (ts, again) = (own_stamp(0), own_stamp(1));
    bring(&world, &message(&ts, &own)).await;
    bring(&world, &message(&again, &own)).await;
    let mut edited = message(&ts, &own);
    edited["edited"] = json!({"user": "U7", "ts": again});
    let change = json!({"subtype": "message_changed", "message": edited, "previous_message": message(&ts, &own)});
    bring(&world, &message(&again, &change)).await;
    bring(
        &world,
        &message(&first.replace(".000001", ".000002"), &json!({"text": "lunch?"})),
    )
    .await;

    let follow_up = first.replace(".000001", ".000003");
    let keys = json!({"text": "<@U7> and again", "thread_ts": first, "parent_user_id": "U5"});
    bring(&world, &message(&follow_up, &keys)).await;
    let second = ["C1", first.as_str(), "echo: &lt;@U7&gt; and again"];
    has_sent(&api, &world, &[answered, second]).await;

    // Both are turns of the thread's session.
    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
    let told: Vec<(&str, &str)> = dispatches
        .iter()
        .map(|(_, dispatch)| (dispatch.event_id.as_str(), dispatch.target.session.as_str()))
        .collect();
    let session = format!("slack:main:channel:C1:thread:{first}");
    let ids = [&first, &follow_up].map(|ts| format!("slack:main/C1/{ts}"));
    assert_eq!(
        told,
        [(ids[0].as_str(), session.as_str()), (ids[1].as_str(), session.as_str())]
    );
    for secret in [TOKEN, SECRET] {
        assert!(!world.logs().contains(secret), "a secret is in a log");
    }

    world.stack.stop().await;
}

/// An account whose channel C1 and person U5 are served, and whose approvals U5 decides.
fn approved_by_u5(base: &str, model: &ModelServer) -> Setup {
    let account = format!(
        "token: 'env:SLACK_TOKEN', signing_secret: 'env:SLACK_SECRET', base_url: '{base}', allow: [U5], groups: {{C1: {{}}}}"
    );
    Setup {
        channels: format!("slack: {{accounts: {{main: {{{account}}}}}}}"),
        environment: vec![
            ("SLACK_TOKEN".to_owned(), TOKEN.to_owned()),
            ("SLACK_SECRET".to_owned(), SECRET.to_owned()),
        ],
        ..approvals_of("slack", "U5", model)
    }
}

/// Returns the timestamp of the approval's card in C1, once its event is stored.
async fn card_in_c1(world: &World) -> String {
    eventually("the card's id is known", PATIENCE, async || {
        let events: Vec<(u64, Event)> = read_all(&world.bus, streams::EVENTS).await;
        let card = events
            .iter()
            .find(|(_, event)| event.content.starts_with("Approval needed"));
        let id = card.and_then(|(_, event)| event.metadata["platform"]["ids"][0].as_str().map(str::to_owned));
        id.and_then(|id| Some(id.strip_prefix("C1/")?.to_owned()))
            .ok_or_else(|| format!("{events:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_decided_by_a_button_in_a_channel_by_its_approver_alone_and_its_card_says_so() {
    let (api, base) = WebApi::start().await;
    let model = pays().await;
    let world = World::start(approved_by_u5(&base, &model)).await;

    let ts = format!("{}.000001", SystemClock.now().0 / 1_000);
    bring(&world, &message(&ts, &json!({"text": "<@U7> pay"}))).await;
    let say = eventually("the card has buttons", PATIENCE, async || {
        let posted = api.lock();
        let card = posted
            .first()
            .map(|card| card["blocks"][1]["elements"][0]["value"].clone());
        let say = card.and_then(|say| Some(say.as_str()?.to_owned()));
        say.ok_or_else(|| format!("{posted:?}\n{}", world.logs()))
    })
    .await;
    assert!(say.starts_with("approve "), "{say}");
    let card_ts = card_in_c1(&world).await;

    let press = |user: &str, number: &str| {
        json!({
            "type": "block_actions", "team": {"id": "T1"}, "api_app_id": "A1", "user": {"id": user, "name": "ann"},
            "container": {"type": "message", "message_ts": card_ts, "channel_id": "C1", "thread_ts": ts},
            "channel": {"id": "C1"}, "message": {"ts": card_ts, "text": "Approval needed"},
            "actions": [{"type": "button", "action_id": "say_0", "value": say, "action_ts": ts.replace(".000001", number)}],
        })
    };
    let client = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
    // Slack posts it twice.
    let bring_press = async |press: Value| {
        for _ in 0..2 {
            let posted = signed_interaction(&client, &world.gateway(), &press).send().await;
            assert_eq!(posted.expect("an answer").status().as_u16(), 200);
        }
    };

    // A member who may not decide is told so, under any name, and the card stays.
    bring_press(press("U6", ".000002")).await;
    eventually(
        "the press of another member is answered",
        PATIENCE,
        async || match api.sent() {
            sent if sent.len() == 2 => Ok(()),
            sent => Err(format!("{sent:?}\n{}", world.logs())),
        },
    )
    .await;
    assert!(api.changes().is_empty(), "{:?}", api.changes());

    bring_press(press("U5", ".000003")).await;
    eventually("the turn has answered, and the card is edited", PATIENCE, async || {
        let is_answered = api
            .sent()
            .iter()
            .any(|sent| sent.each_ref().map(String::as_str) == ["C1", ts.as_str(), "done"]);
        let changes = api.changes();
        (is_answered && !changes.is_empty())
            .then_some(())
            .ok_or_else(|| format!("{changes:?} {:?}\n{}", api.sent(), world.logs()))
    })
    .await;
    let changes = api.changes();
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(
        (&changes[0]["channel"], &changes[0]["ts"], &changes[0]["blocks"]),
        (&json!("C1"), &json!(card_ts), &json!([]))
    );
    let text = changes[0]["text"].as_str().expect("a text");
    let code = say.split_whitespace().nth(1).expect("a code");
    assert!(text.starts_with("Approved by ann") && !text.contains(code), "{text}");
    edit_is_of_its_message(&world, "slack").await;
    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_a_reaction_and_a_press_to_what_the_app_posted_are_about_the_event_of_it() {
    let (_api, base) = WebApi::start().await;
    let account = format!(
        "token: 'env:SLACK_TOKEN', signing_secret: 'env:SLACK_SECRET', base_url: '{base}', allow: [U5], groups: {{C1: {{}}}}"
    );
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned()), ("resolve.ts", resolve_hook("slack"))],
        channels: format!("slack: {{accounts: {{main: {{{account}}}}}}}"),
        environment: vec![
            ("SLACK_TOKEN".to_owned(), TOKEN.to_owned()),
            ("SLACK_SECRET".to_owned(), SECRET.to_owned()),
        ],
        ..Setup::default()
    })
    .await;

    let first = format!("{}.000001", SystemClock.now().0 / 1_000);
    let asked = json!({"channel": "D1", "channel_type": "im", "text": "hello"});
    bring(&world, &message(&first, &asked)).await;
    let (sent, platform) = sent_event(&world, "slack").await;
    let own = platform.strip_prefix("D1/").expect("a message in the conversation");

    // Another tool with the app's token edits the message, which is an action of the app's own. Later events are about it all the
    // same.
    let words = |text: &str, edited: Value| json!({"type": "message", "user": "U7", "bot_id": "B7", "app_id": "A1", "text": text, "ts": own, "edited": edited});
    let edited_at = first.replace(".000001", ".000009");
    let change = json!({"channel": "D1", "channel_type": "im", "subtype": "message_changed", "ts": edited_at,
        "message": words("other words", json!({"user": "U7", "ts": edited_at})),
        "previous_message": words("echo: hello", Value::Null)});
    bring(&world, &message(&edited_at, &change)).await;

    let item = json!({"type": "message", "channel": "D1", "ts": own});
    let stamp = |number: u32| first.replace(".000001", &format!(".{number:06}"));
    let reaction = json!({"type": "reaction_added", "user": "U5", "reaction": "+1", "item_user": "U7", "item": item,
        "event_ts": stamp(2)});
    bring(&world, &reaction).await;
    let answer = json!({"channel": "D1", "channel_type": "im", "text": "what do you mean?", "thread_ts": own,
        "parent_user_id": "U7"});
    bring(&world, &message(&stamp(3), &answer)).await;
    let press = json!({
        "type": "block_actions", "team": {"id": "T1"}, "api_app_id": "A1", "user": {"id": "U5", "name": "ann"},
        "container": {"type": "message", "message_ts": own, "channel_id": "D1"}, "channel": {"id": "D1"},
        "message": {"ts": own, "text": "echo: hello"},
        "actions": [{"type": "button", "action_id": "say_0", "value": "again", "action_ts": stamp(4)}],
    });
    let client = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
    let posted = signed_interaction(&client, &world.gateway(), &press).send().await;
    assert_eq!(posted.expect("an answer").status().as_u16(), 200);

    about_event(&world, &sent, 3).await;
    world.stack.stop().await;
}
