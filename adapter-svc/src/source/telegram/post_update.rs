//! `POST /telegram/{account}`: updates, as Telegram posts them.
//!
//! An update is posted again until the answer is 200. Source: <https://core.telegram.org/bots/api#setwebhook>,
//! <https://core.telegram.org/bots/faq#how-can-i-make-requests-in-response-to-updates>.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use shared::model::event::Event;
use shared::platform::telegram::TELEGRAM;
use tracing::Instrument;

use super::normalize::update_events;
use super::privacy::without_own_messages;
use super::webhook::TelegramDoor;
use super::{BotAccount, RefuseUpdateError};
use crate::error::{AcceptEventsError, RequestRejection};
use crate::gateway::GatewayState;
use crate::source::door::PostTime;
use crate::source::webhook::{self, MAX_BODY_BYTES, payload};
use crate::trace::accept_span;

/// Maximum time for an update. Telegram waits for longer.
const UPDATE_WITHIN: Duration = Duration::from_secs(10);

/// Handles `POST /telegram/{account}`: 200 once the event is durable, or if the update is none. The account's holder stores it.
///
/// # Errors
/// Returns [`RequestRejection`], as JSON with a status. Telegram posts the update again then.
pub async fn post_update(
    State(gateway): State<GatewayState>,
    account: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, RequestRejection> {
    let account = account.map(|Path(name)| name).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let door = gateway
        .telegram
        .get(&account)
        .ok_or_else(|| RequestRejection::UnknownAccount(account.chars().take(64).collect()))?;

    // Before the body is read, so that strangers cannot use up the memory.
    webhook::telegram::verify(&door.checks, &parts.headers, &[], gateway.clock.now())?;
    let body = gateway.reception.read_body(&parts, body, MAX_BODY_BYTES).await?;
    let time = PostTime::start(&gateway.clock, UPDATE_WITHIN);
    let raw = payload::read(&parts.headers, &body)?;

    let bot = door.identity().await.ok_or(RequestRejection::UnknownIdentity)?;
    let events = match update_events(&bot, &raw, gateway.clock.now()) {
        Ok(events) => events,
        Err(reason) => return refuse_update(door, &bot, &raw, &reason, &time).await,
    };
    let pressed = events.iter().find_map(press_answer);
    let ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
    let (span, carrier) = accept_span(&parts.headers);
    let encoded = door.queue.encode_events(&events, &carrier);
    let kept = gateway.intake.accept_queued(TELEGRAM, &account, encoded);
    let kept = tokio::time::timeout(time.left(), kept.instrument(span)).await;
    kept.unwrap_or(Err(AcceptEventsError::Busy))?;

    tracing::info!(
        account,
        event_id = ids.first().map(String::as_str),
        "update of Telegram accepted"
    );
    // A call of the Bot API may be the answer: the client is told that the press has arrived.
    Ok(match pressed {
        Some(call) => axum::Json(call).into_response(),
        None => StatusCode::OK.into_response(),
    })
}

/// Returns the call that tells the client of the press that `event` is; `None` if it is none.
fn press_answer(event: &Event) -> Option<Value> {
    let id = event.metadata.get("press")?.get("id")?.as_str()?;
    Some(json!({"method": "answerCallbackQuery", "callback_query_id": id}))
}

/// Counts the update `raw`, which makes no event because of `reason`. One that cannot be read becomes a dead letter, and comes
/// again until that is stored.
async fn refuse_update(
    door: &TelegramDoor,
    bot: &BotAccount,
    raw: &Value,
    reason: &RefuseUpdateError,
    time: &PostTime,
) -> Result<Response, RequestRejection> {
    let account = &bot.name;
    metrics::counter!("nexus_source_refused_total", "source" => TELEGRAM, "reason" => reason.name()).increment(1);
    match reason {
        RefuseUpdateError::Echo | RefuseUpdateError::NoConversation(_) => {
            tracing::debug!(account, %reason, "update is no event");
        }
        RefuseUpdateError::Malformed(_) | RefuseUpdateError::UnknownChat(_) | RefuseUpdateError::Id(_) => {
            tracing::error!(account, %reason, "update refused");
            // Without the texts of the bot's own messages, which may have codes.
            let payload = without_own_messages(raw, bot.bot_id);
            let detail = reason.to_string();
            let given_up = door.letters.give_up(&payload, reason.name(), &detail, time);
            if !given_up.await {
                return Err(AcceptEventsError::Busy.into());
            }
        }
    }
    Ok(StatusCode::OK.into_response())
}
