//! Changes of sent messages: what every platform that can be written to must do, by one function and its fixtures.

use std::collections::BTreeMap;

use serde_json::json;
use shared::bus::OutgoingMessage;
use shared::model::approval::{CARD, decision_interactive};
use shared::model::event::{Event, EventDirection};
use shared::model::receipt::ReceiptStep;
use shared::model::reply::{Reply, ReplyAction};
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::headers::REDRIVE;
use shared::wire::subject;
use ulid::Ulid;

use crate::bot_api::{BotApi, Lie as BotLie};
use crate::discord_api::{DiscordApi, Misdeed};
use crate::web_api::{Lie as WebLie, WebApi};
use crate::world::{Setup, World, reply};

/// A platform as the contract sees it.
struct Fixture {
    channel: &'static str,
    /// Conversation with the account `bot`.
    peer: &'static str,
    setup: Box<dyn Fn() -> Setup>,
    /// Calls that change messages, in order.
    changes: Box<dyn Fn() -> Vec<String>>,
    /// The next call has no answer.
    silence: Box<dyn Fn()>,
    /// The calls of an edit, a reaction, its removal, and a deletion of the first message.
    expected: [&'static str; 4],
}

async fn telegram() -> Fixture {
    let api = BotApi::start(&[]).await;
    let (changes, silenced) = (api.clone(), api.clone());
    Fixture {
        channel: TELEGRAM,
        peer: "77",
        setup: Box::new(move || Setup {
            telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", ""))]),
            ..Setup::default()
        }),
        changes: Box::new(move || changes.changes()),
        silence: Box::new(move || silenced.lie(BotLie::Silent)),
        expected: [
            "editMessageText 77/1 <b>two</b>",
            "setMessageReaction 77/1 👀",
            "setMessageReaction 77/1 ",
            "deleteMessage 77/1 ",
        ],
    }
}

async fn slack() -> Fixture {
    let api = WebApi::start(&[]).await;
    let (changes, silenced) = (api.clone(), api.clone());
    Fixture {
        channel: SLACK,
        peer: "D1",
        setup: Box::new(move || Setup {
            slack: BTreeMap::from([("bot".to_owned(), api.account("xoxb-bot", ""))]),
            ..Setup::default()
        }),
        changes: Box::new(move || changes.changes()),
        silence: Box::new(move || silenced.lie(WebLie::Silent)),
        expected: [
            "chat.update D1/1700000000.000001 *two*",
            "reactions.add D1/1700000000.000001 eyes",
            "reactions.remove D1/1700000000.000001 eyes",
            "chat.delete D1/1700000000.000001 ",
        ],
    }
}

async fn discord() -> Fixture {
    let api = DiscordApi::start(&[]).await;
    let (changes, silenced) = (api.clone(), api.clone());
    Fixture {
        channel: DISCORD,
        peer: "77",
        setup: Box::new(move || Setup {
            discord: BTreeMap::from([("bot".to_owned(), api.account("MTk4NjI.Cl2FMQ.ZnCjm1XV", ""))]),
            ..Setup::default()
        }),
        changes: Box::new(move || changes.changes()),
        silence: Box::new(move || silenced.misdo(Misdeed::Silent)),
        expected: [
            "PATCH 77/messages/1000 **two**",
            "PUT 77/messages/1000/reactions/%F0%9F%91%80/@me ",
            "DELETE 77/messages/1000/reactions/%F0%9F%91%80/@me ",
            "DELETE 77/messages/1000 ",
        ],
    }
}

impl Fixture {
    fn reply(&self, number: u64, content: &str, action: Option<ReplyAction>) -> Reply {
        let mut reply = reply(number, self.channel, self.peer);
        reply.delivery_context.account_id = Some("bot".to_owned());
        reply.content = content.to_owned();
        reply.action = action;
        reply
    }
}

fn react(target: &str, removed: bool) -> ReplyAction {
    ReplyAction::React {
        target: target.to_owned(),
        emoji: "👀".to_owned(),
        removed,
    }
}

/// Publishes `reply` under another id than the server knows.
async fn publish_again(world: &World, reply: &Reply) {
    let out = OutgoingMessage::new(subject::delivery(&reply.delivery_context), reply);
    world.bus.publish(out).await.expect("it is stored");
}

/// A sent message is edited, reacted to and deleted, each once, in order, with the events that say so.
async fn check_changes(fixture: &Fixture) {
    let world = World::start().await;
    let replica = world.replica("a", (fixture.setup)());
    let sent = fixture.reply(1, "**one**", None);
    let target = format!("out:{}/0", sent.id);
    let edit = ReplyAction::Edit { target: target.clone() };
    let delete = ReplyAction::Delete { target: target.clone() };
    let all = [
        sent.clone(),
        fixture.reply(2, "**two**", Some(edit)),
        fixture.reply(3, "", Some(react(&target, false))),
        fixture.reply(4, "", Some(react(&target, true))),
        fixture.reply(5, "", Some(delete)),
    ];
    for reply in &all {
        world.publish(reply).await;
    }
    world.settled().await;
    assert_eq!((fixture.changes)(), fixture.expected);

    // A copy of each makes nothing again.
    for reply in &all {
        publish_again(&world, reply).await;
    }
    world.settled().await;
    assert_eq!((fixture.changes)(), fixture.expected);
    assert!(world.dead_letters().await.is_empty());

    let events = world.sent_events().await;
    let of_message: Vec<&Event> = events.iter().filter(|event| event.id.as_str() == target).collect();
    let told: Vec<_> = of_message
        .iter()
        .map(|event| (event.direction, event.content.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (EventDirection::Sent, "one"),
            (EventDirection::Updated, "two"),
            (EventDirection::Deleted, "")
        ],
        "{}",
        fixture.channel
    );
    let ids: Vec<_> = of_message.iter().map(|event| &event.metadata["platform"]).collect();
    assert!(ids.iter().all(|of| *of == ids[0]), "{ids:?}");
    let reactions: Vec<_> = events
        .iter()
        .filter(|event| event.content_types == ["reaction"])
        .collect();
    assert_eq!(reactions.len(), 2);
    assert!(
        reactions
            .iter()
            .all(|event| event.target.as_deref() == Some(target.as_str()))
    );
    replica.stop().await;
}

/// A replica dies during each change: the next one makes it, once more at most, and the receipts say that it was made.
async fn check_crash(fixture: &Fixture) {
    let world = World::start().await;
    let first = world.replica("a", (fixture.setup)());
    let sent = fixture.reply(1, "**one**", None);
    let target = format!("out:{}", sent.id);
    world.publish(&sent).await;
    world.settled().await;

    let actions = [
        ReplyAction::Edit { target: target.clone() },
        react(&target, false),
        ReplyAction::Delete { target },
    ];
    let mut replica = first;
    for (number, action) in (2..).zip(actions) {
        let before = (fixture.changes)().len();
        (fixture.silence)();
        world.publish(&fixture.reply(number, "**two**", Some(action))).await;
        eventually("the call is made", async || (fixture.changes)().len() == before + 1).await;
        replica.kill();

        replica = world.replica("a", (fixture.setup)());
        world.settled().await;
        let changes = (fixture.changes)();
        assert_eq!(changes.len(), before + 2, "{changes:?}");
        assert_eq!(changes[before], changes[before + 1]);
    }
    replica.stop().await;

    assert!(world.dead_letters().await.is_empty(), "{}", fixture.channel);
    let steps = world.outcomes(&sent.delivery_context).await;
    let delivered =
        |step: &&ReceiptStep| matches!(step, ReceiptStep::Delivered { unconfirmed, .. } if unconfirmed.is_empty());
    assert_eq!(steps.iter().filter(delivered).count(), 4, "{steps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_telegram_are_changed() {
    check_changes(&telegram().await).await;
    check_crash(&telegram().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_slack_are_changed() {
    check_changes(&slack().await).await;
    check_crash(&slack().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_discord_are_changed() {
    check_changes(&discord().await).await;
    check_crash(&discord().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_messages_of_the_same_session_and_conversation_are_changed() {
    let (world, fixture) = (World::start().await, telegram().await);
    let replica = world.replica("a", (fixture.setup)());
    let sent = fixture.reply(1, "one", None);
    world.publish(&sent).await;
    world.settled().await;

    let target = format!("out:{}/0", sent.id);
    let edit = |target: &str| {
        Some(ReplyAction::Edit {
            target: target.to_owned(),
        })
    };
    let mut other_session = fixture.reply(2, "mine", edit(&target));
    other_session.session.session = "another".to_owned();
    let mut elsewhere = fixture.reply(3, "mine", edit(&target));
    elsewhere.delivery_context.peer_id = Some("78".to_owned());
    let unsent = fixture.reply(
        4,
        "mine",
        edit(&format!("out:{}/0", Ulid::from_parts(1_700_000_000_000, 1))),
    );
    let received = fixture.reply(5, "mine", edit("telegram:bot/77/9"));
    let no_part = fixture.reply(6, "mine", edit(&format!("out:{}/1", sent.id)));
    for reply in [&other_session, &elsewhere, &unsent, &received, &no_part] {
        world.publish(reply).await;
    }
    world.settled().await;

    assert_eq!((fixture.changes)(), Vec::<String>::new());
    let mut details: Vec<String> = world
        .dead_letters()
        .await
        .into_iter()
        .map(|letter| letter.detail)
        .collect();
    details.sort();
    let of = |part: &str| details.iter().filter(|detail| detail.contains(part)).count();
    assert_eq!(
        (
            of("sent by another session"),
            of("was not sent to this conversation"),
            of("was received")
        ),
        (1, 3, 1),
        "{details:?}"
    );
    // Anybody's message can be reacted to.
    world
        .publish(&fixture.reply(7, "", Some(react("telegram:bot/77/9", false))))
        .await;
    world.settled().await;
    assert_eq!((fixture.changes)().len(), 1);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_changed_by_its_decision_alone() {
    let (world, fixture) = (World::start().await, telegram().await);
    let replica = world.replica("a", (fixture.setup)());
    let mut card = fixture.reply(1, "Approval needed", None);
    card.interactive = Some(json!({
        "kind": CARD, "approval": "a1", "code": "K7Q2-M9PX", "arguments_hash": "ab",
        "buttons": [{"label": "Approve", "say": "approve K7Q2-M9PX"}],
    }));
    world.publish(&card).await;
    let target = format!("out:{}", card.id);
    let edit = || Some(ReplyAction::Edit { target: target.clone() });
    let delete = ReplyAction::Delete { target: target.clone() };
    world.publish(&fixture.reply(2, "forged", edit())).await;
    world.publish(&fixture.reply(3, "", Some(delete))).await;
    let mut decided = fixture.reply(4, "Approved", edit());
    decided.interactive = Some(decision_interactive("a1"));
    world.publish(&decided).await;
    world.settled().await;

    assert_eq!((fixture.changes)(), ["editMessageText 77/1 Approved"]);
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), 2);
    assert!(
        letters
            .iter()
            .all(|letter| letter.detail.contains("card of an approval")),
        "{letters:?}"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_whose_markup_cannot_be_read_is_made_plain() {
    let world = World::start().await;
    let api = BotApi::start(&[]).await;
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", ""))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    let fixture = telegram().await;
    let sent = fixture.reply(1, "**one**", None);
    world.publish(&sent).await;
    world.settled().await;
    api.lie(BotLie::Unreadable);
    let target = format!("out:{}/0", sent.id);
    world
        .publish(&fixture.reply(2, "**two**", Some(ReplyAction::Edit { target })))
        .await;
    world.settled().await;
    assert_eq!(api.shown(), ["two"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_that_an_operator_brings_back_undoes_no_newer_one() {
    let world = World::start().await;
    let api = BotApi::start(&[]).await;
    let setup = || Setup {
        telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", ""))]),
        ..Setup::default()
    };
    let fixture = telegram().await;
    let replica = world.replica("a", setup());
    let sent = [fixture.reply(1, "one", None), fixture.reply(2, "another", None)];
    for reply in &sent {
        world.publish(reply).await;
    }
    world.settled().await;

    // Each first edit fails; of the first message another one follows.
    let edit = |number, content: &str, of: &Reply| {
        let target = format!("out:{}/0", of.id);
        fixture.reply(number, content, Some(ReplyAction::Edit { target }))
    };
    let (first, lone) = (edit(3, "former", &sent[0]), edit(4, "late", &sent[1]));
    for failed in [&first, &lone] {
        api.lie(BotLie::Blocked);
        world.publish(failed).await;
        world.settled().await;
    }
    assert_eq!(world.dead_letters().await.len(), 2);
    world.publish(&edit(5, "newer", &sent[0])).await;
    world.settled().await;

    for (number, redriven) in [&first, &lone].into_iter().enumerate() {
        let out = OutgoingMessage::new(subject::delivery(&redriven.delivery_context), redriven);
        let out = out.msg_id(format!("{REDRIVE}{number}:x"));
        world.bus.publish(out).await.expect("it is stored");
    }
    world.settled().await;
    // One without a successor is made.
    assert_eq!(api.shown(), ["newer", "late"]);
    let steps = world.outcomes(&sent[0].delivery_context).await;
    let denied = |step: &&ReceiptStep| matches!(step, ReceiptStep::DeniedByPolicy { rule } if rule.contains("newer"));
    assert_eq!(steps.iter().filter(denied).count(), 1, "{steps:?}");
    replica.stop().await;
}
