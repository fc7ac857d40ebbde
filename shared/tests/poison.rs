//! What cannot be read: it is not written where we write, and stands for nothing where it is found.

use bytes::Bytes;
use shared::bus::ledger::{self, AppendLedgerError};
use shared::bus::{Bus, CasError, NatsConfig, Outgoing, PublishError};
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::wire::headers::{Carrier, Headers};
use shared::wire::session_mark::SettledFloor;
use shared::wire::topology::{buckets, topology};

async fn world() -> (NatsServer, Bus) {
    let server = NatsServer::start().await;
    let config = NatsConfig {
        servers: vec![server.url()],
        ..NatsConfig::default()
    };
    let bus = shared::testing::connect(&config, "test").await;
    bus.ensure(&topology(1), false).await.expect("the topology is made");
    (server, bus)
}

#[tokio::test]
async fn a_record_that_nobody_could_read_is_not_appended() {
    let (_server, bus) = world().await;
    let session = SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    };
    let record = |bytes: usize| LedgerRecord {
        append: AppendId {
            broker: "b".to_owned(),
            epoch: 1,
            counter: 1,
        },
        at: UnixMillis(1),
        entries: vec![LedgerEntry::SessionReset {
            reason: "x".repeat(bytes),
        }],
    };
    let append = async |bytes| ledger::append(&bus, &session, &record(bytes), 0, &Carrier::default()).await;
    let refused = append(4 * 1_024 * 1_024).await.expect_err("too large");
    assert!(
        matches!(
            refused,
            AppendLedgerError::Refused {
                source: PublishError::TooLarge { .. },
                ..
            }
        ),
        "{refused}"
    );
    append(1_000).await.expect("nothing stands before it");
    assert_eq!(ledger::read_after(&bus, &session, 0).await.expect("readable").len(), 1);
}

#[tokio::test]
async fn a_value_that_cannot_be_read_counts_as_none_and_is_overwritten_at_its_revision() {
    let (_server, bus) = world().await;
    let kv = bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
    assert_eq!(kv.find("k").await.expect("asked"), (None, 0));
    let subject = format!("$KV.{}.k", buckets::SESSION_CHECKPOINTS);
    let garbage = Outgoing::raw(subject, Headers::new(), Bytes::from_static(b"\xff"));
    let poisoned = bus.publish(garbage).await.expect("stored").sequence;
    assert_eq!(kv.find("k").await.expect("asked"), (None, poisoned));
    let floor = SettledFloor { sequence: 7 };
    let early = kv.update("k", &floor, 0).await;
    assert!(matches!(early, Err(CasError::Conflict { .. })), "{early:?}");
    let revision = kv.update("k", &floor, poisoned).await.expect("overwritten");
    assert_eq!(kv.find("k").await.expect("asked"), (Some(floor), revision));
    kv.delete("k", None).await.expect("deleted");
    let (value, marker) = kv.find("k").await.expect("asked");
    assert!(value.is_none() && marker > revision);
}
