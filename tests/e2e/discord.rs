//! People write in a thread on Discord, and are answered in it; the thread has a session of its own, and the bot's own
//! messages that come back fire nothing.

use std::time::Duration;

use serde_json::json;
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::platforms::discord::{Discord, GUILD, TOKEN};
use tests::record::read_all;
use tests::world::{Setup, World};

use crate::approval::{approvals_of, pays};
use crate::own_messages::{about_event, edit_is_of_its_message, resolve_hook, sent_event};
use crate::story::PATIENCE;

const ANN: &str = "11";
const GENERAL: &str = "1000";
/// A thread of the channel, which the bot began.
const THREAD: &str = "1500";
/// The direct channel with Ann.
const DIRECT: &str = "1600";

/// Brings what is addressed to the bot to the default persona.
const HOOK: &str = r#"/** @name threads */
export default (ctx) => {
  const e = ctx.event;
  return { fire: e.channel === "discord" && e.direction === "received" };
};
"#;

async fn has_sent(discord: &Discord, world: &World, expected: &[&str]) {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|text| (THREAD.to_owned(), (*text).to_owned()))
        .collect();
    eventually("the bot has answered in the thread", PATIENCE, async || {
        let sent = discord.sent();
        (sent == expected)
            .then_some(())
            .ok_or_else(|| format!("{sent:?}\n{}", world.logs()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_on_discord_keeps_its_session_and_the_echo_of_an_answer_fires_nothing() {
    let discord = Discord::start(Duration::ZERO).await;
    discord.begin_thread(GENERAL, THREAD);
    let world = World::start(Setup {
        hooks: vec![("threads.ts", HOOK.to_owned())],
        channels: discord.account(&format!("groups: {{{GUILD}: {{}}}}")),
        environment: vec![Discord::environment()],
        ..Setup::default()
    })
    .await;
    eventually("the bot is connected", PATIENCE, async || {
        discord.is_connected().then_some(()).ok_or_else(|| world.logs())
    })
    .await;

    discord.write(THREAD, ANN, "hello");
    has_sent(&discord, &world, &["echo: hello"]).await;

    // What the bot has sent comes back: as it is, under another id, and edited.
    let own = discord.messages()[0].clone();
    discord.dispatch("MESSAGE_CREATE", &own);
    let mut again = own.clone();
    again["id"] = json!(discord.next_id());
    discord.dispatch("MESSAGE_CREATE", &again);
    let mut edited = own;
    edited["edited_timestamp"] = json!(SystemClock.now().to_rfc3339());
    edited["content"] = json!("echo: hello?");
    discord.dispatch("MESSAGE_UPDATE", &edited);

    discord.write(THREAD, "12", "and so do I");
    discord.write(THREAD, ANN, "and again");
    has_sent(
        &discord,
        &world,
        &["echo: hello", "echo: and so do I", "echo: and again"],
    )
    .await;

    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
    let sessions: Vec<&str> = dispatches
        .iter()
        .map(|(_, dispatch)| dispatch.target.session.as_str())
        .collect();
    assert_eq!(sessions, ["discord:main:channel:1000:thread:1500"; 3]);
    let ids: Vec<&str> = dispatches
        .iter()
        .map(|(_, dispatch)| dispatch.event_id.as_str())
        .collect();
    assert!(ids.iter().all(|id| id.starts_with("discord:main/1500/")), "{ids:?}");
    assert!(!world.logs().contains(TOKEN.1), "the token is in a log");

    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_decided_by_a_button_in_direct_messages_and_its_card_says_so() {
    let discord = Discord::start(Duration::ZERO).await;
    discord.open_direct(DIRECT, ANN);
    let model = pays().await;
    let world = World::start(Setup {
        channels: discord.account(&format!("direct: allowlist, allow: [{ANN}]")),
        environment: vec![Discord::environment()],
        ..approvals_of("discord", ANN, &model)
    })
    .await;
    eventually("the bot is connected", PATIENCE, async || {
        discord.is_connected().then_some(()).ok_or_else(|| world.logs())
    })
    .await;

    discord.write(DIRECT, ANN, "pay");
    let (card, components) = eventually("the card has buttons", PATIENCE, async || {
        let buttons = discord.buttons();
        buttons
            .first()
            .cloned()
            .ok_or_else(|| format!("{:?}\n{}", discord.sent(), world.logs()))
    })
    .await;
    let say = components[0]["components"][0]["custom_id"]
        .as_str()
        .expect("a button")
        .to_owned();
    assert!(say.starts_with("approve "), "{say}");
    // A card whose receipt is missing would be sent again.
    eventually("the card's event is stored", PATIENCE, async || {
        let events: Vec<(u64, Event)> = read_all(&world.bus, streams::EVENTS).await;
        let is_card = |event: &Event| event.content.starts_with("Approval needed");
        events
            .iter()
            .any(|(_, event)| is_card(event))
            .then_some(())
            .ok_or_else(|| format!("{events:?}"))
    })
    .await;

    discord.press(ANN, &card, &say);
    eventually("the turn has answered, and the card is edited", PATIENCE, async || {
        let is_answered = discord.sent().contains(&(DIRECT.to_owned(), "done".to_owned()));
        let edits = discord.edits();
        (is_answered && !edits.is_empty())
            .then_some(())
            .ok_or_else(|| format!("{edits:?} {:?}\n{}", discord.sent(), world.logs()))
    })
    .await;
    let edits = discord.edits();
    assert_eq!(edits.len(), 1, "{edits:?}");
    let (message, body) = &edits[0];
    assert_eq!((&json!(message), &body["components"]), (&card["id"], &json!([])));
    let text = body["content"].as_str().expect("a text");
    let code = say.split_whitespace().nth(1).expect("a code");
    assert!(text.starts_with("Approved by ann") && !text.contains(code), "{text}");
    assert_eq!(
        discord.answered().len(),
        1,
        "the press is answered within three seconds"
    );
    edit_is_of_its_message(&world, "discord").await;
    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_a_reaction_and_a_press_to_what_the_bot_sent_are_about_the_event_of_it() {
    let discord = Discord::start(Duration::ZERO).await;
    discord.begin_thread(GENERAL, THREAD);
    let world = World::start(Setup {
        hooks: vec![("threads.ts", HOOK.to_owned()), ("resolve.ts", resolve_hook("discord"))],
        channels: discord.account(&format!("groups: {{{GUILD}: {{}}}}")),
        environment: vec![Discord::environment()],
        ..Setup::default()
    })
    .await;
    eventually("the bot is connected", PATIENCE, async || {
        discord.is_connected().then_some(()).ok_or_else(|| world.logs())
    })
    .await;

    discord.write(THREAD, ANN, "hello");
    has_sent(&discord, &world, &["echo: hello"]).await;
    let (sent, platform) = sent_event(&world, "discord").await;
    let own = discord.messages()[0].clone();
    assert_eq!(platform, format!("{THREAD}/{}", own["id"].as_str().expect("an id")));

    // Another tool with the bot's token edits the message, which is an action of the bot's own. Later events are about it all the
    // same.
    let mut edited = own.clone();
    edited["edited_timestamp"] = json!(SystemClock.now().to_rfc3339());
    edited["content"] = json!("other words");
    discord.dispatch("MESSAGE_UPDATE", &edited);

    let person = json!({"id": ANN, "username": "somebody"});
    let reaction = json!({"user_id": ANN, "channel_id": THREAD, "message_id": own["id"], "guild_id": GUILD,
        "member": {"user": person, "roles": []}, "emoji": {"id": null, "name": "👍"}});
    discord.dispatch("MESSAGE_REACTION_ADD", &reaction);
    let mut answer = own.clone();
    answer["id"] = json!(discord.next_id());
    answer["author"] = person.clone();
    answer["content"] = json!("what do you mean?");
    answer["type"] = json!(19);
    answer["message_reference"] = json!({"type": 0, "message_id": own["id"], "channel_id": THREAD, "guild_id": GUILD});
    answer["referenced_message"] = own.clone();
    discord.dispatch("MESSAGE_CREATE", &answer);
    let press = json!({
        "id": discord.next_id(), "application_id": "700", "type": 3, "token": "press", "version": 1,
        "channel_id": THREAD, "guild_id": GUILD, "member": {"user": person, "roles": []}, "message": own,
        "data": {"custom_id": "again", "component_type": 2},
    });
    discord.dispatch("INTERACTION_CREATE", &press);

    about_event(&world, &sent, 3).await;
    world.stack.stop().await;
}
