//! What conversations on Slack kept, read on an operator's order; and the orders themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::bus::{Bus, RequestError};
use shared::model::event::{BACKFILLED, Event, UNPAIRED};
use shared::model::time::UnixMillis;
use shared::testing::{eventually, eventually_some};
use shared::wire::headers::Headers;
use shared::wire::operator::backfill::{
    BackfillChange, BackfillJob, BackfillList, BackfillRecord, BackfillState, ListBackfills, ShowBackfill,
    StartBackfill, StopBackfill,
};
use ulid::Ulid;

use crate::bot_api::BotApi;
use crate::conversation_shelf::ConversationShelf;
use crate::web_api::{Delivery, SECRET, WebApi};
use crate::world::{START, World};

const TOKEN: &str = "xoxb-main-secret";
/// Section of replicas that need no pace.
pub(crate) const FAST: &str = "backfill_calls_per_minute = 60000";
/// A day, in milliseconds.
pub(crate) const DAY_MS: i64 = 24 * 3_600_000;

/// The content of `channels.yaml` for the stand-in; `keys` are those of account `main`.
fn channels(world: &World, api: &WebApi, keys: &str) -> String {
    let (main, secret, base) = (world.secret(TOKEN), world.secret(SECRET), &api.base);
    format!(
        "slack: {{accounts: {{main: {{token: '{main}', signing_secret: '{secret}', base_url: '{base}', {keys}}}}}}}"
    )
}

const OPEN: &str = "direct: open, groups: {'*': {require_mention: false}}";

/// The stamp of the message `number` behind the time `at`.
pub(crate) fn stamp(number: usize, at: UnixMillis) -> String {
    format!("{}.{number:06}", at.0 / 1_000)
}

/// The message `ts` of user 5, as a history has it, with `keys`.
pub(crate) fn message(ts: &str, keys: &Value) -> Value {
    let mut message = json!({"type": "message", "user": "U5", "text": format!("message {ts}"), "ts": ts, "team": "T1"});
    for (key, value) in keys.as_object().expect("an object") {
        message[key] = value.clone();
    }
    message
}

pub(crate) async fn ask<A: DeserializeOwned>(
    bus: &Bus,
    endpoint: &str,
    question: &impl Serialize,
) -> Result<A, RequestError> {
    let subject = format!("nexus.svc.backfill.{endpoint}");
    // A replica that has just started answers a moment later.
    eventually_some("a replica answers", async || {
        let asked = bus.request(&subject, Headers::new(), question, Duration::from_secs(10));
        Some(asked.await).filter(|answer| !matches!(answer, Err(RequestError::NoResponder { .. })))
    })
    .await
}

/// An order about account `main` of `channel`.
pub(crate) fn order(channel: &str, since: UnixMillis) -> StartBackfill {
    StartBackfill {
        channel: channel.to_owned(),
        account: "main".to_owned(),
        since,
        until: None,
        conversations: Vec::new(),
        by: "anna".to_owned(),
    }
}

/// The job of account `main` of `channel`; `None` while no replica answers.
async fn find(bus: &Bus, channel: &str) -> Option<BackfillJob> {
    let question = ShowBackfill {
        channel: channel.to_owned(),
        account: "main".to_owned(),
    };
    ask(bus, "show", &question).await.ok()
}

/// Waits until the job of account `main` of `channel` has ended.
pub(crate) async fn ended(bus: &Bus, channel: &str) -> BackfillJob {
    let over = async || find(bus, channel).await.filter(|job| !job.is_running());
    eventually_some("the backfill ends", over).await
}

/// The status and the text of a refusal.
fn refused<A: std::fmt::Debug>(asked: Result<A, RequestError>) -> (u16, String) {
    match asked {
        Err(RequestError::Service { code, text, .. }) => (code, text),
        other => panic!("expected a refusal, not {other:?}"),
    }
}

/// The ids of `events` in the conversation `peer`, in their order.
pub(crate) fn ids_in(events: &[Event], peer: &str) -> Vec<String> {
    let of_peer = events.iter().filter(|event| event.peer.id == peer);
    of_peer.map(|event| event.id.to_string()).collect()
}

