//! Recorded dispatches: each one becomes an event that says what its facts say, or is refused with a reason.

use shared::clock::{Clock as _, SystemClock};
use shared::testing::{fixture_text, replace_each_part};

use super::super::super::link::{CloseReason, GatewayLink, LinkStep};
use super::*;

/// Kinds of dispatches that become events.
const KINDS: [&str; 9] = [
    "MESSAGE_CREATE",
    "MESSAGE_UPDATE",
    "MESSAGE_DELETE",
    "MESSAGE_DELETE_BULK",
    "MESSAGE_REACTION_ADD",
    "MESSAGE_REACTION_REMOVE",
    "MESSAGE_REACTION_REMOVE_ALL",
    "MESSAGE_REACTION_REMOVE_EMOJI",
    "INTERACTION_CREATE",
];

fn lines() -> Option<Vec<Value>> {
    let text = fixture_text("fixtures/platforms/discord.jsonl")?;
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"));
    Some(lines.collect())
}

/// The kind and content of a recorded line; `None` if it is a frame that is no dispatch.
fn dispatch_of(line: &Value) -> Option<(String, Value)> {
    let raw = &line["raw"];
    if raw.get("op").is_some() {
        return Some((raw["t"].as_str()?.to_owned(), raw["d"].clone()));
    }
    let has = |key: &str| raw.get(key).is_some();
    // Some recordings are what a dispatch carries.
    let kind = if line["facts"].get("message_id").is_some() {
        "MESSAGE_CREATE"
    } else if has("token") && has("data") {
        "INTERACTION_CREATE"
    } else if has("message_id") && has("channel_id") {
        "MESSAGE_REACTION_REMOVE_ALL"
    } else {
        "GUILD_CREATE"
    };
    Some((kind.to_owned(), raw.clone()))
}

fn around_of(data: &Value) -> MessagePlace {
    let guild = data.get("guild_id").and_then(Value::as_str);
    guild.map_or_else(direct_channel, |guild| {
        let mut around = guild_channel();
        around.place.guild_id = Some(guild.to_owned());
        around
    })
}

#[test]
fn recorded_dispatches_say_what_their_facts_say_or_are_refused_with_a_reason() {
    let Some(lines) = lines() else { return };
    let (mut stored, mut refused) = (0, 0);
    for line in lines {
        let id = line["id"].to_string();
        let Some((kind, data)) = dispatch_of(&line) else {
            check_frame(&line["raw"], &id);
            continue;
        };
        match read(&around_of(&data), &kind, &data) {
            Ok(event) => {
                stored += 1;
                assert!(KINDS.contains(&kind.as_str()), "{id}");
                check_facts(&event, &line["facts"], &id);
                assert_eq!(read(&around_of(&data), &kind, &data).expect("the same"), event, "{id}");
            }
            Err(reason) => {
                refused += 1;
                let is_known = match &reason {
                    RefuseDispatchError::NoConversation(_) => !KINDS.contains(&kind.as_str()) || data["type"] != 3,
                    RefuseDispatchError::NoEdit => data["edited_timestamp"].is_null(),
                    RefuseDispatchError::Malformed(_) | RefuseDispatchError::Echo | RefuseDispatchError::Id(_) => false,
                };
                assert!(is_known, "{id}: {reason}");
            }
        }
    }
    assert!(stored >= 6 && refused >= 20, "{stored} {refused}");
}

/// A frame that is no dispatch is for the connection.
fn check_frame(frame: &Value, id: &str) {
    let mut link = GatewayLink::new(None);
    let steps = link.on_frame(frame, "t", 0.0, SystemClock.monotonic());
    let is_expected = match frame["op"].as_u64() {
        Some(10) => matches!(&steps[..], [LinkStep::Send(identify)] if identify["op"] == 2),
        Some(7) => matches!(&steps[..], [LinkStep::Close(CloseReason::Resume(_))]),
        _ => false,
    };
    assert!(is_expected, "{id}: {steps:?}");
}

fn check_facts(event: &Event, facts: &Value, id: &str) {
    let text = |key: &str| facts.get(key).and_then(Value::as_str);
    if let (Some(channel), Some(message)) = (text("channel_id"), text("message_id")) {
        assert_eq!(event.peer.id, channel, "{id}");
        assert_eq!(event.id.as_str(), format!("discord:main/{channel}/{message}"), "{id}");
        assert_eq!(
            PlatformIds::from_event(event).expect("ids").ids,
            [format!("{channel}/{message}")],
            "{id}"
        );
    }
    if let Some(sender) = text("sender_id") {
        assert_eq!(event.from.id, sender, "{id}");
    }
    if let Some(username) = text("sender_username") {
        assert_eq!(event.metadata["username"], username, "{id}");
    }
    if let Some(is_bot) = facts.get("sender_is_bot").and_then(Value::as_bool) {
        assert_eq!(event.tags.contains(&FROM_BOT.to_owned()), is_bot, "{id}");
    }
    if let Some(said) = text("text") {
        assert_eq!(event.content, said, "{id}");
    }
    if let Some(at) = text("timestamp") {
        let at: jiff::Timestamp = at.parse().expect("a time");
        assert_eq!(event.timestamp, UnixMillis(at.as_millisecond()), "{id}");
    }
    assert_eq!(
        event.peer.guild_id.as_deref(),
        text("guild_id").or(event.peer.guild_id.as_deref()),
        "{id}"
    );
    if let Some(answered) = text("reply_to_id") {
        assert!(
            event
                .reply_to
                .as_deref()
                .is_some_and(|reply| reply.ends_with(&format!("/{answered}"))),
            "{id}"
        );
    }
    if let Some(files) = facts.get("n_attachments").and_then(Value::as_u64) {
        assert_eq!(event.attachments.len() as u64, files, "{id}");
    }
}

