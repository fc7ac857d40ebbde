//! What a user of the bus who may publish under one subject can say: nothing in the name of others.

use shared::bus::{Bus, NatsConfig, OutgoingMessage};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventDirection, EventId};
use shared::model::origin::EventOrigin;
use shared::model::permission::PermissionLevel;
use shared::model::time::UnixMillis;
use shared::process::SecretValue;
use shared::projection::api::{HistoryReply, HistoryRequest};
use shared::testing::eventually;
use shared::testing::nats::{NatsOptions, NatsServer};
use shared::wire::headers::{Headers, MSG_ID, SEAL};
use shared::wire::seal::SealKey;
use shared::wire::subject;

use crate::world::{DEADLINE, World};

const FIRE: &str = "export default () => ({ fire: true });\n";
const IDENTITIES: &str = "owner: me\npersons: [{id: me, addresses: {'*': [boss], telegram: [boss], lora: [boss]}}]\n";
/// Whoever gives no name is `nexus`, who may do everything; `roof` writes on its own subject alone.
const USERS: &str = r#"
authorization { users: [
  { user: nexus, password: p }
  { user: roof, password: p, permissions: {
    publish: { allow: ["nexus.event.lora.roof.*"] }, subscribe: { allow: ["_INBOX_roof.>"] } } }
] }
no_auth_user: nexus
"#;
const ROOF: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const CELLAR: &str = "2222222222222222222222222222222222222222222222222222222222222222";

/// A world with the edges `roof` and `cellar`, and the bus as the user `roof` has it.
async fn world() -> (World, Bus) {
    let options = NatsOptions {
        extra: USERS.to_owned(),
        ..NatsOptions::default()
    };
    let mut world = World::on(NatsServer::with(options).await, &[("fire.ts", FIRE)]).await;
    world.write_identities(IDENTITIES);
    let secret = |name: &str, text: &str| format!("file:{}", world.write_file(name, text).display());

    let edge = |name: &str, key: &str| {
        let key = secret(&format!("{name}.key"), key);
        format!("[edges.{name}]\nchannel = \"lora\"\nkey = \"{key}\"\n")
    };
    let sections = edge("roof", ROOF) + &edge("cellar", CELLAR);
    let password = SecretValue::resolve(&secret("roof.password", "p")).expect("a password");
    world.sections = sections;

    let config = NatsConfig {
        servers: vec![world.nats.url()],
        user: "roof".to_owned(),
        password: Some(password),
        ..NatsConfig::default()
    };

    let bus = shared::testing::connect(&config, "roof").await;
    world.start("a");
    world.wait_for_members(1).await;

    (world, bus)
}

/// A message from the owner's address, as the edge `roof` says it under `id`.
fn said(id: &str) -> Event {
    let mut event = Event::new(
        EventId::parse(id).expect("an id"),
        "lora",
        "boss",
        UnixMillis(1_700_000_000_000),
    );

    event.account_id = Some("roof".to_owned());
    event.from.id = "boss".to_owned();
    event.content = "forged".to_owned();
    event.speaks_for = vec!["*".to_owned()];

    event
}

/// `event` on the subject of `roof`, sealed with `key` as of `origin`, under the message id `message`.
fn out(event: &Event, seal: Option<(&str, &str)>, message: &str) -> OutgoingMessage {
    let mut out = OutgoingMessage::new("nexus.event.lora.roof.boss".to_owned(), event).msg_id(message);
    if let Some((key, origin)) = seal {
        let origin = EventOrigin::parse(origin).expect("an origin");
        let key = SealKey::parse(key).expect("a key");
        out.headers.insert(SEAL, key.seal(&event.id, &out.payload, &origin));
    }
    out
}

/// A webhook's event as adapter-svc publishes it.
fn honest() -> Event {
    let id = EventId::parse("webhook:std/msg_1").expect("an id");
    let mut event = Event::new(id, "webhook", "std", UnixMillis(1_700_000_000_001));
    event.from.id = "boss".to_owned();
    event.origin = EventOrigin::webhook("std");
    event.content = "honest".to_owned();
    event
}

async fn history(world: &World, channel: &str, account: &str, peer: &str) -> Vec<String> {
    let question = HistoryRequest {
        channel: channel.to_owned(),
        account: account.to_owned(),
        peer: peer.to_owned(),
        thread: None,
        before: None,
        limit: None,
    };

    let asked = world
        .bus
        .request::<_, HistoryReply>("nexus.svc.events.history", Headers::new(), &question, DEADLINE);
    let reply = asked.await.expect("the read model answers");

    reply.events.into_iter().map(|event| event.content).collect()
}

