//! Breakers: one state for all replicas, and what a paused hook looks like from outside.

use std::collections::BTreeSet;
use std::sync::Arc;

use hook_svc::health::breakers::HookBreakers;
use hook_svc::runner::{HookSet, HookSource};
use serde_json::json;
use shared::breaker::{Breaker, BreakerPolicy, BreakerState};
use shared::bus::Bus;
use shared::model::hook::HookStatus;
use shared::model::invocation::HookOutcome;
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::testing::{ManualClock, eventually};
use shared::wire::subject::token;
use shared::wire::topology::{buckets, topology};

use crate::world::{World, event, of};

const HOUR_MS: u64 = 3_600_000;
const FIVE_MINUTES_MS: u64 = 300_000;
const TIMEOUT_MS: u64 = 10_000;
const CLAIM_MS: u64 = TIMEOUT_MS + 5_000;

/// Three replicas' breakers on one server, one clock, and the one hook.
struct Timeline {
    replicas: Vec<HookBreakers>,
    set: HookSet,
    clock: ManualClock,
    bus: Bus,
    _nats: NatsServer,
}

impl Timeline {
    async fn begin() -> Self {
        let nats = NatsServer::start().await;
        let clock = ManualClock::at(UnixMillis(1_700_000_000_000));

        let mut buses = Vec::new();
        for name in ["a", "b", "c"] {
            buses.push(shared::testing::connect_to(&nats.url(), name).await);
        }

        buses[0]
            .ensure_topology(&topology(1), false)
            .await
            .expect("the topology stands");
        let breakers = |bus: &Bus| HookBreakers::new(bus, Arc::new(clock.clone()), BreakerPolicy::default());
        let replicas: Vec<HookBreakers> = buses.iter().map(breakers).collect();
        for replica in replicas.clone() {
            tokio::spawn(async move { replica.follow_bucket().await });
        }

        Self {
            replicas,
            set: HookSet::new([hook("1")]),
            clock,
            bus: buses.remove(0),
            _nats: nats,
        }
    }

    fn me(replica: usize) -> String {
        format!("replica-{replica}/event")
    }

    async fn fails_at(&self, replica: usize) {
        self.replicas[replica]
            .record_failure(&self.set.hooks()[0], &Self::me(replica))
            .await;
    }

    async fn succeeds_at(&self, replica: usize) {
        self.replicas[replica]
            .record_successes(&self.set, &Self::me(replica), |_| true)
            .await;
    }

    async fn strays_at(&self, replica: usize) {
        self.replicas[replica]
            .record_stray_error(&self.set.hooks()[0], &format!("replica-{replica}/stray"))
            .await;
    }

    /// Which replicas show the hook an event now, asked all at once.
    async fn shown(&self) -> Vec<usize> {
        self.shown_at(&[0, 1, 2]).await
    }

