//! Counts of the streams that show whether every promise is kept: of millions of messages, no more fits into memory.

use std::collections::{BTreeMap, BTreeSet};

use shared::bus::{Bus, StoredMessage};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventDirection};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::topology::streams;
use tokio::task::JoinHandle;
use ulid::Ulid;

use crate::stream_walk::{decoded, for_each};

/// Dead letters that are told of.
const MOST_TOLD: usize = 3;

/// The counts of all streams at one moment.
#[derive(Debug, Default)]
pub struct Tally {
    /// Of `EVENTS`.
    pub events: EventTally,
    /// Of `INVOCATIONS`.
    pub evaluations: EvaluationTally,
    /// Of `DISPATCHES`.
    pub dispatches: DispatchTally,
    /// Of `LEDGER`.
    pub turns: TurnTally,
    /// Of `RECEIPTS`.
    pub deliveries: DeliveryTally,
    /// Dead letters, in words.
    pub dead: Vec<String>,
    /// Deliveries that wait.
    pub waiting: u64,
    /// Claims that stand.
    pub claims: u64,
}

/// The events.
#[derive(Debug, Default)]
pub struct EventTally {
    ids: BTreeSet<String>,
    /// How many more messages than ids there are.
    pub repeated: usize,
    sent: usize,
    /// When each was stored, by its sequence.
    pub stored_at: BTreeMap<u64, UnixMillis>,
}

impl EventTally {
    /// Counts one.
    pub fn note(&mut self, event: &Event) {
        if self.ids.insert(event.id.as_str().to_owned()) {
            self.sent += usize::from(event.direction == EventDirection::Sent);
        } else {
            self.repeated += 1;
        }
    }
}

/// The records of evaluations.
#[derive(Debug, Default)]
pub struct EvaluationTally {
    /// How many each event has.
    records: BTreeMap<String, usize>,
    /// Dispatches of the hooks that fired.
    fired: BTreeSet<Ulid>,
}

impl EvaluationTally {
    /// Counts one.
    pub fn note(&mut self, record: &EventInvocations) {
        *self.records.entry(record.event_id.as_str().to_owned()).or_default() += 1;
        self.fired
            .extend(record.hooks.iter().filter_map(|hook| match hook.outcome {
                HookOutcome::Fired { dispatch, .. } => Some(dispatch),
                HookOutcome::Passed
                | HookOutcome::Suppressed { .. }
                | HookOutcome::Skipped { .. }
                | HookOutcome::Deferred
                | HookOutcome::Failed { .. } => None,
            }));
    }
}

/// A dispatch, as far as it is counted.
#[derive(Debug)]
pub struct TalliedDispatch {
    /// Its id.
    pub id: Ulid,
    /// Id of the event.
    pub event: String,
    /// Sequence of the event.
    pub event_sequence: u64,
    /// Number of the session.
    session: usize,
}

/// The dispatches.
#[derive(Debug, Default)]
pub struct DispatchTally {
    /// In order.
    pub all: Vec<TalliedDispatch>,
    /// Numbers of the sessions.
    sessions: BTreeMap<SessionRef, usize>,
    /// When each was stored, by the sequence of its event.
    pub stored_at: BTreeMap<u64, UnixMillis>,
}

impl DispatchTally {
    /// Counts one.
    pub fn note(&mut self, dispatch: &Dispatch) {
        let next = self.sessions.len();
        let session = *self.sessions.entry(dispatch.target.clone()).or_insert(next);
        self.all.push(TalliedDispatch {
            id: dispatch.id,
            event: dispatch.event_id.as_str().to_owned(),
            event_sequence: dispatch.event_seq,
            session,
        });
    }
}

/// The turns.
#[derive(Debug, Default)]
pub struct TurnTally {
    started: BTreeMap<Ulid, Vec<Ulid>>,
    /// Those that came to an answer, in the order of the ledger: turn, and the dispatches that it answered.
    pub completed: Vec<(Ulid, Vec<Ulid>)>,
}

impl TurnTally {
    /// Counts those of a record.
    pub fn note(&mut self, record: &LedgerRecord) {
        for entry in &record.entries {
            if let LedgerEntry::TurnStarted { turn, dispatches, .. } = entry {
                let dispatches = dispatches.iter().map(|dispatch| dispatch.id).collect();
                self.started.insert(*turn, dispatches);
            }
            if let LedgerEntry::TurnCompleted { turn, .. } = entry {
                let dispatches = self.started.get(turn).cloned().unwrap_or_default();
                self.completed.push((*turn, dispatches));
            }
        }
    }
}

/// The receipts that say `delivered`.
#[derive(Debug, Default)]
pub struct DeliveryTally {
    /// How many each delivery has.
    pub delivered: BTreeMap<Ulid, usize>,
    /// When the last one was stored.
    pub stored_at: BTreeMap<Ulid, UnixMillis>,
}

impl DeliveryTally {
    /// Counts one, and answers whether it says `delivered`.
    pub fn note(&mut self, receipt: &Receipt) -> bool {
        let is_delivered = matches!(receipt.step, ReceiptStep::Delivered { .. });
        if is_delivered {
            *self.delivered.entry(receipt.delivery).or_default() += 1;
        }
        is_delivered
    }
}