/// Messages of forty days since `since`, more than one page each, with answers to two of them. Returns their stamps, those of
/// the answers to the fifth and to the twenty-first, and that of an answer that is shown in the conversation too.
fn keep_forty_days(shelf: &ConversationShelf, since: UnixMillis) -> (Vec<String>, Vec<Vec<String>>, String) {
    shelf.set_page(7);
    let (mut expected, mut threads) = (Vec::new(), Vec::new());
    for number in 1..=40_usize {
        let ts = stamp(
            number,
            since.plus(DAY_MS * i64::try_from(number).expect("small") - 3_600_000),
        );
        shelf.add("C1", &message(&ts, &json!({})));
        shelf.add("D1", &message(&ts, &json!({})));
        expected.push(ts);
    }
    for first in [4, 20] {
        let answers: Vec<String> = (101..=115)
            .map(|n| format!("{}{n:03}", &expected[first][..14]))
            .collect();
        for ts in &answers {
            shelf.add("C1", &message(ts, &json!({"thread_ts": expected[first]})));
        }
        threads.push(answers);
    }
    // The account's own message, and an answer that is shown in the conversation too.
    shelf.add(
        "C1",
        &message(&stamp(999, since.plus(DAY_MS)), &json!({"user": "U7", "bot_id": "B7"})),
    );
    let shown = format!("{}900", &expected[20][..14]);
    let shared_keys = json!({"thread_ts": expected[20], "subtype": "thread_broadcast"});
    shelf.add("C1", &message(&shown, &shared_keys));
    // Before the time, and after it.
    shelf.add("C1", &message(&stamp(1, since.plus(-DAY_MS)), &json!({})));
    shelf.add("C1", &message(&stamp(1, START.plus(60_000)), &json!({})));
    // The app was removed from one, and may not see which private ones there are.
    shelf.add("C2", &message(&expected[0], &json!({})));
    shelf.close("C2");
    shelf.forbid("private_channel");
    (expected, threads, shown)
}

