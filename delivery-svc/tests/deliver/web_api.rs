//! A stand-in for Slack's Web API that misbehaves as the vendor's servers do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use shared::platform::accounts::read_platforms;
use shared::platform::slack::SlackAccount;

use crate::form::shown_file;

/// Id of the app's bot.
const OWN_BOT: &str = "B1";

/// What it does with a call instead of posting the message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lie {
    /// 429, with the wait in seconds.
    Limit(u64),
    /// The same, with status 200 and `ok` false.
    QuietLimit(u64),
    /// 200, with `ok` false and this error.
    Error(&'static str),
    /// The message is posted, and the connection ends within the answer.
    Lost,
    /// The message is posted, and no answer comes.
    Silent,
    /// A page of a server between.
    Gateway,
}

/// A call of `chat.postMessage`.
#[derive(Debug, Clone)]
pub(crate) struct PostCall {
    pub(crate) at: Instant,
    pub(crate) token: String,
    pub(crate) body: Value,
    /// Whether the message was posted.
    pub(crate) is_sent: bool,
}

#[derive(Debug, Default)]
struct Workspace {
    /// What it does with the next calls.
    lies: VecDeque<Lie>,
    calls: Vec<PostCall>,
    /// Tokens that it refuses, and the error that it names.
    refused: Vec<(String, &'static str)>,
    /// Time until which calls are limited, as they were told.
    told: Option<Instant>,
    /// Number of calls that came earlier than told.
    early: usize,
    /// Error with which conversations are not read; `None` = they are.
    unread: Option<&'static str>,
    /// Number of reads that do not show the app's messages yet.
    late_reads: usize,
    /// Whether the app's messages are shown without their metadata.
    is_bare: bool,
    /// Length of each message of people, in bytes.
    padding: usize,
    /// Calls that change messages: `{method} {channel}/{ts} {words}`.
    changes: Vec<String>,
    /// Number of messages of people in each conversation, after those of the app.
    chatter: usize,
    /// URLs with which conversations were read.
    searches: Vec<String>,
    /// Files that were announced: name, length, and bytes once they are there.
    files: Vec<(String, usize, Option<Bytes>)>,
    /// Number of times that it was asked where files are shown.
    asked_for: usize,
}

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(crate) struct WebApi {
    base: String,
    workspace: Arc<Mutex<Workspace>>,
}

impl WebApi {
    /// Starts a server that does `lies` with its first calls.
    pub(crate) async fn start(lies: &[Lie]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let workspace = Workspace {
            lies: lies.iter().copied().collect(),
            ..Workspace::default()
        };
        let this = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            workspace: Arc::new(Mutex::new(workspace)),
        };
        let router = Router::new()
            .route("/api/{method}", post(answer).get(read))
            .route("/upload/{number}", post(take))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        this
    }

