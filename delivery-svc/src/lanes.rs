//! Order per destination, and none between destinations. *Pure.*
//!
//! A destination is a lane. While all goes well its messages are delivered one after the other. The first failure, or too
//! many that wait, parks it: the failed message and everything behind it is stored on the destination's own subject, in order, and
//! acknowledged, so that its retries never hold up the partition; a drain works that subject off from its head. Once a
//! drain found it empty, and nothing was stored meanwhile, the lane is open again.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Messages of one destination that wait behind the one being delivered, at most: with more its lane is parked, so that a
/// slow destination does not take all the room of its partition.
pub const MAX_WAITING: usize = 128;

/// What is to be begun for a destination; its end is told by [`Lanes::delivered`] and its sisters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work<M> {
    /// Deliver this message.
    Deliver(M),
    /// Store this message on the destination's parked subject.
    Park(M),
    /// Work off the destination's parked subject until it is empty.
    Drain,
}

#[derive(Debug)]
struct Lane<M> {
    queue: VecDeque<M>,
    /// A message of it is being delivered or parked.
    busy: bool,
    /// None = open; else whether and how it is being drained.
    parked: Option<Drain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// Nothing is known to be stored yet.
    Waiting,
    /// Running, and nothing was stored since it began.
    Running,
    /// Running, and something was stored since it began, which it may or may not have seen.
    Behind,
}

/// All destinations that have something to do.
#[derive(Debug)]
pub struct Lanes<K, M> {
    lanes: HashMap<K, Lane<M>>,
    waiting: usize,
}

impl<K: Eq + Hash + Clone, M> Default for Lanes<K, M> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            waiting: 0,
        }
    }
}

