//! A stand-in of the Bot API, by the vendor's words: it confirms by offset, knows one poller a token, and keeps updates
//! for a day.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::clock::{Clock as _, SharedClock, SystemClock, pause};
use shared::model::event::{Event, PlatformIds};
use tokio::sync::watch;

use crate::file_shelf::FileShelf;
use crate::world::stored_events;

/// Longest time that the stand-in waits for an update, whatever it is asked for.
const LONG_POLL: Duration = Duration::from_secs(5);

/// The stand-in. Clones share it.
#[derive(Clone)]
pub(crate) struct BotApi {
    pub(crate) base: String,
    pub(crate) files: FileShelf,
    bots: Arc<Mutex<BTreeMap<String, Bot>>>,
    changed: watch::Sender<u64>,
    bus: Bus,
    clock: SharedClock,
    /// Time by which the test's clock is ahead of the vendor's, in milliseconds.
    ahead: Arc<AtomicI64>,
}

/// What the stand-in knows of a token.
#[derive(Default)]
struct Bot {
    next_update: i64,
    pending: Vec<(i64, Value)>,
    /// Number of updates that were confirmed.
    confirmed: usize,
    polls: u64,
    /// Number of updates that were handed over, each as often as it was.
    handed: usize,
    /// Calls that wait at the moment, and the most that ever did.
    polling: usize,
    most_polling: usize,
    pressed: Vec<String>,
    /// Webhook that was set, and its secret.
    webhook: Option<(String, String)>,
    /// How often it was set, or removed.
    webhook_calls: Vec<String>,
    faults: BotFaults,
    /// Connections over which it has called, and those that are dead.
    connections: BTreeSet<SocketAddr>,
    dead: BTreeSet<SocketAddr>,
    /// Time before which it may not be called.
    not_before: Option<Instant>,
    /// Confirmations of updates whose events the stream did not have, and calls that came sooner than told.
    early: Vec<String>,
}

/// How the stand-in misbehaves towards a token.
#[derive(Debug, Clone, Default)]
pub(crate) struct BotFaults {
    /// It does not answer at all.
    pub(crate) is_away: bool,
    /// The token was revoked.
    pub(crate) is_revoked: bool,
    /// A webhook of another program is set.
    pub(crate) has_webhook: bool,
    /// Another program polls: the next so many calls end with 409.
    pub(crate) conflicts: usize,
    /// The next so many calls end with 429.
    pub(crate) limited: usize,
    /// Wait that these ask for, in seconds; at least one.
    pub(crate) retry_after: u64,
    /// The updates of a call come in another order, and each one twice.
    pub(crate) shuffles: bool,
}

/// Counts a call that waits.
struct PollGuard(BotApi, String);

impl Drop for PollGuard {
    fn drop(&mut self) {
        if let Some(bot) = self.0.lock().get_mut(&self.1) {
            bot.polling -= 1;
        }
    }
}

impl BotApi {
    /// Starts the stand-in, whose answers have the time of `clock`; `bus` is asked what is stored when updates are confirmed.
    pub(crate) async fn start(bus: Bus, clock: SharedClock) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let api = Self {
            base,
            files: FileShelf::default(),
            bots: Arc::default(),
            changed: watch::channel(0).0,
            bus,
            clock,
            ahead: Arc::default(),
        };

