//! A connection to the gateway as a state machine: what to send, what to hand over, when to leave. *Pure.*
//!
//! The session is resumed from the last dispatch whose events are stored, and heartbeats say that number too, so that
//! the vendor keeps what is not stored. Source: <https://discord.com/developers/docs/events/gateway>,
//! <https://discord.com/developers/docs/topics/opcodes-and-status-codes>.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the bot is told: guilds and their messages and reactions, direct messages and reactions, and the content of
/// messages.
pub(super) const INTENTS: u64 = 1 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 15;

/// Code with which a socket is closed whose session goes on: 1000 and 1001 would end it.
pub(super) const CLOSE_AND_RESUME: u16 = 4000;

/// A session, which can be resumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GatewaySession {
    /// Id of the session.
    pub id: String,
    /// URL at which it is resumed.
    pub resume_url: String,
    /// Number of the last dispatch whose events are stored.
    pub seq: u64,
}

/// Something that happened, in the order of the session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dispatch {
    /// Id of the session.
    pub session: String,
    /// Number in the session.
    pub seq: u64,
    /// Kind, e.g. `MESSAGE_CREATE`.
    pub kind: String,
    /// Content.
    pub data: Value,
}

/// What follows from an input. Its `Debug` output has no message to send, because the first one has the token.
#[derive(Clone, PartialEq)]
pub(super) enum LinkStep {
    /// Send a message.
    Send(Value),
    /// Hand over a dispatch.
    Dispatch(Dispatch),
    /// A heartbeat was answered: all dispatches before it have arrived.
    Alive,
    /// Close the socket.
    Close(CloseReason),
}

// By hand: the token must not be printed.
impl std::fmt::Debug for LinkStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send(value) => write!(f, "Send(op {}, …)", value.get("op").unwrap_or(&Value::Null)),
            Self::Dispatch(dispatch) => f.debug_tuple("Dispatch").field(dispatch).finish(),
            Self::Alive => f.write_str("Alive"),
            Self::Close(reason) => f.debug_tuple("Close").field(reason).finish(),
        }
    }
}

/// Why a socket is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The session goes on at another socket.
    Resume(String),
    /// A message of the gateway cannot be read. The session goes on at another socket, where it comes again.
    Unreadable(String),
    /// The session is over; another one is begun.
    Identify(String),
    /// An operator must do something: what it is.
    Stop(String),
}

impl CloseReason {
    /// Returns whether the session goes on, and brings again what was not stored.
    #[must_use]
    pub(super) const fn is_resumable(&self) -> bool {
        match self {
            Self::Resume(_) | Self::Unreadable(_) => true,
            Self::Identify(_) | Self::Stop(_) => false,
        }
    }
}

/// A connection; see the module.
#[derive(Debug)]
pub(super) struct GatewayLink {
    session: Option<GatewaySession>,
    heartbeat: Option<Heartbeat>,
}

#[derive(Debug)]
struct Heartbeat {
    interval: Duration,
    next: Instant,
    is_answered: bool,
}

impl GatewayLink {
    /// Returns a connection that resumes `session`, or begins one.
    #[must_use]
    pub(super) const fn new(session: Option<GatewaySession>) -> Self {
        Self {
            session,
            heartbeat: None,
        }
    }

    /// Notes that the events of all dispatches up to `seq` are stored.
    pub(super) fn confirm(&mut self, seq: u64) {
        if let Some(session) = &mut self.session {
            session.seq = session.seq.max(seq);
        }
    }

