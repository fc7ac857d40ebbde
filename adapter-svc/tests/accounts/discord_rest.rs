//! The REST API of the stand-in.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Json, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::discord_api::{DiscordApi, FIRST_CHANNEL, GUILD, THREAD, bot_id};
use crate::discord_lists::{self, ARCHIVED, DIRECT};

/// The routes of the API.
pub(crate) fn routes(api: &DiscordApi) -> Router<DiscordApi> {
    let clock = api.clock.clone();
    let date = middleware::map_response(move |mut response: Response| {
        let now = UNIX_EPOCH + Duration::from_millis(clock.now().0.unsigned_abs());
        let value = httpdate::fmt_http_date(now).parse().expect("a date");
        response.headers_mut().insert("date", value);
        std::future::ready(response)
    });
    let limits = middleware::from_fn_with_state(api.clone(), limit);
    Router::new()
        .route("/api/users/@me", get(own_user))
        .route("/api/gateway/bot", get(gateway))
        .route("/api/channels/{channel}", get(channel_of))
        .route("/api/channels/{channel}/messages", get(history))
        .route("/api/guilds/{guild}/members/{user}", get(member))
        .merge(discord_lists::routes())
        .route("/api/attachments/refresh-urls", post(refresh))
        .route("/api/interactions/{id}/{token}/callback", post(press))
        .layer(limits)
        .layer(date)
}

/// Refuses a call that is limited.
async fn limit(State(api): State<DiscordApi>, request: Request, next: Next) -> Response {
    let value = request
        .headers()
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    let token = value
        .and_then(|value| value.strip_prefix("Bot "))
        .expect("a bot")
        .to_owned();
    let path = request.uri().path().to_owned();
    let (is_barred, after) = api.with(&token, |bot| {
        bot.paths.push(path.clone());
        let after = bot.faults.limited.get(&path).copied();
        if bot.faults.is_barred || after.is_some() {
            bot.refused.push(path.clone());
        }
        (bot.faults.is_barred, after)
    });
    let status = StatusCode::TOO_MANY_REQUESTS;
    if is_barred {
        return (status, [("retry-after", "600")], "error code: 1015").into_response();
    }
    match after {
        Some(after) => {
            let body = json!({"message": "You are being rate limited.", "retry_after": after, "global": false});
            (status, Json(body)).into_response()
        }
        None => next.run(request).await,
    }
}

/// A call that is refused.
pub(crate) struct Refused {
    status: StatusCode,
    body: Value,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        if self.body.is_null() {
            return (self.status, "<html>error</html>").into_response();
        }
        (self.status, Json(self.body)).into_response()
    }
}

/// The token of a call, or the refusal of it.
pub(crate) fn enter(api: &DiscordApi, headers: &HeaderMap) -> Result<String, Refused> {
    let value = headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = value
        .and_then(|value| value.strip_prefix("Bot "))
        .expect("a bot")
        .to_owned();
    api.with(&token, |bot| {
        bot.calls += 1;
        if bot.faults.is_away {
            return Err(Refused {
                status: StatusCode::BAD_GATEWAY,
                body: Value::Null,
            });
        }
        if bot.faults.is_revoked {
            return Err(refusal(StatusCode::UNAUTHORIZED, 0, "401: Unauthorized"));
        }
        Ok(token.clone())
    })
}

fn refusal(status: StatusCode, code: u64, words: &str) -> Refused {
    let body = json!({"message": words, "code": code});
    Refused { status, body }
}

async fn own_user(State(api): State<DiscordApi>, headers: HeaderMap) -> Result<Json<Value>, Refused> {
    let token = enter(&api, &headers)?;
    Ok(Json(
        json!({"id": bot_id(&token), "username": format!("nexus{}", bot_id(&token)), "bot": true}),
    ))
}

async fn gateway(State(api): State<DiscordApi>, headers: HeaderMap) -> Result<Json<Value>, Refused> {
    let token = enter(&api, &headers)?;
    let remaining = if api.with(&token, |bot| bot.faults.has_no_starts) {
        0
    } else {
        900
    };
    let limit = json!({"total": 1_000, "remaining": remaining, "reset_after": 1_500, "max_concurrency": 1});
    Ok(Json(
        json!({"url": format!("ws://{}/gateway", api.address), "shards": 1, "session_start_limit": limit}),
    ))
}

