//! Who may write to a bot, and which messages are addressed to it. *Pure.*
//!
//! Every event is stored. An event that is not allowed is tagged and thereby withheld from bindings and hooks, except
//! hooks that ask for the tag; a group's message that does not address the bot is only observed. Source:
//! `docs/telegram.md`.

use shared::model::event::{Event, EventDirection, PeerKind, UNLISTED, UNPAIRED};
use shared::platform::telegram::{DirectPolicy, TelegramAccount};

/// Tags `event`, or makes it an observed one, as the settings of `account` say.
pub fn apply_access(account: &TelegramAccount, event: &mut Event) {
    let sender: Option<i64> = event.from.id.parse().ok();
    let chat: Option<i64> = event.peer.id.parse().ok();

    match event.peer.kind {
        PeerKind::Dm => {
            let is_allowed = match account.direct {
                DirectPolicy::Open => true,
                DirectPolicy::Allowlist => is_among(&account.allow, sender),
            };
            if !is_allowed {
                event.add_tag(UNPAIRED);
            }
        }
        PeerKind::Group | PeerKind::Channel => {
            let Some(policy) = chat.and_then(|chat| account.group_policy(chat)) else {
                event.add_tag(UNLISTED);
                return;
            };
            if !policy.allow.is_empty() && !is_among(&policy.allow, sender) {
                event.add_tag(UNLISTED);
            }

            // A button is the bot's own, so pressing it addresses the bot.
            let is_press = event.content_types.iter().any(|kind| kind == "press");
            let is_addressed = is_press || event.mention.is_some_and(|mention| mention.me);
            if policy.require_mention && !is_addressed && event.direction == EventDirection::Received {
                event.direction = EventDirection::Observed;
            }
        }
    }
}

fn is_among(allowed: &std::collections::BTreeSet<i64>, sender: Option<i64>) -> bool {
    sender.is_some_and(|sender| allowed.contains(&sender))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use shared::model::time::UnixMillis;
    use shared::platform::accounts::read_platforms;

    use super::super::BotAccount;
    use super::super::normalize::update_events;
    use super::*;

    /// The account with `keys` beside its token.
    fn account(keys: &str) -> TelegramAccount {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "77:secret").expect("written");
        let token = file.path().display();
        let text = format!("telegram: {{accounts: {{main: {{token: 'file:{token}'{keys}}}}}}}");
        let read = read_platforms(&text).expect("the file is read");
        read.telegram.accounts["main"].clone()
    }

    fn event(message: &Value) -> Event {
        let bot = BotAccount {
            name: "main".to_owned(),
            bot_id: 77,
            username: "nexusbot".to_owned(),
        };
        let raw = json!({"update_id": 1, "message": message});
        update_events(&bot, &raw, UnixMillis(1)).expect("an event").remove(0)
    }

    fn tags(keys: &str, message: &Value) -> (Vec<String>, EventDirection) {
        let mut event = event(message);
        apply_access(&account(keys), &mut event);
        (event.tags, event.direction)
    }

    #[test]
    fn direct_messages_are_for_those_who_may_write() {
        let message =
            json!({"message_id": 1, "date": 1, "from": {"id": 5}, "chat": {"id": 5, "type": "private"}, "text": "x"});
        for (keys, expected) in [
            (", direct: open", &[][..]),
            ("", &[UNPAIRED][..]),
            (", allow: [6]", &[UNPAIRED][..]),
            (", allow: [5]", &[][..]),
            (", direct: allowlist, allow: [5]", &[][..]),
            (", direct: allowlist, allow: [6]", &[UNPAIRED][..]),
        ] {
            let (tags, direction) = tags(keys, &message);
            assert_eq!(tags, expected, "{keys}");
            assert_eq!(direction, EventDirection::Received, "{keys}");
        }
    }

    #[test]
    fn groups_are_listed_and_mentions_required() {
        let message = |text: &str, marked: &str| {
            json!({"message_id": 1, "date": 1, "from": {"id": 5}, "chat": {"id": -6, "type": "supergroup"}, "text": text,
                   "entities": [{"type": marked, "offset": 0, "length": 9}]})
        };
        let (plain, mention) = (message("hello all", "bold"), message("@nexusbot", "mention"));
        let (received, observed) = (EventDirection::Received, EventDirection::Observed);
        for (keys, message, tag, direction) in [
            ("", &mention, Some(UNLISTED), received),
            (", groups: {'*': {}}", &plain, None, observed),
            (", groups: {'*': {}}", &mention, None, received),
            (", groups: {'*': {require_mention: false}}", &plain, None, received),
            (", groups: {'-6': {require_mention: false}}", &plain, None, received),
            (", groups: {'-7': {}}", &mention, Some(UNLISTED), received),
            (", groups: {}", &mention, Some(UNLISTED), received),
            (", groups: {'-6': {allow: [5]}}", &mention, None, received),
            (", groups: {'-6': {allow: [6]}}", &mention, Some(UNLISTED), received),
        ] {
            let found = tags(keys, message);
            assert_eq!(
                found,
                (tag.map(str::to_owned).into_iter().collect(), direction),
                "{keys}"
            );
        }
    }

    #[test]
    fn an_edit_stays_one_and_a_press_is_addressed() {
        let bot = BotAccount {
            name: "main".to_owned(),
            bot_id: 77,
            username: "nexusbot".to_owned(),
        };
        let chat = json!({"id": -6, "type": "supergroup"});
        let edit = json!({"update_id": 1, "edited_message": {"message_id": 1, "date": 1, "edit_date": 2, "from": {"id": 5},
            "chat": chat, "text": "x"}});
        let press = json!({"update_id": 1, "callback_query": {"id": "7", "from": {"id": 5}, "data": "y",
            "message": {"message_id": 1, "date": 1, "chat": chat}}});
        for (raw, direction) in [(edit, EventDirection::Updated), (press, EventDirection::Received)] {
            let mut event = update_events(&bot, &raw, UnixMillis(1)).expect("an event").remove(0);
            apply_access(&account(""), &mut event);
            assert_eq!(event.direction, direction);
        }
    }
}
