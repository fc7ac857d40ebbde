//! What the stories share: a hook that answers, events and dispatches for it, and an agent in the test.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{Bus, CoreMessage, CoreSubscription, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::model::approval::{ApprovalStatus, ConfirmationTerms};
use shared::model::approval_api::{ApprovalList, ListApprovals};
use shared::model::dispatch::{DeliveryContext, Dispatch, DispatchMessage};
use shared::model::event::{Event, EventDirection, EventId};
use shared::model::origin::EventOrigin;
use shared::model::session::{QueueMode, SessionRef};
use shared::testing::sample;
use shared::wire::agent::{AgentReply, AgentRequest};
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{World, token};

/// How long anything may take that takes milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A hook that answers every event of channel `e2e` in a session of its conversation, over channel `nats`.
pub(crate) const ANSWER: &str = r#"/** @name answer */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "e2e" || e.direction !== "received") return { fire: false };
  return { fire: true, routing: { session: "s-" + e.peer.id },
    deliveryContext: { channel: "nats", accountId: "e2e", peerId: e.peer.id, replyToId: e.id } };
};
"#;

/// `personas.yaml` of a world whose agent is the test.
pub(crate) const REMOTE: &str = "personas: {default: {runner: nats}}";

/// The approvals that wait for a decision, the newest first.
pub(crate) async fn pending_approvals(world: &World) -> Result<Vec<ConfirmationTerms>, String> {
    let question = ListApprovals {
        status: Some(ApprovalStatus::Pending),
        ..ListApprovals::default()
    };
    let listed = world
        .bus
        .request::<_, ApprovalList>("nexus.svc.approval.list", Headers::new(), &question, PATIENCE);
    Ok(listed.await.map_err(|error| error.to_string())?.approvals)
}

/// The session in which [`ANSWER`] answers `peer`.
pub(crate) fn session(peer: &str) -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: format!("s-{peer}"),
    }
}

/// An event that [`ANSWER`] answers.
pub(crate) fn event(id: &str, peer: &str, content: &str) -> Value {
    json!({
        "id": id, "timestamp": 1_700_000_000_000_i64, "channel": "e2e", "content": content, "content_types": ["text"],
        "peer": { "kind": "dm", "id": peer }, "from": { "id": peer },
    })
}

/// Posts `event`, which must be accepted.
pub(crate) async fn send(world: &World, event: &Value) {
    let answer = cli::http::client()
        .expect("an HTTP client")
        .post(format!("{}/v1/events", world.gateway()))
        .bearer_auth(token("e2e"))
        .json(event)
        .send()
        .await;

    let answer = answer.expect("the gateway answers");
    let status = answer.status();
    assert!(
        status.is_success(),
        "{status}: {}",
        answer.text().await.unwrap_or_default()
    );
}

/// Publishes `event` as the adapter of a chat platform does, which knows its senders.
pub(crate) async fn brings(world: &World, event: &Value) {
    let mut event: Event = serde_json::from_value(event.clone()).expect("an event");
    event.origin = EventOrigin::account(&event.channel, event.account());
    let out = OutgoingMessage::event(&event, world.bus.trust());
    world.bus.publish(out).await.expect("stored");
}

/// A dispatch as hook-svc makes it, number `number` of the session of `peer`.
pub(crate) fn dispatch(peer: &str, number: u64) -> Dispatch {
    let event_id = EventId::parse(format!("e2e:{peer}/{number}")).expect("an event id");
    let timestamp = SystemClock.now();
    let one = sample::dispatch(event_id, number, "answer", session(peer), timestamp);

    Dispatch {
        queue_mode: Some(QueueMode::Followup),
        message: DispatchMessage {
            from: peer.to_owned(),
            ..one.message
        },
        delivery_context: DeliveryContext {
            channel: "nats".to_owned(),
            account_id: Some("e2e".to_owned()),
            peer_id: Some(peer.to_owned()),
            ..DeliveryContext::default()
        },
        ..one
    }
}

/// The agent of persona `default`, served by the test.
pub(crate) struct Agent {
    bus: Bus,
    questions: CoreSubscription,
}

impl Agent {
    /// Serves from now on.
    pub(crate) async fn listen(bus: &Bus) -> Self {
        let questions = bus.core_subscribe(&subject::agent("default")).await.expect("an agent");
        bus.flush().await.expect("the server knows of it");
        Self {
            bus: bus.clone(),
            questions,
        }
    }

    /// The next question.
    pub(crate) async fn asked(&mut self) -> CoreMessage {
        let asked = tokio::time::timeout(PATIENCE, self.questions.next()).await;
        asked.expect("a question in time").expect("the bus is open")
    }

    /// Answers `question`.
    pub(crate) async fn answer(&self, question: &CoreMessage, content: &str) {
        let answer = AgentReply::Answer {
            content: content.to_owned(),
            attachments: Vec::new(),
        };
        let to = question.reply.as_deref().expect("a place to answer");
        self.bus
            .core_publish(to, &Headers::new(), encode_payload(&answer, PayloadFormat::Json))
            .await;
    }

    /// Answers everything from now on with `agent: ` and the message.
    pub(crate) fn serve(mut self) {
        tokio::spawn(async move {
            while let Some(question) = self.questions.next().await {
                let request: AgentRequest = serde_json::from_slice(&question.payload).expect("a request");
                let said = request
                    .messages
                    .last()
                    .map(|message| message.content.clone())
                    .unwrap_or_default();

                self.answer(&question, &format!("agent: {said}")).await;
            }
        });
    }
}

/// The text of everything that was delivered so far.
pub(crate) async fn delivered(world: &World) -> Vec<String> {
    let events: Vec<(u64, Event)> = read_all(&world.bus, streams::EVENTS).await;
    let sent = events
        .into_iter()
        .filter(|(_, event)| event.direction == EventDirection::Sent);
    sent.map(|(_, event)| event.content).collect()
}

/// The delivered text that holds `part`, once it is.
pub(crate) async fn delivers(world: &World, part: &str) -> String {
    eventually("it is delivered", PATIENCE, async || {
        let sent = delivered(world).await;
        let found = sent.iter().find(|text| text.contains(part)).cloned();
        found.ok_or_else(|| format!("{part}: {sent:?}\n{}", world.logs()))
    })
    .await
}
