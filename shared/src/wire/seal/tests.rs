use proptest::prelude::*;

use super::super::envelope::encode;
use super::super::subject;
use super::*;

fn key(byte: u8) -> SealKey {
    SealKey::from_bytes(&[byte; 32])
}

fn trust() -> TrustKeys {
    let roof = EdgeKey {
        channel: "lora".to_owned(),
        key: key(2),
        persons: Vec::new(),
    };
    let cellar = EdgeKey {
        key: key(3),
        ..roof.clone()
    };

    let edges = [("roof", roof), ("cellar", cellar)].map(|(name, edge)| (name.to_owned(), edge));
    TrustKeys::new(key(1), vec![key(9)]).with_edges(BTreeMap::from(edges))
}

fn event(id: &str, channel: &str, account: &str, origin: &str) -> Event {
    let mut event = Event::new(EventId::parse(id).unwrap(), channel, "p.1", UnixMillis(1));
    event.account_id = Some(account.to_owned());
    event.origin = EventOrigin::parse(origin).unwrap();
    event
}

/// Returns the event that `event`, sealed by `key` as of `sealed` and stored under its own subject, is admitted as.
fn admit(event: &Event, seal: Option<(&SealKey, &str)>) -> Result<String, &'static str> {
    let (content, mut headers) = encode(event, PayloadFormat::Cbor);
    if let Some((key, origin)) = seal {
        let origin = EventOrigin::parse(origin).unwrap();
        headers.insert(SEAL, key.seal(&event.id, &content, &origin));
    }

    let stored = subject::event(event).replace("nexus.event.", "nexus.ev.7.");
    let admitted = trust().admit_event(&stored, &headers, &content, event.clone());

    admitted
        .map(|event| event.origin.to_string())
        .map_err(|error| error.reason())
}

#[test]
fn the_clusters_seal_is_believed() {
    for origin in ["verified:telegram/bot", "system", "token:crm", "open"] {
        let said = event("timer:tick/1", "timer", "default", origin);
        assert_eq!(admit(&said, Some((&key(1), origin))).as_deref(), Ok(origin));
        assert_eq!(
            admit(&said, Some((&key(9), origin))).as_deref(),
            Ok(origin),
            "a former key"
        );
    }
}

#[test]
fn an_edge_is_believed_about_its_own_events_only() {
    let own = event("lora:roof/1", "lora", "roof", "system");
    assert_eq!(
        admit(&own, Some((&key(2), "edge:roof"))).as_deref(),
        Ok("edge:roof"),
        "not what it says"
    );

    let table = [
        (
            "another source's id",
            event("webhook:std/1", "lora", "roof", "open"),
            2,
            "edge:roof",
        ),
        (
            "a timer's id",
            event("timer:tick/1", "lora", "roof", "open"),
            2,
            "edge:roof",
        ),
        (
            "another edge's id",
            event("lora:cellar/1", "lora", "roof", "open"),
            2,
            "edge:roof",
        ),
        (
            "no id of its own",
            event("lora:roof/", "lora", "roof", "open"),
            2,
            "edge:roof",
        ),
        ("another edge's key", own.clone(), 3, "edge:roof"),
        (
            "another edge's account",
            event("lora:cellar/1", "lora", "cellar", "open"),
            2,
            "edge:cellar",
        ),
        (
            "another channel",
            event("lora:roof/1", "signal", "roof", "open"),
            2,
            "edge:roof",
        ),
        ("the cluster's word under its own key", own.clone(), 2, "system"),
    ];

    for (what, event, sealed_by, origin) in table {
        assert_eq!(
            admit(&event, Some((&key(sealed_by), origin))),
            Err("foreign_id"),
            "{what}"
        );
    }
}

#[test]
fn without_a_seal_an_event_is_open_and_has_ids_of_its_own() {
    let mut said = event("open:crm/default/9", "crm", "default", "verified:telegram/bot");
    said.speaks_for = vec!["*".to_owned()];
    said.source_adapter = "telegram".to_owned();

    assert_eq!(admit(&said, None).as_deref(), Ok("open"));

    let (content, headers) = encode(&said, PayloadFormat::Cbor);
    let admitted = trust()
        .admit_event("nexus.ev.1.crm.default.p=2E1", &headers, &content, said)
        .unwrap();

    assert!(admitted.speaks_for.is_empty());
    assert_eq!(
        (admitted.source_adapter.as_str(), admitted.source_id.as_str()),
        ("open", "crm/default/9")
    );

    for id in [
        "crm:9",
        "timer:1",
        "webhook:std/msg_1",
        "open:crm/other/9",
        "open:telegram/default/9",
        "out:1/0",
    ] {
        assert_eq!(
            admit(&event(id, "crm", "default", "open"), None),
            Err("foreign_id"),
            "{id}"
        );
    }
}

