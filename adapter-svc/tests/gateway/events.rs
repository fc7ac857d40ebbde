//! `POST /v1/events`: our events and CloudEvents.

use serde_json::{Value, json};
use shared::model::event::PeerKind;

use adapter_svc::source::webhook::signature::sha256_hex;

use crate::world::{World, secret};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn event(id: &str) -> Value {
    json!({ "id": id, "timestamp": 5, "channel": "crm", "peer": { "kind": "dm", "id": "p 1.*" }, "content": id })
}

#[tokio::test]
async fn one_event_a_batch_and_cbor_are_stored_in_order() {
    let world = World::start("").await;
    let one = world.post("/v1/events", &JSON, event("crm:1").to_string()).await;
    assert_eq!(
        (one.status, &one.body),
        (200, &json!({ "accepted": 1, "ids": ["crm:1"] }))
    );

    let many: Vec<Value> = (2..=600).map(|n| event(&format!("crm:{n}"))).collect();
    let answer = world.post("/v1/events", &JSON, json!(many).to_string()).await;
    assert_eq!((answer.status, &answer.body["accepted"]), (200, &json!(599)));

    let mut cbor = Vec::new();
    ciborium::into_writer(&event("crm:601"), &mut cbor).expect("cbor");
    let answer = world
        .post("/v1/events", &[("content-type", "application/cbor")], cbor)
        .await;

    assert_eq!(answer.status, 200, "{:?}", answer.body);

    let stored = world.stored(601).await;
    assert!(
        stored[0].subject.ends_with(".crm.default.p=201=2E=2A"),
        "{}",
        stored[0].subject
    );
    assert_eq!(stored[0].headers.get("Nexus-Schema"), Some("event/2"));

    let ids: Vec<String> = world
        .events(601)
        .await
        .iter()
        .map(|event| event.id.to_string())
        .collect();

    assert_eq!(ids, (1..=601).map(|n| format!("crm:{n}")).collect::<Vec<_>>());

    world.stop().await;
}

/// The flat event of seed 003, as a CRM posts it: stored whole, under the token's source.
#[tokio::test]
async fn the_seeds_flat_event_is_taken_as_it_is_written() {
    let world = World::start("").await;
    let flat = r#"{"id":"crm:abc123","channel":"crm","from":"+15559876543","content":"help","peerKind":"dm",
                   "contentType":"text","replyToId":"crm:abc122","timestamp":1738180000000}"#;
    let group =
        r#"{"id":"2","channel":"crm","senderId":"u7","peerKind":"group","peerId":"room","timestamp":1,"content":"hi"}"#;
    for (text, id) in [(flat, "crm:abc123"), (group, "crm:2")] {
        let answer = world.post("/v1/events", &JSON, text).await;
        assert_eq!(
            (answer.status, &answer.body["ids"]),
            (200, &json!([id])),
            "{:?}",
            answer.body
        );
    }

    let stored = world.events(2).await;
    let (flat, group) = (&stored[0], &stored[1]);
    assert_eq!((flat.id.as_str(), flat.content.as_str()), ("crm:abc123", "help"));
    assert_eq!(
        (flat.from.id.as_str(), flat.peer.id.as_str()),
        ("+15559876543", "+15559876543")
    );
    assert_eq!((flat.peer.kind, flat.timestamp.0), (PeerKind::Dm, 1_738_180_000_000));
    assert_eq!(flat.content_types, ["text"]);
    assert_eq!(flat.reply_to.as_deref(), Some("crm:abc122"));
    assert_eq!((group.from.id.as_str(), group.peer.id.as_str()), ("u7", "room"));
    assert_eq!(group.peer.kind, PeerKind::Group);

    let wrong = r#"{"id":"3","channel":"crm","from":{"identity":"u7"},"timestamp":1}"#;
    let answer = world.post("/v1/events", &JSON, wrong).await;
    assert_eq!(answer.status, 400, "{:?}", answer.body);
    assert!(answer.body.to_string().contains("identity"), "{:?}", answer.body);

    world.stop().await;
}

#[tokio::test]
async fn stream_mode_answers_after_the_ack() {
    let world = World::start("accept = \"stream\"").await;
    let many: Vec<Value> = (0..50).map(|n| event(&format!("crm:{n}"))).collect();
    let answer = world.post("/v1/events", &JSON, json!(many).to_string()).await;
    assert_eq!((answer.status, world.last().await), (200, 50));
    let again = world.post("/v1/events", &JSON, json!(many).to_string()).await;
    assert_eq!((again.status, world.last().await), (200, 50));
    assert!(!world.folder.path().join("spool").exists());
    world.stop().await;
}