/// A recorded conversation of a bot in a thread that it began.
struct Replay(Value);

impl Replay {
    fn meta(&self, key: &str) -> String {
        self.0["metadata"][key].as_str().expect("a text").to_owned()
    }

    /// The event of the recording `key`.
    fn read(&self, key: &str) -> Result<Event, RefuseDispatchError> {
        let raw = &self.0[key];
        let (kind, data) = match raw["type"].as_str() {
            Some(kind) => (kind.trim_start_matches("GATEWAY_"), &raw["data"]),
            None => ("INTERACTION_CREATE", raw),
        };

        let mut around = around_of(data);
        around.own_roles = BTreeSet::from([self.meta("roleId")]);
        if dispatch_channel(kind, data) == Some(&self.meta("threadId")) {
            around.place.kind = 11;
            around.place.parent_id = Some(self.meta("channelId"));
            around.place.owner_id = Some(self.meta("botId"));
        }

        let bot = DiscordBot {
            user_id: self.meta("botId"),
            ..bot()
        };
        let payload = DispatchPayload { kind, data, token: key };
        dispatch_events(&bot, &around, payload, NOW).map(|mut events| events.remove(0))
    }

    /// Checks that the recording `key` is a message that addresses the bot as `how`, in `thread`.
    fn check_message(&self, key: &str, how: MentionForm, thread: Option<String>) {
        let event = self.read(key).expect("an event");
        assert_eq!(event.mention.map(|mention| mention.how), Some(how), "{key}");
        assert_eq!(
            (event.peer.id, event.thread_id),
            (self.meta("channelId"), thread),
            "{key}"
        );
        assert_eq!(event.from.id, self.meta("userId"), "{key}");
    }

    /// Checks that the recording `key` is a press that says `said`.
    fn check_press(&self, key: &str, said: &str, kind: PeerKind) {
        let press = self.read(key).expect("an event");
        assert_eq!(
            (press.content.as_str(), press.content_types.concat().as_str()),
            (said, "press"),
            "{key}"
        );
        assert_eq!((press.peer.kind, press.from.id), (kind, self.meta("userId")), "{key}");
        assert!(press.target.is_some(), "{key}");
    }
}

#[test]
fn a_recorded_conversation_keeps_its_thread_and_mentions_its_bot() {
    let Some(text) = fixture_text("fixtures/platforms/replay/discord.json") else {
        return;
    };
    let replay = Replay(serde_json::from_str(&text).expect("JSON"));

    for key in ["gatewayMention", "gatewayAIMention", "gatewayRoleMention"] {
        replay.check_message(key, MentionForm::Native, None);
    }
    for key in [
        "gatewaySubscribedMessage",
        "gatewayThreadUserHey",
        "gatewayThreadDMRequest",
        "gatewayThreadNum1",
        "gatewayThreadNice",
    ] {
        replay.check_message(key, MentionForm::Thread, Some(replay.meta("threadId")));
    }
    for key in ["gatewayBotWelcome", "gatewayThreadWelcome"] {
        assert_eq!(replay.read(key), Err(RefuseDispatchError::Echo), "{key}");
    }
    let made = replay.read("gatewayThreadCreate");
    assert!(matches!(made, Err(RefuseDispatchError::NoConversation(_))));

    let reaction = replay.read("gatewayReactionAdd").expect("an event");
    assert_eq!(
        (reaction.content.as_str(), reaction.thread_id),
        ("👍", Some(replay.meta("threadId")))
    );
    replay.check_press("buttonClickHello", "hello", PeerKind::Channel);
    replay.check_press("buttonClickGoodbye", "goodbye", PeerKind::Channel);
    replay.check_press("dmButtonClick", "dm-action", PeerKind::Dm);
    let other = replay.read("differentUser").expect("an event");
    assert_eq!(other.from.display_name.as_deref(), Some("Different Nick"));
}

#[test]
fn recorded_dispatches_with_any_part_replaced_are_stored_within_bounds_or_refused() {
    let Some(lines) = lines() else { return };
    let replacements = [
        json!(null),
        json!(-1),
        json!(u64::MAX),
        json!("\u{0}a\n𐰀"),
        json!([{}]),
        json!({}),
    ];
    let mut tried = 0;
    for line in lines {
        let Some((kind, data)) = dispatch_of(&line) else {
            continue;
        };
        if KINDS.contains(&kind.as_str()) {
            // It checks the bounds of each event.
            tried += replace_each_part(&data, &replacements, |changed| {
                let _stored_or_refused = read_all(&around_of(&data), &kind, changed);
            });
        }
        for kind in KINDS {
            let _stored_or_refused = read_all(&guild_channel(), kind, &data);
        }
    }
    assert!(tried > 1_000, "{tried}");
}
