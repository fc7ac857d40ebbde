//! Precedence as a table, mappings, and faults of a file.

use serde_json::json;
use shared::model::event::{EventId, EventPeer, PeerKind};
use shared::model::time::UnixMillis;

use super::*;

/// One binding of every tier, the least specific first, so that the order of the file does not decide.
const LADDER: &str = r#"
bindings:
  - persona: default
  - persona: channel
    match: { channel: discord }
  - persona: account
    match: { channel: discord, account: biz }
  - persona: team
    match: { team: t1 }
  - persona: guild
    match: { channel: discord, guild: g1 }
  - persona: guild-roles
    match: { guild: g1, roles: [admin, mod] }
  - persona: parent
    match: { parent_peer: { id: above } }
  - persona: peer
    match: { channel: discord, peer: { kind: channel, id: room } }
  - persona: peer-second
    match: { peer: { id: room } }
"#;

fn on_discord() -> Event {
    let mut event = Event::new(
        EventId::parse("discord:1").expect("valid"),
        "discord",
        "other",
        UnixMillis(1),
    );

    event.from.id = "ann".to_owned();
    event.peer = EventPeer {
        kind: PeerKind::Channel,
        id: "other".to_owned(),
        ..EventPeer::default()
    };

    event
}

fn persona(table: &BindingTable, event: &Event) -> Option<String> {
    table.decide_route(event)?.routing?.persona
}

#[test]
fn the_most_specific_tier_wins_whatever_the_order_of_the_file() {
    let table = BindingTable::parse(LADDER).expect("a file");

    type Change = fn(&mut Event);

    let rows: [(&str, Change); 11] = [
        ("default", |event| event.channel = "sms".to_owned()),
        ("channel", |_| {}),
        ("account", |event| event.account_id = Some("biz".to_owned())),
        ("team", |event| {
            event.account_id = Some("biz".to_owned());
            event.peer.team_id = Some("t1".to_owned());
        }),
        ("guild", |event| {
            event.peer.team_id = Some("t1".to_owned());
            event.peer.guild_id = Some("g1".to_owned());
            event.from.roles = vec!["guest".to_owned()];
        }),
        ("guild-roles", |event| {
            event.peer.guild_id = Some("g1".to_owned());
            event.from.roles = vec!["guest".to_owned(), "mod".to_owned()];
        }),
        ("parent", |event| {
            event.peer.guild_id = Some("g1".to_owned());
            event.from.roles = vec!["admin".to_owned()];
            event.peer.parent_id = Some("above".to_owned());
        }),
        // A thread under the room: by the room's own binding, one tier lower than the room itself.
        ("peer", |event| event.peer.parent_id = Some("room".to_owned())),
        ("peer", |event| {
            event.peer.id = "room".to_owned();
            event.peer.parent_id = Some("above".to_owned());
        }),
        // All fields that are given must match: the second listed names no kind.
        ("peer-second", |event| {
            event.peer.id = "room".to_owned();
            event.peer.kind = PeerKind::Group;
        }),
        // Roles alone, in another guild, match no binding.
        ("channel", |event| {
            event.peer.guild_id = Some("g2".to_owned());
            event.from.roles = vec!["admin".to_owned()];
        }),
    ];

    for (expected, change) in rows {
        let mut event = on_discord();
        change(&mut event);
        assert_eq!(persona(&table, &event).as_deref(), Some(expected), "{event:?}");
    }
}

#[test]
fn a_binding_without_a_match_takes_messages_of_people_only() {
    let file = "bindings: [{persona: default}, {persona: clock, match: {channel: timer, account: ticks}}]";
    let table = BindingTable::parse(file).expect("a file");

    type Change = fn(&mut Event);

    let rows: [(Option<&str>, Change); 7] = [
        (Some("default"), |_| {}),
        (None, |event| event.origin = EventOrigin::System),
        (None, |event| event.channel = "timer".to_owned()),
        (None, |event| event.source_adapter = "agent".to_owned()),
        (None, |event| event.source_adapter = "hook".to_owned()),
        (None, |event| event.direction = EventDirection::Created),
        // A binding that names them matches them.
        (Some("clock"), |event| {
            event.channel = "timer".to_owned();
            event.account_id = Some("ticks".to_owned());
            event.origin = EventOrigin::System;
        }),
    ];

    for (expected, change) in rows {
        let mut event = on_discord();
        change(&mut event);
        assert_eq!(persona(&table, &event).as_deref(), expected, "{event:?}");
    }
}

#[test]
fn within_a_tier_the_first_listed_wins() {
    let file = "bindings:
  - { persona: a, match: { channel: sms, account: work } }
  - { persona: b, match: { channel: sms } }
  - { persona: c, match: { channel: [sms, imessage] } }
  - { persona: d, match: { channel: imessage } }
";

    let table = BindingTable::parse(file).expect("a file");
    for (channel, expected) in [("sms", Some("b")), ("imessage", Some("c")), ("email", None)] {
        let mut event = on_discord();
        event.channel = channel.to_owned();
        assert_eq!(persona(&table, &event).as_deref(), expected, "{channel}");
    }
}