        let routes = Router::new()
            .route("/{bot}/{method}", post(answer))
            .with_state(api.clone())
            .merge(api.files.routes());
        let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        api
    }

    /// Lets the test's clock be `millis` ahead of the vendor's from now on.
    pub(crate) fn set_ahead(&self, millis: i64) {
        self.ahead.store(millis, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bot>> {
        self.bots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, token: &str, use_bot: impl FnOnce(&mut Bot) -> T) -> T {
        let used = use_bot(self.lock().entry(format!("bot{token}")).or_default());
        self.changed.send_modify(|count| *count += 1);
        used
    }

    /// Adds an update of `kind` with `payload`.
    pub(crate) fn add(&self, token: &str, kind: &str, payload: &Value) {
        self.with(token, |bot| {
            bot.next_update += 1;
            let id = bot.next_update;
            bot.pending.push((id, json!({"update_id": id, kind: payload})));
        });
    }

    /// Gives the next update another number.
    pub(crate) fn number_from(&self, token: &str, next: i64) {
        self.with(token, |bot| bot.next_update = next - 1);
    }

    /// Forgets the updates that were not confirmed, as the vendor does after a day.
    pub(crate) fn forget(&self, token: &str) {
        self.with(token, |bot| bot.pending.clear());
    }

    pub(crate) fn set(&self, token: &str, faults: BotFaults) {
        self.with(token, |bot| bot.faults = faults);
    }

    /// Number of connections over which it was called.
    pub(crate) fn connections(&self, token: &str) -> usize {
        self.with(token, |bot| bot.connections.len())
    }

    /// Lets the connections of now bring nothing but errors from now on, as a proxy does that has lost its way.
    pub(crate) fn deaden(&self, token: &str) {
        self.with(token, |bot| bot.dead = bot.connections.clone());
    }

    /// The webhook that is set: its URL and its secret.
    pub(crate) fn webhook(&self, token: &str) -> Option<(String, String)> {
        self.with(token, |bot| bot.webhook.clone())
    }

    /// Sets the webhook to `url`, as another program does.
    pub(crate) fn steal_webhook(&self, token: &str, url: &str) {
        self.with(token, |bot| bot.webhook = Some((url.to_owned(), "other".to_owned())));
    }

    pub(crate) fn webhook_calls(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.webhook_calls.clone())
    }

    pub(crate) fn confirmed(&self, token: &str) -> usize {
        self.with(token, |bot| bot.confirmed)
    }

    pub(crate) fn handed(&self, token: &str) -> usize {
        self.with(token, |bot| bot.handed)
    }

    pub(crate) fn polls(&self, token: &str) -> u64 {
        self.with(token, |bot| bot.polls)
    }

    pub(crate) fn most_polling(&self, token: &str) -> usize {
        self.with(token, |bot| bot.most_polling)
    }

    pub(crate) fn pressed(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.pressed.clone())
    }

    pub(crate) fn early(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.early.clone())
    }

    async fn poll(&self, bot: &str, body: &Value) -> Response {
        if let Some(offset) = body["offset"].as_i64() {
            self.confirm(bot, offset).await;
        }

        {
            let mut bots = self.lock();
            let bot = bots.entry(bot.to_owned()).or_default();
            bot.polls += 1;
            if bot
                .not_before
                .take()
                .is_some_and(|until| SystemClock.monotonic() < until)
            {
                bot.early.push("sooner than told".to_owned());
            }
            bot.polling += 1;
            bot.most_polling = bot.most_polling.max(bot.polling);
        }
        let _guard = PollGuard(self.clone(), bot.to_owned());

        let mut changed = self.changed.subscribe();
        let wait = Duration::from_secs(body["timeout"].as_u64().unwrap_or(0)).min(LONG_POLL);
        let limit = usize::try_from(body["limit"].as_u64().unwrap_or(100)).expect("small");
        let mut until = Box::pin(pause(wait));
        loop {
            let (found, refused) = {
                let mut bots = self.lock();
                let bot = bots.entry(bot.to_owned()).or_default();
                let found: Vec<Value> = bot
                    .pending
                    .iter()
                    .take(limit)
                    .map(|(_, update)| update.clone())
                    .collect();
                (found, refusal(bot, true))
            };
            if let Some(refused) = refused {
                return refused;
            }
            if !found.is_empty() {
                self.lock().entry(bot.to_owned()).or_default().handed += found.len();
                return Json(json!({"ok": true, "result": self.disorder(bot, found)})).into_response();
            }

            tokio::select! {
                _ = changed.changed() => {}
                () = &mut until => return Json(json!({"ok": true, "result": []})).into_response(),
            }
        }
    }

    /// Forgets the updates below `offset`, and notes those whose events are not stored.
    async fn confirm(&self, bot: &str, offset: i64) {
        let confirmed: Vec<Value> = {
            let mut bots = self.lock();
            let bot = bots.entry(bot.to_owned()).or_default();
            let is_below = |(id, _): &(i64, Value)| *id < offset;
            let below = bot
                .pending
                .iter()
                .filter(|one| is_below(one))
                .map(|(_, update)| update.clone());
            let below: Vec<Value> = below.collect();
            bot.pending.retain(|one| !is_below(one));
            bot.confirmed += below.len();
            below
        };

        if confirmed.is_empty() {
            return;
        }
        let stored = stored_events(&self.bus).await;
        let stored: BTreeSet<(String, String)> = stored.iter().flat_map(names).collect();
        for update in confirmed {
            let message = &update["message"];
            let name = (message["chat"]["id"].to_string(), message["message_id"].to_string());
            if !message.is_null() && !stored.contains(&name) {
                let mut bots = self.lock();
                bots.entry(bot.to_owned()).or_default().early.push(update.to_string());
            }
        }
    }

    fn disorder(&self, bot: &str, found: Vec<Value>) -> Vec<Value> {
        let shuffles = self.lock().get(bot).is_some_and(|bot| bot.faults.shuffles);
        if !shuffles {
            return found;
        }
        let (even, odd): (Vec<_>, Vec<_>) = found.iter().cloned().enumerate().partition(|(index, _)| index % 2 == 0);
        let disordered = odd.into_iter().rev().chain(even).map(|(_, update)| update);
        disordered.chain(found).collect()
    }
}

/// Returns the chat and the ids of the messages of which `event` consists.
fn names(event: &Event) -> Vec<(String, String)> {
    let ids = PlatformIds::from_event(event).map(|platform| platform.ids);
    let ids = ids.unwrap_or_default().into_iter();
    ids.filter_map(|id| {
        id.split_once('/')
            .map(|(chat, message)| (chat.to_owned(), message.to_owned()))
    })
    .collect()
}

