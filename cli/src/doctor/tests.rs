//! Tests that a state that is not known is not reported as sound.

use std::collections::BTreeSet;
use std::path::Path;

use shared::bus::NatsConfig;
use shared::model::time::UnixMillis;
use shared::process::config::{ConfigDocument, ConfigEnvironment};
use shared::process::status::HeardStatus;
use shared::testing::nats::NatsServer;
use shared::wire::operator::status::{Known, ServerStatus, SystemStatus, WorkStatus};

use super::*;

async fn surroundings(status: Result<SystemStatus, String>) -> (NatsServer, Surroundings) {
    let (server, bus) = shared::testing::world().await;
    let document = ConfigDocument::parse(Path::new("nexus.toml"), "", &ConfigEnvironment::default());
    let surroundings = Surroundings {
        options: DoctorOptions::default(),
        document,
        nats: Ok(NatsConfig::default()),
        bus: Ok(bus),
        heard: Ok(HeardStatus::default()),
        status,
    };

    (server, surroundings)
}

fn unknown<T>() -> Known<T> {
    Known::Unknown("gone".to_owned())
}

/// A status of which nothing is known.
fn nothing_known() -> SystemStatus {
    SystemStatus {
        at: UnixMillis(1),
        server: Some(ServerStatus {
            version: "2.15.1".to_owned(),
            topology: unknown(),
            restoring: unknown(),
            storage: unknown(),
            clock: unknown(),
            announced: unknown(),
        }),
        work: Some(WorkStatus {
            hooks: unknown(),
            deliveries: unknown(),
            parked: unknown(),
            restored: unknown(),
            dead_letters: unknown(),
            claimed: unknown(),
            quarantined: unknown(),
            held: unknown(),
            witnessed: unknown(),
            paused_hooks: unknown(),
            schedules: unknown(),
            pairings: unknown(),
        }),
        streams: None,
        accounts: None,
    }
}

/// Checks that read what scheduler-svc says.
const TOLD: [Check; 10] = [
    server::topology,
    server::clock,
    server::storage,
    work::waiting,
    work::held,
    work::dead_letters,
    work::sessions,
    work::hooks,
    work::schedules,
    work::pairings,
];

async fn findings(surroundings: &Surroundings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in TOLD {
        findings.extend(check(surroundings).await);
    }
    findings
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_service_does_not_know_is_a_fault() {
    let (_server, surroundings) = surroundings(Ok(nothing_known())).await;
    let found = findings(&surroundings).await;
    assert!(
        found
            .iter()
            .all(|one| one.level == Level::Fault && one.detail.ends_with("gone")),
        "{found:?}"
    );

    let about: BTreeSet<&str> = found.iter().map(|one| one.what.as_str()).collect();
    let expected = [
        "topology",
        "restore",
        "clock",
        "storage",
        "hooks",
        "deliveries",
        "parked",
        "restored",
        "held",
        "positions",
        "dead letters",
        "sessions",
        "quarantine",
        "paused hooks",
        "schedules",
        "pairings",
    ];
    assert_eq!(about, BTreeSet::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_away_is_told_once() {
    let (_server, surroundings) = surroundings(Err("scheduler-svc is not running".to_owned())).await;
    let found = findings(&surroundings).await;
    let [only] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((only.what.as_str(), only.level), ("status", Level::Fault), "{only:?}");
    assert!(only.detail.contains("scheduler-svc is not running"), "{only:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_could_not_be_asked_are_not_known() {
    let (_server, mut surroundings) = surroundings(Ok(nothing_known())).await;
    surroundings.heard = Err("no answer".to_owned());
    let told = replicas::services(&surroundings).await;
    let told: Vec<(Level, String)> = told.into_iter().map(|one| (one.level, one.detail)).collect();
    assert_eq!(told, [(Level::Fault, "not known: no answer".to_owned())]);
}
