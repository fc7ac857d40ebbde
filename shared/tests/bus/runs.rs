//! Runs of processes that an event has ended, as the owners of partitions count them, against the real server.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::partition;
use shared::clock::{SystemClock, pause};
use shared::model::position::StreamPlace;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::world;
use shared::wire::session_mark::{GroupMember, LeaseRecord};
use shared::wire::topology::{buckets, streams};

const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lives_is_not_counted_among_those_that_a_message_has_ended() {
    let (_server, bus) = world().await;
    let place = StreamPlace {
        sequence: 41,
        stored_at_ns: 7,
    };
    let member = |instance: &str, run: &str| GroupMember {
        instance: instance.to_owned(),
        run: run.to_owned(),
    };

    // The announcement of the one outlasts it; the other goes on.
    let members = bus.kv::<GroupMember>(buckets::MEMBERS);
    let ttl = Duration::from_secs(3);
    let ended = members.put_ttl("hook.ended", &member("ended", "ended"), ttl).await;
    ended.expect("announced");
    let announcing = tokio::spawn(async move {
        loop {
            let lives = members.put_ttl("hook.lives", &member("lives", "lives"), ttl).await;
            lives.expect("announced");
            pause(Duration::from_millis(100)).await;
        }
    });

    let shutdown = ShutdownSignal::default();
    let (_, may_join) = tokio::sync::watch::channel(true);
    let group = partition::PartitionGroup {
        name: "hook",
        stream: streams::EVENTS,
        instance: "me".to_owned(),
        may_join,
        settled: partition::SettledOutcome::ByOwner,
        tap: None,
        batch: 20,
        clock: Arc::new(SystemClock),
    };

    let (told, mut counted) = tokio::sync::mpsc::channel(64);
    let handler = move |owned: partition::OwnedPartition| {
        let told = told.clone();
        async move {
            let attempts = owned.bus().kv::<LeaseRecord>(buckets::ATTEMPTS);
            let key = format!("attempts.hook.{}", owned.partition);
            let noted = LeaseRecord {
                holder: "another".to_owned(),
                epoch: 1,
                in_progress: Some(place),
                runs: ["gone", "lives", "ended"].map(str::to_owned).to_vec(),
                released: false,
                session: String::new(),
            };
            attempts.put(&key, &noted).await.expect("noted");

            // Noting it once more is the same run.
            let first = owned.note_attempt(Some(place)).await.expect("noted");
            let again = owned.note_attempt(Some(place)).await.expect("noted");
            let runs = attempts.get(&key).await.expect("readable").expect("noted").value.runs;
            let _ = told.send((first, again, runs)).await;
            while owned.is_live() {
                pause(Duration::from_millis(10)).await;
            }
        }
    };

    let running = tokio::spawn(partition::run(bus.clone(), group, shutdown.clone(), handler));
    let counts = tokio::time::timeout(DEADLINE, counted.recv()).await;
    let (first, again, runs) = counts.expect("in time").expect("counted");
    assert_eq!((first, again), (3, 3), "{runs:?}");
    assert_eq!(runs[..2], ["gone", "ended"]);

    announcing.abort();
    shutdown.trigger();
    running.await.expect("no panic");
}
