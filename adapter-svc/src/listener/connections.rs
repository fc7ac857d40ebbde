//! The table of open connections, with the limits per address and the order of ending under pressure. *Pure.*
//!
//! A connection without a request in progress can be ended at any time without a cost for its client. If there is no
//! place, the address with the most connections loses one: the oldest without a complete head, otherwise the oldest
//! whose request is still arriving or whose response is not being read. A client that is the only one at its address
//! therefore keeps its connection, however many connections others open.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::gateway::pace::address_block;

/// Number of a connection, counted from the start of the process.
pub type ConnectionId = u64;
/// Number of a request, counted from the start of the process.
pub type RequestId = u64;

/// The limits of the table.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    pub total: usize,
    /// Maximum number of connections per address (IPv6: per /64).
    pub per_address: usize,
    /// Maximum time of a connection without a complete head, from its start and between requests.
    pub head: Duration,
    /// Maximum time for a client to read one response.
    pub answer: Duration,
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestProgress {
    /// The body is still arriving.
    Receiving,
    /// The request is being handled.
    Working,
    /// The response is being sent.
    Answering,
}

/// The result of [`ConnectionTable::admit_connection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionAdmission {
    /// The connection is in the table; `instead_of` must be ended for it.
    Admitted {
        /// Number of the new connection.
        id: ConnectionId,
        /// Connection that lost its place.
        instead_of: Option<ConnectionId>,
    },
    /// Every connection that could give up its place has a request in progress.
    Full,
}

/// The table of open connections.
#[derive(Debug)]
pub struct ConnectionTable {
    limits: ConnectionLimits,
    open: HashMap<ConnectionId, Connection>,
    /// Connections by address; those of trusted proxies are together under `None`.
    addresses: HashMap<Option<IpAddr>, Address>,
    /// First turn of each address, those with the most connections first, so that the address of a flood is found at
    /// once.
    first: BTreeSet<(Reverse<usize>, Turn, Option<IpAddr>)>,
    next_connection: ConnectionId,
    next_request: RequestId,
}

/// The order in which connections are ended: by rank, then by age.
type Turn = (Rank, Instant, ConnectionId);

/// The connections of an address.
#[derive(Debug, Default)]
struct Address {
    count: usize,
    /// Turns of the connections that may be ended.
    turns: BTreeSet<Turn>,
}

#[derive(Debug)]
struct Connection {
    /// Address for which it counts; `None` for a trusted proxy.
    block: Option<IpAddr>,
    /// Time since which it has no request: it was accepted, or its last request ended.
    idle_since: Instant,
    /// Requests with a complete head, each with its progress and the time of the last change.
    requests: BTreeMap<RequestId, (RequestProgress, Instant)>,
}

/// The rank of a connection; lower ranks are ended first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    NoHead,
    Unfinished,
}

impl Connection {
    /// Returns its rank and age; `None` if a request is in progress.
    fn rank_and_age(&self) -> Option<(Rank, Instant)> {
        let mut oldest = None;
        for (progress, since) in self.requests.values() {
            match progress {
                RequestProgress::Working => return None,
                RequestProgress::Receiving | RequestProgress::Answering => {
                    oldest = Some(oldest.map_or(*since, |oldest: Instant| oldest.min(*since)));
                }
            }
        }

        match oldest {
            None => Some((Rank::NoHead, self.idle_since)),
            Some(since) => Some((Rank::Unfinished, since)),
        }
    }
}

