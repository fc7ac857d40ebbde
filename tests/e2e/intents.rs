//! the scenarios of seed 000 §4, §5, §6: a reminder that fires, a refusal that the next turn sees, another time with
//! its lineage.

use std::time::Duration;

use serde_json::json;
use shared::bus::{Bus, CoreMessage};
use shared::model::event::EventDirection;
use shared::model::intent::service::{
    GetIntent, IntentAnswer, IntentHistory, IntentList, ListIntents, RescheduleIntent,
};
use shared::model::intent::{Intent, IntentStatus};
use shared::wire::agent::AgentRequest;
use shared::wire::headers::Headers;
use tests::eventually::eventually;
use tests::record::Record;
use tests::world::{Setup, World};

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, event, send};

fn request(question: &CoreMessage) -> AgentRequest {
    serde_json::from_slice(&question.payload).expect("a request")
}

fn last(question: &CoreMessage) -> String {
    request(question)
        .messages
        .last()
        .map(|message| message.content.clone())
        .unwrap_or_default()
}

fn remind(seconds: u64) -> String {
    let wish = json!({
        "kind": "remind", "parameters": { "subject": "interview", "target": "user", "message": "good luck" },
        "schedule": { "type": "after", "seconds": seconds }, "reason": "the interview is at nine"
    });
    format!("I will remind you.\n\n<hook-intent>{wish}</hook-intent>")
}

/// What the scheduler answers.
pub(crate) async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> A {
    let subject = format!("nexus.svc.intent.{what}");
    let answer = bus
        .request(&subject, Headers::new(), question, Duration::from_secs(20))
        .await;
    answer.expect("the scheduler answers")
}

/// The one intent that stands at `status`.
pub(crate) async fn at(bus: &Bus, status: IntentStatus) -> Intent {
    eventually("an intent stands there", PATIENCE, async || {
        let question = ListIntents {
            status: Some(status),
            ..ListIntents::default()
        };
        let mut list: IntentList = ask(bus, "list", &question).await;
        match (list.intents.pop(), list.intents.is_empty()) {
            (Some(intent), true) => Ok(intent),
            (found, _) => Err(format!("{status}: {found:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn an_agent_asks_for_its_own_future() {
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        personas: REMOTE.to_owned(),
        ..Setup::default()
    })
    .await;

    let mut agent = Agent::listen(&world.bus).await;

    // Fired: nobody says anything, and the agent is asked again.
    send(&world, &event("e2e:p/1", "p", "I have an interview tomorrow at nine")).await;
    let question = agent.asked().await;
    agent.answer(&question, &remind(2)).await;
    let due = agent.asked().await;

    assert_eq!(last(&due), "Reminder: interview. good luck");
    assert!(request(&due).system_prompt.contains("the interview is at nine"));

    agent.answer(&due, "Good luck with the interview!").await;
    let done = at(&world.bus, IntentStatus::Completed).await;
    assert_eq!((done.fired, done.intent.kind.as_str()), (1, "remind"));

    eventually(
        "both answers are delivered, without the element",
        PATIENCE,
        async || {
            let record = Record::read(&world.bus).await;
            let sent = record
                .events
                .iter()
                .filter(|(_, event)| event.direction == EventDirection::Sent);

            let sent: Vec<&str> = sent.map(|(_, event)| event.content.as_str()).collect();
            if sent == ["I will remind you.", "Good luck with the interview!"] {
                Ok(())
            } else {
                Err(format!("{sent:?}"))
            }
        },
    )
    .await;

    // Rejected: the next turn reads why.
    send(&world, &event("e2e:p/2", "p", "dance for me tomorrow")).await;
    let question = agent.asked().await;
    agent
        .answer(&question, &remind(3_600).replace("remind\"", "dance\""))
        .await;
    let refused = at(&world.bus, IntentStatus::Rejected).await;

    assert_eq!(
        refused.rejection.map(|rejection| rejection.code()),
        Some("unknown_kind")
    );

    send(&world, &event("e2e:p/3", "p", "and?")).await;
    let question = agent.asked().await;
    let told = request(&question).system_prompt;

    assert!(told.contains("unknown_kind") && told.contains("dance"), "{told}");

    agent.answer(&question, &remind(3_600)).await;

    // Rescheduled: the same intent, its lineage told, fired at the new time.
    let pending = at(&world.bus, IntentStatus::Pending).await;
    let moved = RescheduleIntent {
        id: pending.intent.id,
        schedule: serde_json::from_value(json!({ "type": "after", "seconds": 2 })).expect("a schedule"),
        agent: Some("default".to_owned()),
        by: None,
        reason: "the interview was moved".to_owned(),
    };

    let answer: IntentAnswer = ask(&world.bus, "reschedule", &moved).await;
    assert_eq!((answer.id, answer.status), (pending.intent.id, IntentStatus::Pending));

    let due = agent.asked().await;
    agent.answer(&due, "Now!").await;
    let own = GetIntent {
        id: pending.intent.id,
        agent: None,
    };

    eventually("it is completed, and its history says how", PATIENCE, async || {
        let told: IntentHistory = ask(&world.bus, "get", &own).await;
        let ways: Vec<IntentStatus> = told.history.iter().map(|record| record.to).collect();
        let lineage = told.history.iter().find_map(|record| record.lineage.as_ref());

        let expected = [
            IntentStatus::Proposed,
            IntentStatus::Pending,
            IntentStatus::Rescheduled,
            IntentStatus::Pending,
            IntentStatus::Running,
            IntentStatus::Completed,
        ];

        if ways == expected && lineage.is_some_and(|lineage| lineage.why == "the interview was moved") {
            Ok(())
        } else {
            Err(format!("{told:?}"))
        }
    })
    .await;

    world.stack.stop().await;
}
