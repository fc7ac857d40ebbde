//! Tools with which agents write to agents: messages are events, so they are routed, traced and bounded as all events
//! are.
//!
//! The event's id follows from the turn and the call, so a message that is sent again is the same one. A chain of
//! more than [`MAX_HOPS`] causes is refused and audited. A sender that waits for the reply listens on the core
//! subject to which the channel `agent` of delivery-svc sends it. Source: `docs/design/sessions.md` §6.4.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::bus::{Bus, CoreSubscription, OutgoingMessage, RequestError};
use shared::clock::SharedClock;
use shared::model::dispatch::derived_ulid;
use shared::model::event::{Event, EventId, EventSender, MAX_HOPS};
use shared::model::ledger::ToolOutcome;
use shared::model::origin::EventOrigin;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::agent::ToolDescription;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CAUSATION, CONTENT_TYPE, HOPS, Headers};
use shared::wire::subject;

use super::service::described;
use super::{Tool, ToolCall, failed_outcome};
use crate::turn::WORKS_FOR;

/// Subject of the service that shows sessions.
const SHOW: &str = "nexus.svc.session.show";
/// Maximum wait for the service's response.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
/// Channel of the events that agents send.
pub const CHANNEL: &str = "agent";

/// Names of the tools in this module.
pub(super) const NAMES: [&str; 2] = ["send_message_to_agent", "get_agent_status"];
/// Maximum wait for a reply, even if the turn has more time left.
const MAX_WAIT: Duration = Duration::from_mins(2);
/// Maximum length of a message, bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1_024;

/// The tool `send_message_to_agent`.
#[derive(Debug)]
pub struct SendMessage {
    bus: Bus,
    clock: SharedClock,
    description: ToolDescription,
}

#[derive(Debug, Deserialize)]
struct Wanted {
    to: String,
    content: String,
    #[serde(default)]
    wait_for_reply: bool,
}

/// One part of a reply, as the channel sends it.
#[derive(Debug, Deserialize)]
struct Part {
    content: String,
}

impl SendMessage {
    /// Creates the tool, which sends over `bus`.
    #[must_use]
    pub fn new(bus: Bus, clock: SharedClock) -> Self {
        let properties = json!({
            "to": {"type": "string", "minLength": 1, "maxLength": 64, "description": "Name of the persona."},
            "content": {"type": "string", "minLength": 1, "maxLength": MAX_MESSAGE_BYTES},
            "wait_for_reply": {"type": "boolean", "description": "Whether its answer is the result of this call."}
        });
        let text = "Sends a message to another agent, which receives it like any other message.";

        Self {
            bus,
            clock,
            description: described(NAMES[0], text, &properties, &["to", "content"]),
        }
    }

    /// Refuses a message whose chain is too long: nothing is sent, and operators can see the refusal in `AUDIT`.
    async fn refuse_hops(&self, call: &ToolCall, to: &str) -> ToolOutcome {
        let asked = &call.call;
        let hops = asked.origin.causation.hops;
        let id = format!("agent-hops:{}:{}", asked.turn, asked.call.call);
        let record = json!({
            "at": self.clock.now(), "reason": "hops", "hops": hops, "from": asked.session, "to": to,
            "turn": asked.turn, "call": asked.call.call, "event": asked.origin.causation.event,
        });

        let headers: Headers = [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
            .into_iter()
            .collect();
        let out =
            OutgoingMessage::raw(subject::audit("agent"), headers, record.to_string().into_bytes().into()).msg_id(id);
        if let Err(error) = self.bus.publish(out).await {
            tracing::warn!(session = %asked.session, turn = %asked.turn, %error, "failed to audit a rejection");
        }

        tracing::warn!(session = %asked.session, turn = %asked.turn, to, hops, "message to an agent rejected");
        failed_outcome(format!("refused: the chain of messages has more than {MAX_HOPS} hops"))
    }

    /// Waits for the first part of the reply to `event`.
    async fn await_reply(&self, mut parts: CoreSubscription, event: &EventId, within: Duration) -> Option<String> {
        let answer = async {
            loop {
                let message = parts.next().await?;
                if message.headers.get(CAUSATION) == Some(event.as_str()) {
                    return serde_json::from_slice::<Part>(&message.payload).ok();
                }
            }
        };

        let part = tokio::time::timeout(within, answer).await.ok().flatten();
        part.map(|part| part.content)
    }
}

/// Returns the event that carries the message of `call` to persona `to`.
fn message_event(call: &ToolCall, to: &str, content: String) -> Option<Event> {
    let asked = &call.call;
    let from = &asked.session;
    // The id follows from turn and call, so a repeated call sends the same message.
    let at = UnixMillis(i64::try_from(asked.turn.timestamp_ms()).unwrap_or(i64::MAX));
    let id = derived_ulid(at, &["agent-message", &asked.turn.to_string(), &asked.call.call]);
    let id = EventId::parse(format!("agent:{}:{to}:{id}", from.persona)).ok()?;
    let mut event = Event::new(id, CHANNEL, &format!("{}/{}", from.persona, from.session), at);
    event.origin = EventOrigin::System;
    event.account_id = Some(to.to_owned());
    event.from = EventSender {
        id: format!("agent:{}", from.persona),
        display_name: Some(from.persona.clone()),
        ..EventSender::default()
    };

    event.content = content;
    event.content_types = vec!["text".to_owned()];
    event.hops = asked.origin.causation.hops.saturating_add(1);
    event.metadata.insert("to".to_owned(), json!(to));
    event.metadata.insert("from".to_owned(), json!(from.persona));
    event.metadata.insert("session".to_owned(), json!(from.session));
    event.metadata.insert("turn".to_owned(), json!(asked.turn));

    // The receiver is bound by the rules of all for whom the sender works.
    let works_for: Vec<&SessionRef> = std::iter::once(from).chain(&asked.origin.works_for).collect();
    event.metadata.insert(WORKS_FOR.to_owned(), json!(works_for));

    Some(event)
}

#[async_trait]
impl Tool for SendMessage {
    fn description(&self) -> &ToolDescription {
        &self.description
    }

