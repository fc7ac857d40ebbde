//! Many intents on real processes: admission beside what is pending, many due at once, the same again while schedulers and
//! the server are killed.
//!
//! The short form runs with the tests. `NEXUS_INTENTS=long` runs a million pending of 10,000 agents (a number: so many)
//! and 10,000 due at once, and prints what `docs/performance.md` tells.

mod fill;
mod killing;
mod scheduler;
mod streams;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::derived_ulid;
use shared::model::event::Event;
use shared::model::intent::service::{IntentAnswer, ProposeIntent};
use shared::model::intent::{IntentStatus, firing_of};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;
use shared::wire::topology::streams::{EVENTS, SCHEDULES};

use scheduler_svc::intent::store::STREAM;

use crate::fill::{fill, wish};
use crate::scheduler::Scheduler;

struct Size {
    pending: u64,
    agents: u64,
    admissions: u64,
    due: u64,
    /// Bounds are those of the contract in the long form; the short one runs on a busy machine.
    strict: bool,
    /// What was not within them: told at the end, so that every figure is.
    missed: Vec<String>,
}

impl Size {
    fn bound(&mut self, what: &str, holds: bool) {
        if self.strict && !holds {
            self.missed.push(what.to_owned());
        }
    }
}

fn size() -> Size {
    #[expect(clippy::disallowed_methods, reason = "the long form is asked for by a variable")]
    let asked = std::env::var("NEXUS_INTENTS").unwrap_or_default();
    let pending = if asked == "long" {
        Some(1_000_000)
    } else {
        asked.parse().ok()
    };

    match pending {
        Some(pending) => Size {
            pending,
            agents: (pending / 100).max(1),
            admissions: 5_000,
            due: 10_000,
            strict: true,
            missed: Vec::new(),
        },
        None => Size {
            pending: 5_000,
            agents: 100,
            admissions: 300,
            due: 500,
            strict: false,
            missed: Vec::new(),
        },
    }
}

async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> A {
    let subject = format!("nexus.svc.intent.{what}");
    let mut tries = 0;
    loop {
        match bus
            .request(&subject, Headers::new(), question, Duration::from_secs(10))
            .await
        {
            Ok(answer) => return answer,
            Err(error) => {
                tries += 1;
                assert!(tries < 100, "{what}: {error}");
                pause(Duration::from_millis(100)).await;
            }
        }
    }
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Proposals one by one, each timed; none is due before the end.
async fn admissions(bus: &Bus, size: &mut Size) {
    let mut took = Vec::new();
    for number in 0..size.admissions {
        let agent = format!("new-{}", number % (size.admissions / 50).max(1));
        let question = proposal(&agent, number, 86_400);
        let begun = SystemClock.monotonic();
        let answer: IntentAnswer = ask(bus, "propose", &question).await;
        took.push(SystemClock.monotonic().saturating_duration_since(begun).as_secs_f64() * 1e3);
        assert_eq!(answer.status, IntentStatus::Pending, "{answer:?}");
    }

    took.sort_by(f64::total_cmp);
    let (p50, p99) = (percentile(&took, 0.5), percentile(&took, 0.99));
    println!(
        "admission: p50 {p50:.2} ms, p99 {p99:.2} ms over {} beside {} pending",
        took.len(),
        size.pending
    );

    size.bound("admission p99", p99 <= 20.0);
}

fn proposal(agent: &str, number: u64, seconds: u64) -> ProposeIntent {
    let id = derived_ulid(UnixMillis(1), &[agent, &number.to_string()]);
    serde_json::from_value(json!({
        "id": id.to_string(), "wish": wish(json!({ "type": "after", "seconds": seconds })),
        "agent": agent, "session": format!("s{number}"), "permissions": { "level": "full" },
        "delivery_context": { "channel": "webchat", "peerId": format!("p{number}") }
    }))
    .expect("a proposal")
}

/// How many values and timers the server holds; it may have just come back.
async fn held(bus: &Bus) -> [u64; 2] {
    let begun = SystemClock.monotonic();
    loop {
        if let (Ok(values), Ok(timers)) = tokio::join!(bus.stream_state(STREAM), bus.stream_state(SCHEDULES)) {
            return [values.messages, timers.messages];
        }
        let waited = SystemClock.monotonic().saturating_duration_since(begun);
        assert!(
            waited < Duration::from_secs(60),
            "the server does not say what it holds"
        );

        pause(Duration::from_millis(100)).await;
    }
}

/// Firings by event, with the time from when they were due to when their event was stored, in seconds.
///
/// None where the server, which may just have come back, does not answer.
async fn fired(bus: &Bus) -> Option<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    let mut from = 1;
    loop {
        let page = bus.read_history(EVENTS, "nexus.ev.*.timer.>", from, 1_000).await.ok()?;
        for stored in &page {
            from = stored.sequence + 1;
            let event: Event = stored.decode().expect("an event");
            if let Some((_, nominal)) = firing_of(&event.id) {
                let late = stored.published_at.since(nominal) as f64 / 1e3;
                let known = found.insert(event.id.as_str().to_owned(), late);
                assert!(known.is_none(), "{} twice", event.id);
            }
        }

        if page.is_empty() {
            return Some(found);
        }
    }
}

