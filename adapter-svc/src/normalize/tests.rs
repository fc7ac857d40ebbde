use ulid::Ulid;

use super::*;
use crate::source::webhook::endpoint::{DedupeRule, SignatureScheme};
use crate::source::webhook::generic::HmacConfig;
use crate::source::webhook::mapping::{FieldMapping, FieldSource};
use crate::source::webhook::signature::tests::headers;
use crate::source::webhook::signature::{SignatureChecks, VerifiedSignature};

fn endpoint(scheme: SignatureScheme) -> WebhookEndpoint {
    WebhookEndpoint {
        name: "shop".to_owned(),
        scheme,
        checks: SignatureChecks {
            keys: Vec::new(),
            tolerance_s: 300,
        },
        hmac: HmacConfig::default(),
        verify_token: None,
        dedupe: DedupeRule::Auto,
        headers: vec!["x-mine".to_owned(), "x-my-signature".to_owned()],
        mapping: FieldMapping::default(),
        persons: false,
        channel: None,
    }
}

fn check(endpoint: &WebhookEndpoint, pairs: &[(&str, &str)], payload: &Value, verified: &VerifiedSignature) -> Event {
    let map = headers(pairs);
    let body = payload.to_string();
    let (now, fresh) = (UnixMillis(5_000), Ulid::from_parts(1, 2));

    let delivery = VerifiedRequest {
        headers: &map,
        body: body.as_bytes(),
        payload,
        verified,
        now,
        fresh,
    };

    let [event] = webhook_events(endpoint, &delivery).unwrap().try_into().unwrap();
    event
}

#[test]
fn a_github_delivery_is_known_by_its_body_and_keeps_its_name_type_and_payload() {
    let payload = json!({"action": "opened", "repository": {"full_name": "o/r"}});
    let with = |delivery: &str| {
        let pairs = [
            ("X-GitHub-Event", "issues"),
            ("X-GitHub-Delivery", delivery),
            ("x-mine", "1"),
            ("x-my-signature", "no"),
        ];

        check(
            &endpoint(SignatureScheme::Github),
            &pairs,
            &payload,
            &VerifiedSignature::default(),
        )
    };

    let event = with("72d3162e");
    let hash = sha256_hex(&[payload.to_string().as_bytes()]);
    assert_eq!(event.id.as_str(), format!("webhook:shop/{hash}"));
    assert_eq!(
        event.id,
        with("another").id,
        "a header that nothing signs makes no other event"
    );
    assert_eq!((event.channel.as_str(), event.peer.id.as_str()), ("webhook", "shop"));
    assert_eq!(event.content, "shop issues opened o/r");

    assert_eq!(event.metadata["event_type"], "issues");
    assert_eq!(event.metadata["delivery_id"], "72d3162e");
    assert_eq!(event.metadata["payload"], payload);
    assert_eq!(
        event.metadata["headers"],
        json!({"x-github-delivery": "72d3162e", "x-github-event": "issues", "x-mine": "1"})
    );
    assert_eq!(event.received_at, UnixMillis(5_000));
    assert_eq!(event.origin, EventOrigin::webhook("shop"));
    assert!(event.speaks_for.is_empty());
}

#[test]
fn metas_entries_are_events_of_their_own() {
    let source = endpoint(SignatureScheme::Meta);
    let ids = |payload: &Value| {
        let (map, verified, body) = (headers(&[]), VerifiedSignature::default(), payload.to_string());
        let delivery = VerifiedRequest {
            headers: &map,
            body: body.as_bytes(),
            payload,
            verified: &verified,
            now: UnixMillis(5),
            fresh: Ulid::from_parts(1, 2),
        };

        let events = webhook_events(&source, &delivery).unwrap();
        events.into_iter().map(|event| event.id.to_string()).collect::<Vec<_>>()
    };

    let entry = |id: &str| json!({"id": id, "time": 5, "changes": [{"field": "messages"}]});
    let both = ids(&json!({"object": "page", "entry": [entry("1"), entry("2")]}));
    assert_eq!(both.len(), 2);
    assert_ne!(both[0], both[1]);

    let second = ids(&json!({"object": "page", "entry": [entry("2"), entry("3")]}));
    assert_eq!(
        second[0], both[1],
        "an entry that comes again in another batch is the same event"
    );
    assert_eq!(ids(&json!({"object": "page"})).len(), 1);
}

#[test]
fn a_source_that_proves_persons_says_so() {
    let mut source = endpoint(SignatureScheme::Hmac);
    source.persons = true;
    source.channel = Some("telegram".to_owned());
    source.mapping.from = Some(FieldSource::Body("/from".to_owned()));
    let event = check(&source, &[], &json!({"from": "4711"}), &VerifiedSignature::default());

    assert_eq!((event.channel.as_str(), event.from.id.as_str()), ("telegram", "4711"));
    assert_eq!(
        (&event.origin, event.speaks_for),
        (&EventOrigin::webhook("shop"), vec!["*".to_owned()])
    );
}

