//! Session of a replica in a group: the one record that is refreshed, for all its leases.
//!
//! A lease names its holder's session and has no time to live. The session's record, which comes before the first lease
//! that names it, has one, and is refreshed by compare-and-set. Each session has a new name, and a record that is gone
//! cannot be refreshed: so a replica that finds a lease, and afterwards no record of its session at the leader, knows
//! that the lease has ended for good. An idle replica writes once a [`TICK`] instead of once for each partition.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use crate::clock::SharedClock;
use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::buckets;

use super::super::connect::Bus;
use super::super::error::PublishError;
use super::super::kv::Kv;
use super::super::writer::random_name;
use super::tenure::LeaseDeadline;
use super::view::FreeLease;
use super::{TICK, lease_message, session_key};

/// The session of this replica.
#[derive(Debug)]
pub(in crate::bus) struct LeaseSession {
    kv: Kv<LeaseRecord>,
    name: String,
    key: String,
    record: LeaseRecord,
    revision: u64,
    deadline: LeaseDeadline,
}

impl LeaseSession {
    /// Begins a session of the replica `holder` in `group`. Returns `None` if the server does not store it in time.
    pub(in crate::bus) async fn begin(bus: &Bus, group: &str, holder: String, clock: &SharedClock) -> Option<Self> {
        let name = random_name();
        let key = session_key(group, &name);
        let record = LeaseRecord::held_by(holder);

        // The deadline counts from before the request, so a slow answer shortens the session and never lengthens it.
        let deadline = LeaseDeadline::new(clock.clone(), clock.monotonic());
        match bus.publish_once(&lease_message(&key, &record, 0), TICK).await {
            Ok(published) => Some(Self {
                kv: bus.kv(buckets::LEASES),
                name,
                key,
                record,
                revision: published.sequence,
                deadline,
            }),
            Err(error) => {
                tracing::debug!(key, %error, "failed to begin a session of leases");
                None
            }
        }
    }

    /// Returns the name that leases of this session carry.
    pub(in crate::bus) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the time until which the session lasts.
    pub(in crate::bus) const fn deadline(&self) -> &LeaseDeadline {
        &self.deadline
    }

    /// Extends the session, with all its leases, unless it is over.
    pub(in crate::bus) async fn refresh(&mut self) {
        if self.deadline.is_live() && !self.write_record().await && self.adopt_lost_refresh().await {
            self.write_record().await;
        }
    }

    /// Writes the record again. Returns false if that is rejected: the key has another revision than the one known here.
    async fn write_record(&mut self) -> bool {
        let asked_at = self.deadline.now();
        let out = lease_message(&self.key, &self.record, self.revision);
        match self.kv.bus().publish_once(&out, TICK).await {
            Ok(published) => {
                self.revision = published.sequence;
                self.deadline.note_refresh(asked_at);
            }
            Err(PublishError::WrongLastSequence { .. }) => return false,
            Err(error) => tracing::debug!(key = %self.key, %error, "failed to refresh a session of leases"),
        }

        true
    }

    /// Handles a rejected refresh. If an earlier refresh of ours was stored without an ack, adopts its revision and
    /// returns true. That does not move the deadline, because the time from which the server counts is unknown here.
    async fn adopt_lost_refresh(&mut self) -> bool {
        match self.kv.written_here(&self.key).await {
            Ok(Some(entry)) => {
                self.revision = entry.revision;
                true
            }
            Ok(None) => {
                self.deadline.note_end_of_session();
                false
            }
            Err(error) => {
                tracing::debug!(key = %self.key, %error, "failed to read a session of leases");
                false
            }
        }
    }

    /// Removes the record, once no lease needs it. If that fails, it expires.
    pub(super) async fn end(self) {
        let ended = tokio::time::timeout(TICK, self.kv.delete(&self.key, Some(self.revision))).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::debug!(key = %self.key, "failed to end a session of leases; it expires");
        }
    }
}

/// Returns those of `free` whose former sessions have ended according to the leader, each with the revision to take it
/// at. What a watch tells may be late: only the leader knows that a session is over. All sessions are asked for at once,
/// so that this replica's own session is refreshed in time however many have ended.
pub(in crate::bus) async fn confirm_free<K>(bus: &Bus, group: &str, free: Vec<FreeLease<K>>) -> Vec<(K, u64)> {
    let sessions: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
    let former: BTreeSet<String> = free.iter().filter_map(|free| free.former.clone()).collect();
    let asked = former.into_iter().map(|session| {
        let (sessions, key) = (&sessions, session_key(group, &session));
        async move {
            // A record that cannot be read is no proof of an end: it expires.
            let found = tokio::time::timeout(TICK, sessions.get(&key)).await;
            matches!(found, Ok(Ok(None))).then_some(session)
        }
    });
    let ended: BTreeSet<String> = join_all(asked).await.into_iter().flatten().collect();

    free.into_iter()
        .filter(|free| free.former.as_ref().is_none_or(|session| ended.contains(session)))
        .map(|free| (free.key, free.revision))
        .collect()
}
