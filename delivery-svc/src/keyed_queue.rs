//! Ordering within each destination, and none between destinations. *Pure.*
//!
//! Each destination is a lane, whose messages are delivered one after the other while all succeed. The first failure,
//! or too many waiting messages, parks the lane: the failed message and all messages behind it are stored on the
//! destination's own subject, in order, and acknowledged, so that retries never hold up the partition. A drain
//! processes that subject from its head. The lane is open again once a drain finds the subject empty and nothing was
//! stored in the meantime.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Maximum number of messages that wait behind the running one. With more, the lane is parked, so that a slow
/// destination does not use up its partition's limits.
pub const MAX_WAITING: usize = 128;

/// The next work for a destination. The caller reports its end with [`KeyedQueue::on_delivered`] and the methods after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneWork<M> {
    /// Deliver this message.
    Deliver(M),
    /// Store this message on the destination's parked subject.
    Park(M),
    /// Process the destination's parked subject until it is empty.
    Drain,
}

#[derive(Debug)]
struct Lane<M> {
    queue: VecDeque<M>,
    /// Whether one of its messages is being delivered or parked.
    busy: bool,
    /// State of the drain; `None` = the lane is open.
    parked: Option<Drain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// No drain runs; nothing is known to be stored yet.
    Waiting,
    /// A drain runs, and nothing was stored since it started.
    Running,
    /// A drain runs, and something was stored since it started, which it may have missed.
    Behind,
}

/// All destinations with work.
#[derive(Debug)]
pub struct KeyedQueue<K, M> {
    lanes: HashMap<K, Lane<M>>,
    waiting: usize,
}

impl<K: Eq + Hash + Clone, M> Default for KeyedQueue<K, M> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            waiting: 0,
        }
    }
}

impl<K: Eq + Hash + Clone, M> KeyedQueue<K, M> {
    /// Returns the number of messages that wait for one before them.
    #[must_use]
    pub const fn waiting_count(&self) -> usize {
        self.waiting
    }

    /// Returns the number of parked destinations.
    #[must_use]
    pub fn parked_count(&self) -> usize {
        self.lanes.values().filter(|lane| lane.parked.is_some()).count()
    }

    /// Returns the waiting messages.
    pub fn queued_messages(&self) -> impl Iterator<Item = &M> {
        self.lanes.values().flat_map(|lane| &lane.queue)
    }

    /// Adds `message` for the destination `key`. Returns the next work.
    pub fn on_arrival(&mut self, key: &K, message: M) -> Option<LaneWork<M>> {
        self.waiting += 1;
        let lane = self.lane_mut(key);
        lane.queue.push_back(message);
        if lane.queue.len() > MAX_WAITING {
            lane.parked.get_or_insert(Drain::Waiting);
        }
        self.next(key)
    }

    /// Marks a destination that already has parked messages, before its first message arrives.
    pub fn found_parked(&mut self, key: &K) -> LaneWork<M> {
        self.lane_mut(key).parked = Some(Drain::Running);
        LaneWork::Drain
    }

    /// Reports that the running message is settled. Returns the next work.
    pub fn on_delivered(&mut self, key: &K) -> Option<LaneWork<M>> {
        self.lane_mut(key).busy = false;
        self.next(key)
    }

    /// Reports that the running message failed, and returns the work of parking it.
    pub fn on_failed(&mut self, key: &K, message: M) -> LaneWork<M> {
        let lane = self.lane_mut(key);
        lane.busy = true;
        lane.parked.get_or_insert(Drain::Waiting);
        LaneWork::Park(message)
    }

    /// Reports that a message was parked. Returns a drain, or the next message to park, or both.
    pub fn on_stored(&mut self, key: &K) -> [Option<LaneWork<M>>; 2] {
        let lane = self.lane_mut(key);
        lane.busy = false;
        let drain = match lane.parked {
            Some(Drain::Running | Drain::Behind) => {
                lane.parked = Some(Drain::Behind);
                None
            }
            None | Some(Drain::Waiting) => {
                lane.parked = Some(Drain::Running);
                Some(LaneWork::Drain)
            }
        };

        [drain, self.next(key)]
    }

    /// Reports that the drain found the parked subject empty. Returns the next work.
    pub fn on_drained(&mut self, key: &K) -> Option<LaneWork<M>> {
        let lane = self.lane_mut(key);
        match lane.parked {
            Some(Drain::Behind) => {
                lane.parked = Some(Drain::Running);
                return Some(LaneWork::Drain);
            }
            Some(Drain::Running | Drain::Waiting) if lane.busy => lane.parked = Some(Drain::Waiting),
            Some(Drain::Running | Drain::Waiting) | None => lane.parked = None,
        }

        self.next(key)
    }

