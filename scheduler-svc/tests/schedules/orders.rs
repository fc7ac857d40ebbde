//! What operators order, what owners change, and what the reconciler mends.

use std::sync::Arc;
use std::time::Duration;

use scheduler_svc::schedules::api;
use scheduler_svc::schedules::keeper::ScheduleWriter;
use scheduler_svc::timer_dispatch::{OnFire, TimerDispatcher};
use serde_json::{Value, json};
use shared::bus::RequestError;
use shared::clock::{Clock as _, SystemClock};
use shared::model::schedule::{NextFiring, OverlapPolicy, ScheduleRecord, ScheduleTimer};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::schedule::book::ScheduleBook;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::topology::SCHEDULE_TIMERS;

use crate::world::{DEADLINE, World, spec};

/// Every six hours, three hours away from `now` in both directions: nothing falls due while a test runs.
fn every_six_hours(now: UnixMillis) -> String {
    let from = jiff::Timestamp::from_millisecond(now.plus(3 * 3_600_000).0).expect("in range");
    format!("every 6h from {from:.3}")
}

/// A scheduler within the test.
struct Replica {
    shutdown: ShutdownSignal,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    _service: shared::bus::ServiceHandle,
}

impl Replica {
    async fn start(world: &World) -> Self {
        let keeper = ScheduleWriter::new(world.bus.clone(), Arc::new(SystemClock));
        let service = world
            .bus
            .serve(api::service_spec(&keeper, "UTC"))
            .await
            .expect("it is served");
        let shutdown = ShutdownSignal::default();
        let owner = Arc::new(keeper.clone()) as Arc<dyn OnFire<ScheduleTimer>>;
        let fired = TimerDispatcher::new(world.bus.clone(), Arc::new(SystemClock), SCHEDULE_TIMERS, owner);
        let (one, other) = (shutdown.clone(), shutdown.clone());
        let tasks = vec![
            tokio::spawn(async move { fired.run(&one).await }),
            tokio::spawn(async move { keeper.run(Duration::from_secs(3_600), &other).await }),
        ];

        Self {
            shutdown,
            tasks,
            _service: service,
        }
    }

    async fn stop(self) {
        self.shutdown.trigger();
        for task in self.tasks {
            task.await.expect("it ends");
        }
    }
}

