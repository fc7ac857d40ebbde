//! What brokers share: the streams, the time, and the bookkeeper who checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use broker_svc::ledger::state::{RunState, SessionState, is_runnable};
use broker_svc::session::InboxItem;
use broker_svc::turn::arguments::args_hash;
use shared::model::approval::ApprovalStatus;
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::chance::Chance;
use crate::owner::{Fate, Owner};
use crate::people::{EXPIRES_MS, Kept, asks};

/// How long a claim is held without a sign of life, milliseconds.
const ACK_WAIT_MS: i64 = 3_000;

pub(crate) fn session() -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    }
}

/// The claim of the session: who it was delivered to, until when it is theirs.
#[derive(Debug, Clone)]
struct Claim {
    sequence: u64,
    held_until: Option<i64>,
}

/// Everything there is.
pub(crate) struct World {
    pub(crate) chance: Chance,
    pub(crate) now: i64,
    pub(crate) arrivals: Vec<InboxItem>,
    /// Approvals, by id.
    pub(crate) kept: BTreeMap<String, Kept>,
    /// What brokers remember of the session, and which turns' replies they know to be published.
    pub(crate) caches: Vec<Option<(SessionState, Vec<Ulid>)>>,
    /// The newest arrival for which the sweeper has woken a turn that waits.
    woken_for: u64,
    /// Records with their sequence.
    pub(crate) ledger: Vec<(u64, LedgerRecord)>,
    claim: Option<Claim>,
    next_claim: u64,
    owners: Vec<Option<Owner>>,
    pub(crate) appends: u64,
    /// Replies published, and how often.
    published: BTreeMap<Ulid, u32>,
    /// How often each effect happened.
    effects: BTreeMap<(Ulid, String), u32>,
    /// Owners that were lost, or left: each may have had one effect that is not in the ledger.
    lost: u32,
    pub(crate) truth: SessionState,
    pub(crate) trace: String,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            chance: Chance::of(seed),
            now: 1_000_000,
            arrivals: Vec::new(),
            kept: BTreeMap::new(),
            caches: vec![None, None, None],
            woken_for: 0,
            ledger: Vec::new(),
            claim: None,
            next_claim: 1,
            owners: vec![None, None, None],
            appends: 0,
            published: BTreeMap::new(),
            effects: BTreeMap::new(),
            lost: 0,
            truth: SessionState::default(),
            trace: String::new(),
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        let _ = writeln!(self.trace, "{} {line}", self.now);
    }

    /// One thing happens; with `faults` it may be a bad one.
    pub(crate) fn step(&mut self, faults: bool) {
        let kind = self.chance.below(if faults { 24 } else { 12 });
        match kind {
            0 | 1 if faults => self.dispatch(),
            2 | 3 => self.pass(20),
            4 => self.deliver_claim(),
            6 => self.ring(faults),
            5 if faults || self.chance.once_in(2) => self.sweep(),
            12 if faults => self.crash(),
            13 if faults => self.pass(ACK_WAIT_MS + 1),
            14 if faults => self.duplicate(),
            15 if faults => self.order(),
            16 | 17 if faults => self.word(),
            18 if faults && self.chance.once_in(4) => self.pass(EXPIRES_MS),
            _ => self.work(faults),
        }

        self.check();
    }

    fn pass(&mut self, at_most: i64) {
        let bound = u64::try_from(at_most).unwrap_or(1);
        self.now += i64::try_from(self.chance.below(bound)).unwrap_or(0) + 1;
    }

    /// Whoever publishes may die before the claim: the sweeper finds out.
    pub(crate) fn claim_perhaps(&mut self) {
        if !self.chance.once_in(5) {
            self.publish_claim();
        }
    }

    pub(crate) fn publish_claim(&mut self) {
        if self.claim.is_none() {
            self.claim = Some(Claim {
                sequence: self.next_claim,
                held_until: None,
            });
            self.next_claim += 1;
        }
    }

    /// The server gives the claim to a broker, or to another one once its holder was silent for too long.
    fn deliver_claim(&mut self) {
        let to = usize::try_from(self.chance.below(3)).unwrap_or(0);
        let now = self.now;
        let free = self.owners[to].is_none();

        let Some(claim) = &mut self.claim else { return };
        if !free || claim.held_until.is_some_and(|until| now < until) {
            return;
        }

        claim.held_until = Some(now + ACK_WAIT_MS);
        let sequence = claim.sequence;
        self.say(&format!("claim {sequence} to {to}"));
        self.owners[to] = Some(Owner::new(to, sequence, now + ACK_WAIT_MS));
    }

    fn crash(&mut self) {
        let who = usize::try_from(self.chance.below(3)).unwrap_or(0);
        if self.owners[who].take().is_some() {
            self.lost += 1;
            self.say(&format!("{who} crashes"));
        }
    }

    fn work(&mut self, faults: bool) {
        let who = usize::try_from(self.chance.below(3)).unwrap_or(0);
        let Some(mut owner) = self.owners[who].take() else {
            return;
        };

        // A sign of life, where it is not too late for one.
        if owner.is_live(self.now) && !(faults && self.chance.once_in(6)) {
            owner.held_until = self.now + ACK_WAIT_MS;
            if let Some(claim) = self.claim.as_mut().filter(|claim| claim.sequence == owner.claim) {
                claim.held_until = Some(self.now + ACK_WAIT_MS);
            }
        }

        match owner.step(self, faults) {
            Fate::On => self.owners[who] = Some(owner),
            Fate::Gone => {
                self.lost += 1;
                self.say(&format!("{who} leaves"));
            }
        }
    }

    /// Deletes the claim by its sequence; answers whether a look afterwards follows.
    pub(crate) fn release(&mut self, claim: u64) {
        if self.claim.as_ref().is_some_and(|held| held.sequence == claim) {
            self.claim = None;
        }
    }

    /// What the ledger adds up to says whether anything is left to do.
    pub(crate) fn is_runnable(&self) -> bool {
        let standing = RunState {
            owes: self.owed().next().is_some(),
            ..RunState::from_fold(&self.truth, &[])
        };
        let cursor = &self.truth.cursor;
        let open = self
            .arrivals
            .iter()
            .map(InboxItem::sequence)
            .find(|&s| !cursor.contains(s));

        is_runnable(&standing, open, UnixMillis(self.now))
    }

    fn owed(&self) -> impl Iterator<Item = Ulid> {
        let unpublished = self.truth.replies.unpublished.iter().map(|reply| reply.turn);
        unpublished.filter(|turn| !self.published.contains_key(turn))
    }

    fn sweep(&mut self) {
        if let Some(awaited) = self
            .truth
            .awaited_approval()
            .filter(|awaited| self.now < awaited.expires_at.0)
        {
            let id = awaited.approval.clone();
            if self
                .kept
                .get(&id)
                .is_some_and(|kept| kept.status != ApprovalStatus::Pending)
            {
                return self.tell(&id, false);
            }

            let newest = self.arrivals.len() as u64;
            if std::mem::replace(&mut self.woken_for, newest) == newest {
                return;
            }

            return self.publish_claim();
        }

        if self.claim.is_none() && self.is_runnable() {
            self.say("the sweeper claims");
            self.publish_claim();
        }
    }

    /// Appends, fenced; the acknowledgement may be lost after that, which changes nothing for who asks again.
    #[expect(clippy::needless_pass_by_value, reason = "whoever appends has no more use for it")]
    pub(crate) fn append(&mut self, expected: u64, record: LedgerRecord, faults: bool) -> Option<u64> {
        let tries = if faults && self.chance.once_in(8) { 2 } else { 1 };
        let mut stored = None;
        for _ in 0..tries {
            let last = self.ledger.last().map_or(0, |(sequence, _)| *sequence);
            if last == expected {
                let sequence = last + 1 + self.chance.below(3);
                let kinds: Vec<String> = record.entries.iter().map(kind).collect();
                self.say(&format!("append {sequence} {}", kinds.join(" ")));
                self.check_record(&record);
                self.truth.apply(sequence, &record);
                self.ledger.push((sequence, record.clone()));
                stored = Some(sequence);
            } else {
                let (sequence, theirs) = self.ledger.last()?;
                stored = (theirs.append == record.append).then_some(*sequence);
            }
        }

        stored
    }

    /// The effect of `turn` named `name` happens; it may only where it is not in the ledger already.
    pub(crate) fn effect(&mut self, turn: Ulid, name: &str, broker: usize) {
        self.say(&format!("{broker} does {name}"));
        let times = self.effects.entry((turn, name.to_owned())).or_insert(0);
        *times += 1;

        assert!(!name.starts_with("pay") || *times == 1, "{name} twice");

        let running = self
            .truth
            .running
            .as_ref()
            .expect("an effect is in a turn that the ledger knows");
        assert_eq!(running.turn, turn, "an effect of another turn");

        if let Some(step) = name.strip_prefix("model ") {
            assert_ne!(
                running.last_answer().map(|(step, _, _)| step.to_string()).as_deref(),
                Some(step),
                "paid twice"
            );
        } else {
            let call = name.split(' ').nth(1).expect("a call");
            assert_eq!(
                running.call_outcome(call),
                Some(None),
                "a tool that was not begun, or is over"
            );

            let asked = running.last_asked(call);
            let is_approved = asked.is_some_and(|asked| asked.status == ApprovalStatus::Approved);
            assert!(
                !name.starts_with("pay") || !asks(turn) || is_approved,
                "nobody has approved {name}"
            );

            if let Some(asked) = asked.filter(|_| is_approved) {
                let begun = running.begun_with(call).unwrap_or(&serde_json::Value::Null);
                let edited = asked.edited.as_ref().map(args_hash);
                let approved = edited.as_ref().unwrap_or(&asked.arguments_hash);
                assert_eq!(&args_hash(begun), approved, "{name} with what nobody approved");
            }

            if let Some(kept) = asked.and_then(|asked| self.kept.get(&asked.approval)) {
                let may = [ApprovalStatus::Approved, ApprovalStatus::Consumed].contains(&kept.status);
                assert!(may, "{name}, and people read that it is {}", kept.status.name());
            }
        }
    }

    pub(crate) fn publish(&mut self, reply: Ulid) {
        assert!(
            self.ledger
                .iter()
                .any(|(_, record)| record.entries.iter().any(|entry| replies(entry) == Some(reply))),
            "a reply that is not in the ledger"
        );
        *self.published.entry(reply).or_insert(0) += 1;
    }

    /// What must hold of a record before it is stored: turns do not overlap.
    fn check_record(&self, record: &LedgerRecord) {
        let mut running = self.truth.running.as_ref().map(|running| running.turn);
        for entry in &record.entries {
            if let LedgerEntry::TurnStarted { turn, .. } = entry {
                assert_eq!(running, None, "a turn beside another");
                running = Some(*turn);
            } else if let LedgerEntry::TurnCompleted { turn, .. }
            | LedgerEntry::TurnFailed { turn, .. }
            | LedgerEntry::TurnInterrupted { turn, .. } = entry
            {
                assert_eq!(running.take(), Some(*turn));
            }
        }
    }

    /// What must hold after every step.
    fn check(&self) {
        let last = self.ledger.last().map_or(0, |(sequence, _)| *sequence);
        let acting = self
            .owners
            .iter()
            .flatten()
            .filter(|owner| owner.may_act(self.now, last));

        assert!(acting.count() <= 1, "two owners at once");

        let cursor = &self.truth.cursor;
        let running: BTreeSet<u64> = self
            .truth
            .running
            .iter()
            .flat_map(|running| running.dispatches.iter().map(|d| d.sequence))
            .collect();

        let ended = self.ended();
        for sequence in self.arrivals.iter().map(InboxItem::sequence) {
            let over = ended.contains_key(&sequence);
            let consumed = cursor.contains(sequence);
            assert_eq!(consumed, over, "{sequence}: consumed and not over, or the other way");
            assert!(
                !consumed || !running.contains(&sequence),
                "consumed before its turn is over"
            );
        }
    }

    /// How each dispatch ended, by what the ledger says.
    fn ended(&self) -> BTreeMap<u64, &'static str> {
        let mut ends = BTreeMap::new();
        let mut turn: Vec<u64> = Vec::new();
        for entry in self.ledger.iter().flat_map(|(_, record)| &record.entries) {
            if let LedgerEntry::TurnStarted { dispatches, .. } = entry {
                turn = dispatches.iter().map(|d| d.sequence).collect();
            } else if let LedgerEntry::Steered {
                dispatch,
                backlog: false,
            } = entry
            {
                turn.push(dispatch.sequence);
            } else if let LedgerEntry::DispatchDropped { dispatch, .. } = entry {
                let sequence = dispatch.sequence;
                assert_eq!(ends.insert(sequence, "dropped"), None, "{sequence} ends twice");
            } else if let LedgerEntry::Ordered { sequence, .. }
            | LedgerEntry::ApprovalDecided {
                sequence: Some(sequence),
                ..
            } = entry
            {
                assert_eq!(ends.insert(*sequence, "carried out"), None, "{sequence} ends twice");
            } else if let LedgerEntry::TurnCompleted { .. }
            | LedgerEntry::TurnFailed { .. }
            | LedgerEntry::TurnInterrupted { .. } = entry
            {
                for sequence in turn.drain(..) {
                    assert_eq!(ends.insert(sequence, "turn"), None, "{sequence} ends twice");
                }
            }
        }

        ends
    }

    /// No more faults: everything is done in the end.
    pub(crate) fn come_to_rest(&mut self) {
        for _ in 0..20_000 {
            let busy = self.owners.iter().any(Option::is_some);
            if !busy && self.claim.is_none() && !self.is_runnable() && self.truth.awaited_approval().is_none() {
                return;
            }

            if self.chance.once_in(10) {
                self.pass(400);
            }
            self.step(false);
        }

        panic!("it does not come to rest:\n{}", self.trace);
    }

    /// What must hold at last.
    pub(crate) fn check_end(&self) {
        let ended = self.ended();
        assert_eq!(ended.len(), self.arrivals.len(), "a message is lost");
        assert_eq!(self.owed().next(), None, "a reply is not published");

        let more = self.effects.values().filter(|times| **times > 1).map(|times| times - 1);
        assert!(
            more.sum::<u32>() <= self.lost,
            "an effect is repeated without anybody being lost"
        );

        let whole = broker_svc::ledger::state::fold_records(&self.ledger).expect("a whole ledger");
        assert_eq!(whole, self.truth);
    }
}

/// The kind of `entry`, as its debug form begins.
fn kind(entry: &LedgerEntry) -> String {
    let whole = format!("{entry:?}");
    whole.split([' ', '{']).next().unwrap_or_default().to_owned()
}

fn replies(entry: &LedgerEntry) -> Option<Ulid> {
    if let LedgerEntry::TurnCompleted { reply, .. } | LedgerEntry::TurnFailed { reply, .. } = entry {
        return reply.as_ref().map(|reply| reply.turn);
    }
    None
}