    fn lane_mut(&mut self, key: &K) -> &mut Lane<M> {
        self.lanes.entry(key.clone()).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            busy: false,
            parked: None,
        })
    }

    fn next(&mut self, key: &K) -> Option<LaneWork<M>> {
        let lane = self.lanes.get_mut(key)?;
        // One message of a destination at a time keeps their order.
        if lane.busy {
            return None;
        }

        match lane.queue.pop_front() {
            Some(message) => {
                lane.busy = true;
                self.waiting -= 1;
                // Once a destination has parked a reply, the later ones must follow it.
                Some(if lane.parked.is_some() {
                    LaneWork::Park(message)
                } else {
                    LaneWork::Deliver(message)
                })
            }
            None => {
                // A parked lane is kept, because its drain has not reported yet.
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

    type Numbers = KeyedQueue<u8, u32>;

    #[test]
    fn one_at_a_time_per_destination_and_all_destinations_at_once() {
        let mut lanes = Numbers::default();
        assert_eq!(lanes.on_arrival(&1, 10), Some(LaneWork::Deliver(10)));
        assert_eq!(lanes.on_arrival(&1, 11), None);
        assert_eq!(lanes.on_arrival(&2, 20), Some(LaneWork::Deliver(20)));
        assert_eq!(lanes.waiting_count(), 1);
        assert_eq!(lanes.on_delivered(&1), Some(LaneWork::Deliver(11)));
        assert_eq!(lanes.on_delivered(&1), None);
        assert_eq!(lanes.on_delivered(&2), None);
        assert!(lanes.lanes.is_empty(), "an idle destination costs nothing");
    }

    #[test]
    fn a_failure_parks_what_is_behind_it() {
        let mut lanes = Numbers::default();
        lanes.on_arrival(&1, 10);
        lanes.on_arrival(&1, 11);
        assert_eq!(lanes.on_failed(&1, 10), LaneWork::Park(10));
        assert_eq!(lanes.on_stored(&1), [Some(LaneWork::Drain), Some(LaneWork::Park(11))]);
        assert_eq!(lanes.on_stored(&1), [None, None]);
        assert_eq!(
            lanes.on_drained(&1),
            Some(LaneWork::Drain),
            "11 was stored while it ran"
        );
        assert_eq!(lanes.on_drained(&1), None);
        assert_eq!(lanes.on_arrival(&1, 12), Some(LaneWork::Deliver(12)));
    }

    #[test]
    fn a_drain_that_ends_while_a_message_is_being_stored_begins_again() {
        let mut lanes = Numbers::default();
        lanes.found_parked(&1);
        assert_eq!(lanes.on_arrival(&1, 10), Some(LaneWork::Park(10)));
        assert_eq!(lanes.on_drained(&1), None);
        assert_eq!(lanes.on_stored(&1), [Some(LaneWork::Drain), None]);
        assert_eq!(lanes.on_drained(&1), None);
        assert_eq!(lanes.parked_count(), 0);
    }

    #[test]
    fn a_slow_destination_is_parked_behind_the_message_that_is_under_way() {
        let mut lanes = Numbers::default();
        let most = u32::try_from(MAX_WAITING).expect("few");
        assert_eq!(lanes.on_arrival(&1, 0), Some(LaneWork::Deliver(0)));

        for number in 1..=most {
            assert_eq!(lanes.on_arrival(&1, number), None);
            assert_eq!(lanes.parked_count(), 0);
        }

        assert_eq!(lanes.on_arrival(&1, most + 1), None, "the one before them is not over");
        assert_eq!(lanes.on_delivered(&1), Some(LaneWork::Park(1)));
        assert_eq!(lanes.on_stored(&1), [Some(LaneWork::Drain), Some(LaneWork::Park(2))]);

        for number in 3..=most + 1 {
            assert_eq!(lanes.on_stored(&1), [None, Some(LaneWork::Park(number))]);
        }

        assert_eq!((lanes.on_stored(&1), lanes.waiting_count()), ([None, None], 0));
        assert_eq!(lanes.on_drained(&1), Some(LaneWork::Drain));
        assert_eq!(lanes.on_drained(&1), None);
        assert!(lanes.lanes.is_empty());
    }

    /// A simulation that runs the works: it records the stored messages, the running works, and the order of
    /// settling.
    #[derive(Default)]
    struct World {
        lanes: KeyedQueue<u8, u32>,
        running: Vec<(u8, LaneWork<u32>)>,
        stored: BTreeMap<u8, VecDeque<u32>>,
        settled: BTreeMap<u8, Vec<u32>>,
    }

    impl World {
        fn begin(&mut self, key: u8, work: impl IntoIterator<Item = LaneWork<u32>>) {
            self.running.extend(work.into_iter().map(|work| (key, work)));
        }

        fn end(&mut self, index: usize, fails: bool) {
            let (key, work) = self.running.remove(index);
            match work {
                LaneWork::Deliver(message) if fails => {
                    let next = self.lanes.on_failed(&key, message);
                    self.begin(key, [next]);
                }
                LaneWork::Deliver(message) => {
                    self.settled.entry(key).or_default().push(message);
                    let next = self.lanes.on_delivered(&key);
                    self.begin(key, next);
                }
                LaneWork::Park(message) => {
                    self.stored.entry(key).or_default().push_back(message);
                    let next = self.lanes.on_stored(&key);
                    self.begin(key, next.into_iter().flatten());
                }
                LaneWork::Drain => match self.stored.entry(key).or_default().pop_front() {
                    Some(message) => {
                        self.settled.entry(key).or_default().push(message);
                        self.begin(key, [LaneWork::Drain]);
                    }
                    None => {
                        let next = self.lanes.on_drained(&key);
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
                    let work = world.lanes.on_arrival(&key, number);
                    world.begin(key, work);
                } else {
                    world.end(usize::from(pick) % world.running.len(), fails);
                }
                for key in 0..3 {
                    let busy = |work: &LaneWork<u32>| matches!(work, LaneWork::Deliver(_) | LaneWork::Park(_));
                    let at_once = world.running.iter().filter(|(k, work)| *k == key && busy(work)).count();
                    prop_assert!(at_once <= 1);
                }
            }
            while !world.running.is_empty() {
                world.end(0, false);
            }
            prop_assert_eq!(world.settled, sent);
            prop_assert_eq!(world.lanes.waiting_count(), 0);
            prop_assert!(world.lanes.lanes.is_empty());
        }
    }
}
