//! Bodies of calls that change a message, and of the one that shows that the bot writes. *Pure.* Source:
//! <https://core.telegram.org/bots/api#editmessagetext>, <https://core.telegram.org/bots/api#deletemessage>,
//! <https://core.telegram.org/bots/api#setmessagereaction>, <https://core.telegram.org/bots/api#sendchataction>.

use serde_json::{Value, json};

use super::message::AddressError;
use crate::channel::{MessageReaction, TypingPlace};
use crate::plan::{MessagePart, TextFormat};

/// Emoji that Telegram takes as a reaction. Source: <https://core.telegram.org/bots/api#reactiontypeemoji>.
const REACTIONS: &str = "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤‍🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 \
                         🍾 💋 🖕 😈 😴 😭 🤓 👻 👨‍💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷‍♂ 🤷 🤷‍♀ 😡";

/// Returns whether Telegram takes `emoji` as a reaction.
pub(super) fn is_reaction(emoji: &str) -> bool {
    REACTIONS.split_whitespace().any(|known| known == emoji)
}

/// A message by its chat and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageNumber {
    pub(super) chat: i64,
    pub(super) message: i64,
}

impl MessageNumber {
    /// Parses a platform's id, `{chat}/{message}`.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let (chat, message) = id.split_once('/')?;
        let (chat, message) = (chat.parse().ok()?, message.parse().ok()?);
        Some(Self { chat, message })
    }

    /// Returns the body of `editMessageText` with the text of `part`. Without a keyboard in it, the message has none.
    pub(super) fn edit_body(self, part: &MessagePart) -> Value {
        let mut body = json!({
            "chat_id": self.chat, "message_id": self.message, "text": part.content,
            "link_preview_options": {"is_disabled": true},
        });
        if part.format == TextFormat::TelegramHtml {
            body["parse_mode"] = json!("HTML");
        }
        body
    }

    /// Returns the body of `deleteMessage`.
    pub(super) fn delete_body(self) -> Value {
        json!({"chat_id": self.chat, "message_id": self.message})
    }

    /// Returns the body of `setMessageReaction`: a bot has one reaction to a message.
    pub(super) fn reaction_body(self, reaction: MessageReaction<'_>) -> Value {
        let given = if reaction.removed {
            json!([])
        } else {
            json!([{"type": "emoji", "emoji": reaction.emoji}])
        };
        json!({"chat_id": self.chat, "message_id": self.message, "reaction": given})
    }
}

/// Returns the chat of `place` and the body of `sendChatAction` there. The general topic must be named here.
pub(super) fn typing_body(place: &TypingPlace<'_>) -> Result<(i64, Value), AddressError> {
    let chat: i64 = place
        .peer
        .parse()
        .map_err(|_| AddressError::Peer(place.peer.to_owned()))?;
    let mut body = json!({"chat_id": chat, "action": "typing"});
    if let Some(thread) = place.thread {
        let topic: i64 = thread.parse().map_err(|_| AddressError::Thread(thread.to_owned()))?;
        body["message_thread_id"] = json!(topic);
    }
    Ok((chat, body))
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;

    use super::*;

    const MESSAGE: MessageNumber = MessageNumber { chat: -100, message: 7 };

    #[test]
    fn ids_of_messages_are_read() {
        assert_eq!(MessageNumber::parse("-100/7"), Some(MESSAGE));
        for wrong in ["-100", "7/", "/7", "a/7", "1/2/3"] {
            assert_eq!(MessageNumber::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_edit_has_the_form_of_its_part_and_no_keyboard() {
        let mut part = MessagePart {
            content: "<b>done</b>".to_owned(),
            format: TextFormat::TelegramHtml,
            plain: Some("done".to_owned()),
            ..MessagePart::default()
        };
        let html = json!({
            "chat_id": -100, "message_id": 7, "text": "<b>done</b>", "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": true},
        });
        assert_eq!(MESSAGE.edit_body(&part), html);

        part = part.without_markup().expect("it has markup");
        assert_eq!(MESSAGE.edit_body(&part).get("parse_mode"), None);
    }

    #[test]
    fn a_reaction_is_set_and_taken_back() {
        let reaction = |removed| MessageReaction { emoji: "👍", removed };
        assert_eq!(
            MESSAGE.reaction_body(reaction(false))["reaction"],
            json!([{"type": "emoji", "emoji": "👍"}])
        );
        assert_eq!(MESSAGE.reaction_body(reaction(true))["reaction"], json!([]));
    }

    #[test]
    fn telegram_takes_few_emoji() {
        assert!(["👀", "👌", "❤‍🔥", "😡"].into_iter().all(is_reaction));
        assert!(!["✅", "", "eyes", "👀 👌"].into_iter().any(is_reaction));
    }

    #[test]
    fn typing_names_every_topic() {
        let place = |peer, thread| TypingPlace {
            account: "bot",
            peer,
            thread,
            now: UnixMillis(1),
        };
        let general = json!({"chat_id": -100, "action": "typing", "message_thread_id": 1});
        assert_eq!(typing_body(&place("-100", Some("1"))), Ok((-100, general)));
        assert_eq!(
            typing_body(&place("5", None)),
            Ok((5, json!({"chat_id": 5, "action": "typing"})))
        );
        assert!(typing_body(&place("ann", None)).is_err());
    }
}
