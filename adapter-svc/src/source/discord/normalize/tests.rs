//! Recorded dispatches, and the cases that the vendor documents.

mod recorded;

use std::collections::BTreeSet;

use serde_json::json;
use shared::platform::discord::ChannelPlace;
use shared::testing::trust;
use shared::wire::envelope::WireMessage as _;
use shared::wire::headers::TraceCarrier;

use super::*;
use crate::encoded_event::EncodedEvent;
use crate::source::raw_payload::MAX_RAW_BYTES;

const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

fn bot() -> DiscordBot {
    DiscordBot {
        name: "main".to_owned(),
        user_id: "77".to_owned(),
        username: "nexus".to_owned(),
    }
}

/// A channel of guild 20.
fn guild_channel() -> MessagePlace {
    MessagePlace {
        place: ChannelPlace {
            kind: 0,
            guild_id: Some("20".to_owned()),
            ..ChannelPlace::default()
        },
        own_roles: BTreeSet::from(["500".to_owned()]),
    }
}

/// A direct channel.
fn direct_channel() -> MessagePlace {
    MessagePlace {
        place: ChannelPlace {
            kind: 1,
            ..ChannelPlace::default()
        },
        own_roles: BTreeSet::new(),
    }
}

/// A thread of channel 8, begun by `owner`.
fn thread_of(owner: &str) -> MessagePlace {
    let mut around = guild_channel();
    around.place.kind = 11;
    around.place.parent_id = Some("8".to_owned());
    around.place.owner_id = Some(owner.to_owned());
    around
}

fn read_all(around: &MessagePlace, kind: &str, data: &Value) -> Result<Vec<Event>, RefuseDispatchError> {
    let payload = DispatchPayload {
        kind,
        data,
        token: "s/1",
    };
    let events = dispatch_events(&bot(), around, payload, NOW)?;
    for event in &events {
        event.check().expect("an event within its bounds");
    }
    Ok(events)
}

fn read(around: &MessagePlace, kind: &str, data: &Value) -> Result<Event, RefuseDispatchError> {
    let mut events = read_all(around, kind, data)?;
    assert_eq!(events.len(), 1, "{data}");
    Ok(events.remove(0))
}

/// Message 9 of channel 7, from user 5, with `keys`.
fn message(keys: &Value) -> Value {
    let mut message = json!({"id": "9", "channel_id": "7", "type": 0, "content": "hi", "timestamp": "2026-01-05T00:49:53.676000+00:00",
        "edited_timestamp": null, "author": {"id": "5", "username": "ann", "global_name": "Ann"}, "mentions": []});
    for (key, value) in keys.as_object().expect("an object") {
        message[key] = value.clone();
    }
    message
}

fn created(around: &MessagePlace, keys: &Value) -> Event {
    read(around, "MESSAGE_CREATE", &message(keys)).expect("an event")
}

#[test]
fn a_message_names_its_account_channel_sender_and_time() {
    let event = created(
        &guild_channel(),
        &json!({"member": {"nick": "Annie", "roles": ["600"]}, "guild_id": "20"}),
    );
    assert_eq!(event.id.as_str(), "discord:main/7/9");
    assert_eq!(event.origin, EventOrigin::account("discord", "main"));
    assert_eq!((event.peer.kind, event.peer.id.as_str()), (PeerKind::Channel, "7"));
    assert_eq!(event.peer.guild_id.as_deref(), Some("20"));
    assert_eq!(
        (event.from.id.as_str(), event.from.display_name.as_deref()),
        ("5", Some("Annie"))
    );
    assert_eq!(event.from.roles, ["600"]);
    assert_eq!(
        (event.timestamp, event.received_at),
        (UnixMillis(1_767_574_193_676), NOW)
    );
    assert_eq!(PlatformIds::from_event(&event).expect("ids").ids, ["7/9"]);
    assert_eq!((event.thread_id, event.content.as_str()), (None, "hi"));

    let direct = created(&direct_channel(), &json!({}));
    assert_eq!((direct.peer.kind, direct.peer.id.as_str()), (PeerKind::Dm, "7"));
    assert_eq!(direct.from.display_name.as_deref(), Some("Ann"));
}

#[test]
fn a_thread_is_a_thread_of_its_channel() {
    let event = created(&thread_of("5"), &json!({}));
    assert_eq!((event.peer.id.as_str(), event.thread_id.as_deref()), ("8", Some("7")));
    assert_eq!(event.id.as_str(), "discord:main/7/9");
    assert_eq!(event.mention.map(|mention| mention.me), Some(false));
}

