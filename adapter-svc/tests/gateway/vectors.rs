//! Published vectors of the schemes that the fixtures lack, over HTTP.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use shared::model::time::UnixMillis;

use crate::world::{World, secret};

/// Starts a source `s` of `scheme` with `key` and further settings, at `seconds`.
async fn source(scheme: &str, key: &str, more: &str, seconds: i64) -> World {
    let folder = tempfile::tempdir().expect("a folder");
    let reference = secret(&folder, "secret", key);
    let toml = format!("[webhook.s]\nscheme = \"{scheme}\"\nsecrets = [\"{reference}\"]\n{more}");
    let world = World::with(shared::testing::nats::NatsServer::start().await, folder, &toml).await;
    world.clock.set(UnixMillis::from_seconds(seconds));
    world
}

/// The first request is accepted as event `id`; with `wrong` in place of a header it is not.
async fn check(world: World, headers: &[(&str, &str)], wrong: (&str, &str), body: &str, id: &str) {
    let broken: Vec<(&str, &str)> = headers
        .iter()
        .map(|(name, value)| if *name == wrong.0 { wrong } else { (*name, *value) })
        .collect();
    let refused = world.post("/hooks/s", &broken, body.to_owned()).await;
    assert_eq!(refused.status, 401, "{:?}", refused.body);
    assert_eq!(world.last().await, 0);

    let answer = world.post("/hooks/s", headers, body.to_owned()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);

    let events = world.events(1).await;
    assert_eq!(events[0].id.as_str(), id);

    world.stop().await;
}

#[tokio::test]
async fn standard_webhooks() {
    let world = source("standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "", 1_614_265_330).await;
    let headers = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ];
    let id = "webhook:s/msg_p5jXN8AQM9LWM0D4loKWxJek";
    check(world, &headers, ("webhook-id", "msg_2"), r#"{"test": 2432232314}"#, id).await;
}

#[tokio::test]
async fn slack() {
    let world = source("slack", "8f742231b10e8888abcd99yyyzzz85a5", "", 1_531_420_618).await;
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
         channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
         response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F\
         96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";

    let headers = [
        ("x-slack-request-timestamp", "1531420618"),
        (
            "x-slack-signature",
            "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        ),
        ("content-type", "application/x-www-form-urlencoded"),
    ];

    let hash = adapter_svc::source::webhook::signature::sha256_hex(&[b"1531420618.", body.as_bytes()]);
    let id = format!("webhook:s/{hash}");
    check(world, &headers, ("x-slack-request-timestamp", "1531420619"), body, &id).await;
}

#[tokio::test]
async fn telegram() {
    let world = source("telegram", "s3cret-token_1", "", 0).await;
    let headers = [
        ("x-telegram-bot-api-secret-token", "s3cret-token_1"),
        ("content-type", "application/json"),
    ];

    let wrong = ("x-telegram-bot-api-secret-token", "s3cret-token_2");
    check(
        world,
        &headers,
        wrong,
        r#"{"update_id":10000,"message":{"text":"hi"}}"#,
        "webhook:s/10000",
    )
    .await;
}

#[tokio::test]
async fn generic_hmac() {
    let key = "a shared secret of the shop";
    let body = "what do ya want for nothing?";
    let more =
        "event_type_header = \"x-kind\"\nhmac.header = \"x-sig\"\nhmac.prefix = \"sha256=\"\nhmac.id_header = \"x-id\"";
    let world = source("hmac", key, more, 0).await;
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key");
    mac.update(body.as_bytes());

    let signature = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    let headers = [
        ("x-sig", signature.as_str()),
        ("x-kind", "rfc4231"),
        ("x-id", "not signed"),
    ];

    let hash = adapter_svc::source::webhook::signature::sha256_hex(&[body.as_bytes()]);
    let wrong = format!("sha256={}", "0".repeat(64));
    check(world, &headers, ("x-sig", &wrong), body, &format!("webhook:s/{hash}")).await;
}

#[tokio::test]
async fn the_challenges_of_meta_and_slack_are_answered_and_are_no_events() {
    let folder = tempfile::tempdir().expect("a folder");
    let reference = secret(&folder, "secret", "app-secret");
    let toml = format!("[webhook.m]\nscheme = \"meta\"\nsecret = \"{reference}\"\nverify_token = \"{reference}\"");
    let world = World::with(shared::testing::nats::NatsServer::start().await, folder, &toml).await;
    let ask = "/hooks/m?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=";

    assert_eq!(
        world.get(&format!("{ask}app-secret")).await,
        (200, "1158201444".to_owned())
    );
    assert_eq!(world.get(&format!("{ask}else")).await.0, 401);
    assert_eq!(world.get("/hooks/none?hub.mode=subscribe").await.0, 404);
    assert_eq!(world.last().await, 0);

    world.stop().await;
}
