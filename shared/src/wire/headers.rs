//! Message headers by name. *Pure.* Source: `docs/design/wire.md` §4.

use std::borrow::Cow;

/// Deduplication id. The server ignores a second message with the same id within the stream's window.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// Prefix of the [`MSG_ID`] of a dead letter that an operator publishes again, followed by its sequence and a random
/// id.
pub const REDRIVE: &str = "redrive:";
/// Content type: `application/cbor` or `application/json`.
pub const CONTENT_TYPE: &str = "Content-Type";
/// Type and version of the payload, such as `event/2`.
pub const SCHEMA: &str = "Nexus-Schema";
/// Proof of an event's publisher ([`super::seal`]): an HMAC in hexadecimal.
pub const SEAL: &str = "Nexus-Seal";
/// Id of the event in the message, for log lines about unreadable messages. No decision depends on it.
pub const EVENT: &str = "Nexus-Event";
/// W3C trace context: trace, parent span and flags.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state: data of tracing vendors.
pub const TRACESTATE: &str = "tracestate";
/// Number of hops in the causal chain.
pub const HOPS: &str = "Nexus-Hops";
/// Id of the event that led to this message.
pub const CAUSATION: &str = "Nexus-Causation";
/// Id of the dispatch that a reply belongs to, for a search for its cause.
pub const DISPATCH: &str = "Nexus-Dispatch";
/// Turn that asks a remote agent; the same in a repeated request.
pub const TURN: &str = "Nexus-Turn";
/// Tool call that asks a service; the same when it is asked again after a crash.
pub const CALL: &str = "Nexus-Call";
/// Epoch of the ownership under which a tool call is made. If two owners ask for the same call, the higher epoch is
/// valid.
pub const EPOCH: &str = "Nexus-Epoch";
/// Set if the same message may have been published before: after an unknown outcome, or by a recovery. A work queue
/// that restarts has lost the ids of finished messages, so its consumer must check for duplicates itself.
pub const REPEATED: &str = "Nexus-Repeated";
/// Required last sequence of the subject; the server refuses the message if it differs.
pub const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
/// Writer and attempt of a message that requires its subject's last sequence: `{random id of the process's
/// start}-{counter}`. After an unknown outcome it identifies the stored message, which an equal payload does not.
pub const WRITER: &str = "Nexus-Writer";
/// Header of records in `INVOCATIONS`: the highest sequence of `EVENTS` that the partition's owner had received.
/// Every earlier record is of an event up to this sequence.
pub const THROUGH: &str = "Nexus-Through";
/// Header of records in `INVOCATIONS`: the subject under which `EVENTS` stores the event. If its source sends the event
/// again, the sequence in the record no longer leads to it.
pub const EVENT_SUBJECT: &str = "Nexus-Event-Subject";
/// Header of the dead letter of a held message: its key in KV `held`.
pub const HELD: &str = "Nexus-Held";
/// Time to live of a message.
pub const TTL: &str = "Nats-TTL";

/// Names that nearly every message has; they are not copied for each message.
const KNOWN: [&str; 19] = [
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
    THROUGH,
    EVENT_SUBJECT,
    TTL,
];

/// Usual maximum number of headers of a message, for which space is reserved at once.
const USUAL: usize = 8;

/// The headers of one message: few, with one value each (the last one wins). Their order has no meaning.
#[derive(Debug, Clone, Default)]
pub struct Headers(Vec<(Cow<'static, str>, String)>);

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.iter().all(|(name, value)| other.get(name) == Some(value))
    }
}

impl Eq for Headers {}

impl Headers {
    /// Returns an empty set of headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the value of `name`, compared without ASCII case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Sets `name` to `value` in place of a former value. Line breaks become spaces, because they would end the
    /// header.
    pub fn insert(&mut self, name: impl AsRef<str>, value: impl Into<String>) {
        let name = name.as_ref();
        let mut value = value.into();

        // A search by bytes: a search for characters costs more than all other steps here.
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

    /// Removes the header `name`.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    }

    /// Returns all headers as name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_str()))
    }

    /// Returns all headers with the kind of their name: names that are constants of the wire need not be copied.
    pub fn iter_named(&self) -> impl Iterator<Item = (&Cow<'static, str>, &str)> {
        self.0.iter().map(|(name, value)| (name, value.as_str()))
    }

    /// Returns the event that the message contains, or that led to it, as far as its headers say. Used in log lines
    /// about unreadable messages.
    #[must_use]
    pub fn event_id(&self) -> Option<&str> {
        self.get(CAUSATION).or_else(|| self.get(EVENT))
    }

    /// Returns whether there are no headers.
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

/// The trace of a message (W3C Trace Context).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceCarrier {
    /// Value of `traceparent`: `00-{trace}-{span}-{flags}`.
    pub traceparent: Option<String>,
    /// Value of `tracestate`: vendor data.
    pub tracestate: Option<String>,
}

impl TraceCarrier {
    /// Reads the trace from `headers`.
    #[must_use]
    pub fn read(headers: &Headers) -> Self {
        Self {
            traceparent: headers.get(TRACEPARENT).map(str::to_owned),
            tracestate: headers.get(TRACESTATE).map(str::to_owned),
        }
    }

    /// Adds the trace to `headers`.
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