async fn ask(world: &World, endpoint: &str, question: Value) -> Result<Value, String> {
    let subject = format!("nexus.svc.schedule.{endpoint}");
    let asked = world.bus.request(&subject, Headers::new(), &question, DEADLINE);
    asked.await.map_err(|error: RequestError| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_are_paused_resumed_fired_and_backfilled() {
    let world = World::start().await;
    let book = ScheduleBook::new(&world.bus);
    let replicas = [Replica::start(&world).await, Replica::start(&world).await];
    let now = SystemClock.now();

    book.replace_schedules(
        "hook:a/b:",
        &[
            spec("hook:a/b:0", &every_six_hours(now)),
            spec("hook:a/b:1", "cron 0 9 * * *"),
        ],
        now,
    )
    .await
    .expect("written");

    world.until_record("hook:a/b:0", |record| record.next.is_some()).await;
    world.until_record("hook:a/b:1", |record| record.next.is_some()).await;

    let listed = ask(&world, "list", json!({"prefix": "hook:a"})).await.expect("a list");
    assert_eq!(listed["schedules"].as_array().map(Vec::len), Some(2));

    let next = ask(&world, "next", json!({"id": "hook:a/b:1"}))
        .await
        .expect("a preview");
    assert_eq!(next["firings"].as_array().map(Vec::len), Some(10));

    let text = ask(&world, "next", json!({"schedule": "every 1h", "count": 3, "after": 0}))
        .await
        .expect("a preview");
    assert_eq!(text["firings"][2]["nominal"], 10_800_000);

    let order = json!({"id": "hook:a/b:0", "note": "holiday", "by": "casey"});
    let paused = ask(&world, "pause", order).await.expect("paused");
    assert_eq!(
        (&paused["paused"]["note"], paused.get("next")),
        (&json!("holiday"), None)
    );

    let fired = ask(&world, "fire", json!({"id": "hook:a/b:0"}))
        .await
        .expect("fired, though paused");
    assert_eq!(fired["events"].as_array().map(Vec::len), Some(1));

    ask(&world, "resume", json!({"id": "hook:a/b:0"}))
        .await
        .expect("resumed");
    let again = ask(&world, "resume", json!({"id": "hook:a/b:0"}))
        .await
        .expect_err("it is not paused");

    assert!(again.contains("is not paused"), "{again}");

    let resumed = world.until_record("hook:a/b:0", |record| record.next.is_some()).await;
    assert_eq!((resumed.fired, resumed.paused), (1, None));

    let past = json!({"id": "hook:a/b:0", "from": now.0 - 24 * 3_600_000, "until": now.0});
    let filled = ask(&world, "backfill", past.clone()).await.expect("backfilled");
    assert_eq!(filled["events"].as_array().map(Vec::len), Some(4));

    ask(&world, "backfill", past)
        .await
        .expect("backfilled again, which changes nothing");
    let many = json!({"id": "hook:a/b:0", "from": 0, "until": now.0});
    let refused = ask(&world, "backfill", many).await.expect_err("too much");

    assert!(refused.contains("more than 100 firings"), "{refused}");
    assert_eq!(world.fired().await["hook:a/b:0"].len(), 5);

    book.replace_schedules("hook:a/b:", &[spec("hook:a/b:1", "cron 0 9 * * *")], now)
        .await
        .expect("written");
    assert_eq!(world.record("hook:a/b:0").await, None);

    let unknown = ask(&world, "show", json!({"id": "hook:a/b:0"}))
        .await
        .expect_err("it is gone");
    assert!(unknown.contains("no schedule `hook:a/b:0`"), "{unknown}");

    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_other_zone_data_say_is_next_and_a_lost_timer_are_mended_at_start() {
    let world = World::start().await;
    let book = ScheduleBook::new(&world.bus);
    let now = SystemClock.now();
    let mut record = ScheduleRecord::new(spec("hook:c:0", "cron 0 9 * * *"), now);
    let wrong = now.plus(40 * 86_400_000);
    record.next = Some(NextFiring {
        nominal: wrong,
        due: wrong,
    });

    book.kv()
        .create(&ScheduleBook::key("hook:c:0"), &record)
        .await
        .expect("written");

    // Decided on, and nothing brought about: its event and its timer are missing.
    let mut half = ScheduleRecord::new(spec("hook:d:0", &every_six_hours(now)), now);
    half.firing = vec![now.plus(-1_000)];
    let next = now.plus(3 * 3_600_000);
    half.next = Some(NextFiring {
        nominal: next,
        due: next,
    });

    book.kv()
        .create(&ScheduleBook::key("hook:d:0"), &half)
        .await
        .expect("written");

    let replica = Replica::start(&world).await;
    let mended = world
        .until_record("hook:c:0", |record| {
            record.next.is_some_and(|next| next.nominal < wrong)
        })
        .await;

    assert_eq!(mended.generation, record.generation + 1);

    let timers = scheduler_svc::timer::TimerStore::new(world.bus.clone());
    let place = scheduler_svc::timer::TimerPlace::of_schedule("hook:d:0");
    eventually("the timer is set", async || {
        timers.get::<ScheduleTimer>(&place).await.expect("it is read").is_some()
    })
    .await;
    assert_eq!(world.fired().await["hook:d:0"], [now.0 - 1_000]);

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_dies_behind_a_write_leaves_it_to_whoever_is_there() {
    let world = World::start().await;
    let book = ScheduleBook::new(&world.bus);
    let replica = Replica::start(&world).await;
    let now = SystemClock.now();
    let id = "hook:e:0";
    book.replace_schedules("hook:e:", &[spec(id, &every_six_hours(now))], now)
        .await
        .expect("written");
    world.until_record(id, |record| record.next.is_some()).await;

    // As a scheduler writes that is asked to fire, and dies before the event and the timer.
    let entry = book.get(id).await.expect("the bucket is read").expect("a record");
    let half = ScheduleRecord {
        firing: vec![now],
        generation: entry.value.generation + 1,
        ..entry.value
    };

    let key = ScheduleBook::key(id);
    book.kv().update(&key, &half, entry.revision).await.expect("written");
    eventually("the event", async || world.fired().await.contains_key(id)).await;
    let timers = scheduler_svc::timer::TimerStore::new(world.bus.clone());
    let place = scheduler_svc::timer::TimerPlace::of_schedule(id);

    eventually("the timer", async || {
        let set = timers.get::<ScheduleTimer>(&place).await.expect("it is read");
        set.is_some_and(|set| set.generation >= half.generation)
    })
    .await;
    assert_eq!(world.fired().await[id], [now.0]);

    replica.stop().await;
}

/// KV `schedules` has an older record; `SCHEDULES` has the timer of one that is lost, which would ring in years.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timer_of_a_record_that_is_lost_holds_nothing_back() {
    let world = World::start().await;
    let book = ScheduleBook::new(&world.bus);
    let replica = Replica::start(&world).await;
    let now = SystemClock.now();
    let id = "hook:f:0";
    let mut often = spec(id, "every 1s");
    // Nobody answers whether the one before is over.
    often.policies.overlap = OverlapPolicy::Allow;
    book.replace_schedules("hook:f:", &[often], now).await.expect("written");
    world.until_record(id, |record| record.fired > 0).await;
    replica.stop().await;

    let older = book.get(id).await.expect("the bucket is read").expect("a record").value;
    let lost = ScheduleTimer {
        id: id.to_owned(),
        nominal: now.plus(1_000 * 86_400_000),
        generation: older.generation + 1_000,
    };
    let timers = scheduler_svc::timer::TimerStore::new(world.bus.clone());
    let place = scheduler_svc::timer::TimerPlace::of_schedule(id);
    let set = timers
        .set_timer(&place, lost.nominal, &lost, |_: &ScheduleTimer| true)
        .await;
    set.expect("it is set");

    let replica = Replica::start(&world).await;
    let fired = older.fired;
    world.until_record(id, |record| record.fired > fired + 2).await;
    let set = timers.get::<ScheduleTimer>(&place).await.expect("it is read");
    assert!(set.is_none_or(|set| set.generation < lost.generation));

    replica.stop().await;
}
