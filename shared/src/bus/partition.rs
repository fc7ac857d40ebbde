//! Leased partitions: each partition of a stream is handled by one replica, in order.
//!
//! Replicas announce themselves in KV `members`; [`crate::wire::partition::partition_owners`] names each partition's
//! owner. The owner holds a lease on the partition in KV `leases`, which names the owner's session there: one record
//! with a time to live of 3 s, refreshed every 0.7 s by compare-and-set, for all leases of the replica. If it cannot
//! refresh, it stops by its own monotonic deadline, counted from *before* the refresh.
//! When a partition is taken, its consumer is reset to its ack floor: messages that a dead owner had not acked are
//! delivered again at once and in order, and counting starts at consumer sequence 1. A gap in that count means that a
//! message went to a forgotten pull of another process (a stopped process whose connection is still up). Then, and on
//! every broken pull, the partition is restarted by another reset. This mechanism keeps the order; single effect never
//! depends on it.

mod ended_runs;
mod floors;
mod lease;
mod owned;
mod reading;
mod session;
mod share;
mod tenure;
mod view;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::SharedClock;
use crate::process::lifecycle::ShutdownSignal;
use crate::wire::partition::partition_owners;
use crate::wire::session_mark::GroupMember;
use crate::wire::subject::token;
use crate::wire::topology::{PARTITIONS, buckets};

use super::connect::Bus;
use super::fanout::StreamTap;
use super::kv::Kv;
use super::writer::run_name;

pub use floors::read_floors;
pub use owned::{OwnedPartition, RedeliverySource, count_unsettled};
pub use share::{ShareGroup, share_parts};
pub use tenure::PartitionLease;

use floors::PartitionFloorStore;
pub(in crate::bus) use lease::store_lease;
use lease::{HeldLease, lease_message, take};
pub(in crate::bus) use session::{LeaseSession, confirm_free};
pub(in crate::bus) use tenure::LeaseDeadline;
pub(in crate::bus) use view::GroupView;

/// Time to live of a member or a session without a refresh; whole seconds (the server's unit).
pub(super) const TTL: Duration = Duration::from_secs(3);
/// Silence after which an entry counts as gone, although its holder would refresh it all the time: no watch will
/// report its end, because its marker came and went while this replica was cut off.
const SILENCE: Duration = Duration::from_secs(12);
/// Interval at which members and sessions are refreshed.
pub(super) const TICK: Duration = Duration::from_millis(700);
/// Beginning of a session's key in KV `leases`, after the group's name and a dot.
const SESSION: &str = "session.";

/// Keeper of a partition's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettledOutcome {
    /// The server, in a durable consumer: each message is acked.
    ByServer,
    /// The owners, in a floor: for streams that keep their messages, and whose messages leave done-markers. A message
    /// that is not settled is not delivered again while its owner lives.
    ByOwner,
}

/// A group of replicas that share the partitions of a stream.
#[derive(Debug, Clone)]
pub struct PartitionGroup {
    /// Name of the group; consumers are named `{name}-{partition}` and keys `{name}.{partition}`.
    pub name: &'static str,
    /// Stream whose partitions are shared.
    pub stream: &'static str,
    /// Instance name of this replica.
    pub instance: String,
    /// Whether this replica may take part at this moment.
    pub may_join: watch::Receiver<bool>,
    /// Keeper of the partitions' progress.
    pub settled: SettledOutcome,
    /// Reader of the whole stream in this process, if there is one: with [`SettledOutcome::ByOwner`], owners take their
    /// messages from it.
    pub tap: Option<StreamTap>,
    /// Number of messages requested at once, per partition.
    pub batch: usize,
    /// Clock that measures deadlines.
    pub clock: SharedClock,
}

/// Returns the key in KV `leases` of the `session` of a replica of `group`.
fn session_key(group: &str, session: &str) -> String {
    format!("{group}.{SESSION}{session}")
}

/// Returns the key in KV `members` of the replica `instance` of `group`.
fn member_key(group: &str, instance: &str) -> String {
    format!("{group}.{}", token(instance))
}

impl PartitionGroup {
    fn member_key(&self) -> String {
        member_key(self.name, &self.instance)
    }

    fn lease_key(&self, partition: u16) -> String {
        format!("{}.{partition}", self.name)
    }
}

/// Gives back the leases in `held` of partitions that are not `wanted`.
fn give_back_unwanted(held: &mut HashMap<u16, HeldLease>, wanted: &[bool]) {
    for (partition, lease) in held {
        if wanted.get(usize::from(*partition)) != Some(&true) {
            lease.give_back();
        }
    }
}

