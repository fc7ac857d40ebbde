//! A seeded simulation of one session: dispatches, claims, ledger and three brokers, with crashes at every point,
//! redeliveries, stale owners, lost acknowledgements, humans who are asked, and orders. In memory, in virtual time, and the same for the same seed.
//!
//! The decisions are those of the service (`session`, `fold`, `turn`); the shell around them is played here, one
//! small step at a time, so that anything may happen between two of them. After every step invariants 5 and 6 of
//! ARCHITECTURE.md are checked: nothing is acked before its effects are durable, one turn runs at any time.

mod chance;
mod confirm;
mod messages;
mod owner;
mod people;
mod world;

use world::World;

/// Seeds of one run of the tests.
const SEEDS: u64 = 2_000;
/// Steps with faults, before everything is left to come to rest.
const STEPS: u32 = 160;

fn run(seed: u64) -> String {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step(true);
    }
    world.come_to_rest();
    world.check_end();
    world.trace
}

/// What a run of many seeds has to have come to, by a word of its trace.
const MET: [&str; 10] = [
    "crashes",
    "approved in KV",
    "denied in KV",
    "expired in KV",
    "Checkpoint",
    "order abort",
    "order withdraw",
    "superseded\n",
    "Steered",
    "TurnInterrupted",
];

fn check(seeds: std::ops::Range<u64>) {
    let mut met = [false; MET.len()];
    for seed in seeds {
        let trace = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| panic!("seed {seed}"));
        let words = MET.iter().zip(&mut met);
        words.for_each(|(word, met)| *met |= trace.contains(word));
    }
    assert_eq!(met, [true; MET.len()], "{MET:?}");
}

// Two, so that two cores have something to do.
#[test]
fn whatever_happens_nothing_is_lost_doubled_or_beside() {
    check(0..SEEDS / 2);
}

#[test]
fn whatever_else_happens_nothing_is_lost_doubled_or_beside() {
    check(SEEDS / 2..SEEDS);
}

#[test]
fn the_same_seed_is_the_same_run_to_the_byte() {
    for seed in (0..SEEDS).step_by(40) {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
