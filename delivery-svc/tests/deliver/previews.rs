//! Previews: what every account that shows them must do, by one function and its fixtures.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::live::{AnswerPreview, WritingBeat};
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;

use crate::bot_api::{BotApi, Lie as BotLie};
use crate::discord_api::{DiscordApi, Misdeed};
use crate::web_api::{Lie as WebLie, WebApi};
use crate::world::{Setup, World, reply};

/// A platform as the contract sees it.
struct Fixture {
    channel: &'static str,
    peer: &'static str,
    setup: Box<dyn Fn() -> Setup>,
    /// Texts that were sent as messages.
    sent: Box<dyn Fn() -> Vec<String>>,
    /// Calls that change messages, in order.
    changes: Box<dyn Fn() -> Vec<String>>,
    /// The next call has no answer, though it is done.
    silence: Box<dyn Fn()>,
}

async fn telegram() -> Fixture {
    let api = BotApi::start(&[]).await;
    let (sent, changes, silenced) = (api.clone(), api.clone(), api.clone());
    Fixture {
        channel: TELEGRAM,
        peer: "77",
        setup: Box::new(move || Setup {
            telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", "previews: true"))]),
            ..Setup::default()
        }),
        sent: Box::new(move || sent.texts(77)),
        changes: Box::new(move || changes.changes()),
        silence: Box::new(move || silenced.lie(BotLie::Silent)),
    }
}

async fn slack() -> Fixture {
    let api = WebApi::start(&[]).await;
    let (sent, changes, silenced) = (api.clone(), api.clone(), api.clone());
    Fixture {
        channel: SLACK,
        peer: "D1",
        setup: Box::new(move || Setup {
            slack: BTreeMap::from([("bot".to_owned(), api.account("xoxb-bot", "previews: true"))]),
            ..Setup::default()
        }),
        sent: Box::new(move || sent.texts("D1")),
        changes: Box::new(move || changes.changes()),
        silence: Box::new(move || silenced.lie(WebLie::Silent)),
    }
}

async fn discord() -> Fixture {
    let api = DiscordApi::start(&[]).await;
    let (sent, changes, silenced) = (api.clone(), api.clone(), api.clone());
    Fixture {
        channel: DISCORD,
        peer: "77",
        setup: Box::new(move || Setup {
            discord: BTreeMap::from([(
                "bot".to_owned(),
                api.account("MTk4NjI.Cl2FMQ.ZnCjm1XV", "previews: true"),
            )]),
            ..Setup::default()
        }),
        sent: Box::new(move || sent.texts(77)),
        changes: Box::new(move || changes.changes()),
        silence: Box::new(move || silenced.misdo(Misdeed::Silent)),
    }
}

impl Fixture {
    fn reply(&self, number: u64, content: &str) -> Reply {
        let mut reply = reply(number, self.channel, self.peer);
        reply.delivery_context.account_id = Some("bot".to_owned());
        reply.content = content.to_owned();
        reply
    }
}

/// The turn of `reply` has come to `text`.
async fn beat(world: &World, reply: &Reply, text: &str) {
    let preview = AnswerPreview {
        session: reply.session.clone(),
        causation: reply.causation.clone(),
        text: text.to_owned(),
    };
    let beat = WritingBeat {
        turn: reply.turn,
        target: reply.delivery_context.clone(),
        preview: Some(Box::new(preview)),
        is_over: false,
    };
    let payload = serde_json::to_vec(&beat).expect("JSON");
    let subject = subject::live(&reply.delivery_context);
    world.bus.core_publish(&subject, &Headers::new(), payload.into()).await;
}

/// Sends the beats until the beginning is shown: a replica that has just begun hears none.
async fn shown(world: &World, fixture: &Fixture, reply: &Reply, text: &str) {
    let before = (fixture.sent)().len();
    eventually("the beginning is shown", async || {
        beat(world, reply, text).await;
        (fixture.sent)().len() > before
    })
    .await;
}

/// Number of pieces of a long answer, and its length. It is one message on every platform.
const PIECES: usize = 5_000;
const LENGTH: usize = 1_000;

/// A long answer is one message that is edited at most once a second, and ends as the whole text with its event.
async fn check_long_answer(fixture: &Fixture) {
    let world = World::start().await;
    let replica = world.replica("a", (fixture.setup)());
    let mut whole: String = (0..LENGTH).map(|number| format!("{number} ")).collect();
    whole.truncate(LENGTH);
    let answer = fixture.reply(1, &format!("**{whole}**"));
    let first = "0 1";
    shown(&world, fixture, &answer, first).await;
    let begun = SystemClock.monotonic();
    for piece in 1..=PIECES {
        let end = first.len() + (LENGTH - first.len()) * piece / PIECES;
        beat(&world, &answer, &whole[..end]).await;
        if piece % 250 == 0 {
            pause(Duration::from_millis(250)).await;
        }
    }
    eventually("it is edited", async || !(fixture.changes)().is_empty()).await;
    let edits = (fixture.changes)().len();
    let seconds = SystemClock.monotonic().saturating_duration_since(begun).as_secs();
    assert!(edits as u64 <= seconds + 1, "{edits} edits in {seconds} s");

    world.publish(&answer).await;
    world.settled().await;
    let sent = (fixture.sent)();
    assert_eq!(sent, ["0 1 …"], "{}", fixture.channel);
    let changes = (fixture.changes)();
    assert!(
        changes.last().is_some_and(|last| last.contains(whole.trim_end())),
        "{changes:?}"
    );

    // Beats that come late change nothing.
    for _ in 0..20 {
        beat(&world, &answer, "late").await;
    }
    let next = fixture.reply(2, "next");
    world.publish(&next).await;
    world.settled().await;
    assert_eq!(((fixture.sent)().len(), (fixture.changes)().len()), (2, changes.len()));

    let events = world.sent_events().await;
    assert_eq!(events.len(), 2, "a preview is no event: {events:#?}");
    assert_eq!(events[0].id.as_str(), format!("out:{}/0", answer.id));
    assert_eq!(events[0].content.trim_end(), whole.trim_end());
    let steps = world.outcomes(&answer.delivery_context).await;
    let delivered =
        |step: &&ReceiptStep| matches!(step, ReceiptStep::Delivered { unconfirmed, .. } if unconfirmed.is_empty());
    assert_eq!(steps.iter().filter(delivered).count(), 2, "{steps:?}");
    replica.stop().await;
}

