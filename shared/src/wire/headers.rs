//! Message headers by name. *Pure.* Source: `docs/design/wire.md` §4.

use std::borrow::Cow;

/// Deduplication id; the server ignores a second message with the same one within the stream's window.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// What the [`MSG_ID`] of a dead letter begins with that an operator publishes again; its sequence and a random id follow.
pub const REDRIVE: &str = "redrive:";
/// `application/cbor` or `application/json`.
pub const CONTENT_TYPE: &str = "Content-Type";
/// Type and version of the payload: `event/2`.
pub const SCHEMA: &str = "Nexus-Schema";
/// What proves who published an event ([`super::seal`]): an HMAC in hexadecimal.
pub const SEAL: &str = "Nexus-Seal";
/// Id of the event in the message, for log lines about what nobody can read. Nothing is decided by it.
pub const EVENT: &str = "Nexus-Event";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state.
pub const TRACESTATE: &str = "tracestate";
/// Depth in the causal chain.
pub const HOPS: &str = "Nexus-Hops";
/// Id of the event that led to this message.
pub const CAUSATION: &str = "Nexus-Causation";
/// Id of the dispatch that a reply answers, for whoever looks for its cause.
pub const DISPATCH: &str = "Nexus-Dispatch";
/// The turn that asks a remote agent; the same when the question is repeated.
pub const TURN: &str = "Nexus-Turn";
/// The tool call that asks a service; the same when it is asked again after a crash.
pub const CALL: &str = "Nexus-Call";
/// The ownership under which that call is made: of two that ask for the same call the higher one is right.
pub const EPOCH: &str = "Nexus-Epoch";
/// Set where the same message may have been published before: after an unknown outcome, or by a recovery. A work queue
/// that restarts has forgotten the ids of what was dealt with, so its consumer must look for itself.
pub const REPEATED: &str = "Nexus-Repeated";
/// The subject's last sequence must be this one, or the server refuses.
pub const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
/// Who wrote a message that expects its subject's last sequence, and which attempt of theirs it is: `{random id of the
/// process's start}-{counter}`. After an unknown outcome it tells whose message stands there; equal payloads do not.
pub const WRITER: &str = "Nexus-Writer";
/// On a record of `INVOCATIONS`: the highest sequence of `EVENTS` that its partition's owner had in hand by then. Whatever
/// was recorded before it is of an event up to there.
pub const THROUGH: &str = "Nexus-Through";
/// On the letter beside a held message: its key in KV `held`.
pub const HELD: &str = "Nexus-Held";
/// Time to live of a message.
pub const TTL: &str = "Nats-TTL";

/// The names that nearly every message has: not copied for each.
const KNOWN: [&str; 17] = [
    MSG_ID,
    CONTENT_TYPE,
    SCHEMA,
    SEAL,
    EVENT,
    TRACEPARENT,
    TRACESTATE,
    HOPS,
    CAUSATION,
    DISPATCH,
    TURN,
    CALL,
    EPOCH,
    REPEATED,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    WRITER,
    TTL,
];

/// Headers that a message has at most as a rule: room that is made at once.
const USUAL: usize = 8;

/// Headers of one message: few, one value each (the last one wins). Their order means nothing.
#[derive(Debug, Clone, Default)]
pub struct Headers(Vec<(Cow<'static, str>, String)>);

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.iter().all(|(name, value)| other.get(name) == Some(value))
    }
}

impl Eq for Headers {}

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The value of `name`, compared without regard to ASCII case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Sets `name` to `value`, replacing what was there. Line breaks become spaces: they would end the header.
    pub fn insert(&mut self, name: impl AsRef<str>, value: impl Into<String>) {
        let name = name.as_ref();
        let mut value = value.into();

        // Byte by byte: a search for characters costs more than all else here.
        if value.bytes().any(|byte| matches!(byte, b'\r' | b'\n')) {
            value = value.replace(['\r', '\n'], " ");
        }

        match self.0.iter_mut().find(|(key, _)| key.eq_ignore_ascii_case(name)) {
            Some((_, old)) => *old = value,
            None => {
                let known = KNOWN.into_iter().find(|known| *known == name);
                self.0
                    .push((known.map_or_else(|| Cow::Owned(name.to_owned()), Cow::Borrowed), value));
            }
        }
    }

    /// Takes `name` out.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_str()))
    }

    /// All of them, with which names are constants of the wire: those need not be copied.
    pub fn named(&self) -> impl Iterator<Item = (&Cow<'static, str>, &str)> {
        self.0.iter().map(|(name, value)| (name, value.as_str()))
    }

    /// The event that the message is, or that led to it, as far as its headers say: for log lines about what nobody can
    /// read.
    #[must_use]
    pub fn event_id(&self) -> Option<&str> {
        self.get(CAUSATION).or_else(|| self.get(EVENT))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: AsRef<str>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self(Vec::with_capacity(USUAL));
        for (name, value) in pairs {
            headers.insert(name, value);
        }
        headers
    }
}

/// The trace that a message belongs to (W3C Trace Context).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Carrier {
    /// `00-{trace}-{span}-{flags}`.
    pub traceparent: Option<String>,
    /// Vendor data.
    pub tracestate: Option<String>,
}

impl Carrier {
    /// What `headers` say.
    #[must_use]
    pub fn read(headers: &Headers) -> Self {
        Self {
            traceparent: headers.get(TRACEPARENT).map(str::to_owned),
            tracestate: headers.get(TRACESTATE).map(str::to_owned),
        }
    }

    /// Puts the trace on `headers`.
    pub fn write(&self, headers: &mut Headers) {
        if let Some(parent) = &self.traceparent {
            headers.insert(TRACEPARENT, parent);
            if let Some(state) = &self.tracestate {
                headers.insert(TRACESTATE, state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_and_the_last_value_wins() {
        let headers: Headers = [("content-type", "a"), ("Content-Type", "b")].into_iter().collect();
        assert_eq!(headers.get("CONTENT-TYPE"), Some("b"));
        assert_eq!(headers.iter().count(), 1);
    }

    #[test]
    fn a_message_names_the_event_that_it_is_or_that_led_to_it() {
        let named = |headers: &[(&str, &str)]| {
            let headers: Headers = headers.iter().copied().collect();
            headers.event_id().map(str::to_owned)
        };
        assert_eq!(named(&[(MSG_ID, "mzxw6"), (EVENT, "crm:9")]).as_deref(), Some("crm:9"));
        let dispatch = [(MSG_ID, "01JDGZX4Q8AAAAAAAAK7Q2M9PX"), (CAUSATION, "crm:9")];
        assert_eq!(named(&dispatch).as_deref(), Some("crm:9"));
        assert_eq!(named(&[(MSG_ID, "redrive:7")]), None);
    }

    #[test]
    fn a_value_cannot_end_its_header() {
        let headers: Headers = [("Nexus-Causation", "a\r\nNats-Msg-Id: b")].into_iter().collect();
        assert_eq!(headers.get("Nexus-Causation"), Some("a  Nats-Msg-Id: b"));
    }
}
