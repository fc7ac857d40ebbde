//! What the streams hold, read from their first message to their last: the only witness of the stories.

use std::collections::{BTreeMap, BTreeSet};

use shared::bus::Bus;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::invocation::EventInvocations;
use shared::model::ledger::LedgerRecord;
use shared::model::receipt::Receipt;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::topology::streams;
use ulid::Ulid;

use crate::stream_walk::{decoded, for_each};
use crate::tally::{Tally, described};

/// Everything that a stream holds: sequence and value.
///
/// # Panics
/// Where the stream cannot be asked, or holds what is not a `T`.
pub async fn read_all<T: WireMessage>(bus: &Bus, stream: &str) -> Vec<(u64, T)> {
    let mut found = Vec::new();
    for_each(bus, stream, |message| found.push((message.sequence, decoded(message)))).await;

    found
}

/// The streams as they are at one moment.
#[derive(Debug, Default)]
pub struct Record {
    /// First occurrences, in order.
    pub events: Vec<(u64, Event)>,
    /// How many more messages than ids `EVENTS` holds.
    pub repeated_events: usize,
    /// One per event, if all is well.
    pub invocations: Vec<(u64, EventInvocations)>,
    /// In order.
    pub dispatches: Vec<(u64, Dispatch)>,
    /// In order.
    pub ledger: Vec<(u64, LedgerRecord)>,
    /// In order.
    pub receipts: Vec<(u64, Receipt)>,
    /// What was given up.
    pub dead: Vec<(u64, DeadLetter)>,
    /// Deliveries that wait.
    pub waiting: u64,
    /// Claims that stand.
    pub claims: u64,
}

impl Record {
    /// Reads them.
    pub async fn read(bus: &Bus) -> Self {
        let all: Vec<(u64, Event)> = read_all(bus, streams::EVENTS).await;
        let mut seen = BTreeSet::new();
        let count = all.len();
        let events: Vec<_> = all
            .into_iter()
            .filter(|(_, event)| seen.insert(event.id.clone()))
            .collect();

        let waiting = bus
            .stream_state(streams::DELIVERIES)
            .await
            .expect("it can be asked")
            .messages;
        let claims = bus
            .stream_state(streams::CLAIMS)
            .await
            .expect("it can be asked")
            .messages;

        Self {
            repeated_events: count - events.len(),
            events,
            invocations: read_all(bus, streams::INVOCATIONS).await,
            dispatches: read_all(bus, streams::DISPATCHES).await,
            ledger: read_all(bus, streams::LEDGER).await,
            receipts: read_all(bus, streams::RECEIPTS).await,
            dead: read_all(bus, streams::DLQ).await,
            waiting,
            claims,
        }
    }

    /// Turns that came to an answer, in the order of the ledger: turn, and the dispatches that it answered.
    #[must_use]
    pub fn turns(&self) -> Vec<(Ulid, Vec<Ulid>)> {
        self.tally().turns.completed
    }

    /// Receipts that say `delivered`, by delivery.
    #[must_use]
    pub fn delivered(&self) -> BTreeMap<Ulid, usize> {
        self.tally().deliveries.delivered
    }

    /// Everything that breaks a promise, in words; empty = every accepted event had its effects exactly once, in order.
    #[must_use]
    pub fn faults(&self, accepted: &BTreeSet<String>) -> Vec<String> {
        self.tally().faults(accepted)
    }

    /// Returns the counts of the record, without times.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally {
            waiting: self.waiting,
            claims: self.claims,
            ..Tally::default()
        };
        for (_, event) in &self.events {
            tally.events.note(event);
        }
        tally.events.repeated = self.repeated_events;
        for (_, record) in &self.invocations {
            tally.evaluations.note(record);
        }
        for (_, dispatch) in &self.dispatches {
            tally.dispatches.note(dispatch);
        }
        for (_, record) in &self.ledger {
            tally.turns.note(record);
        }
        for (_, receipt) in &self.receipts {
            tally.deliveries.note(receipt);
        }
        tally.dead = self.dead.iter().map(|(_, letter)| described(letter)).collect();
        tally
    }
}
