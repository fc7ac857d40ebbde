//! An hour of nobody, by a clock that is set ahead: each schedule's own policy is honoured.

use shared::clock::{Clock as _, SystemClock};

use crate::world::World;

const HOUR_MS: i64 = 3_600_000;
const TEN_MINUTES_MS: i64 = 600_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_hour_without_schedulers_each_policy_is_honoured() {
    let world = World::start().await;
    // The grid begins five minutes from now, so that nothing is due while the schedulers come and go.
    let anchor = SystemClock.now().plus(TEN_MINUTES_MS / 2);
    let from = jiff::Timestamp::from_millisecond(anchor.0).expect("in range");
    let job = |keys: &str| format!("schedule = \"every 10m from {from:.3}\"\noverlap = \"allow\"\n{keys}");
    let jobs = [
        ("skip".to_owned(), job("missed = \"skip\"")),
        ("once".to_owned(), job("missed = \"fire_once\"")),
        ("all".to_owned(), job("missed = \"all\"\ncatchup_window = \"2h\"")),
        ("window".to_owned(), job("missed = \"all\"\ncatchup_window = \"25m\"")),
        (
            "shot".to_owned(),
            format!("schedule = \"at {from:.3}\"\nmissed = \"fire_once\"\noverlap = \"allow\""),
        ),
    ];
    world.configure("", &jobs);
    let mut before = world.scheduler();
    for (id, _) in &jobs {
        world
            .until_record(&format!("config:{id}"), |record| record.next.is_some())
            .await;
    }
    before.kill().await.expect("it is killed");
    assert!(world.fired().await.is_empty(), "nothing was due");

    // One minute past the sixth time of the grid, two replicas come back.
    let ahead = HOUR_MS - TEN_MINUTES_MS / 2 + 60_000 * 11;
    world.configure(&format!("clock_offset_ms = {ahead}"), &jobs);
    let _after = [world.scheduler(), world.scheduler()];
    for (id, _) in &jobs {
        world
            .until_record(&format!("config:{id}"), |record| record.decided_until > anchor.plus(-1))
            .await;
    }
    for (id, firings, skipped) in [
        ("skip", 0, 7),
        ("once", 1, 6),
        ("all", 7, 0),
        ("window", 3, 4),
        ("shot", 1, 0),
    ] {
        let record = world
            .until_record(&format!("config:{id}"), |record| record.fired + record.skipped > 0)
            .await;
        assert_eq!((record.fired, record.skipped), (firings, skipped), "{id}: {record:?}");
    }
    let count = async |id: &str| world.fired().await.get(&format!("config:{id}")).map_or(0, Vec::len);
    let waited = tokio::time::timeout(crate::world::DEADLINE, async {
        while (
            count("once").await,
            count("all").await,
            count("window").await,
            count("shot").await,
        ) != (1, 7, 3, 1)
        {
            shared::clock::pause(std::time::Duration::from_millis(50)).await;
        }
    });
    waited
        .await
        .unwrap_or_else(|_| panic!("all events in time:\n{}", world.log()));
    assert_eq!(count("skip").await, 0);
}
