//! Slack's payloads over HTTP: repetitions, other orders, forgeries, and an account that is refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use shared::model::event::{BACKFILLED, Event, UNPAIRED};
use shared::model::time::UnixMillis;
use shared::testing::eventually;

use crate::pairing::{code, grant, replies};
use crate::web_api::{Delivery, SECRET, WebApi};
use crate::world::{Replica, START, World};

const MAIN: &str = "xoxb-main-secret";
const OTHER: &str = "xoxb-other-secret";

/// The content of `channels.yaml` for the stand-in; `keys` are those of account `main`.
pub(crate) fn channels(world: &World, api: &WebApi, keys: &str) -> String {
    let (main, other, secret, base) = (world.secret(MAIN), world.secret(OTHER), world.secret(SECRET), &api.base);
    let common = format!("signing_secret: '{secret}', base_url: '{base}'");
    format!(
        "slack: {{accounts: {{main: {{token: '{main}', {common}, {keys}}}, \
         other: {{token: '{other}', {common}, direct: open}}}}}}"
    )
}

pub(crate) fn stamp(number: i64, at: UnixMillis) -> String {
    format!("{}.{number:06}", at.0 / 1_000)
}

/// The message `number` of user 5, written at `at` in `channel`, with `keys`.
pub(crate) fn message(number: i64, at: UnixMillis, channel: &str, keys: &Value) -> Value {
    let mut message = json!({"type": "message", "channel": channel, "user": "U5", "text": format!("message {number}"),
                             "ts": stamp(number, at), "event_ts": stamp(number, at)});
    for (key, value) in keys.as_object().expect("an object") {
        message[key] = value.clone();
    }
    message
}

fn url(replica: &Replica, account: &str) -> String {
    format!("{}/slack/{account}", replica.base())
}

