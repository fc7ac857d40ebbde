//! The part of a payload that an event keeps. *Pure.*
//!
//! Tokens and addresses with which a reader of the event could act in Slack are left out, and the app's own messages
//! are reduced to their ids: cards of approvals have codes and links.

use serde_json::{Map, Value};

use super::SlackBot;

/// Maximum depth of a payload that is kept; deeper parts are left out.
const MAX_DEPTH: usize = 64;

/// Keys whose values are credentials, or short-lived rights.
const SECRET_KEYS: [&str; 4] = ["token", "trigger_id", "response_url", "response_urls"];

/// Keys of a message of our own that an event keeps.
const OWN_MESSAGE_KEYS: [&str; 5] = ["ts", "thread_ts", "type", "user", "bot_id"];

/// Returns `payload` without credentials and without the contents of messages of `bot` or of the app `app_id`.
#[must_use]
pub fn kept_payload(bot: &SlackBot, app_id: Option<&str>, payload: &Value) -> Value {
    keep(payload, &|fields| is_own(bot, app_id, fields), 0)
}

/// Returns `payload`, or a frame with it, which cannot be read, as far as others may see it.
#[must_use]
pub fn unreadable_payload(bot: &SlackBot, payload: &Value) -> Value {
    let app_id = ["/api_app_id", "/payload/api_app_id"];
    let app_id = app_id.iter().find_map(|place| payload.pointer(place)?.as_str());
    kept_payload(bot, app_id, payload)
}

/// Returns whether the message or attachment `fields` is of `bot` or of the app `app_id`.
#[must_use]
pub fn is_own(bot: &SlackBot, app_id: Option<&str>, fields: &Map<String, Value>) -> bool {
    let is = |key: &str, expected: Option<&str>| {
        expected.is_some_and(|expected| fields.get(key).and_then(Value::as_str) == Some(expected))
    };
    let bot_id = bot.bot_id.as_deref().filter(|id| !id.is_empty());
    let user_id = Some(bot.user_id.as_str()).filter(|id| !id.is_empty());
    let app_id = app_id.filter(|id| !id.is_empty());
    is("bot_id", bot_id) || is("app_id", app_id) || is("user", user_id) || is("author_id", user_id)
}

fn keep(value: &Value, is_own: &impl Fn(&Map<String, Value>) -> bool, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }

    match value {
        Value::Object(fields) => {
            // The outermost object is the payload itself, which names the user who acted.
            let is_reduced = depth > 0 && is_own(fields);
            let kept = fields.iter().filter(|(key, _)| {
                let key = key.as_str();
                !SECRET_KEYS.contains(&key) && (!is_reduced || OWN_MESSAGE_KEYS.contains(&key))
            });
            kept.map(|(key, value)| (key.clone(), keep(value, is_own, depth + 1)))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.iter().map(|item| keep(item, is_own, depth + 1)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn neither_credentials_nor_our_own_messages_are_kept() {
        let bot = SlackBot {
            name: "app".to_owned(),
            team_id: "T1".to_owned(),
            user_id: "U7".to_owned(),
            bot_id: Some("B7".to_owned()),
        };
        let own = |key: &str, value: &str| json!({key: value, "ts": "1.000000", "text": "approve K7Q2-M9PX"});
        let payload = json!({
            "token": "verification", "trigger_id": "1.2.ab", "response_url": "https://hooks.slack.com/x", "user": "U7",
            "text": "kept", "root": own("bot_id", "B7"), "list": [own("user", "U7"), own("user", "U8"), own("app_id", "A1")],
            "attachments": [{"author_id": "U7", "text": "approve K7Q2-M9PX"}],
        });
        let kept = kept_payload(&bot, Some("A1"), &payload);
        let expected = json!({
            "user": "U7", "text": "kept", "root": {"bot_id": "B7", "ts": "1.000000"},
            "list": [{"user": "U7", "ts": "1.000000"}, own("user", "U8"), {"ts": "1.000000"}], "attachments": [{}],
        });
        assert_eq!(kept, expected);

        // Blanked ids are nobody's.
        let blank = SlackBot {
            user_id: String::new(),
            bot_id: Some(String::new()),
            ..bot
        };
        assert_eq!(
            kept_payload(&blank, Some(""), &json!({"x": {"user": "", "text": "kept"}}))["x"]["text"],
            "kept"
        );
    }
}
