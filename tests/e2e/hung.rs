//! A replica that hangs beside one that works: its process is there, and it answers nobody.

use cli::launch::service::signal;
use tests::eventually::eventually;
use tests::world::{Setup, World, without_ticks};

use crate::story::PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_a_replica_that_hangs_beside_one_that_works() {
    let mut world = World::start(Setup {
        replicas: 2,
        environment: vec![without_ticks()],
        without: vec!["adapter-svc", "hook-svc", "delivery-svc"],
        ..Setup::default()
    })
    .await;

    let told = world.nexus(&["doctor", "--offline"]).await;
    assert!(told.out.contains("broker-svc-1"), "{}", told.out);
    assert!(!told.out.contains("does not answer"), "{}", told.out);

    let hung = world.stack.service("broker-svc", 1).expect("it runs").pid();
    signal(hung, "STOP");
    let told = world.nexus(&["doctor", "--offline"]).await;
    signal(hung, "CONT");
    let says_so = |line: &str| {
        line.starts_with("BAD") && line.contains("broker-svc-1") && line.contains("does not answer; restart it")
    };
    assert!(told.out.lines().any(says_so), "{}", told.out);
    assert_ne!(told.code, Some(0));

    eventually("it answers again", PATIENCE, async || {
        let told = world.nexus(&["doctor", "--offline"]).await;
        let is_well = !told.out.contains("does not answer");
        is_well.then_some(()).ok_or(told.out)
    })
    .await;

    // One that was killed has said on the bus that it is there; one that ends well takes that back.
    let killed = world.stack.service("broker-svc", 1).expect("it runs");
    killed.kill();
    let told = world.nexus(&["doctor", "--offline"]).await;
    let says_so = |line: &str| line.starts_with("warn") && line.contains("broker-svc-1") && line.contains("was killed");
    assert!(told.out.lines().any(says_so), "{}", told.out);

    world.stack.launch("broker-svc", 1).expect("it starts again");
    world.stack.ready().await.expect("it comes up again");
    let ended = world.stack.service("broker-svc", 1).expect("it runs");
    ended.terminate();
    ended.ended(PATIENCE).await;
    let told = world.nexus(&["doctor", "--offline"]).await;
    assert!(!told.out.contains("does not answer"), "{}", told.out);

    world.stack.stop().await;
}
