//! Requests of operators against the real server: live messages within bounds, and breakers that are reset once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hook_svc::operator::service_specs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::breaker::{Breaker, BreakerPolicy, key_of};
use shared::bus::{Bus, OutgoingMessage, RequestError, ServiceHandle};
use shared::clock::{SharedClock, SharedIds, SystemClock, SystemIds};
use shared::model::event::{Event, EventId};
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::connect_to;
use shared::testing::nats::NatsServer;
use shared::wire::headers::Headers;
use shared::wire::operator::breakers::{BreakerList, BreakerRecord, ListBreakers, ResetBreaker};
use shared::wire::operator::tail::{TailMessages, TailPage};
use shared::wire::subject;
use shared::wire::topology::{buckets, streams};

const PATIENCE: Duration = Duration::from_secs(30);

/// Two replicas of the services on one server.
struct World {
    _server: NatsServer,
    bus: Bus,
    _replicas: Vec<ServiceHandle>,
}

impl World {
    async fn start(replicas: usize) -> Self {
        let (server, bus) = shared::testing::world().await;
        let (clock, ids): (SharedClock, SharedIds) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let mut handles = Vec::new();
        for _ in 0..replicas {
            let own = connect_to(&server.url(), "operators").await;
            for spec in service_specs(&own, &clock, &ids) {
                handles.push(own.serve(spec).await.expect("served"));
            }
        }
        Self {
            _server: server,
            bus,
            _replicas: handles,
        }
    }

    async fn ask<Q: Serialize, A: DeserializeOwned>(&self, endpoint: &str, question: &Q) -> Result<A, (u16, String)> {
        let subject = format!("nexus.svc.{endpoint}");
        let asked = self.bus.request(&subject, Headers::new(), question, PATIENCE).await;
        asked.map_err(|error| {
            let told = error.to_string();
            let RequestError::Service { code, text, .. } = error else {
                panic!("{endpoint}: {told}");
            };
            (code, text)
        })
    }

    async fn tail(&self, question: &TailMessages) -> TailPage {
        self.ask("events.tail", question).await.expect("a page")
    }

    async fn event(&self, number: u64, content: &str) {
        let id = EventId::parse(format!("e2e:p/{number}")).expect("an id");
        let mut event = Event::new(id, "e2e", "p", UnixMillis(1));
        event.content = content.to_owned();
        let out = OutgoingMessage::new(subject::event(&event), &event);
        self.bus.publish(out).await.expect("stored");
    }

    /// Stores a record of an event in `INVOCATIONS` in which `hook` passed.
    async fn invocation(&self, number: u64, hook: &str) {
        let id = EventId::parse(format!("e2e:p/{number}")).expect("an id");
        let out = OutgoingMessage::new(subject::invocation(1, &id), &invocations(&id, number, hook));
        self.bus.publish(out).await.expect("stored");
    }
}

fn invocations(id: &EventId, number: u64, hook: &str) -> EventInvocations {
    EventInvocations {
        event_id: id.clone(),
        event_seq: number,
        evaluated_by: "hook-svc-0".to_owned(),
        started_at: UnixMillis(1),
        finished_at: UnixMillis(2),
        passed: 0,
        hooks: vec![HookInvocation {
            hook_id: hook.to_owned(),
            latency_us: 120,
            outcome: HookOutcome::Passed,
            llm_calls: 0,
            llm_tokens_in: 0,
            llm_tokens_out: 0,
            llm_cost_usd: 0.0,
            search_calls: 0,
        }],
        passes: Vec::new(),
        is_slim: false,
    }
}

fn of(streams: &[&str]) -> TailMessages {
    TailMessages {
        streams: streams.iter().map(|name| (*name).to_owned()).collect(),
        ..TailMessages::default()
    }
}

/// Returns the request behind `page`, for which is waited.
fn after(question: &TailMessages, page: &TailPage) -> TailMessages {
    TailMessages {
        cursors: page.cursors.clone(),
        wait_ms: 5_000,
        ..question.clone()
    }
}

