//! Recorded updates: each one becomes an event that says what its facts say, or is refused with a reason.

use super::*;

/// Kinds of recorded updates that belong to no conversation of a bot.
const REFUSED: [&str; 8] = [
    "business_message",
    "edited_business_message",
    "guest_message",
    "poll",
    "poll_answer",
    "pre_checkout_query",
    "purchased_paid_media",
    "shipping_query",
];

#[test]
fn recorded_updates_say_what_their_facts_say_or_are_refused_with_a_reason() {
    let Some(text) = fixture_text("fixtures/platforms/telegram.jsonl") else {
        return;
    };

    let mut seen = BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let (id, facts) = (&line["id"], &line["facts"]);
        let kind = facts["event_type"].as_str().expect("a kind");
        // Some recordings are a message without its update.
        let raw = match kind {
            "(bare message)" => json!({"update_id": 1, "message": line["raw"]}),
            _ => line["raw"].clone(),
        };

        match read(&raw) {
            Ok(event) => {
                *seen.entry("stored").or_default() += 1;
                assert!(!REFUSED.contains(&kind), "{id}");
                check_facts(&event, facts, &raw, &id.to_string());
                let again = read(&raw).expect("the same");
                assert_eq!(again, event, "{id}");
            }
            Err(reason) => {
                *seen.entry("refused").or_default() += 1;
                assert!(REFUSED.contains(&kind), "{id}: {reason}");
                assert_eq!(reason, RefuseUpdateError::NoConversation(kind.to_owned()), "{id}");
            }
        }
    }

    assert!(seen["stored"] >= 20 && seen["refused"] >= 5, "{seen:?}");
}

fn check_facts(event: &Event, facts: &Value, raw: &Value, id: &str) {
    let text = |key: &str| facts.get(key).and_then(Value::as_str);
    if let Some(chat) = text("chat_id") {
        assert_eq!(event.peer.id, chat, "{id}");
    }
    if let Some(kind) = text("chat_type") {
        assert_eq!(event.metadata["chat_type"], kind, "{id}");
        let expected = match kind {
            "private" => PeerKind::Dm,
            "channel" => PeerKind::Channel,
            _ => PeerKind::Group,
        };
        assert_eq!(event.peer.kind, expected, "{id}");
    }
    if let Some(message) = text("message_id") {
        let own = format!("{}/{message}", event.peer.id);
        assert_eq!(event.id.as_str(), format!("telegram:main/{own}"), "{id}");
        assert_eq!(PlatformIds::from_event(event).expect("ids").ids, [own], "{id}");
    }
    if let Some(date) = facts.get("date").and_then(Value::as_i64) {
        assert_eq!(event.timestamp, UnixMillis::from_seconds(date), "{id}");
    }
    if let Some(date) = facts.get("edit_date").and_then(Value::as_i64) {
        assert_eq!(event.edited_at, Some(UnixMillis::from_seconds(date)), "{id}");
    }
    assert_eq!(
        event.direction == EventDirection::Updated,
        text("event_type").is_some_and(|kind| kind.starts_with("edited")),
        "{id}"
    );

    if let Some(sender) = text("sender_chat_id").or_else(|| text("sender_id")) {
        assert_eq!(event.from.id, sender, "{id}");
    }
    if let Some(username) = text("sender_username") {
        assert_eq!(event.metadata["username"], username, "{id}");
    }
    let is_bot = facts.get("sender_is_bot").and_then(Value::as_bool);
    assert_eq!(
        event.tags.contains(&FROM_BOT.to_owned()),
        is_bot.unwrap_or(false),
        "{id}"
    );

    if let Some(said) = text("text") {
        assert_eq!(event.content, said, "{id}");
    }
    if let Some(thread) = text("thread_id") {
        let reply_thread = event.metadata.get("reply_thread").and_then(Value::as_str);
        assert_eq!(event.thread_id.as_deref().or(reply_thread), Some(thread), "{id}");
    }
    if let Some(answered) = text("reply_to_id") {
        let expected = format!("telegram:main/{}/{answered}", event.peer.id);
        assert_eq!(event.reply_to.as_deref(), Some(expected.as_str()), "{id}");
    }

    check_media_facts(event, facts, raw, id);
}

fn check_media_facts(event: &Event, facts: &Value, raw: &Value, id: &str) {
    let kinds = facts["media"].as_array().map(Vec::as_slice).unwrap_or_default();
    for kind in kinds.iter().filter_map(Value::as_str) {
        let expected = match kind {
            "video_note" | "animation" => "video",
            "photo" => "image",
            other => other,
        };
        assert!(
            event.content_types.iter().any(|found| found == expected),
            "{id}: {kind}"
        );
        // A die and a game have no file.
        let has_file = !["dice", "game"].contains(&kind);
        assert_eq!(event.attachments.len(), usize::from(has_file), "{id}");
        assert!(event.attachments.iter().all(|file| file.handle.is_some()), "{id}");
        assert!(
            event
                .attachments
                .iter()
                .all(|file| file.state == AttachmentState::Remote),
            "{id}"
        );
    }

    // The whole payload is kept, without the vendor's number of the update.
    let mut payload = raw.clone();
    payload.as_object_mut().expect("an object").remove("update_id");
    assert_eq!(event.metadata["raw"], payload, "{id}");

    let entities = facts["entities"].as_array().map(Vec::as_slice).unwrap_or_default();
    let marked = raw["message"]["entities"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    assert_eq!(entities.len(), marked.len(), "{id}");
    for (fact, entity) in entities.iter().zip(marked) {
        let number = |key: &str| {
            entity[key]
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .expect("a number")
        };
        let found = utf16_slice(&event.content, number("offset"), number("length"));
        assert_eq!(found, fact[1].as_str(), "{id}");
    }
}

#[test]
fn a_recorded_conversation_mentions_its_bot_by_its_name() {
    let Some(text) = fixture_text("fixtures/platforms/replay/telegram.json") else {
        return;
    };
    let replay: Value = serde_json::from_str(&text).expect("JSON");
    let account = BotAccount {
        name: "main".to_owned(),
        bot_id: replay["botUserId"].as_str().expect("an id").parse().expect("a number"),
        username: replay["botName"].as_str().expect("a name").to_owned(),
    };

    for (key, how) in [("mention", MentionForm::Native), ("followUp", MentionForm::None)] {
        let events = update_events(&account, &replay[key], NOW).expect("an event");
        assert_eq!(events[0].mention.map(|mention| mention.how), Some(how), "{key}");
        assert_eq!(events[0].direction, EventDirection::Received);
    }
}

#[test]
fn recorded_updates_with_any_part_replaced_are_stored_within_bounds_or_refused() {
    let Some(text) = fixture_text("fixtures/platforms/telegram.jsonl") else {
        return;
    };

    let replacements = [
        json!(null),
        json!(true),
        json!(-1),
        json!(i64::MAX),
        json!(1e300),
        json!("\u{0}a\n𐰀"),
        json!([]),
        json!([{}]),
        json!({}),
    ];
    let mut tried = 0;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let raw = match line["raw"].get("update_id") {
            Some(_) => line["raw"].clone(),
            None => json!({"update_id": 1, "message": line["raw"]}),
        };

        // It checks the bounds of each event.
        tried += replace_each_part(&raw, &replacements, |changed| {
            let _stored_or_refused = read(changed);
        });
    }
    assert!(tried > 1_000, "{tried}");
}
