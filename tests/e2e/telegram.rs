//! A person writes to a bot of Telegram and is answered in the same chat; the bot's own messages that come back fire
//! nothing, and neither does a stranger, until an operator has used the code that the stranger was sent.

use std::time::Duration;

use serde_json::json;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::wire::topology::streams;
use tests::command::{Said, command};
use tests::eventually::eventually;
use tests::platforms::telegram::{TOKEN, Telegram, message};
use tests::record::read_all;
use tests::world::{Setup, World, shipped_hook};

use crate::approval::{approvals_of, pays};
use crate::own_messages::{about_event, edit_is_of_its_message, resolve_hook, sent_event};
use crate::story::{PATIENCE, pending_approvals};

const ANN: i64 = 11;
const STRANGER: i64 = 12;

pub(crate) async fn has_sent(api: &Telegram, world: &World, expected: &[(i64, &str)]) {
    let expected: Vec<(i64, String)> = expected
        .iter()
        .map(|(chat, text)| (*chat, (*text).to_owned()))
        .collect();
    eventually("the bot has answered", PATIENCE, async || {
        let sent = api.sent();
        (sent == expected)
            .then_some(())
            .ok_or_else(|| format!("{sent:?}\n{}", world.logs()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_bot_is_answered_in_its_chat_and_its_echo_fires_nothing() {
    let api = Telegram::start(Duration::ZERO).await;
    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        channels: api.account(&format!("direct: allowlist, allow: [{ANN}]")),
        environment: vec![Telegram::environment()],
        ..Setup::default()
    })
    .await;

    api.write(ANN, "hello");
    has_sent(&api, &world, &[(ANN, "echo: hello")]).await;

    // What the bot has sent comes back: as it is, under another id, and edited.
    let own = api.messages()[0].clone();
    api.bring("message", &own);
    let mut again = own.clone();
    again["message_id"] = json!(900);
    api.bring("message", &again);
    let mut edited = own;
    edited["edit_date"] = edited["date"].clone();
    edited["text"] = json!("echo: hello?");
    api.bring("edited_message", &edited);

    api.write(STRANGER, "let me in");
    api.write(ANN, "and again");
    has_sent(&api, &world, &[(ANN, "echo: hello"), (ANN, "echo: and again")]).await;

    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
    let of: Vec<&str> = dispatches
        .iter()
        .map(|(_, dispatch)| dispatch.event_id.as_str())
        .collect();
    assert_eq!(of.len(), 2, "{of:?}");
    assert!(of.iter().all(|id| id.starts_with("telegram:main/11/")), "{of:?}");
    assert!(!world.logs().contains(TOKEN.1), "the token is in a log");

    world.stack.stop().await;
}

/// A hook that answers every message, with instructions of its own.
const KIND: &str = r#"
/**
 * @name Kind
 * @match channel=telegram
 */
export default async function (ctx: HookContext): Promise<HookResult> {
  if (ctx.event.direction !== "received") return { fire: false };
  return { fire: true, context: { systemPrompt: "Be kind." } };
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_groups_prompt_is_in_the_turns_of_its_messages_and_no_others() {
    let api = Telegram::start(Duration::ZERO).await;
    let groups = "{'-100': {require_mention: false, prompt: Answer in German.}, '*': {require_mention: false}}";
    let world = World::start(Setup {
        hooks: vec![("kind.ts", KIND.to_owned())],
        channels: api.account(&format!("direct: open, groups: {groups}")),
        environment: vec![Telegram::environment()],
        ..Setup::default()
    })
    .await;

    for (number, chat) in [(1, -100), (2, -200)] {
        let mut sent = message(number, (ANN, false), ANN, "hello");
        sent["chat"] = json!({ "id": chat, "type": "supergroup", "title": "Staff" });
        api.bring("message", &sent);
    }
    api.bring("message", &message(3, (ANN, false), ANN, "hello"));

    let prompts = eventually("all three are dispatched", PATIENCE, async || {
        let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
        let mut prompts: Vec<(String, String)> = dispatches
            .into_iter()
            .map(|(_, dispatch)| {
                let peer = dispatch.delivery_context.peer_id.unwrap_or_default();
                (peer, dispatch.context.system_prompt.unwrap_or_default())
            })
            .collect();
        prompts.sort();
        (prompts.len() == 3)
            .then(|| prompts.clone())
            .ok_or_else(|| format!("{prompts:?}\n{}", world.logs()))
    })
    .await;
    let expected = [
        ("-100", "Answer in German.\n\nBe kind."),
        ("-200", "Be kind."),
        ("11", "Be kind."),
    ];
    assert_eq!(
        prompts,
        expected.map(|(peer, prompt)| (peer.to_owned(), prompt.to_owned()))
    );
    world.stack.stop().await;
}

/// Runs `nexus` with `arguments` against `world`, with the bot's token.
async fn operate(world: &World, arguments: &[&str]) -> Said {
    let config = world.stack.config_path();
    let config = config.to_str().expect("a path");
    let mut run = command(world.path(), &[&["--wide", "--config", config], arguments].concat());
    let output = run.env(TOKEN.0, TOKEN.1).output().await.expect("nexus runs");
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The events that were stored.
async fn events(world: &World) -> Vec<Event> {
    let all: Vec<(u64, Event)> = read_all(&world.bus, streams::EVENTS).await;
    all.into_iter().map(|(_, event)| event).collect()
}

/// The code in the first message that the bot sent to the stranger.
async fn code_of(api: &Telegram, world: &World) -> String {
    eventually("the stranger gets a code", PATIENCE, async || {
        let sent = api.sent();
        let told = sent.iter().find(|(chat, _)| *chat == STRANGER);
        let code = told.and_then(|(_, text)| {
            text.split_whitespace()
                .find(|word| word.len() == 9 && word.contains('-'))
        });
        code.map(str::to_owned)
            .ok_or_else(|| format!("{sent:?}\n{}", world.logs()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_let_in_by_the_code_that_an_operator_types() {
    let api = Telegram::start(Duration::ZERO).await;
    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        channels: api.account(""),
        environment: vec![Telegram::environment()],
        ..Setup::default()
    })
    .await;

    api.write(STRANGER, "let me in");
    api.write(STRANGER, "please");
    let code = code_of(&api, &world).await;
    let own = api.messages()[0].clone();
    api.bring("message", &own);

    // What the operator sees, and what hooks and agents could read, has no code.
    let listed = operate(&world, &["channel", "pairings", "--json"]).await;
    assert!(listed.code == Some(0) && listed.out.contains("waiting"), "{listed:?}");
    eventually("the sent event is stored", PATIENCE, async || {
        let all = events(&world).await;
        let sent = all.iter().any(|event| event.content.contains("····-····"));
        sent.then_some(()).ok_or_else(|| format!("{all:?}"))
    })
    .await;
    let stored = serde_json::to_string(&events(&world).await).expect("JSON");
    for text in [&listed.out, &stored, &world.logs()] {
        assert!(
            !text.contains(&code) && !text.contains(&code.replace('-', "")),
            "{text}"
        );
    }

    let wrong = operate(&world, &["channel", "pair", "telegram/main", "0000-0000"]).await;
    assert_eq!(wrong.code, Some(3), "{wrong:?}");
    let paired = operate(&world, &["channel", "pair", "telegram/main", &code]).await;
    assert!(
        paired.code == Some(0) && paired.out.contains("may write to telegram/main"),
        "{paired:?}"
    );
    api.write(STRANGER, "and now");
    eventually("the stranger is answered", PATIENCE, async || {
        let sent = api.sent();
        let texts: Vec<&str> = sent.iter().skip(1).map(|(_, text)| text.as_str()).collect();
        (texts == ["echo: and now"])
            .then_some(())
            .ok_or_else(|| format!("{sent:?}"))
    })
    .await;

    for (arguments, part) in [
        (&["channel", "list"][..], "polling as @nexus_bot"),
        (&["channel", "show", "telegram/main"], "pairing"),
        (&["channel", "check", "telegram/main"], "the bot is @nexus_bot"),
        (&["doctor"], "1 senders are paired"),
        (
            &["channel", "unpair", "telegram/main", "12"],
            "may not write to telegram/main",
        ),
    ] {
        let said = operate(&world, arguments).await;
        assert!(said.out.contains(part), "{arguments:?}: {said:?}");
    }

    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_a_reaction_and_a_press_to_what_the_bot_sent_are_about_the_event_of_it() {
    let api = Telegram::start(Duration::ZERO).await;
    let world = World::start(Setup {
        hooks: vec![
            ("default-dm-routing.ts", shipped_hook("default-dm-routing.ts")),
            ("resolve.ts", resolve_hook("telegram")),
        ],
        channels: api.account("direct: open"),
        environment: vec![Telegram::environment()],
        ..Setup::default()
    })
    .await;

    api.write(ANN, "hello");
    has_sent(&api, &world, &[(ANN, "echo: hello")]).await;
    let (sent, _) = sent_event(&world, "telegram").await;

    let own = api.messages()[0].clone();
    let person = json!({ "id": ANN, "is_bot": false, "first_name": "Somebody" });
    let reaction = json!({
        "chat": own["chat"], "message_id": own["message_id"], "user": person, "date": own["date"],
        "old_reaction": [], "new_reaction": [{ "type": "emoji", "emoji": "👍" }],
    });
    api.bring("message_reaction", &reaction);
    let mut answer = message(901, (ANN, false), ANN, "what do you mean?");
    answer["reply_to_message"] = own.clone();
    api.bring("message", &answer);
    api.press(ANN, own["message_id"].as_i64().expect("an id"), "again");

    about_event(&world, &sent, 3).await;
    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_decided_by_a_button_and_its_card_says_so_once() {
    let api = Telegram::start(Duration::ZERO).await;
    let model = pays().await;
    let mut world = World::start(Setup {
        channels: api.account(&format!("direct: allowlist, allow: [{ANN}]")),
        environment: vec![Telegram::environment()],
        ..approvals_of("telegram", &ANN.to_string(), &model)
    })
    .await;

    api.write(ANN, "pay");
    let (card, buttons) = eventually("the card has buttons", PATIENCE, async || {
        let buttons = api.buttons();
        buttons
            .first()
            .cloned()
            .ok_or_else(|| format!("{:?}\n{}", api.sent(), world.logs()))
    })
    .await;
    assert!(
        buttons[0].starts_with("approve ") && buttons[1].starts_with("deny "),
        "{buttons:?}"
    );

    // A card whose receipt is missing would be sent again.
    eventually("the card's event is stored", PATIENCE, async || {
        let all = events(&world).await;
        let is_card = |event: &Event| event.content.starts_with("Approval needed");
        all.iter().any(is_card).then_some(()).ok_or_else(|| format!("{all:?}"))
    })
    .await;

    // The decision is made while nobody delivers: the card is edited afterwards, and once.
    world.stack.service("delivery-svc", 0).expect("it runs").kill();
    api.press(ANN, card, &buttons[0]);
    eventually("the approval is decided", PATIENCE, async || {
        let pending = pending_approvals(&world).await?;
        pending
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("{pending:?}\n{}", world.logs()))
    })
    .await;
    assert!(api.edits().is_empty());
    world.stack.launch("delivery-svc", 0).expect("it starts again");

    eventually("the turn has answered, and the card is edited", PATIENCE, async || {
        let is_answered = api
            .sent()
            .iter()
            .any(|(chat, text)| (*chat, text.as_str()) == (ANN, "done"));
        let edits = api.edits();
        (is_answered && !edits.is_empty())
            .then_some(())
            .ok_or_else(|| format!("{edits:?} {:?}\n{}", api.sent(), world.logs()))
    })
    .await;

    let edits = api.edits();
    assert_eq!(edits.len(), 1, "{edits:?}");
    assert_eq!(
        (&edits[0]["chat_id"], &edits[0]["message_id"]),
        (&json!(ANN), &json!(card))
    );
    let text = edits[0]["text"].as_str().expect("a text");
    assert!(
        text.starts_with("Approved by ann") && text.contains("list_hooks"),
        "{text}"
    );
    let code = buttons[0].split_whitespace().nth(1).expect("a code");
    assert!(
        edits[0].get("reply_markup").is_none() && !text.contains(code),
        "{edits:?}"
    );
    edit_is_of_its_message(&world, "telegram").await;

    world.stack.stop().await;
}
