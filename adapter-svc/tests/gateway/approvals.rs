//! Signed callbacks of approvals: taken, forged, stale, replayed. The broker is played by the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::bus::ServiceSpec;
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
