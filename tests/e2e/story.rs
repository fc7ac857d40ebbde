//! What the stories share: a hook that answers, events and dispatches for it, and an agent in the test.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{Bus, CoreMessage, CoreSubscription};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::{Causation, DeliveryContext, Dispatch, DispatchContext, Message, dispatch_id};
use shared::model::event::EventId;
use shared::model::permission::PermissionSet;
use shared::model::session::{QueueMode, SessionRef};
use shared::wire::agent::{AgentReply, AgentRequest};
use shared::wire::envelope::{Format, payload};
use shared::wire::headers::Headers;
use shared::wire::subject;
use tests::world::World;

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

/// A dispatch as hook-svc makes it, number `number` of the session of `peer`.
pub(crate) fn dispatch(peer: &str, number: u64) -> Dispatch {
    let event_id = EventId::parse(format!("e2e:{peer}/{number}")).expect("an event id");
    let timestamp = SystemClock.now();
    Dispatch {
        id: dispatch_id(&event_id, timestamp, "answer"),
        event_seq: number,
        hook_id: "answer".to_owned(),
        priority: 50,
        timestamp,
        target: session(peer),
        queue_mode: Some(QueueMode::Followup),
        message: Message {
            from: peer.to_owned(),
            channel: None,
            content: format!("message {number}"),
            content_type: "text".to_owned(),
            metadata: serde_json::Map::new(),
            attachments: Vec::new(),
        },
        permissions: PermissionSet::default(),
        context: DispatchContext {
            system_prompt: None,
            extracted: None,
            include_thread_history: true,
        },
        delivery_context: DeliveryContext {
            channel: "nats".to_owned(),
            account_id: Some("e2e".to_owned()),
            peer_id: Some(peer.to_owned()),
            ..DeliveryContext::default()
        },
        causation: Causation {
            event: event_id.clone(),
            hops: 0,
        },
        event_id,
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
            .core_publish(to, &Headers::new(), payload(&answer, Format::Json))
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