    fn is_idempotent(&self) -> bool {
        // The repeated message is the same one, but a reply that came meanwhile is not heard twice.
        false
    }

    async fn call(&self, call: ToolCall) -> ToolOutcome {
        let wanted: Wanted = match serde_json::from_value(call.call.call.arguments.clone()) {
            Ok(wanted) => wanted,
            Err(error) => return failed_outcome(error.to_string()),
        };
        // Two agents that answer each other would go on for ever.
        if call.call.origin.causation.hops >= MAX_HOPS {
            return self.refuse_hops(&call, &wanted.to).await;
        }

        let Some(event) = message_event(&call, &wanted.to, wanted.content) else {
            return failed_outcome("there is no agent of this name");
        };

        // The subscription must exist before anyone can reply.
        let parts = match self.bus.core_subscribe(&subject::out(&wanted.to, &event.peer.id)).await {
            Ok(parts) => parts,
            Err(error) => return failed_outcome(format!("not available: {error}")),
        };
        let out = OutgoingMessage::event(&event, self.bus.trust())
            .header(HOPS, event.hops.to_string())
            .header(CAUSATION, call.call.origin.causation.event.to_string());
        // The message may have been stored: the model must not simply send it again.
        if let Err(error) = self.bus.publish(out).await {
            return ToolOutcome::Unknown {
                reason: error.to_string(),
            };
        }

        if !wanted.wait_for_reply {
            return ToolOutcome::Ok {
                result: json!({"sent": event.id}),
            };
        }

        // The wait is also bounded by the turn's own deadline.
        let left = call.call.deadline.saturating_duration_since(self.clock.monotonic());
        let reply = tokio::select! {
            reply = self.await_reply(parts, &event.id, left.min(MAX_WAIT)) => reply,
            () = call.call.cancel.cancelled() => None,
        };

        ToolOutcome::Ok {
            result: json!({"sent": event.id, "reply": reply, "answered": reply.is_some()}),
        }
    }
}

/// The tool `get_agent_status`.
#[derive(Debug)]
pub struct AgentStatus {
    bus: Bus,
    description: ToolDescription,
}

impl AgentStatus {
    /// Creates the tool, which reads over `bus`.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        let properties = json!({
            "agent": {"type": "string", "minLength": 1, "description": "Name of the persona."},
            "session": {"type": "string", "description": "Name of its session; main if absent."}
        });
        let text = "Returns whether another agent is working, and since when.";
        Self {
            bus,
            description: described(NAMES[1], text, &properties, &["agent"]),
        }
    }
}

#[async_trait]
impl Tool for AgentStatus {
    fn description(&self) -> &ToolDescription {
        &self.description
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    async fn call(&self, call: ToolCall) -> ToolOutcome {
        let text = |key: &str| {
            call.call
                .call
                .arguments
                .get(key)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };

        let session = SessionRef {
            persona: text("agent").unwrap_or_default(),
            session: text("session").unwrap_or_else(|| "main".to_owned()),
        };
        let (agent, named) = (session.persona.clone(), session.session.clone());
        let asked = self
            .bus
            .request::<SessionRef, Shown>(SHOW, Headers::new(), &session, SHOWN_WITHIN);
        let (status, since) = match asked.await {
            Ok(shown) => shown.status(),
            Err(RequestError::Service { code: 404, .. }) => ("unknown", None),
            Err(error) => return failed_outcome(format!("not available: {error}")),
        };

        ToolOutcome::Ok {
            result: json!({"agent": agent, "session": named, "status": status, "since": since}),
        }
    }
}

/// The part of the service `session`'s response that the tool reports.
#[derive(Debug, Deserialize)]
struct Shown {
    running: Option<ShownTurn>,
    idle: bool,
    active_at: UnixMillis,
}

#[derive(Debug, Deserialize)]
struct ShownTurn {
    began_at: UnixMillis,
    awaits: Option<String>,
}

impl Shown {
    /// Returns the present activity of the session, and since when.
    const fn status(&self) -> (&'static str, Option<UnixMillis>) {
        match &self.running {
            Some(ShownTurn {
                began_at,
                awaits: Some(_),
            }) => ("waits for an approval", Some(*began_at)),
            Some(ShownTurn { began_at, awaits: None }) => ("at work", Some(*began_at)),
            None if self.idle => ("idle", Some(self.active_at)),
            None => ("about to work", None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_at_what_its_running_turn_is_at() {
        let status = |shown: Value| serde_json::from_value::<Shown>(shown).expect("as it is shown").status();
        let turn = |awaits: Value| json!({"turn": "01M80A4BYPJANS8A4KMNFK7P5E", "began_at": 5, "awaits": awaits});
        let shown = |running: Value, idle: bool| json!({"running": running, "idle": idle, "active_at": 3, "epoch": 1});
        let since = |at| Some(UnixMillis(at));

        assert_eq!(status(shown(turn(Value::Null), false)), ("at work", since(5)));
        assert_eq!(
            status(shown(turn(json!("a1")), true)),
            ("waits for an approval", since(5))
        );
        assert_eq!(status(shown(Value::Null, true)), ("idle", since(3)));
        assert_eq!(status(shown(Value::Null, false)), ("about to work", None));
    }
}
