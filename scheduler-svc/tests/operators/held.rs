//! Held messages: decided once.

use serde_json::Value;
use shared::bus::OutgoingMessage;
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::EventId;
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::operator::held_messages::{DecideHeld, HeldDecided, HeldDecision, HeldList, HeldRecord, ListHeld};
use shared::wire::subject;
use shared::wire::topology::streams::{AUDIT, DELIVERIES};
use shared::wire::unknown::UnknownFields;
use ulid::Ulid;

use crate::world::World;

/// Returns a held delivery, as delivery-svc holds it.
fn held() -> HeldMessage {
    let reply = Reply {
        id: Ulid::from_parts(7, 7),
        turn: Ulid::from_parts(1, 1),
        session: SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        },
        delivery_context: DeliveryContext {
            channel: "webhook".to_owned(),
            ..DeliveryContext::default()
        },
        content: "hello".to_owned(),
        attachments: Vec::new(),
        interactive: None,
        causation: DispatchCause {
            event: EventId::parse("test:1").expect("an id"),
            hops: 0,
        },
        action: None,
        send: None,
        failed: false,
        unknown: UnknownFields::default(),
    };
    let out = OutgoingMessage::reply(&reply);
    HeldMessage {
        kind: HeldKind::Delivery,
        id: reply.id,
        stream: DELIVERIES.to_owned(),
        sequence: 4,
        subject: out.subject,
        headers: out.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        payload: HeldMessage::encode_payload(&out.payload),
        why: "nobody can tell".to_owned(),
        at: UnixMillis(5),
        wanted: HeldUntil::Decided,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_message_is_decided_once_and_the_record_decides_after_a_crash() {
    let world = World::start().await;
    let held = held();
    world.bus.hold_message(&held).await.expect("held");
    let decide = async |decision: HeldDecision| {
        let by = "bob".to_owned();
        let request = DecideHeld {
            id: held.id,
            decision,
            by,
        };
        world.ask::<_, HeldDecided>("held.decide", &request).await
    };

    // Killed between the record and the bucket: the other decision is too late.
    let record = HeldRecord {
        kind: held.kind,
        id: held.id,
        held_since: held.at,
        wanted: HeldDecision::Redo,
        by: "anna".to_owned(),
        at: UnixMillis(9),
    };
    let out = OutgoingMessage::new(subject::held_audit(&held.key()), &record);
    world.bus.publish(out).await.expect("stored");
    let (code, text) = decide(HeldDecision::Skip).await.expect_err("decided before");
    assert!(code == 409 && text.contains("was decided before: redo"), "{text}");

    let list: HeldList = world.ask("held.list", &ListHeld::default()).await.expect("listed");
    assert_eq!((list.total, list.held[0].id), (1, held.id));
    for _ in 0..2 {
        assert_eq!(
            decide(HeldDecision::Redo).await.expect("decided").decision,
            HeldDecision::Redo
        );
    }
    assert_eq!(world.payloads(DELIVERIES).await.len(), 1, "published once");
    assert_eq!(world.payloads(AUDIT).await.len(), 1, "recorded once");
    assert!(!world.is_there(1).await, "its letter is deleted");
    let list: HeldList = world.ask("held.list", &ListHeld::default()).await.expect("listed");
    assert_eq!(list.total, 0);
    let unknown = DecideHeld {
        id: Ulid::from_parts(9, 9),
        decision: HeldDecision::Skip,
        by: "bob".to_owned(),
    };
    let (code, _) = world
        .ask::<_, Value>("held.decide", &unknown)
        .await
        .expect_err("nothing is held");
    assert_eq!(code, 404);
}