/// Takes part in `group` until `shutdown`. Runs `handler` once for each partition while this replica owns it, and
/// again each time the partition is restarted. Returns when every handler has ended and every lease is given back.
pub async fn run<H, F>(bus: Bus, group: PartitionGroup, shutdown: ShutdownSignal, handler: H)
where
    H: Fn(OwnedPartition) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let members: Kv<GroupMember> = bus.kv(buckets::MEMBERS);
    let view = GroupView::watch_group(&bus, group.name, &group.clock);
    let group = Arc::new(group);
    let floors = Arc::new(PartitionFloorStore::new(&bus, group.name));

    // The tasks of this set end with this function.
    let _keeping = store_floors(&group, &floors);

    let mut held: HashMap<u16, HeldLease> = HashMap::new();
    let mut session: Option<LeaseSession> = None;
    let mut joined = false;
    let mut refresh_at = group.clock.monotonic();
    // Without members and leases nothing is owned yet: there is nothing to give back.
    tokio::select! {
        () = view.wait_settled() => {}
        () = shutdown.requested() => return,
    }

    loop {
        // This comes first: a process that was stopped must not continue work that another replica has taken over.
        end_lost(&mut held, &view);

        let leaving = shutdown.is_requested();
        let may_join = !leaving && *group.may_join.borrow();

        // This loop is woken not only by the clock: also by changes of the view, its own writes among them.
        let now = group.clock.monotonic();
        let is_due = now >= refresh_at;
        if is_due {
            refresh_at = now + TICK;
        }

        if is_due || may_join != joined {
            joined = announce_member(&members, &group, may_join, joined).await;
        }
        session = keep_session(session, is_due).await;

        let wanted = if may_join {
            wanted_partitions(&view, &group)
        } else {
            Vec::new()
        };
        give_back_unwanted(&mut held, &wanted);
        release_ended(&mut held, &floors).await;

        // A request sent without a connection would be served long after it is stale.
        let wanted = if bus.is_connected() { wanted } else { Vec::new() };
        let own = session.as_ref().map(LeaseSession::name);
        let free = view.free_partitions(&wanted, |partition| held.contains_key(&partition), own);
        let free = confirm_free(&bus, group.name, free).await;
        if session.is_none() && !free.is_empty() {
            session = LeaseSession::begin(&bus, group.name, group.instance.clone(), &group.clock).await;
        }

        if let Some(session) = &session {
            let taken = free.into_iter().map(|free| {
                let of_session = (session.name().to_owned(), session.deadline().clone());
                let (group, floors) = (Arc::clone(&group), Arc::clone(&floors));
                take(bus.clone(), group, floors, (free, of_session), handler.clone())
            });
            let taken = join_all(taken).await.into_iter().flatten();
            held.extend(taken.map(|lease| (lease.partition(), lease)));
        }

        report_held(&group, &held);

        if leaving && held.is_empty() {
            if let Some(session) = session {
                session.end().await;
            }
            return;
        }

        tokio::select! {
            () = crate::clock::pause(refresh_at.saturating_duration_since(group.clock.monotonic())) => {}
            () = view.wait_changed() => {}
            () = HeldLease::any_over(&held) => {}
            () = shutdown.requested(), if !leaving => {}
        }
    }
}

/// Ends the leases whose session is over, and those that another replica has taken.
fn end_lost(held: &mut HashMap<u16, HeldLease>, view: &GroupView) {
    for (partition, lease) in held {
        if view.is_lost(partition, lease.revision()) {
            lease.note_loss();
        }
        lease.end_if_over();
    }
}

/// Refreshes `session` if it `is_due`. Returns `None` if there is none or it is over.
async fn keep_session(session: Option<LeaseSession>, is_due: bool) -> Option<LeaseSession> {
    let mut session = session?;
    if is_due {
        session.refresh().await;
    }
    session.deadline().is_live().then_some(session)
}

/// Tells the metrics and the tap which partitions this replica holds.
fn report_held(group: &PartitionGroup, held: &HashMap<u16, HeldLease>) {
    metrics::gauge!("nexus_partitions_held", "group" => group.name).set(held.len() as f64);
    if let Some(tap) = &group.tap {
        let mut partitions: Vec<u16> = held.keys().copied().collect();
        partitions.sort_unstable();
        tap.note_held(partitions);
    }
}

/// Starts to store the floors of `group`, if its owners keep them, until the set is dropped.
fn store_floors(group: &PartitionGroup, floors: &Arc<PartitionFloorStore>) -> JoinSet<()> {
    let mut keeping = JoinSet::new();
    if group.settled == SettledOutcome::ByOwner {
        let floors = Arc::clone(floors);
        keeping.spawn(async move { floors.run_storing().await });
    }
    keeping
}

/// Gives back the leases whose handlers have ended, and drops those that are over.
async fn release_ended(held: &mut HashMap<u16, HeldLease>, floors: &PartitionFloorStore) {
    let mut any_ended = false;
    for lease in held.values_mut() {
        any_ended |= lease.note_end();
    }

    // The next owner starts at the floor; if that is not stored, it has to look up more done-markers.
    if any_ended && tokio::time::timeout(TICK, floors.store_moved()).await.is_err() {
        tracing::debug!("failed to store floors at shutdown");
    }

    join_all(held.values_mut().map(HeldLease::settle_end)).await;
    held.retain(|partition, lease| {
        if lease.is_over() {
            floors.forget_partition(*partition);
        }
        !lease.is_over()
    });
}

/// Returns for each partition, by index, whether this replica should hold it according to the members it knows.
fn wanted_partitions(view: &GroupView, group: &PartitionGroup) -> Vec<bool> {
    let mut members = view.live_members();
    let me = token(&group.instance);
    if !members.contains(&me) {
        members.push(me.clone());
    }
    partition_owners(PARTITIONS, &members)
        .into_iter()
        .map(|owner| owner == me)
        .collect()
}

/// Announces that this replica takes part, or no longer does. Returns whether it is announced now.
async fn announce_member(members: &Kv<GroupMember>, group: &PartitionGroup, may_join: bool, joined: bool) -> bool {
    let key = group.member_key();
    if may_join {
        let member = GroupMember {
            instance: group.instance.clone(),
            run: run_name(),
        };
        let said = tokio::time::timeout(TICK, members.put_ttl(&key, &member, TTL)).await;
        return joined || matches!(said, Ok(Ok(_)));
    }

    if joined {
        let said = tokio::time::timeout(TICK, members.delete(&key, None)).await;
        return !matches!(said, Ok(Ok(())));
    }

    false
}
