//! Recorded updates, and the cases that the vendor documents.

mod recorded;

use std::collections::BTreeMap;

use serde_json::json;
use shared::model::event::{AttachmentState, MentionForm};
use shared::testing::{fixture_text, replace_each_part, trust};
use shared::wire::envelope::WireMessage as _;
use shared::wire::headers::TraceCarrier;

use super::super::mention::utf16_slice;
use super::*;
use crate::encoded_event::EncodedEvent;
use crate::source::raw_payload::MAX_RAW_BYTES;

const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

fn account() -> BotAccount {
    BotAccount {
        name: "main".to_owned(),
        bot_id: 77,
        username: "NexusBot".to_owned(),
    }
}

fn read(raw: &Value) -> Result<Event, RefuseUpdateError> {
    let mut events = update_events(&account(), raw, NOW)?;
    assert_eq!(events.len(), 1, "{raw}");
    let event = events.remove(0);
    event.check().expect("an event within its bounds");
    Ok(event)
}

/// The event of a message with `keys` from user 5 in the private chat with them.
fn message(keys: &Value) -> Event {
    let mut message = json!({"message_id": 9, "date": 100, "from": {"id": 5, "first_name": "Ann"},
                             "chat": {"id": 5, "type": "private"}});
    for (key, value) in keys.as_object().expect("an object") {
        message[key] = value.clone();
    }
    read(&json!({"update_id": 1, "message": message})).expect("an event")
}

#[test]
fn the_account_proves_who_spoke() {
    let event = message(&json!({"text": "hi"}));
    assert_eq!(event.origin, EventOrigin::account("telegram", "main"));
    assert_eq!(event.account(), "main");
    assert!(event.speaks_for.is_empty());
    assert_eq!(event.from.display_name.as_deref(), Some("Ann"));
    assert_eq!((event.timestamp, event.received_at), (UnixMillis(100_000), NOW));
}

#[test]
fn an_edit_and_an_edit_back_are_messages_of_their_own_under_one_id() {
    let edit = |update: i64, text: &str, at: i64| {
        let raw = json!({"update_id": update, "edited_message": {"message_id": 9, "date": 100, "edit_date": at,
            "from": {"id": 5}, "chat": {"id": 5, "type": "private"}, "text": text}});
        let event = read(&raw).expect("an event");
        let encoded = EncodedEvent::encode_event(&event, &trust(), &TraceCarrier::default(), 1 << 20);
        (event.id, encoded.expect("encoded").message_id)
    };

    let (first, other, back) = (edit(1, "a", 101), edit(2, "b", 102), edit(3, "a", 103));
    assert!(first.0 == other.0 && other.0 == back.0);
    assert!(first.1 != other.1 && other.1 != back.1 && first.1 != back.1);
    // After a new token the vendor counts anew, and may send it again.
    assert_eq!(edit(700, "a", 101), first);
}

#[test]
fn what_the_bot_did_itself_is_an_echo_and_another_bot_is_tagged() {
    let from = |id: i64| json!({"id": id, "is_bot": true, "first_name": "Bot"});
    let group = json!({"id": -6, "type": "group", "title": "G"});
    let raw = |id: i64| json!({"update_id": 1, "message": {"message_id": 2, "date": 1, "from": from(id), "chat": group, "text": "x"}});
    assert_eq!(read(&raw(77)), Err(RefuseUpdateError::Echo));
    assert_eq!(read(&raw(78)).expect("an event").tags, [FROM_BOT]);

    let reaction = json!({"update_id": 1, "message_reaction": {"chat": group, "message_id": 2, "user": from(77), "date": 1,
        "old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": "👍"}]}});
    assert_eq!(read(&reaction), Err(RefuseUpdateError::Echo));

    // An anonymous administrator is a bot of the vendor's by `from`, and the group by `sender_chat`.
    let anonymous = json!({"update_id": 1, "message": {"message_id": 2, "date": 1, "from": from(1_087_968_824), "sender_chat": group,
        "chat": group, "text": "x"}});
    let event = read(&anonymous).expect("an event");
    assert_eq!(
        (event.from.id.as_str(), event.from.display_name.as_deref()),
        ("-6", Some("G"))
    );
    assert!(event.tags.is_empty());
}

