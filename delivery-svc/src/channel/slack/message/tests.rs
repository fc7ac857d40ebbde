use serde_json::{Value, json};
use shared::platform::accounts::read_platforms;

use super::*;
use crate::examples;
use crate::plan::plan_parts;

fn account(keys: &str) -> SlackAccount {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "xoxb-1").expect("written");
    let token = file.path().display();
    let text = format!("slack: {{accounts: {{app: {{token: 'file:{token}', receive: none, {keys}}}}}}}");
    let mut accounts = read_platforms(&text).expect("read").slack.accounts;
    accounts.remove("app").expect("the account")
}

/// A reply of account `app` to `peer`, to a message there.
fn reply_to(peer: &str) -> Reply {
    let mut reply = examples::reply("x");
    let target = &mut reply.delivery_context;
    target.channel = SLACK.to_owned();
    target.account_id = Some("app".to_owned());
    target.peer_id = Some(peer.to_owned());
    target.reply_to_id = Some(format!("slack:app/{peer}/1767326125.870439"));
    reply
}

fn part(content: &str) -> MessagePart {
    MessagePart {
        content: content.to_owned(),
        format: TextFormat::Slack,
        plain: Some(content.to_owned()),
        ..MessagePart::default()
    }
}

fn try_body(account: &SlackAccount, reply: &Reply, part: &MessagePart) -> Result<Value, AddressError> {
    let message = PostMessage::from_part(account, reply, part, 1, "out:1/0");
    message.map(|message| serde_json::to_value(message).expect("it serialises"))
}

fn body(account: &SlackAccount, reply: &Reply, part: &MessagePart) -> Value {
    try_body(account, reply, part).expect("a message")
}

#[test]
fn a_direct_message_is_mrkdwn_without_previews_and_threads() {
    assert_eq!(
        body(&account(""), &reply_to("D1"), &part("*x*")),
        json!({
            "channel": "D1", "text": "*x*", "mrkdwn": true, "link_names": false, "unfurl_links": false,
            "unfurl_media": false,
            "metadata": {"event_type": "nexus_part", "event_payload": {"event": "out:1/0"}},
        })
    );
}

#[test]
fn nothing_that_a_model_wrote_calls_anybody() {
    let layout = crate::plan::PartLayout {
        format: TextFormat::Slack,
        ..crate::plan::PartLayout::default()
    };
    for text in [
        "<!channel> <!here> <@U012AB3CD>",
        "`<!everyone>`",
        "```\n<!subteam^S1>\n```",
        "[x](!channel)",
        "[<!here>](https://a.example)",
    ] {
        let mut reply = reply_to("C1");
        text.clone_into(&mut reply.content);
        let rendered = plan_parts(&reply, layout).remove(0);
        let plain = rendered.without_markup().expect("it has markup");
        for part in [rendered, plain] {
            let sent = body(&account(""), &reply, &part);
            let sent = sent["text"].as_str().expect("a text");
            assert!(!sent.contains("<!") && !sent.contains("<@"), "{text}: {sent}");
        }
    }

    let plain = part("1 < 2 & *3*").without_markup().expect("it has markup");
    let sent = body(&account(""), &reply_to("D1"), &plain);
    assert_eq!(
        (&sent["text"], &sent["mrkdwn"]),
        (&json!("1 &lt; 2 &amp; *3*"), &json!(false))
    );
}

#[test]
fn an_answer_in_a_channel_goes_to_the_thread_of_what_it_answers() {
    let thread = |account: &SlackAccount, reply: &Reply| body(account, reply, &part("x")).get("thread_ts").cloned();
    let answered = Some(json!("1767326125.870439"));
    assert_eq!(thread(&account(""), &reply_to("C1")), answered);
    assert_eq!(thread(&account(""), &reply_to("G1")), answered);
    assert_eq!(thread(&account(""), &reply_to("D1")), None);
    let flat = account("groups: {'*': {reply_in_thread: false}}");
    assert_eq!(thread(&flat, &reply_to("C1")), None);

    let mut reply = reply_to("C1");
    reply.delivery_context.thread_id = Some("1767326100.000001".to_owned());
    assert_eq!(thread(&flat, &reply), Some(json!("1767326100.000001")));

    for other in [
        "slack:other/C1/1.000001",
        "slack:app/C2/1.000001",
        "slack:app/C1/1.000001/press/U1/2.000001",
        "out:1/0",
    ] {
        let mut reply = reply_to("C1");
        reply.delivery_context.reply_to_id = Some(other.to_owned());
        assert_eq!(thread(&account(""), &reply), None, "{other}");
    }
}

#[test]
fn what_is_no_address_is_refused() {
    for peer in ["", "general", "#general", "4711", "C1/2"] {
        let refused = try_body(&account(""), &reply_to(peer), &part("x"));
        assert_eq!(refused, Err(AddressError::Peer(peer.to_owned())));
    }
    assert!(try_body(&account(""), &reply_to("U1"), &part("x")).is_ok());
    let mut reply = reply_to("C1");
    reply.delivery_context.thread_id = Some("5".to_owned());
    assert_eq!(
        try_body(&account(""), &reply, &part("x")),
        Err(AddressError::Thread("5".to_owned()))
    );
}

#[test]
fn a_card_has_buttons_wherever_it_goes() {
    let with_buttons = |peer: &str, say: &str| {
        let mut reply = reply_to(peer);
        reply.interactive =
            Some(json!({"buttons": [{"label": "Approve", "say": say}, {"label": "Deny", "say": "no"}]}));
        reply
    };
    let sent = body(&account(""), &with_buttons("D1", "approve K7Q2"), &part("*pay*"));
    assert_eq!(
        sent["blocks"][0]["text"],
        json!({"type": "mrkdwn", "text": "*pay*", "verbatim": true})
    );
    assert_eq!(
        sent["blocks"][1]["elements"][0],
        json!({"type": "button", "text": {"type": "plain_text", "text": "Approve"}, "value": "approve K7Q2",
               "action_id": "say_0"})
    );
    assert_eq!(sent["blocks"][1]["elements"][1]["action_id"], "say_1");

    let has_blocks = |reply: &Reply, part: &MessagePart| body(&account(""), reply, part).get("blocks").is_some();
    let (direct, fits) = (with_buttons("D1", "x"), "x".repeat(3_000));
    assert!(has_blocks(&direct, &part(&fits[1..])) && has_blocks(&direct, &part(&fits)));
    assert!(!has_blocks(&direct, &part(&format!("{fits}y"))));
    for group in ["C1", "G1"] {
        assert!(has_blocks(&with_buttons(group, "x"), &part("x")), "{group}");
    }
    for (length, is_button) in [(1_999, true), (2_000, true), (2_001, false)] {
        let reply = with_buttons("D1", &"é".repeat(length));
        assert_eq!(has_blocks(&reply, &part("x")), is_button, "{length}");
    }
    for (length, is_button) in [(74, true), (75, true), (76, false)] {
        let mut reply = reply_to("D1");
        reply.interactive = Some(json!({"buttons": [{"label": "é".repeat(length), "say": "x"}]}));
        assert_eq!(has_blocks(&reply, &part("x")), is_button, "{length}");
    }
    assert!(!has_blocks(&reply_to("D1"), &part("x")));
    let plain = part("x").without_markup().expect("it has markup");
    assert!(!has_blocks(&direct, &plain), "Slack could not read the blocks");
}
