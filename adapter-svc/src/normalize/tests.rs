use super::*;
use crate::source::webhook::endpoint::Scheme;
use crate::source::webhook::generic::HmacConfig;
use crate::source::webhook::mapping::{Mapping, Pick};
use crate::source::webhook::signature::Checks;
use crate::source::webhook::signature::tests::headers;

fn endpoint(scheme: Scheme) -> Endpoint {
    Endpoint {
        name: "shop".to_owned(),
        scheme,
        checks: Checks {
            keys: Vec::new(),
            tolerance_s: 300,
        },
        hmac: HmacConfig::default(),
        verify_token: None,
        dedupe: Dedupe::Auto,
        headers: vec!["x-mine".to_owned(), "x-my-signature".to_owned()],
        mapping: Mapping::default(),
    }
}

fn check(endpoint: &Endpoint, pairs: &[(&str, &str)], payload: &Value, verified: &Verified) -> Event {
    let map = headers(pairs);
    let body = payload.to_string();
    let (now, fresh) = (UnixMillis(5_000), Ulid::from_parts(1, 2));
    let delivery = Delivery {
        headers: &map,
        body: body.as_bytes(),
        payload,
        verified,
        now,
        fresh,
    };
    webhook(endpoint, &delivery).unwrap()
}

#[test]
fn a_github_delivery_keeps_its_id_type_and_payload() {
    let pairs = [("X-GitHub-Event", "issues"), ("x-mine", "1"), ("x-my-signature", "no")];
    let verified = Verified {
        delivery_id: Some("72d3162e".to_owned()),
        timestamp: None,
    };
    let payload = json!({"action": "opened", "repository": {"full_name": "o/r"}});
    let event = check(&endpoint(Scheme::Github), &pairs, &payload, &verified);
    assert_eq!(event.id.as_str(), "webhook:shop/72d3162e");
    assert_eq!((event.channel.as_str(), event.peer.id.as_str()), ("webhook", "shop"));
    assert_eq!(event.content, "shop issues opened o/r");
    assert_eq!(event.metadata["event_type"], "issues");
    assert_eq!(event.metadata["payload"], payload);
    assert_eq!(
        event.metadata["headers"],
        json!({"x-github-event": "issues", "x-mine": "1"})
    );
    assert_eq!(event.received_at, UnixMillis(5_000));
    assert!(!event.metadata.contains_key(SELF_ASSERTED), "it is signed");
}

#[test]
fn without_an_id_the_timestamp_the_body_or_the_request_identifies() {
    let id = |endpoint: &Endpoint, timestamp| {
        let verified = Verified {
            delivery_id: None,
            timestamp,
        };
        check(endpoint, &[], &json!({"a": 1}), &verified).id.as_str().to_owned()
    };
    let mut source = endpoint(Scheme::Hmac);
    assert_eq!(id(&source, None), format!("webhook:shop/{}", Ulid::from_parts(1, 2)));
    assert_eq!(
        id(&source, Some(7)),
        format!("webhook:shop/{}", sha256_hex(&[b"7.{\"a\":1}"]))
    );
    source.dedupe = Dedupe::Body;
    assert_eq!(
        id(&source, Some(7)),
        format!("webhook:shop/{}", sha256_hex(&[b"{\"a\":1}"]))
    );
}

#[test]
fn an_id_that_is_too_long_or_unprintable_is_hashed() {
    let stripe = endpoint(Scheme::Stripe);
    let id = |own: &str| {
        check(&stripe, &[], &json!({ "id": own }), &Verified::default())
            .id
            .as_str()
            .to_owned()
    };
    let long = "a.* ".repeat(125);
    assert_eq!(id(&long[..490]), format!("webhook:shop/{}", &long[..490]));
    for own in [long.as_str(), "a\0b", "line\nbreak"] {
        let expected = sha256_hex(&[own.as_bytes()]);
        if own.len() > 499 || own.contains(char::is_control) {
            assert_eq!(id(own), format!("webhook:shop/sha256-{expected}"));
        }
    }
}

#[test]
fn a_mapping_says_where_fields_stand() {
    let pick = |text: &str| Some(Pick::try_from(text.to_owned()).unwrap());
    let mut source = endpoint(Scheme::Unsigned);
    source.mapping = Mapping {
        id: pick("/order/id"),
        event_type: pick("header:x-kind"),
        content: pick("/order/note"),
        peer: pick("/customer"),
        from: pick("/customer"),
        from_name: pick("/name"),
        thread: pick("/order/id"),
        timestamp: pick("/at"),
        metadata: [("total".to_owned(), Pick::Body("/order/total".to_owned()))].into(),
    };
    let payload = json!({"order": {"id": 42, "note": "two pies", "total": 9.5}, "customer": "c7", "name": "Ada", "at": 1_700_000_000});
    let event = check(&source, &[("x-kind", "order.paid")], &payload, &Verified::default());
    assert_eq!(event.id.as_str(), "webhook:shop/42");
    assert_eq!((event.content.as_str(), event.peer.id.as_str()), ("two pies", "c7"));
    assert_eq!(event.from.display_name.as_deref(), Some("Ada"));
    assert_eq!(event.thread_id.as_deref(), Some("42"));
    assert_eq!(event.timestamp, UnixMillis(1_700_000_000_000));
    assert_eq!(event.metadata[SELF_ASSERTED], true);
    assert_eq!(
        (&event.metadata["total"], &event.metadata["event_type"]),
        (&json!(9.5), &json!("order.paid"))
    );
}

#[test]
fn nobody_outside_may_speak_for_our_services() {
    let of = |id: &str, channel: &str| Event::new(EventId::parse(id).unwrap(), channel, "p", UnixMillis(1));
    for (id, channel) in [
        ("out:d/1", "webchat"),
        ("timer:tick:1", "x"),
        ("Agent:a:b:c", "x"),
        ("x:1", "timer"),
        ("cli:x", "webchat"),
        ("x:1", "CLI"),
        ("x:1", "link"),
        ("turn:1", "x"),
    ] {
        assert!(
            matches!(
                outside(of(id, channel), UnixMillis(2)),
                Err(RefuseEventError::Reserved(_))
            ),
            "{id}"
        );
    }
    let event = outside(of("crm:9", "crm"), UnixMillis(2)).unwrap();
    assert_eq!((event.received_at, event.source_id.as_str()), (UnixMillis(2), "9"));
    assert!(
        outside(
            Event {
                timestamp: UnixMillis(-1),
                ..of("crm:9", "crm")
            },
            UnixMillis(2)
        )
        .is_err()
    );
}

#[test]
fn a_chat_message_is_a_dm_of_its_visitor() {
    let event = chat_message("default", "v-1", "m1", "hello", UnixMillis(3)).unwrap();
    assert_eq!(event.id.as_str(), "webchat:default/v-1/m1");
    assert_eq!(event.conversation(), ("webchat", "default", "v-1"));
    assert_eq!(event.peer.kind, PeerKind::Dm);
    assert_eq!(event.metadata[SELF_ASSERTED], true);
    assert!(chat_message("default", "v", "m\0", "x", UnixMillis(0)).is_err());
}