#[test]
fn topics_are_threads_and_general_is_none() {
    let topic = |id: i64| {
        message(
            &json!({"chat": {"id": -6, "type": "supergroup", "is_forum": true}, "message_thread_id": id,
                       "is_topic_message": true, "text": "x"}),
        )
    };
    assert_eq!(topic(33).thread_id.as_deref(), Some("33"));
    assert_eq!(topic(1).thread_id, None);

    let root = message(
        &json!({"chat": {"id": -6, "type": "supergroup", "is_forum": true}, "message_thread_id": 33,
        "is_topic_message": true, "text": "x", "reply_to_message": {"message_id": 33, "from": {"id": 77}}}),
    );
    assert_eq!((root.reply_to, root.quote), (None, None));
}

#[test]
fn answers_and_quotes_name_events() {
    let replied = json!({"message_id": 4, "from": {"id": 6, "first_name": "Bo"}, "chat": {"id": 5, "type": "private"}, "text": "one two"});
    let plain = message(&json!({"text": "x", "reply_to_message": replied}));
    assert_eq!(plain.reply_to.as_deref(), Some("telegram:main/5/4"));
    let quote = plain.quote.expect("a quote");
    assert_eq!(
        (quote.id.as_str(), quote.text.as_str()),
        ("telegram:main/5/4", "one two")
    );
    assert_eq!(quote.from.expect("a sender").id, "6");

    let own = message(&json!({"text": "x", "reply_to_message": replied, "quote": {"text": "two", "position": 4}}));
    assert_eq!(own.quote.expect("a quote").text, "two");

    let external = json!({"origin": {}, "chat": {"id": -9, "type": "channel"}, "message_id": 3});
    let outside = message(&json!({"text": "x", "external_reply": external, "quote": {"text": "far"}}));
    assert_eq!(outside.reply_to.as_deref(), Some("telegram:main/-9/3"));
    assert_eq!(outside.quote.expect("a quote").text, "far");
}

#[test]
fn contents_without_text_are_found_by_their_words() {
    for (keys, kind, content) in [
        (
            json!({"location": {"latitude": 1.5, "longitude": -2.0}}),
            "location",
            "1.5, -2",
        ),
        (
            json!({"location": {"latitude": 1.5, "longitude": 2.0}, "venue": {"title": "Pier", "address": "Quay 1"}}),
            "location",
            "Pier, Quay 1",
        ),
        (
            json!({"contact": {"phone_number": "+44", "first_name": "Ann"}}),
            "contact",
            "Ann, +44",
        ),
        (
            json!({"poll": {"question": "Tea?", "options": [{"text": "yes"}, {"text": "no"}]}}),
            "poll",
            "Tea?\n- yes\n- no",
        ),
        (json!({"sticker": {"file_id": "s", "emoji": "🐻"}}), "sticker", "🐻"),
        (json!({"voice": {"file_id": "v", "duration": 2}}), "voice", ""),
    ] {
        let event = message(&keys);
        assert_eq!(
            (event.content_types[0].as_str(), event.content.as_str()),
            (kind, content)
        );
        assert_eq!(event.direction, EventDirection::Received);
    }

    let photo = message(&json!({"photo": [{"file_id": "p", "width": 1, "height": 1}], "caption": "see"}));
    assert_eq!(
        (photo.content_types, photo.content.as_str()),
        (vec!["image".to_owned(), "text".to_owned()], "see")
    );
}

#[test]
fn notes_about_the_chat_are_only_observed() {
    let moved = message(&json!({"chat": {"id": -6, "type": "group"}, "migrate_to_chat_id": -1_006}));
    assert_eq!(
        (moved.direction, moved.content_types.as_slice()),
        (EventDirection::Observed, ["service".to_owned()].as_slice())
    );
    assert_eq!(
        (&moved.metadata["migrated_to"], &moved.metadata["service"]),
        (&json!("-1006"), &json!("migrate_to_chat_id"))
    );
    let came = message(&json!({"chat": {"id": -1_006, "type": "supergroup"}, "migrate_from_chat_id": -6}));
    assert_eq!(came.metadata["migrated_from"], "-6");
    let topic = message(&json!({"forum_topic_created": {"name": "T"}}));
    assert_eq!(topic.metadata["service"], "forum_topic_created");
}