/// A replica dies while an answer is shown: the next one makes the same message whole.
async fn check_crash(fixture: &Fixture) {
    let world = World::start().await;
    let replica = world.replica("a", (fixture.setup)());
    let answer = fixture.reply(1, "the whole answer");
    shown(&world, fixture, &answer, "the").await;
    eventually("its id is known", async || {
        let receipts = world.receipts(&answer.delivery_context).await;
        let is_known = |step: &ReceiptStep| matches!(step, ReceiptStep::Preview { message: Some(_), .. });
        receipts.iter().any(|receipt| is_known(&receipt.step))
    })
    .await;
    replica.kill();

    // During the edit that makes it whole, the next one dies too.
    let before = (fixture.changes)().len();
    (fixture.silence)();
    let replica = world.replica("a", (fixture.setup)());
    world.publish(&answer).await;
    eventually("it is made whole", async || (fixture.changes)().len() > before).await;
    replica.kill();
    let replica = world.replica("a", (fixture.setup)());
    world.settled().await;
    replica.stop().await;

    assert_eq!((fixture.sent)(), ["the …"], "{}", fixture.channel);
    let changes = (fixture.changes)();
    assert_eq!(changes.len(), before + 2, "{changes:?}");
    assert!(
        changes.iter().all(|change| change.contains("the whole answer")),
        "{changes:?}"
    );
    let steps = world.outcomes(&answer.delivery_context).await;
    assert!(
        matches!(steps.last(), Some(ReceiptStep::Delivered { unconfirmed, .. }) if unconfirmed.is_empty()),
        "{steps:?}"
    );
}

/// The first sending has no answer: no second copy is sent, and the answer comes.
async fn check_lost_answer(fixture: &Fixture, is_found: bool) {
    let world = World::start().await;
    let replica = world.replica("a", (fixture.setup)());
    let answer = fixture.reply(1, "the whole answer");
    (fixture.silence)();
    shown(&world, fixture, &answer, "the").await;
    replica.kill();

    let replica = world.replica("a", (fixture.setup)());
    for _ in 0..5 {
        beat(&world, &answer, "the whole").await;
        pause(Duration::from_millis(50)).await;
    }
    world.publish(&answer).await;
    world.settled().await;
    replica.stop().await;
    let expected: &[&str] = if is_found {
        &["the …"]
    } else {
        &["the …", "the whole answer"]
    };
    assert_eq!((fixture.sent)(), expected, "{}", fixture.channel);
}

async fn check_previews(fixture: impl AsyncFn() -> Fixture, is_found: bool) {
    check_long_answer(&fixture().await).await;
    check_crash(&fixture().await).await;
    check_lost_answer(&fixture().await, is_found).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_shown_while_they_are_made_on_telegram() {
    check_previews(telegram, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_shown_while_they_are_made_on_slack() {
    check_previews(slack, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_shown_while_they_are_made_on_discord() {
    check_previews(discord, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_of_a_turn_without_an_answer_is_taken_back() {
    let (world, fixture) = (World::start().await, telegram().await);
    let setup = Setup {
        abandoned_after: Some(Duration::from_millis(500)),
        ..(fixture.setup)()
    };
    let replica = world.replica("a", setup);
    let answer = fixture.reply(1, "after all");
    shown(&world, &fixture, &answer, "the").await;
    eventually("it is deleted", async || {
        (fixture.changes)()
            .iter()
            .any(|change| change.starts_with("deleteMessage"))
    })
    .await;

    // The turn was only suspended: its answer is a message of its own.
    beat(&world, &answer, "after").await;
    world.publish(&answer).await;
    world.settled().await;
    assert_eq!((fixture.sent)(), ["the …", "after all"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_without_the_setting_shows_nothing_before_the_answer() {
    let (world, api) = (World::start().await, BotApi::start(&[]).await);
    let setup = Setup {
        telegram: BTreeMap::from([("bot".to_owned(), api.account("123456:AbC-dEf_1", ""))]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    let fixture = telegram().await;
    let answer = fixture.reply(1, "whole");
    for _ in 0..10 {
        beat(&world, &answer, "the").await;
        pause(Duration::from_millis(20)).await;
    }
    world.publish(&answer).await;
    world.settled().await;
    assert_eq!(api.texts(77), ["whole"]);
    replica.stop().await;
}
