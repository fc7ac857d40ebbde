//! The seven hooks that ship: off until the channels that they need are configured, then each from its event to whoever
//! is told, over real HTTP and the web chat.

use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::invocation::EventInvocations;
use shared::model::time::UnixMillis;
use shared::testing::ModelServer;
use shared::testing::model_server::ScriptedAnswer;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::receiver::Receiver;
use tests::record::read_all;
use tests::world::{Setup, World, example_hook, shipped_hook};

use crate::story::{PATIENCE, brings};

/// Those that wait for a channel, by id.
const WAITING: [&str; 6] = [
    "casey-safety-check",
    "flight-checkin",
    "heartbeat",
    "mom-2fa-helper",
    "stripe-high-value",
    "work-whatsapp-routing",
];

/// 21:15 in Chicago on the day of the hike: the heartbeat beats, and somebody looks for Casey in this minute alone.
const EVENING: UnixMillis = UnixMillis(1_769_570_100_000);

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const PERSONAS: &str = "personas: {default: {runner: echo}, work: {runner: echo}, phone-caller: {runner: echo}}";

const IDENTITIES: &str = "
owner: me
persons:
  - { id: me, name: Me, addresses: { '*': [me] } }
  - { id: mom, name: Mom, relationship: mother, addresses: { sms: ['+1555000'] } }
";

fn channels(receiver: &Receiver) -> String {
    let account = |path: &str| format!("{{url: '{}{path}', secret: 'env:RECEIVER_SECRET'}}", receiver.url);
    let (owner, sms, whatsapp) = (account("owner"), account("sms"), account("whatsapp"));
    format!(
        "webhook: {{accounts: {{owner: {owner}}}}}\n\
         bridges:\n  sms: {{accounts: {{default: {sms}}}}}\n  whatsapp: {{accounts: {{work: {whatsapp}}}}}\n"
    )
}

/// A world without delivery-svc, whose hooks see [`EVENING`] at `now`.
async fn world(receiver: &Receiver, model: &ModelServer, now: UnixMillis) -> World {
    let mut hooks = vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))];
    let names = [
        "casey-safety-check.ts",
        "flight-checkin.ts",
        "heartbeat.ts",
        "mom-2fa-helper.ts",
        "stripe-high-value.ts",
        "work-whatsapp-routing.ts",
    ];

    hooks.extend(names.map(|name| (name, example_hook(name))));
    let variable = |name: &str, value: String| (name.to_owned(), value);

    World::start(Setup {
        hooks,
        personas: PERSONAS.to_owned(),
        identities: IDENTITIES.to_owned(),
        channels: channels(receiver),
        adapter: format!(
            "[adapter.webhook.stripe]\nscheme = \"stripe\"\nsecret = \"env:RECEIVER_SECRET\"\n\
             [llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\n\
             base_url = {:?}\n",
            model.base_url("openai")
        ),
        environment: vec![
            variable("RECEIVER_SECRET", SECRET.to_owned()),
            variable("NEXUS__HOOKS__CLOCK_OFFSET_MS", EVENING.since(now).to_string()),
        ],
        // The only ticks are those of the test.
        without: vec!["delivery-svc", "scheduler-svc"],
        sets_clock: true,
        ..Setup::default()
    })
    .await
}

/// What the model says of each prompt.
fn says(prompt: &str) -> &'static str {
    if prompt.contains("two-factor") {
        return r#"{"is_2fa_request": true, "service": "Chase"}"#;
    }
    r#"{"flight": "UA 100", "departs_at": "2026-12-01T10:00:00-06:00", "from": "ORD", "to": "SFO"}"#
}

fn message(id: &str, from: &str, content: &str) -> Value {
    let channel = id.split(':').next();
    json!({
        "id": id, "timestamp": EVENING, "channel": channel, "content": content, "content_types": ["text"],
        "peer": { "kind": "dm", "id": from }, "from": { "id": from },
        "participants": [{ "id": from, "role": "sender" }],
    })
}

async fn tick(world: &World, number: u32) {
    brings(world, &message(&format!("timer:tick:{number}"), "tick", "tick")).await;
}

/// A payment, as Stripe tells of it.
async fn stripe(world: &World) {
    let paid = json!({ "id": "pi_1", "amount": 120_000, "currency": "usd", "customer": "cus_1" });
    let body = json!({ "id": "evt_1", "type": "payment_intent.succeeded", "data": { "object": paid } }).to_string();
    let at = SystemClock.now().0 / 1_000;
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("a key");
    mac.update(format!("{at}.{body}").as_bytes());

    let code: String = mac
        .finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();

    let posted = cli::http::client()
        .expect("an HTTP client")
        .post(format!("{}/hooks/stripe", world.gateway()))
        .header("stripe-signature", format!("t={at},v1={code}"))
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .expect("the gateway answers");

    assert!(
        posted.status().is_success(),
        "{}",
        posted.text().await.unwrap_or_default()
    );
}

