//! The content of a message, as text and content types; files are [`super::media`]'s. *Pure.*

use serde_json::Value;

use super::update::{Message, full_name};

/// Keys of a message that say nothing about the chat.
const FRAME: [&str; 12] = [
    "message_id",
    "message_thread_id",
    "is_topic_message",
    "from",
    "sender_chat",
    "chat",
    "date",
    "edit_date",
    "reply_to_message",
    "sender_boost_count",
    "has_protected_content",
    "business_connection_id",
];

/// Returns the content types of `message` beside those of its files, and its text. A message without text gets a line
/// that names its kind, so that it is found by its words.
#[must_use]
pub fn content_of(message: &Message) -> (Vec<&'static str>, String) {
    let mut kinds = Vec::new();
    let mut lines: Vec<String> = Vec::new();

    if let Some(sticker) = &message.sticker {
        lines.extend(sticker.emoji.clone());
    }

    // A venue names its location too.
    if let Some(venue) = &message.venue {
        kinds.push("location");
        lines.push(format!("{}, {}", venue.title, venue.address));
    } else if let Some(location) = &message.location {
        kinds.push("location");
        lines.push(format!("{}, {}", location.latitude, location.longitude));
    }

    if let Some(contact) = &message.contact {
        kinds.push("contact");
        let name = full_name(contact.first_name.as_deref(), contact.last_name.as_deref());
        let parts = [name, Some(contact.phone_number.clone())];
        lines.push(parts.into_iter().flatten().collect::<Vec<_>>().join(", "));
    }

    if let Some(poll) = &message.poll {
        kinds.push("poll");
        lines.push(poll.question.clone());
        lines.extend(poll.options.iter().map(|option| format!("- {}", option.text)));
    }

    // A die is sent with the emoji as its text by no client, so the value is all that there is.
    if let Some(dice) = &message.dice {
        kinds.push("dice");
        lines.push(format!("{} {}", dice.emoji, dice.value));
    }

    if let Some(game) = &message.game {
        kinds.push("game");
        lines.push(game.title.clone());
    }

    if message.story.is_some() {
        kinds.push("story");
    }

    let text = message.text();
    if text.is_empty() {
        return (kinds, lines.join("\n"));
    }

    // Text that people wrote stays as it is.
    kinds.push("text");
    (kinds, text.to_owned())
}

/// Returns the name of the note that a message without contents is, such as `forum_topic_edited`.
#[must_use]
pub fn service_note(payload: &Value) -> Option<&str> {
    let mut keys = payload.as_object()?.keys().map(String::as_str);
    keys.find(|key| !FRAME.contains(key))
}
