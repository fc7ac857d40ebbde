//! Intents inside of an agent's answer: asked for once, whoever finishes the turn, and refusals reach the next turn.
//!
//! The broker is a process of its own, the agent and the scheduler are the test, which kills the broker when it is asked
//! for an intent: the answer is in the ledger then, and the turn's end is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker_svc::config::BrokerConfig;
use serde::Serialize;
use shared::bus::{CoreMessage, CoreSubscription, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::model::intent::service::{IntentAnswer, IntentList, ProposeIntent, TellReset};
use shared::model::intent::{IntentRejection, IntentStatus, IntentWish};
use shared::model::ledger::LedgerEntry;
use shared::model::order::{OrderKind, SessionOrder};
use shared::testing::eventually;
use shared::wire::agent::{AgentReply, AgentRequest};
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::Headers;
use shared::wire::subject;
use tokio::process::Child;
use ulid::Ulid;

use crate::bench::{Bench, DEADLINE, broker_at, child, run_broker, session, told};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_WISHES_URL";
const PERSONAS: &str = "personas: {default: {runner: nats, limits: {no_agent_ms: 60000}}}";
/// An answer that asks for one intent that is admitted, one that is not, and one that cannot be read.
const ANSWER: &str = r#"I will remind you.

<hook-intent>{"kind": "remind", "parameters": {"subject": "a"}, "schedule": {"type": "after", "seconds": 60}}</hook-intent>

<hook-intent>{"kind": "dance", "parameters": {}, "schedule": {"type": "after", "seconds": 60}}</hook-intent>

<hook-intent to="me">{}</hook-intent>"#;

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed() {
    let Some(url) = told(URL) else { return };
    let name = format!("child-{}", std::process::id());
    let broker = broker_at(&url, &name, PERSONAS, BrokerConfig::default()).await;
    let _running = run_broker(Arc::new(broker));
    std::future::pending::<()>().await;
}

fn child_of(url: &str) -> Child {
    child("wishes::a_broker_that_is_killed", &[(URL, url)])
}

/// Which question for an intent the broker does not survive, and whether it is answered.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kill {
    Never,
    Unanswered(usize),
    Answered(usize),
}

async fn tell(bench: &Bench, question: &CoreMessage, answer: &impl Serialize) {
    let to = question.reply.as_deref().expect("a place to answer");
    let answer = encode_payload(answer, PayloadFormat::Json);
    bench.bus.core_publish(to, &Headers::new(), answer).await;
    bench.bus.flush().await.expect("it is sent");
}

fn judged(question: &ProposeIntent) -> IntentAnswer {
    let dances = question.wish.kind == "dance";
    let rejection = dances.then(|| IntentRejection::UnknownKind {
        kind: question.wish.kind.clone(),
    });

    IntentAnswer {
        id: question.id.expect("a name"),
        status: if dances {
            IntentStatus::Rejected
        } else {
            IntentStatus::Pending
        },
        due: None,
        rejection,
        approval: None,
    }
}

/// What happened.
#[derive(Default)]
struct Went {
    /// The prompts of the agent's turns.
    prompts: Vec<String>,
    /// What was asked for under each name.
    wishes: BTreeMap<Ulid, Vec<IntentWish>>,
    replies: Vec<String>,
    entries: Vec<LedgerEntry>,
}

/// Hears what is asked on `subject`, in the place of an agent or a scheduler.
async fn listener(bench: &Bench, subject: &str) -> CoreSubscription {
    let heard = bench.bus.core_subscribe(subject).await.expect("a subject");
    bench.bus.flush().await.expect("it is known");
    heard
}

/// Two turns, the first of which asks for its future.
async fn story(kill: Kill) -> Went {
    let bench = Bench::start().await;
    let url = bench.server.url();
    let mut asked = listener(&bench, &subject::agent("default")).await;
    let mut wished = listener(&bench, "nexus.svc.intent.propose").await;
    let mut owner = child_of(&url);
    let main = session("main");
    bench.send(&main, 1).await;

    let mut went = Went::default();
    let (mut number, mut sent) = (0, 1);
    let story = async {
        loop {
            tokio::select! {
                question = asked.next() => {
                    let question = question.expect("a question");
                    let request: AgentRequest = serde_json::from_slice(&question.payload).expect("a request");
                    went.prompts.push(request.system_prompt);
                    let content = if went.prompts.len() == 1 { ANSWER } else { "I see." }.to_owned();
                    tell(&bench, &question, &AgentReply::Answer { content, attachments: Vec::new() }).await;
                }
                question = wished.next() => {
                    let question = question.expect("a question");
                    let wish: ProposeIntent = serde_json::from_slice(&question.payload).expect("a proposal");
                    number += 1;
                    if kill != Kill::Unanswered(number) {
                        tell(&bench, &question, &judged(&wish)).await;
                    }
                    went.wishes.entry(wish.id.expect("a name")).or_default().push(wish.wish);
                    if [Kill::Unanswered(number), Kill::Answered(number)].contains(&kill) {
                        owner.kill().await.expect("SIGKILL");
                        owner = child_of(&url);
                    }
                }
            }
        }
    };

    let done = async {
        eventually("two replies", async || {
            let replies = bench.replies().await.len();
            if replies == sent && sent == 1 {
                sent = 2;
                bench.send(&main, 2).await;
            }
            replies == 2
        })
        .await;
    };

    tokio::select! {
        () = story => {}
        () = done => {}
    }
    went.replies = bench.replies().await.into_iter().map(|reply| reply.content).collect();
    went.entries = bench.entries(&main).await;

    went
}

