//! Tests the machine against simple bookkeeping: with any input, each message ends exactly once.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{NOW, arrived};
use crate::sample::pending;
use crate::session::*;

/// Ends of all messages, as simple bookkeeping records them.
#[derive(Default)]
struct Books {
    running: Option<Vec<u64>>,
    ends: BTreeMap<u64, &'static str>,
    also_steered: BTreeSet<u64>,
    started: Vec<u64>,
}

impl Books {
    fn end(&mut self, sequence: u64, how: &'static str) {
        if let Some(before) = self.ends.insert(sequence, how) {
            panic!("{sequence} ended as {before} and as {how}");
        }
    }

    fn note(&mut self, effects: Vec<SessionEffect>) {
        for effect in effects {
            match effect {
                SessionEffect::Start { pendings, .. } => {
                    assert!(self.running.is_none(), "a second turn");
                    let sequences: Vec<u64> = pendings.iter().map(|p| p.sequence).collect();
                    sequences.iter().for_each(|&sequence| self.end(sequence, "turn"));
                    self.started.extend(&sequences);
                    self.running = Some(sequences);
                }
                SessionEffect::Drop { pending, reason } => self.end(pending.sequence, reason.name()),
                SessionEffect::Cancel { .. } => assert!(self.running.is_some(), "nothing to cancel"),
                SessionEffect::Carry { .. }
                | SessionEffect::Repeated { .. }
                | SessionEffect::Decide { .. }
                | SessionEffect::Wake { .. } => {}
            }
        }
    }
}

/// A possible event: a batch arrives (sequence, event, mode), the model is asked, the turn ends, time passes.
#[derive(Debug, Clone)]
enum Event {
    Arrive(Vec<(u64, u64, QueueMode)>),
    Ask,
    End,
    Wait(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    use QueueMode::{Collect, Followup, Interrupt, Steer, SteerBacklog};

    let mode = prop::sample::select(vec![Followup, Collect, Steer, Interrupt, SteerBacklog]);
    let one = (0_u64..60, 0_u64..40, mode);

    prop::collection::vec(
        prop_oneof![
            4 => prop::collection::vec(one, 0..6).prop_map(Event::Arrive),
            2 => Just(Event::Ask),
            2 => Just(Event::End),
            1 => (0_i64..3_000).prop_map(Event::Wait),
        ],
        0..40,
    )
}

proptest! {
    /// For any input in any order, and any number of copies: every message ends exactly once, as a turn or part of
    /// one, as steered, or dropped with a reason; no turn begins while another runs; nothing stays behind.
    #[test]
    fn nothing_is_lost_and_nothing_runs_beside(events in events(), cap in 1_u32..6) {
        let policy = QueuePolicy {
            common: QueueSettings { cap: Some(cap), ..QueueSettings::default() },
            ..QueuePolicy::default()
        };
        let mut machine = SessionQueue::new(&SessionState::default(), Arc::new(policy));
        let mut books = Books::default();
        let mut handed = BTreeSet::new();
        let mut now = NOW;
        for event in events {
            match event {
                Event::Arrive(batch) => {
                    handed.extend(batch.iter().map(|(sequence, ..)| *sequence));
                    let made = batch.iter().map(|&(sequence, event, mode)| {
                        let mut one = pending(sequence, event, "a", 50);
                        one.arrived = now;
                        Arc::make_mut(&mut one.dispatch).queue_mode = Some(mode);
                        one
                    });
                    books.note(machine.handle(arrived(made.collect()), now));
                    prop_assert!(!machine.is_running() || machine.queued_count() <= 64);
                }
                Event::Ask if machine.is_running() => {
                    for steering in machine.take_steering() {
                        if steering.backlog {
                            books.also_steered.insert(steering.pending.sequence);
                        } else {
                            books.end(steering.pending.sequence, "steered");
                        }
                    }
                }
                Event::End if machine.is_running() => {
                    books.running = None;
                    books.note(machine.handle(SessionInput::TurnEnded, now));
                }
                Event::Ask | Event::End => {}
                Event::Wait(ms) => {
                    now = now.plus(ms);
                    books.note(machine.handle(SessionInput::Tick, now));
                }
            }
            prop_assert_eq!(machine.is_running(), books.running.is_some());
        }
        now = now.plus(60_000);
        books.note(machine.handle(SessionInput::Tick, now));
        while books.running.take().is_some() {
            books.note(machine.handle(SessionInput::TurnEnded, now));
        }
        let ended: BTreeSet<u64> = books.ends.keys().copied().collect();
        prop_assert_eq!(ended, handed);
        prop_assert_eq!(machine.lowest_open(&[]), None);
    }

    /// Dispatches of one conversation, which come in event order, run in event order for any split into looks.
    #[test]
    fn order_is_kept(cuts in prop::collection::vec(1_usize..5, 1..10)) {
        let policy = QueuePolicy {
            common: QueueSettings { cap: Some(1_000), ..QueueSettings::default() },
            ..QueuePolicy::default()
        };
        let mut machine = SessionQueue::new(&SessionState::default(), Arc::new(policy));
        let (mut books, mut sequence) = (Books::default(), 0);
        for size in cuts {
            let batch = (0..size).map(|_| {
                sequence += 1;
                pending(10 * sequence, sequence, "a", 50)
            });
            books.note(machine.handle(arrived(batch.collect()), NOW));
            books.running = None;
            books.note(machine.handle(SessionInput::TurnEnded, NOW));
        }
        while books.running.take().is_some() {
            books.note(machine.handle(SessionInput::TurnEnded, NOW));
        }
        prop_assert_eq!(books.started, (1..=sequence).map(|n| 10 * n).collect::<Vec<_>>());
    }
}