fn sequences(page: &TailPage) -> Vec<u64> {
    page.messages.iter().map(|message| message.sequence).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_has_everything_once_in_the_order_of_time_whoever_answers() {
    let world = World::start(2).await;
    let both = of(&[streams::EVENTS, "invocations"]);
    let mut page = world.tail(&both).await;
    assert!(page.messages.is_empty() && page.cursors.len() == 2, "{page:?}");

    let mut told = Vec::new();
    for number in 1..=30 {
        world.event(number, "hello").await;
        world.invocation(number, "a").await;
        if number % 7 == 0 {
            page = world.tail(&after(&both, &page)).await;
            told.extend(page.messages.clone());
        }
    }
    while told.len() < 60 {
        page = world.tail(&after(&both, &page)).await;
        assert!(!page.messages.is_empty(), "{} of 60", told.len());
        told.extend(page.messages.clone());
    }

    let times: Vec<UnixMillis> = told.iter().map(|message| message.at).collect();
    assert!(times.is_sorted(), "{times:?}");
    for stream in [streams::EVENTS, streams::INVOCATIONS] {
        let own = told.iter().filter(|message| message.stream == stream);
        let own: Vec<u64> = own.map(|message| message.sequence).collect();
        assert_eq!(own, (1..=30).collect::<Vec<u64>>(), "{stream}");
    }
    assert_eq!(told[0].payload.as_ref().expect("an event")["id"], "e2e:p/1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_leaves_out_and_goes_on() {
    let world = World::start(1).await;
    for number in 1..=50 {
        world
            .event(number, if number % 10 == 0 { "wanted" } else { "other" })
            .await;
        world
            .invocation(number, if number == 7 { "mine" } else { "theirs" })
            .await;
    }

    let wanted = TailMessages {
        text: Some("wanted".to_owned()),
        last: 45,
        ..of(&["events"])
    };
    let page = world.tail(&wanted).await;
    assert_eq!(sequences(&page), [10, 20, 30, 40, 50]);
    assert_eq!(page.cursors["EVENTS"].next, 51);

    let few = TailMessages { limit: 2, ..wanted };
    let page = world.tail(&few).await;
    assert_eq!(sequences(&page), [10, 20]);
    assert_eq!(sequences(&world.tail(&after(&few, &page)).await), [30, 40]);

    let of_hook = TailMessages {
        hook: Some("mine".to_owned()),
        last: 99,
        ..of(&["invocations"])
    };
    assert_eq!(sequences(&world.tail(&of_hook).await), [7]);

    let session = SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    };
    for (question, told) in [
        (of(&["claims"]), "no stream `claims`: one of events, "),
        (
            TailMessages {
                session: Some(session),
                ..of(&["events"])
            },
            "session: `EVENTS` has no messages of sessions",
        ),
        (
            TailMessages {
                hook: Some("a".to_owned()),
                ..of(&["events"])
            },
            "hook: `EVENTS` has no outcomes of hooks",
        ),
        (
            TailMessages {
                text: Some("x".repeat(2_000)),
                ..of(&["events"])
            },
            "text: at most 1024 bytes",
        ),
    ] {
        let (code, text) = world
            .ask::<_, TailPage>("events.tail", &question)
            .await
            .expect_err("wrong");
        assert!(code == 400 && text.starts_with(told), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_costs_no_memory_and_is_told_what_it_missed() {
    let world = World::start(1).await;
    let events = of(&["events"]);
    let begun = world.tail(&events).await;
    for number in 1..=1_300 {
        world.event(number, "hello").await;
    }

    let page = world.tail(&after(&events, &begun)).await;
    assert_eq!(page.dropped, 1_100);
    assert_eq!(page.messages[0].sequence, 1_101);
    assert!(page.messages.len() <= 100, "{}", page.messages.len());
    let (mut told, mut page) = (page.messages.len(), page);
    while told < 200 {
        page = world.tail(&after(&events, &page)).await;
        assert_eq!(page.dropped, 0);
        told += page.messages.len();
    }

    // Whoever wants everything reads all of it.
    let whole = TailMessages {
        whole: true,
        ..events.clone()
    };
    let mut page = begun.clone();
    let mut read = BTreeSet::new();
    while read.len() < 1_300 {
        page = world.tail(&after(&whole, &page)).await;
        assert!(page.dropped == 0 && !page.messages.is_empty(), "{}", read.len());
        read.extend(sequences(&page));
    }

    // A stream that was put back is read from its end on.
    world.bus.purge_subject(streams::EVENTS, ">").await.expect("emptied");
    let mut restored = begun;
    restored.cursors.get_mut("EVENTS").expect("a cursor").next = 9_999;
    let question = TailMessages {
        wait_ms: 0,
        ..after(&events, &restored)
    };
    let page = world.tail(&question).await;
    assert_eq!((page.cursors["EVENTS"].next, page.messages.len()), (1_301, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_end_a_page_and_are_left_out() {
    let world = World::start(1).await;
    for number in 1..=8 {
        world.event(number, &"x".repeat(400_000)).await;
    }

    let events = TailMessages {
        last: 8,
        ..of(&["events"])
    };
    let page = world.tail(&events).await;
    assert!(page.messages.len() < 8, "{}", page.messages.len());
    let first = &page.messages[0];
    assert!(
        first.payload.is_none() && first.left_out_bytes.is_some_and(|bytes| bytes > 400_000),
        "{first:?}"
    );

    let whole = TailMessages { whole: true, ..events };
    let (mut page, mut read) = (world.tail(&whole).await, Vec::new());
    loop {
        assert!(page.messages.iter().all(|message| message.payload.is_some()));
        assert!(page.messages.len() <= 2, "{} large ones at once", page.messages.len());
        read.extend(sequences(&page));
        if read.len() == 8 {
            break;
        }
        page = world.tail(&after(&whole, &page)).await;
    }
    assert_eq!(read, (1..=8).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_beyond_the_bound_are_refused_and_those_that_wait_end() {
    let world = World::start(1).await;
    let events = of(&["events"]);
    let begun = world.tail(&events).await;
    let waiting = TailMessages {
        wait_ms: 2_000,
        ..after(&events, &begun)
    };
    let answers = futures_util::future::join_all((0..40).map(|_| world.ask::<_, TailPage>("events.tail", &waiting)));
    let answers = answers.await;
    let refused: Vec<&(u16, String)> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(!refused.is_empty() && refused.len() < 40, "{} of 40", refused.len());
    assert!(refused.iter().all(|(code, _)| *code == 429), "{refused:?}");
    assert!(answers.iter().flatten().all(|page| page.messages.is_empty()));
    world.tail(&events).await;
}

fn failing(hook: &str, failures: u32) -> Breaker {
    let mut breaker = Breaker::for_hook(hook, "1");
    for _ in 0..failures {
        breaker = breaker
            .after_failure(&BreakerPolicy::default(), "a", UnixMillis(1))
            .expect("it counts");
    }
    breaker
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story is read from top to bottom")]
async fn a_breaker_is_reset_once_and_the_record_says_by_whom() {
    let world = World::start(2).await;
    let kv = world.bus.kv::<Breaker>(buckets::BREAKERS);
    for hook in ["b/open", "a", "turn:gate"] {
        kv.create(&key_of(hook), &failing(hook, 5)).await.expect("stored");
    }
    kv.create(&key_of("calm"), &Breaker::for_hook("calm", "1"))
        .await
        .expect("stored");
    let garbage = OutgoingMessage::raw("$KV.breakers.bad".to_owned(), Headers::new(), "{".into());
    world.bus.publish(garbage).await.expect("stored");

    let list = async |question: ListBreakers| {
        world
            .ask::<_, BreakerList>("breaker.list", &question)
            .await
            .expect("listed")
    };
    let hooks = |list: &BreakerList| {
        list.breakers
            .iter()
            .map(|one| one.hook_id.clone())
            .collect::<Vec<String>>()
    };
    let open = list(ListBreakers::default()).await;
    assert_eq!(
        (hooks(&open), open.more),
        (vec!["a".into(), "b/open".into(), "turn:gate".into()], false)
    );
    assert_eq!(open.unreadable[0].0, "bad");
    let all = ListBreakers {
        all: true,
        after: Some("b/open".to_owned()),
    };
    assert_eq!(hooks(&list(all).await), ["calm", "turn:gate"]);

    let reset = async |hook: &str, by: &str| {
        let request = ResetBreaker {
            hook: hook.to_owned(),
            by: by.to_owned(),
        };
        world.ask::<_, Breaker>("breaker.reset", &request).await
    };
    let answers = futures_util::future::join_all((0..6).map(|_| reset("b/open", "anna"))).await;
    let was: Vec<&Breaker> = answers.iter().flatten().collect();
    assert_eq!(
        was.iter().map(|breaker| breaker.failures).collect::<Vec<u32>>(),
        [5],
        "one reset it"
    );
    assert!(
        answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .all(|(code, _)| *code == 409)
    );
    assert!(
        kv.get(&key_of("b/open"))
            .await
            .expect("readable")
            .expect("stored")
            .value
            .is_at_rest()
    );
    reset("turn:gate", "bob").await.expect("hooks inside turns too");

    for (hook, by, code, told) in [
        ("b/open", "anna", 409, "b/open is not paused"),
        ("nobody", "anna", 404, "nobody has no recorded errors"),
        ("a", "", 400, "by: must not be empty"),
    ] {
        let (found, text) = reset(hook, by).await.expect_err("refused");
        assert!(found == code && text.contains(told), "{text}");
    }
    let records = world
        .bus
        .read_history(streams::AUDIT, "nexus.audit.breaker.>", 1, 100)
        .await;
    let records: Vec<BreakerRecord> = records
        .expect("readable")
        .iter()
        .map(|one| one.decode().expect("a record"))
        .collect();
    let told: BTreeSet<(&str, &str)> = records
        .iter()
        .map(|one| (one.hook_id.as_str(), one.by.as_str()))
        .collect();
    assert_eq!(told, BTreeSet::from([("b/open", "anna"), ("turn:gate", "bob")]));
}