#[test]
fn mentions_are_by_user_role_answer_and_own_thread() {
    let me = json!([{"id": "77", "username": "nexus"}]);
    let answered = |author: &str| json!({"id": "4", "channel_id": "7", "author": {"id": author}, "content": "x"});
    for (around, keys, how) in [
        (
            guild_channel(),
            json!({"content": "<@77> go", "mentions": me}),
            MentionForm::Native,
        ),
        (
            guild_channel(),
            json!({"content": "<@!77> go", "mentions": me}),
            MentionForm::Native,
        ),
        (guild_channel(), json!({"content": "<@78> go"}), MentionForm::None),
        (guild_channel(), json!({"content": "`<@77>`"}), MentionForm::None),
        (guild_channel(), json!({"mention_roles": ["500"]}), MentionForm::Native),
        (guild_channel(), json!({"mention_roles": ["501"]}), MentionForm::None),
        (
            guild_channel(),
            json!({"mention_everyone": true, "content": "@everyone"}),
            MentionForm::None,
        ),
        (
            guild_channel(),
            json!({"type": 19, "referenced_message": answered("77"), "mentions": me}),
            MentionForm::Reply,
        ),
        (
            guild_channel(),
            json!({"type": 19, "referenced_message": answered("77")}),
            MentionForm::Reply,
        ),
        (
            guild_channel(),
            json!({"type": 19, "referenced_message": answered("6")}),
            MentionForm::None,
        ),
        (thread_of("77"), json!({}), MentionForm::Thread),
        (thread_of("5"), json!({}), MentionForm::None),
        (direct_channel(), json!({}), MentionForm::None),
    ] {
        let mention = created(&around, &keys).mention.expect("a mention");
        assert_eq!(
            mention,
            EventMention {
                me: how != MentionForm::None,
                how
            },
            "{keys}"
        );
    }
}

#[test]
fn an_edit_is_what_has_a_time_of_its_own() {
    let edit = |keys: &Value| read(&guild_channel(), "MESSAGE_UPDATE", &message(keys));
    assert_eq!(
        edit(&json!({"embeds": [{"title": "x"}]})),
        Err(RefuseDispatchError::NoEdit)
    );
    let at = "2026-01-05T00:50:00.500000+00:00";
    let first = edit(&json!({"edited_timestamp": at, "content": "b"})).expect("an edit");
    assert_eq!(first.direction, EventDirection::Updated);
    assert_eq!(first.edited_at, Some(UnixMillis(1_767_574_200_500)));
    assert_eq!(first.id.as_str(), "discord:main/7/9");

    let message_id = |event: &Event| {
        let encoded = EncodedEvent::encode_event(event, &trust(), &TraceCarrier::default(), 1 << 20);
        encoded.expect("encoded").message_id
    };
    // Its previews come, or it is pinned: the vendor sends the edit again.
    let again = edit(&json!({"edited_timestamp": at, "content": "b", "embeds": [{"title": "x"}], "pinned": true}));
    assert_eq!(message_id(&again.expect("the same edit")), message_id(&first));
    let back = edit(&json!({"edited_timestamp": "2026-01-05T00:51:00+00:00", "content": "hi"})).expect("an edit");
    assert_ne!(message_id(&back), message_id(&first));
}

#[test]
fn what_the_bot_did_itself_is_an_echo_and_another_program_is_tagged() {
    let from = |id: &str| json!({"author": {"id": id, "bot": true, "username": "x"}});
    let around = guild_channel();
    for kind in ["MESSAGE_CREATE", "MESSAGE_UPDATE"] {
        let mut own = message(&from("77"));
        own["edited_timestamp"] = json!("2026-01-05T00:51:00+00:00");
        assert_eq!(read(&around, kind, &own), Err(RefuseDispatchError::Echo));
    }
    assert_eq!(created(&around, &from("78")).tags, [FROM_BOT]);
    let webhook = json!({"webhook_id": "12", "author": {"id": "12", "username": "ci"}});
    assert_eq!(created(&around, &webhook).tags, [FROM_BOT]);
    let reaction = json!({"user_id": "77", "channel_id": "7", "message_id": "9", "emoji": {"name": "👍"}});
    assert_eq!(
        read(&around, "MESSAGE_REACTION_ADD", &reaction),
        Err(RefuseDispatchError::Echo)
    );
}

