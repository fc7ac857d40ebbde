//! An hour of nobody, by a clock that is set ahead: each schedule's own policies are honoured, and intents fire late, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{OutgoingMessage, RequestError, ServiceHandle, ServiceSpec};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::Dispatch;
use shared::model::intent::IntentStatus;
use shared::model::intent::service::{IntentAnswer, IntentHistory};
use shared::model::schedule::ScheduleRecord;
use shared::model::time::UnixMillis;
use shared::projection::api::{EventTrace, TraceRequest};
use shared::schedule::book::ScheduleBook;
use shared::testing::sample;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use crate::world::{DEADLINE, World, spec};

const MINUTE_MS: i64 = 60_000;
/// When the grid begins: nothing is due while schedulers come and go.
const FIRST: i64 = 5;
/// Where the clock is after the downtime, minutes: the times of the grid until then are 5, 15, … 65.
const BACK: i64 = 66;
const MISSED: [&str; 3] = ["skip", "fire_once", "all"];
const OVERLAPS: [&str; 3] = ["skip", "buffer_one", "allow"];

fn instant(at: UnixMillis) -> String {
    let at = jiff::Timestamp::from_millisecond(at.0).expect("in range");
    format!("{at:.3}")
}

/// Every ten minutes from `first` on, with `keys`.
fn job(first: UnixMillis, keys: &str) -> String {
    format!("schedule = \"every 10m from {}\"\n{keys}", instant(first))
}

/// A job for each pair of policies, which makes up for two hours.
fn pairs(first: UnixMillis) -> Vec<(String, String)> {
    let pairs = MISSED
        .iter()
        .flat_map(|missed| OVERLAPS.map(|overlap| (*missed, overlap)));
    let keys = |missed, overlap| format!("missed = \"{missed}\"\noverlap = \"{overlap}\"\ncatchup_window = \"2h\"");
    let job = |(missed, overlap)| (format!("{missed}-{overlap}"), job(first, &keys(missed, overlap)));
    pairs.map(job).collect()
}

impl World {
    /// Asks a scheduler what may be asked twice, until one answers.
    async fn ask<A: serde::de::DeserializeOwned>(&self, what: &str, question: &Value) -> A {
        let again = |error: &RequestError| !matches!(error, RequestError::Service { code: ..500, .. });
        self.asked(what, question, Duration::from_secs(5), again).await
    }

    /// Fires `id` now: once, so that whoever got the question is waited for.
    async fn fires(&self, id: &str) -> Value {
        let unheard = |error: &RequestError| matches!(error, RequestError::NoResponder { .. });
        let question = json!({ "id": id });
        self.asked("schedule.fire", &question, DEADLINE, unheard).await
    }

