//! Bad input: whatever is put on a stream or posted ends as a typed error or a whole dead letter, and costs nobody
//! else.

use bytes::Bytes;
use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage, claim};
use shared::model::event::EventId;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::testing::nats::publish_by_hand;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::MAX_PAYLOAD_BYTES;
use shared::wire::headers::{CONTENT_TYPE, Headers, SCHEMA, TraceCarrier};
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::command::nexus;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{Setup, World, token};

use crate::story::{ANSWER, PATIENCE, event, send, session};

const JSON: (&str, &str) = (CONTENT_TYPE, "application/json");

/// Something that is no message of ours: headers, payload, and the reason that names what is wrong with it.
struct Bad {
    headers: Headers,
    payload: Bytes,
    reason: &'static str,
}

fn bad(headers: &[(&str, &str)], payload: impl Into<Bytes>, reason: &'static str) -> Bad {
    Bad {
        headers: headers.iter().copied().collect(),
        payload: payload.into(),
        reason,
    }
}

/// Everything that may be wrong with any message.
fn garbage() -> Vec<Bad> {
    vec![
        bad(&[], &b"\xff\x00\x13"[..], "malformed"),
        bad(&[], vec![0x81; 100_000], "malformed"),
        bad(&[JSON], &b"{\"id\": \"e2e:p/1\","[..], "malformed"),
        bad(&[JSON], &b"{\"id\": \"e2e:\xff\xfe\"}"[..], "malformed"),
        bad(&[JSON], &b"\0\0\0\0"[..], "malformed"),
        bad(&[], Bytes::new(), "malformed"),
        bad(&[(CONTENT_TYPE, "text/plain")], &b"hello"[..], "content_type"),
        bad(&[(SCHEMA, "of/no/form")], &b"\xa0"[..], "other_schema"),
        bad(&[], vec![b'x'; MAX_PAYLOAD_BYTES + 1], "oversize"),
    ]
}

/// What may be wrong with an event besides: of a newer release, and with a NUL in its text.
fn of_events() -> Vec<Bad> {
    let nul = event("e2e:nul", "p", "a\0b").to_string();
    vec![
        bad(&[(SCHEMA, "event/999")], &b"\xa1\x00\x00"[..], "newer_schema"),
        bad(&[JSON], nul, "invalid"),
    ]
}

async fn publish(bus: &Bus, subject: &str, all: &[Bad]) {
    for one in all {
        let out = OutgoingMessage::raw(subject.to_owned(), one.headers.clone(), one.payload.clone());
        bus.publish(out).await.expect("the server stores anything");
    }
}

/// The dead letters of `service`, once there are `count` of them.
async fn letters(world: &World, service: &str, count: usize) -> Vec<DeadLetter> {
    eventually("the dead letters", PATIENCE, async || {
        let all: Vec<(u64, DeadLetter)> = read_all(&world.bus, streams::DLQ).await;
        let mut own: Vec<DeadLetter> = all
            .into_iter()
            .map(|(_, l)| l)
            .filter(|l| l.service == service)
            .collect();

        // Messages of two conversations are given up side by side.
        own.sort_by_key(|letter| letter.sequence);

        if own.len() == count {
            Ok(own)
        } else {
            Err(format!("{} of {count} of {service}\n{}", own.len(), world.logs()))
        }
    })
    .await
}

/// Checks that `letters` hold `all`, in order, whole, each with a reason that names it.
fn check(letters: &[DeadLetter], all: &[Bad], stream: &str) {
    for (letter, bad) in letters.iter().zip(all) {
        let what = format!(
            "{} {}: {} {}",
            letter.stream, letter.sequence, letter.reason, letter.detail
        );
        assert_eq!(letter.payload_bytes().as_deref(), Some(&bad.payload[..]), "{what}");
        assert!(
            letter.reason == bad.reason && letter.stream == stream && !letter.detail.is_empty(),
            "{what}"
        );

        let kept = |(name, value): (&str, &str)| letter.headers.iter().any(|(n, v)| n == name && v == value);
        assert!(bad.headers.iter().all(kept), "{what}: {:?}", letter.headers);
    }
}

