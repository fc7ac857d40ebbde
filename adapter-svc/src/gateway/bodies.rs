//! Limits for bodies: the memory that they may use together, and their minimum speed. *Pure.*
//!
//! If the budget is used up, the oldest arriving body of the address that uses most of it is given up. If that
//! address is the one that needs more, it is refused. One client therefore cannot use the memory of the others.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::pace::address_block;

/// Minimum average speed of a body, in bytes per second.
pub const MIN_BYTES_PER_SECOND: u32 = 1_024;
/// Maximum pause of an arriving body. A client that was fast cannot accumulate more time than this.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Number of a body, counted from the start of the process.
pub type BodyId = u64;

/// The error if there is no memory for more of this client's bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// The memory used by requests.
#[derive(Debug)]
pub struct BodyMemory {
    max_bytes: usize,
    bytes: usize,
    held: BTreeMap<BodyId, Held>,
    /// Number of bytes by address.
    of: HashMap<IpAddr, usize>,
    next: BodyId,
}

#[derive(Debug)]
struct Held {
    block: IpAddr,
    bytes: usize,
    arriving: bool,
}

impl BodyMemory {
    /// Creates an empty budget of `max_bytes`.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            bytes: 0,
            held: BTreeMap::new(),
            of: HashMap::new(),
            next: 0,
        }
    }

    /// Returns the number of bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a request of `from` that uses no memory yet.
    pub fn open(&mut self, from: IpAddr) -> BodyId {
        let id = self.next;
        self.next += 1;
        let held = Held {
            block: address_block(from),
            bytes: 0,
            arriving: true,
        };
        self.held.insert(id, held);
        id
    }

    /// Adds `more` bytes to `id`. Returns the bodies that must be given up for it, whose bytes are already free.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if no other address can give up a body, or `id` was given up itself.
    pub fn reserve_more(&mut self, id: BodyId, more: usize) -> Result<Vec<BodyId>, NoRoom> {
        let Some(own) = self.held.get(&id).map(|held| held.block) else {
            return Err(NoRoom);
        };

        let mut given_up = Vec::new();
        // Only an address that uses at least as much as this one would may lose a body.
        while self.bytes.saturating_add(more) > self.max_bytes {
            let wanted = self.of.get(&own).copied().unwrap_or(0).saturating_add(more);
            let Some(victim) = self.find_victim(id, own, wanted) else {
                return Err(NoRoom);
            };
            self.close(victim);
            given_up.push(victim);
        }

        if let Some(held) = self.held.get_mut(&id) {
            held.bytes += more;
            self.bytes += more;
            *self.of.entry(own).or_default() += more;
        }

        Ok(given_up)
    }

    /// Returns the oldest arriving body of the address that uses most, if that is not `own` and uses at least
    /// `wanted`.
    fn find_victim(&self, id: BodyId, own: IpAddr, wanted: usize) -> Option<BodyId> {
        let arriving = self
            .held
            .iter()
            .filter(|(other, held)| **other != id && held.arriving && held.bytes > 0);
        let of = |block: &IpAddr| self.of.get(block).copied().unwrap_or(0);
        let most = arriving.max_by_key(|(other, held)| (of(&held.block), std::cmp::Reverse(**other)))?;
        (most.1.block != own && of(&most.1.block) >= wanted).then_some(*most.0)
    }

    /// Marks the body as complete: it is not given up any more.
    pub fn mark_arrived(&mut self, id: BodyId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.arriving = false;
        }
    }

    /// Releases the bytes of `id`.
    pub fn close(&mut self, id: BodyId) {
        let Some(held) = self.held.remove(&id) else {
            return;
        };
        self.bytes -= held.bytes;

        if let Some(bytes) = self.of.get_mut(&held.block) {
            *bytes -= held.bytes;
            if *bytes == 0 {
                self.of.remove(&held.block);
            }
        }
    }
}

/// The deadline for the next part of a body.
#[derive(Debug, Clone, Copy)]
pub struct BodyDeadline(Instant);

impl BodyDeadline {
    /// Returns the deadline of a body that starts to arrive at `now`.
    #[must_use]
    pub fn start_at(now: Instant) -> Self {
        Self(now + PATIENCE)
    }

    /// Extends the deadline for `bytes` that arrived at `now`.
    pub fn note_bytes(&mut self, bytes: usize, now: Instant) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let earned = Duration::from_secs(1) * bytes / MIN_BYTES_PER_SECOND;
        self.0 = (self.0 + earned).min(now + PATIENCE);
    }

    /// Returns the time left for the next part.
    #[must_use]
    pub fn time_left(&self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock, SystemClock};

    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn the_address_that_holds_the_most_gives_way() {
        let mut bodies = BodyMemory::new(100);
        let [greedy, second, honest] = [(1, 50), (1, 30), (2, 20)].map(|(from, bytes)| {
            let id = bodies.open(address(from));
            assert_eq!(bodies.reserve_more(id, bytes), Ok(Vec::new()));
            id
        });

        assert_eq!(bodies.reserve_more(honest, 10), Ok(vec![greedy]), "its oldest goes");
        assert_eq!(bodies.bytes(), 60);
        assert_eq!(bodies.reserve_more(greedy, 1), Err(NoRoom), "it was given up");
        assert_eq!(
            bodies.reserve_more(second, 60),
            Err(NoRoom),
            "who holds the most gets no more"
        );
        assert_eq!(bodies.reserve_more(second, 40), Ok(Vec::new()));

        bodies.mark_arrived(second);
        assert_eq!(
            bodies.reserve_more(honest, 10),
            Err(NoRoom),
            "what has come is not given up"
        );

        bodies.close(second);
        assert_eq!(bodies.reserve_more(honest, 70), Ok(Vec::new()));

        bodies.close(honest);
        assert_eq!((bodies.bytes(), bodies.held.len(), bodies.of.len()), (0, 0, 0));
    }

    #[test]
    fn several_give_way_for_one_and_a_block_is_one_address() {
        let mut bodies = BodyMemory::new(100);
        let small: Vec<_> = (0..10)
            .map(|host| {
                let id = bodies.open(format!("2001:db8::{host}").parse().expect("an address"));
                assert_eq!(bodies.reserve_more(id, 10), Ok(Vec::new()));
                id
            })
            .collect();

        let honest = bodies.open(address(1));
        assert_eq!(bodies.reserve_more(honest, 30), Ok(small[..3].to_vec()));
        assert_eq!(
            bodies.reserve_more(honest, 100),
            Err(NoRoom),
            "larger than all there is"
        );
    }

    #[test]
    fn a_body_must_come_with_a_kibibyte_a_second() {
        let begun = SystemClock.monotonic();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut body = BodyDeadline::start_at(begun);

        assert_eq!(body.time_left(at(1_000)), Duration::from_secs(4));

        for second in 1..60 {
            body.note_bytes(1_024, at(second * 1_000));
            assert_eq!(body.time_left(at(second * 1_000)), PATIENCE, "as fast as it must");
        }

        body.note_bytes(10_000_000, at(60_000));
        assert_eq!(body.time_left(at(60_000)), PATIENCE, "nothing is saved up");

        for step in 1..=9 {
            body.note_bytes(1, at(60_000 + step * 500));
        }

        assert!(
            body.time_left(at(64_500)) < Duration::from_millis(520),
            "a byte is no sign of life"
        );
        assert_eq!(body.time_left(at(65_100)), Duration::ZERO);
    }
}
