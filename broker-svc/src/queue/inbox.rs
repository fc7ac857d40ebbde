//! Looks at a session's subject of `DISPATCHES`, always from a known sequence and never by a bell alone.
//!
//! Most messages come out of the broker's window; if it holds none, or the session is of a part that another broker
//! reads, the leader is read, so that a dispatch whose claim woke the broker is seen.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::Bus;
use shared::bus::{OutgoingMessage, ReadStreamError, StoredMessage};
use shared::model::approval::SessionDecision;
use shared::model::dispatch::{Dispatch, derived_ulid};
use shared::model::event::EventId;
use shared::model::ledger::DispatchRef;
use shared::model::order::SessionOrder;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::{DecodeError, WireMessage as _};
use shared::wire::headers::{CAUSATION, HOPS, MSG_ID, REDRIVE, REPEATED, SCHEMA};
use shared::wire::partition::session_part;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use crate::broker::BrokerContext;
use crate::config::SERVICE;
use crate::session::{ApprovalNotification, InboxItem, PendingDispatch, PlacedOrder};

/// Maximum number of dispatches read at one look.
pub const LOOK_LIMIT: usize = 64;
/// Number of dispatches decoded before other sessions get a turn on the thread.
const AT_A_STRETCH: usize = 16;
/// Number of messages read at once.
const PAGE: usize = 256;
/// Maximum wait for the window to reach the leader's last sequence.
const PATIENCE: Duration = Duration::from_millis(500);

/// A message that cannot be run.
#[derive(Debug)]
pub struct InvalidDispatch {
    /// The message as it is stored.
    pub stored: StoredMessage,
    /// Reason in one word, for machines.
    pub reason: &'static str,
    /// Reason in a sentence, for people.
    pub detail: String,
}

/// Messages that one look found.
#[derive(Debug, Default)]
pub struct InboxPoll {
    /// Dispatches that can be run, orders and notices.
    pub good: Vec<InboxItem>,
    /// Messages that cannot be decoded or run.
    pub bad: Vec<InvalidDispatch>,
    /// Last sequence that was looked at; none if there were no messages.
    pub through: Option<u64>,
    /// For each message that was looked at: its sequence, the time it was stored, nanoseconds since 1970, and the
    /// sequence of its event, 0 = it has none.
    pub stamps: Vec<(u64, (i64, u64))>,
}

impl InboxPoll {
    /// Returns the number of messages found.
    #[must_use]
    pub fn found_count(&self) -> usize {
        self.good.len() + self.bad.len()
    }

    /// Adds messages of the window, yielding to other sessions in between: a long queue takes long to decode.
    async fn add_all(&mut self, session: &SessionRef, held: Vec<Arc<StoredMessage>>) {
        for few in held.chunks(AT_A_STRETCH) {
            for stored in few {
                self.add(session, stored);
            }
            if few.len() == AT_A_STRETCH {
                tokio::task::yield_now().await;
            }
        }
    }

    fn add(&mut self, session: &SessionRef, stored: &StoredMessage) {
        self.through = Some(stored.sequence);
        let arrival = decode_arrival(session, stored);
        let event_seq = match &arrival {
            Ok(InboxItem::Dispatch(pending)) => pending.dispatch.event_seq,
            Ok(InboxItem::Order(_) | InboxItem::Decision(_)) | Err(_) => 0,
        };

        self.stamps.push((stored.sequence, (stored.stored_at_ns, event_seq)));

        match arrival {
            Ok(arrival) => self.good.push(arrival),
            Err((reason, detail)) => self.bad.push(InvalidDispatch {
                stored: stored.clone(),
                reason,
                detail,
            }),
        }
    }
}

/// Reads the messages of `session` at and after sequence `from`, at most [`LOOK_LIMIT`], in order and without gaps.
///
/// Messages of the window cost nothing. If it holds none, the leader returns the last one, which it finds at once;
/// only messages from before the window, or of other parts, are searched for.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be read.
pub async fn read_arrivals(
    broker: &BrokerContext,
    session: &SessionRef,
    from: u64,
) -> Result<InboxPoll, ReadStreamError> {
    let (part, subject) = (session_part(session), subject::dispatch(session));
    let mut look = InboxPoll::default();
    let held = |from, limit| {
        broker
            .feed
            .with_window(|window| window.on_subject(part, &subject, from, limit))
    };
    // The window is in memory and in order, so most reads end here.
    look.add_all(session, held(from, LOOK_LIMIT).unwrap_or_default()).await;

    if look.through.is_some() {
        return Ok(look);
    }

    let Some(last) = broker.bus.last_on_subject(DISPATCHES, &subject).await? else {
        return Ok(look);
    };

    let mut next = from;
    while next <= last.sequence && look.found_count() < LOOK_LIMIT {
        // The window may only be late: a short wait is cheaper than reading from the server. A broker that helps out
        // has no window of the part.
        let is_held = broker
            .feed
            .with_window(|window| window.first(part))
            .is_some_and(|first| first <= next);
        if is_held
            && broker.feed.wait_reached(part, last.sequence, PATIENCE).await
            && let Some(rest) = held(next, LOOK_LIMIT - look.found_count())
        {
            look.add_all(session, rest).await;
            return Ok(look);
        }

        let Some(stored) = broker.bus.next_on_subject(DISPATCHES, &subject, next).await? else {
            break;
        };
        next = stored.sequence + 1;
        look.add(session, &stored);
    }

    Ok(look)
}

