use proptest::prelude::*;

use super::*;
use crate::sample::pending;

const NOW: UnixMillis = UnixMillis(5_000);

fn started(effects: &[Effect]) -> Vec<u64> {
    let starts = effects.iter().filter_map(|effect| match effect {
        Effect::Start { pending, .. } => Some(pending.sequence),
        Effect::Drop { .. } => None,
    });
    starts.collect()
}

/// Hands `batches` in one after the other, ends each turn, and answers what ran in which order.
fn order_of(machine: &mut Session, batches: Vec<Vec<Pending>>) -> Vec<u64> {
    let mut ran = Vec::new();
    for batch in batches {
        ran.extend(started(&machine.handle(Input::Arrived(batch), NOW)));
    }
    while machine.is_running() {
        ran.extend(started(&machine.handle(Input::TurnEnded, NOW)));
    }
    ran
}

#[test]
fn an_idle_session_starts_at_once_and_a_busy_one_afterwards() {
    let mut machine = Session::default();
    assert_eq!(
        started(&machine.handle(Input::Arrived(vec![pending(3, 1, "a", 50)]), NOW)),
        [3]
    );
    assert!(started(&machine.handle(Input::Arrived(vec![pending(4, 2, "a", 50)]), NOW)).is_empty());
    assert_eq!(
        (machine.waiting(), machine.lowest_open(0), machine.lowest_open(3)),
        (1, Some(3), Some(4))
    );
    assert_eq!(started(&machine.handle(Input::TurnEnded, NOW)), [4]);
}

#[test]
fn what_is_pending_at_one_look_is_ordered_by_event_then_priority_then_hook() {
    let batch = vec![
        pending(7, 2, "a", 90),
        pending(8, 1, "b", 50),
        pending(9, 1, "a", 50),
        pending(10, 1, "z", 90),
    ];
    assert_eq!(order_of(&mut Session::default(), vec![batch]), [10, 9, 8, 7]);
}

#[test]
fn a_dispatch_of_the_same_id_is_dropped_with_its_reason() {
    let mut machine = Session::default();
    let effects = machine.handle(
        Input::Arrived(vec![pending(3, 1, "a", 50), pending(9, 1, "a", 50)]),
        NOW,
    );
    assert!(matches!(&effects[0], Effect::Drop { pending, reason: DropReason::Duplicate } if pending.sequence == 9));
    assert_eq!(started(&effects), [3]);
    assert_eq!(
        machine.handle(Input::Arrived(vec![pending(3, 1, "a", 50)]), NOW),
        [],
        "the same message again"
    );
}

#[test]
fn a_turn_that_a_former_owner_began_goes_first() {
    let mut fold = Fold::default();
    let begun = pending(9, 9, "a", 50);
    let limits = crate::personas::Limits::default();
    fold.apply_entry(&crate::turn::Turn::of(&crate::sample::session(), &fold, &begun, &limits).started());
    let mut machine = Session::new(&fold);
    assert_eq!(
        order_of(&mut machine, vec![vec![pending(3, 1, "a", 50), begun]]),
        [9, 3]
    );
}

fn batches() -> impl Strategy<Value = Vec<Vec<(u64, u64, u8, i32)>>> {
    prop::collection::vec(
        prop::collection::vec((0_u64..40, 0_u64..12, 0_u8..3, -2_i32..3), 0..6),
        0..8,
    )
}

proptest! {
    /// Whatever arrives, in whatever order and however often: every message is started once or dropped once, and no
    /// turn starts while another runs.
    #[test]
    fn nothing_is_lost_and_nothing_runs_beside(input in batches(), ends in prop::collection::vec(any::<bool>(), 8)) {
        let mut machine = Session::default();
        let mut handed = BTreeSet::new();
        let (mut over, mut running) = (Vec::new(), None);
        let mut note = |effects: Vec<Effect>, running: &mut Option<u64>| {
            for effect in effects {
                match effect {
                    Effect::Start { pending, .. } => {
                        assert_eq!(*running, None, "a second turn");
                        *running = Some(pending.sequence);
                        over.push(pending.sequence);
                    }
                    Effect::Drop { pending, .. } => over.push(pending.sequence),
                }
            }
        };
        for (batch, end) in input.iter().zip(ends.iter().chain(std::iter::repeat(&true))) {
            handed.extend(batch.iter().map(|(sequence, ..)| *sequence));
            let made = |&(sequence, event, hook, priority): &(u64, u64, u8, i32)| pending(sequence, event, &hook.to_string(), priority);
            note(machine.handle(Input::Arrived(batch.iter().map(made).collect()), NOW), &mut running);
            if *end {
                running = None;
                note(machine.handle(Input::TurnEnded, NOW), &mut running);
            }
        }
        while running.take().is_some() {
            note(machine.handle(Input::TurnEnded, NOW), &mut running);
        }
        let once: BTreeSet<u64> = over.iter().copied().collect();
        prop_assert_eq!(over.len(), once.len(), "one of them twice");
        prop_assert_eq!(once, handed);
        prop_assert_eq!(machine.lowest_open(0), None);
    }

    /// One conversation's dispatches, which come in event order, run in event order however the looks cut them.
    #[test]
    fn order_is_kept(cuts in prop::collection::vec(1_usize..5, 1..10)) {
        let mut sequence = 0;
        let batches: Vec<Vec<Pending>> = cuts.iter().map(|&size| (0..size).map(|_| {
            sequence += 1;
            pending(10 * sequence, sequence, "a", 50)
        }).collect()).collect();
        let ran = order_of(&mut Session::default(), batches);
        prop_assert_eq!(ran, (1..=sequence).map(|n| 10 * n).collect::<Vec<_>>());
    }
}
