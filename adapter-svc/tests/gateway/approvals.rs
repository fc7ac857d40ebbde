//! Signed callbacks of approvals: taken, forged, stale, replayed. The broker is played by the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::bus::ServiceSpec;
use shared::model::approval_api::link_text;
use shared::model::time::UnixMillis;

use crate::world::{Answer, World, secret};

const SECRET: &[u8] = b"a secret of thirty-two characters";

fn signature(id: &str, at: i64, body: &str, key: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key");
    mac.update(format!("{id}.{at}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

async fn post(world: &World, path: &str, at: i64, body: &str, signed: &str) -> Answer {
    let at = at.to_string();
    let headers = [
        ("webhook-id", "m1"),
        ("webhook-timestamp", at.as_str()),
        ("webhook-signature", signed),
    ];
    world.post(path, &headers, body.to_owned()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_taken_once_signed_fresh_and_about_this_approval() {
    let folder = tempfile::tempdir().expect("a folder");
    let reference = secret(&folder, "approvals", &format!("whsec_{}", STANDARD.encode(SECRET)));
    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &format!("[approvals]\nsecret = \"{reference}\"")).await;
    let heard = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&heard);

    let spec = ServiceSpec::new("approval", "test").endpoint("decide", move |question: Value| {
        let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            assert_eq!(
                (&question["by"]["channel"], &question["by"]["id"]),
                (&json!("feishu"), &json!("ou_1"))
            );
            assert_eq!(question["arguments_hash"], "00ff");

            match question["approve"].as_bool() {
                Some(true) => Ok(json!({"id": question["id"], "status": "approved", "changed": first})),
                _ => Err::<Value, _>((409, "it is approved already, by ann".to_owned())),
            }
        }
    });

    let service = world.bus.serve(spec).await.expect("a service");
    let body = |approve: bool| {
        let said =
            json!({"approval": "a1", "channel": "feishu", "by": "ou_1", "approve": approve, "arguments_hash": "00ff"});
        said.to_string()
    };

    let at = 1_700_000_000;
    world.clock.set(UnixMillis::from_seconds(at + 10));
    let (yes, no) = (body(true), body(false));
    let signed = signature("m1", at, &yes, SECRET);
    let taken = post(&world, "/approvals/a1", at, &yes, &signed).await;

    assert_eq!((taken.status, taken.body["changed"].as_bool()), (200, Some(true)));

    let replayed = post(&world, "/approvals/a1", at, &yes, &signed).await;
    assert_eq!(
        (replayed.status, replayed.body["changed"].as_bool()),
        (200, Some(false))
    );

    let conflicting = post(&world, "/approvals/a1", at, &no, &signature("m1", at, &no, SECRET)).await;
    assert_eq!((conflicting.status, conflicting.code()), (409, "conflict"));

    let so_far = heard.load(Ordering::Relaxed);
    let forged = post(
        &world,
        "/approvals/a1",
        at,
        &yes,
        &signature("m1", at, &yes, b"another key"),
    )
    .await;

    assert_eq!((forged.status, forged.code()), (401, "bad_signature"));

    let changed = post(&world, "/approvals/a1", at, &no, &signed).await;
    assert_eq!(changed.status, 401, "signed for another body");

    let elsewhere = post(&world, "/approvals/a2", at, &yes, &signed).await;
    assert_eq!(elsewhere.status, 400, "bound to its approval");

    world.clock.set(UnixMillis::from_seconds(at + 301));
    let stale = post(&world, "/approvals/a1", at, &yes, &signed).await;
    assert_eq!(stale.status, 401, "five minutes");
    assert_eq!(heard.load(Ordering::Relaxed), so_far, "none of them reached the broker");

    service.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_shows_a_page_whose_buttons_decide_and_to_look_decides_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let reference = secret(&folder, "links", "a link secret");
    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &format!("[approvals]\nlink_secret = \"{reference}\"")).await;
    world.clock.set(UnixMillis::from_seconds(1_700_000_000));
    let heard = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&heard);

    let question = json!({
        "request": {"id": "a1", "call": "1-1", "tool": "pay<b>", "arguments": {"amount": 5}, "arguments_hash": "00ff",
                    "policy": "payments", "approvers": [], "expires_at": 1_700_000_900_000_i64},
        "status": "pending", "requested_by": "agent:default", "requested_at": 1,
    });
    let spec = ServiceSpec::new("approval", "test")
        .endpoint("get", move |_: Value| {
            let question = question.clone();
            async move { Ok::<_, (usize, String)>(question) }
        })
        .endpoint("decide", move |said: Value| {
            counted.fetch_add(1, Ordering::Relaxed);

            async move {
                assert_eq!(said["by"], json!({"channel": "link", "id": "ann"}));
                assert_eq!(
                    (&said["approve"], &said["arguments_hash"]),
                    (&json!(true), &json!("00ff"))
                );
                Ok::<_, (usize, String)>(json!({"id": "a1", "status": "approved", "changed": true}))
            }
        });

    let service = world.bus.serve(spec).await.expect("a service");
    let until = 1_700_000_900_000_i64;
    let sign = |text: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"a link secret").expect("a key");
        mac.update(text.as_bytes());
        hex::encode(mac.finalize().into_bytes())
    };

    let signed = sign(&link_text("a1", "ann", "webchat", "00ff", until));
    let link = |by: &str| format!("/approvals/a1?by={by}&channel=webchat&hash=00ff&until={until}&sig={signed}");
    let (status, page) = world.get(&link("ann")).await;

    assert_eq!(status, 200);
    assert!(
        page.contains("pay&lt;b&gt;") && page.contains("value=approve"),
        "{page}"
    );
    assert_eq!(world.get(&link("bob")).await.0, 401, "somebody else's link");
    assert_eq!(heard.load(Ordering::Relaxed), 0, "to look decides nothing");

    let value = |name: &str| {
        let (_, rest) = page.split_once(&format!("name={name} value=\"")).expect("a field");
        rest.split('"').next().expect("a value").to_owned()
    };
    let form = |stamp: &str| {
        let at = value("at");
        format!("by=ann&channel=webchat&hash=00ff&until={until}&sig={signed}&at={at}&stamp={stamp}&say=approve")
    };

    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let forged = world.post("/approvals/a1/decide", &kind, form(&signed)).await;
    assert_eq!(forged.status, 401);

    let taken = world.post("/approvals/a1/decide", &kind, form(&value("stamp"))).await;
    assert_eq!((taken.status, heard.load(Ordering::Relaxed)), (200, 1));

    world.clock.set(UnixMillis::from_seconds(1_700_000_301));
    let stale = world.post("/approvals/a1/decide", &kind, form(&value("stamp"))).await;
    assert_eq!((stale.status, heard.load(Ordering::Relaxed)), (401, 1));

    service.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_platform_speaks_for_its_own_channel() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = |text: &[u8]| STANDARD.encode(text);
    let feishu = secret(&folder, "feishu", &key(SECRET));
    let slack = secret(&folder, "slack", &key(b"another secret of twenty-four bytes"));
    let config =
        format!("[approvals.channels.feishu]\nsecret = \"{feishu}\"\n[approvals.channels.slack]\nsecret = \"{slack}\"");
    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &config).await;

    let spec = ServiceSpec::new("approval", "test").endpoint("decide", |question: Value| async move {
        Ok::<_, (usize, String)>(json!({"id": question["id"], "status": "approved", "changed": true}))
    });
    let service = world.bus.serve(spec).await.expect("a service");
    let at = 1_700_000_000;
    world.clock.set(UnixMillis::from_seconds(at));

    let says = async |channel: &str, key: &[u8]| {
        let body = json!({"approval": "a1", "channel": channel, "by": "1", "approve": true, "arguments_hash": "00ff"});
        let body = body.to_string();
        let signed = signature("m1", at, &body, key);
        post(&world, "/approvals/a1", at, &body, &signed).await.status
    };

    assert_eq!(says("feishu", SECRET).await, 200);
    assert_eq!(says("slack", b"another secret of twenty-four bytes").await, 200);
    assert_eq!(says("slack", SECRET).await, 401, "another platform's secret");
    assert_eq!(says("telegram", SECRET).await, 401, "nobody speaks for it");

    service.stop().await;
    world.stop().await;
}
