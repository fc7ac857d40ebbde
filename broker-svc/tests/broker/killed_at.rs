//! `kill -9` of the owner at every record of a turn's ledger: the test hears each append as it is made, and kills the
//! broker at the n-th. Whoever goes on ends with the same ledger, and no model call and no tool happens twice.
//!
//! What a dead broker asked for did not happen: each broker asks under a name of its own, and is answered only while it
//! lives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use broker_svc::approval::store::ApprovalStore;
use broker_svc::config::BrokerConfig;
use broker_svc::hooks::rules::HookRules;
use futures_util::{StreamExt as _, stream};
use shared::bus::CoreSubscription;
use shared::clock::{SystemClock, pause};
use shared::model::dispatch::dispatch_id;
use shared::model::ledger::LedgerEntry;
use shared::model::session::{QueueMode, SessionRef};
use shared::model::time::UnixMillis;
use shared::testing::connect_to;
use tokio::process::Child;

use crate::approvals::{approve, asked, personas, trusted};
use crate::bench::{Bench, DEADLINE, broker_at, child, run_broker, session, told, unstamped};
use crate::hooked::settled_turns;
use crate::stepping::{Effect, Scripted, answer, script};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_KILLED_AT_URL";
/// Names where it asks for effects.
const ASKS: &str = "NEXUS_TEST_KILLED_AT_ASKS";
/// Names its script.
const SCRIPT: &str = "NEXUS_TEST_KILLED_AT_SCRIPT";
/// Turns under way at once: each waits most of its time for a dead owner's claim.
const AT_ONCE: usize = 8;
/// Without a record and a question for so long, it is looked whether the turn is over.
const QUIET: Duration = Duration::from_millis(100);

/// Hooks at every point that leaves something in the ledger.
const HOOKS: &str = "
enabled: true
allow: {all: ['true']}
hooks:
  - {name: hi, hook: pre_session, reminder: be kind}
  - {name: each, hook: pre_stream, reminder: think first}
  - {name: seen, hook: PreToolUse, builtin: audit_log}
  - {name: cut, hook: PostToolUse, builtin: result_truncate, with: {max_chars: 3}}
  - {name: log, hook: PostToolUse, command: 'true', blocking: true}
  - {name: late, hook: Stop, command: 'true'}
";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Story {
    Plain,
    Hooked,
    Steered,
    Approved,
}

impl Story {
    const ALL: [Self; 4] = [Self::Plain, Self::Hooked, Self::Steered, Self::Approved];

    const fn hooks(self) -> &'static str {
        match self {
            Self::Hooked => HOOKS,
            Self::Plain | Self::Steered | Self::Approved => "",
        }
    }

    fn personas(self) -> String {
        match self {
            Self::Approved => personas("{}"),
            Self::Plain | Self::Hooked | Self::Steered => String::new(),
        }
    }
}

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(asks), Some(script)) = (told(URL), told(ASKS), told(SCRIPT)) else {
        return;
    };
    let story = Story::ALL.into_iter().find(|story| format!("{story:?}") == script);
    let story = story.expect("a script");
    let agent = Scripted {
        bus: connect_to(&url, "test").await,
        asks,
        tools: vec![("look", true), ("pay", true)],
    };

    let name = format!("child-{}", std::process::id());
    let broker = broker_at(&url, &name, &story.personas(), BrokerConfig::default()).await;
    let rules = HookRules::parse(story.hooks(), &broker.personas).expect("hooks");
    let _running = run_broker(Arc::new(broker.with_agent(Arc::new(agent)).with_hooks(rules)));
    std::future::pending::<()>().await;
}

/// A turn under way, and what has come of it.
struct Turn {
    story: Story,
    bench: Bench,
    main: SessionRef,
    desk: ApprovalStore,
    records: CoreSubscription,
    effects: CoreSubscription,
    owner: Child,
    /// The number of the broker that lives.
    alive: usize,
    /// Every effect, and how often it happened.
    happened: BTreeMap<(String, String), (Effect, u32)>,
    seen: usize,
    approved: BTreeSet<String>,
}