    /// Refuses the calls of `tokens` with the error beside each, and no others.
    pub(crate) fn refuse(&self, tokens: &[(&str, &'static str)]) {
        let tokens = tokens.iter().map(|&(token, error)| (token.to_owned(), error));
        self.lock().refused = tokens.collect();
    }

    /// Does `lie` with the next call.
    pub(crate) fn lie(&self, lie: Lie) {
        self.lock().lies.push_back(lie);
    }

    /// Returns the calls that change messages.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.lock().changes.clone()
    }

    /// People write `number` messages after those of the app, in each conversation.
    pub(crate) fn chat(&self, number: usize) {
        self.lock().chatter = number;
    }

    /// Shows the app's messages only after `reads` reads of conversations.
    pub(crate) fn delay_messages(&self, reads: usize) {
        self.lock().late_reads = reads;
    }

    /// Shows the app's messages without their metadata.
    pub(crate) fn strip_metadata(&self) {
        self.lock().is_bare = true;
    }

    /// People's messages are `bytes` long.
    pub(crate) fn pad_chat(&self, bytes: usize) {
        self.lock().padding = bytes;
    }

    /// Refuses to let conversations be read, with `error`.
    pub(crate) fn hide_history(&self, error: &'static str) {
        self.lock().unread = Some(error);
    }

    /// Returns the paths and queries with which conversations were read.
    pub(crate) fn searches(&self) -> Vec<String> {
        self.lock().searches.clone()
    }

    /// Returns the calls of `chat.postMessage`.
    pub(crate) fn calls(&self) -> Vec<PostCall> {
        self.lock().calls.clone()
    }

    /// Returns the texts of the messages in `channel`.
    pub(crate) fn texts(&self, channel: &str) -> Vec<String> {
        let calls = self.calls().into_iter();
        let sent = calls.filter(|call| call.is_sent && call.body["channel"] == channel);
        sent.map(|call| call.body["text"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Returns the number of calls that came earlier than told.
    pub(crate) fn early(&self) -> usize {
        self.lock().early
    }

    /// Returns the account with `token` and `keys` on this server.
    pub(crate) fn account(&self, token: &str, keys: &str) -> SlackAccount {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), token).expect("written");
        let text = format!(
            "slack: {{accounts: {{app: {{token: 'file:{}', receive: none, base_url: '{}', {keys}}}}}}}",
            file.path().display(),
            self.base
        );
        let mut accounts = read_platforms(&text).expect("read").slack.accounts;
        accounts.remove("app").expect("the account")
    }

    fn lock(&self) -> MutexGuard<'_, Workspace> {
        self.workspace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call; returns what is done with it, and its message's number. `Err` is the error of a refused token.
    fn note(&self, token: &str, body: &Value) -> (Result<Option<Lie>, &'static str>, usize) {
        let at = SystemClock.monotonic();
        let mut workspace = self.lock();
        if workspace.told.is_some_and(|until| at < until) {
            workspace.early += 1;
        }

        let refused = workspace.refused.iter().find(|(refused, _)| refused == token);
        let lie = match refused.map(|(_, error)| *error) {
            Some(error) => Err(error),
            None => Ok(workspace.lies.pop_front()),
        };
        if let Ok(Some(Lie::Limit(seconds) | Lie::QuietLimit(seconds))) = lie {
            workspace.told = Some(at + Duration::from_secs(seconds));
        }

        let is_sent = matches!(lie, Ok(None | Some(Lie::Lost | Lie::Silent)));
        workspace.calls.push(PostCall {
            at,
            token: token.to_owned(),
            body: body.clone(),
            is_sent,
        });
        (lie, workspace.calls.len())
    }
}

/// Returns the messages of a conversation, newest first, two at a time, as an app sees them that may read few.
async fn read(State(api): State<WebApi>, Path(method): Path<String>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default().to_owned();
    let value = |key: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.into_iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| value.to_owned())
    };
    match method.as_str() {
        "files.getUploadURLExternal" => {
            let name = value("filename").expect("a name");
            return announce(
                &api,
                name,
                value("length").expect("a length").parse().expect("a number"),
            );
        }
        "files.info" => return show_file(&api, &value("file").expect("a file")),
        _ => {}
    }
    let mut workspace = api.lock();
    workspace.searches.push(format!("{method}?{query}"));
    if let Some(name) = workspace.unread {
        return error(name).into_response();
    }
    assert!(value("oldest").is_some() && value("include_all_metadata").as_deref() == Some("true"));

    let (channel, thread) = (value("channel").expect("a channel"), value("ts"));
    assert_eq!(thread.is_some(), method == "conversations.replies", "{method}");
    let is_late = workspace.late_reads > 0;
    workspace.late_reads = workspace.late_reads.saturating_sub(1);
    let sent = (1..).zip(&workspace.calls).filter(|(_, call)| call.is_sent && !is_late);
    let here = sent.filter(|(_, call)| {
        call.body["channel"] == channel.as_str()
            && call.body.get("thread_ts").and_then(Value::as_str) == thread.as_deref()
    });
    let mut messages: Vec<Value> = here
        .map(|(number, call)| {
            let metadata = call.body["metadata"].clone();
            let metadata = if workspace.is_bare { Value::Null } else { metadata };
            let files = call.body.get("shown_files").cloned().unwrap_or_else(|| json!([]));
            json!({"ts": format!("1700000000.{number:06}"), "bot_id": OWN_BOT, "metadata": metadata, "files": files})
        })
        .collect();
    let text = "x".repeat(workspace.padding);
    let said = |number| json!({"ts": format!("1700000001.{number:06}"), "text": text});
    messages.extend((0..workspace.chatter).map(said));
    messages.reverse();

    let from: usize = value("cursor").map_or(0, |cursor| cursor.parse().expect("a cursor"));
    let page: Vec<Value> = messages.iter().skip(from).take(2).cloned().collect();
    let next = if from + 2 < messages.len() {
        (from + 2).to_string()
    } else {
        String::new()
    };
    let more = !next.is_empty();
    let body = json!({"ok": true, "messages": page, "has_more": more, "response_metadata": {"next_cursor": next}});
    Json(body).into_response()
}

/// Changes a message. What was done before is an error, and so is a message that is gone.
async fn change(api: &WebApi, method: &str, body: &Value) -> Response {
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    let mut channel = text("channel");
    let (ts, words) = match method {
        "chat.update" => {
            assert_eq!(body["blocks"], json!([]), "{body}");
            (text("ts"), text("text"))
        }
        "chat.delete" => (text("ts"), String::new()),
        "reactions.add" | "reactions.remove" => (text("timestamp"), text("name")),
        "assistant.threads.setStatus" => {
            channel = text("channel_id");
            (text("thread_ts"), text("status"))
        }
        other => panic!("{other}"),
    };

    let (lie, is_repeated) = {
        let mut workspace = api.lock();
        let change = format!("{method} {channel}/{ts} {words}");
        let is_repeated = workspace.changes.contains(&change);
        workspace.changes.push(change);
        (workspace.lies.pop_front(), is_repeated)
    };
    match (lie, method) {
        (Some(Lie::Silent), _) => std::future::pending().await,
        (Some(Lie::Error(name)), "assistant.threads.setStatus") => error(name).into_response(),
        (_, "chat.delete") if is_repeated => error("message_not_found").into_response(),
        (_, "reactions.add") if is_repeated => error("already_reacted").into_response(),
        (_, "reactions.remove") if is_repeated => error("no_reaction").into_response(),
        (_, _) => Json(json!({"ok": true, "channel": body["channel"], "ts": ts})).into_response(),
    }
}