#[test]
fn the_systems_own_channels_take_sealed_events_only() {
    for channel in [
        "timer", "agent", "cli", "webhook", "webchat", "Timer", "telegram", "Slack", "discord",
    ] {
        let said = event(&format!("open:{channel}/default/1"), channel, "default", "system");
        assert_eq!(admit(&said, None), Err("unsealed"), "{channel}");
        assert_eq!(admit(&said, Some((&key(2), "system"))), Err("unsealed"), "{channel}");
    }
}

#[test]
fn an_event_that_contradicts_its_subject_is_refused_whoever_sealed_it() {
    let said = event("telegram:bot/1", "telegram", "bot", "system");
    let (content, mut headers) = encode(&said, PayloadFormat::Cbor);
    headers.insert(SEAL, key(1).seal(&said.id, &content, &said.origin));

    for subject in [
        "nexus.ev.3.timer.bot.p=2E1",
        "nexus.ev.3.telegram.other.p=2E1",
        "nexus.ev.3.telegram.bot.p2",
        "nexus.event.telegram.bot.p=2E1",
    ] {
        let refused = trust().admit_event(subject, &headers, &content, said.clone());
        assert_eq!(refused.unwrap_err().reason(), "wrong_subject", "{subject}");
    }

    assert!(
        trust()
            .admit_event("nexus.ev.3.telegram.bot.p=2E1", &headers, &content, said)
            .is_ok()
    );
}

#[test]
fn a_shortened_token_is_compared_as_it_is_stored() {
    let long = event("telegram:x/1", "telegram", &"a".repeat(300), "system");
    assert_eq!(admit(&long, Some((&key(1), "system"))).as_deref(), Ok("system"));
}

#[test]
fn keys_are_hexadecimal_or_base64_and_long() {
    let hex = HEXLOWER.encode(&[7; 32]);
    let event = event("crm:9", "crm", "default", "open");
    let id = key(7).message_id(&event);
    for text in [
        hex.clone(),
        hex.to_uppercase(),
        STANDARD.encode([7; 32]),
        format!("{hex}\n"),
    ] {
        assert_eq!(SealKey::parse(&text).unwrap().message_id(&event), id);
    }

    assert_eq!(SealKey::parse(&hex[..62]).unwrap_err(), ParseKeyError::Short(31));
    assert_eq!(SealKey::parse("secret!").unwrap_err(), ParseKeyError::Encoding);
    assert_eq!(format!("{:?}", key(7)), "SealKey(…)");

    let (one, same, other) = (key(7).fingerprint(), key(7).fingerprint(), key(8).fingerprint());
    assert_eq!((one.len(), &one), (16, &same));
    assert_ne!(one, other);
}

/// The values are those of the Python program in `docs/agents.md`.
#[test]
fn another_language_makes_the_same() {
    let id = EventId::parse("lora:roof/1").unwrap();
    let origin = EventOrigin::parse("edge:roof").unwrap();
    assert_eq!(
        key(7).seal(&id, b"{}", &origin),
        "67cbd6aacfb9e4f68f8b76273afa52dff05c5cb0df394efdb51c136f5d141b1c"
    );
    let event = event("lora:roof/1", "lora", "roof", "open");
    assert_eq!(key(7).message_id(&event), "5rp22mgqw7eeiewuat4wlddv2hokxde5");
}

#[test]
fn message_ids_differ_by_key_and_a_change_has_one_per_content() {
    let one = event("crm:9", "crm", "default", "open");
    let id = key(1).message_id(&one);
    assert!(
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{id}"
    );
    assert_ne!(key(2).message_id(&one), id);

    let changed = |content: &str, received| {
        let event = Event {
            direction: EventDirection::Updated,
            content: content.to_owned(),
            received_at: UnixMillis(received),
            ..one.clone()
        };

        key(1).message_id(&event)
    };

    assert_eq!(changed("a", 1), changed("a", 2), "a receipt is no change");
    assert_ne!(changed("a", 1), changed("b", 1));
    assert_ne!(changed("a", 1), id);
}