/// How one turn went.
struct Went {
    /// Its ledger, without who owned it and which hooks said so.
    entries: Vec<String>,
    happened: BTreeMap<(String, String), (Effect, u32)>,
    replies: Vec<String>,
    records: usize,
    /// How many owners were killed.
    killed: usize,
}

impl Turn {
    async fn begin(story: Story) -> Self {
        let bench = Bench::start().await;
        let effects = bench.bus.core_subscribe("test.of.*").await.expect("a subscription");
        let records = bench
            .bus
            .core_subscribe("nexus.ledger.>")
            .await
            .expect("a subscription");

        bench.bus.flush().await.expect("they are known");
        let main = session("main");
        let turn = Self {
            story,
            desk: ApprovalStore::new(&bench.bus, Arc::new(SystemClock), Arc::default(), Default::default()),
            owner: Self::broker(&bench, story, 0),
            bench,
            main,
            records,
            effects,
            alive: 0,
            happened: BTreeMap::new(),
            seen: 0,
            approved: BTreeSet::new(),
        };

        turn.send(1, None).await;
        turn
    }

    fn broker(bench: &Bench, story: Story, number: usize) -> Child {
        let (url, asks, script) = (bench.server.url(), format!("test.of.{number}"), format!("{story:?}"));
        let told = [(URL, url.as_str()), (ASKS, asks.as_str()), (SCRIPT, script.as_str())];
        child("killed_at::a_broker_of_its_own", &told)
    }

    async fn send(&self, event: u64, mode: Option<QueueMode>) {
        let mut one = trusted(&self.main, event, mode);
        // Ids follow from it: the ledgers of two runs are compared.
        one.timestamp = UnixMillis(1_769_000_000_000);
        one.id = dispatch_id(&one.event_id, one.timestamp, &one.hook_id);
        self.bench.publish(&one).await;
        self.bench.claim(&self.main).await;
    }

    /// A record was appended; kills whoever did, where it is the one.
    async fn recorded(&mut self, kill_at: Option<usize>) {
        self.seen += 1;

        if kill_at == Some(self.seen) {
            let lives = self.owner.try_wait().expect("a process");
            assert_eq!(lives, None, "{:?}: nobody lives that could be killed", self.story);
            self.owner.kill().await.expect("SIGKILL");
            self.alive += 1;
            self.owner = Self::broker(&self.bench, self.story, self.alive);
        }

        if self.story == Story::Approved {
            for request in asked(&self.bench.entries(&self.main).await) {
                self.approve(request.id).await;
            }
        }
    }

    async fn approve(&mut self, id: String) {
        if !self.approved.insert(id.clone()) {
            return;
        }
        approve(&self.desk, &id).await;
    }

    /// A broker is about to have an effect; it happens if that lives.
    async fn about_to(&mut self, question: shared::bus::CoreMessage) {
        if question.subject != format!("test.of.{}", self.alive) {
            return;
        }

        let mut effect: Effect = serde_json::from_slice(&question.payload).expect("an effect");
        // The prompt says what time it is.
        let lines = effect.prompt.lines().filter(|line| !line.ends_with("(UTC)"));
        effect.prompt = lines.collect::<Vec<_>>().join("\n");
        let id = (effect.name.clone(), effect.id.clone());
        if self.story == Story::Steered && effect.id == "1-1" && !self.happened.contains_key(&id) {
            self.send(2, Some(QueueMode::Steer)).await;
        }

        let outcome = script(&effect);
        self.happened.entry(id).or_insert((effect, 0)).1 += 1;
        let tools: Vec<&str> = outcome.tools.iter().map(String::as_str).collect();
        let to = question.reply.expect("a place to answer");
        answer(&self.bench.bus, &to, &outcome.text, &tools).await;
    }