    /// Asks a scheduler, again after an error of which `again` holds.
    async fn asked<A: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        question: &Value,
        patience: Duration,
        again: impl Fn(&RequestError) -> bool,
    ) -> A {
        let asked = tokio::time::timeout(DEADLINE, async {
            loop {
                let subject = format!("nexus.svc.{what}");
                let asked = self.bus.request(&subject, Headers::new(), question, patience);
                match asked.await {
                    Ok(answer) => return answer,
                    Err(error) if again(&error) => println!("{what}: {error}"),
                    Err(error) => panic!("{what}: {error}"),
                }

                pause(Duration::from_millis(50)).await;
            }
        });

        asked
            .await
            .unwrap_or_else(|_| panic!("{what} in time:\n{}", self.log()))
    }

    /// Asks for a reminder by `schedule`; its id.
    async fn intent(&self, number: u128, schedule: Value) -> Ulid {
        let id = Ulid::from_parts(1_700_000_000_000, number);
        let question = json!({
            "id": id.to_string(), "agent": "anna", "session": format!("s{number}"),
            "wish": {
                "kind": "remind", "parameters": { "subject": "s", "message": "m" }, "schedule": schedule,
            },
            "permissions": { "level": "full" }, "delivery_context": { "channel": "webchat", "peerId": "v1" },
        });

        let answer: IntentAnswer = self.ask("intent.propose", &question).await;
        assert_eq!(answer.status, IntentStatus::Pending, "{answer:?}");

        id
    }

    /// Plays the broker: the one turn of intent `id` completes.
    async fn completes(&self, id: Ulid) {
        let waited = tokio::time::timeout(DEADLINE, async {
            loop {
                let stored = self.bus.read_history(DISPATCHES, "nexus.dispatch.>", 1, 100).await;
                let all = stored.unwrap_or_default().into_iter();
                let own = all.filter_map(|stored| stored.decode::<Dispatch>().ok());
                let own: Vec<Dispatch> = own
                    .filter(|one| one.event_id.as_str().contains(&id.to_string()))
                    .collect();

                if let [dispatch] = own.as_slice() {
                    return dispatch.clone();
                }

                assert!(own.len() < 2, "{own:?}");

                pause(Duration::from_millis(25)).await;
            }
        });

        let dispatch = waited
            .await
            .unwrap_or_else(|_| panic!("a dispatch in time:\n{}", self.log()));
        let record = sample::whole_turn(&dispatch, SystemClock.now().plus(BACK * MINUTE_MS));
        let out = OutgoingMessage::new(subject::ledger(&dispatch.target), &record);
        self.bus.publish(out).await.expect("appended");
    }

    async fn until_intent(&self, id: Ulid, wanted: impl Fn(&IntentHistory) -> bool) -> IntentHistory {
        let waited = tokio::time::timeout(DEADLINE, async {
            loop {
                let told: IntentHistory = self.ask("intent.get", &json!({ "id": id.to_string() })).await;
                if wanted(&told) {
                    return told;
                }
                pause(Duration::from_millis(50)).await;
            }
        });

        waited.await.unwrap_or_else(|_| panic!("{id} in time:\n{}", self.log()))
    }

    /// Checks that schedule `id` has decided on everything, with so many firings and so many left out, and that its events
    /// are there.
    async fn check(&self, id: &str, firings: u64, skipped: u64) {
        let decided = |record: &ScheduleRecord| record.fired + record.skipped >= firings + skipped;
        let record = self.until_record(id, decided).await;
        assert_eq!((record.fired, record.skipped), (firings, skipped), "{id}: {record:?}");

        let waited = tokio::time::timeout(DEADLINE, async {
            while self.fired().await.get(id).map_or(0, Vec::len) as u64 != firings {
                pause(Duration::from_millis(50)).await;
            }
        });
        waited
            .await
            .unwrap_or_else(|_| panic!("{id}: all events in time:\n{}", self.log()));
    }
}