    /// Which of `replicas`, asked at once, show the hook an event.
    async fn shown_at(&self, replicas: &[usize]) -> Vec<usize> {
        let asked = replicas.iter().map(|&replica| async move {
            let me = Self::me(replica);
            self.replicas[replica]
                .paused_hooks(&self.set, None, &me)
                .await
                .is_empty()
                .then_some(replica)
        });

        futures_util::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    /// Waits until every replica has heard of a breaker for which `holds`.
    async fn all_see(&self, what: &str, holds: impl Fn(Option<&Breaker>) -> bool) {
        eventually(what, async || {
            self.replicas
                .iter()
                .all(|replica| holds(replica.breaker_of("h").as_ref()))
        })
        .await;
    }

    async fn all_see_it_open(&self) {
        self.all_see("open", |breaker| {
            breaker.is_some_and(|breaker| matches!(breaker.circuit, BreakerState::Open { .. }))
        })
        .await;
    }

    async fn status(&self) -> HookStatus {
        let states = self.bus.kv::<shared::model::hook::HookState>(buckets::HOOK_STATE);
        let state = states.get(&token("h")).await.expect("readable");
        state.map_or(HookStatus::Active, |entry| entry.value.status)
    }
}

fn hook(content_hash: &str) -> HookSource {
    HookSource {
        id: "h".to_owned(),
        name: "h".to_owned(),
        source: String::new(),
        content_hash: content_hash.to_owned(),
        timeout_ms: TIMEOUT_MS,
        created_at: UnixMillis(0),
        created_by: "operator".to_owned(),
        sees: hook_svc::runner::HookScope::Everything,
        net: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_over_three_replicas() {
    let line = Timeline::begin().await;
    for replica in [0, 1, 2, 0] {
        line.fails_at(replica).await;
    }

    assert_eq!(line.shown().await, [0, 1, 2], "four failures in a row are not enough");

    line.all_see("four failures", |breaker| {
        breaker.is_some_and(|breaker| breaker.failures == 4)
    })
    .await;
    line.succeeds_at(1).await;
    line.all_see("none", |breaker| breaker.is_none()).await;

    for replica in [0, 1, 2, 0, 1] {
        line.fails_at(replica).await;
    }

    line.all_see_it_open().await;
    eventually("the hook is paused", async || line.status().await == HookStatus::Paused).await;
    assert_eq!(line.shown().await, [0; 0]);

    line.clock.advance(FIVE_MINUTES_MS - 1);
    assert_eq!(line.shown().await, [0; 0], "not a moment before");

    line.clock.advance(1);
    let prober = line.shown().await;
    assert_eq!(prober.len(), 1, "one probe in the whole cluster: {prober:?}");

    line.succeeds_at((prober[0] + 1) % 3).await;
    line.fails_at((prober[0] + 2) % 3).await;
    assert_eq!(
        line.shown().await,
        prober,
        "what others still had under way decides nothing"
    );

    line.fails_at(prober[0]).await;
    line.all_see_it_open().await;
    line.clock.advance(FIVE_MINUTES_MS - 1);

    assert_eq!(line.shown().await, [0; 0], "the cool-down began anew");

    line.clock.advance(1);
    let lost = line.shown().await;
    assert_eq!(lost.len(), 1);

    line.clock.advance(CLAIM_MS - 1);
    assert_eq!(line.shown().await, lost, "the claim stands");

    line.clock.advance(1);
    let others: Vec<usize> = (0..3).filter(|replica| *replica != lost[0]).collect();
    let after_expiry = line.shown_at(&others).await;

    assert_eq!(after_expiry.len(), 1, "another may probe: {after_expiry:?}");

    for replica in after_expiry {
        line.succeeds_at(replica).await;
    }

    line.all_see("closed", |breaker| breaker.is_none()).await;
    assert_eq!(line.shown().await, [0, 1, 2]);

    eventually("the hook is active", async || line.status().await == HookStatus::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_fails_a_quarter_is_degraded_and_one_that_fails_half_is_paused() {
    let line = Timeline::begin().await;
    for _ in 0..6 {
        line.fails_at(0).await;
        for _ in 0..3 {
            line.succeeds_at(0).await;
        }
    }

    eventually("the hook is degraded", async || {
        line.status().await == HookStatus::Degraded
    })
    .await;
    assert_eq!(line.shown().await, [0, 1, 2], "it sees events");

    line.clock.advance(HOUR_MS);
    line.succeeds_at(0).await;
    eventually("the hook is active", async || line.status().await == HookStatus::Active).await;

    for _ in 0..11 {
        line.fails_at(0).await;
        line.succeeds_at(0).await;
    }

    line.all_see_it_open().await;
    eventually("the hook is paused", async || line.status().await == HookStatus::Paused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_throws_after_each_answer_is_paused() {
    let line = Timeline::begin().await;
    for _ in 0..4 {
        line.strays_at(0).await;
        line.succeeds_at(0).await;
    }

    assert_eq!(line.shown().await, [0, 1, 2], "four failures in a row are not enough");

    line.succeeds_at(0).await;
    line.all_see("none", |breaker| breaker.is_none()).await;

    for _ in 0..5 {
        line.strays_at(1).await;
        line.succeeds_at(1).await;
    }

    line.all_see_it_open().await;
    line.clock.advance(FIVE_MINUTES_MS);
    let prober = line.shown().await;

    assert_eq!(prober.len(), 1, "one probe in the whole cluster: {prober:?}");

    line.strays_at(prober[0]).await;
    line.succeeds_at(prober[0]).await;
    line.all_see("closed", |breaker| breaker.is_none()).await;
}

/// Answers each event, and then throws: whom its text names.
const STRAYS: &str = "export default ({ event }) => {
  if (event.content === 'timer') setTimeout(() => { throw 'from a timer'; }, 1);
  if (event.content === 'promise') (async () => { await 0; throw new Error('from a promise'); })();
  return { fire: false };
};
";

#[tokio::test(flavor = "multi_thread")]
async fn errors_after_the_answer_are_errors_of_the_hook() {
    let fine = "export default () => { setTimeout(() => {}, 1); return { fire: false }; };\n";
    let world = World::with_one_replica(&[("strays.ts", STRAYS), ("fine.ts", fine)]).await;
    for (said, error) in [("timer", "from a timer"), ("promise", "from a promise")] {
        let mut number = 0;
        eventually(&format!("the hook is paused: {said}"), async || {
            number += 1;
            let next = event(&format!("{said}{number}"), number, said);
            world.publish(&next).await;
            world.record(&next).await;
            let state = world.hook_state("strays").await;
            state.is_some_and(|state| state.status == HookStatus::Paused)
        })
        .await;

        eventually("its error is told of", async || {
            let state = world.hook_state("strays").await.unwrap_or_default();
            state.last_error.is_some_and(|told| told.contains(error))
        })
        .await;
        let breakers = world.bus.kv::<Breaker>(buckets::BREAKERS);
        let open = breakers.get(&token("strays")).await.expect("readable").expect("stored");

        assert_eq!(open.value.failures, 5);

        breakers
            .update(&token("strays"), &open.value.reset(), open.revision)
            .await
            .expect("reset");
        eventually("the hook is active", async || {
            let state = world.hook_state("strays").await;
            state.is_some_and(|state| state.status == HookStatus::Active)
        })
        .await;
    }

    let fine = world.hook_state("fine").await.unwrap_or_default();
    assert_eq!((fine.status, fine.last_error), (HookStatus::Active, None));
}

/// Tells what the read model says of the breaker of `h`.
const TELLS: &str = "import Database from 'better-sqlite3';
export default ({ dbPath }) => {
  const db = new Database(dbPath, { readonly: true });
  const state = db.prepare(`SELECT circuit_state FROM hook_health WHERE hook_id = 'h'`).pluck().get();
  db.close();
  return { fire: true, context: { extracted: { state: state ?? null } } };
};
";

#[tokio::test(flavor = "multi_thread")]
async fn the_read_model_tells_the_three_states_of_a_breaker() {
    let hooks = [
        ("h.ts", "export default () => ({ fire: false });\n"),
        ("tells.ts", TELLS),
    ];
    let world = World::with_one_replica(&hooks).await;
    let hash = world.hook("h").await.expect("synced").content_hash;
    let breakers = world.bus.kv::<Breaker>(buckets::BREAKERS);

    let mut number = 0;
    let mut shows = async |expected: &str| {
        eventually(expected, async || {
            number += 1;
            let asked = event(&format!("v{number}"), number, "what is it?");
            world.publish(&asked).await;
            let record = world.record(&asked).await;
            let HookOutcome::Fired { result, .. } = &of(&record, "tells").outcome else {
                panic!("{record:?}");
            };

            let extracted = result.context.as_ref().and_then(|context| context.extracted.as_ref());
            extracted.is_some_and(|extracted| extracted["state"] == expected)
        })
        .await;
    };

    shows("closed").await;
    let until = UnixMillis(i64::MAX);
    let mut breaker = Breaker {
        circuit: BreakerState::Open { until },
        failures: 5,
        ..Breaker::for_hook("h", &hash)
    };

    let open = breakers.create(&token("h"), &breaker).await.expect("stored");
    shows("open").await;
    breaker.circuit = BreakerState::HalfOpen {
        by: "b/webchat:v1/1".to_owned(),
        until,
    };

    let probed = breakers.update(&token("h"), &breaker, open).await.expect("stored");
    shows("half-open").await;
    breakers
        .update(&token("h"), &breaker.reset(), probed)
        .await
        .expect("stored");

    shows("closed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_source_begins_anew() {
    let mut line = Timeline::begin().await;
    for _ in 0..5 {
        line.fails_at(0).await;
    }
    line.all_see_it_open().await;
    line.set = HookSet::new([hook("2")]);
    assert_eq!(line.shown().await, [0, 1, 2]);
    eventually("the hook is active", async || line.status().await == HookStatus::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_keeps_failing_is_paused_and_skipped_until_it_is_reset() {
    let fails = "export default ({ event }) => { if (event.content === 'bad') throw new Error('no'); return { fire: false }; };\n";
    let mut world = World::new(&[
        ("fails.ts", fails),
        ("fine.ts", "export default () => ({ fire: true });\n"),
    ])
    .await;

    for name in ["a", "b"] {
        world.start(name);
    }

    world.wait_for_members(2).await;

    for number in 0..5 {
        let bad = event(&format!("v{number}"), number, "bad");
        world.publish(&bad).await;
        assert!(matches!(
            of(&world.record(&bad).await, "fails").outcome,
            HookOutcome::Failed { .. }
        ));
    }

    eventually("the hook is paused", async || {
        world
            .hook_state("fails")
            .await
            .is_some_and(|state| state.status == HookStatus::Paused)
    })
    .await;

    let mut number = 5;
    let open = |outcome: &HookOutcome| matches!(outcome, HookOutcome::Skipped { reason } if reason == "breaker_open");
    outcomes(&world, &mut number, open).await;

    let breakers = world.bus.kv::<Breaker>(buckets::BREAKERS);
    let open = breakers.get(&token("fails")).await.expect("readable").expect("stored");
    breakers
        .update(&token("fails"), &open.value.reset(), open.revision)
        .await
        .expect("reset");

    eventually("the hook is active", async || {
        world
            .hook_state("fails")
            .await
            .is_some_and(|state| state.status == HookStatus::Active)
    })
    .await;

    outcomes(&world, &mut number, |outcome| *outcome == HookOutcome::Passed).await;
}

/// Which replica evaluates a further event, and what it makes of `fails`.
async fn shown(world: &World, number: &mut u32) -> (String, HookOutcome) {
    let later = event(&format!("v{number}"), *number, "good");
    *number += 1;
    world.publish(&later).await;
    let record = world.record(&later).await;
    assert!(matches!(of(&record, "fine").outcome, HookOutcome::Fired { .. }));
    let found = record.hooks.into_iter().find(|hook| hook.hook_id == "fails");
    let outcome = found.map_or(HookOutcome::Passed, |hook| hook.outcome);
    (record.evaluated_by, outcome)
}

/// Waits until each of the two replicas has heard of the breaker, and checks that it stays as `expected`.
async fn outcomes(world: &World, number: &mut u32, expected: impl Fn(&HookOutcome) -> bool) {
    let mut heard = BTreeSet::new();
    eventually("both replicas know of the breaker", async || {
        let (replica, outcome) = shown(world, number).await;
        if expected(&outcome) {
            heard.insert(replica);
        } else {
            heard.remove(&replica);
        }

        heard.len() == 2
    })
    .await;

    for _ in 0..8 {
        let (replica, outcome) = shown(world, number).await;
        assert!(expected(&outcome), "{replica}: {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_made_anew_counts_although_its_revisions_are_lower() {
    let timeline = Timeline::begin().await;
    for _ in 0..5 {
        timeline.fails_at(0).await;
    }

    timeline.all_see_it_open().await;
    assert!(timeline.bus.delete_stream("KV_breakers").await.expect("deleted"));

    timeline
        .bus
        .ensure_topology(&topology(1), false)
        .await
        .expect("made again");
    let kv = timeline.bus.kv::<Breaker>(buckets::BREAKERS);
    let failed_once = Breaker::for_hook("h", "1").after_failure(&BreakerPolicy::default(), "other", UnixMillis(1));
    let failed_once = failed_once.expect("it counts");
    let revision = kv.create(&token("h"), &failed_once).await.expect("stored");

    assert_eq!(revision, 1);

    timeline
        .all_see("closed", |breaker| {
            breaker.is_some_and(|breaker| *breaker == failed_once)
        })
        .await;
    assert_eq!(timeline.shown().await, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_hook_stays_and_is_shown_paused_until_it_is_changed_or_reset() {
    let fails = "export default ({ event }) => { if (event.content === 'bad') throw new Error('no'); return { fire: false }; };\n";
    let world = World::with_one_replica(&[]).await;
    let push = async |source: &str| {
        let pushed = json!({"id": "fails", "source": source});
        world.ask("push", pushed).await.expect("pushed")["status"].clone()
    };
    let status = async || {
        let list = world.ask("list", json!({})).await.expect("listed");
        list["hooks"][0]["status"].clone()
    };

    assert_eq!(push(fails).await, "active");
    let mut number = 0;
    eventually("the hook is paused", async || {
        number += 1;
        let bad = event(&format!("v{number}"), number, "bad");
        world.publish(&bad).await;
        world.record(&bad).await;
        status().await == "paused"
    })
    .await;

    // None of these changes the hook, so its breaker stays open, and that is what is shown.
    let named = json!({"name": "fails"});
    let enabled = world.ask("enable", named.clone()).await.expect("enabled");
    assert_eq!(enabled["status"], "paused");
    world.ask("disable", named.clone()).await.expect("disabled");
    assert_eq!(status().await, "disabled");
    let enabled = world.ask("enable", named.clone()).await.expect("enabled");
    assert_eq!(enabled["status"], "paused");

    world.ask("delete", named.clone()).await.expect("deleted");
    assert_eq!(push(fails).await, "paused");
    assert_eq!(status().await, "paused");
    let listed = world.ask("list", json!({"status": "paused"})).await.expect("listed");
    assert_eq!(listed["hooks"].as_array().map(Vec::len), Some(1));
    let skipped =
        |outcome: &HookOutcome| matches!(outcome, HookOutcome::Skipped { reason } if reason == "breaker_open");
    eventually("events are skipped", async || {
        let said = event(&format!("s{number}"), number, "fine");
        number += 1;
        world.publish(&said).await;
        let record = world.record(&said).await;
        record.hooks.iter().any(|hook| skipped(&hook.outcome))
    })
    .await;

    // A changed source is another hook, from the moment at which it is pushed.
    assert_eq!(push(&format!("{fails}// changed\n")).await, "active");
    eventually("it runs", async || {
        let said = event(&format!("p{number}"), number, "fine");
        number += 1;
        world.publish(&said).await;
        world.record(&said).await.passed > 0
    })
    .await;
    assert_eq!(status().await, "active");
}