impl ConnectionTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            open: HashMap::new(),
            addresses: HashMap::new(),
            first: BTreeSet::new(),
            next_connection: 0,
            next_request: 0,
        }
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns whether no connection is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds a connection from `from`, if necessary in place of another one. Connections of a trusted proxy belong to
    /// many clients, so only the total limits them.
    pub fn admit_connection(&mut self, from: IpAddr, trusted: bool, now: Instant) -> ConnectionAdmission {
        // An IPv6 client usually has a whole block of addresses, which counts as one.
        let block = (!trusted).then(|| address_block(from));
        let held = block.map_or(0, |_| self.addresses.get(&block).map_or(0, |address| address.count));

        // An address at its own limit loses one of its own connections, not another address's.
        let victim = if held >= self.limits.per_address {
            let Some(victim) = self.find_victim(block) else {
                return ConnectionAdmission::Full;
            };
            Some(victim)
        } else if self.open.len() >= self.limits.total {
            let Some(victim) = self.find_victim(None) else {
                return ConnectionAdmission::Full;
            };
            Some(victim)
        } else {
            None
        };

        // The victim is removed here; its task closes the connection.
        if let Some(victim) = victim {
            self.remove(victim);
        }

        let id = self.next_connection;
        self.next_connection += 1;
        let connection = Connection {
            block,
            idle_since: now,
            requests: BTreeMap::new(),
        };

        // The place of the address in the list follows from its number of connections, which changes here.
        self.unlist_address(block);
        let address = self.addresses.entry(block).or_default();
        address.count += 1;
        address
            .turns
            .extend(connection.rank_and_age().map(|(rank, since)| (rank, since, id)));
        self.open.insert(id, connection);
        self.list(block);

        ConnectionAdmission::Admitted { id, instead_of: victim }
    }

    /// Removes the connection that is first to be ended, for example because the system has no file handle left.
    pub fn evict_connection(&mut self) -> Option<ConnectionId> {
        let victim = self.find_victim(None)?;
        self.remove(victim);
        Some(victim)
    }

    /// Returns the connection that is first to be ended, of the address `only` if it is given.
    fn find_victim(&self, only: Option<IpAddr>) -> Option<ConnectionId> {
        let (_, _, id) = match only {
            Some(_) => self.addresses.get(&only)?.turns.first()?,
            None => self.first.first().map(|(_, turn, _)| turn)?,
        };
        Some(*id)
    }

    /// Returns the position of the address `block` among all; `None` if none of its connections may be ended.
    fn address_place(&self, block: Option<IpAddr>) -> Option<(Reverse<usize>, Turn, Option<IpAddr>)> {
        let address = self.addresses.get(&block)?;
        // Each connection of a trusted proxy counts as one of a separate client.
        let held = block.map_or(1, |_| address.count);
        Some((Reverse(held), *address.turns.first()?, block))
    }

    fn unlist_address(&mut self, block: Option<IpAddr>) {
        if let Some(place) = self.address_place(block) {
            self.first.remove(&place);
        }
    }

    fn list(&mut self, block: Option<IpAddr>) {
        self.first.extend(self.address_place(block));
    }

    /// Removes a connection that ended.
    pub fn remove(&mut self, id: ConnectionId) {
        let Some(connection) = self.open.remove(&id) else {
            return;
        };
        let block = connection.block;
        self.unlist_address(block);

        if let Some(address) = self.addresses.get_mut(&block) {
            if let Some((rank, since)) = connection.rank_and_age() {
                address.turns.remove(&(rank, since, id));
            }
            address.count -= 1;

            if address.count == 0 {
                self.addresses.remove(&block);
            }
        }

        self.list(block);
    }

    /// Changes the state of the connection `id`, and its turn with it.
    fn change_progress(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        let Some(block) = self.open.get(&id).map(|connection| connection.block) else {
            return;
        };
        self.unlist_address(block);

        if let (Some(connection), Some(address)) = (self.open.get_mut(&id), self.addresses.get_mut(&block)) {
            if let Some((rank, since)) = connection.rank_and_age() {
                address.turns.remove(&(rank, since, id));
            }
            change(connection);
            let turn = connection.rank_and_age().map(|(rank, since)| (rank, since, id));
            address.turns.extend(turn);
        }

        self.list(block);
    }

    /// Records that the head of a request is complete.
    pub fn begin_request(&mut self, id: ConnectionId, now: Instant) -> RequestId {
        let request = self.next_request;
        self.next_request += 1;
        self.advance_request(id, request, RequestProgress::Working, now);
        request
    }

    /// Records the progress of a request.
    pub fn advance_request(&mut self, id: ConnectionId, request: RequestId, progress: RequestProgress, now: Instant) {
        self.change_progress(id, |connection| {
            connection.requests.insert(request, (progress, now));
        });
    }

    /// Records that the response to a request was sent.
    pub fn finish_request(&mut self, id: ConnectionId, request: RequestId, now: Instant) {
        self.change_progress(id, |connection| {
            connection.requests.remove(&request);
            connection.idle_since = now;
        });
    }

    /// Returns the time by which the connection must make progress; `None` if only a request can be late.
    #[must_use]
    pub fn connection_deadline(&self, id: ConnectionId) -> Option<Instant> {
        let connection = self.open.get(&id)?;
        if connection.requests.is_empty() {
            return Some(connection.idle_since + self.limits.head);
        }
        let answering = connection
            .requests
            .values()
            .filter(|(progress, _)| *progress == RequestProgress::Answering);
        answering.map(|(_, since)| *since + self.limits.answer).min()
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock, SystemClock};

    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        total: 4,
        per_address: 3,
        head: Duration::from_secs(10),
        answer: Duration::from_secs(30),
    };

    /// A table with the clock of its test.
    struct Table {
        connections: ConnectionTable,
        begun: Instant,
    }

    impl Table {
        fn new() -> Self {
            Self {
                connections: ConnectionTable::new(LIMITS),
                begun: SystemClock.monotonic(),
            }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.begun + Duration::from_secs(seconds)
        }

        /// Admits a connection that is not trusted.
        fn admit(&mut self, from: &str, seconds: u64) -> ConnectionAdmission {
            let at = self.at(seconds);
            self.connections
                .admit_connection(from.parse().expect("an address"), false, at)
        }
    }

    fn admitted(id: ConnectionId, instead_of: impl Into<Option<ConnectionId>>) -> ConnectionAdmission {
        let instead_of = instead_of.into();
        ConnectionAdmission::Admitted { id, instead_of }
    }

    #[test]
    fn an_address_at_its_bound_loses_its_own_oldest() {
        let mut table = Table::new();
        for id in 0..3 {
            assert_eq!(table.admit("192.0.2.1", id), admitted(id, None));
        }
        assert_eq!(table.admit("192.0.2.1", 3), admitted(3, 0));
        assert_eq!(table.admit("192.0.2.2", 4), admitted(4, None));
        assert_eq!(table.connections.len(), 4);
    }

    #[test]
    fn a_block_of_ipv6_is_one_address_and_a_trusted_proxy_is_none() {
        let mut table = Table::new();
        for id in 0..3 {
            assert_eq!(table.admit(&format!("2001:db8::{id}"), id), admitted(id, None));
        }

        assert_eq!(table.admit("2001:db8::99", 3), admitted(3, 0));

        let mut table = Table::new();
        let proxy = "10.0.0.1".parse().expect("an address");
        for id in 0..4 {
            let at = table.at(id);
            assert_eq!(table.connections.admit_connection(proxy, true, at), admitted(id, None));
        }

        assert_eq!(table.admit("192.0.2.1", 9), admitted(4, 0), "the total holds for all");
    }

    #[test]
    fn whoever_is_alone_at_an_address_keeps_its_connection() {
        let mut table = Table::new();
        assert_eq!(table.admit("192.0.2.9", 0), admitted(0, None));
        for id in 1..4 {
            assert_eq!(table.admit("192.0.2.1", id), admitted(id, None));
        }
        assert_eq!(table.admit("192.0.2.2", 4), admitted(4, 1), "not the oldest of all");
        assert_eq!(table.admit("192.0.2.3", 5), admitted(5, 2));
        assert_eq!(table.admit("192.0.2.4", 6), admitted(6, 0), "one each: the oldest");
    }

    #[test]
    fn a_request_being_worked_on_is_never_ended_and_a_half_sent_one_after_those_without_a_head() {
        let mut table = Table::new();
        for id in 0..4 {
            table.admit(&format!("192.0.2.{id}"), id);
        }

        let half = table.connections.begin_request(0, table.at(4));
        table
            .connections
            .advance_request(0, half, RequestProgress::Receiving, table.at(4));
        let worked = table.connections.begin_request(1, table.at(4));

        assert_eq!(table.admit("192.0.2.10", 5), admitted(4, 2));
        assert_eq!(table.admit("192.0.2.11", 6), admitted(5, 3));

        for id in [4, 5] {
            table.connections.begin_request(id, table.at(7));
        }

        assert_eq!(table.admit("192.0.2.12", 8), admitted(6, 0), "its body had not come");

        table.connections.begin_request(6, table.at(9));
        assert_eq!(table.admit("192.0.2.13", 9), ConnectionAdmission::Full);

        table.connections.finish_request(1, worked, table.at(10));
        assert_eq!(table.connections.evict_connection(), Some(1));
        assert_eq!(table.connections.evict_connection(), None);
    }

    #[test]
    fn a_head_and_an_answer_have_a_deadline_and_work_has_none() {
        let mut table = Table::new();
        table.admit("192.0.2.1", 0);
        assert_eq!(
            table.connections.connection_deadline(0),
            Some(table.at(10)),
            "from the first moment"
        );

        let one = table.connections.begin_request(0, table.at(5));
        assert_eq!(table.connections.connection_deadline(0), None);

        table
            .connections
            .advance_request(0, one, RequestProgress::Answering, table.at(6));
        let two = table.connections.begin_request(0, table.at(7));
        assert_eq!(
            table.connections.connection_deadline(0),
            Some(table.at(36)),
            "whatever else is asked"
        );

        table.connections.finish_request(0, one, table.at(8));
        assert_eq!(table.connections.connection_deadline(0), None);

        table.connections.finish_request(0, two, table.at(9));
        assert_eq!(
            table.connections.connection_deadline(0),
            Some(table.at(19)),
            "between requests as well"
        );

        table.connections.remove(0);
        assert!(
            table.connections.is_empty()
                && table.connections.addresses.is_empty()
                && table.connections.first.is_empty()
        );
    }

    /// Returns the connection that ends first, by a search through all of them.
    fn by_looking(connections: &ConnectionTable) -> Option<ConnectionId> {
        let held = |block: Option<IpAddr>| block.map_or(1, |_| connections.addresses[&block].count);
        let turns = connections.open.iter().filter_map(|(id, of)| {
            let (rank, since) = of.rank_and_age()?;
            Some((Reverse(held(of.block)), rank, since, *id))
        });
        turns.min().map(|(.., id)| id)
    }

    proptest::proptest! {
        #[test]
        fn whoever_ends_first_is_known_without_looking_at_all(steps in proptest::collection::vec((0_u8..6, 0_u64..12), 1..80)) {
            let mut table = Table::new();
            let mut begun = Vec::new();
            for (second, (what, which)) in (0..).zip(steps) {
                let at = table.at(second / 3);
                match what {
                    0 | 1 => {
                        let from = IpAddr::from([192, 0, 2, u8::try_from(which % 3).expect("few")]);
                        table.connections.admit_connection(from, which > 9, at);
                    }
                    2 => begun.push((which, table.connections.begin_request(which, at))),
                    3 => {
                        let progress = [RequestProgress::Receiving, RequestProgress::Answering][usize::from(which > 5)];
                        for (id, request) in &begun {
                            table.connections.advance_request(*id, *request, progress, at);
                        }
                    }
                    4 => {
                        if let Some((id, request)) = begun.pop() {
                            table.connections.finish_request(id, request, at);
                        }
                    }
                    _ => table.connections.remove(which),
                }
                proptest::prop_assert_eq!(table.connections.find_victim(None), by_looking(&table.connections));
            }
        }
    }
}
