//! What the streams hold, read from their first message to their last: the only witness of the stories.

use std::collections::{BTreeMap, BTreeSet};

use shared::bus::{Bus, StoredMessage};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventDirection};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::session::SessionRef;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::topology::streams;
use ulid::Ulid;

/// The filter that takes every subject.
const EVERYTHING: &str = ">";
/// Messages that are read at a time.
const PAGE: usize = 256;

/// Everything that a stream holds: sequence and value.
///
/// # Panics
/// Where the stream cannot be asked, or holds what is not a `T`.
pub async fn read_all<T: WireMessage>(bus: &Bus, stream: &str) -> Vec<(u64, T)> {
    let mut found = Vec::new();
    for_each(bus, stream, |message| {
        let value = message
            .decode()
            .unwrap_or_else(|error| panic!("{stream} {}: {error}", message.sequence));
        found.push((message.sequence, value));
    })
    .await;

    found
}

/// Shows every message of a stream to `look`, in order.
///
/// # Panics
/// Where the stream cannot be asked.
pub async fn for_each(bus: &Bus, stream: &str, mut look: impl FnMut(&StoredMessage)) {
    let state = bus.stream_state(stream).await.expect("the stream can be asked");
    let mut from = state.first;

    // By direct reads, not by a consumer: whoever waits reads a stream many times, and an abandoned consumer stays for
    // half a minute, of which the server allows a thousand.
    while state.messages > 0 && from <= state.last {
        let page = bus.read_history(stream, EVERYTHING, from, PAGE).await;
        let mut page = page.expect("the stream can be read");
        if page.is_empty() {
            let next = bus.next_on_subject(stream, EVERYTHING, from).await;
            page.extend(next.expect("the leader can be asked"));
        }

        let Some(last) = page.last() else { break };
        from = last.sequence + 1;
        page.iter().for_each(&mut look);
    }
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
        let mut started: BTreeMap<Ulid, Vec<Ulid>> = BTreeMap::new();
        let mut completed = Vec::new();
        for entry in self.ledger.iter().flat_map(|(_, record)| &record.entries) {
            if let LedgerEntry::TurnStarted { turn, dispatches, .. } = entry {
                started.insert(*turn, dispatches.iter().map(|dispatch| dispatch.id).collect());
            }
            if let LedgerEntry::TurnCompleted { turn, .. } = entry {
                completed.push((*turn, started.get(turn).cloned().unwrap_or_default()));
            }
        }

        completed
    }

    /// Receipts that say `delivered`, by delivery.
    #[must_use]
    pub fn delivered(&self) -> BTreeMap<Ulid, usize> {
        let mut counted = BTreeMap::new();
        for (_, receipt) in &self.receipts {
            if matches!(receipt.step, ReceiptStep::Delivered { .. }) {
                *counted.entry(receipt.delivery).or_default() += 1;
            }
        }
        counted
    }

    /// Everything that breaks a promise, in words; empty = every accepted event had its effects exactly once, in order.
    #[must_use]
    pub fn faults(&self, accepted: &BTreeSet<String>) -> Vec<String> {
        let mut faults = Vec::new();
        let stored: BTreeSet<&str> = self.events.iter().map(|(_, event)| event.id.as_str()).collect();
        let lost = accepted.iter().filter(|id| !stored.contains(id.as_str())).count();
        if lost > 0 {
            faults.push(format!("{lost} accepted events are not stored"));
        }

        if self.repeated_events > 0 {
            faults.push(format!("{} events are stored again", self.repeated_events));
        }

        self.check_invocations(&mut faults);
        self.check_dispatches(&mut faults);
        self.check_turns(&mut faults);
        self.check_deliveries(&mut faults);

        for (_, letter) in self.dead.iter().take(3) {
            faults.push(format!(
                "dead letter of {}: {} {}",
                letter.service, letter.reason, letter.detail
            ));
        }

        if self.waiting + self.claims > 0 {
            faults.push(format!("{} deliveries and {} claims wait", self.waiting, self.claims));
        }

        faults
    }

    fn check_invocations(&self, faults: &mut Vec<String>) {
        let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, record) in &self.invocations {
            *counted.entry(record.event_id.as_str()).or_default() += 1;
        }

        let without = self
            .events
            .iter()
            .filter(|(_, event)| !counted.contains_key(event.id.as_str()))
            .count();
        let twice = counted.values().filter(|count| **count > 1).count();
        if without + twice > 0 {
            faults.push(format!(
                "{without} events were not evaluated, {twice} are recorded more than once"
            ));
        }
    }

    fn check_dispatches(&self, faults: &mut Vec<String>) {
        let fired = |record: &EventInvocations| {
            let hooks = record.hooks.iter();
            hooks
                .filter_map(|hook| match hook.outcome {
                    HookOutcome::Fired { dispatch, .. } => Some(dispatch),
                    HookOutcome::Passed
                    | HookOutcome::Suppressed { .. }
                    | HookOutcome::Skipped { .. }
                    | HookOutcome::Deferred
                    | HookOutcome::Failed { .. } => None,
                })
                .collect::<Vec<_>>()
        };

        let wanted: BTreeSet<Ulid> = self.invocations.iter().flat_map(|(_, record)| fired(record)).collect();
        let there: BTreeSet<Ulid> = self.dispatches.iter().map(|(_, dispatch)| dispatch.id).collect();
        let (missing, extra) = (wanted.difference(&there).count(), there.difference(&wanted).count());

        let twice = self.dispatches.len() - there.len();
        if missing + extra + twice > 0 {
            faults.push(format!(
                "dispatches: {missing} missing, {extra} of no fired hook, {twice} stored again"
            ));
        }
    }

    fn check_turns(&self, faults: &mut Vec<String>) {
        let mut answered: BTreeMap<Ulid, usize> = BTreeMap::new();
        for dispatch in self.turns().into_iter().flat_map(|(_, dispatches)| dispatches) {
            *answered.entry(dispatch).or_default() += 1;
        }

        let without = self
            .dispatches
            .iter()
            .filter(|(_, dispatch)| !answered.contains_key(&dispatch.id))
            .count();
        let twice = answered.values().filter(|count| **count > 1).count();
        if without + twice > 0 {
            faults.push(format!("{without} dispatches have no turn, {twice} have more than one"));
        }

        let order: BTreeMap<Ulid, (&SessionRef, u64)> = self
            .dispatches
            .iter()
            .map(|(_, dispatch)| (dispatch.id, (&dispatch.target, dispatch.event_seq)))
            .collect();
        let mut last: BTreeMap<&SessionRef, u64> = BTreeMap::new();

        let mut inversions = 0;
        for (session, sequence) in self
            .turns()
            .iter()
            .flat_map(|(_, dispatches)| dispatches)
            .filter_map(|id| order.get(id))
        {
            let before = last.insert(session, *sequence).unwrap_or(0);
            inversions += usize::from(before > *sequence);
        }

        if inversions > 0 {
            faults.push(format!(
                "{inversions} turns ran before one of an earlier event of their session"
            ));
        }
    }

    fn check_deliveries(&self, faults: &mut Vec<String>) {
        let delivered = self.delivered();
        let turns: BTreeSet<Ulid> = self.turns().into_iter().map(|(turn, _)| turn).collect();
        let without = turns.iter().filter(|turn| !delivered.contains_key(turn)).count();
        let unknown = delivered.keys().filter(|delivery| !turns.contains(delivery)).count();

        let twice = delivered.values().filter(|count| **count > 1).count();
        if without + unknown + twice > 0 {
            faults.push(format!(
                "deliveries: {without} missing, {unknown} of no turn, {twice} receipted twice"
            ));
        }

        let sent = self
            .events
            .iter()
            .filter(|(_, event)| event.direction == EventDirection::Sent)
            .count();

        if sent != delivered.len() {
            faults.push(format!("{} deliveries, but {sent} sent events", delivered.len()));
        }
    }
}
