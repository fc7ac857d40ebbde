//! Real deliveries: the fixtures' cases, each under a source of its own, at its own time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use shared::model::time::UnixMillis;

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
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/webhooks/cases.jsonl");
    let text = std::fs::read_to_string(path).ok()?;
    Some(
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| serde_json::from_str(line).expect("a case"))
            .collect(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn real_deliveries_are_accepted_or_rejected_as_they_say() {
    let Some(cases) = cases() else {
        println!("skipped: fixtures absent");
        return;
    };
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