/// Posts `event` to account `main`, until it is taken: at most as often as Slack.
pub(crate) async fn post(replica: &Replica, event: &Value) {
    let delivery = Delivery::event(event, START);
    for number in 0..4 {
        if delivery.post(&url(replica, "main"), number).await.0 == 200 {
            return;
        }
    }
    panic!("Slack has given up: {event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_other_orders_and_mentions_are_one_event_each() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica(
            "adapter-svc-0",
            &channels(&world, &api, "direct: open, groups: {'*': {}}"),
        )
        .await;
    replica.says("slack/main", "receiving as @nexus in Acme").await;

    // Each message as such and as a mention, three times, the later ones first.
    let mut posted = Vec::new();
    for number in (1..=20).rev() {
        let plain = message(
            number,
            START,
            "C1",
            &json!({"text": "<@U7> hi", "channel_type": "channel"}),
        );
        let mut mention = plain.clone();
        mention["type"] = json!("app_mention");
        mention.as_object_mut().expect("an object").remove("channel_type");
        posted.extend(if number % 2 == 0 {
            [plain, mention]
        } else {
            [mention, plain]
        });
    }
    for round in 0..3 {
        for event in posted.iter().skip(round) {
            assert_eq!(
                Delivery::event(event, START)
                    .post(&url(&replica, "main"), round)
                    .await
                    .0,
                200
            );
        }
    }

    let events = world.stored(20).await;
    let ids: BTreeSet<String> = events.iter().map(|event| event.id.to_string()).collect();
    let expected: BTreeSet<String> = (1..=20).map(|n| format!("slack:main/C1/{}", stamp(n, START))).collect();
    assert_eq!(ids, expected);
    assert!(
        events
            .iter()
            .all(|event| event.mention.is_some_and(|mention| mention.me))
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_confirmed_before_the_stream_has_it() {
    let (mut world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica_with(
            "adapter-svc-0",
            &channels(&world, &api, "direct: open"),
            "accept = \"stream\"",
        )
        .await;
    replica.says("slack/main", "receiving").await;

    // The acks of JetStream do not come: Slack is told to post it again.
    world.nats.kill9();
    let delivery = Delivery::event(&message(1, START, "D1", &json!({})), START);
    assert_eq!(delivery.post(&url(&replica, "main"), 0).await.0, 503);

    world.nats.restart().await;
    eventually("a later post is taken", async || {
        delivery.post(&url(&replica, "main"), 1).await.0 == 200
    })
    .await;
    let events = world.stored(1).await;
    assert_eq!(events[0].id.as_str(), format!("slack:main/D1/{}", stamp(1, START)));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forgeries_old_posts_and_other_workspaces_are_no_events() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, "direct: open"))
        .await;
    replica.says("slack/main", "receiving").await;
    let event = message(1, START, "D1", &json!({}));
    let sound = Delivery::event(&event, START);

    let forged = Delivery {
        secret: "another secret of Slack".to_owned(),
        ..sound.clone()
    };
    let old = Delivery::event(&event, START.plus(-301_000));
    let early = Delivery::event(&event, START.plus(301_000));
    for (delivery, account, status) in [
        (&forged, "main", 401),
        (&old, "main", 401),
        (&early, "main", 401),
        (&sound, "nobody", 404),
    ] {
        let (found, body) = delivery.post(&url(&replica, account), 0).await;
        assert_eq!(found, status, "{body}");
        assert!(!body.contains("secret"), "{body}");
    }

    // Another workspace in which the app is installed, and what is no event at all: they are not to come again.
    let mut foreign = serde_json::from_str::<Value>(&sound.body).expect("JSON");
    foreign["authorizations"] = json!([{"team_id": "T2"}]);
    for payload in [
        foreign,
        json!({"type": "view_submission", "team": {"id": "T1"}}),
        json!({"type": "event_callback"}),
    ] {
        assert_eq!(
            Delivery::json(&payload, START).post(&url(&replica, "main"), 0).await.0,
            200,
            "{payload}"
        );
    }

    let verification = json!({"type": "url_verification", "challenge": "3eZbrw1aB", "token": "x"});
    let (status, body) = Delivery::json(&verification, START)
        .post(&url(&replica, "main"), 0)
        .await;
    assert_eq!(
        (status, serde_json::from_str(&body).expect("JSON")),
        (200, json!({"challenge": "3eZbrw1aB"}))
    );

    post(&replica, &event).await;
    assert_eq!(world.stored(1).await[0].content, "message 1");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_a_dead_letter_before_it_is_answered() {
    let (mut world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, "allow: [U5]"))
        .await;
    replica.says("slack/main", "receiving").await;

    // No event, a message without its id, and a body that is no JSON. What the app wrote itself is not kept.
    let own = json!({"bot_id": "B7", "ts": stamp(9, START), "text": "approve K7Q2-M9PX"});
    let no_stamp = json!({"type": "message", "channel": "D1", "user": "U5", "text": "no stamp", "root": own});
    let broken = Delivery {
        body: r#"{"type": "event_callback", "text": "approve K7Q2-M9PX""#.to_owned(),
        ..Delivery::json(&json!({}), START)
    };
    for delivery in [
        Delivery::json(
            &json!({"type": "event_callback", "team_id": "T1", "note": "no event"}),
            START,
        ),
        Delivery::event(&no_stamp, START),
        broken,
        Delivery::event(&message(1, START, "D1", &json!({})), START),
    ] {
        let (status, body) = delivery.post(&url(&replica, "main"), 0).await;
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(world.stored(1).await[0].content, "message 1");

    let letters = world.letters().await;
    assert_eq!(letters.len(), 3, "{letters:#?}");
    for (letter, text) in letters.iter().zip(["no event", "no stamp", "left_out_bytes"]) {
        let payload = String::from_utf8(letter.payload_bytes().expect("bytes")).expect("text");
        assert!(payload.contains(text) && !payload.contains("K7Q2"), "{payload}");
        assert!(letter.detail.starts_with("slack/main: malformed payload"), "{letter:?}");
    }

    // Without the bus there is no letter: Slack is told to post it again.
    world.nats.kill9();
    let later = Delivery::json(&json!({"type": "event_callback"}), START);
    assert_eq!(later.post(&url(&replica, "main"), 0).await.0, 503);
    world.nats.restart().await;
    eventually("a later post is taken", async || {
        later.post(&url(&replica, "main"), 1).await.0 == 200
    })
    .await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_stops_its_account_alone_and_is_said() {
    let (world, api) = (World::start().await, WebApi::start().await);
    api.set(MAIN, Some((200, json!({"ok": false, "error": "invalid_auth"}))));
    api.set(OTHER, Some((429, json!({"ok": false, "error": "ratelimited"}))));
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, "direct: open"))
        .await;
    replica
        .says("slack/main", "stopped: the token is not accepted (invalid_auth)")
        .await;
    replica.says("slack/other", "retry in 1 s").await;
    let parts = replica.health.readiness();
    assert!(parts.ready && parts.parts["slack/main"].degraded, "{parts:?}");

    // Nobody knows whose message it is: Slack keeps it.
    let delivery = Delivery::event(&message(1, START, "D1", &json!({})), START);
    assert_eq!(delivery.post(&url(&replica, "main"), 0).await.0, 503);

    api.set(OTHER, None);
    replica.says("slack/other", "receiving").await;
    assert_eq!(delivery.post(&url(&replica, "other"), 0).await.0, 200);

    // Rights that were given back are asked for at the next start, and those that are taken at once.
    api.set(OTHER, Some((200, json!({"ok": false, "error": "token_revoked"}))));
    let calls = api.calls();
    let revoked = json!({"type": "tokens_revoked", "tokens": {"bot": ["U7"]}});
    assert_eq!(
        Delivery::event(&revoked, START)
            .post(&url(&replica, "other"), 0)
            .await
            .0,
        200
    );
    replica
        .says("slack/other", "stopped: the token is not accepted (token_revoked)")
        .await;
    assert!(api.calls() > calls);
    assert_eq!(world.stored(1).await[0].account(), "other");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_for_the_app_is_withheld_and_its_own_messages_are_no_events() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let keys = "allow: [U5], groups: {C1: {}, C2: {require_mention: false, reply_in_thread: false}}";
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, keys)).await;
    replica.says("slack/main", "receiving").await;

    let old = START.plus(-2 * 24 * 3_600_000);
    let own = json!({"bot_id": "B7", "app_id": "A1", "user": "U7"});
    let change = |own: &Value| json!({"type": "message", "subtype": "message_changed", "channel": "C1", "ts": stamp(99, START), "message": own});
    let all = [
        message(1, START, "D1", &json!({})),
        message(2, START, "D2", &json!({"user": "U6"})),
        message(3, START, "C1", &json!({})),
        message(4, START, "C1", &json!({"text": "<@U7> hi"})),
        message(5, START, "C1", &json!({"bot_id": "B8", "text": "<@U7> hi"})),
        message(6, START, "C2", &json!({})),
        message(7, START, "C3", &json!({"text": "<@U7> hi"})),
        message(8, old, "D1", &json!({})),
        // The app's own messages come back: the same, under another id, edited.
        message(9, START, "C1", &own),
        message(10, START, "C1", &own),
        change(&message(9, START, "C1", &own)),
    ];
    for event in &all {
        post(&replica, event).await;
    }

    let events = world.stored(8).await;
    let check = |number: i64, tags: &[&str], direction: &str, thread: Option<String>| {
        let event = events
            .iter()
            .find(|event| event.source_id.ends_with(&format!(".{number:06}")));
        let event: &Event = event.unwrap_or_else(|| panic!("message {number}"));
        assert_eq!(event.tags, tags, "{number}");
        assert_eq!(
            (event.direction.name(), &event.thread_id),
            (direction, &thread),
            "{number}"
        );
    };
    check(1, &[], "received", None);
    check(2, &["unpaired"], "received", None);
    check(3, &[], "observed", None);
    check(4, &[], "received", Some(stamp(4, START)));
    check(5, &["from_bot"], "received", Some(stamp(5, START)));
    check(6, &[], "received", None);
    check(7, &["unlisted"], "received", None);
    check(8, &[BACKFILLED], "received", None);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn presses_and_commands_come_as_forms() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica(
            "adapter-svc-0",
            &channels(&world, &api, "direct: open, groups: {'*': {}}"),
        )
        .await;
    replica.says("slack/main", "receiving").await;

    let press = json!({"type": "block_actions", "team": {"id": "T1"}, "user": {"id": "U5"}, "channel": {"id": "D1"},
                       "container": {"message_ts": stamp(1, START), "channel_id": "D1"}, "token": "verification",
                       "actions": [{"type": "button", "value": "yes", "action_ts": stamp(2, START)}]});
    let press = Delivery::form(&[("payload", &press.to_string())], START);
    let command = [
        ("command", "/ask"),
        ("text", "why?"),
        ("team_id", "T1"),
        ("channel_id", "C1"),
        ("user_id", "U5"),
        ("trigger_id", "1.2.ab"),
    ];
    let command = Delivery::form(&command, START);
    for delivery in [&press, &command, &press] {
        assert_eq!(delivery.post(&url(&replica, "main"), 0).await, (200, String::new()));
    }

    let events = world.stored(2).await;
    let of = |kind: &str| {
        events
            .iter()
            .find(|event| event.metadata["event_type"] == kind)
            .expect("an event")
    };
    let target = format!("slack:main/D1/{}", stamp(1, START));
    assert_eq!(
        (
            of("block_actions").target.as_deref(),
            of("block_actions").content.as_str()
        ),
        (Some(target.as_str()), "yes")
    );
    assert_eq!(of("command").content, "/ask why?");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_sent_one_code_and_writes_once_paired() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, "allow: [U9]"))
        .await;
    replica.says("slack/main", "receiving").await;

    let first = Delivery::event(&message(1, START, "D1", &json!({})), START);
    for number in 0..3 {
        assert_eq!(first.post(&url(&replica, "main"), number).await.0, 200);
    }
    assert_eq!(world.stored(1).await[0].tags, [UNPAIRED]);
    let told = replies(&world).await;
    assert_eq!(told.len(), 1, "one code: {told:?}");
    assert_eq!(told[0].delivery_context.peer_id.as_deref(), Some("D1"));

    let answer = grant(&world, "slack", &code(&told[0])).await.expect("granted");
    assert!(answer.changed);
    post(&replica, &message(2, START, "D1", &json!({}))).await;
    assert_eq!(world.stored(2).await[1].tags, Vec::<String>::new());
    replica.stop().await;

    // An allow list sends none, and knows no pairings.
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, "direct: allowlist"))
        .await;
    replica.says("slack/main", "receiving").await;
    post(&replica, &message(3, START, "D1", &json!({}))).await;
    post(&replica, &message(4, START, "D2", &json!({"user": "U6"}))).await;
    let events = world.stored(4).await;
    assert!(
        events.iter().skip(2).all(|event| event.tags == [UNPAIRED]),
        "{events:#?}"
    );
    assert_eq!(replies(&world).await.len(), 1);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_bus_a_stranger_is_to_be_posted_again_and_others_are_taken() {
    let (mut world, api) = (World::start().await, WebApi::start().await);
    let keys = "allow: [U9], groups: {C1: {}}";
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, keys)).await;
    replica.says("slack/main", "receiving").await;

    // User 8 was paired and has just written; user 6X was paired and has not.
    for (number, sender) in [(10, "U8"), (11, "U6X")] {
        let first = message(number, START, &format!("D{number}"), &json!({"user": sender}));
        post(&replica, &first).await;
        let answer = grant(&world, "slack", &code(replies(&world).await.last().expect("a code")))
            .await
            .expect("granted");
        assert!(answer.changed);
    }
    post(&replica, &message(12, START, "D10", &json!({"user": "U8"}))).await;
    world.stored(3).await;
    world.nats.kill9();

    let silent = Delivery::event(&message(13, START, "D11", &json!({"user": "U6X"})), START);
    assert_eq!(silent.post(&url(&replica, "main"), 0).await.0, 503);
    let known = Delivery::event(&message(14, START, "D10", &json!({"user": "U8"})), START);
    assert_eq!(known.post(&url(&replica, "main"), 0).await.0, 200);

    let stranger = Delivery::event(&message(1, START, "D1", &json!({})), START);
    let (status, body) = stranger.post(&url(&replica, "main"), 0).await;
    assert!(status == 503 && body.contains("unknown_pairings"), "{status} {body}");
    for event in [
        message(2, START, "C1", &json!({"text": "<@U7> hi"})),
        message(3, START, "D9", &json!({"user": "U9"})),
    ] {
        let delivery = Delivery::event(&event, START);
        assert_eq!(delivery.post(&url(&replica, "main"), 0).await.0, 200, "{event}");
    }

    world.nats.restart().await;
    eventually("a later post is taken", async || {
        stranger.post(&url(&replica, "main"), 1).await.0 == 200
    })
    .await;
    assert_eq!(silent.post(&url(&replica, "main"), 1).await.0, 200);
    let events = world.stored(8).await;
    for number in [12, 13, 14] {
        let ends = format!(".{number:06}");
        let event = events.iter().find(|event| event.source_id.ends_with(&ends));
        assert_eq!(event.expect("stored").tags, Vec::<String>::new(), "{number}");
    }
    assert_eq!(replies(&world).await.len(), 3);
    replica.stop().await;
}