#[tokio::test]
async fn cloudevents_come_in_three_modes() {
    let world = World::start("").await;
    let of = |id: &str| json!({ "specversion": "1.0", "type": "t", "source": "/s", "id": id, "data": { "n": 1 } });
    let structured = [("content-type", "application/cloudevents+json; charset=utf-8")];

    assert_eq!(
        world.post("/v1/events", &structured, of("1").to_string()).await.status,
        200
    );

    let batch = [("content-type", "application/cloudevents-batch+json")];
    assert_eq!(
        world
            .post("/v1/events", &batch, json!([of("2"), of("3")]).to_string())
            .await
            .status,
        200
    );

    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-type", "t"),
        ("ce-source", "/s"),
        ("ce-id", "4"),
        ("content-type", "text/plain"),
    ];

    assert_eq!(world.post("/v1/events", &binary, "hello").await.status, 200);

    let events = world.events(4).await;
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, ["crm:/s/1", "crm:/s/2", "crm:/s/3", "crm:/s/4"]);
    assert_eq!(
        (events[1].metadata["payload"]["n"].as_i64(), events[3].content.as_str()),
        (Some(1), "hello")
    );

    world.stop().await;
}

#[tokio::test]
async fn without_the_token_nothing_is_taken() {
    let world = World::start("").await;
    for wrong in ["Bearer other", "Basic s3cret", "", "Bearer "] {
        let headers = [JSON[0], ("authorization", wrong)];
        let answer = world.post("/v1/events", &headers, event("crm:1").to_string()).await;
        assert_eq!((answer.status, answer.code()), (401, "unauthorized"));
    }

    let answer = world.post_open("/v1/events", &JSON, event("crm:1").to_string()).await;
    assert_eq!((answer.status, answer.code()), (401, "unauthorized"));
    assert_eq!(world.last().await, 0);

    let taken = world.post("/v1/events", &JSON, event("crm:1").to_string()).await;
    assert_eq!(taken.status, 200);

    world.events(1).await;
    world.stop().await;
}

#[tokio::test]
async fn a_token_posts_on_its_channels_below_its_source_only() {
    let world = World::start("").await;
    let mut foreign = event("crm:1");
    foreign["channel"] = json!("telegram");
    foreign["from"] = json!({ "id": "the owner" });
    let answer = world
        .post("/v1/events", &JSON, json!([event("crm:1"), foreign]).to_string())
        .await;

    assert_eq!((answer.status, answer.code()), (403, "channel_not_allowed"));
    assert_eq!(answer.body["error"]["where"], "body[1]");

    let mut forged = event("timer:tick:1");
    forged["origin"] = json!("system");
    forged["speaks_for"] = json!(["*"]);
    forged["source_adapter"] = json!("timer");
    forged["reply_to"] = json!("mail:77");
    let answer = world.post("/v1/events", &JSON, forged.to_string()).await;

    assert_eq!(answer.body, json!({ "accepted": 1, "ids": ["crm:timer:tick:1"] }));

    let stored = world.events(1).await.remove(0);
    assert_eq!(
        (stored.id.as_str(), stored.source_adapter.as_str()),
        ("crm:timer:tick:1", "crm")
    );
    assert_eq!(
        (stored.origin.to_string().as_str(), stored.reply_to.as_deref()),
        ("token:crm-1", Some("crm:mail:77"))
    );
    assert!(stored.speaks_for.is_empty());

    world.stop().await;
}

#[tokio::test]
async fn an_update_of_another_sources_event_is_an_event_of_ones_own() {
    let other = sha256_hex(&[b"the other token"]);
    let tokens =
        format!("[[http.tokens]]\nname = \"mail\"\nsha256 = \"{other}\"\nsource = \"mail\"\nchannels = [\"crm\"]");
    let world = World::start(&tokens).await;
    let of_mail = [JSON[0], ("authorization", "Bearer the other token")];
    let first = world.post("/v1/events", &of_mail, event("mail:77").to_string()).await;

    assert_eq!(first.body["ids"], json!(["mail:77"]));

    for direction in ["updated", "deleted"] {
        let mut forged = event("mail:77");
        forged["direction"] = json!(direction);
        let answer = world.post("/v1/events", &JSON, forged.to_string()).await;
        assert_eq!(answer.body["ids"], json!(["crm:mail:77"]), "{direction}");
    }

    let ids: Vec<String> = world.events(3).await.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(ids, ["mail:77", "crm:mail:77", "crm:mail:77"]);

    world.stop().await;
}

