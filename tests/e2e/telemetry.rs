//! What an operator sees: one trace over five processes, metrics that parse, failures that name their ids.

use std::time::Duration;

use bytes::Bytes;
use cli::demo::senders::chat;
use futures_util::StreamExt as _;
use serde_json::Value;
use shared::bus::OutgoingMessage;
use shared::wire::headers::{CAUSATION, EVENT, Headers};
use shared::wire::subject;
use tests::collector::{Collector, Span};
use tests::command::nexus;
use tests::eventually::eventually;
use tests::page;
use tests::prometheus::parse;
use tests::world::{Setup, World, shipped_hook};
use tokio_tungstenite::tungstenite::Message;

use crate::story::{PATIENCE, event, send};

/// Sends every tick to the open page of a visitor.
const TICK: &str = r#"/** @name tick */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "timer") return { fire: false };
  return { fire: true, routing: { session: "ticks" },
    deliveryContext: { channel: "webchat", accountId: "default", peerId: "watcher" } };
};
"#;
/// Sends events to an agent that is not there, or to a channel that is not there; or does not know what to do.
const FAIL: &str = r#"/** @name fail */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "e2e" || e.direction !== "received") return { fire: false };
  if (e.content === "throw") throw new Error("no");
  return { fire: true, routing: { persona: e.content, session: "s-" + e.peer.id },
    deliveryContext: { channel: "nowhere", accountId: "e2e", peerId: e.peer.id } };
};
"#;
const PERSONAS: &str = "personas: {absent: {runner: nats, limits: {no_agent_ms: 300}}}";

fn setup(collector: &Collector) -> Setup {
    let environment = [
        ("NEXUS__TELEMETRY__OTLP_ENDPOINT", collector.endpoint()),
        ("NEXUS__TELEMETRY__LOG", "json".to_owned()),
    ];

    Setup {
        hooks: vec![
            ("tick.ts", TICK.replace("watcher", &page::visitor())),
            ("fail.ts", FAIL.to_owned()),
            ("default-dm-routing.ts", shipped_hook("default-dm-routing.ts")),
        ],
        personas: PERSONAS.to_owned(),
        environment: environment.map(|(key, value)| (key.to_owned(), value)).into(),
        without: vec!["scheduler-svc"],
        ..Setup::default()
    }
}

/// The span `name` of `service` that is a child of `parent` and, for a message consumed, links to it.
fn child<'a>(spans: &'a [Span], parent: &Span, service: &str, name: &str) -> Result<&'a Span, String> {
    let is = |span: &&Span| span.service == service && span.name == name && span.parent == parent.id;
    let found = spans
        .iter()
        .find(is)
        .ok_or_else(|| format!("no {name} of {service} below {parent:?} in {spans:#?}"))?;
    if found.trace != parent.trace || found.links != [parent.id.clone()] {
        return Err(format!("{found:?} is no consumer of {parent:?}"));
    }
    Ok(found)
}

/// The way from `root` to the page, span by span.
fn way(spans: &[Span], root: &Span) -> Result<(), String> {
    let evaluated = child(spans, root, "hook-svc", "hook.evaluate")?;
    let turn = child(spans, evaluated, "broker-svc", "broker.turn")?;
    let attempt = child(spans, turn, "delivery-svc", "delivery.attempt")?;
    child(spans, attempt, "adapter-svc", "webchat.forward")?;

    if [evaluated, turn, attempt]
        .iter()
        .all(|span| span.event_id == root.event_id)
    {
        Ok(())
    } else {
        Err(format!("the spans do not name event {}: {spans:#?}", root.event_id))
    }
}

