//! Leased partitions: each partition of a stream is handled by one replica, in order.
//!
//! Replicas announce themselves in KV `members`; [`crate::wire::partition::partition_owners`] names each partition's
//! owner. The owner holds a lease on the partition in KV `leases` (time to live 3 s, refreshed every 0.7 s by
//! compare-and-set). If it cannot refresh, it stops by its own monotonic deadline, counted from *before* the refresh.
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
pub(in crate::bus) use lease::lease_message;
use lease::{HeldLease, take};
pub(in crate::bus) use tenure::LeaseDeadline;
use view::GroupView;

/// Time to live of a member or a lease without a refresh; whole seconds (the server's unit).
pub(super) const TTL: Duration = Duration::from_secs(3);
/// Silence after which an entry counts as gone, although its holder would refresh it all the time: no watch will
/// report its end, because its marker came and went while this replica was cut off.
const SILENCE: Duration = Duration::from_secs(12);
/// Interval at which members and leases are refreshed.
pub(super) const TICK: Duration = Duration::from_millis(700);

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
    let mut joined = false;
    let mut refresh_at = group.clock.monotonic();
    // Without members and leases nothing is owned yet: there is nothing to give back.
    tokio::select! {
        () = view.wait_settled() => {}
        () = shutdown.requested() => return,
    }

    loop {
        // This comes first: a process that was stopped must not continue work that another replica has taken over.
        for lease in held.values_mut() {
            lease.end_if_over();
        }

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

        let wanted = if may_join {
            wanted_partitions(&view, &group)
        } else {
            Vec::new()
        };
        give_back_unwanted(&mut held, &wanted);
        keep_up(&mut held, is_due, &floors).await;
        // A request sent without a connection would be served long after it is stale.
        let wanted = if bus.is_connected() { wanted } else { Vec::new() };
        let free = view.free_partitions(&wanted, |partition| held.contains_key(&partition));

        let taken = join_all(free.into_iter().map(|(partition, revision)| {
            take(
                bus.clone(),
                Arc::clone(&group),
                Arc::clone(&floors),
                (partition, revision),
                handler.clone(),
            )
        }));

        held.extend(
            taken
                .await
                .into_iter()
                .flatten()
                .map(|lease| (lease.partition(), lease)),
        );

        report_held(&group, &held);

        if leaving && held.is_empty() {
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

/// Gives back the leases whose handlers have ended, and refreshes the others if `is_due`.
async fn keep_up(held: &mut HashMap<u16, HeldLease>, is_due: bool, floors: &PartitionFloorStore) {
    let mut any_ended = false;
    for lease in held.values_mut() {
        any_ended |= lease.note_end();
    }

    // The next owner starts at the floor; if that is not stored, it has to look up more done-markers.
    if any_ended && tokio::time::timeout(TICK, floors.store_moved()).await.is_err() {
        tracing::debug!("failed to store floors at shutdown");
    }

    let attended = held.values_mut().filter(|lease| is_due || lease.has_ended());
    join_all(attended.map(HeldLease::refresh_lease)).await;
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