/// A heartbeat that falls due in the last minutes of the downtime and at no other time near now or its end: every so
/// many seconds, and how often it falls due until then.
fn heartbeat(now: UnixMillis) -> (i64, u64) {
    let found = (420..3_900).step_by(15).find_map(|every: i64| {
        let step = every * 1_000;
        let first = step - now.0.rem_euclid(step);
        let times = (BACK * MINUTE_MS - first).div_euclid(step) + 1;
        let last = first + (times - 1) * step;
        let fits = first > FIRST * MINUTE_MS && last >= 58 * MINUTE_MS && last + step >= 72 * MINUTE_MS;
        fits.then(|| (every, times.unsigned_abs()))
    });
    found.expect("one of many falls due then")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn after_an_hour_without_schedulers_each_policy_is_honoured() {
    let world = World::start().await;
    let now = SystemClock.now();
    let first = now.plus(FIRST * MINUTE_MS);
    let mut jobs = pairs(first);
    let of_default = job(first, "");
    let narrow = job(first, "missed = \"all\"\ncatchup_window = \"25m\"");
    let shot = |missed: &str| format!("schedule = \"at {}\"\nmissed = \"{missed}\"", instant(first));

    let more = [
        ("default", of_default),
        ("narrow", narrow),
        ("shot", shot("fire_once")),
        ("let-be", shot("skip")),
    ];

    jobs.extend(more.map(|(name, text)| (name.to_owned(), text)));
    let (every, beats) = heartbeat(now);
    world.personas(&format!("personas: {{anna: {{heartbeat: {{every: {every}s}}}}}}"));
    world.configure("", &jobs);

    // As hook-svc says it of a hook with `@schedule`.
    let grid = format!("every 10m from {}", instant(first));
    let book = ScheduleBook::new(&world.bus);
    book.replace_schedules("hook:a/b:", &[spec("hook:a/b:0", &grid)], now)
        .await
        .expect("written");
    let mut before = world.scheduler();

    let known = |record: &ScheduleRecord| record.next.is_some();
    for (id, _) in &jobs {
        world.until_record(&format!("config:{id}"), known).await;
    }

    world.until_record("hook:a/b:0", known).await;
    world.until_record("persona:anna", known).await;
    let one_shot = world.intent(1, json!({ "type": "after", "seconds": FIRST * 60 })).await;
    let utc = |at: UnixMillis| {
        let at = jiff::Timestamp::from_millisecond(at.0).expect("in range");
        at.to_zoned(jiff::tz::TimeZone::UTC).datetime()
    };

    let until = utc(first.plus(12 * 60 * MINUTE_MS))
        .strftime("%Y-%m-%dT%H:%M:%S")
        .to_string();
    let cron = json!({
        "type": "cron", "expression": format!("{} * * * *", utc(first).minute()), "zone": "UTC", "until": until,
    });
    let recurring = world.intent(2, cron).await;
    before.kill().await.expect("it is killed");

    assert!(world.fired().await.is_empty(), "nothing was due");

    let ahead = BACK * MINUTE_MS;
    world.configure(&format!("clock_offset_ms = {ahead}"), &jobs);
    let _after = [world.scheduler(), world.scheduler()];

    for overlap in OVERLAPS {
        world.check(&format!("config:skip-{overlap}"), 0, 7).await;
        world.check(&format!("config:fire_once-{overlap}"), 1, 6).await;
        world.check(&format!("config:all-{overlap}"), 7, 0).await;
    }

    for (id, firings, skipped) in [
        ("config:default", 1, 6),
        ("config:narrow", 3, 4),
        ("config:shot", 1, 0),
        ("config:let-be", 0, 1),
        ("hook:a/b:0", 1, 6),
        ("persona:anna", 1, beats - 1),
    ] {
        world.check(id, firings, skipped).await;
    }

    // Each intent fires once, however often it should have: late, and not given up.
    for id in [one_shot, recurring] {
        world.completes(id).await;
    }

    let done = |told: &IntentHistory| told.intent.status == IntentStatus::Completed;
    world.until_intent(one_shot, done).await;
    let again = |told: &IntentHistory| told.intent.status == IntentStatus::Pending;
    let told = world.until_intent(recurring, again).await;
    let later = SystemClock.now().plus(ahead);

    assert!(told.intent.due.is_some_and(|due| due > later), "{:?}", told.intent.due);

    let fired = world.fired().await;
    for id in [one_shot, recurring] {
        assert_eq!(fired[&format!("intent:{id}")].len(), 1);
    }
}

/// Answers in place of the read model whether firings are over.
async fn traced(world: &World, over: &Arc<AtomicBool>) -> ServiceHandle {
    let over = Arc::clone(over);
    let spec = ServiceSpec::new("events", "whether they are over").endpoint("trace", move |_: TraceRequest| {
        let complete = over.load(Ordering::Relaxed);
        async move {
            Ok::<_, (usize, String)>(EventTrace {
                complete,
                ..EventTrace::default()
            })
        }
    });

    world.bus.serve(spec).await.expect("it is served")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_under_way_before_the_downtime_holds_back_as_its_policy_says() {
    // Less than the hour after which nothing counts as under way any more: 5, 15, … 55 were missed.
    const BACK_SOON: i64 = 56;

    let world = World::start().await;
    let over = Arc::new(AtomicBool::new(false));
    let _trace = traced(&world, &over).await;
    let jobs = pairs(SystemClock.now().plus(FIRST * MINUTE_MS));
    world.configure("", &jobs);
    let mut before = world.scheduler();

    for (id, _) in &jobs {
        let id = format!("config:{id}");
        world.until_record(&id, |record| record.next.is_some()).await;
        let fired = world.fires(&id).await;
        assert_eq!(fired["events"].as_array().map(Vec::len), Some(1), "{fired}");
    }

    before.kill().await.expect("it is killed");

    let ahead = BACK_SOON * MINUTE_MS;
    world.configure(&format!("clock_offset_ms = {ahead}\nreconcile_every_ms = 1000"), &jobs);
    let _after = [world.scheduler(), world.scheduler()];

    for overlap in OVERLAPS {
        world.check(&format!("config:skip-{overlap}"), 1, 6).await;
    }

    world.check("config:fire_once-skip", 1, 6).await;
    world.check("config:fire_once-allow", 2, 5).await;
    world.check("config:all-skip", 1, 6).await;
    world.check("config:all-allow", 7, 0).await;

    for missed in ["fire_once", "all"] {
        let id = format!("config:{missed}-buffer_one");
        let held = world.until_record(&id, |record| record.buffered.is_some()).await;
        assert_eq!((held.fired, held.skipped), (1, 5), "{held:?}");
    }

    over.store(true, Ordering::Relaxed);

    for missed in ["fire_once", "all"] {
        world.check(&format!("config:{missed}-buffer_one"), 2, 5).await;
    }
}