#[tokio::test(flavor = "multi_thread")]
async fn intents_are_asked_for_once_and_refusals_reach_the_next_turn_whoever_is_killed() {
    let kills = [
        Kill::Never,
        Kill::Unanswered(1),
        Kill::Answered(1),
        Kill::Unanswered(2),
        Kill::Answered(2),
    ];

    let stories = kills.map(async |kill| (kill, story(kill).await));
    for (kill, went) in futures_util::future::join_all(stories).await {
        assert_eq!(went.replies, ["I will remind you.", "I see."], "{kill:?}");

        let [first, second] = went.prompts.as_slice() else {
            panic!("{kill:?}: the agent is asked once for each turn: {:?}", went.prompts)
        };
        assert!(!first.contains("Your intents"), "{first}");

        let told = ["`dance` was rejected: unknown_kind", "takes no attributes"];
        assert!(told.iter().all(|told| second.contains(told)), "{kill:?}: {second}");

        let kinds: Vec<Vec<&str>> = went
            .wishes
            .values()
            .map(|asked| asked.iter().map(|wish| wish.kind.as_str()).collect())
            .collect();
        assert_eq!(kinds.len(), 2, "{kill:?}: {kinds:?}");
        assert!(
            kinds.iter().all(|kinds| kinds.windows(2).all(|two| two[0] == two[1])),
            "{kill:?}: a name is one intent: {kinds:?}"
        );

        let count = |is: fn(&LedgerEntry) -> bool| went.entries.iter().filter(|entry| is(entry)).count();
        let answered = count(|entry| matches!(entry, LedgerEntry::ModelAnswered { .. }));
        let noted = count(|entry| matches!(entry, LedgerEntry::IntentRefused { .. }));
        let completed = count(|entry| matches!(entry, LedgerEntry::TurnCompleted { .. }));

        assert_eq!((answered, noted, completed), (2, 2, 2), "{kill:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_is_told_of_a_session_that_begins_anew() {
    let bench = Bench::start().await;
    let mut told = listener(&bench, "nexus.svc.intent.session_reset").await;
    let running = bench.run("b1", "").await;
    let main = session("main");
    bench.send(&main, 1).await;
    eventually("a reply", async || bench.replies().await.len() == 1).await;

    let order = SessionOrder {
        id: Ulid::from_parts(1, 1),
        target: main.clone(),
        wanted: OrderKind::Reset,
        by: "operator".to_owned(),
        reason: String::new(),
        at: SystemClock.now(),
    };

    let out = OutgoingMessage::new(subject::dispatch(&main), &order);
    bench.bus.publish(out).await.expect("an order is stored");
    bench.claim(&main).await;
    let question = tokio::time::timeout(DEADLINE, told.next())
        .await
        .expect("in time")
        .expect("a word");

    let reset: TellReset = serde_json::from_slice(&question.payload).expect("a reset");
    assert_eq!((reset.agent.as_str(), reset.session.as_str()), ("default", "main"));

    tell(&bench, &question, &IntentList::default()).await;
    running.stop().await;
}

/// A scheduler that is away when an agent asks: the reply goes out, and the intents are asked for once somebody answers,
/// by another broker than the one that heard of them.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_answers_for_is_asked_for_later() {
    let bench = Bench::start().await;
    let url = bench.server.url();
    let mut asked = listener(&bench, &subject::agent("default")).await;
    let mut owner = child_of(&url);
    let main = session("main");
    bench.send(&main, 1).await;

    let mut turn = async |content: &str| {
        let question = tokio::time::timeout(DEADLINE, asked.next()).await;
        let question = question.expect("in time").expect("a question");
        let request: AgentRequest = serde_json::from_slice(&question.payload).expect("a request");
        let content = content.to_owned();

        tell(
            &bench,
            &question,
            &AgentReply::Answer {
                content,
                attachments: Vec::new(),
            },
        )
        .await;

        request.system_prompt
    };

    turn(ANSWER).await;
    eventually("the reply, without a scheduler", async || {
        bench.replies().await.len() == 1
    })
    .await;

    owner.kill().await.expect("SIGKILL");
    let _owner = child_of(&url);
    let mut wished = listener(&bench, "nexus.svc.intent.propose").await;

    let mut names = BTreeMap::new();
    while names.len() < 2 {
        let question = tokio::time::timeout(DEADLINE, wished.next()).await;
        let question = question.expect("in time").expect("a question");
        let wish: ProposeIntent = serde_json::from_slice(&question.payload).expect("a proposal");
        tell(&bench, &question, &judged(&wish)).await;
        names.insert(wish.id, wish.wish.kind);
    }

    let kinds: Vec<String> = names.into_values().collect();
    assert!(kinds.contains(&"remind".to_owned()) && kinds.contains(&"dance".to_owned()));

    let settled = |entry: &LedgerEntry| matches!(entry, LedgerEntry::IntentSettled { .. });
    eventually("both are settled", async || {
        bench.entries(&main).await.iter().filter(|entry| settled(entry)).count() == 2
    })
    .await;

    bench.send(&main, 2).await;
    let prompt = turn("I see.").await;
    assert!(prompt.contains("`dance` was rejected: unknown_kind"), "{prompt}");

    eventually("the other reply", async || bench.replies().await.len() == 2).await;
}
