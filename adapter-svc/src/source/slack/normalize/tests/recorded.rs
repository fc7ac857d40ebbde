//! Recorded payloads: each one becomes an event that says what its facts say, or is refused with a reason.

use std::collections::BTreeMap;

use super::*;
use crate::source::slack::content::readable_text;

/// The bot for which `raw` was posted.
fn bot_of(raw: &Value) -> SlackBot {
    let text = |path: &str| raw.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let message_user = text("/message/user");
    SlackBot {
        name: "app".to_owned(),
        team_id: text("/team_id").or_else(|| text("/team/id")).unwrap_or_default(),
        user_id: text("/authorizations/0/user_id").or(message_user).unwrap_or_default(),
        bot_id: None,
    }
}

#[test]
fn recorded_payloads_say_what_their_facts_say_or_are_refused_with_a_reason() {
    let Some(text) = fixture_text("fixtures/platforms/slack.jsonl") else {
        return;
    };

    let mut seen = BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let (id, facts, raw) = (line["id"].as_str().expect("an id"), &line["facts"], &line["raw"]);
        let is_recorded = line["source"]
            .as_str()
            .is_some_and(|source| source.contains("recorded"));
        match read_raw(&bot_of(raw), raw) {
            Ok(events) => {
                *seen.entry("stored").or_default() += 1;
                assert!(is_recorded, "{id}: {events:?}");
                check_facts(&events[0], facts, raw, id);
                assert_eq!(read_raw(&bot_of(raw), raw), Ok(events), "{id}");
            }
            Err(reason) => {
                *seen.entry(reason.name()).or_default() += 1;
                // A form in a window belongs to no conversation; every other recorded payload is an event.
                let is_form = facts["envelope"] == "view_submission";
                assert!(!is_recorded || is_form, "{id}: {reason}");
                let stranger = read_raw(&bot(), raw);
                assert!(stranger.is_err(), "{id}: {stranger:?}");
            }
        }
    }

    println!("{seen:?}");
    assert!(
        seen["stored"] >= 10 && seen["malformed"] + seen["no_conversation"] >= 20,
        "{seen:?}"
    );
}

fn check_facts(event: &Event, facts: &Value, raw: &Value, id: &str) {
    let text = |key: &str| facts.get(key).and_then(Value::as_str);
    if let Some(channel) = text("channel_id") {
        assert_eq!(event.peer.id, channel, "{id}");
        let expected = if channel.starts_with('D') {
            PeerKind::Dm
        } else {
            PeerKind::Channel
        };
        assert_eq!(event.peer.kind, expected, "{id}");
    }
    if let Some(ts) = text("ts") {
        let own = format!("{}/{ts}", event.peer.id);
        assert_eq!(event.id.as_str(), format!("slack:app/{own}"), "{id}");
        assert_eq!(PlatformIds::from_event(event).expect("ids").ids, [own], "{id}");
    }
    if let Some(sender) = text("sender_id") {
        assert_eq!(event.from.id, sender, "{id}");
    }
    if facts.get("bot_id").is_some_and(Value::is_null) {
        assert!(event.tags.is_empty(), "{id}");
    }
    if let Some(team) = text("team_id") {
        assert_eq!(event.peer.team_id.as_deref(), Some(team), "{id}");
    }
    if let Some(written) = text("text") {
        assert_eq!(event.content, readable_text(written), "{id}");
    }
    if let Some(thread) = facts.get("thread_ts") {
        // Of a press the facts name no thread.
        assert_eq!(event.thread_id.as_deref(), thread.as_str(), "{id}");
    }

    match text("event_type") {
        Some("app_mention") => assert_eq!(
            event.mention.map(|mention| mention.how),
            Some(MentionForm::Native),
            "{id}"
        ),
        Some("reaction_added") => {
            let of = |path: &str| raw.pointer(path).and_then(Value::as_str).expect("a text");
            let target = format!("slack:app/{}/{}", of("/event/item/channel"), of("/event/item/ts"));
            assert_eq!(event.target.as_deref(), Some(target.as_str()), "{id}");
            assert_eq!(event.content, of("/event/reaction"), "{id}");
        }
        Some(_) | None => {}
    }
    if facts["envelope"] == "block_actions" {
        assert_eq!(event.content_types, ["press"], "{id}");
        let ts = raw
            .pointer("/container/message_ts")
            .and_then(Value::as_str)
            .expect("a stamp");
        assert!(
            event.target.as_deref().is_some_and(|target| target.ends_with(ts)),
            "{id}"
        );
        assert!(!event.content.is_empty(), "{id}");
    }
}

#[test]
fn a_recorded_conversation_mentions_its_bot_and_keeps_its_thread() {
    let Some(text) = fixture_text("fixtures/platforms/replay/slack.json") else {
        return;
    };
    let replay: Value = serde_json::from_str(&text).expect("JSON");
    let read = |key: &str| {
        read_raw(&bot_of(&replay[key]), &replay[key])
            .expect("an event")
            .remove(0)
    };
    assert_eq!(
        bot_of(&replay["mention"]).user_id,
        replay["botUserId"].as_str().expect("an id")
    );

    let (mention, follow_up) = (read("mention"), read("followUp"));
    assert_eq!(mention.mention.map(|mention| mention.how), Some(MentionForm::Native));
    assert_eq!(follow_up.mention.map(|mention| mention.how), Some(MentionForm::None));
    assert_eq!(follow_up.reply_to.as_deref(), Some(mention.id.as_str()));
}

#[test]
fn recorded_payloads_with_any_part_replaced_are_stored_within_bounds_or_refused() {
    let Some(text) = fixture_text("fixtures/platforms/slack.jsonl") else {
        return;
    };

    let replacements = [
        json!(null),
        json!(true),
        json!(-1),
        json!(i64::MAX),
        json!(1e300),
        json!("\u{0}a\n𐰀<"),
        json!([]),
        json!([{}]),
        json!({}),
    ];
    let mut tried = 0;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let raw = &line["raw"];
        // It checks the bounds of each event.
        tried += replace_each_part(raw, &replacements, |changed| {
            let _stored_or_refused = read_raw(&bot_of(raw), changed);
        });
    }
    assert!(tried > 1_000, "{tried}");
}