#[test]
fn reactions_presses_and_members_have_ids_of_their_own() {
    let chat = json!({"id": -6, "type": "supergroup"});
    let reaction = |now: &str, date: i64| {
        read(
            &json!({"update_id": 1, "message_reaction": {"chat": chat, "message_id": 2, "user": {"id": 5}, "date": date,
            "old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": now}]}}),
        )
        .expect("an event")
    };
    let (up, down, later) = (reaction("👍", 1), reaction("👎", 1), reaction("👍", 2));
    assert!(up.id != down.id && up.id != later.id);
    assert!(
        up.id.as_str().starts_with("telegram:main/-6/2/reaction/5/1-"),
        "{}",
        up.id
    );
    assert_eq!(
        (up.target.as_deref(), up.content.as_str()),
        (Some("telegram:main/-6/2"), "👍")
    );
    assert_eq!(
        (up.direction, up.content_types),
        (EventDirection::Observed, vec!["reaction".to_owned()])
    );

    let press = read(&json!({"update_id": 1, "callback_query": {"id": "77123", "from": {"id": 5}, "chat_instance": "1", "data": "yes",
        "message": {"message_id": 2, "date": 0, "chat": chat}}}))
    .expect("an event");
    assert_eq!(press.id.as_str(), "telegram:main/-6/2/press/77123");
    assert_eq!(
        (press.target.as_deref(), press.content.as_str()),
        (Some("telegram:main/-6/2"), "yes")
    );
    assert_eq!((press.direction, press.timestamp), (EventDirection::Received, NOW));

    let inline = json!({"update_id": 1, "callback_query": {"id": "7", "from": {"id": 5}, "inline_message_id": "x"}});
    assert!(matches!(read(&inline), Err(RefuseUpdateError::NoConversation(_))));

    let member = read(
        &json!({"update_id": 1, "my_chat_member": {"chat": chat, "from": {"id": 5}, "date": 3,
        "old_chat_member": {"user": {"id": 77, "first_name": "Nexus"}, "status": "member"},
        "new_chat_member": {"user": {"id": 77, "first_name": "Nexus"}, "status": "kicked"}}}),
    )
    .expect("an event");
    assert!(
        member.id.as_str().starts_with("telegram:main/-6/member/77/3-"),
        "{}",
        member.id
    );
    assert_eq!(
        (member.content.as_str(), &member.metadata["member"]["me"]),
        ("Nexus: member → kicked", &json!(true))
    );
}

#[test]
fn a_payload_above_the_bound_is_not_kept_whole() {
    let at = |length: usize| message(&json!({"text": "hi", "web_app_data": "x".repeat(length)})).metadata;
    let room = MAX_RAW_BYTES
        - message(&json!({"text": "hi", "web_app_data": ""})).metadata["raw"]
            .to_string()
            .len();
    assert!(at(room).contains_key("raw"));
    let above = at(room + 1);
    assert!(!above.contains_key("raw"));
    assert_eq!(above["raw_bytes"], json!(MAX_RAW_BYTES + 1));
}

#[test]
fn payloads_of_any_form_are_refused_with_a_reason() {
    for raw in [
        json!(null),
        json!([]),
        json!({}),
        json!({"update_id": "1", "message": {}}),
        json!({"update_id": 1}),
        json!({"update_id": 1, "message": {}, "edited_message": {}}),
        json!({"update_id": 1, "message": 5}),
        json!({"update_id": 1, "message": {"message_id": "9"}}),
        json!({"update_id": 1, "message": {"message_id": 9, "date": 1, "chat": {"id": 5}}}),
    ] {
        assert!(matches!(read(&raw), Err(RefuseUpdateError::Malformed(_))), "{raw}");
    }

    let unknown = json!({"update_id": 1, "message": {"message_id": 9, "date": 1, "chat": {"id": 5, "type": "guild"}}});
    assert_eq!(read(&unknown), Err(RefuseUpdateError::UnknownChat("guild".to_owned())));
    let path = read(&json!({"update_id": 1, "message": {"message_id": 9, "chat": {"id": 5, "type": 7}}}));
    assert!(path.expect_err("refused").to_string().contains("message.chat.type"));
}