/// A dead letter, in words.
#[must_use]
pub fn described(letter: &DeadLetter) -> String {
    format!("dead letter of {}: {} {}", letter.service, letter.reason, letter.detail)
}

/// Shows every message of a stream to `note`, in a task of its own.
fn gather<T: Default + Send + 'static>(
    bus: &Bus,
    stream: &'static str,
    note: fn(&mut T, &StoredMessage),
) -> JoinHandle<T> {
    let bus = bus.clone();
    tokio::spawn(async move {
        let mut gathered = T::default();
        for_each(&bus, stream, |message| note(&mut gathered, message)).await;
        gathered
    })
}

fn note_event(tally: &mut EventTally, message: &StoredMessage) {
    tally.stored_at.insert(message.sequence, message.published_at);
    tally.note(&decoded(message));
}

fn note_evaluation(tally: &mut EvaluationTally, message: &StoredMessage) {
    tally.note(&decoded(message));
}

fn note_dispatch(tally: &mut DispatchTally, message: &StoredMessage) {
    let dispatch: Dispatch = decoded(message);
    tally.stored_at.insert(dispatch.event_seq, message.published_at);
    tally.note(&dispatch);
}

fn note_turns(tally: &mut TurnTally, message: &StoredMessage) {
    tally.note(&decoded(message));
}

fn note_receipt(tally: &mut DeliveryTally, message: &StoredMessage) {
    let receipt: Receipt = decoded(message);
    if tally.note(&receipt) {
        tally.stored_at.insert(receipt.delivery, message.published_at);
    }
}

fn note_letter(dead: &mut Vec<String>, message: &StoredMessage) {
    dead.push(described(&decoded(message)));
}

async fn gathered<T>(reading: JoinHandle<T>) -> T {
    reading.await.expect("the stream was read")
}

impl Tally {
    /// Reads the streams, each once and beside the others.
    ///
    /// # Panics
    /// Panics if a stream cannot be asked, or holds a message that cannot be decoded.
    pub async fn read(bus: &Bus) -> Self {
        let events = gather(bus, streams::EVENTS, note_event);
        let evaluations = gather(bus, streams::INVOCATIONS, note_evaluation);
        let dispatches = gather(bus, streams::DISPATCHES, note_dispatch);
        let turns = gather(bus, streams::LEDGER, note_turns);
        let deliveries = gather(bus, streams::RECEIPTS, note_receipt);
        let dead = gather(bus, streams::DLQ, note_letter);

        let count = async |stream| bus.stream_state(stream).await.expect("it can be asked").messages;
        let waiting = count(streams::DELIVERIES).await;
        let claims = count(streams::CLAIMS).await;

        Self {
            events: gathered(events).await,
            evaluations: gathered(evaluations).await,
            dispatches: gathered(dispatches).await,
            turns: gathered(turns).await,
            deliveries: gathered(deliveries).await,
            dead: gathered(dead).await,
            waiting,
            claims,
        }
    }

    /// Everything that breaks a promise, in words; empty = every accepted event had its effects exactly once, in order.
    #[must_use]
    pub fn faults(&self, accepted: &BTreeSet<String>) -> Vec<String> {
        let mut faults = Vec::new();
        let lost = accepted.difference(&self.events.ids).count();
        if lost > 0 {
            faults.push(format!("{lost} accepted events are not stored"));
        }
        if self.events.repeated > 0 {
            faults.push(format!("{} events are stored again", self.events.repeated));
        }

        self.check_evaluations(&mut faults);
        self.check_dispatches(&mut faults);
        self.check_turns(&mut faults);
        self.check_deliveries(&mut faults);
        faults.extend(self.dead.iter().take(MOST_TOLD).cloned());

        if self.waiting + self.claims > 0 {
            faults.push(format!("{} deliveries and {} claims wait", self.waiting, self.claims));
        }

        faults
    }

    fn check_evaluations(&self, faults: &mut Vec<String>) {
        let records = &self.evaluations.records;
        let ids = self.events.ids.iter();
        let without = ids.filter(|id| !records.contains_key(*id)).count();
        let twice = records.values().filter(|count| **count > 1).count();
        if without + twice > 0 {
            faults.push(format!(
                "{without} events were not evaluated, {twice} are recorded more than once"
            ));
        }
    }

    fn check_dispatches(&self, faults: &mut Vec<String>) {
        let wanted = &self.evaluations.fired;
        let there: BTreeSet<Ulid> = self.dispatches.all.iter().map(|dispatch| dispatch.id).collect();
        let (missing, extra) = (wanted.difference(&there).count(), there.difference(wanted).count());
        let twice = self.dispatches.all.len() - there.len();
        if missing + extra + twice > 0 {
            faults.push(format!(
                "dispatches: {missing} missing, {extra} of no fired hook, {twice} stored again"
            ));
        }
    }