impl<K: Eq + Hash + Clone, M> Lanes<K, M> {
    /// How many messages wait for one before them.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many destinations are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.lanes.values().filter(|lane| lane.parked.is_some()).count()
    }

    /// The messages that wait.
    pub fn queued(&self) -> impl Iterator<Item = &M> {
        self.lanes.values().flat_map(|lane| &lane.queue)
    }

    /// `message` came for `key`.
    pub fn arrived(&mut self, key: &K, message: M) -> Option<Work<M>> {
        self.waiting += 1;
        let lane = self.lane(key);
        lane.queue.push_back(message);
        if lane.queue.len() > MAX_WAITING {
            lane.parked.get_or_insert(Drain::Waiting);
        }
        self.next(key)
    }

    /// The destination was found to have parked messages: before its first message arrived here.
    pub fn found_parked(&mut self, key: &K) -> Work<M> {
        self.lane(key).parked = Some(Drain::Running);
        Work::Drain
    }

    /// The message that was being delivered is settled.
    pub fn delivered(&mut self, key: &K) -> Option<Work<M>> {
        self.lane(key).busy = false;
        self.next(key)
    }

    /// The message that was being delivered failed, and is given back to be parked.
    pub fn failed(&mut self, key: &K, message: M) -> Work<M> {
        let lane = self.lane(key);
        lane.busy = true;
        lane.parked.get_or_insert(Drain::Waiting);
        Work::Park(message)
    }

    /// The message that was being parked is stored. Gives a drain, or the next message to park, or both.
    pub fn stored(&mut self, key: &K) -> [Option<Work<M>>; 2] {
        let lane = self.lane(key);
        lane.busy = false;
        let drain = match lane.parked {
            Some(Drain::Running | Drain::Behind) => {
                lane.parked = Some(Drain::Behind);
                None
            }
            None | Some(Drain::Waiting) => {
                lane.parked = Some(Drain::Running);
                Some(Work::Drain)
            }
        };

        [drain, self.next(key)]
    }

    /// The drain found the parked subject empty.
    pub fn drained(&mut self, key: &K) -> Option<Work<M>> {
        let lane = self.lane(key);
        match lane.parked {
            Some(Drain::Behind) => {
                lane.parked = Some(Drain::Running);
                return Some(Work::Drain);
            }
            Some(Drain::Running | Drain::Waiting) if lane.busy => lane.parked = Some(Drain::Waiting),
            Some(Drain::Running | Drain::Waiting) | None => lane.parked = None,
        }

        self.next(key)
    }

    fn lane(&mut self, key: &K) -> &mut Lane<M> {
        self.lanes.entry(key.clone()).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            busy: false,
            parked: None,
        })
    }

    fn next(&mut self, key: &K) -> Option<Work<M>> {
        let lane = self.lanes.get_mut(key)?;
        if lane.busy {
            return None;
        }

        match lane.queue.pop_front() {
            Some(message) => {
                lane.busy = true;
                self.waiting -= 1;
                Some(if lane.parked.is_some() {
                    Work::Park(message)
                } else {
                    Work::Deliver(message)
                })
            }
            None => {
                if lane.parked.is_none() {
                    self.lanes.remove(key);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Numbers = Lanes<u8, u32>;

    #[test]
    fn one_at_a_time_per_destination_and_all_destinations_at_once() {
        let mut lanes = Numbers::default();
        assert_eq!(lanes.arrived(&1, 10), Some(Work::Deliver(10)));
        assert_eq!(lanes.arrived(&1, 11), None);
        assert_eq!(lanes.arrived(&2, 20), Some(Work::Deliver(20)));
        assert_eq!(lanes.waiting(), 1);
        assert_eq!(lanes.delivered(&1), Some(Work::Deliver(11)));
        assert_eq!(lanes.delivered(&1), None);
        assert_eq!(lanes.delivered(&2), None);
        assert!(lanes.lanes.is_empty(), "an idle destination costs nothing");
    }

    #[test]
    fn a_failure_parks_what_is_behind_it() {
        let mut lanes = Numbers::default();
        lanes.arrived(&1, 10);
        lanes.arrived(&1, 11);
        assert_eq!(lanes.failed(&1, 10), Work::Park(10));
        assert_eq!(lanes.stored(&1), [Some(Work::Drain), Some(Work::Park(11))]);
        assert_eq!(lanes.stored(&1), [None, None]);
        assert_eq!(lanes.drained(&1), Some(Work::Drain), "11 was stored while it ran");
        assert_eq!(lanes.drained(&1), None);
        assert_eq!(lanes.arrived(&1, 12), Some(Work::Deliver(12)));
    }

    #[test]
    fn a_drain_that_ends_while_a_message_is_being_stored_begins_again() {
        let mut lanes = Numbers::default();
        lanes.found_parked(&1);
        assert_eq!(lanes.arrived(&1, 10), Some(Work::Park(10)));
        assert_eq!(lanes.drained(&1), None);
        assert_eq!(lanes.stored(&1), [Some(Work::Drain), None]);
        assert_eq!(lanes.drained(&1), None);
        assert_eq!(lanes.parked(), 0);
    }

    #[test]
    fn a_slow_destination_is_parked_behind_the_message_that_is_under_way() {
        let mut lanes = Numbers::default();
        let most = u32::try_from(MAX_WAITING).expect("few");
        assert_eq!(lanes.arrived(&1, 0), Some(Work::Deliver(0)));

        for number in 1..=most {
            assert_eq!(lanes.arrived(&1, number), None);
            assert_eq!(lanes.parked(), 0);
        }

        assert_eq!(lanes.arrived(&1, most + 1), None, "the one before them is not over");
        assert_eq!(lanes.delivered(&1), Some(Work::Park(1)));
        assert_eq!(lanes.stored(&1), [Some(Work::Drain), Some(Work::Park(2))]);

        for number in 3..=most + 1 {
            assert_eq!(lanes.stored(&1), [None, Some(Work::Park(number))]);
        }

        assert_eq!((lanes.stored(&1), lanes.waiting()), ([None, None], 0));
        assert_eq!(lanes.drained(&1), Some(Work::Drain));
        assert_eq!(lanes.drained(&1), None);
        assert!(lanes.lanes.is_empty());
    }

    /// A world that runs the works: what is stored, what is being done, and what was settled in which order.
    #[derive(Default)]
    struct World {
        lanes: Lanes<u8, u32>,
        running: Vec<(u8, Work<u32>)>,
        stored: BTreeMap<u8, VecDeque<u32>>,
        settled: BTreeMap<u8, Vec<u32>>,
    }

    impl World {
        fn begin(&mut self, key: u8, work: impl IntoIterator<Item = Work<u32>>) {
            self.running.extend(work.into_iter().map(|work| (key, work)));
        }

        fn end(&mut self, index: usize, fails: bool) {
            let (key, work) = self.running.remove(index);
            match work {
                Work::Deliver(message) if fails => {
                    let next = self.lanes.failed(&key, message);
                    self.begin(key, [next]);
                }
                Work::Deliver(message) => {
                    self.settled.entry(key).or_default().push(message);
                    let next = self.lanes.delivered(&key);
                    self.begin(key, next);
                }
                Work::Park(message) => {
                    self.stored.entry(key).or_default().push_back(message);
                    let next = self.lanes.stored(&key);
                    self.begin(key, next.into_iter().flatten());
                }
                Work::Drain => match self.stored.entry(key).or_default().pop_front() {
                    Some(message) => {
                        self.settled.entry(key).or_default().push(message);
                        self.begin(key, [Work::Drain]);
                    }
                    None => {
                        let next = self.lanes.drained(&key);
                        self.begin(key, next);
                    }
                },
            }
        }
    }

    proptest! {
        #[test]
        fn every_message_is_settled_once_and_in_order(
            steps in proptest::collection::vec((any::<u8>(), any::<bool>(), any::<bool>()), 1..200)
        ) {
            let mut world = World::default();
            let mut sent: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
            for (number, (pick, arrives, fails)) in (0_u32..).zip(steps) {
                if arrives || world.running.is_empty() {
                    let key = pick % 3;
                    sent.entry(key).or_default().push(number);
                    let work = world.lanes.arrived(&key, number);
                    world.begin(key, work);
                } else {
                    world.end(usize::from(pick) % world.running.len(), fails);
                }
                for key in 0..3 {
                    let busy = |work: &Work<u32>| matches!(work, Work::Deliver(_) | Work::Park(_));
                    let at_once = world.running.iter().filter(|(k, work)| *k == key && busy(work)).count();
                    prop_assert!(at_once <= 1);
                }
            }
            while !world.running.is_empty() {
                world.end(0, false);
            }
            prop_assert_eq!(world.settled, sent);
            prop_assert_eq!(world.lanes.waiting(), 0);
            prop_assert!(world.lanes.lanes.is_empty());
        }
    }
}