#[test]
fn without_an_id_the_signed_time_and_body_identify() {
    let id = |endpoint: &WebhookEndpoint, timestamp| {
        let verified = VerifiedSignature {
            delivery_id: None,
            timestamp,
        };

        check(endpoint, &[("x-id", "9")], &json!({"a": 1}), &verified)
            .id
            .as_str()
            .to_owned()
    };

    let mut source = endpoint(SignatureScheme::Hmac);
    source.hmac.id_header = Some("x-id".to_owned());
    let of_body = format!("webhook:shop/{}", sha256_hex(&[b"{\"a\":1}"]));

    assert_eq!(id(&source, None), of_body);
    assert_eq!(
        id(&source, Some(7)),
        format!("webhook:shop/{}", sha256_hex(&[b"7.{\"a\":1}"]))
    );

    source.dedupe = DedupeRule::Body;
    assert_eq!(id(&source, Some(7)), of_body);

    let unsigned = endpoint(SignatureScheme::Unsigned);
    assert_eq!(id(&unsigned, None), format!("webhook:shop/{}", Ulid::from_parts(1, 2)));
}

#[test]
fn an_id_that_is_too_long_or_unprintable_is_hashed() {
    let stripe = endpoint(SignatureScheme::Stripe);
    let id = |own: &str| {
        check(&stripe, &[], &json!({ "id": own }), &VerifiedSignature::default())
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
    let pick = |text: &str| Some(FieldSource::try_from(text.to_owned()).unwrap());
    let mut source = endpoint(SignatureScheme::Unsigned);
    source.mapping = FieldMapping {
        id: pick("/order/id"),
        event_type: pick("header:x-kind"),
        content: pick("/order/note"),
        peer: pick("/customer"),
        from: pick("/customer"),
        from_name: pick("/name"),
        thread: pick("/order/id"),
        timestamp: pick("/at"),
        metadata: [
            ("total".to_owned(), FieldSource::Body("/order/total".to_owned())),
            ("priority".to_owned(), FieldSource::Constant("high".to_owned())),
            // The configured mapping cannot replace the name of the source.
            ("webhook_source".to_owned(), FieldSource::Constant("another".to_owned())),
        ]
        .into(),
    };

    let payload = json!({"order": {"id": 42, "note": "two pies", "total": 9.5}, "customer": "c7", "name": "Ada", "at": 1_700_000_000});
    let event = check(
        &source,
        &[("x-kind", "order.paid")],
        &payload,
        &VerifiedSignature::default(),
    );
    assert_eq!(event.id.as_str(), "webhook:shop/42");
    assert_eq!((event.content.as_str(), event.peer.id.as_str()), ("two pies", "c7"));
    assert_eq!(event.from.display_name.as_deref(), Some("Ada"));
    assert_eq!(event.thread_id.as_deref(), Some("42"));
    assert_eq!(event.timestamp, UnixMillis(1_700_000_000_000));
    assert_eq!(event.origin, EventOrigin::Open);
    assert_eq!(
        (&event.metadata["total"], &event.metadata["event_type"]),
        (&json!(9.5), &json!("order.paid"))
    );

    assert_eq!(
        (&event.metadata["priority"], &event.metadata["webhook_source"]),
        (&json!("high"), &json!("shop"))
    );
}

#[test]
fn an_event_from_outside_is_bounded() {
    let of = |timestamp| Event::new(EventId::parse("crm:9").unwrap(), "crm", "p", UnixMillis(timestamp));
    assert_eq!(check_posted(of(1), UnixMillis(2)).unwrap().received_at, UnixMillis(2));
    assert!(check_posted(of(-1), UnixMillis(2)).is_err());
}

#[test]
fn a_chat_message_is_a_dm_of_its_visitor() {
    let message = ChatMessage {
        id: "m1",
        thread: None,
        text: "hello",
    };
    let event = chat_message("default", "v-1", message, UnixMillis(3)).unwrap();
    assert_eq!(event.id.as_str(), "webchat:default/v-1/m1");
    assert_eq!(event.conversation(), ("webchat", "default", "v-1"));
    assert_eq!(event.peer.kind, PeerKind::Dm);
    assert_eq!(event.origin, EventOrigin::visitor("default", "v-1"));
    assert_eq!(event.thread_id, None);

    let begun = ChatMessage {
        thread: Some("7f"),
        ..message
    };
    let event = chat_message("default", "v-1", begun, UnixMillis(3)).unwrap();
    assert_eq!(event.thread_id.as_deref(), Some("7f"));

    let wrong = ChatMessage { id: "m\0", ..message };
    assert!(chat_message("default", "v", wrong, UnixMillis(0)).is_err());
}
