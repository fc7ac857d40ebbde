//! The lists of the stand-in of Discord: guilds, channels, and threads, of which those that are archived come one by one.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::{Json, Path, Query, State};
use axum::http::HeaderMap;
use axum::routing::get;
use serde_json::{Value, json};
use shared::platform::discord::snowflake::snowflake_time;

use crate::discord_api::{Bot, DiscordApi, FIRST_CHANNEL, GUILD, THREAD};
use crate::discord_rest::{Refused, enter};

/// Beginning of the ids of threads that are archived, in the first channel.
pub(crate) const ARCHIVED: &str = "16";
/// Direct channel, which is in no list.
pub(crate) const DIRECT: &str = "900";

/// The routes of the lists.
pub(crate) fn routes() -> Router<DiscordApi> {
    Router::new()
        .route("/api/users/@me/guilds", get(guilds))
        .route("/api/guilds/{guild}/channels", get(channels))
        .route("/api/guilds/{guild}/threads/active", get(active))
        .route("/api/channels/{channel}/threads/archived/public", get(archived))
}

/// The channel `id` as lists name it, with its newest message.
fn listed(bot: &Bot, id: &str, kind: u64) -> Value {
    let messages = bot.history.get(id).map(Vec::as_slice).unwrap_or_default();
    let ids = messages
        .iter()
        .filter_map(|message| message["id"].as_str()?.parse::<u64>().ok());
    json!({"id": id, "type": kind, "guild_id": GUILD, "last_message_id": ids.max().map(|id| id.to_string())})
}

async fn guilds(
    State(api): State<DiscordApi>,
    Query(query): Query<BTreeMap<String, u64>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refused> {
    enter(&api, &headers)?;
    let is_first = query["after"] == 0;
    Ok(Json(if is_first {
        json!([{"id": GUILD, "name": "Acme"}])
    } else {
        json!([])
    }))
}

async fn channels(State(api): State<DiscordApi>, headers: HeaderMap) -> Result<Json<Value>, Refused> {
    let token = enter(&api, &headers)?;
    let found = api.with(&token, |bot| {
        let names = bot
            .history
            .keys()
            .filter(|id| *id != THREAD && *id != DIRECT && !id.starts_with(ARCHIVED));
        let mut found: Vec<Value> = names.map(|id| listed(bot, id, 0)).collect();
        // A category and a forum have no messages of their own; the newest one of the forum is a thread.
        found.push(json!({"id": "7000", "type": 4}));
        found.push(json!({"id": "7001", "type": 15, "last_message_id": "9000000000000000000"}));
        found
    });
    Ok(Json(json!(found)))
}

async fn active(State(api): State<DiscordApi>, headers: HeaderMap) -> Result<Json<Value>, Refused> {
    let token = enter(&api, &headers)?;
    let threads = api.with(&token, |bot| {
        let is_there = bot.history.contains_key(THREAD);
        let mut thread = listed(bot, THREAD, 11);
        thread["thread_metadata"] = json!({"archived": false, "archive_timestamp": "2023-01-01T00:00:00+00:00"});
        if is_there { vec![thread] } else { Vec::new() }
    });
    Ok(Json(json!({"threads": threads, "members": []})))
}

async fn archived(
    State(api): State<DiscordApi>,
    Path(channel): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refused> {
    let token = enter(&api, &headers)?;
    if channel != FIRST_CHANNEL.to_string() {
        return Ok(Json(json!({"threads": [], "members": [], "has_more": false})));
    }

    // Archived with its last message; the one that was archived last comes first.
    let mut threads = api.with(&token, |bot| {
        let names = bot.history.keys().filter(|id| id.starts_with(ARCHIVED));
        let threads = names.filter_map(|id| {
            let mut thread = listed(bot, id, 11);
            let at = snowflake_time(thread["last_message_id"].as_str()?)?.to_rfc3339();
            thread["thread_metadata"] = json!({"archived": true, "archive_timestamp": at});
            Some((at, thread))
        });
        threads.collect::<Vec<_>>()
    });
    threads.sort_by(|(one, _), (other, _)| other.cmp(one));
    if let Some(before) = query.get("before") {
        threads.retain(|(at, _)| at < before);
    }
    let has_more = threads.len() > 1;
    let page: Vec<Value> = threads.into_iter().take(1).map(|(_, thread)| thread).collect();
    Ok(Json(json!({"threads": page, "members": [], "has_more": has_more})))
}