/// Checks that `letters` of timers hold all the garbage, subject by subject; timers are handled side by side.
fn check_timers(mut letters: Vec<DeadLetter>) {
    letters.sort_by_key(|letter| letter.sequence);
    for of_one in letters.chunk_by(|left, right| left.subject == right.subject) {
        assert_eq!(of_one.len(), garbage().len());
        check(of_one, &garbage(), streams::SCHEDULES);
    }
}

/// Checks that `letters`, which were written side by side, hold `all`.
fn check_each(mut letters: Vec<DeadLetter>, all: &[Bad], stream: &str) {
    letters.sort_by_key(|letter| letter.sequence);
    check(&letters, all, stream);
}

/// What lies on the streams that only services write: claims, parked replies, receipts, a ledger. Answers what was put
/// on the first two.
async fn on_the_way(bus: &Bus) -> (Vec<Bad>, Vec<Bad>) {
    // Nothing as large as this is stored there.
    let small = || garbage().into_iter().filter(|bad| bad.reason != "oversize");
    let claims: Vec<Bad> = small().collect();
    for (number, claim) in claims.iter().enumerate() {
        publish(
            bus,
            &subject::claim(&session(&format!("bad-{number}"))),
            std::slice::from_ref(claim),
        )
        .await;
    }

    let mut parked: Vec<Bad> = garbage();
    for bad in &mut parked {
        bad.headers.insert("Nexus-Delivery-Copy", "1@1");
    }

    // Where the good event's answer goes, which has to come through behind all this.
    let stored = bus
        .next_on_subject(streams::DELIVERIES, "nexus.dl.*.nats.e2e.p", 1)
        .await;
    let stored = stored.expect("the stream").expect("a delivery that cannot be read");
    publish(bus, &stored.subject.replacen("nexus.dl", "nexus.parked", 1), &parked).await;
    let receipts: Vec<Bad> = small().collect();
    publish(bus, "nexus.receipt.nats.e2e.p", &receipts).await;

    let ledger: Vec<Bad> = small().collect();
    publish(bus, &subject::ledger(&session("q")), &ledger).await;

    (claims, parked)
}

/// Sends a good event and waits for its answer's receipt.
async fn answered(world: &World, event_id: &str, peer: &str) {
    send(world, &event(event_id, peer, "still there?")).await;
    let mut receipts = world
        .bus
        .read_ordered(streams::RECEIPTS, &[], 1)
        .await
        .expect("receipts can be read");

    let delivered = async {
        loop {
            let Ok(receipt) = receipts.next().await.decode::<Receipt>() else {
                continue;
            };
            if receipt.causation.event.as_str() == event_id && matches!(receipt.step, ReceiptStep::Delivered { .. }) {
                return;
            }
        }
    };

    let waited = tokio::time::timeout(PATIENCE, delivered).await;
    assert!(waited.is_ok(), "{event_id} is not answered\n{}", world.logs());
}