/// Search for the dispatches of a turn that a former owner began. A dispatch that the stream has lost and that was made
/// again has another sequence than the ledger names.
#[derive(Debug)]
pub struct DispatchSearch {
    wanted: Vec<DispatchRef>,
    found: Vec<PendingDispatch>,
    /// Sequence from which the session's subject was not read yet.
    next: u64,
}

impl DispatchSearch {
    /// Creates a search for `wanted`.
    #[must_use]
    pub const fn new(wanted: Vec<DispatchRef>) -> Self {
        Self {
            wanted,
            found: Vec::new(),
            next: 1,
        }
    }

    /// Returns the dispatches that were found so far, in the order in which they are wanted.
    #[must_use]
    pub fn found(&self) -> Vec<PendingDispatch> {
        let found = |known: &DispatchRef| self.found.iter().find(|pending| pending.dispatch.id == known.id);
        self.wanted.iter().filter_map(found).cloned().collect()
    }

    /// Returns the dispatches that were not found yet.
    #[must_use]
    pub fn missing(&self) -> Vec<DispatchRef> {
        let missing = self.wanted.iter().filter(|known| !self.has(known.id));
        missing.cloned().collect()
    }

    /// Returns whether every dispatch was found.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.wanted.iter().all(|known| self.has(known.id))
    }

    fn has(&self, id: Ulid) -> bool {
        self.found.iter().any(|pending| pending.dispatch.id == id)
    }

    /// Reads the sequences that the ledger names and then, if something is missing, the messages that the subject of
    /// `session` has since the last call.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read.
    pub async fn read_on(&mut self, bus: &Bus, session: &SessionRef) -> Result<(), ReadStreamError> {
        for known in self.missing() {
            let stored = bus.at_sequence(DISPATCHES, known.sequence).await?;
            self.take(session, stored.as_ref());
        }

        let subject = subject::dispatch(session);
        while !self.is_complete() {
            let page = bus.read_history(DISPATCHES, &subject, self.next, PAGE).await?;
            let Some(last) = page.last() else { break };
            self.next = last.sequence + 1;
            self.take(session, &page);
        }

        Ok(())
    }

    fn take<'a>(&mut self, session: &SessionRef, messages: impl IntoIterator<Item = &'a StoredMessage>) {
        for stored in messages {
            let Ok(pending) = decode_pending(session, stored) else {
                continue;
            };
            let id = pending.dispatch.id;
            if self.wanted.iter().any(|known| known.id == id) && !self.has(id) {
                self.found.push(pending);
            }
        }
    }
}

/// Returns the message of `pending` as it is stored or, if the stream has lost it since it was read, as it would be
/// published.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be read.
pub async fn message_of(bus: &Bus, pending: &PendingDispatch) -> Result<StoredMessage, ReadStreamError> {
    let dispatch = &pending.dispatch;
    let stored = bus.at_sequence(DISPATCHES, pending.sequence).await?;
    let is_it = |stored: &StoredMessage| {
        decode_pending(&dispatch.target, stored).is_ok_and(|found| found.dispatch.id == dispatch.id)
    };

    Ok(stored.filter(is_it).unwrap_or_else(|| {
        let out = OutgoingMessage::new(subject::dispatch(&dispatch.target), &**dispatch)
            .msg_id(dispatch.id.to_string())
            .header(HOPS, dispatch.causation.hops.to_string())
            .header(CAUSATION, dispatch.event_id.as_str());
        as_stored(out, pending.sequence, pending.arrived)
    }))
}

