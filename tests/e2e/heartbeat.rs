//! A persona's heartbeat: its schedule fires, its session is asked, and only what is worth saying is delivered.

use std::time::Duration;

use shared::bus::{Bus, CoreSubscription};
use shared::model::heartbeat::QUIET;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::schedule_api::{OneSchedule, ScheduleFired};
use shared::wire::agent::AgentRequest;
use shared::wire::headers::Headers;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{Setup, World};

use crate::story::{Agent, PATIENCE};

const PERSONAS: &str = "personas:
  default:
    runner: nats
    heartbeat: {every: 30m, session: inner, prompt: Anything?, deliver: {channel: nats, accountId: e2e, peerId: owner}}
";

async fn beat(bus: &Bus) {
    let order = OneSchedule {
        id: "persona:default".to_owned(),
    };
    eventually("the heart beats", PATIENCE, async || {
        let asked = bus.request(
            "nexus.svc.schedule.fire",
            Headers::new(),
            &order,
            Duration::from_secs(20),
        );

        let fired: ScheduleFired = asked.await.map_err(|error| error.to_string())?;
        assert_eq!(fired.events.len(), 1, "{fired:?}");
        Ok::<(), String>(())
    })
    .await;
}

async fn asked(agent: &mut Agent, answer: &str) {
    let question = agent.asked().await;
    let request: AgentRequest = serde_json::from_slice(&question.payload).expect("a request");
    assert_eq!(
        (request.session.session.as_str(), request.persona.as_str()),
        ("inner", "default")
    );
    assert_eq!(
        request.messages.last().map(|message| message.content.as_str()),
        Some("Anything?")
    );

    agent.answer(&question, answer).await;
}

async fn heard(told: &mut CoreSubscription) -> serde_json::Value {
    let message = tokio::time::timeout(PATIENCE, told.next())
        .await
        .expect("in time")
        .expect("a delivery");
    serde_json::from_slice(&message.payload).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_asks_its_persona_and_delivers_only_what_is_worth_saying() {
    let world = World::start(Setup {
        personas: PERSONAS.to_owned(),
        ..Setup::default()
    })
    .await;
    let mut agent = Agent::listen(&world.bus).await;
    let mut told = world
        .bus
        .core_subscribe("nexus.out.e2e.owner")
        .await
        .expect("the owner listens");

    world.bus.flush().await.expect("it is known");
    beat(&world.bus).await;
    asked(&mut agent, &format!(" {QUIET}\n")).await;

    eventually("the quiet answer is kept back", PATIENCE, async || {
        let receipts: Vec<(u64, Receipt)> = read_all(&world.bus, streams::RECEIPTS).await;
        let steps: Vec<ReceiptStep> = receipts.into_iter().map(|(_, receipt)| receipt.step).collect();
        match steps.as_slice() {
            [ReceiptStep::DeniedByPolicy { rule }] if rule == "quiet heartbeat" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    beat(&world.bus).await;
    asked(&mut agent, "Your train is late.").await;
    let said = heard(&mut told).await;

    assert!(said.to_string().contains("Your train is late."), "{said}");

    world.stack.stop().await;
}