#[tokio::test]
async fn the_open_door_brings_strangers_below_open() {
    let world = World::start("http.open = true").await;
    let mut said = event("timer:tick:1");
    // The accounts of a platform decide who may write there.
    for platform in ["telegram", "Telegram", "slack", "discord"] {
        said["channel"] = json!(platform);
        let refused = world.post_open("/v1/events", &JSON, said.to_string()).await;
        assert_eq!(refused.status, 400, "{platform}: {:?}", refused.body);
    }

    said["channel"] = json!("signal");
    let answer = world.post_open("/v1/events", &JSON, said.to_string()).await;

    assert_eq!(answer.body["ids"], json!(["open:timer:tick:1"]));

    let wrong = [JSON[0], ("authorization", "Bearer other")];
    assert_eq!(world.post("/v1/events", &wrong, said.to_string()).await.status, 401);

    let stored = world.events(1).await.remove(0);
    assert!(stored.origin.is_open() && stored.speaks_for.is_empty(), "{stored:?}");

    for own in ["cli", "timer", "webhook"] {
        said["channel"] = json!(own);
        assert_eq!(
            world.post_open("/v1/events", &JSON, said.to_string()).await.status,
            400,
            "{own}"
        );
    }

    world.stop().await;
}

#[tokio::test]
async fn this_machines_token_has_two_channels_and_speaks_for_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let local = "a token of more than thirty-two characters";
    let reference = secret(&folder, "local-token", local);
    let nats = shared::testing::nats::NatsServer::start().await;
    let world = World::with(nats, folder, &format!("http.local_token = \"{reference}\"")).await;
    let bearer = format!("Bearer {local}");
    let headers = [JSON[0], ("authorization", bearer.as_str())];

    for (channel, status) in [
        ("cli", 200),
        ("http", 200),
        ("webchat", 403),
        ("telegram", 403),
        ("crm", 403),
    ] {
        let mut said = event(&format!("on-{channel}"));
        said["channel"] = json!(channel);
        let answer = world.post("/v1/events", &headers, said.to_string()).await;
        assert_eq!(answer.status, status, "{channel}: {:?}", answer.body);
    }

    for stored in world.events(2).await {
        assert!(stored.id.as_str().starts_with("local:on-"), "{}", stored.id);
        assert_eq!(
            (stored.origin.to_string().as_str(), stored.speaks_for.len()),
            ("token:local", 0)
        );
    }

    world.stop().await;
}

#[tokio::test]
async fn one_bad_event_refuses_its_batch_and_names_its_place() {
    let world = World::start("").await;
    let mut huge = event("crm:9");
    huge["content"] = json!("x".repeat(1024 * 1024 + 1));
    let mut deep = event("crm:9");
    deep["metadata"] =
        serde_json::from_str(&format!("{{\"a\":{}1{}}}", "[".repeat(110), "]".repeat(110))).expect("json");
    let mut hops = event("crm:9");
    hops["hops"] = json!(100);

    let long = format!("crm:{}", "a.* ".repeat(127));
    let too_long = event(&format!("{long}12345"));
    for (wrong, status, word) in [
        (
            json!({ "id": "crm:1", "timestamp": 5, "channel": "link", "peer": { "kind": "dm", "id": "p" } }),
            403,
            "may not post on channel `link`",
        ),
        (event("crm:"), 400, "adapter:source_id"),
        (event(""), 400, "empty"),
        (event("crm:a\0b"), 400, "control character"),
        (too_long, 400, "at most 512"),
        (huge, 400, "content"),
        (deep, 400, "nested"),
        (hops, 400, "hops"),
    ] {
        let answer = world
            .post("/v1/events", &JSON, json!([event("crm:1"), wrong]).to_string())
            .await;
        let message = answer.body["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(answer.status, status, "{word}: {message}");
        assert!(message.contains(word), "{word} in {message}");
    }

    assert_eq!(world.last().await, 0);

    let answer = world.post("/v1/events", &JSON, event(&long).to_string()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(world.events(1).await[0].id.as_str(), long);

    world.stop().await;
}

#[tokio::test]
async fn a_trace_that_the_caller_began_goes_on() {
    let world = World::start("").await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    world
        .post(
            "/v1/events",
            &[JSON[0], ("traceparent", parent)],
            event("crm:1").to_string(),
        )
        .await;

    world
        .post(
            "/v1/events",
            &[JSON[0], ("traceparent", "nonsense")],
            event("crm:2").to_string(),
        )
        .await;

    let stored = world.stored(2).await;
    assert_eq!(stored[0].headers.get("traceparent"), Some(parent));
    assert_eq!(stored[1].headers.get("traceparent"), None);

    world.stop().await;
}
