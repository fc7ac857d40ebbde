//! Recorded payloads, and the cases that the vendor documents.

mod recorded;

use shared::model::event::{MentionForm, ParseEventIdError, PeerKind};
use shared::model::origin::EventOrigin;
use shared::testing::{fixture_text, replace_each_part, trust};
use shared::wire::envelope::WireMessage as _;
use shared::wire::headers::TraceCarrier;

use super::*;
use crate::encoded_event::EncodedEvent;

const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

fn bot() -> SlackBot {
    SlackBot {
        name: "app".to_owned(),
        team_id: "T1".to_owned(),
        user_id: "U7".to_owned(),
        bot_id: Some("B7".to_owned()),
    }
}

fn envelope(event: &Value) -> Value {
    json!({"type": "event_callback", "token": "verification", "team_id": "T1", "api_app_id": "A1", "event_id": "Ev1",
           "event": event, "authorizations": [{"team_id": "T1", "user_id": "U7", "is_bot": true}]})
}

fn read_raw(bot: &SlackBot, raw: &Value) -> Result<Vec<Event>, RefusePayloadError> {
    let events = payload_events(bot, raw, NOW)?;
    assert!(!events.is_empty(), "{raw}");
    for event in &events {
        event.check().expect("an event within its bounds");
        let written = serde_json::to_string(event).expect("JSON");
        assert!(!written.contains("verification"), "a credential is kept: {written}");
    }
    Ok(events)
}

fn read_event(event: &Value) -> Result<Event, RefusePayloadError> {
    read_raw(&bot(), &envelope(event)).map(|mut events| events.remove(0))
}

/// The payload of a message of user 5 in channel 1 with `keys`.
fn message(keys: &Value) -> Value {
    let mut message = json!({"type": "message", "channel": "C1", "channel_type": "channel", "user": "U5", "text": "hi",
                             "ts": "1767326125.870439", "event_ts": "1767326125.870439"});
    for (key, value) in keys.as_object().expect("an object") {
        message[key] = value.clone();
    }
    message
}

/// The identity under which JetStream knows the event of `payload`.
fn message_id(payload: &Value) -> String {
    let event = read_event(payload).expect("an event");
    let encoded = EncodedEvent::encode_event(&event, &trust(), &TraceCarrier::default(), 1 << 20);
    encoded.expect("encoded").message_id
}

#[test]
fn a_message_is_named_by_account_channel_and_stamp() {
    let event = read_event(&message(&json!({"text": "1 &lt; 2"}))).expect("an event");
    assert_eq!(event.id.as_str(), "slack:app/C1/1767326125.870439");
    assert_eq!(event.origin, EventOrigin::account("slack", "app"));
    assert_eq!(
        (event.account(), event.peer.kind, event.peer.id.as_str()),
        ("app", PeerKind::Channel, "C1")
    );
    assert_eq!(
        (event.timestamp, event.received_at),
        (UnixMillis(1_767_326_125_870), NOW)
    );
    assert_eq!((event.content.as_str(), event.from.id.as_str()), ("1 < 2", "U5"));
    assert_eq!(
        PlatformIds::from_event(&event).expect("ids").ids,
        ["C1/1767326125.870439"]
    );

    for (channel, kind) in [("D1", PeerKind::Dm), ("G1", PeerKind::Group)] {
        let event = read_event(&message(&json!({"channel": channel}))).expect("an event");
        assert_eq!(event.peer.kind, kind, "{channel}");
    }
}

#[test]
fn a_message_and_its_mention_are_one_message_in_either_order() {
    let mut mention = message(&json!({"type": "app_mention", "text": "<@U7> hi", "client_msg_id": "c"}));
    mention.as_object_mut().expect("an object").remove("channel_type");
    let plain = message(&json!({"text": "<@U7> hi", "client_msg_id": "c"}));
    assert_eq!(message_id(&mention), message_id(&plain));

    let event = read_event(&mention).expect("an event");
    assert_eq!(event.mention.map(|mention| mention.how), Some(MentionForm::Native));
    assert_eq!(event.direction, EventDirection::Received);
}

