//! What an operator sees: one trace over five processes, metrics that parse, failures that name their ids.

use std::time::Duration;

use cli::demo::senders::chat;
use futures_util::StreamExt as _;
use serde_json::Value;
use tests::collector::{Collector, Span};
use tests::eventually::eventually;
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
/// Sends events to an agent that is not there, or to a channel that is not there.
const FAIL: &str = r#"/** @name fail */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "e2e" || e.direction !== "received") return { fire: false };
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
            ("tick.ts", TICK.to_owned()),
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
    let address = world.gateway().replacen("http", "ws", 1);
    let opened = tokio_tungstenite::connect_async(format!("{address}/webchat/ws?peer=watcher")).await;
    let (mut page, _) = opened.expect("the page opens");
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

/// A line of the log of `instance` that says `message`, as JSON.
fn line(world: &World, instance: &str, message: &str) -> Option<Value> {
    let log = world.log(instance);
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["message"] == message)
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_parse_and_failures_name_their_ids() {
    let collector = Collector::start().await;
    let world = World::start(Setup {
        without: Vec::new(),
        ..setup(&collector)
    })
    .await;
    send(&world, &event("e2e:agent", "agent", "absent")).await;
    send(&world, &event("e2e:channel", "channel", "default")).await;
    for (instance, message, event_id, ids) in [
        (
            "broker-svc-0",
            "turn failed",
            "e2e:agent",
            &["dispatch_id", "session", "turn", "trace_id"][..],
        ),
        (
            "delivery-svc-0",
            "delivery is given up",
            "e2e:channel",
            &["dispatch_id", "session", "delivery", "trace_id"],
        ),
    ] {
        let line = eventually("the failure is logged", PATIENCE, async || {
            let told = |line: &Value| line["event_id"] == event_id || line["span"]["event_id"] == event_id;
            line(&world, instance, message)
                .filter(told)
                .ok_or_else(|| world.log(instance))
        })
        .await;
        for id in ids {
            let named = [&line[id], &line["span"][id]]
                .into_iter()
                .any(|value| value.as_str().is_some_and(|v| !v.is_empty()));
            assert!(named, "{id} in {line}");
        }
    }
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