async fn wait_for(bus: &Bus, count: u64, patience: Duration) -> BTreeMap<String, f64> {
    let begun = SystemClock.monotonic();
    loop {
        let found = fired(bus).await.unwrap_or_default();
        let waited = SystemClock.monotonic().saturating_duration_since(begun);

        if found.len() as u64 >= count {
            return found;
        }
        assert!(waited < patience, "{} of {count} fired in {waited:?}", found.len());

        pause(Duration::from_millis(250)).await;
    }
}

/// Waits until `count` intents have their dispatches; none has two.
async fn until_dispatched(bus: &Bus, count: u64) {
    let begun = SystemClock.monotonic();
    loop {
        let found = streams::dispatched(bus, 1).await.unwrap_or_default();
        assert!(found.values().all(|dispatches| *dispatches == 1), "{found:?}");

        if found.len() as u64 == count {
            return;
        }

        let waited = SystemClock.monotonic().saturating_duration_since(begun);
        assert!(
            waited < Duration::from_secs(120),
            "{} of {count} dispatched",
            found.len()
        );

        pause(Duration::from_millis(250)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_pending_and_many_are_due_at_once() {
    let mut size = size();
    let (mut server, bus) = shared::testing::world().await;
    fill(&bus, size.agents, size.pending / size.agents).await;
    println!(
        "server: {} MiB with {} pending",
        scheduler::resident_mib(server.pid().expect("it runs")),
        size.pending
    );

    let mut one = Scheduler::start(&server.url(), 0);
    let ready = one.ready().await;
    println!("scheduler ready after {ready:?}");
    size.bound("ready", ready < Duration::from_secs(2));
    let mut two = Scheduler::start(&server.url(), 1);
    two.ready().await;
    admissions(&bus, &mut size).await;

    // All due in one second, long enough from now to ask for all of them.
    let ahead = if size.strict { 120 } else { 40 };
    let due_at = SystemClock.now().plus(ahead * 1_000);

    let mut asked = tokio::task::JoinSet::new();
    for number in 0..size.due {
        let bus = bus.clone();
        asked.spawn(async move {
            let left = due_at.since(SystemClock.now()) / 1_000;
            let agent = format!("due-{}", number / 50);
            let question = proposal(&agent, number, u64::try_from(left).unwrap_or(1).max(1));
            let answer: IntentAnswer = ask(&bus, "propose", &question).await;
            assert_eq!(answer.status, IntentStatus::Pending, "{answer:?}");
        });

        while asked.len() > 16 {
            asked.join_next().await.expect("one").expect("asked");
        }
    }

    while let Some(done) = asked.join_next().await {
        done.expect("asked");
    }

    let before = held(&bus).await;
    server.restart().await;
    let after = held(&bus).await;
    let ahead = due_at.since(SystemClock.now());
    println!(
        "asked for, and the server restarted, {} s before they are due",
        ahead / 1_000
    );

    // What is due changes what is held: only on a machine too slow for these seconds.
    assert!(
        after == before || ahead <= 0,
        "{before:?} before the restart, {after:?} behind it"
    );

    let found = wait_for(&bus, size.due, Duration::from_secs(240)).await;
    let mut late: Vec<f64> = found.into_values().collect();
    late.sort_by(f64::total_cmp);

    println!(
        "{} due at once: p50 {:.2} s, p99 {:.2} s, last {:.2} s late",
        size.due,
        percentile(&late, 0.5),
        percentile(&late, 0.99),
        late[late.len() - 1]
    );

    size.bound("lateness", late[late.len() - 1] <= 10.0);
    let memory = one.memory_mib().max(two.memory_mib());
    println!("scheduler: {memory} MiB");

    assert!(memory < 150, "{memory} MiB");

    until_dispatched(&bus, size.due).await;

    let lot = killing::Lot {
        mixed: size.due / 5,
        together: if size.strict { size.due } else { size.due / 2 },
        ahead: if size.strict { 180 } else { 18 },
        long: size.strict,
    };

    killing::during_all_of_it(&bus, &mut server, lot, [one, two]).await;
    assert!(size.missed.is_empty(), "not within their bounds: {:?}", size.missed);
}
