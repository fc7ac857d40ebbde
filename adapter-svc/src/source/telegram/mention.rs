//! Whether a message addresses the bot. *Pure.*
//!
//! Source: <https://core.telegram.org/bots/api#messageentity>. Offsets count UTF-16 units, user names have no case.

use shared::model::event::{EventMention, MentionForm};

use super::BotAccount;
use super::update::{Message, MessageEntity};

/// Returns whether and how `message` addresses the bot of `account`. The first of these that holds counts: a mention of
/// its user name or id, a command that names it, a reply to one of its messages, a command in a private chat.
#[must_use]
pub fn mention_of(account: &BotAccount, message: &Message) -> EventMention {
    let marked = |kind: &str| {
        let found = message.entities().iter().find(|entity| {
            let text = utf16_slice(message.text(), entity.offset, entity.length);
            entity.kind == kind && names_bot(account, entity, text.unwrap_or_default())
        });
        found.is_some()
    };

    let is_reply = || {
        let sender = message.replied().and_then(|replied| replied.from.as_ref());
        sender.is_some_and(|sender| sender.id == account.bot_id)
    };
    let is_private_command = || {
        let first = message.entities().iter().find(|entity| entity.offset == 0);
        message.chat.kind == "private" && first.is_some_and(|entity| entity.kind == "bot_command")
    };

    let how = if marked("mention") || marked("text_mention") {
        MentionForm::Native
    } else if marked("bot_command") {
        MentionForm::Command
    } else if is_reply() {
        MentionForm::Reply
    } else if is_private_command() {
        MentionForm::Command
    } else {
        MentionForm::None
    };

    EventMention {
        me: how != MentionForm::None,
        how,
    }
}

/// Returns whether `entity`, which marks `text`, names the bot.
fn names_bot(account: &BotAccount, entity: &MessageEntity, text: &str) -> bool {
    if entity.kind == "text_mention" {
        return entity.user.as_ref().is_some_and(|user| user.id == account.bot_id);
    }

    // `@name` of a mention, and `/command@name`. A command without a name is for every bot of a group.
    let name = text.split_once('@').map(|(_, name)| name);
    name.is_some_and(|name| !name.is_empty() && name.eq_ignore_ascii_case(&account.username))
}

/// Returns `length` UTF-16 units of `text` from unit `offset` on; `None` if the range is outside of the text or cuts a
/// character.
#[must_use]
pub fn utf16_slice(text: &str, offset: usize, length: usize) -> Option<&str> {
    let place = |unit: usize| {
        let mut passed = 0;
        for (index, character) in text.char_indices() {
            if passed == unit {
                return Some(index);
            }
            passed += character.len_utf16();
        }
        (passed == unit).then_some(text.len())
    };

    let end = offset.checked_add(length)?;
    text.get(place(offset)?..place(end)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn account() -> BotAccount {
        BotAccount {
            name: "main".to_owned(),
            bot_id: 77,
            username: "NexusBot".to_owned(),
        }
    }

    fn check(message: &Value, how: MentionForm) {
        let parsed: Message = serde_json::from_value(message.clone()).expect("a message");
        let found = mention_of(&account(), &parsed);
        assert_eq!((found.how, found.me), (how, how != MentionForm::None), "{message}");
    }

    #[test]
    fn a_message_addresses_the_bot_by_name_id_command_or_reply() {
        let group = json!({"id": -5, "type": "supergroup", "is_forum": true});
        let entity =
            |kind: &str, offset: usize, length: usize| json!([{"type": kind, "offset": offset, "length": length}]);

        // The emoji has two units.
        let text = "🎲 @nexusbot hi";
        check(
            &json!({"chat": group, "text": text, "entities": entity("mention", 3, 9)}),
            MentionForm::Native,
        );
        check(
            &json!({"chat": group, "caption": "@NexusBot", "caption_entities": entity("mention", 0, 9)}),
            MentionForm::Native,
        );
        check(
            &json!({"chat": group, "text": "@other hi", "entities": entity("mention", 0, 6)}),
            MentionForm::None,
        );
        check(&json!({"chat": group, "text": "@nexusbot hi"}), MentionForm::None);

        let by_id = |id: i64| json!([{"type": "text_mention", "offset": 0, "length": 2, "user": {"id": id}}]);
        check(
            &json!({"chat": group, "text": "ho", "entities": by_id(77)}),
            MentionForm::Native,
        );
        check(
            &json!({"chat": group, "text": "ho", "entities": by_id(78)}),
            MentionForm::None,
        );

        let command =
            |text: &str| json!({"chat": group, "text": text, "entities": entity("bot_command", 0, text.len())});
        check(&command("/go@nexusbot"), MentionForm::Command);
        check(&command("/go@otherbot"), MentionForm::None);
        check(&command("/go"), MentionForm::None);
        let private =
            json!({"chat": {"id": 5, "type": "private"}, "text": "/start", "entities": entity("bot_command", 0, 6)});
        check(&private, MentionForm::Command);

        let reply = |from: i64, id: i64| {
            json!({"chat": group, "text": "yes", "message_thread_id": 9, "is_topic_message": true,
                   "reply_to_message": {"message_id": id, "from": {"id": from}}})
        };
        check(&reply(77, 8), MentionForm::Reply);
        check(&reply(78, 8), MentionForm::None);
        // The bot made the topic, and every message in it names the topic's first note.
        check(&reply(77, 9), MentionForm::None);
    }

    proptest! {
        #[test]
        fn a_range_is_what_utf16_says(text in "\\PC{0,20}", offset in 0_usize..25, length in 1_usize..25) {
            let units: Vec<u16> = text.encode_utf16().collect();
            let expected = units.get(offset..offset + length).and_then(|units| String::from_utf16(units).ok());
            let found = utf16_slice(&text, offset, length).map(str::to_owned);
            prop_assert_eq!(found, expected);
        }
    }
}