fn setup() -> Setup {
    Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_a_dead_letter_and_its_partition_goes_on() {
    let mut world = World::start(Setup {
        without: vec!["delivery-svc"],
        ..setup()
    })
    .await;
    let (session, bus) = (session("p"), world.bus.clone());
    let events: Vec<Bad> = garbage().into_iter().chain(of_events()).collect();

    let newer = |schema| bad(&[(SCHEMA, schema)], &b"\xa0"[..], "newer_schema");
    let dispatches: Vec<Bad> = garbage().into_iter().chain([newer("dispatch/999")]).collect();
    let deliveries: Vec<Bad> = garbage().into_iter().chain([newer("reply/999")]).collect();

    // All three ways lead to the same conversation, and the good event behind them takes all three.
    publish(&bus, "nexus.event.e2e.default.p", &events).await;
    publish(&bus, &subject::dispatch(&session), &dispatches).await;
    claim::publish(&bus, &session, &TraceCarrier::default())
        .await
        .expect("claimed");
    publish(&bus, "nexus.delivery.nats.e2e.p", &deliveries).await;
    let (claims, parked) = on_the_way(&bus).await;
    world.stack.launch("delivery-svc", 0).expect("it starts");

    // What a timer leaves when it rings.
    for fired in ["nexus.fire.x", "nexus.fire.intent.x", "nexus.fire.approval.x"] {
        publish(&bus, fired, &garbage()).await;
    }

    answered(&world, "e2e:p/good", "p").await;
    check(
        &letters(&world, "hook-svc", events.len()).await,
        &events,
        streams::EVENTS,
    );

    check_timers(letters(&world, "scheduler-svc", 2 * garbage().len()).await);
    let of_broker = letters(&world, "broker-svc", dispatches.len() + garbage().len() + claims.len()).await;
    let (timers, of_broker): (Vec<_>, Vec<_>) = of_broker.into_iter().partition(|l| l.stream == streams::SCHEDULES);
    check_timers(timers);
    let (of_claims, of_broker): (Vec<_>, Vec<_>) = of_broker.into_iter().partition(|l| l.stream == streams::CLAIMS);
    check_each(of_claims, &claims, streams::CLAIMS);

    check(&of_broker, &dispatches, streams::DISPATCHES);

    let of_delivery = letters(&world, "delivery-svc", deliveries.len() + parked.len()).await;
    let (of_parked, of_delivery): (Vec<_>, Vec<_>) = of_delivery.into_iter().partition(|l| l.stream == streams::PARKED);
    check_each(of_parked, &parked, streams::PARKED);

    check(&of_delivery, &deliveries, streams::DELIVERIES);

    let id = EventId::parse("e2e:p/good").expect("an id");
    let trace = cli::trace::await_complete(&bus, &id, PATIENCE)
        .await
        .expect("the read model answers");

    assert!(trace.complete, "the read model goes on as well: {trace:?}");

    operate(&world).await;
    assert_eq!(world.ended(), Vec::<String>::new(), "a service died\n{}", world.logs());

    world.stack.stop().await;
}

/// An operator lists the letters, looks at one, and redrives it: it comes back, for it is as bad as before.
async fn operate(world: &World) {
    let server = world.stack.nats[0].url();
    let nexus = async |arguments: &[&str]| {
        let said = nexus(world.path(), &[&["--server", &server], arguments].concat()).await;
        assert_eq!(said.code, Some(0), "nexus {arguments:?}: {}{}", said.out, said.err);
        said
    };

    let listed = nexus(&["--json", "dlq", "list", "--service", "hook-svc"]).await;
    let listed: Vec<Value> = serde_json::from_str(&listed.out).expect("JSON");
    let of = |reason: &str| {
        listed
            .iter()
            .find(|row| row["letter"]["reason"] == reason)
            .expect("a letter")
    };

    for (reason, word) in [
        ("newer_schema", "event/999"),
        ("oversize", "4194305 bytes"),
        ("malformed", "malformed cbor"),
    ] {
        let number = of(reason)["number"].to_string();
        let shown = nexus(&["dlq", "show", &number]).await;
        assert!(
            shown.out.contains(reason) && shown.out.contains(word),
            "{reason}: {:.2000}",
            shown.out
        );
    }

    let before: u64 = listed
        .iter()
        .filter_map(|row| row["number"].as_u64())
        .max()
        .unwrap_or_default();
    let number = of("newer_schema")["number"].to_string();
    nexus(&["dlq", "redrive", &number]).await;

    eventually("it is given up again", PATIENCE, async || {
        let listed = nexus(&["--json", "dlq", "list", "--service", "hook-svc"]).await;
        let rows: Vec<Value> = serde_json::from_str(&listed.out).expect("JSON");
        let numbers: Vec<String> = rows.iter().map(|row| row["number"].to_string()).collect();
        let gone = !numbers.contains(&number);

        let newer = |row: &&Value| row["letter"]["reason"] == "newer_schema" && row["number"].as_u64() > Some(before);
        if gone && rows.iter().filter(newer).count() == 1 {
            Ok(())
        } else {
            Err(listed.out)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_cost_everybody_the_connection_cost_no_event() {
    let mut world = World::start(setup()).await;
    answered(&world, "e2e:p/before", "p").await;

    let block = b"NATS/1.0\r\nthis line has no colon\r\n\r\n";
    for subject in ["nexus.event.e2e.default.p", &subject::dispatch(&session("p"))] {
        publish_by_hand(&world.stack.nats[0].url(), subject, block, b"whole").await;
    }

    answered(&world, "e2e:p/behind", "p").await;
    let letters = letters(&world, "bus", 2).await;
    for letter in &letters {
        assert_eq!(letter.payload_bytes().as_deref(), Some(&b"whole"[..]));
        assert_eq!(letter.reason, "unreadable_headers");
    }

    assert_eq!(world.ended(), Vec::<String>::new(), "a service died\n{}", world.logs());

    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_taken_is_refused_with_a_typed_error_and_moves_no_stream() {
    let mut world = World::start(Setup {
        without: vec!["scheduler-svc"],
        ..setup()
    })
    .await;
    let client = cli::http::client().expect("an HTTP client");
    let own = token("e2e");
    let own = Some(own.as_str());

    let local = cli::launch::token::read(&cli::launch::token::file(world.path())).expect("the local token");
    let post = async |token: Option<&str>, kind: &str, body: Vec<u8>| {
        let request = client
            .post(format!("{}/v1/events", world.gateway()))
            .header("content-type", kind)
            .body(body);
        let request = token
            .into_iter()
            .fold(request, |request, token| request.bearer_auth(token));
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();

        let body: Value = answer.json().await.expect("a JSON body");
        (status, body)
    };

    let before = world.bus.stream_state(streams::EVENTS).await.expect("the stream").last;
    let good = event("e2e:p/1", "p", "good");
    let with = |key: &str, value: Value| {
        let mut changed = good.clone();
        changed[key] = value;
        changed.to_string().into_bytes()
    };

    let json = "application/json";
    let cases: Vec<(u16, Option<&str>, &str, Vec<u8>)> = vec![
        (401, None, json, good.to_string().into_bytes()),
        (401, Some("another"), json, good.to_string().into_bytes()),
        (400, own, json, b"{\"id\": ".to_vec()),
        (400, own, json, b"{\"id\": \"e2e:\xff\xfe\"}".to_vec()),
        (400, own, json, b"\0".to_vec()),
        (403, Some(&local), json, good.to_string().into_bytes()),
        (403, own, json, with("channel", json!("telegram"))),
        (403, own, json, with("channel", json!("cli"))),
        (400, own, json, with("id", json!("e2e:"))),
        (400, own, json, with("id", json!(format!("e2e:{}", "x".repeat(600))))),
        (400, own, json, with("content", json!("a\0b"))),
        (400, own, json, with("colour", json!("red"))),
        (413, own, json, vec![b' '; 9 * 1024 * 1024]),
    ];

    for (wanted, token, kind, body) in cases {
        let told = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let (status, answer) = post(token, kind, body).await;
        assert_eq!(status, wanted, "{told}: {answer}");

        let error = &answer["error"];
        assert!(
            error["code"].is_string() && error["message"].is_string(),
            "{told}: {answer}"
        );
    }

    let after = world.bus.stream_state(streams::EVENTS).await.expect("the stream").last;
    assert_eq!(after, before, "something was stored");

    let (status, answer) = post(own, json, good.to_string().into_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(world.ended(), Vec::<String>::new());

    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_500_bytes_with_dots_stars_and_spaces_go_the_whole_way() {
    let world = World::start(setup()).await;
    let odd = |seed: &str| {
        format!("{seed}{}", ". *>é".repeat(100))
            .chars()
            .take(420)
            .collect::<String>()
    };

    let peers = [odd("a"), odd("b")];
    for peer in &peers {
        assert!((500..=512).contains(&peer.len()), "{} bytes", peer.len());

        let id: String = format!("e2e:{peer}").chars().take(420).collect();
        assert!(id.len() <= 512, "{} bytes", id.len());

        let mut heard = world
            .bus
            .core_subscribe(&subject::out("e2e", peer))
            .await
            .expect("a subscription");
        world.bus.flush().await.expect("the server knows");
        answered(&world, &id, peer).await;

        let part = tokio::time::timeout(PATIENCE, heard.next())
            .await
            .expect("in time")
            .expect("a part");
        let part: Value = serde_json::from_slice(&part.payload).expect("JSON");
        assert_eq!(part["content"], "echo: still there?");
        assert_eq!(part["session"]["session"], session(peer).session);

        let id = EventId::parse(id).expect("an id");
        let trace = cli::trace::await_complete(&world.bus, &id, PATIENCE)
            .await
            .expect("the read model answers");

        assert!(trace.complete, "{trace:?}");
    }

    let dead: Vec<(u64, DeadLetter)> = read_all(&world.bus, streams::DLQ).await;
    assert_eq!(dead, []);

    world.stack.stop().await;
}
