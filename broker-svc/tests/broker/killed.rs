//! `kill -9` of the owner at every step of a turn: real processes, and a test that counts what they do.
//!
//! Every effect (a model call, a tool) is asked of the test, which knows that everything before it is in the ledger.
//! It kills the broker before the effect (right after the append), or after it and before the answer (between the
//! effect and its append); another broker then goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker_svc::config::BrokerConfig;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use shared::model::dispatch::dispatch_id;
use shared::model::ledger::{LedgerEntry, ToolOutcome};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::time::UnixMillis;
use shared::testing::{connect_to, eventually};
use shared::wire::headers::Headers;
use tokio::process::Child;

use crate::bench::{Bench, broker_at, child, dispatch, run_broker, session, told, unstamped};
use crate::stepping::{Effect, SUBJECT, Scripted, script};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_BROKER_URL";
/// Names its tools that are idempotent.
const IDEMPOTENT: &str = "NEXUS_TEST_BROKER_IDEMPOTENT";
/// Effects of the script.
const EFFECTS: usize = 7;
/// Turns under way at once.
const AT_ONCE: usize = 6;

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let Some(url) = told(URL) else { return };
    let idempotent = told(IDEMPOTENT).unwrap_or_default();
    let agent = Scripted {
        bus: connect_to(&url, "test").await,
        asks: SUBJECT.to_owned(),
        tools: ["look", "pay"].map(|tool| (tool, idempotent.contains(tool))).to_vec(),
    };

    let name = format!("child-{}", std::process::id());
    let broker = broker_at(&url, &name, "", BrokerConfig::default()).await;
    let _running = run_broker(Arc::new(broker.with_agent(Arc::new(agent))));
    std::future::pending::<()>().await;
}

pub(crate) fn child_of(url: &str, idempotent: &str) -> Child {
    child("killed::a_broker_of_its_own", &[(URL, url), (IDEMPOTENT, idempotent)])
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kill {
    Never,
    BeforeEffect(usize),
    AfterEffect(usize),
}

/// How one turn went.
struct Went {
    /// The ledger without who owned it.
    entries: Vec<LedgerEntry>,
    /// How often each effect happened.
    effects: BTreeMap<(String, String), u32>,
    replies: Vec<String>,
}

async fn turn(kill: Kill, idempotent: &str) -> Went {
    let bench = Bench::start().await;
    let url = bench.server.url();
    let mut asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
    bench.bus.flush().await.expect("it is known");
    let mut owner = child_of(&url, idempotent);
    let main = session("main");
    let mut one = dispatch(&main, 1);

    // Ids follow from it: the ledgers of two runs are compared.
    one.timestamp = UnixMillis(1_769_000_000_000);
    one.id = dispatch_id(&one.event_id, one.timestamp, &one.hook_id);
    one.permissions = PermissionSet {
        level: PermissionLevel::Full,
        ..PermissionSet::default()
    };

    bench.publish(&one).await;
    bench.claim(&main).await;
    let (mut effects, mut number) = (BTreeMap::new(), 0);

    let done = async {
        loop {
            let question = asked.next().await.expect("a question");
            let effect: Effect = serde_json::from_slice(&question.payload).expect("an effect");
            number += 1;

            if kill != Kill::BeforeEffect(number) {
                *effects.entry((effect.name.clone(), effect.id.clone())).or_insert(0) += 1;
            }

            if [Kill::BeforeEffect(number), Kill::AfterEffect(number)].contains(&kill) {
                owner.kill().await.expect("SIGKILL");
                owner = child_of(&url, idempotent);
                continue;
            }

            let answer = serde_json::to_vec(&script(&effect)).expect("JSON");
            let reply = question.reply.expect("a place to answer");
            bench
                .bus
                .core_publish(&reply, &Headers::new(), Bytes::from(answer))
                .await;
        }
    };

    tokio::select! {
        () = done => {}
        () = eventually("the reply", async || !bench.replies().await.is_empty()) => {}
    }
    let entries = bench.entries(&main).await;

    Went {
        entries: entries
            .into_iter()
            .filter(|e| !matches!(e, LedgerEntry::Owned { .. }))
            .map(unstamped)
            .collect(),
        effects,
        replies: bench.replies().await.into_iter().map(|reply| reply.content).collect(),
    }
}

/// Every turn of `kills`: each is a server and brokers, and waits most of its time for the dead owner's claim.
async fn turns(kills: impl Iterator<Item = Kill>, idempotent: &str) -> Vec<(Kill, Went)> {
    let turns = kills.map(async |kill| (kill, turn(kill, idempotent).await));
    stream::iter(turns).buffered(AT_ONCE).collect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_right_after_each_append_the_ledger_ends_the_same_and_nothing_happens_twice() {
    let kills = (1..=EFFECTS).map(Kill::BeforeEffect);
    let mut all = turns(std::iter::once(Kill::Never).chain(kills), "look pay").await;
    let (_, undisturbed) = all.remove(0);
    assert_eq!(undisturbed.effects.len(), EFFECTS);
    for (kill, went) in all {
        assert_eq!(went.entries, undisturbed.entries, "{kill:?}");
        assert_eq!(went.effects, undisturbed.effects, "{kill:?}");
        assert_eq!(went.replies, ["done"], "{kill:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_an_effect_and_its_append_only_what_may_be_is_repeated() {
    let all = turns((1..=EFFECTS).map(Kill::AfterEffect), "look").await;
    for (kill, went) in all {
        let repeated: Vec<_> = went.effects.iter().filter(|(_, times)| **times > 1).collect();
        let unknown = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::ToolFinished { outcome: ToolOutcome::Unknown { reason }, .. } if reason == "interrupted");
        let unknown = went.entries.iter().filter(unknown).count();

        assert_eq!(
            (went.effects.len(), went.replies.as_slice()),
            (EFFECTS, &["done".to_owned()][..]),
            "{kill:?}"
        );

        match &repeated[..] {
            [] => assert_eq!(unknown, 1, "{kill:?}: a payment, and nobody knows"),
            [((name, _), 2)] => assert!(name != "pay" && unknown == 0, "{kill:?}: {repeated:?}"),
            _ => panic!("{kill:?}: {repeated:?}"),
        }
    }
}