/// What the receiver was told at `path` for `peer`, once it was.
async fn told(receiver: &Receiver, world: &World, path: &str, peer: &str) -> Value {
    eventually("it is delivered", PATIENCE, async || {
        let calls = receiver.calls();
        let mut found = calls
            .iter()
            .filter(|call| call.path == path && call.body["data"]["peer"] == peer);
        let data = found.next().map(|call| call.body["data"].clone());
        data.ok_or_else(|| format!("{path} {peer}: {calls:?}\n{}", world.logs()))
    })
    .await
}

/// Nobody can deliver: the hooks that need a channel are off, and say so.
async fn are_off(world: &World) {
    let waiting = world.json(&["hook", "list", "--status", "waiting"]).await;
    let ids: Vec<&str> = waiting
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|hook| hook["id"].as_str())
        .collect();

    assert_eq!(ids, WAITING);

    let shown = world.words(&["hook", "show", "heartbeat"]).await;
    assert!(
        shown.contains("waiting") && shown.contains("`webhook:owner`"),
        "{shown}"
    );

    let log = world.log("hook-svc-0");
    assert_eq!(
        log.matches("a channel that it needs is not configured").count(),
        WAITING.len(),
        "{log}"
    );

    tick(world, 1).await;
    eventually("the tick is evaluated", PATIENCE, async || {
        let records: Vec<(u64, EventInvocations)> = read_all(&world.bus, streams::INVOCATIONS).await;
        let record = records
            .into_iter()
            .find(|(_, record)| record.event_id.as_str() == "timer:tick:1");
        let (_, record) = record.ok_or("not yet")?;

        assert!(record.hooks.is_empty(), "nobody fired or failed: {record:?}");
        Ok::<(), String>(())
    })
    .await;
}

/// delivery-svc comes with the accounts: the hooks are on.
async fn come_on(world: &mut World) {
    world.stack.launch("delivery-svc", 0).expect("it starts");
    world.stack.ready().await.expect("it is ready");
    eventually("the hooks are on", PATIENCE, async || {
        let log = world.log("hook-svc-0");
        let on = log.matches("hook active: its channels are configured").count();
        (on == WAITING.len()).then_some(()).ok_or(log)
    })
    .await;

    let waiting = world.json(&["hook", "list", "--status", "waiting"]).await;
    assert_eq!(waiting, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hooks_that_ship_wait_for_their_channels_and_then_deliver() {
    let receiver = Receiver::start(Duration::ZERO).await;
    let model = ModelServer::ruled(|asked, _| ScriptedAnswer::text(says(&asked.last_user_text()))).await;
    let began = SystemClock.now();
    let mut world = world(&receiver, &model, began).await;
    are_off(&world).await;
    come_on(&mut world).await;

    let (_, answer) = cli::demo::senders::chat(&world.gateway(), "hello", PATIENCE)
        .await
        .expect("the catch-all answers");
    assert_eq!(answer, "echo: hello");

    stripe(&world).await;
    brings(
        &world,
        &message("sms:1", "+1555000", "Which code did Chase send? I cannot log in"),
    )
    .await;

    brings(
        &world,
        &message(
            "email:1",
            "no-reply@mail.united.com",
            "Your booking A1B2C3 is confirmed",
        ),
    )
    .await;

    let mut work = message("whatsapp:1", "+49170", "Where is the report?");
    work["account_id"] = json!("work");
    brings(&world, &work).await;

    told(&receiver, &world, "/owner", "payments").await;
    let mom = told(&receiver, &world, "/sms", "+1555000").await;
    assert!(
        mom["content"].as_str().is_some_and(|text| text.contains("Chase")),
        "{mom}"
    );

    told(&receiver, &world, "/owner", "travel").await;
    let work = told(&receiver, &world, "/whatsapp", "+49170").await;
    assert_eq!(work["persona"], "work");

    // A machine that is too slow for the minute is put back into it.
    let mut number = 1;
    let casey = eventually("Casey is looked for", PATIENCE, async || {
        let lost = SystemClock.now().since(began);
        world.clock().set("hook-svc-0", 5_000 - lost, 0);
        number += 1;
        tick(&world, number).await;
        let looked = tokio::time::timeout(Duration::from_secs(10), told(&receiver, &world, "/owner", "casey"));
        looked.await.map_err(|_| format!("not yet\n{}", world.logs()))
    })
    .await;

    assert_eq!(casey["persona"], "phone-caller");

    told(&receiver, &world, "/owner", "heartbeat").await;

    // What came while a hook was off is not made up for, and nothing is delivered twice.
    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
    assert!(
        dispatches
            .iter()
            .all(|(_, dispatch)| dispatch.event_id.as_str() != "timer:tick:1")
    );
    assert!(
        receiver.arrived().values().all(|times| *times == 1),
        "{:?}",
        receiver.calls()
    );

    let letters = world.bus.stream_state(streams::DLQ).await.expect("the stream answers");
    assert_eq!(letters.last, 0, "no dead letter");

    world.stack.stop().await;
}