/// Returns the message of `placed` as it is stored or, if the stream has lost it since it was read, as it would be
/// published.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be read.
pub async fn order_message(bus: &Bus, placed: &PlacedOrder) -> Result<StoredMessage, ReadStreamError> {
    let order = &placed.order;
    let stored = bus.at_sequence(DISPATCHES, placed.sequence).await?;
    let is_it = |stored: &StoredMessage| {
        stored
            .decode::<SessionOrder>()
            .is_ok_and(|found: SessionOrder| found.id == order.id)
    };

    Ok(stored.filter(is_it).unwrap_or_else(|| {
        let out = OutgoingMessage::new(subject::dispatch(&order.target), order).msg_id(order.id.to_string());
        as_stored(out, placed.sequence, placed.arrived)
    }))
}

fn as_stored(out: OutgoingMessage, sequence: u64, arrived: UnixMillis) -> StoredMessage {
    StoredMessage {
        subject: out.subject,
        headers: out.headers,
        payload: out.payload,
        sequence,
        published_at: arrived,
        stored_at_ns: 0,
    }
}

fn decode_arrival(session: &SessionRef, stored: &StoredMessage) -> Result<InboxItem, (&'static str, String)> {
    // One subject carries three kinds of messages, which keep their order.
    let schema = stored.headers.get(SCHEMA).and_then(|schema| schema.split('/').next());
    if schema == Some(SessionDecision::SCHEMA) {
        return decode_decision(session, stored).map(InboxItem::Decision);
    }

    if schema != Some(SessionOrder::SCHEMA) {
        return decode_pending(session, stored).map(InboxItem::Dispatch);
    }

    let order: SessionOrder = stored
        .decode()
        .map_err(|error: DecodeError| (error.reason(), error.to_string()))?;
    if order.target != *session {
        return Err(("wrong_session", format!("the order is for {}", order.target)));
    }

    Ok(InboxItem::Order(PlacedOrder {
        sequence: stored.sequence,
        arrived: stored.published_at,
        order,
    }))
}

fn decode_decision(
    session: &SessionRef,
    stored: &StoredMessage,
) -> Result<ApprovalNotification, (&'static str, String)> {
    let told: SessionDecision = stored
        .decode()
        .map_err(|error: DecodeError| (error.reason(), error.to_string()))?;
    if told.target != *session {
        return Err(("wrong_session", format!("the decision is for {}", told.target)));
    }

    Ok(ApprovalNotification {
        sequence: stored.sequence,
        approval: told.approval,
        decision: None,
    })
}

fn decode_pending(session: &SessionRef, stored: &StoredMessage) -> Result<PendingDispatch, (&'static str, String)> {
    let dispatch: Dispatch = stored
        .decode()
        .map_err(|error: DecodeError| (error.reason(), error.to_string()))?;
    // The subject decides which session is woken, so it must be that of the contents.
    if dispatch.target != *session {
        return Err((
            "wrong_session",
            format!(
                "the dispatch is for {}, the subject is that of {session}",
                dispatch.target
            ),
        ));
    }

    Ok(PendingDispatch {
        sequence: stored.sequence,
        arrived: stored.published_at,
        dispatch: Arc::new(dispatch),
        carrier: stored.carrier(),
        is_repeated: stored.headers.get(REPEATED).is_some(),
        is_redriven: stored.headers.get(MSG_ID).is_some_and(|id| id.starts_with(REDRIVE)),
    })
}

impl InvalidDispatch {
    /// Returns the reference by which the ledger names the message: from its headers, or from its sequence.
    #[must_use]
    pub fn dispatch_ref(&self) -> DispatchRef {
        let headers = &self.stored.headers;
        let sequence = self.stored.sequence;
        let named = headers.get(MSG_ID).and_then(|id| id.parse().ok());
        let id = named.unwrap_or_else(|| derived_ulid(self.stored.published_at, &["bad", &sequence.to_string()]));
        let caused = headers.get(CAUSATION).and_then(|id| EventId::parse(id).ok());
        let placed = || EventId::parse(format!("dispatch:{sequence}")).expect("a word, a colon and a number");
        let event_id = caused.unwrap_or_else(placed);

        DispatchRef {
            id,
            sequence,
            event_id,
            content: String::new(),
            stranger: None,
        }
    }

    /// Returns the whole message as a dead letter.
    #[must_use]
    pub fn to_dead_letter(&self, at: UnixMillis) -> DeadLetter {
        DeadLetter {
            service: SERVICE.to_owned(),
            subject: self.stored.subject.clone(),
            redrive_subject: self.stored.subject.clone(),
            stream: DISPATCHES.to_owned(),
            sequence: self.stored.sequence,
            headers: self
                .stored
                .headers
                .iter()
                .map(|(n, v)| (n.to_owned(), v.to_owned()))
                .collect(),
            payload: DeadLetter::encode_payload(&self.stored.payload),
            reason: self.reason.to_owned(),
            detail: self.detail.clone(),
            attempts: 1,
            at,
        }
    }
}