/// Returns the refusal of a call, if the stand-in refuses it.
fn refusal(bot: &mut Bot, is_poll: bool) -> Option<Response> {
    let refused = |status: StatusCode, words: &str, parameters: Value| {
        let body = json!({"ok": false, "error_code": status.as_u16(), "description": words, "parameters": parameters});
        Some((status, Json(body)).into_response())
    };

    let faults = &mut bot.faults;
    if faults.is_away {
        return Some((StatusCode::BAD_GATEWAY, "<html>bad gateway</html>").into_response());
    }
    if faults.is_revoked {
        return refused(StatusCode::UNAUTHORIZED, "Unauthorized", Value::Null);
    }
    if is_poll && (faults.has_webhook || bot.webhook.is_some()) {
        let words = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
        return refused(StatusCode::CONFLICT, words, Value::Null);
    }
    if is_poll && faults.conflicts > 0 {
        faults.conflicts -= 1;
        let words = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
        return refused(StatusCode::CONFLICT, words, Value::Null);
    }
    if is_poll && faults.limited > 0 {
        faults.limited -= 1;
        let seconds = faults.retry_after.max(1);
        bot.not_before = Some(SystemClock.monotonic() + Duration::from_secs(seconds));
        return refused(
            StatusCode::TOO_MANY_REQUESTS,
            &format!("Too Many Requests: retry after {seconds}"),
            json!({"retry_after": seconds}),
        );
    }
    None
}

/// Answers a call, with the vendor's time.
async fn answer(
    State(api): State<BotApi>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path((bot, method)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Response {
    let (clock, ahead) = (api.clock.clone(), api.ahead.clone());
    let is_dead = {
        let mut bots = api.lock();
        let bot = bots.entry(bot.clone()).or_default();
        bot.connections.insert(peer);
        bot.dead.contains(&peer)
    };
    let mut response = if is_dead {
        StatusCode::BAD_GATEWAY.into_response()
    } else {
        answer_call(api, bot, method, body).await
    };
    let now = clock.now().plus(-ahead.load(Ordering::Relaxed));
    let since = Duration::from_millis(u64::try_from(now.0).expect("after 1970"));
    let date = httpdate::fmt_http_date(std::time::UNIX_EPOCH + since);
    response.headers_mut().insert("date", date.parse().expect("a header"));
    response
}

async fn answer_call(api: BotApi, bot: String, method: String, body: Value) -> Response {
    let refused = {
        let mut bots = api.lock();
        refusal(bots.entry(bot.clone()).or_default(), false)
    };
    if let Some(refused) = refused {
        return refused;
    }

    let id: i64 = bot
        .trim_start_matches("bot")
        .split(':')
        .next()
        .and_then(|id| id.parse().ok())
        .expect("a token");
    let result = match method.as_str() {
        "getMe" => json!({"id": id, "is_bot": true, "first_name": "Nexus", "username": format!("nexus{id}bot")}),
        "getWebhookInfo" => {
            let bots = api.lock();
            let known = bots.get(&bot);
            let foreign = known
                .is_some_and(|bot| bot.faults.has_webhook)
                .then_some("https://example.com/secret");
            let own = known.and_then(|bot| Some(bot.webhook.as_ref()?.0.as_str()));
            json!({"url": own.or(foreign).unwrap_or_default(), "pending_update_count": 0})
        }
        "setWebhook" | "deleteWebhook" => {
            let mut bots = api.lock();
            let bot = bots.entry(bot).or_default();
            bot.webhook_calls.push(method.clone());
            bot.webhook = body["url"].as_str().map(|url| {
                let allowed = body["allowed_updates"].as_array().expect("kinds");
                assert!(allowed.contains(&json!("message_reaction")) && allowed.contains(&json!("callback_query")));
                (
                    url.to_owned(),
                    body["secret_token"].as_str().expect("a secret").to_owned(),
                )
            });
            if bot.webhook.is_none() {
                assert_eq!(body["drop_pending_updates"], false, "updates that wait are kept");
            }
            json!(true)
        }
        "answerCallbackQuery" => {
            let press = body["callback_query_id"].as_str().expect("an id").to_owned();
            api.lock().entry(bot).or_default().pressed.push(press);
            json!(true)
        }
        "getFile" => {
            let file = body["file_id"].as_str().expect("an id");
            let Some(size) = api.files.size(file) else {
                let words = "Bad Request: wrong file_id or the file is temporarily unavailable";
                let body = json!({"ok": false, "error_code": 400, "description": words});
                return (StatusCode::BAD_REQUEST, Json(body)).into_response();
            };
            json!({"file_id": file, "file_size": size, "file_path": format!("files/{file}")})
        }
        "getUpdates" => return api.poll(&bot, &body).await,
        // Nothing else may be called.
        _ => return StatusCode::NOT_IMPLEMENTED.into_response(),
    };
    Json(json!({"ok": true, "result": result})).into_response()
}
