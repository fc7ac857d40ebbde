//! Shared parts: each replica of a group prefers some parts, and no lease keeps the others from them.
//!
//! A replica announces itself in KV `members`: a lease of 3 s, refreshed every 0.7 s. All replicas compute each part's
//! reader from the members that they see ([`partition_owners`]). Two replicas that see different members for a moment
//! may read one part, or none; work on parts must bear both. A part therefore needs no lease of its own, which would
//! cost a write per part and refresh, and leave the part without a reader while it changes hands.

use std::time::Duration;

use tokio::sync::watch;

use crate::clock::SharedClock;
use crate::process::lifecycle::ShutdownSignal;
use crate::wire::partition::{PartSet, partition_owners};
use crate::wire::session_mark::GroupMember;
use crate::wire::subject::token;
use crate::wire::topology::buckets;

use super::super::connect::Bus;
use super::super::kv::Kv;
use super::super::writer::run_name;
use super::view::GroupView;
use super::{TICK, TTL, member_key};

/// A group of replicas that share parts.
#[derive(Debug, Clone)]
pub struct ShareGroup {
    /// Name of the group; the members' keys are `{name}.{instance}`.
    pub name: &'static str,
    /// Number of parts.
    pub parts: u16,
    /// Instance name of this replica.
    pub instance: String,
    /// Clock that measures the silence of other replicas.
    pub clock: SharedClock,
}

impl ShareGroup {
    /// Returns the parts that fall to this replica if `members` take part besides it.
    fn own_parts(&self, mut members: Vec<String>) -> PartSet {
        let me = token(&self.instance);
        if !members.contains(&me) {
            members.push(me.clone());
        }

        let owners = partition_owners(self.parts, &members).into_iter();
        let own = (0_u16..).zip(owners).filter(|(_, owner)| *owner == me);
        own.map(|(part, _)| part).collect()
    }
}

/// Takes part in `group` until `shutdown`, and keeps `share` up to date: the parts that fall to this replica. At the
/// end the replica is announced as gone and has no parts, so that the others need not wait for its lease to end.
pub async fn share_parts(bus: Bus, group: ShareGroup, shutdown: ShutdownSignal, share: watch::Sender<PartSet>) {
    let members: Kv<GroupMember> = bus.kv(buckets::MEMBERS);
    let view: GroupView = GroupView::watch_members(&bus, group.name, &group.clock);
    // Before all members are known, parts of others would be taken for a moment.
    tokio::select! {
        () = view.wait_settled() => {}
        () = shutdown.requested() => return,
    }

    let key = member_key(group.name, &group.instance);
    let member = GroupMember {
        instance: group.instance.clone(),
        run: run_name(),
    };
    let mut announce_at = group.clock.monotonic();
    while !shutdown.is_requested() {
        let now = group.clock.monotonic();
        // The loop is also woken by changes of the view, its own announcements among them.
        if now >= announce_at {
            announce_at = now + TICK;
            let announced = tokio::time::timeout(TICK, members.put_ttl(&key, &member, TTL)).await;
            if !matches!(announced, Ok(Ok(_))) {
                tracing::debug!(key, "failed to announce this replica; retrying");
            }
        }

        let own = group.own_parts(view.live_members());
        let is_changed = share.send_if_modified(|known| std::mem::replace(known, own) != own);
        if is_changed {
            tracing::info!(
                group = group.name,
                owned = own.len(),
                "parts owned by this replica changed"
            );
        }
        metrics::gauge!("nexus_parts_held", "group" => group.name).set(f64::from(own.len()));

        let wait = announce_at.saturating_duration_since(group.clock.monotonic());
        tokio::select! {
            () = crate::clock::pause(wait.max(Duration::from_millis(1))) => {}
            () = view.wait_changed() => {}
            () = shutdown.requested() => {}
        }
    }

    share.send_replace(PartSet::default());
    metrics::gauge!("nexus_parts_held", "group" => group.name).set(0.0);
    let gone = tokio::time::timeout(TICK, members.delete(&key, None)).await;
    if !matches!(gone, Ok(Ok(()))) {
        tracing::debug!(key, "failed to announce the end of this replica; its lease ends");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock as _, SystemClock};
    use crate::testing::world;

    const PARTS: u16 = 16;
    const DEADLINE: Duration = Duration::from_secs(60);
    /// The lease of a replica, and the delay that a busy machine may add to it.
    const TAKEN_OVER_WITHIN: Duration = TTL.saturating_add(Duration::from_secs(20));

    struct Replica {
        share: watch::Receiver<PartSet>,
        shutdown: ShutdownSignal,
        task: tokio::task::JoinHandle<()>,
    }

    impl Replica {
        fn start(bus: &Bus, instance: &str) -> Self {
            let (sender, share) = watch::channel(PartSet::default());
            let shutdown = ShutdownSignal::default();
            let group = ShareGroup {
                name: "test",
                parts: PARTS,
                instance: instance.to_owned(),
                clock: Arc::new(SystemClock),
            };

            let task = tokio::spawn(share_parts(bus.clone(), group, shutdown.clone(), sender));
            Self { share, shutdown, task }
        }

        async fn has(&mut self, parts: u32) -> PartSet {
            let found = tokio::time::timeout(DEADLINE, self.share.wait_for(|share| share.len() == parts)).await;
            *found.expect("in time").expect("it runs")
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn parts_are_shared_and_those_of_the_dead_are_taken_over() {
        let (_server, bus) = world().await;
        let mut one = Replica::start(&bus, "one");
        one.has(16).await;

        let mut other = Replica::start(&bus, "other");
        let (here, there) = (one.has(8).await, other.has(8).await);
        assert!(here.iter().all(|part| !there.contains(part)), "{here:?} {there:?}");

        // A replica that is stopped in an orderly way is not waited for.
        other.shutdown.trigger();
        other.task.await.expect("it ends well");
        assert!(other.share.borrow().is_empty());
        one.has(16).await;

        // One that is killed announces nothing: its lease ends.
        let mut third = Replica::start(&bus, "third");
        third.has(8).await;
        one.has(8).await;
        third.task.abort();
        let begun = SystemClock.monotonic();
        one.has(16).await;
        let took = SystemClock.monotonic().saturating_duration_since(begun);
        assert!(took < TAKEN_OVER_WITHIN, "{took:?}");

        one.shutdown.trigger();
        one.task.await.expect("it ends well");
    }
}
