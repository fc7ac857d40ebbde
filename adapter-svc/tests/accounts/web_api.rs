//! A stand-in for Slack: its Web API as far as receiving uses it, and its posts, signed as Slack signs them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Form, Json, Router};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use shared::model::time::UnixMillis;

use crate::conversation_shelf::{ConversationShelf, ShelfAnswer};
use crate::file_shelf::FileShelf;

/// Signing secret of every account whose test names no other.
pub(crate) const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(crate) struct WebApi {
    pub(crate) base: String,
    pub(crate) files: FileShelf,
    pub(crate) conversations: ConversationShelf,
    state: Arc<Mutex<WebState>>,
}

#[derive(Debug, Default)]
struct WebState {
    /// What a call with a token is answered, instead of who its bot is.
    answers: BTreeMap<String, (u16, Value)>,
    calls: usize,
    /// The refresh token that is taken next.
    refresh: String,
    /// The refresh tokens that were shown, oldest first.
    renewals: Vec<String>,
}

impl WebApi {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let api = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            files: FileShelf::default(),
            conversations: ConversationShelf::default(),
            state: Arc::default(),
        };
        let routes = Router::new()
            .route("/api/{method}", post(answer))
            .route("/api/oauth.v2.access", post(renew))
            .with_state(api.clone())
            .merge(api.files.routes());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        api
    }

    fn lock(&self) -> MutexGuard<'_, WebState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers calls with `token` so from now on; `None` = says who the bot is.
    pub(crate) fn set(&self, token: &str, answer: Option<(u16, Value)>) {
        let mut state = self.lock();
        match answer {
            Some(answer) => drop(state.answers.insert(token.to_owned(), answer)),
            None => drop(state.answers.remove(token)),
        }
    }

    /// Takes the refresh token `refresh` once.
    pub(crate) fn renew_for(&self, refresh: &str) {
        refresh.clone_into(&mut self.lock().refresh);
    }

    /// The refresh tokens that were shown, oldest first.
    pub(crate) fn renewals(&self) -> Vec<String> {
        self.lock().renewals.clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.lock().calls
    }
}

/// Gives the bot token `xoxe.xoxb-{number}` for the refresh token that is valid, which it is no longer then.
async fn renew(State(api): State<WebApi>, Form(form): Form<BTreeMap<String, String>>) -> Json<Value> {
    assert_eq!(form["grant_type"], "refresh_token");
    let mut state = api.lock();
    let shown = form["refresh_token"].clone();
    state.renewals.push(shown.clone());
    if shown != state.refresh {
        return Json(json!({"ok": false, "error": "invalid_refresh_token"}));
    }
    let number = state.renewals.len();
    state.refresh = format!("xoxe-1-{number}");
    Json(
        json!({"ok": true, "access_token": format!("xoxe.xoxb-{number}"), "refresh_token": state.refresh,
                "expires_in": 43_200, "token_type": "bot"}),
    )
}

async fn answer(
    State(api): State<WebApi>,
    Path(method): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let token = headers["authorization"]
        .to_str()
        .expect("text")
        .trim_start_matches("Bearer ")
        .to_owned();
    if method == "files.info" {
        return Json(found_file(&api, &query["file"])).into_response();
    }

    match api.conversations.answer(&method, &query) {
        Some(ShelfAnswer::Body(body)) => return Json(body).into_response(),
        Some(ShelfAnswer::Limited(seconds)) => {
            let headers = [("retry-after", seconds.to_string())];
            let body = json!({"ok": false, "error": "ratelimited"});
            return (StatusCode::TOO_MANY_REQUESTS, headers, Json(body)).into_response();
        }
        None => assert_eq!(method, "auth.test", "no other method is called"),
    }

    let mut state = api.lock();
    state.calls += 1;
    if let Some((status, body)) = state.answers.get(&token) {
        let status = StatusCode::from_u16(*status).expect("a status");
        return (status, [("retry-after", "1")], Json(body.clone())).into_response();
    }
    Json(json!({"ok": true, "team": "Acme", "user": "nexus", "team_id": "T1", "user_id": "U7", "bot_id": "B7"}))
        .into_response()
}

/// The answer to `files.info`.
fn found_file(api: &WebApi, id: &str) -> Value {
    let Some(size) = api.files.size(id) else {
        return json!({"ok": false, "error": "file_not_found"});
    };
    let address = format!("{}/files-pri/{id}", api.base);
    json!({"ok": true, "file": {"id": id, "size": size, "mimetype": "image/png", "mode": "hosted",
                                "url_private": address, "url_private_download": address}})
}

/// How Slack posts a payload.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) body: String,
    pub(crate) content_type: &'static str,
    pub(crate) secret: String,
    /// Time that is signed.
    pub(crate) at: UnixMillis,
}

impl Delivery {
    /// The event `event`, in its envelope, signed at `at`.
    pub(crate) fn event(event: &Value, at: UnixMillis) -> Self {
        let envelope = json!({"type": "event_callback", "token": "verification", "team_id": "T1", "api_app_id": "A1",
                              "event_id": "Ev1", "event": event, "authorizations": [{"team_id": "T1", "user_id": "U7"}]});
        Self::json(&envelope, at)
    }

    pub(crate) fn json(payload: &Value, at: UnixMillis) -> Self {
        Self {
            body: payload.to_string(),
            content_type: "application/json",
            secret: SECRET.to_owned(),
            at,
        }
    }

    /// A form with the fields `fields`.
    pub(crate) fn form(fields: &[(&str, &str)], at: UnixMillis) -> Self {
        Self {
            body: serde_urlencoded::to_string(fields).expect("a form"),
            content_type: "application/x-www-form-urlencoded",
            secret: SECRET.to_owned(),
            at,
        }
    }

    /// Posts it to `url`, for the time `number` after the first; returns the status and the body.
    pub(crate) async fn post(&self, url: &str, number: usize) -> (u16, String) {
        let seconds = (self.at.0 / 1_000).to_string();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(self.secret.as_bytes()).expect("a key");
        mac.update(format!("v0:{seconds}:{}", self.body).as_bytes());
        let signature = format!("v0={}", hex::encode(mac.finalize().into_bytes()));

        let client = reqwest::Client::builder()
            .timeout(std::time::Duration::from_secs(60))
            .build()
            .expect("a client");
        let mut request = client
            .post(url)
            .header("content-type", self.content_type)
            .header("x-slack-request-timestamp", seconds)
            .header("x-slack-signature", signature)
            .body(self.body.clone());
        if number > 0 {
            request = request.header("x-slack-retry-num", number.to_string());
        }
        let response = request.send().await.expect("an answer");
        (response.status().as_u16(), response.text().await.expect("text"))
    }
}