    fn check_turns(&self, faults: &mut Vec<String>) {
        let dispatched = &self.dispatches.all;
        let answers = || self.turns.completed.iter().flat_map(|(_, dispatches)| dispatches);
        let mut answered: BTreeMap<Ulid, usize> = BTreeMap::new();
        for dispatch in answers() {
            *answered.entry(*dispatch).or_default() += 1;
        }

        let is_answered = |dispatch: &&TalliedDispatch| answered.contains_key(&dispatch.id);
        let without = dispatched.len() - dispatched.iter().filter(is_answered).count();
        let twice = answered.values().filter(|count| **count > 1).count();
        if without + twice > 0 {
            faults.push(format!("{without} dispatches have no turn, {twice} have more than one"));
        }

        let order: BTreeMap<Ulid, &TalliedDispatch> =
            dispatched.iter().map(|dispatch| (dispatch.id, dispatch)).collect();
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        let mut inversions = 0;
        for dispatch in answers().filter_map(|id| order.get(id)) {
            let before = last.insert(dispatch.session, dispatch.event_sequence).unwrap_or(0);
            inversions += usize::from(before > dispatch.event_sequence);
        }

        if inversions > 0 {
            faults.push(format!(
                "{inversions} turns ran before one of an earlier event of their session"
            ));
        }
    }

    fn check_deliveries(&self, faults: &mut Vec<String>) {
        let delivered = &self.deliveries.delivered;
        let turns: BTreeSet<Ulid> = self.turns.completed.iter().map(|(turn, _)| *turn).collect();
        let without = turns.iter().filter(|turn| !delivered.contains_key(turn)).count();
        let unknown = delivered.keys().filter(|delivery| !turns.contains(delivery)).count();

        let twice = delivered.values().filter(|count| **count > 1).count();
        if without + unknown + twice > 0 {
            faults.push(format!(
                "deliveries: {without} missing, {unknown} of no turn, {twice} receipted twice"
            ));
        }

        let sent = self.events.sent;
        if sent != delivered.len() {
            faults.push(format!("{} deliveries, but {sent} sent events", delivered.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Ulid {
        Ulid::from(number)
    }

    fn dispatch(number: u128) -> TalliedDispatch {
        TalliedDispatch {
            id: id(number),
            event: String::new(),
            event_sequence: u64::try_from(number).expect("small"),
            session: 0,
        }
    }

    /// Two events of a session, each with all that follows from it.
    fn whole() -> Tally {
        let ids: BTreeSet<String> = ["a", "b", "out:a", "out:b"].map(str::to_owned).into();
        let records = ids.iter().map(|id| (id.clone(), 1)).collect();
        let mut tally = Tally::default();
        (tally.events.ids, tally.events.sent) = (ids, 2);
        (tally.evaluations.records, tally.evaluations.fired) = (records, [id(1), id(2)].into());
        tally.dispatches.all = vec![dispatch(1), dispatch(2)];
        tally.turns.completed = vec![(id(11), vec![id(1)]), (id(12), vec![id(2)])];
        tally.deliveries.delivered = [(id(11), 1), (id(12), 1)].into();
        tally
    }

    #[test]
    fn each_broken_promise_is_a_fault() {
        type Breakage = fn(&mut Tally);

        let accepted: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
        let faults = whole().faults(&accepted);
        assert!(faults.is_empty(), "{faults:?}");

        let broken: [(&str, Breakage); 17] = [
            ("1 accepted events are not stored", |tally| {
                tally.events.ids.remove("a");
            }),
            ("1 events are stored again", |tally| tally.events.repeated = 1),
            ("1 events were not evaluated", |tally| {
                tally.evaluations.records.remove("a");
            }),
            ("1 are recorded more than once", |tally| {
                tally.evaluations.records.insert("a".to_owned(), 2);
            }),
            ("dispatches: 1 missing", |tally| {
                tally.dispatches.all.pop();
            }),
            ("1 of no fired hook", |tally| {
                tally.evaluations.fired.remove(&id(1));
            }),
            ("hook, 1 stored again", |tally| tally.dispatches.all.push(dispatch(2))),
            ("1 dispatches have no turn", |tally| {
                tally.turns.completed.pop();
            }),
            ("1 have more than one", |tally| {
                tally.turns.completed.push((id(13), vec![id(2)]));
            }),
            ("1 turns ran before", |tally| tally.turns.completed.reverse()),
            ("deliveries: 1 missing", |tally| {
                tally.deliveries.delivered.remove(&id(11));
            }),
            ("1 of no turn", |tally| {
                tally.deliveries.delivered.insert(id(13), 1);
            }),
            ("1 receipted twice", |tally| {
                tally.deliveries.delivered.insert(id(11), 2);
            }),
            ("2 deliveries, but 3 sent events", |tally| tally.events.sent = 3),
            ("given up", |tally| tally.dead.push("given up".to_owned())),
            ("1 deliveries and 0 claims wait", |tally| tally.waiting = 1),
            ("0 deliveries and 1 claims wait", |tally| tally.claims = 1),
        ];
        for (fault, break_one) in broken {
            let mut tally = whole();
            break_one(&mut tally);
            let found = tally.faults(&accepted);
            assert!(found.iter().any(|found| found.contains(fault)), "{fault}: {found:?}");
        }
    }
}