/// Waits for the one trace whose root is `name` of `service`, with its whole way.
async fn traced(collector: &Collector, service: &str, name: &str, event_id: &str) -> Span {
    eventually("the trace", PATIENCE, async || {
        let spans = collector.spans();
        let is = |span: &&Span| span.service == service && span.name == name && span.event_id == event_id;
        let root = spans
            .iter()
            .find(is)
            .ok_or_else(|| format!("no {name} for {event_id} in {spans:#?}"))?;

        let own: Vec<Span> = spans.iter().filter(|span| span.trace == root.trace).cloned().collect();
        way(&own, root).map(|()| root.clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_covers_the_five_processes() {
    let collector = Collector::start().await;
    let mut world = World::start(setup(&collector)).await;
    let mut page = page::open(&world.gateway()).await;

    // The scheduler starts with the page open: the tick of the running minute goes the whole way to it.
    world.stack.launch("scheduler-svc", 0).expect("it starts");
    let part = tokio::time::timeout(PATIENCE, async {
        loop {
            let frame = page.next().await.expect("the page is open").expect("the page is open");
            let Message::Text(text) = frame else { continue };
            let word: Value = serde_json::from_str(&text).expect("JSON");
            if word["type"] == "part" {
                return word;
            }
        }
    });

    part.await
        .unwrap_or_else(|_| panic!("the page is not told of the tick\n{}", world.logs()));
    let root = eventually("the tick's span", PATIENCE, async || {
        let spans = collector.spans();
        spans
            .iter()
            .find(|span| span.name == "scheduler.tick")
            .cloned()
            .ok_or_else(|| format!("{spans:#?}"))
    })
    .await;

    assert_eq!(root.parent, "", "a tick begins a trace");

    traced(&collector, "scheduler-svc", "scheduler.tick", &root.event_id).await;
    let services: Vec<String> = collector
        .spans()
        .into_iter()
        .filter(|span| span.trace == root.trace)
        .map(|span| span.service)
        .collect();

    for service in cli::launch::SERVICES {
        assert!(
            services.iter().any(|known| known == service),
            "{service} in {services:?}"
        );
    }

    let (id, _) = chat(&world.gateway(), "hello", PATIENCE).await.expect("an answer");
    let accepted = traced(&collector, "adapter-svc", "event.accept", &id).await;
    assert!(
        accepted.parent.is_empty() && accepted.trace != root.trace,
        "a chat message is a trace of its own"
    );

    world.stack.stop().await;
}

/// What goes wrong with one message in each service: who says so, in which words, of which event, and what else the line
/// names.
const FAILURES: [(&str, &str, &str, &[&str]); 5] = [
    (
        "adapter-svc-0",
        "failed to decode a part for a chat page",
        "e2e:part",
        &["peer"],
    ),
    ("hook-svc-0", "hook failed", "e2e:hook", &["hook_id", "trace_id"]),
    ("hook-svc-0", "message dead-lettered", "e2e:garbage", &["subject"]),
    (
        "broker-svc-0",
        "turn failed",
        "e2e:agent",
        &["dispatch_id", "session", "turn", "trace_id"],
    ),
    (
        "delivery-svc-0",
        "delivery failed permanently",
        "e2e:channel",
        &["dispatch_id", "session", "delivery_id", "trace_id"],
    ),
];
const GARBAGE: Bytes = Bytes::from_static(b"\xff");

/// Waits until `instance` has logged `message` with `id` as its `field`, and checks that the line, or the span that it is
/// of, names `ids` too. Before each look, `provoke`.
async fn says(world: &World, at: (&str, &str), (field, id): (&str, &str), ids: &[&str], provoke: impl AsyncFn()) {
    let (instance, message) = at;
    let of = |line: &Value, name: &str| {
        let named = [&line[name], &line["span"][name]].into_iter();
        named
            .filter_map(Value::as_str)
            .find(|value| !value.is_empty())
            .map(str::to_owned)
    };

    let line = eventually("the failure is logged", PATIENCE, async || {
        provoke().await;
        let log = world.log(instance);
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found = lines.find(|line| line["message"] == message && of(line, field).as_deref() == Some(id));
        found.ok_or_else(|| format!("{message} of {id}: {log}"))
    })
    .await;

    for id in ids {
        assert!(of(&line, id).is_some(), "{id} in {line}");
    }
}

/// Has `AUDIT` take no message that is larger than `bytes`; -1 = any.
async fn audit_takes(world: &World, bytes: i64) {
    let ask = async |what: &str, payload: Bytes| {
        let subject = format!("$JS.API.STREAM.{what}.AUDIT");
        let answer = world
            .bus
            .request_bytes(&subject, &Headers::new(), payload, PATIENCE)
            .await;
        let answer: Value = serde_json::from_slice(&answer.expect("an answer").payload).expect("JSON");
        assert!(answer["error"].is_null(), "{answer}");
        answer
    };

    let mut config = ask("INFO", Bytes::new()).await["config"].clone();
    config["max_msg_size"] = bytes.into();
    ask("UPDATE", config.to_string().into()).await;
}

async fn each_failure_names_its_ids(world: &World) {
    send(world, &event("e2e:agent", "agent", "absent")).await;
    send(world, &event("e2e:channel", "channel", "default")).await;
    send(world, &event("e2e:hook", "hook", "throw")).await;
    let headers: Headers = [(EVENT, "e2e:garbage")].into_iter().collect();
    let garbage = OutgoingMessage::raw("nexus.event.e2e.default.p".to_owned(), headers, GARBAGE);
    world.bus.publish(garbage).await.expect("the server stores anything");
    let _page = page::open(&world.gateway()).await;

    let part: Headers = [(CAUSATION, "e2e:part")].into_iter().collect();
    let to_the_page = subject::webchat("default", &page::visitor());
    for (instance, message, id, ids) in FAILURES {
        let shown = async || world.bus.core_publish(&to_the_page, &part, GARBAGE).await;
        says(world, (instance, message), ("event_id", id), ids, shown).await;
    }

    audit_takes(world, 1).await;
    let wish =
        r#"{"kind":"remind","parameters":{"subject":"s","message":"m"},"schedule":{"type":"after","seconds":3600}}"#;
    let server = world.stack.nats[0].url();
    let said = nexus(
        world.path(),
        &["--server", &server, "--json", "intent", "propose", wish],
    )
    .await;

    let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let intent = answer["id"].as_str().expect("an id");
    let at = ("scheduler-svc-0", "failed to write records to AUDIT; retrying");
    says(world, at, ("intent", intent), &["session"], async || ()).await;
    audit_takes(world, -1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_parse_and_failures_name_their_ids() {
    let collector = Collector::start().await;
    let world = World::start(Setup {
        without: Vec::new(),
        ..setup(&collector)
    })
    .await;

    each_failure_names_its_ids(&world).await;
    let client = cli::http::client().expect("an HTTP client");
    for running in &world.stack.services {
        let address = running.address("http").expect("it announced its address");
        let answer = client
            .get(format!("http://{address}/metrics"))
            .send()
            .await
            .expect("an answer");

        assert_eq!(answer.status().as_u16(), 200);

        let text = answer.text().await.expect("a text");
        let samples = parse(&text).unwrap_or_else(|fault| panic!("{}: {fault}", running.instance));
        let is_ours = |name: &str| samples.iter().any(|sample| sample.name.starts_with(name));

        assert!(is_ours("nexus_build_info"), "{}: {text}", running.instance);

        let own = format!("nexus_{}_", running.name.trim_end_matches("-svc"));
        assert!(is_ours(&own), "{own}… in {text}");
    }

    // Nobody hears of traces any more, and nobody is held up by it.
    drop(collector);
    let answered = chat(&world.gateway(), "still there?", Duration::from_secs(60))
        .await
        .expect("an answer");

    assert_eq!(answered.1, "echo: still there?");

    world.stack.stop().await;
}