/// Returns the place for the bytes of a file.
fn announce(api: &WebApi, name: String, length: usize) -> Response {
    let mut workspace = api.lock();
    workspace.files.push((name, length, None));
    let number = workspace.files.len() - 1;
    let url = format!("{}/upload/{number}", api.base);
    Json(json!({"ok": true, "upload_url": url, "file_id": format!("F{number}")})).into_response()
}

/// Takes the bytes of a file.
async fn take(State(api): State<WebApi>, Path(number): Path<usize>, body: Bytes) -> Response {
    let mut workspace = api.lock();
    let (_, length, bytes) = &mut workspace.files[number];
    assert_eq!(*length, body.len());
    *bytes = Some(body);
    "OK".into_response()
}

/// Says where a file is shown, a moment after it is.
fn show_file(api: &WebApi, id: &str) -> Response {
    let mut workspace = api.lock();
    workspace.asked_for += 1;
    let is_late = workspace.asked_for % 2 == 1;
    let sent = (1..)
        .zip(&workspace.calls)
        .find(|(_, call)| call.is_sent && call.body["files"][0]["id"] == id);
    let shares = match sent.filter(|_| !is_late) {
        Some((number, call)) => {
            let channel = call.body["channel"].as_str().expect("a channel");
            json!({"private": {channel: [{"ts": format!("1700000000.{number:06}")}]}})
        }
        None => json!({}),
    };
    Json(json!({"ok": true, "file": {"id": id, "shares": shares}})).into_response()
}

/// Returns the message that shows the files of `body`, a call of `files.completeUploadExternal`.
fn file_message(api: &WebApi, body: &Value) -> Value {
    let id = body["files"][0]["id"].as_str().expect("a file");
    let number: usize = id.trim_start_matches('F').parse().expect("a number");
    let (name, length, bytes) = api.lock().files[number].clone();
    let bytes = bytes.expect("the bytes are there");
    let mut message = body.clone();
    message["channel"] = body["channel_id"].clone();
    message["text"] = json!(shown_file(&name, &bytes));
    message["shown_files"] = json!([{"id": id, "name": name, "size": length}]);
    message
}

fn error(name: &str) -> Json<Value> {
    Json(json!({"ok": false, "error": name}))
}

async fn answer(State(api): State<WebApi>, Path(method): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    if method == "auth.test" {
        return Json(json!({"ok": true, "bot_id": OWN_BOT})).into_response();
    }
    let is_file = method == "files.completeUploadExternal";
    if method != "chat.postMessage" && !is_file {
        let body: Value = serde_json::from_slice(&body).expect("a JSON body");
        return change(&api, &method, &body).await;
    }
    let token = headers["authorization"]
        .to_str()
        .expect("text")
        .trim_start_matches("Bearer ")
        .to_owned();
    let mut body: Value = serde_json::from_slice(&body).expect("a JSON body");
    if is_file {
        body = file_message(&api, &body);
    }
    let (lie, number) = api.note(&token, &body);
    let lie = match lie {
        Ok(lie) => lie,
        Err(refused) => return error(refused).into_response(),
    };

    match lie {
        None => Json(
            json!({"ok": true, "channel": body["channel"], "ts": format!("1700000000.{number:06}"), "message": {}}),
        )
        .into_response(),
        Some(Lie::Limit(seconds)) => {
            let wait = [("retry-after", seconds.to_string())];
            (StatusCode::TOO_MANY_REQUESTS, wait, error("ratelimited")).into_response()
        }
        Some(Lie::QuietLimit(seconds)) => {
            ([("retry-after", seconds.to_string())], error("ratelimited")).into_response()
        }
        Some(Lie::Error(name)) => error(name).into_response(),
        Some(Lie::Lost) => {
            let torn = stream::iter([
                Ok(Bytes::from_static(b"{\"ok\":tr")),
                Err(std::io::Error::other("torn")),
            ]);
            Response::new(Body::from_stream(torn))
        }
        Some(Lie::Silent) => std::future::pending().await,
        Some(Lie::Gateway) => (StatusCode::BAD_GATEWAY, "<html>Bad Gateway</html>").into_response(),
    }
}