    async fn is_over(&self) -> bool {
        let replies = self.bench.replies().await;
        if replies.iter().all(|reply| reply.interactive.is_some()) || self.bench.claims().await > 0 {
            return false;
        }
        let entries = self.bench.entries(&self.main).await;
        self.story != Story::Hooked || settled_turns(&entries) > 0
    }
}

/// One turn of `story`, whose owner is killed at the record `kill_at`.
async fn turn(story: Story, kill_at: Option<usize>) -> Went {
    let mut turn = Turn::begin(story).await;
    let mut late = std::pin::pin!(pause(2 * DEADLINE));
    loop {
        tokio::select! {
            biased;
            record = turn.records.next() => {
                record.expect("a record");
                turn.recorded(kill_at).await;
            }
            question = turn.effects.next() => turn.about_to(question.expect("a question")).await,
            () = pause(QUIET) => if turn.is_over().await { break },
            () = &mut late => panic!("{story:?}, killed at {kill_at:?}: {:#?}", turn.bench.entries(&turn.main).await),
        }
    }

    let entries = turn.bench.entries(&turn.main).await;
    Went {
        entries: entries.iter().filter_map(line).collect(),
        happened: turn.happened,
        replies: turn
            .bench
            .replies()
            .await
            .into_iter()
            .filter(|reply| reply.interactive.is_none())
            .map(|reply| reply.content)
            .collect(),
        records: turn.seen,
        killed: turn.alive,
    }
}

/// What two runs must have in common: not who owned the session, what hooks of a step said that was taken up again, when
/// a reply was noted, and names that are made of the time.
fn line(entry: &LedgerEntry) -> Option<String> {
    if let LedgerEntry::Owned { .. }
    | LedgerEntry::HookRan { .. }
    | LedgerEntry::ContextAdded { .. }
    | LedgerEntry::ToolsHidden { .. }
    | LedgerEntry::ReminderShown { .. }
    | LedgerEntry::PostHooksDue { .. }
    | LedgerEntry::UnseenCallShown { .. }
    | LedgerEntry::PostHookRan { .. }
    | LedgerEntry::PostHookFailed { .. }
    | LedgerEntry::PostHooksSettled { .. }
    | LedgerEntry::ReplyPublished { .. } = entry
    {
        return None;
    }

    if let LedgerEntry::ApprovalRequested { request } = entry {
        return Some(format!("asked {} {}", request.call, request.arguments_hash));
    }

    if let LedgerEntry::ApprovalDecided { decision, .. } = entry {
        return Some(format!("{:?} by {:?}", decision.status, decision.decided_by));
    }

    Some(format!("{:?}", unstamped(entry.clone())))
}

/// The turn of `story`, killed at each of its records in turn.
async fn killed_everywhere(story: Story) {
    let undisturbed = turn(story, None).await;
    assert!(undisturbed.happened.values().all(|(_, times)| *times == 1));

    let kills = (1..=undisturbed.records).map(async |at| (at, turn(story, Some(at)).await));
    let all: Vec<(usize, Went)> = stream::iter(kills).buffer_unordered(AT_ONCE).collect().await;
    assert_eq!(all.len(), undisturbed.records);

    for (at, went) in all {
        assert_eq!(went.killed, 1, "{story:?}, record {at} of {}", undisturbed.records);
        assert_eq!(went.entries, undisturbed.entries, "{story:?}, killed at record {at}");
        assert_eq!(went.happened, undisturbed.happened, "{story:?}, killed at record {at}");
        assert_eq!(went.replies, undisturbed.replies, "{story:?}, killed at record {at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_turn_killed_at_each_of_its_records_ends_the_same() {
    killed_everywhere(Story::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_hooks_killed_at_each_of_its_records_ends_the_same() {
    killed_everywhere(Story::Hooked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steered_turn_killed_at_each_of_its_records_ends_the_same() {
    killed_everywhere(Story::Steered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waits_for_humans_killed_at_each_of_its_records_ends_the_same() {
    killed_everywhere(Story::Approved).await;
}