    /// Returns the time at which [`GatewayLink::on_time`] is due.
    #[must_use]
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.heartbeat.as_ref().map(|heartbeat| heartbeat.next)
    }

    /// Takes in `frame`, a message of the gateway, at `now`. `jitter` in 0..1 is random, and `token` the bot's.
    pub(super) fn on_frame(&mut self, frame: &Value, token: &str, jitter: f64, now: Instant) -> Vec<LinkStep> {
        let data = frame.get("d").unwrap_or(&Value::Null);
        match frame.get("op").and_then(Value::as_u64) {
            Some(0) => self.on_dispatch(frame, data),
            Some(1) => vec![self.beat()],
            Some(7) => vec![leave_and_resume("the gateway asks to reconnect")],
            Some(9) if data.as_bool() == Some(true) => vec![leave_and_resume("the session is not ready")],
            Some(9) => vec![LinkStep::Close(CloseReason::Identify("the session is over".to_owned()))],
            Some(10) => self.on_hello(data, token, jitter, now),
            Some(11) => {
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.is_answered = true;
                }
                vec![LinkStep::Alive]
            }
            // What the vendor adds later.
            Some(_) | None => Vec::new(),
        }
    }

    /// Takes in that the time is `now`.
    pub(super) fn on_time(&mut self, now: Instant) -> Vec<LinkStep> {
        let Some(heartbeat) = &mut self.heartbeat else {
            return Vec::new();
        };
        if now < heartbeat.next {
            return Vec::new();
        }
        // The connection is dead without an error.
        if !heartbeat.is_answered {
            return vec![leave_and_resume("a heartbeat was not answered")];
        }
        heartbeat.is_answered = false;
        heartbeat.next = now + heartbeat.interval;
        vec![self.beat()]
    }

    /// Notes that nothing is read from the socket, so that the answer to a heartbeat may be there and is not seen.
    pub(super) const fn excuse_silence(&mut self) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.is_answered = true;
        }
    }

    fn on_hello(&mut self, data: &Value, token: &str, jitter: f64, now: Instant) -> Vec<LinkStep> {
        let millis = data.get("heartbeat_interval").and_then(Value::as_u64).unwrap_or(41_250);
        let interval = Duration::from_millis(millis.max(1));
        self.heartbeat = Some(Heartbeat {
            interval,
            // All clients of a gateway that restarted would beat at once.
            next: now + interval.mul_f64(jitter.clamp(0.0, 1.0)),
            is_answered: true,
        });

        let first = match &self.session {
            Some(session) => {
                json!({"op": 6, "d": {"token": token, "session_id": session.id, "seq": session.seq}})
            }
            None => json!({"op": 2, "d": {
                "token": token,
                "intents": INTENTS,
                "properties": {"os": "linux", "browser": "nexus", "device": "nexus"},
            }}),
        };
        vec![LinkStep::Send(first)]
    }

    fn on_dispatch(&mut self, frame: &Value, data: &Value) -> Vec<LinkStep> {
        let (seq, kind) = (
            frame.get("s").and_then(Value::as_u64),
            frame.get("t").and_then(Value::as_str),
        );
        let (Some(seq), Some(kind)) = (seq, kind) else {
            let words = "a dispatch without its number or kind".to_owned();
            return vec![LinkStep::Close(CloseReason::Unreadable(words))];
        };

        if kind == "READY" {
            let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
            let (Some(id), Some(resume_url)) = (text("session_id"), text("resume_gateway_url")) else {
                return vec![LinkStep::Close(CloseReason::Identify(
                    "READY without a session".to_owned(),
                ))];
            };
            self.session = Some(GatewaySession { id, resume_url, seq: 0 });
        }

        let Some(session) = &self.session else {
            return Vec::new();
        };
        vec![LinkStep::Dispatch(Dispatch {
            session: session.id.clone(),
            seq,
            kind: kind.to_owned(),
            data: data.clone(),
        })]
    }

    fn beat(&self) -> LinkStep {
        let seq = self.session.as_ref().map(|session| session.seq).filter(|seq| *seq > 0);
        LinkStep::Send(json!({"op": 1, "d": seq}))
    }
}

fn leave_and_resume(why: &str) -> LinkStep {
    LinkStep::Close(CloseReason::Resume(why.to_owned()))
}

/// Returns why a socket is left that the gateway closed with `code` and `words`; `None` = it broke without a code.
#[must_use]
pub(super) fn close_reason(code: Option<u16>, words: &str) -> CloseReason {
    let Some(code) = code else {
        return CloseReason::Resume("the connection broke".to_owned());
    };
    let told = format!("the gateway closed the connection: {code} {words}")
        .trim_end()
        .to_owned();
    let stop = |what: &str| CloseReason::Stop(format!("{what} ({code})"));
    match code {
        4004 => stop("the token is not accepted"),
        4010 | 4011 => stop("the bot is in more guilds than one connection serves; Nexus does not divide them"),
        4012 => stop("Discord no longer supports gateway version 10; upgrade Nexus"),
        4013 => stop("Discord rejected the gateway intents, which is a fault of Nexus"),
        4014 => stop(
            "the bot may not read the content of messages; switch on MESSAGE CONTENT INTENT on the bot's page of the \
             developer portal",
        ),
        // 1000 and 1001 end the session, as does a number that it does not know.
        1000 | 1001 | 4003 | 4007 | 4009 => CloseReason::Identify(told),
        _ => CloseReason::Resume(told),
    }
}

#[cfg(test)]
mod tests;