#[test]
fn the_seeds_spelling_is_read() {
    let file = r#"{"bindings": [{"agentId": "work", "match": {
        "channel": "whatsapp", "accountId": "biz", "peer": {"kind": "dm", "id": "+15551234567"}}}]}"#;
    let table = BindingTable::parse(file).expect("a file");
    let mut event = Event::new(
        EventId::parse("whatsapp:1").expect("valid"),
        "whatsapp",
        "+15551234567",
        UnixMillis(1),
    );

    assert_eq!(persona(&table, &event), None, "another account");

    event.account_id = Some("biz".to_owned());
    assert_eq!(persona(&table, &event).as_deref(), Some("work"));

    event.direction = EventDirection::Sent;
    assert_eq!(persona(&table, &event), None, "what we sent is not routed");

    event.direction = EventDirection::Received;
    event.add_tag(shared::model::event::UNPAIRED);
    assert_eq!(persona(&table, &event), None, "what is withheld is not routed");
}

#[test]
fn of_webhook_mappings_the_first_listed_wins_and_all_come_before_bindings() {
    let file = r#"
priority: 70
bindings:
  - { persona: fallback, match: { channel: webhook } }
mappings:
  - { source: stripe, match: { event_type: charge.*, payload.amount: [100, 200] }, persona: finance,
      session: "stripe:{{payload.customer}}", text: "{{event_type}} of {{payload.amount}}" }
  - { path: /hooks/stripe, persona: stripe }
  - { source: git*, match: { payload.draft: false }, persona: reviews, queue_mode: collect }
"#;

    let table = BindingTable::parse(file).expect("a file");
    assert_eq!((table.len(), table.priority(), table.is_fallback()), (4, 70, false));

    let decide = |source: &str, metadata: Value| {
        let mut event = Event::new(
            EventId::parse("webhook:x/1").expect("valid"),
            "webhook",
            source,
            UnixMillis(1),
        );

        event.metadata = metadata.as_object().expect("an object").clone();
        event.metadata.insert("source".to_owned(), json!(source));
        table.decide_route(&event).expect("somebody takes it")
    };

    let paid = decide(
        "stripe",
        json!({"event_type": "charge.paid", "payload": {"amount": 100, "customer": "c1"}}),
    );
    let routing = paid.routing.expect("routed");
    assert_eq!(
        (routing.persona.as_deref(), routing.session.as_deref()),
        (Some("finance"), Some("stripe:c1"))
    );
    assert_eq!(
        paid.context.and_then(|context| context.system_prompt).as_deref(),
        Some("charge.paid of 100")
    );

    let other = decide("stripe", json!({"event_type": "charge.paid", "payload": {"amount": 1}}));
    assert_eq!(
        other.routing.and_then(|routing| routing.persona).as_deref(),
        Some("stripe")
    );

    let review = decide("github", json!({"payload": {"draft": false}}))
        .routing
        .expect("routed");
    assert_eq!(
        (review.persona.as_deref(), review.queue_mode),
        (Some("reviews"), Some(QueueMode::Collect))
    );

    let draft = decide("github", json!({"payload": {"draft": true}}))
        .routing
        .expect("routed");
    assert_eq!(draft.persona.as_deref(), Some("fallback"));
}

#[test]
fn every_fault_is_named_with_its_entry_or_line() {
    for (file, faults) in [
        (
            "bindings:\n  - persona: a\n    mach: {}\n",
            vec!["bindings[0].mach: unknown key `mach`"],
        ),
        (
            "bindings: [{match: {channel: x}}]",
            vec!["bindings[0].persona: required, but missing"],
        ),
        (
            "bindings:\n  - persona: ''\n  - persona: a\n    match: {roles: [x]}\nmappings:\n  - persona: b\n  - {source: s, text: '{{x'}\n  - {source: s, match: {a: {}}}\n",
            vec![
                "mappings[0].source: required if there is no `path`",
                "mappings[1].text: expected `}}` after `{{`",
                "mappings[2].match.a: expected a text, number or boolean",
                "bindings[0].persona: expected a non-empty name",
                "bindings[1].match.roles: expected together with match.guild",
            ],
        ),
    ] {
        let found = BindingTable::parse(file).expect_err(file);
        assert_eq!(found.len(), faults.len(), "{found:?}");
        for (found, expected) in found.iter().zip(faults) {
            assert!(found.to_string().starts_with(expected), "{found}");
        }
    }

    let found =
        BindingTable::parse("bindings:\n  - persona: a\n    mach: {}\n  - {}\n  - persona: ''\n").expect_err("faults");
    let keys: Vec<&str> = found.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(
        keys,
        ["bindings[0].mach", "bindings[1].persona", "bindings[2].persona"],
        "{found:?}"
    );
}

/// Ten thousand bindings with a generous bound: `nexus bench hooks` measures (`docs/performance.md`).
#[test]
fn ten_thousand_bindings_cost_little_an_event() {
    use shared::clock::{Clock as _, SystemClock};

    let mut file = String::from("bindings:\n  - { persona: default }\n");
    for n in 0..10_000 {
        file.push_str(&format!(
            "  - {{ persona: p{n}, match: {{ channel: discord, guild: g{}, peer: {{ id: \"room{n}\" }} }} }}\n",
            n % 100
        ));
    }

    let table = BindingTable::parse(&file).expect("a file");
    // The best of ten: a busy machine takes its time from some of them.
    let each = (0..10).map(|tenth| {
        let begun = SystemClock.monotonic();

        for n in tenth * 100..(tenth + 1) * 100 {
            let mut event = on_discord();
            event.peer.id = format!("room{}", n * 7);
            event.peer.guild_id = Some(format!("g{}", (n * 7) % 100));
            assert_eq!(persona(&table, &event), Some(format!("p{}", n * 7)));
        }

        SystemClock.monotonic().duration_since(begun) / 100
    });

    let best = each.min().expect("ten of them");
    assert!(best < std::time::Duration::from_millis(2), "{best:?} an event");
}