/// Checks the order of the conversation C1, whose messages are `expected`, and of its `threads`.
fn check_threads(events: &[Event], expected: &[String], threads: &[Vec<String>]) {
    // In C1 the two that were received come first; the others, and each thread, are in order.
    let in_c1 = ids_in(events, "C1");
    let place = |ts: &str| in_c1.iter().position(|id| *id == format!("slack:main/C1/{ts}"));
    assert!(expected[..38].iter().map(|ts| place(ts).expect("stored")).is_sorted());
    for (answers, first) in threads.iter().zip([4, 20]) {
        let places: Vec<usize> = answers.iter().map(|ts| place(ts).expect("stored")).collect();
        assert!(places.is_sorted() && places[0] > place(&expected[first]).expect("stored"));
        let answer = events
            .iter()
            .find(|event| event.id.to_string().ends_with(&format!("C1/{}", answers[0])));
        assert_eq!(
            answer.and_then(|event| event.thread_id.as_deref()),
            Some(expected[first].as_str())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_stored_once_and_in_order_beside_what_was_received() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica_with("adapter-svc-0", &channels(&world, &api, OPEN), FAST)
        .await;
    replica.says("slack/main", "receiving as @nexus in Acme").await;

    let (since, shelf) = (UnixMillis(START.0 - 40 * DAY_MS), &api.conversations);
    let (expected, threads, shown) = keep_forty_days(shelf, since);

    // The newest ones were received when they were written.
    for ts in &expected[38..] {
        let mut event = message(ts, &json!({"channel": "C1", "event_ts": ts}));
        event["channel_type"] = json!("channel");
        let (delivery, url) = (Delivery::event(&event, START), format!("{}/slack/main", replica.base()));
        assert_eq!(delivery.post(&url, 0).await.0, 200);
    }
    world.stored(2).await;

    let begun: BackfillJob = ask(&world.bus, "start", &order("slack", since)).await.expect("begun");
    assert_eq!((begun.state, begun.until), (BackfillState::Running, START));
    let job = ended(&world.bus, "slack").await;
    assert_eq!(
        (job.state, job.reason.as_deref()),
        (BackfillState::Done, None),
        "{job:?}"
    );
    assert_eq!((job.found, job.finished), (Some(3), 3), "{job:?}");
    assert_eq!((job.events, job.passed_over), (40 + 40 + 30 + 1, 1), "{job:?}");
    let skipped: Vec<(&str, &str)> = job
        .skipped
        .iter()
        .map(|one| (one.conversation.as_str(), one.reason.as_str()))
        .collect();
    assert_eq!(
        skipped,
        [("private_channel", "missing_scope"), ("C2", "not_in_channel")]
    );

    let events = world.stored(111).await;
    let unique: BTreeSet<String> = events.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(unique.len(), 111, "each once");
    let of = |ts: &String| format!("slack:main/D1/{ts}");
    assert_eq!(ids_in(&events, "D1"), expected.iter().map(of).collect::<Vec<_>>());

    check_threads(&events, &expected, &threads);
    let is_shown = |event: &Event| event.id.to_string() == format!("slack:main/C1/{shown}");
    assert!(events.iter().any(is_shown));

    // What is older than a day fires nothing.
    for event in &events {
        let is_old = START.since(event.timestamp) > DAY_MS;
        assert_eq!(event.tags.iter().any(|tag| tag == BACKFILLED), is_old, "{event:?}");
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_with_many_messages_is_read_in_order_and_with_few_calls() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica_with("adapter-svc-0", &channels(&world, &api, OPEN), FAST)
        .await;
    replica.says("slack/main", "receiving as @nexus in Acme").await;

    // A month with little, and an hour with much.
    let since = UnixMillis(START.0 - 30 * DAY_MS);
    let mut expected = Vec::new();
    for number in 0..2_400_usize {
        let at = if number < 100 {
            since.plus(6 * 3_600_000 * i64::try_from(number).expect("small"))
        } else {
            START.plus(-3_600_000 + 1_000 * i64::try_from(number - 100).expect("small"))
        };
        let ts = stamp(number, at);
        api.conversations.add("C1", &message(&ts, &json!({})));
        expected.push(format!("slack:main/C1/{ts}"));
    }
    // One that was about to be read is deleted while others are read.
    let gone = expected.remove(1_700);
    let ts = gone.rsplit('/').next().expect("a stamp");
    api.conversations.delete_after(3, "C1", ts);

    let _: BackfillJob = ask(&world.bus, "start", &order("slack", since)).await.expect("begun");
    let job = ended(&world.bus, "slack").await;
    assert_eq!((job.state, job.events), (BackfillState::Done, 2_399), "{job:?}");
    let events = world.stored(2_399).await;
    assert_eq!(ids_in(&events, "C1"), expected);
    let pages = api.conversations.pages();
    assert!(pages <= 30, "{pages} pages of 200 for 2,400 messages");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_and_costs_nothing_and_two_replicas_ask_once() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let text = channels(&world, &api, OPEN);
    let one = world.replica_with("adapter-svc-0", &text, FAST).await;
    let other = world.replica_with("adapter-svc-1", &text, FAST).await;

    let since = UnixMillis(START.0 - 10 * DAY_MS);
    api.conversations.set_page(10);
    let mut expected = Vec::new();
    for number in 1..=60_usize {
        let ts = stamp(number, since.plus(1_000));
        api.conversations.add("C1", &message(&ts, &json!({})));
        expected.push(format!("slack:main/C1/{ts}"));
    }
    // Calls are too many, again and again.
    api.conversations.limit(4);

    let _: BackfillJob = ask(&world.bus, "start", &order("slack", since)).await.expect("begun");
    eventually("the job says what it waits for", async || {
        let reason = find(&world.bus, "slack").await.and_then(|job| job.reason);
        reason.is_some_and(|reason| reason.contains("too many calls"))
    })
    .await;
    let job = ended(&world.bus, "slack").await;
    assert_eq!(
        (job.state, job.reason.as_deref(), job.skipped_count),
        (BackfillState::Done, None, 0)
    );
    assert_eq!(ids_in(&world.stored(60).await, "C1"), expected);
    assert_eq!(api.conversations.early(), 0, "called before the time that Slack named");

    // Whoever did not hold the lease has asked for nothing.
    let calls = api.conversations.calls();
    let distinct: BTreeSet<String> = calls.iter().map(|call| format!("{call:?}")).collect();
    assert_eq!(distinct.len(), calls.len(), "{calls:#?}");
    assert!(["adapter-svc-0", "adapter-svc-1"].contains(&job.read_by.as_deref().expect("read")));

    // Once more: everything is there.
    let again: BackfillJob = ask(&world.bus, "start", &order("slack", since)).await.expect("begun");
    assert_ne!(again.id, job.id);
    assert_eq!(ended(&world.bus, "slack").await.events, 60);
    assert_eq!(world.events().await.len(), 60, "no event twice");
    one.stop().await;
    other.stop().await;
}

/// What `AUDIT` has of account `main` of Slack, oldest first.
async fn recorded(bus: &Bus) -> Vec<(BackfillChange, String, Ulid)> {
    let records = bus
        .read_history("AUDIT", "nexus.audit.backfill.slack.main", 1, 100)
        .await;
    let records = records.expect("read");
    let decoded = records
        .iter()
        .map(|stored| stored.decode::<BackfillRecord>().expect("a record"));
    decoded.map(|record| (record.what, record.by, record.job)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_checked_recorded_and_refused_with_their_reasons() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let bot_api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let telegram = format!(
        "telegram: {{accounts: {{main: {{token: '{}', base_url: '{}', receive: none}}}}}}",
        world.secret(crate::telegram::MAIN),
        bot_api.base
    );
    let text = format!("{}\n{telegram}\n", channels(&world, &api, OPEN));
    // As slow as it may be, so that a job is still read when it is stopped.
    let replica = world
        .replica_with("adapter-svc-0", &text, "backfill_calls_per_minute = 1")
        .await;
    api.conversations
        .add("C1", &message(&stamp(1, START.plus(-DAY_MS)), &json!({})));
    let since = UnixMillis(START.0 - 2 * DAY_MS);

    let start = async |order: &StartBackfill| ask::<BackfillJob>(&world.bus, "start", order).await;
    let (code, text) = refused(start(&order("telegram", since)).await);
    assert!(
        code == 422 && text.contains("no call by which a bot reads earlier messages"),
        "{code} {text}"
    );
    let mut unknown = order("slack", since);
    unknown.account = "nobody".to_owned();
    let (code, text) = refused(start(&unknown).await);
    assert!(code == 404 && text.contains("slack/nobody"), "{code} {text}");
    let mut wrong = order("slack", since);
    wrong.conversations = vec!["#general".to_owned()];
    assert_eq!(refused(start(&wrong).await).0, 400);
    assert_eq!(refused(start(&order("slack", START.plus(1))).await).0, 400);
    let nameless = StartBackfill {
        by: String::new(),
        ..order("slack", since)
    };
    assert_eq!(refused(start(&nameless).await).0, 400);
    let question = ShowBackfill {
        channel: "slack".to_owned(),
        account: "main".to_owned(),
    };
    assert_eq!(refused(ask::<BackfillJob>(&world.bus, "show", &question).await).0, 404);

    // The same order again is the same job; another one waits for its end.
    let job = start(&order("slack", since)).await.expect("begun");
    assert_eq!(start(&order("slack", since)).await.expect("known").id, job.id);
    assert_eq!(refused(start(&order("slack", START)).await).0, 409);
    let list: BackfillList = ask(&world.bus, "list", &ListBackfills {}).await.expect("listed");
    assert_eq!(list.jobs.iter().map(|one| one.id).collect::<Vec<_>>(), [job.id]);

    let stop = StopBackfill {
        channel: "slack".to_owned(),
        account: "main".to_owned(),
        by: "bob".to_owned(),
    };
    for _ in 0..2 {
        let stopped: BackfillJob = ask(&world.bus, "stop", &stop).await.expect("stopped");
        assert_eq!((stopped.id, stopped.state), (job.id, BackfillState::Stopped));
    }
    let started = (BackfillChange::Started, "anna".to_owned(), job.id);
    let stopped = (BackfillChange::Stopped, "bob".to_owned(), job.id);
    assert_eq!(recorded(&world.bus).await, [started, stopped]);

    // It is read no more, and another one begins.
    let next = start(&order("slack", START)).await.expect("begun");
    assert_ne!(next.id, job.id);
    replica.stop().await;
    assert_eq!(world.events().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_no_code_for_what_was_written_before() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica_with("adapter-svc-0", &channels(&world, &api, "direct: pairing"), FAST)
        .await;
    let since = UnixMillis(START.0 - DAY_MS / 2);
    for number in 1..=3_usize {
        api.conversations
            .add("D1", &message(&stamp(number, START.plus(-60_000)), &json!({})));
    }
    let named = StartBackfill {
        conversations: vec!["D1".to_owned()],
        ..order("slack", since)
    };
    let _: BackfillJob = ask(&world.bus, "start", &named).await.expect("begun");
    assert_eq!(ended(&world.bus, "slack").await.events, 3);
    let events = world.stored(3).await;
    assert!(events.iter().all(|event| event.tags == [UNPAIRED]), "{events:?}");
    assert_eq!(crate::pairing::replies(&world).await.len(), 0);
    replica.stop().await;
}