#[test]
fn nothing_of_the_bots_own_messages_is_in_an_event() {
    let chat = json!({"id": 5, "type": "private"});
    let card = json!({"message_id": 2, "date": 1, "chat": chat, "from": {"id": 77, "is_bot": true, "first_name": "Nexus"},
        "text": "Approval needed: approve K7Q2-M9PX", "reply_markup": {"inline_keyboard": []}});
    let reply = json!({"message_id": 3, "date": 2, "chat": chat, "from": {"id": 5, "first_name": "Ann"}, "text": "what is this?",
        "reply_to_message": card, "quote": {"text": "approve K7Q2-M9PX", "position": 0}});
    let press = json!({"id": "1", "from": {"id": 5, "first_name": "Ann"}, "chat_instance": "1", "data": "yes", "message": card});

    for (kind, payload) in [("message", reply), ("callback_query", press)] {
        let event = read(&json!({"update_id": 1, kind: payload})).expect("an event");
        let text = serde_json::to_string(&event).expect("it serialises");
        assert!(!text.contains("K7Q2"), "{text}");
        assert!(text.contains("telegram:main/5/2"), "it says what it is about: {text}");
    }
}

#[test]
fn a_forwarded_card_says_only_that_it_is_one() {
    let bot = json!({"id": 77, "is_bot": true, "first_name": "Nexus"});
    let origin = json!({"forward_origin": {"type": "user", "sender_user": bot, "date": 1}});
    let older = json!({"forward_from": bot, "forward_date": 1});
    let text = json!({"text": "approve K7Q2-M9PX", "entities": [{"type": "code", "offset": 8, "length": 9}],
                      "reply_markup": {"inline_keyboard": [[{"text": "yes", "callback_data": "approve K7Q2-M9PX"}]]}});
    let caption = json!({"caption": "approve K7Q2-M9PX", "photo": [{"file_id": "p", "width": 1, "height": 1}]});

    for from in [&origin, &older] {
        for (shown, types) in [(&text, vec!["forward"]), (&caption, vec!["image", "forward"])] {
            let mut keys = from.clone();
            for (key, value) in shown.as_object().expect("an object") {
                keys[key] = value.clone();
            }
            let event = message(&keys);
            assert_eq!(
                (event.content.as_str(), event.content_types.clone()),
                (OWN_FORWARD, types.iter().map(ToString::to_string).collect())
            );
            let written = serde_json::to_string(&event).expect("it serialises");
            assert!(!written.contains("K7Q2") && written.contains("forward_"), "{written}");

            // Somebody answers the forwarded card, and quotes it.
            keys["message_id"] = json!(8);
            keys["from"] = json!({"id": 5, "first_name": "Ann"});
            keys["chat"] = json!({"id": 5, "type": "private"});
            let quote = json!({"text": "K7Q2-M9PX", "position": 8});
            for answer in [
                json!({"text": "what is this?", "reply_to_message": keys}),
                json!({"text": "what is this?", "reply_to_message": keys, "quote": quote}),
                json!({"text": "what is this?", "quote": quote, "external_reply": {"origin": origin["forward_origin"],
                       "chat": {"id": -9, "type": "group"}, "message_id": 3}}),
            ] {
                let event = message(&answer);
                assert_eq!((event.content.as_str(), &event.quote), ("what is this?", &None));
                let written = serde_json::to_string(&event).expect("it serialises");
                assert!(!written.contains("K7Q2"), "{written}");
            }
        }
    }

    // What another one wrote is forwarded as it is.
    let other = json!({"text": "the news", "forward_origin": {"type": "user", "sender_user": {"id": 6}, "date": 1}});
    let event = message(&other);
    assert_eq!(
        (event.content.as_str(), event.content_types.as_slice()),
        ("the news", ["text".to_owned()].as_slice())
    );
    assert_eq!(event.metadata["raw"]["message"]["text"], "the news");
}