#[test]
fn another_order_of_keys_is_no_change() {
    let told = |metadata: &str| {
        key(1).message_id(&Event {
            direction: EventDirection::Updated,
            metadata: serde_json::from_str(metadata).unwrap(),
            ..event("crm:9", "crm", "default", "open")
        })
    };
    let one = told(r#"{"a": {"c": 1, "b": [{"e": 1, "d": 2}]}, "f": 3}"#);
    assert_eq!(one, told(r#"{"f": 3, "a": {"b": [{"d": 2, "e": 1}], "c": 1}}"#));
}

proptest! {
    /// Any event of a stranger, under any seal, is refused or open.
    #[test]
    fn nothing_is_believed_without_a_key(
        id in "(open|timer|lora|webhook):[a-z/]{1,12}",
        channel in "(lora|timer|crm)",
        account in "(roof|default)",
        origin in "(system|open|edge:roof|token:a|verified:telegram/bot)",
        seal in proptest::option::of("([0-9a-f]{64}|[0-9a-f]{0,70}|\\PC{0,8})"),
    ) {
        let event = event(&id, &channel, &account, &origin);
        let (content, mut headers) = encode(&event, PayloadFormat::Cbor);
        if let Some(seal) = seal {
            headers.insert(SEAL, seal);
        }
        let stored = subject::event(&event).replace("nexus.event.", "nexus.ev.7.");
        if let Ok(admitted) = trust().admit_event(&stored, &headers, &content, event) {
            prop_assert_eq!(&admitted.origin, &EventOrigin::Open);
            let prefix = format!("open:{channel}/{account}/");
            prop_assert!(admitted.id.as_str().starts_with(&prefix));
        }
    }

    /// A seal is valid for one id, one content and one origin.
    #[test]
    fn a_seal_is_of_one_event(flip in 0_usize..3, id in "crm:[a-z]{1,9}") {
        let said = event(&id, "crm", "default", "token:crm");
        let (content, mut headers) = encode(&said, PayloadFormat::Cbor);
        let mut other = said.clone();
        match flip {
            0 => other.id = EventId::parse(format!("{id}x")).unwrap(),
            1 => other.content.push('x'),
            _ => other.origin = EventOrigin::System,
        }
        let (changed, _) = encode(&other, PayloadFormat::Cbor);
        headers.insert(SEAL, key(1).seal(&said.id, &content, &said.origin));
        let stored = subject::event(&other).replace("nexus.event.", "nexus.ev.7.");
        prop_assert!(trust().admit_event(&stored, &headers, &changed, other).is_err());
    }
}

#[test]
fn only_a_service_says_that_a_file_is_stored() {
    for (origin, sealed_by, is_stored) in [
        ("verified:telegram/main", 1, true),
        ("system", 1, true),
        ("edge:roof", 2, false),
        ("open", 1, false),
    ] {
        let mut said = event("lora:roof/1", "lora", "roof", origin);
        let mut file = crate::model::event::Attachment::default();
        file.set_stored(&"0".repeat(64), 1);
        said.attachments = vec![file];
        let (content, mut headers) = encode(&said, PayloadFormat::Cbor);
        headers.insert(SEAL, key(sealed_by).seal(&said.id, &content, &said.origin));
        let stored = subject::event(&said).replace("nexus.event.", "nexus.ev.7.");
        let read = trust().read_stored(&stored, &headers, &content, UnixMillis(500));
        let read = read.expect("admitted");
        assert_eq!(read.attachments[0].stored_hash().is_some(), is_stored, "{origin}");
    }
}

#[test]
fn an_event_was_received_when_a_service_says_so_and_else_when_it_was_stored() {
    let check = |origin: &str, sealed_by: u8, received: i64, expected: i64| {
        let mut said = event("lora:roof/1", "lora", "roof", origin);
        said.received_at = UnixMillis(received);
        let (content, mut headers) = encode(&said, PayloadFormat::Cbor);
        headers.insert(SEAL, key(sealed_by).seal(&said.id, &content, &said.origin));
        let stored = subject::event(&said).replace("nexus.event.", "nexus.ev.7.");
        let read = trust().read_stored(&stored, &headers, &content, UnixMillis(500));
        let read = read.expect("admitted");

        assert_eq!(read.received_at, UnixMillis(expected), "{origin} {sealed_by}");
    };

    check("system", 1, 400, 400);
    check("token:crm", 1, 400, 400);
    check("token:crm", 1, 0, 500);
    check("edge:roof", 2, 400, 500);
    check("open", 1, 400, 500);
}