#[test]
fn threads_files_and_other_bots() {
    let thread = message(&json!({"thread_ts": "1767326100.000001", "parent_user_id": "U7"}));
    let event = read_event(&thread).expect("an event");
    assert_eq!(event.thread_id.as_deref(), Some("1767326100.000001"));
    assert_eq!(event.reply_to.as_deref(), Some("slack:app/C1/1767326100.000001"));
    assert_eq!(event.mention.map(|mention| mention.how), Some(MentionForm::Thread));
    let root = read_event(&message(&json!({"thread_ts": "1767326125.870439"}))).expect("an event");
    assert_eq!(
        (root.thread_id.as_deref(), root.reply_to),
        (Some("1767326125.870439"), None)
    );

    let files = json!({"subtype": "file_share", "text": "", "files": [{"id": "F1", "mimetype": "image/png"}]});
    let event = read_event(&message(&files)).expect("an event");
    assert_eq!(
        (event.content_types, event.attachments.len()),
        (vec!["image".to_owned()], 1)
    );

    for keys in [
        json!({"bot_id": "B8", "app_id": "A2"}),
        json!({"subtype": "bot_message", "bot_id": "B8", "user": null, "username": "ci"}),
        json!({"user": "USLACKBOT"}),
    ] {
        let event = read_event(&message(&keys)).expect("an event");
        assert_eq!(event.tags, [FROM_BOT], "{keys}");
        assert!(!event.from.id.is_empty(), "{keys}");
    }
}

#[test]
fn what_the_app_did_itself_is_an_echo_however_it_comes_back() {
    for keys in [
        json!({"bot_id": "B7"}),
        json!({"user": "U7"}),
        json!({"bot_id": "B9", "app_id": "A1"}),
        json!({"bot_id": "B9", "bot_profile": {"app_id": "A1"}}),
        json!({"bot_id": "B7", "ts": "1767326999.000001"}),
    ] {
        assert_eq!(read_event(&message(&keys)), Err(RefusePayloadError::Echo), "{keys}");
        let own = message(&keys);
        for change in [
            json!({"type": "message", "subtype": "message_changed", "channel": "C1", "ts": "1767327000.000001",
                   "message": own, "previous_message": own}),
            json!({"type": "message", "subtype": "message_deleted", "channel": "C1", "ts": "1767327000.000001",
                   "deleted_ts": "1767326125.870439", "previous_message": own}),
        ] {
            assert_eq!(read_event(&change), Err(RefusePayloadError::Echo), "{change}");
        }
    }

    let reaction = json!({"type": "reaction_added", "user": "U7", "reaction": "eyes", "event_ts": "1767327000.000001",
                          "item": {"type": "message", "channel": "C1", "ts": "1767326125.870439"}});
    assert_eq!(read_event(&reaction), Err(RefusePayloadError::Echo));
}

/// A change of the message: now `message`, before `previous`.
fn changed(message: &Value, previous: &Value) -> Value {
    json!({"type": "message", "subtype": "message_changed", "hidden": true, "channel": "C1", "ts": "1767327000.000001",
           "event_ts": "1767327000.000001", "message": message, "previous_message": previous})
}

#[test]
fn only_what_somebody_edited_is_an_edit_and_an_edit_back_is_another_message() {
    let edit = |text: &str, at: &str| {
        let mut now = message(&json!({"text": text, "edited": {"user": "U5", "ts": at}}));
        now.as_object_mut().expect("an object").remove("channel");
        now
    };
    let (first, second, back) = (
        edit("b", "1767326200.000000"),
        edit("a", "1767326201.000000"),
        edit("b", "1767326202.000000"),
    );
    let event = read_event(&changed(&first, &message(&json!({})))).expect("an event");
    assert_eq!(event.id.as_str(), "slack:app/C1/1767326125.870439");
    assert_eq!(
        (event.direction, event.content.as_str()),
        (EventDirection::Updated, "b")
    );
    assert_eq!(event.edited_at, Some(UnixMillis(1_767_326_200_000)));
    let ids = [
        changed(&first, &second),
        changed(&second, &first),
        changed(&back, &second),
    ]
    .map(|change| message_id(&change));
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    // Slack posts it again, and somebody may have edited a message whose former state Slack does not tell.
    assert_eq!(message_id(&changed(&first, &second)), ids[0]);

    // A preview of a link, a thread that has begun, our own kind of streaming by another app: nobody edited.
    for change in [
        changed(
            &message(&json!({"attachments": [{"fallback": "preview"}]})),
            &message(&json!({})),
        ),
        changed(
            &message(&json!({"thread_ts": "1767326125.870439", "reply_count": 1})),
            &message(&json!({})),
        ),
        changed(&first, &first),
        changed(
            &message(&json!({"bot_id": "B8", "text": "more and more"})),
            &message(&json!({"bot_id": "B8"})),
        ),
    ] {
        assert_eq!(read_event(&change), Err(RefusePayloadError::NoEdit), "{change}");
    }
}