#[test]
fn answers_and_quotes_name_events_and_our_own_texts_are_nowhere() {
    let around = guild_channel();
    let answered = |author: &str| {
        json!({"type": 19, "message_reference": {"message_id": "4", "channel_id": "7"}, "referenced_message":
            {"id": "4", "channel_id": "7", "author": {"id": author, "username": "bo"}, "content": "the code is 12",
             "components": [{"custom_id": "approve 12"}]}})
    };
    let event = created(&around, &answered("6"));
    assert_eq!(event.reply_to.as_deref(), Some("discord:main/7/4"));
    let quote = event.quote.expect("a quote");
    assert_eq!(
        (quote.id.as_str(), quote.text.as_str()),
        ("discord:main/7/4", "the code is 12")
    );
    assert_eq!(quote.from.expect("a sender").id, "6");

    let own = created(&around, &answered("77"));
    assert_eq!((own.reply_to.as_deref(), own.quote), (Some("discord:main/7/4"), None));
    let raw = own.metadata["raw"].to_string();
    assert!(!raw.contains("12\"") && raw.contains("\"4\""), "{raw}");
}

#[test]
fn a_forwarded_message_is_named_and_nothing_of_it_is_kept() {
    let around = guild_channel();
    // A card of ours does not say that it is: snapshots have no author.
    let snapshots = json!([{"message": {"content": "approve K7Q2-M9PX at https://nexus.example/a/K7Q2", "type": 0,
        "components": [{"type": 1, "components": [{"custom_id": "approve K7Q2-M9PX"}]}]}}]);
    let forwarded = json!({"content": "", "message_reference": {"type": 1, "message_id": "4", "channel_id": "6"},
        "message_snapshots": snapshots});
    let mut edited = message(&forwarded);
    edited["edited_timestamp"] = json!("2026-01-05T00:51:00+00:00");
    let answer = json!({"type": 19, "message_reference": {"message_id": "4", "channel_id": "7"}, "referenced_message":
        {"id": "4", "channel_id": "7", "author": {"id": "6"}, "content": "", "message_snapshots": snapshots}});

    let events = [
        created(&around, &forwarded),
        read(&around, "MESSAGE_UPDATE", &edited).expect("an edit"),
        created(&around, &answer),
    ];
    for event in &events {
        let text = serde_json::to_string(event).expect("a JSON form");
        assert!(!text.contains("K7Q2"), "{text}");
    }
    let [event, ..] = events;
    assert_eq!(
        (event.reply_to.as_deref(), event.content_types, event.quote),
        (Some("discord:main/6/4"), vec!["forward".to_owned()], None)
    );
}

#[test]
fn what_is_refused_is_kept_without_tokens_and_without_what_may_be_ours() {
    let refused = |kind: &str, keys: &Value| refused_payload(kind, &message(keys), "77").to_string();
    let card = json!([{"components": [{"custom_id": "approve K7Q2"}]}]);
    for hidden in [
        json!({"author": {"id": "77"}, "content": "code K7Q2", "components": card}),
        json!({"author": null, "content": "code K7Q2", "components": card}),
        json!({"author": {"id": "77"}, "id": null, "content": "code K7Q2"}),
        json!({"message_snapshots": [{"message": {"content": "code K7Q2"}}]}),
        json!({"referenced_message": {"id": "4", "content": "code K7Q2", "components": card}}),
        json!({"token": "K7Q2"}),
    ] {
        let kept = refused("MESSAGE_CREATE", &hidden);
        assert!(!kept.contains("K7Q2") && kept.contains("MESSAGE_CREATE"), "{kept}");
    }
    assert!(refused("MESSAGE_CREATE", &json!({"content": "hello", "timestamp": "soon"})).contains("hello"));
}

#[test]
fn notes_are_observed_and_a_content_that_is_kept_back_is_said() {
    let joined = created(&guild_channel(), &json!({"type": 7, "content": ""}));
    assert_eq!(
        (joined.direction, joined.content_types),
        (EventDirection::Observed, vec!["service".to_owned()])
    );
    assert_eq!(joined.metadata["service"], 7);
    assert!(!joined.metadata.contains_key("intent_missing"));

    let empty = created(&guild_channel(), &json!({"content": ""}));
    assert_eq!(empty.metadata["intent_missing"], "MESSAGE_CONTENT");
    assert_eq!(empty.direction, EventDirection::Observed);
}

