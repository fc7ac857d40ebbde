//! Durable timers against the real server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use scheduler_svc::timer::{TimerOutcome, TimerPlace, TimerStore};
use scheduler_svc::timer_dispatch::{OnFire, TimerDispatcher};
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::schedule::ScheduleTimer;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::{eventually_within, world};
use shared::wire::topology::SCHEDULE_TIMERS;

const DEADLINE: Duration = Duration::from_secs(60);

/// Remembers what fired.
#[derive(Default)]
struct Heard(Mutex<Vec<ScheduleTimer>>);

#[async_trait]
impl OnFire<ScheduleTimer> for Heard {
    async fn handle_fired(&self, timer: &ScheduleTimer) -> anyhow::Result<()> {
        self.0.lock().expect("not poisoned").push(timer.clone());
        Ok(())
    }
}

impl Heard {
    fn ids(&self) -> Vec<(String, u64)> {
        let heard = self.0.lock().expect("not poisoned");
        let mut ids: Vec<_> = heard.iter().map(|timer| (timer.id.clone(), timer.generation)).collect();
        ids.sort();
        ids.dedup();
        ids
    }
}

/// Sets the timer `id`, due in `in_ms`, of `generation`.
async fn put(timers: &TimerStore, id: &str, in_ms: i64, generation: u64) -> TimerOutcome {
    let due = SystemClock.now().plus(in_ms);
    let timer = ScheduleTimer {
        id: id.to_owned(),
        nominal: due,
        generation,
    };
    let place = TimerPlace::of_schedule(id);
    let put = timers.set_timer(&place, due, &timer, |set| set.generation <= generation);
    put.await.expect("it is decided")
}

async fn cancel(timers: &TimerStore, id: &str, generation: u64) -> TimerOutcome {
    let place = TimerPlace::of_schedule(id);
    let canceled = timers.cancel_timer(&place, |set: &ScheduleTimer| set.generation <= generation);
    canceled.await.expect("it is decided")
}

async fn get(timers: &TimerStore, id: &str) -> Option<ScheduleTimer> {
    timers.get(&TimerPlace::of_schedule(id)).await.expect("it is read")
}

async fn hear(bus: &Bus, shutdown: &ShutdownSignal) -> (Arc<Heard>, tokio::task::JoinHandle<()>) {
    let heard = Arc::new(Heard::default());
    let owner = Arc::clone(&heard) as Arc<dyn OnFire<ScheduleTimer>>;
    let fired = TimerDispatcher::new(bus.clone(), Arc::new(SystemClock), SCHEDULE_TIMERS, owner);
    let stop = shutdown.clone();
    let task = tokio::spawn(async move { fired.run(&stop).await });
    (heard, task)
}

async fn until_heard(heard: &Heard, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> = expected.iter().map(|(id, n)| ((*id).to_owned(), *n)).collect();
    eventually_within("all are heard", DEADLINE, async || {
        let ids = heard.ids();
        (ids.len() >= expected.len())
            .then_some(())
            .ok_or_else(|| format!("{ids:?}"))
    })
    .await;
    assert_eq!(heard.ids(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_fires_is_replaced_and_withdrawn() {
    let (_server, bus) = world().await;
    let (timers, shutdown) = (TimerStore::new(bus.clone()), ShutdownSignal::default());
    let (heard, task) = hear(&bus, &shutdown).await;
    let (done, newer) = (TimerOutcome::Done, TimerOutcome::Newer);

    assert_eq!(put(&timers, "far", 3_600_000, 3).await, done);
    assert_eq!(put(&timers, "far", 500, 2).await, newer, "an older one");
    assert_eq!(put(&timers, "replaced", 3_600_000, 1).await, done);
    assert_eq!(put(&timers, "replaced", 900, 2).await, done);
    assert_eq!(put(&timers, "withdrawn", 8_000, 1).await, done);
    assert_eq!(cancel(&timers, "withdrawn", 1).await, done);
    assert_eq!(cancel(&timers, "withdrawn", 1).await, done, "there is none");
    assert_eq!(cancel(&timers, "far", 2).await, newer);
    assert_eq!(put(&timers, "overdue", -60_000, 1).await, done);
    assert_eq!(put(&timers, "last", 9_000, 1).await, done);

    until_heard(&heard, &[("last", 1), ("overdue", 1), ("replaced", 2)]).await;
    let early = heard
        .0
        .lock()
        .expect("not poisoned")
        .iter()
        .any(|t| t.nominal > SystemClock.now());

    assert!(!early, "none fires early");
    assert_eq!(get(&timers, "far").await.map(|timer| timer.generation), Some(3));
    assert_eq!(get(&timers, "last").await, None);

    shutdown.trigger();
    task.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_survive_the_servers_death() {
    let (mut server, bus) = world().await;

    let timers = TimerStore::new(bus.clone());
    for (id, in_ms) in [("during", 300), ("after", 2_500)] {
        assert_eq!(put(&timers, id, in_ms, 1).await, TimerOutcome::Done);
    }

    server.kill9();
    server.restart().await;
    let shutdown = ShutdownSignal::default();
    let (heard, task) = hear(&bus, &shutdown).await;
    until_heard(&heard, &[("after", 1), ("during", 1)]).await;
    shutdown.trigger();
    task.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_set_a_timer_the_later_generation_stands() {
    let (_server, bus) = world().await;

    let timers = TimerStore::new(bus);
    for round in 0..20_u64 {
        let id = format!("raced-{round}");
        let (_, second) = tokio::join!(put(&timers, &id, 3_600_000, 1), put(&timers, &id, 7_200_000, 2));
        assert_eq!(second, TimerOutcome::Done);
        assert_eq!(get(&timers, &id).await.map(|timer| timer.generation), Some(2));
    }
}