#[test]
fn a_deletion_keeps_nothing_of_what_was_written() {
    let previous = message(&json!({"text": "a secret", "thread_ts": "1767326100.000001"}));
    let deleted = json!({"type": "message", "subtype": "message_deleted", "channel": "C1", "ts": "1767327000.000001",
                         "deleted_ts": "1767326125.870439", "previous_message": previous});
    let tombstone = json!({"type": "message", "subtype": "tombstone", "user": "USLACKBOT", "ts": "1767326125.870439",
                           "text": "This message was deleted."});
    for payload in [deleted, changed(&tombstone, &previous)] {
        let event = read_event(&payload).expect("an event");
        assert_eq!(event.id.as_str(), "slack:app/C1/1767326125.870439");
        assert_eq!((event.direction, event.content.as_str()), (EventDirection::Deleted, ""));
        assert_eq!(
            (event.from.id.as_str(), event.edited_at),
            ("U5", Some(UnixMillis(1_767_327_000_000)))
        );
        assert_eq!(event.thread_id.as_deref(), Some("1767326100.000001"));
        assert!(!serde_json::to_string(&event).expect("JSON").contains("secret"));
    }
}

#[test]
fn reactions_and_members_are_observed() {
    let reaction = |kind: &str, at: &str| {
        let item = json!({"type": "message", "channel": "C1", "ts": "1767326125.870439"});
        read_event(
            &json!({"type": kind, "user": "U5", "reaction": "+1", "item": item, "item_user": "U7", "event_ts": at}),
        )
    };
    let added = reaction("reaction_added", "1767326140.000700").expect("an event");
    assert_eq!(
        added.id.as_str(),
        "slack:app/C1/1767326125.870439/reaction/U5/1767326140.000700"
    );
    assert_eq!(added.target.as_deref(), Some("slack:app/C1/1767326125.870439"));
    assert_eq!(
        (added.direction, added.content.as_str()),
        (EventDirection::Observed, "+1")
    );
    let removed = reaction("reaction_removed", "1767326141.000700").expect("an event");
    assert_eq!(removed.metadata["reaction"], json!({"before": ["+1"], "now": []}));

    let to_file = json!({"type": "reaction_added", "user": "U5", "reaction": "x", "item": {"type": "file"}});
    assert!(matches!(
        read_event(&to_file),
        Err(RefusePayloadError::NoConversation(_))
    ));

    let joined = json!({"type": "member_joined_channel", "user": "U7", "channel": "C1", "inviter": "U5",
                        "event_ts": "1767326140.000700"});
    let event = read_event(&joined).expect("an event");
    assert_eq!(
        (event.from.id.as_str(), event.direction),
        ("U5", EventDirection::Observed)
    );
    assert_eq!(event.metadata["member"]["me"], json!(true));
    let topic = read_event(&message(&json!({"subtype": "channel_topic", "topic": "x"}))).expect("an event");
    assert_eq!(
        (topic.content_types, topic.direction),
        (vec!["service".to_owned()], EventDirection::Observed)
    );
}

#[test]
fn a_press_is_about_its_message_and_a_command_is_a_message() {
    let press = |action: Value| {
        json!({"type": "block_actions", "api_app_id": "A1", "token": "verification", "trigger_id": "1.2.verification",
               "response_url": "https://hooks.slack.com/actions/verification", "team": {"id": "T1"},
               "user": {"id": "U5", "name": "ann"}, "channel": {"id": "D1"},
               "container": {"type": "message", "message_ts": "1767326126.896109", "channel_id": "D1",
                             "thread_ts": "1767326125.870439"},
               "message": {"bot_id": "B7", "text": "approve K7Q2-M9PX"}, "actions": [action]})
    };
    let button = json!({"type": "button", "action_id": "b0", "value": "approve", "action_ts": "1767326135.289415"});
    let event = read_raw(&bot(), &press(button.clone())).expect("an event").remove(0);
    assert_eq!(
        event.id.as_str(),
        "slack:app/D1/1767326126.896109/press/U5/1767326135.289415"
    );
    assert_eq!(event.target.as_deref(), Some("slack:app/D1/1767326126.896109"));
    assert_eq!(
        (event.content.as_str(), event.content_types[0].as_str()),
        ("approve", "press")
    );
    assert_eq!(event.thread_id.as_deref(), Some("1767326125.870439"));
    assert!(!serde_json::to_string(&event).expect("JSON").contains("K7Q2"));

    for (keys, said) in [
        (json!({"selected_option": {"value": "x"}}), "x"),
        (json!({"selected_options": [{"value": "x"}, {"value": "y"}]}), "x\ny"),
        (json!({"selected_users": ["U1", "U2"]}), "U1\nU2"),
        (json!({"selected_date": "2026-11-26"}), "2026-11-26"),
        (json!({"selected_date_time": 1_767_326_126}), "1767326126"),
        (json!({}), ""),
    ] {
        let mut action = keys;
        action["action_ts"] = json!("1767326135.289415");
        assert_eq!(read_raw(&bot(), &press(action)).expect("an event")[0].content, said);
    }

    let mut window = press(button);
    window["container"] = json!({"type": "view"});
    window["channel"] = json!(null);
    assert!(matches!(
        read_raw(&bot(), &window),
        Err(RefusePayloadError::NoConversation(_))
    ));

    let command = json!({"command": "/ask", "text": "what is new?", "team_id": "T1", "channel_id": "C1", "user_id": "U5",
                         "trigger_id": "1.2.verification", "token": "verification", "api_app_id": "A1"});
    let event = read_raw(&bot(), &command).expect("an event").remove(0);
    assert_eq!((event.content.as_str(), event.timestamp), ("/ask what is new?", NOW));
    assert_eq!(event.mention.map(|mention| mention.how), Some(MentionForm::Command));
    assert_eq!(event.id, read_raw(&bot(), &command).expect("the same")[0].id);
}

