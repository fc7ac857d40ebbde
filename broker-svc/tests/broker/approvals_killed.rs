//! `kill -9` while a human is asked, between their word and the tool, and a NATS server that restarts in between: real
//! processes, and a test that is the model, the tool and the human. The tool runs exactly once, or not at all.

use std::sync::Arc;
use std::time::Duration;

use broker_svc::approval::store::{ApprovalStore, DecisionOutcome};
use shared::bus::CoreSubscription;
use shared::clock::SystemClock;
use shared::model::approval::ApprovalStatus;
use shared::model::ledger::{LedgerEntry, ToolOutcome};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::session::SessionRef;
use shared::testing::eventually;
use tokio::process::Child;

use crate::approvals::{approve, becomes, serving};
use crate::bench::{Bench, child, dispatch, session, told};
use crate::stepping::{Effect, SUBJECT, answer, effect};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_APPROVALS_URL";

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let Some(url) = told(URL) else { return };
    let _serving = serving(&url, &format!("child-{}", std::process::id()), "{}").await;
    std::future::pending::<()>().await;
}

fn child_of(url: &str) -> Child {
    child("approvals_killed::a_broker_of_its_own", &[(URL, url)])
}

struct Killing {
    bench: Bench,
    asked: CoreSubscription,
    main: SessionRef,
    owner: Child,
    desk: ApprovalStore,
}

impl Killing {
    /// A turn that waits for a human's word, whose broker is dead.
    async fn begin() -> (Self, String) {
        let bench = Bench::start().await;
        let asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
        bench.bus.flush().await.expect("it is known");
        let main = session("main");
        let mut one = dispatch(&main, 1);
        one.permissions = PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        };

        bench.publish(&one).await;
        bench.claim(&main).await;
        let desk = ApprovalStore::new(&bench.bus, Arc::new(SystemClock), Arc::default(), Default::default());

        let mut story = Self {
            owner: child_of(&bench.server.url()),
            bench,
            asked,
            main,
            desk,
        };

        story.plays("model", "I pay", &["pay"]).await;
        let mut id = None;
        eventually("the turn waits", async || {
            for entry in story.bench.entries(&story.main).await {
                if let LedgerEntry::ApprovalRequested { request } = entry {
                    id = Some(request.id);
                }
            }
            id.is_some()
        })
        .await;

        story.owner.kill().await.expect("SIGKILL");
        (story, id.expect("a question"))
    }

    async fn effect(&mut self) -> (Effect, String) {
        effect(&mut self.asked).await
    }

    async fn answer(&self, to: &str, text: &str, tools: &[&str]) {
        answer(&self.bench.bus, to, text, tools).await;
    }

    async fn plays(&mut self, name: &str, text: &str, tools: &[&str]) {
        let (effect, to) = self.effect().await;
        assert_eq!(effect.name, name, "{effect:?}");
        self.answer(&to, text, tools).await;
    }

    async fn approves(&self, id: &str) {
        let said = approve(&self.desk, id).await;
        assert!(matches!(said, DecisionOutcome::Stands { .. }), "{said:?}");
    }

    async fn becomes(&self, id: &str, status: ApprovalStatus) {
        becomes(&self.desk, id, status).await;
    }

    fn next_owner(&mut self) {
        self.owner = child_of(&self.bench.server.url());
    }

    async fn outcomes(&self) -> Vec<ToolOutcome> {
        let mut ended = Vec::new();
        for entry in self.bench.entries(&self.main).await {
            if let LedgerEntry::ToolFinished { outcome, .. } = entry {
                ended.push(outcome);
            }
        }
        ended
    }

    async fn is_done(&self) {
        eventually("the turn's end", async || {
            self.bench.completed(&self.main).await.len() == 1
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_pending_with_a_server_that_restarts_the_tool_runs_once() {
    let (mut story, id) = Killing::begin().await;
    story.bench.server.restart().await;

    // Nobody runs the session when the word comes.
    story.approves(&id).await;
    story.next_owner();
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.is_done().await;
    story.becomes(&id, ApprovalStatus::Consumed).await;

    assert!(matches!(&story.outcomes().await[..], [ToolOutcome::Ok { .. }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_word_and_the_tool_it_runs_at_most_once() {
    for wait_ms in [0, 30, 120] {
        let (mut story, id) = Killing::begin().await;
        story.next_owner();
        story.approves(&id).await;
        shared::clock::pause(Duration::from_millis(wait_ms)).await;
        story.owner.kill().await.expect("SIGKILL");
        story.next_owner();

        let mut paid = 0;
        loop {
            let (effect, to) = story.effect().await;
            match effect.name.as_str() {
                "pay" => {
                    paid += 1;
                    story.answer(&to, "paid", &[]).await;
                }
                _ => {
                    story.answer(&to, "done", &[]).await;
                    break;
                }
            }
        }

        story.is_done().await;
        story.becomes(&id, ApprovalStatus::Consumed).await;
        assert!(paid <= 1, "paid {paid} times");
        assert_eq!(story.outcomes().await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_tool_runs_it_is_not_run_again_and_the_approval_is_used() {
    let (mut story, id) = Killing::begin().await;
    story.approves(&id).await;
    story.next_owner();
    let (effect, _) = story.effect().await;

    assert_eq!(effect.name, "pay");

    story.owner.kill().await.expect("SIGKILL");
    story.next_owner();
    story.plays("model", "done", &[]).await;
    story.is_done().await;
    story.becomes(&id, ApprovalStatus::Consumed).await;

    assert!(matches!(&story.outcomes().await[..], [ToolOutcome::Unknown { .. }]));
}