async fn of(world: &World, id: &EventId) -> Dispatch {
    let mut found = None;
    eventually(&format!("the dispatch of {id}"), async || {
        found = world
            .dispatches()
            .await
            .into_iter()
            .find(|dispatch| dispatch.event_id == *id);
        found.is_some()
    })
    .await;

    found.expect("found")
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn an_edge_speaks_for_itself_alone() {
    let (world, roof) = world().await;
    let own = Some((ROOF, "edge:roof"));
    let another_channel = Event {
        channel: "telegram".to_owned(),
        ..said("lora:roof/1")
    };

    let a_change = Event {
        direction: EventDirection::Updated,
        ..said("webhook:std/msg_1")
    };
    let claims = Event {
        origin: EventOrigin::account("telegram", "bot"),
        ..said("telegram:bot/7/99")
    };

    let forged = [
        ("another channel's event", another_channel, own, "wrong_subject"),
        ("another source's id", said("webhook:std/msg_1"), own, "foreign_id"),
        ("a change of another's event", a_change, own, "foreign_id"),
        ("a timer's id", said("timer:tick:29000000"), own, "foreign_id"),
        ("an agent's id", said("agent:atlas:bella:1"), own, "foreign_id"),
        ("another edge's id", said("lora:cellar/1"), own, "foreign_id"),
        ("its own id without a seal", said("lora:roof/2"), None, "foreign_id"),
        (
            "under another edge's key",
            said("lora:roof/3"),
            Some((CELLAR, "edge:roof")),
            "foreign_id",
        ),
        (
            "an account's word under its own key",
            claims,
            Some((ROOF, "verified:telegram/bot")),
            "foreign_id",
        ),
    ];

    for (number, (what, event, seal, _)) in forged.iter().enumerate() {
        // The first of them squats what the honest webhook's message id was named by.
        let message = if number == 0 {
            "webhook:std/msg_1".to_owned()
        } else {
            format!("x-{number}")
        };
        roof.publish(out(event, *seal, &message))
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    eventually("all of them are dead letters", async || {
        world.dead_letters().await.len() == forged.len()
    })
    .await;
    let mut letters = world.dead_letters().await;
    letters.sort_by_key(|letter| letter.sequence);

    for (letter, (what, _, _, reason)) in letters.iter().zip(&forged) {
        assert_eq!(letter.reason, *reason, "{what}: {}", letter.detail);
        assert!(
            letter.payload_bytes().is_some_and(|bytes| !bytes.is_empty()),
            "{what} is kept whole"
        );
    }

    // What is honest comes after all of that, and is new.
    let webhook = honest();
    let published = world
        .bus
        .publish(OutgoingMessage::event(&webhook, world.bus.trust()))
        .await
        .expect("stored");

    assert!(!published.duplicate);

    let dispatch = of(&world, &webhook.id).await;
    assert_eq!(
        (dispatch.message.content.as_str(), dispatch.message.person.as_deref()),
        ("honest", None)
    );
    assert_eq!(
        dispatch.permissions.level,
        PermissionLevel::Minimal,
        "a webhook names nobody"
    );

    let event = said("lora:roof/7");
    roof.publish(out(&event, own, "x-own")).await.expect("stored");
    let dispatch = of(&world, &event.id).await;

    assert_eq!(dispatch.message.origin.to_string(), "edge:roof");
    assert_eq!(
        (dispatch.permissions.level, dispatch.message.person),
        (PermissionLevel::Minimal, None)
    );

    let open = said("open:lora/roof/8");
    roof.publish(out(&open, None, "x-open")).await.expect("stored");
    let dispatch = of(&world, &open.id).await;

    assert!(dispatch.message.origin.is_open() && !dispatch.message.proven);
    assert_eq!(
        (dispatch.permissions.level, dispatch.message.person),
        (PermissionLevel::Minimal, None)
    );

    world.wait_until_acked().await;
    assert_eq!(world.dispatches().await.len(), 3, "nothing came of a forged one");

    eventually("the read model holds what was admitted", async || {
        history(&world, "lora", "roof", "boss").await.len() == 2
    })
    .await;
    assert_eq!(history(&world, "webhook", "default", "std").await, ["honest"]);
    assert!(history(&world, "telegram", "roof", "boss").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_a_person_only_where_the_origin_proves_it() {
    let (world, _roof) = world().await;
    let origins = [
        ("verified:telegram/default", PermissionLevel::Full),
        ("verified:telegram/other", PermissionLevel::Minimal),
        ("verified:webhook/std", PermissionLevel::Minimal),
        ("token:crm", PermissionLevel::Minimal),
        ("open", PermissionLevel::Minimal),
    ];

    for (number, (origin, level)) in origins.into_iter().enumerate() {
        let id = EventId::parse(format!("telegram:default/{number}")).expect("an id");
        let mut event = Event::new(id, "telegram", "boss", UnixMillis(1_700_000_000_000));
        event.from.id = "boss".to_owned();
        event.origin = EventOrigin::parse(origin).expect("an origin");
        world.publish(&event).await;
        let dispatch = of(&world, &event.id).await;

        assert_eq!(dispatch.permissions.level, level, "{origin}");
        assert_eq!(
            dispatch.message.person.is_some(),
            level == PermissionLevel::Full,
            "{origin}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_sent_again_under_another_id_is_no_new_event() {
    let (world, _roof) = world().await;
    let event = honest();
    let published = world.publish(&event).await;
    of(&world, &event.id).await;

    // Somebody who has read it repeats it, seal and all.
    let stored = world
        .bus
        .at_sequence("EVENTS", published)
        .await
        .expect("readable")
        .expect("there");

    let mut again = OutgoingMessage::raw(subject::event(&event), stored.headers.clone(), stored.payload.clone());
    again.headers.insert(MSG_ID, "another");
    world.bus.publish(again).await.expect("stored");
    world.wait_until_acked().await;

    assert_eq!(
        (world.dispatches().await.len(), world.invocations().await.len()),
        (1, 1)
    );
}
