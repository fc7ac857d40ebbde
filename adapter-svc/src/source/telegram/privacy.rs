//! The part of an update that an event keeps. *Pure.*
//!
//! The cards of approvals have codes and links, with which whoever reads the event could decide. So the bot's own messages
//! are reduced to their ids, also those that a person forwards. Source: `docs/design/trust.md` §1;
//! <https://core.telegram.org/bots/api#messageorigin>.

use serde_json::{Map, Value};

/// Content of the event of a message of the bot's own that a person forwards.
pub const OWN_FORWARD: &str = "forwarded message of this bot";

/// Keys of a message of our own that an event keeps.
const OWN_MESSAGE_KEYS: [&str; 4] = ["message_id", "date", "chat", "from"];

/// Keys that an event keeps of a message that forwards one of our own: where it was written, by whom, and where it is from.
const FORWARD_KEYS: [&str; 13] = [
    "message_id",
    "date",
    "edit_date",
    "chat",
    "from",
    "sender_chat",
    "message_thread_id",
    "is_topic_message",
    "media_group_id",
    "reply_to_message",
    "forward_origin",
    "forward_from",
    "forward_date",
];

/// Returns `payload` without the texts and buttons of messages of the bot itself, at any depth, whoever forwards them.
#[must_use]
pub fn without_own_messages(payload: &Value, bot_id: i64) -> Value {
    match payload {
        Value::Object(fields) => without_own_texts(fields, bot_id),
        Value::Array(values) => values.iter().map(|value| without_own_messages(value, bot_id)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => payload.clone(),
    }
}

fn without_own_texts(fields: &Map<String, Value>, bot_id: i64) -> Value {
    let is_own = |message: &Value| {
        let author = message.pointer("/from/id").and_then(Value::as_i64);
        author == Some(bot_id) && message.get("message_id").is_some()
    };
    let forwards_own = |fields: &Map<String, Value>| {
        let origin = fields.get("forward_origin");
        is_forward_of(origin, fields.get("forward_from"), bot_id)
    };

    // A quote is a part of the message that is answered, which may be of another chat.
    let answered = fields.get("reply_to_message");
    let answers_own = answered.is_some_and(is_own)
        || answered.and_then(Value::as_object).is_some_and(forwards_own)
        || is_origin(
            fields.get("external_reply").and_then(|reply| reply.get("origin")),
            bot_id,
        );
    let is_forward = forwards_own(fields);

    let is_kept = |key: &str| !(answers_own && key == "quote") && (!is_forward || FORWARD_KEYS.contains(&key));
    let kept = fields.iter().filter(|(key, _)| is_kept(key)).map(|(key, value)| {
        let value = match value {
            Value::Object(own) if is_own(value) => {
                let kept = own.iter().filter(|(key, _)| OWN_MESSAGE_KEYS.contains(&key.as_str()));
                Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
            Value::Object(_) | Value::Array(_) => without_own_messages(value, bot_id),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        };
        (key.clone(), value)
    });
    Value::Object(kept.collect())
}

/// Returns whether a message is a forwarded one of the bot `bot_id`. `origin` is its `forward_origin`, and `from` its
/// `forward_from`, which older versions of the Bot API have instead.
#[must_use]
pub fn is_forward_of(origin: Option<&Value>, from: Option<&Value>, bot_id: i64) -> bool {
    let sender = from.and_then(|from| from.get("id")).and_then(Value::as_i64);
    is_origin(origin, bot_id) || sender == Some(bot_id)
}

/// Returns whether `origin`, a `MessageOrigin` of the vendor's, is the bot `bot_id`.
#[must_use]
pub fn is_origin(origin: Option<&Value>, bot_id: i64) -> bool {
    let parties = ["/sender_user/id", "/sender_chat/id", "/chat/id"];
    let is_bot = |place: &&str| origin.and_then(|origin| origin.pointer(place)).and_then(Value::as_i64) == Some(bot_id);
    parties.iter().any(is_bot)
}
