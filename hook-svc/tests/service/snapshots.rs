//! A replica without a read model begins with a copy of one.

use hook_svc::read_model::snapshot;
use shared::process::ShutdownSignal;
use shared::projection::{FeedSource, Projection, feed};
use shared::testing::eventually;
use shared::wire::topology::objects::SNAPSHOTS;

use crate::world::{World, event};

/// How often the event's id is in the read model, and how many are.
const COUNTS: &str = "import Database from 'better-sqlite3';
export default ({ event, dbPath }) => {
  const db = new Database(dbPath, { readonly: true });
  const { n } = db.prepare('SELECT count(*) AS n FROM events').get();
  db.close();
  return { fire: true, routing: { session: `n-${n}` } };
};
";

/// A read model of all that is stored, made in this process.
async fn model(world: &World, path: &std::path::Path) -> (Projection, ShutdownSignal) {
    let projection = Projection::open(path).expect("it opens");
    let shutdown = ShutdownSignal::default();
    tokio::spawn(feed::run(world.bus.clone(), projection.clone(), shutdown.clone()));
    let last = world.bus.stream_state("EVENTS").await.expect("its state").last;
    projection
        .wait_reached(FeedSource::Events, last)
        .await
        .expect("reached");
    (projection, shutdown)
}

/// The name of the copy that goes up to event `sequence`.
fn copy(sequence: u64) -> String {
    format!("{}{sequence}", shared::projection::snapshot::name_prefix())
}

/// The copies in the store.
async fn names(world: &World) -> Vec<String> {
    let stored = world.bus.objects(SNAPSHOTS).list().await.expect("listed");
    let mut names: Vec<String> = stored.into_iter().map(|object| object.name).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_a_file_begins_with_the_newest_copy_and_reads_what_came_since() {
    let mut world = World::new(&[("counts.ts", COUNTS)]).await;
    let folder = tempfile::tempdir().expect("a folder");

    for number in 0..30 {
        world.publish(&event(&format!("v{number}"), number, "early")).await;
    }

    let (projection, shutdown) = model(&world, &folder.path().join("made.sqlite")).await;
    assert_eq!(
        snapshot::upload_copy(&world.bus, &projection).await.expect("stored"),
        30
    );

    for number in 30..40 {
        world.publish(&event(&format!("v{number}"), number, "later")).await;
    }

    projection.wait_reached(FeedSource::Events, 40).await.expect("reached");
    assert_eq!(
        snapshot::upload_copy(&world.bus, &projection).await.expect("stored"),
        40
    );

    shutdown.trigger();
    let store = world.bus.objects(SNAPSHOTS);
    assert_eq!(names(&world).await, [copy(30), copy(40)]);

    let other = folder.path().join("other");
    std::fs::write(&other, "of streams that were there before").expect("written");
    store.put(&copy(1_000_000), &other).await.expect("stored");

    // What came after the copy is read from the streams; what it holds need not be.
    let restored = folder.path().join("below/restored.sqlite");
    std::fs::create_dir_all(folder.path().join("below")).expect("made");
    std::fs::write(restored.with_extension("fetching"), "left by one that was killed").expect("written");
    snapshot::bootstrap_model(&world.bus, &restored).await;
    let begun = Projection::open(&restored).expect("it opens");

    assert_eq!(
        begun.position(FeedSource::Events),
        40,
        "nothing was read from the streams yet"
    );

    let (known, before) = (event("v7", 7, ""), event("v99", 99, ""));
    assert_eq!(begun.first_sequence(&known.id).expect("readable"), Some(8));
    assert_eq!(begun.first_sequence(&before.id).expect("readable"), None);

    begun.close().await;

    // What is further than the stream goes is of other streams, and goes.
    assert_eq!(
        snapshot::upload_copy(&world.bus, &projection).await.expect("stored"),
        40
    );
    assert_eq!(names(&world).await, [copy(30), copy(40)]);

    // The same by a whole replica, which takes part and knows everything.
    world.start("a");
    world.wait_for_members(1).await;
    let last = event("last", 1, "last");
    world.publish(&last).await;
    let record = world.record(&last).await;

    assert_eq!(record.hooks.len(), 1, "{record:?}");

    let dispatch = world.dispatches().await.pop().expect("a dispatch");
    assert_eq!(dispatch.target.session, "n-41");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_of_no_use_costs_nothing_but_the_copy() {
    let mut world = World::new(&[("counts.ts", COUNTS)]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged");
    std::fs::write(&path, "no database").expect("written");
    world.bus.objects(SNAPSHOTS).put(&copy(2), &path).await.expect("stored");

    for number in 0..3 {
        world.publish(&event(&format!("v{number}"), number, "early")).await;
    }

    world.start("a");
    world.wait_for_members(1).await;
    eventually("all are evaluated", async || world.invocations().await.len() == 3).await;
    let dispatches = world.dispatches().await;

    assert_eq!(dispatches.len(), 3, "{dispatches:?}");
    assert!(
        dispatches
            .iter()
            .all(|dispatch| dispatch.target.session.starts_with("n-"))
    );
}
