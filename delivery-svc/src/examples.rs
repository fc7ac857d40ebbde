//! Sample values for the tests of this crate.

use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::EventId;
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::wire::unknown::UnknownFields;
use ulid::Ulid;

/// Returns a reply of turn 7 to `webchat:42`, to be sent to the channel `nats`, account `demo`, peer `ann`.
pub(crate) fn reply(content: &str) -> Reply {
    Reply {
        id: Ulid::from_parts(1_700_000_000_000, 7),
        turn: Ulid::from_parts(1_700_000_000_000, 7),
        session: SessionRef {
            persona: "echo".to_owned(),
            session: "main".to_owned(),
        },
        delivery_context: DeliveryContext {
            channel: "nats".to_owned(),
            account_id: Some("demo".to_owned()),
            peer_id: Some("ann".to_owned()),
            thread_id: None,
            reply_to_id: Some("webchat:42".to_owned()),
        },
        content: content.to_owned(),
        attachments: Vec::new(),
        interactive: None,
        causation: DispatchCause {
            event: EventId::parse("webchat:42").expect("it is an id"),
            hops: 0,
        },
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    }
}
