use serde_json::{Value, json};
use shared::platform::accounts::read_platforms;

use super::*;
use crate::examples;

const CHAT: &str = "-1001234";

fn account(keys: &str) -> TelegramAccount {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "123456:AbC-dEf_1").expect("written");
    let token = file.path().display();
    let text = format!("telegram: {{accounts: {{bot: {{token: 'file:{token}', {keys}}}}}}}");
    let mut accounts = read_platforms(&text).expect("read").telegram.accounts;
    accounts.remove("bot").expect("the account")
}

/// A reply of account `bot` to `peer`, to message 42 there.
fn reply_to(peer: &str) -> Reply {
    let mut reply = examples::reply("x");
    let target = &mut reply.delivery_context;
    target.channel = TELEGRAM.to_owned();
    target.account_id = Some("bot".to_owned());
    target.peer_id = Some(peer.to_owned());
    target.reply_to_id = Some(format!("telegram:bot/{peer}/42"));
    reply
}

fn part(index: u32) -> MessagePart {
    MessagePart {
        index,
        content: "<b>x</b>".to_owned(),
        format: TextFormat::TelegramHtml,
        plain: Some("x".to_owned()),
        styles: Vec::new(),
        file: None,
    }
}

fn body(account: &TelegramAccount, reply: &Reply, part: &MessagePart, parts: u32) -> Value {
    let message = SendMessage::from_part(account, reply, part, parts).expect("a message");
    serde_json::to_value(message).expect("it serialises")
}

#[test]
fn a_direct_message_is_html_without_previews_and_quotes() {
    assert_eq!(
        body(&account(""), &reply_to("77"), &part(0), 1),
        json!({
            "chat_id": 77, "text": "<b>x</b>", "parse_mode": "HTML", "link_preview_options": {"is_disabled": true},
        })
    );

    let plain = part(0).without_markup().expect("it has markup");
    let sent = body(&account(""), &reply_to("77"), &plain, 1);
    assert_eq!((&sent["text"], sent.get("parse_mode")), (&json!("x"), None));
}

#[test]
fn the_first_part_to_a_group_quotes_what_it_answers() {
    let quoted = json!({"message_id": 42, "allow_sending_without_reply": true});
    let reply = reply_to(CHAT);
    assert_eq!(body(&account(""), &reply, &part(0), 2)["reply_parameters"], quoted);

    let quotes = |account: &TelegramAccount, reply: &Reply, index| {
        body(account, reply, &part(index), 2).get("reply_parameters").is_some()
    };
    assert!(!quotes(&account(""), &reply, 1));
    let silent = account("groups: {'*': {reply_in_thread: false}}");
    assert!(!quotes(&silent, &reply, 0));

    // A topic goes before its group, and what names none is in the general one.
    let topics = account("groups: {-1001234: {reply_in_thread: false, topics: {1: {reply_in_thread: true}, 5: {}}}}");
    for (thread, expected) in [(None, true), (Some("1"), true), (Some("5"), false), (Some("6"), false)] {
        let mut reply = reply_to(CHAT);
        reply.delivery_context.thread_id = thread.map(str::to_owned);
        assert_eq!(quotes(&topics, &reply, 0), expected, "{thread:?}");
    }

    for other in [
        "telegram:other/-1001234/42",
        "telegram:bot/-1009/42",
        "telegram:bot/-1001234/x",
        "out:1/0",
    ] {
        let mut reply = reply_to(CHAT);
        reply.delivery_context.reply_to_id = Some(other.to_owned());
        assert!(!quotes(&account(""), &reply, 0), "{other}");
    }
}

#[test]
fn a_topic_is_named_unless_it_is_the_general_one() {
    for (thread, expected) in [(None, None), (Some("1"), None), (Some("5"), Some(5))] {
        let mut reply = reply_to(CHAT);
        reply.delivery_context.thread_id = thread.map(str::to_owned);
        let sent = body(&account(""), &reply, &part(0), 1);
        assert_eq!(
            sent.get("message_thread_id").and_then(Value::as_i64),
            expected,
            "{thread:?}"
        );
    }
}

#[test]
fn the_last_part_of_a_card_has_its_buttons() {
    let mut reply = reply_to("77");
    reply.interactive = Some(json!({"kind": "approval", "buttons": [
        {"label": "Approve", "say": "approve K7Q2-M9PX #9f3c2a1b4d5e6f70"}, {"label": "Deny", "say": "deny K7Q2-M9PX"},
    ]}));
    let row = json!([
        {"text": "Approve", "callback_data": "approve K7Q2-M9PX #9f3c2a1b4d5e6f70"},
        {"text": "Deny", "callback_data": "deny K7Q2-M9PX"},
    ]);
    assert_eq!(
        body(&account(""), &reply, &part(1), 2)["reply_markup"],
        json!({"inline_keyboard": [row]})
    );
    assert!(body(&account(""), &reply, &part(0), 2).get("reply_markup").is_none());

    // In a group too: a press counts for the person who presses alone.
    reply.delivery_context.peer_id = Some("-77".to_owned());
    assert!(body(&account(""), &reply, &part(1), 2).get("reply_markup").is_some());
}

#[test]
fn buttons_that_do_not_fit_are_left_to_the_text() {
    for interactive in [
        json!({"kind": "approval"}),
        json!({"buttons": "none"}),
        json!({"buttons": [{"label": "Go", "say": "x".repeat(65)}]}),
        json!({"buttons": [{"label": "", "say": "x"}]}),
        json!({"buttons": [{"label": "Go", "say": ""}]}),
    ] {
        let mut reply = reply_to("77");
        reply.interactive = Some(interactive.clone());
        let sent = body(&account(""), &reply, &part(0), 1);
        assert!(sent.get("reply_markup").is_none(), "{interactive}");
    }
}

#[test]
fn a_button_takes_words_of_64_bytes() {
    for (say, is_button) in [
        ("x".repeat(63), true),
        ("x".repeat(64), true),
        ("x".repeat(65), false),
        ("é".repeat(32), true),
        ("é".repeat(33), false),
    ] {
        let mut reply = reply_to("77");
        reply.interactive = Some(json!({"buttons": [{"label": "Go", "say": say}]}));
        let sent = body(&account(""), &reply, &part(0), 1);
        assert_eq!(sent.get("reply_markup").is_some(), is_button, "{say}");
    }
}

#[test]
fn a_group_that_moved_is_not_quoted() {
    let (account, reply, part) = (account(""), reply_to(CHAT), part(0));
    let mut message = SendMessage::from_part(&account, &reply, &part, 1).expect("a message");
    message.move_to(-1_009);
    let sent = serde_json::to_value(message).expect("it serialises");
    assert_eq!((&sent["chat_id"], sent.get("reply_parameters")), (&json!(-1_009), None));
}

#[test]
fn other_addresses_are_errors_that_name_them() {
    let address = |reply: &Reply| SendMessage::from_part(&account(""), reply, &part(0), 1).map(drop);
    let peer = "@durov".to_owned();
    assert_eq!(address(&reply_to(&peer)), Err(AddressError::Peer(peer)));

    let mut reply = reply_to("77");
    reply.delivery_context.thread_id = Some("main".to_owned());
    assert_eq!(address(&reply), Err(AddressError::Thread("main".to_owned())));
}
