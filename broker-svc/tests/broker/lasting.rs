//! The last hooks of a turn take long: nothing else of their session waits for them, and no other session either.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use broker_svc::config::BrokerConfig;
use broker_svc::hooks::rules::HookRules;
use shared::model::approval::ApprovalStatus;
use shared::model::ledger::LedgerEntry;
use shared::model::session::QueueMode;
use shared::testing::eventually;
use tempfile::TempDir;

use crate::approvals::{Story, asked, personas};
use crate::bench::{Bench, broker_at, run_broker, session};
use crate::hooked::settled_turns;

/// A hook that says that it has begun, and ends once the test lets go of its lock, or at its time-out.
const PROGRAM: &str = "
import fcntl, os
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, 'begun'), 'a') as begun:
    begun.write('begun\\n')
fcntl.flock(open(os.path.join(here, 'held')), fcntl.LOCK_SH)
";

/// A `Stop` hook that the test holds.
struct Slow {
    folder: TempDir,
    held: File,
}

impl Slow {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("slow.py"), PROGRAM).expect("a program");
        let held = File::create(folder.path().join("held")).expect("a file");
        held.lock().expect("nobody else's");
        Self { folder, held }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn hooks(&self) -> String {
        let command = format!("python3 {}", self.path("slow.py").display());
        format!(
            "enabled: true\nallow: {{all: ['{command}']}}\nhooks: [{{name: slow, hook: Stop, command: '{command}', timeout: 300}}]"
        )
    }

    /// How many have begun.
    fn begun(&self) -> usize {
        let text = std::fs::read_to_string(self.path("begun")).unwrap_or_default();
        text.lines().count()
    }

    fn may_end(&self) {
        self.held.unlock().expect("ours");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_an_interrupt_and_a_newer_message_do_not_wait_for_the_hooks_of_the_turn_before() {
    let slow = Slow::new();
    let mut story = Story::begin_with(&personas("{}"), &slow.hooks()).await;
    story.send(1, None).await;
    story.plays("model", "one", &[]).await;
    eventually("the hook runs", async || slow.begun() == 1).await;

    let question = async |story: &Story, number: usize| {
        eventually("the turn waits", async || {
            asked(&story.bench.entries(&story.main).await).len() == number
        })
        .await;

        asked(&story.bench.entries(&story.main).await)
            .pop()
            .expect("a question")
            .id
    };

    // A human's word.
    story.send(2, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let first = question(&story, 1).await;
    story.says(&first, "operator", true, None).await.expect("taken");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "two", &[]).await;

    // An interrupt.
    story.send(3, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let second = question(&story, 2).await;
    story.send(4, Some(QueueMode::Interrupt)).await;
    story.plays("model", "four", &[]).await;
    story.becomes(&second, ApprovalStatus::Canceled).await;

    // A message that steers.
    story.send(5, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    question(&story, 3).await;
    story.send(6, Some(QueueMode::Steer)).await;
    let heard = story.plays("model", "six", &[]).await;

    assert!(
        heard.heard.last().is_some_and(|said| said.ends_with("message 6")),
        "{heard:?}"
    );

    eventually("the replies", async || story.replies().await.len() == 4).await;
    assert_eq!(story.replies().await, ["one", "two", "four", "six"]);
    assert_eq!(slow.begun(), 1, "all of it beside the first hook");

    slow.may_end();
    eventually("every turn's hook has run", async || {
        settled_turns(&story.bench.entries(&story.main).await) == 5
    })
    .await;

    assert_eq!(slow.begun(), 5);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_last_hook_runs_keeps_no_slot_from_others() {
    let slow = Slow::new();
    let bench = Bench::start().await;
    let config = BrokerConfig {
        max_active_turns: 1,
        ..BrokerConfig::default()
    };

    let broker = broker_at(&bench.server.url(), "b1", "", config).await;
    let rules = HookRules::parse(&slow.hooks(), &broker.personas).expect("hooks");
    let running = run_broker(Arc::new(broker.with_hooks(rules)));
    let (one, other) = (session("one"), session("other"));
    bench.send(&one, 1).await;
    eventually("the hook runs", async || slow.begun() == 1).await;
    bench.send(&other, 1).await;
    eventually("the other is answered", async || {
        bench.completed(&other).await.len() == 1
    })
    .await;

    // The first goes on beside its own hook as well.
    bench.send(&one, 2).await;
    eventually("a second turn", async || bench.completed(&one).await.len() == 2).await;
    slow.may_end();

    for session in [&one, &other] {
        eventually("nothing is owed", async || {
            let entries = bench.entries(session).await;
            let due = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::PostHooksDue { .. });
            let due = entries.iter().filter(due).count();

            due > 0 && due == settled_turns(&entries)
        })
        .await;
    }

    eventually("no claim is left", async || bench.claims().await == 0).await;
    running.stop().await;
}
