use serde_json::{Value, json};
use shared::platform::accounts::read_platforms;

use super::*;
use crate::examples;
use crate::plan::TextFormat;

const CHANNEL: &str = "1457510428359004343";

fn account(keys: &str) -> DiscordAccount {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "MTk4.Cl2FMQ.Zn-Cjm1").expect("written");
    let token = file.path().display();
    let text = format!("discord: {{accounts: {{bot: {{token: 'file:{token}', {keys}}}}}}}");
    let mut accounts = read_platforms(&text).expect("read").discord.accounts;
    accounts.remove("bot").expect("the account")
}

/// A reply of account `bot` to `peer`, to message 42 there.
fn reply_to(peer: &str) -> Reply {
    let mut reply = examples::reply("x");
    let target = &mut reply.delivery_context;
    target.channel = DISCORD.to_owned();
    target.account_id = Some("bot".to_owned());
    target.peer_id = Some(peer.to_owned());
    target.reply_to_id = Some(format!("discord:bot/{peer}/42"));
    reply
}

fn part(index: u32) -> MessagePart {
    MessagePart {
        index,
        content: "**x**".to_owned(),
        format: TextFormat::Discord,
        plain: Some("x".to_owned()),
        styles: Vec::new(),
        file: None,
    }
}

fn place(kind: u64) -> ChannelPlace {
    ChannelPlace {
        kind,
        guild_id: (kind != 1).then(|| "20".to_owned()),
        ..ChannelPlace::default()
    }
}

fn body(account: &DiscordAccount, reply: &Reply, index: u32, parts: u32, place: Option<&ChannelPlace>) -> Value {
    let part = part(index);
    let channel = target_channel(reply).expect("a channel");
    let needs = PlaceNeeds::of_part(reply, &part, parts, channel);
    serde_json::to_value(CreateMessage::from_part(account, reply, &part, needs, place)).expect("it serialises")
}

#[test]
fn a_message_calls_nobody_shows_no_previews_and_has_its_nonce() {
    let reply = reply_to(CHANNEL);
    assert_eq!(
        body(&account(""), &reply, 0, 1, Some(&place(1))),
        json!({
            "content": "**x**", "nonce": part_nonce(reply.id, 0), "enforce_nonce": true, "flags": 4,
            "allowed_mentions": {"parse": [], "replied_user": false},
        })
    );
}

#[test]
fn a_nonce_is_short_the_same_for_a_part_and_another_for_each() {
    let nonces: std::collections::BTreeSet<String> = (0..1_000).map(|part| part_nonce(Ulid(7), part)).collect();
    assert_eq!(nonces.len(), 1_000);
    assert!(nonces.iter().all(|nonce| nonce.len() == 22));
    assert_eq!(part_nonce(Ulid(7), 3), part_nonce(Ulid(7), 3));
    assert_ne!(part_nonce(Ulid(7), 3), part_nonce(Ulid(8), 3));
}

#[test]
fn the_first_part_in_a_guild_refers_to_what_it_answers() {
    let answered = json!({"message_id": "42", "fail_if_not_exists": false});
    let reply = reply_to(CHANNEL);
    let reference = |keys: &str, index: u32, place: Option<&ChannelPlace>| {
        body(&account(keys), &reply, index, 2, place)
            .get("message_reference")
            .cloned()
    };
    assert_eq!(reference("", 0, Some(&place(0))), Some(answered.clone()));
    assert_eq!(reference("", 1, Some(&place(0))), None);
    assert_eq!(reference("", 0, Some(&place(1))), None, "a direct channel");
    assert_eq!(reference("", 0, None), None, "a channel that is not known");
    let quiet = "groups: {20: {reply_in_thread: false}}";
    assert_eq!(reference(quiet, 0, Some(&place(0))), None);
    let loud = format!("groups: {{20: {{reply_in_thread: false}}, {CHANNEL}: {{}}}}");
    assert_eq!(reference(&loud, 0, Some(&place(0))), Some(answered));

    for other in [
        "discord:bot/9/42",
        "discord:other/1457510428359004343/42",
        "telegram:bot/1/2",
        "discord:bot/1",
    ] {
        let mut reply = reply_to(CHANNEL);
        reply.delivery_context.reply_to_id = Some(other.to_owned());
        let sent = body(&account(""), &reply, 0, 1, Some(&place(0)));
        assert_eq!(sent.get("message_reference"), None, "{other}");
    }
}

#[test]
fn a_thread_is_the_channel() {
    let mut reply = reply_to(CHANNEL);
    assert_eq!(target_channel(&reply), Ok(CHANNEL));
    reply.delivery_context.thread_id = Some("77".to_owned());
    assert_eq!(target_channel(&reply), Ok("77"));
    reply.delivery_context.thread_id = Some("general".to_owned());
    assert_eq!(target_channel(&reply), Err(AddressError::Thread("general".to_owned())));
    let nowhere = reply_to("#general");
    assert_eq!(target_channel(&nowhere), Err(AddressError::Peer("#general".to_owned())));
}

#[test]
fn buttons_are_on_the_last_part_wherever_it_goes() {
    let mut reply = reply_to(CHANNEL);
    reply.interactive = Some(json!({"buttons": [{"label": "Approve", "say": "approve abc"}]}));
    let row =
        json!([{"type": 1, "components": [{"type": 2, "style": 2, "label": "Approve", "custom_id": "approve abc"}]}]);
    let sent = |index: u32, place: Option<&ChannelPlace>| body(&account(""), &reply, index, 2, place);
    for (kind, place) in [
        ("direct", Some(place(1))),
        ("server", Some(place(0))),
        ("group", Some(place(3))),
        ("unknown", None),
    ] {
        assert_eq!(sent(1, place.as_ref())["components"], row, "{kind}");
        assert_eq!(sent(0, place.as_ref()).get("components"), None, "{kind}");
    }
}

#[test]
fn words_that_no_button_takes_stay_in_the_text() {
    for (label, say, is_button) in [
        ("x".repeat(79), "y".repeat(99), true),
        ("x".repeat(80), "y".repeat(100), true),
        ("x".repeat(81), "y".repeat(100), false),
        ("x".repeat(80), "y".repeat(101), false),
        ("é".repeat(80), "é".repeat(100), true),
        (String::new(), "y".to_owned(), false),
        ("x".to_owned(), String::new(), false),
    ] {
        let mut reply = reply_to(CHANNEL);
        reply.interactive = Some(json!({"buttons": [{"label": label, "say": say}]}));
        let sent = body(&account(""), &reply, 0, 1, Some(&place(1)));
        assert_eq!(sent.get("components").is_some(), is_button, "{label} {say}");
    }

    let mut reply = reply_to(CHANNEL);
    reply.interactive = Some(json!({"buttons": vec![json!({"label": "x", "say": "y"}); 6]}));
    assert_eq!(
        body(&account(""), &reply, 0, 1, Some(&place(1))).get("components"),
        None
    );
    reply.interactive = Some(json!("strange"));
    assert_eq!(
        body(&account(""), &reply, 0, 1, Some(&place(1))).get("components"),
        None
    );
}
