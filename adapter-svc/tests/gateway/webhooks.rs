//! Real deliveries: the fixtures' cases, each under a source of its own, at its own time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use sha2::Sha256;
use shared::model::time::UnixMillis;
use shared::testing::fixture_text;

use crate::world::{World, secret};

#[derive(Deserialize)]
struct Case {
    id: String,
    scheme: String,
    secret: String,
    headers: BTreeMap<String, String>,
    body_b64: String,
    clock: Option<i64>,
    #[serde(default)]
    tolerance_s: Option<u32>,
    expect: String,
}

/// The cases beside the checkout; none where they are absent.
fn cases() -> Option<Vec<Case>> {
    let text = fixture_text("fixtures/webhooks/cases.jsonl")?;
    Some(
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| serde_json::from_str(line).expect("a case"))
            .collect(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn real_deliveries_are_accepted_or_rejected_as_they_say() {
    let Some(cases) = cases() else { return };

    let folder = tempfile::tempdir().expect("a folder");
    let mut toml = String::new();
    for (index, case) in cases.iter().enumerate() {
        let reference = secret(&folder, &format!("secret-{index}"), &case.secret);
        let tolerance = case.tolerance_s.unwrap_or(300);
        let scheme = &case.scheme;
        let written = writeln!(
            toml,
            "[webhook.case-{index}]\nscheme = \"{scheme}\"\nsecret = \"{reference}\"\ntolerance_s = {tolerance}"
        );

        written.expect("text");
    }

    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &toml).await;

    let mut accepted = 0;
    for (index, case) in cases.iter().enumerate() {
        if let Some(seconds) = case.clock {
            world.clock.set(UnixMillis::from_seconds(seconds));
        }

        let headers: Vec<(&str, &str)> = case.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let body = STANDARD.decode(&case.body_b64).expect("base64");
        let before = world.stored(accepted).await.len() as u64;

        let answer = world.post(&format!("/hooks/case-{index}"), &headers, body).await;
        if case.expect == "accept" {
            assert_eq!(answer.status, 200, "{}: {:?}", case.id, answer.body);
            accepted += 1;
            let stored = world.stored(accepted).await;
            assert_eq!(stored.last().expect("one").sequence, before + 1, "{}", case.id);
        } else {
            assert_eq!((answer.status, answer.code()), (401, "bad_signature"), "{}", case.id);
            assert_eq!(world.last().await, before, "{}", case.id);
        }
    }

    assert!(accepted > 0);

    world.stop().await;
}

#[tokio::test]
async fn a_delivery_that_comes_again_is_one_event() {
    let world = World::start("[webhook.open]\nscheme = \"unsigned\"\nmapping.id = \"/id\"").await;
    for _ in 0..3 {
        let answer = world
            .post(
                "/hooks/open",
                &[("content-type", "application/json")],
                r#"{"id":"d 1.*"}"#,
            )
            .await;

        assert_eq!(
            (answer.status, answer.body["id"].as_str()),
            (200, Some("webhook:open/d 1.*"))
        );
    }

    let answer = world.post("/hooks/open", &[], r#"{"id":"2"}"#).await;
    assert_eq!(answer.status, 200);

    let ids: Vec<String> = world.events(2).await.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(ids, ["webhook:open/d 1.*", "webhook:open/2"]);

    world.stop().await;
}

#[tokio::test]
async fn nobody_squats_the_id_of_a_signed_webhook() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = b"a key of twenty-four bytes, more";
    let reference = secret(&folder, "std", &format!("whsec_{}", STANDARD.encode(key)));
    let toml = format!("http.open = true\n[webhook.std]\nscheme = \"standard\"\nsecret = \"{reference}\"");
    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &toml).await;
    let squat = |channel: &str| {
        serde_json::json!({ "id": "webhook:std/msg_1", "timestamp": 5, "channel": channel, "content": "squat" })
            .to_string()
    };

    let json = [("content-type", "application/json")];
    let by_token = world.post("/v1/events", &json, squat("crm")).await;
    assert_eq!(by_token.body["ids"][0], "crm:webhook:std/msg_1");

    let open = world.post_open("/v1/events", &json, squat("signal")).await;
    assert_eq!(open.body["ids"][0], "open:webhook:std/msg_1");
    assert_eq!(world.post_open("/v1/events", &json, squat("webhook")).await.status, 400);

    let body = r#"{"real":1}"#;
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key");
    mac.update(format!("msg_1.1700000000.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));

    let headers = [
        ("content-type", "application/json"),
        ("webhook-id", "msg_1"),
        ("webhook-timestamp", "1700000000"),
        ("webhook-signature", signature.as_str()),
    ];

    let real = world.post("/hooks/std", &headers, body).await;
    assert_eq!(
        (real.status, real.body["ids"][0].as_str()),
        (200, Some("webhook:std/msg_1"))
    );

    let events = world.events(3).await;
    // Of three conversations any may be stored first.
    let stored = events.iter().find(|event| event.id.as_str() == "webhook:std/msg_1");
    assert_eq!(stored.expect("the signed one").metadata["payload"]["real"], 1);

    world.stop().await;
}

/// A source at which `from` is mapped to what the body says, as the one who set it up might name the owner there.
#[tokio::test]
async fn a_webhook_that_names_the_owner_speaks_for_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let reference = secret(&folder, "tg", "a secret token of telegram");
    let source = |name: &str, more: &str| {
        format!("[webhook.{name}]\nscheme = \"telegram\"\nsecret = \"{reference}\"\nmapping.from = \"/from\"\n{more}")
    };
    let toml = format!(
        "{}\n{}",
        source("plain", ""),
        source("bridge", "persons = true\nchannel = \"signal\"")
    );

    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &toml).await;

    let headers = [
        ("content-type", "application/json"),
        ("x-telegram-bot-api-secret-token", "a secret token of telegram"),
    ];
    for source in ["plain", "bridge"] {
        let answer = world
            .post(
                &format!("/hooks/{source}"),
                &headers,
                r#"{"update_id":1,"from":"4711"}"#,
            )
            .await;

        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }

    let events = world.events(2).await;
    assert_eq!(
        (events[0].channel.as_str(), events[0].from.id.as_str()),
        ("webhook", "4711")
    );
    assert!(events[0].speaks_for.is_empty(), "{:?}", events[0]);
    assert_eq!(events[0].origin.to_string(), "verified:webhook/plain");
    assert_eq!(
        (events[1].channel.as_str(), events[1].speaks_for.as_slice()),
        ("signal", &["*".to_owned()][..])
    );

    world.stop().await;
}

#[tokio::test]
async fn what_cannot_be_an_event_is_refused_with_its_place() {
    let world = World::start("[webhook.open]\nscheme = \"unsigned\"").await;
    let (kind, text) = ("application/json", "text/plain");
    for (path, kind, body, expected) in [
        ("/hooks/none", kind, &b"{}"[..], (404, "unknown_source")),
        ("/nowhere", kind, b"{}", (404, "unknown_path")),
        ("/hooks/open", kind, b"{\"a\":", (400, "malformed")),
        ("/hooks/open", kind, b"{\"a\":\"\xff\"}", (400, "malformed")),
        ("/hooks/open", text, b"a\0b", (400, "malformed")),
    ] {
        let answer = world.post(path, &[("content-type", kind)], body.to_vec()).await;
        assert_eq!((answer.status, answer.code()), expected, "{path} {body:?}");
        let error = &answer.body["error"];
        assert!(error["message"].is_string() && error["where"].is_string(), "{error}");
    }

    let large = world.post("/hooks/open", &[], vec![b' '; 1024 * 1024 + 1]).await;
    assert_eq!((large.status, large.code()), (413, "too_large"));
    assert_eq!(world.last().await, 0);

    world.stop().await;
}