async fn channel_of(
    State(api): State<DiscordApi>,
    Path(channel): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refused> {
    enter(&api, &headers)?;
    if channel == DIRECT {
        return Ok(Json(json!({"id": channel, "type": 1, "recipients": [{"id": "5"}]})));
    }
    if channel == THREAD || channel.starts_with(ARCHIVED) {
        return Ok(Json(
            json!({"id": channel, "type": 11, "guild_id": GUILD, "parent_id": FIRST_CHANNEL.to_string(), "owner_id": "5"}),
        ));
    }
    Ok(Json(
        json!({"id": channel, "type": 0, "guild_id": GUILD, "name": "general"}),
    ))
}

async fn history(
    State(api): State<DiscordApi>,
    Path(channel): Path<String>,
    Query(query): Query<BTreeMap<String, u64>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refused> {
    let token = enter(&api, &headers)?;
    let after = query["after"];
    let id = |message: &Value| message["id"].as_str().expect("an id").parse::<u64>().expect("a number");
    let (page, confirmed, refused) = api.with(&token, |bot| {
        bot.asked.push(channel.clone());
        let is_closed = bot.faults.closed_channels.contains(&channel);
        let refused = match bot.faults.refused_pages {
            0 => is_closed.then_some(StatusCode::FORBIDDEN),
            left => {
                bot.faults.refused_pages -= 1;
                let status = if left % 2 == 0 {
                    StatusCode::TOO_MANY_REQUESTS
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                };
                Some(status)
            }
        };
        let messages = bot.history.get(&channel).map(Vec::as_slice).unwrap_or_default();
        // Ids name the time; what was written out of order stands in order here.
        let mut page: Vec<Value> = messages.iter().filter(|message| id(message) > after).cloned().collect();
        page.sort_by_key(id);
        page.truncate(100);
        page.reverse();
        let before = messages.iter().filter(|message| id(message) <= after);
        let confirmed: Vec<String> = before
            .map(|message| message["id"].as_str().expect("an id").to_owned())
            .collect();
        if refused.is_none() {
            bot.handed += page.len();
        }
        (page, confirmed, refused)
    });
    match refused {
        Some(StatusCode::FORBIDDEN) => return Err(refusal(StatusCode::FORBIDDEN, 50_001, "Missing Access")),
        Some(status) => {
            let limit = json!({"message": "You are being rate limited.", "retry_after": 0.2, "global": false});
            let is_limit = status == StatusCode::TOO_MANY_REQUESTS;
            let body = if is_limit { limit } else { Value::Null };
            return Err(Refused { status, body });
        }
        None => {}
    }
    api.confirm(&token, confirmed).await;
    Ok(Json(json!(page)))
}

async fn refresh(
    State(api): State<DiscordApi>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<Json<Value>, Refused> {
    enter(&api, &headers)?;
    let addresses = body["attachment_urls"].as_array().expect("addresses").iter();
    let fresh = addresses.map(|address| {
        let bare = address.as_str().expect("text").split('?').next().expect("a part");
        json!({"original": address, "refreshed": format!("{bare}?fresh=1&ex=ffffffff&is=0&hm=0&")})
    });
    Ok(Json(json!({"refreshed_urls": fresh.collect::<Vec<_>>()})))
}

async fn member(State(api): State<DiscordApi>, headers: HeaderMap) -> Result<Json<Value>, Refused> {
    enter(&api, &headers)?;
    Ok(Json(json!({"user": {"id": "77"}, "roles": ["500"]})))
}

async fn press(
    State(api): State<DiscordApi>,
    Path((id, _)): Path<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<StatusCode, Refused> {
    let token = enter(&api, &headers)?;
    assert_eq!(body, json!({"type": 6}));
    api.with(&token, |bot| bot.pressed.push(id));
    Ok(StatusCode::NO_CONTENT)
}