#[test]
fn deletions_and_reactions_refer_to_messages() {
    let around = thread_of("5");
    let bulk = json!({"ids": ["1", "2"], "channel_id": "7", "guild_id": "20"});
    let deleted = read_all(&around, "MESSAGE_DELETE_BULK", &bulk).expect("events");
    let ids: Vec<&str> = deleted.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, ["discord:main/7/1", "discord:main/7/2"]);
    assert!(deleted.iter().all(|event| event.direction == EventDirection::Deleted));

    // It comes again after a crash, at another time.
    let one = json!({"id": "175928847299117063", "channel_id": "7", "guild_id": "20"});
    let message_id = |now: UnixMillis| {
        let payload = DispatchPayload {
            kind: "MESSAGE_DELETE",
            data: &one,
            token: "s/1",
        };
        let event = dispatch_events(&bot(), &around, payload, now)
            .expect("events")
            .remove(0);
        assert_eq!(
            (event.timestamp, event.received_at),
            (UnixMillis(1_462_015_105_796), now)
        );
        let encoded = EncodedEvent::encode_event(&event, &trust(), &TraceCarrier::default(), 1 << 20);
        encoded.expect("encoded").message_id
    };
    assert_eq!(message_id(NOW), message_id(NOW.plus(60_000)));

    let reaction = json!({"user_id": "5", "channel_id": "7", "message_id": "9", "emoji": {"id": "3", "name": "party"}, "member":
        {"nick": "Ann", "roles": [], "user": {"id": "5", "bot": true}}});
    let added = read(&around, "MESSAGE_REACTION_ADD", &reaction).expect("an event");
    assert_eq!(
        (added.target.as_deref(), added.content.as_str()),
        (Some("discord:main/7/9"), ":party:")
    );
    assert_eq!((added.thread_id.as_deref(), added.tags.len()), (Some("7"), 1));
    assert_eq!(added.metadata["reaction"], json!({"before": [], "now": [":party:"]}));
    let removed = read(&around, "MESSAGE_REACTION_REMOVE", &reaction).expect("an event");
    assert_eq!(
        (removed.content.as_str(), removed.direction),
        ("", EventDirection::Observed)
    );
    assert_ne!(removed.id, added.id);

    // The same dispatch is the same event, and the same reaction given again another one.
    let again = |token: &str| {
        let payload = DispatchPayload {
            kind: "MESSAGE_REACTION_ADD",
            data: &reaction,
            token,
        };
        dispatch_events(&bot(), &around, payload, NOW)
            .expect("events")
            .remove(0)
            .id
    };
    assert_eq!(again("s/1"), added.id);
    assert_ne!(again("s/2"), added.id);

    let all = json!({"channel_id": "7", "message_id": "9"});
    let cleared = read(&around, "MESSAGE_REACTION_REMOVE_ALL", &all).expect("an event");
    assert_eq!(cleared.from.id, "7");
}

#[test]
fn a_press_says_its_button_and_never_the_token() {
    let press = json!({"id": "175928847299117063", "type": 3, "token": "secret-token", "channel_id": "7", "user": {"id": "5"},
        "data": {"custom_id": "approve abc", "component_type": 2},
        "message": {"id": "9", "channel_id": "7", "author": {"id": "77"}, "content": "code abc", "components": [{"custom_id": "approve abc"}]}});
    let event = read(&direct_channel(), "INTERACTION_CREATE", &press).expect("an event");
    assert_eq!(event.id.as_str(), "discord:main/7/9/press/175928847299117063");
    assert_eq!(
        (event.content.as_str(), event.target.as_deref()),
        ("approve abc", Some("discord:main/7/9"))
    );
    assert_eq!(event.timestamp, UnixMillis(1_462_015_105_796));
    let raw = event.metadata["raw"].to_string();
    assert!(!raw.contains("secret-token") && !raw.contains("code abc"), "{raw}");

    let mut command = press.clone();
    command["type"] = json!(2);
    let refused = read(&direct_channel(), "INTERACTION_CREATE", &command);
    assert!(matches!(refused, Err(RefuseDispatchError::NoConversation(_))));
    let mut strange = press;
    strange["message"]["id"] = json!("9/../1");
    assert!(matches!(
        read(&direct_channel(), "INTERACTION_CREATE", &strange),
        Err(RefuseDispatchError::Malformed(_))
    ));
}

#[test]
fn a_payload_that_is_too_large_is_left_out_and_nul_is_replaced() {
    let event = created(
        &direct_channel(),
        &json!({"content": "a\u{0}b", "extra": "x".repeat(MAX_RAW_BYTES)}),
    );
    assert_eq!(event.content, "a\u{fffd}b");
    assert!(event.metadata["raw_bytes"].as_u64().is_some_and(|bytes| bytes > 65_536));
    assert!(!event.metadata.contains_key("raw"));
}