#[test]
fn another_workspace_is_refused_and_a_shared_channel_is_not() {
    let mut raw = envelope(&message(&json!({})));
    raw["team_id"] = json!("T2");
    assert!(read_raw(&bot(), &raw).is_ok(), "a channel that is shared with T2");
    raw["authorizations"] = json!([{"team_id": "T2"}]);
    assert_eq!(
        read_raw(&bot(), &raw),
        Err(RefusePayloadError::WrongTeam("T2".to_owned()))
    );
    raw["authorizations"] = json!(null);
    assert_eq!(
        read_raw(&bot(), &raw),
        Err(RefusePayloadError::WrongTeam("T2".to_owned()))
    );
    raw["context_team_id"] = json!("T1");
    assert!(read_raw(&bot(), &raw).is_ok());
}

#[test]
fn a_minute_without_events_is_a_gap() {
    let raw =
        json!({"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 1_518_467_820, "api_app_id": "A1"});
    let event = read_raw(&bot(), &raw).expect("an event").remove(0);
    assert_eq!(event.id.as_str(), "gap:slack/app/1518467820000");
    assert_eq!(
        event.metadata["gap"],
        json!({"from": 1_518_467_820_000_i64, "to": 1_518_467_880_000_i64})
    );
}

#[test]
fn payloads_without_what_they_need_are_refused_with_a_reason() {
    for keys in [
        json!({"ts": null}),
        json!({"ts": "1767326125"}),
        json!({"ts": "x"}),
        json!({"channel": "general"}),
        json!({"channel": null}),
        json!({"user": null}),
        json!({"files": 5}),
    ] {
        let refused = read_event(&message(&keys));
        assert!(
            matches!(refused, Err(RefusePayloadError::Malformed(_))),
            "{keys}: {refused:?}"
        );
    }

    let long = message(&json!({"channel": format!("C{}", "A".repeat(600))}));
    assert!(matches!(
        read_event(&long),
        Err(RefusePayloadError::Id(ParseEventIdError::TooLong(_)))
    ));
    for raw in [
        json!({}),
        json!([]),
        json!(null),
        json!({"type": ""}),
        json!({"type": "event_callback"}),
    ] {
        assert!(read_raw(&bot(), &raw).is_err(), "{raw}");
    }
}

#[test]
fn a_shared_card_says_only_that_it_is_one() {
    let share = |key: &str, value: &str| {
        json!({"is_share": true, key: value, "text": "approve K7Q2-M9PX", "fallback": "[Nexus]: approve K7Q2-M9PX",
               "message_blocks": [{"message": {"blocks": [{"text": {"text": "approve K7Q2-M9PX"}}]}}]})
    };
    for own in [share("author_id", "U7"), share("bot_id", "B7"), share("app_id", "A1")] {
        let event = read_event(&message(&json!({"text": "", "attachments": [own]}))).expect("an event");
        assert_eq!(
            (event.content.as_str(), event.content_types.as_slice()),
            (OWN_SHARE, ["forward".to_owned()].as_slice())
        );
        let written = serde_json::to_string(&event).expect("JSON");
        assert!(!written.contains("K7Q2"), "{written}");

        // With words, and beside what another one wrote.
        let words = read_event(&message(&json!({"text": "look", "attachments": [own]}))).expect("an event");
        assert_eq!(
            (words.content.as_str(), words.content_types[0].as_str()),
            ("look", "text")
        );
        let other = json!({"author_id": "U8", "fallback": "the news"});
        let both = read_event(&message(&json!({"text": "", "attachments": [own, other]}))).expect("an event");
        assert_eq!(
            (both.content.as_str(), both.content_types[0].as_str()),
            ("the news", "text")
        );
        for event in [words, both] {
            assert!(
                !serde_json::to_string(&event).expect("JSON").contains("K7Q2"),
                "{event:?}"
            );
        }
    }
}
