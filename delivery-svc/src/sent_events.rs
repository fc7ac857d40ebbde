//! Sent parts in `EVENTS`: the evidence for a delivery that may have been started before and has no receipt.
//!
//! Receipts can be lost without a trace: a power failure removes the end of a stream, and the stream's witness may
//! not have seen more than the rest. Each sent part is also an event, in another stream.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shared::bus::{Bus, ReadStreamError};
use shared::model::event::EventId;
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::topology::streams;

use crate::destination::Destination;
use crate::outbound::sent_event_id;

/// Maximum number of event ids kept per partition.
const MAX_WALKED: usize = 10_000;
/// Number of events read at once.
const PAGE: usize = 500;

/// The sent events of the destinations in one partition.
#[derive(Debug)]
pub struct SentEvents {
    bus: Bus,
    /// Events read so far by destination, at most [`MAX_WALKED`] ids, because a queue of replies to one destination
    /// asks repeatedly.
    walks: Mutex<HashMap<Destination, Walk>>,
}

/// The events of a destination that were read so far.
#[derive(Debug)]
struct Walk {
    /// Time from which events were read.
    since: UnixMillis,
    /// Sequence up to which events were read; 0 = none yet.
    through: u64,
    ids: HashSet<EventId>,
}

impl SentEvents {
    /// Creates an empty cache on `bus`.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        Self {
            bus,
            walks: Mutex::default(),
        }
    }

    /// Returns the number of parts of `reply` sent to `destination` since `since`, counted from the first without a
    /// gap.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read.
    pub async fn count_sent_parts(
        &self,
        destination: &Destination,
        reply: &Reply,
        since: UnixMillis,
    ) -> Result<u32, ReadStreamError> {
        let subject = destination.sent_subject();
        let last = self.bus.last_on_subject(streams::EVENTS, &subject).await?;
        // Without a newer event no part was sent, and nothing has to be read.
        let Some(last) = last.filter(|last| last.published_at >= since) else {
            return Ok(0);
        };

        // An earlier walk is continued, if it began early enough.
        let known = self.lock().remove(destination);
        let mut walk = known.filter(|walk| walk.since <= since).unwrap_or_else(|| Walk {
            since,
            through: 0,
            ids: HashSet::new(),
        });

        self.walk_on(&subject, &mut walk, last.sequence).await?;
        let sent = sent_parts(reply, &walk.ids);
        // Kept for the next delivery to this destination.
        self.keep_walk(destination, walk);

        Ok(sent)
    }

    /// Reads on to `newest`. Most events are read directly from any replica; the rest comes from the leader.
    async fn walk_on(&self, subject: &str, walk: &mut Walk, newest: u64) -> Result<(), ReadStreamError> {
        while walk.through < newest {
            let mut page = match walk.through {
                0 => {
                    self.bus
                        .history_since(streams::EVENTS, subject, walk.since, PAGE)
                        .await?
                }
                through => {
                    self.bus
                        .read_history(streams::EVENTS, subject, through + 1, PAGE)
                        .await?
                }
            };

            // The replica that was read may lag behind: the leader has the next event.
            if page.is_empty() {
                let from = walk.through + 1;
                page.extend(self.bus.next_on_subject(streams::EVENTS, subject, from).await?);
            }

            let Some(through) = page.last().map(|stored| stored.sequence) else {
                return Ok(());
            };

            let events = page
                .iter()
                .filter_map(|stored| stored.read_event(self.bus.trust()).ok());
            walk.ids.extend(events.map(|event| event.id));
            walk.through = through;
        }

        Ok(())
    }

    fn keep_walk(&self, destination: &Destination, walk: Walk) {
        let mut walks = self.lock();
        let held: usize = walks.values().map(|walk| walk.ids.len()).sum();
        if held + walk.ids.len() > MAX_WALKED {
            walks.clear();
        }
        if walk.ids.len() <= MAX_WALKED {
            walks.insert(destination.clone(), walk);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, Walk>> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of parts of `reply` with an event in `ids`, counted from the first without a gap.
fn sent_parts(reply: &Reply, ids: &HashSet<EventId>) -> u32 {
    let is_sent = |index: &u32| sent_event_id(reply, *index).is_ok_and(|id| ids.contains(&id));
    (0..).take_while(is_sent).last().map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::reply;

    #[test]
    fn parts_count_from_the_first_on_up_to_the_first_gap() {
        let reply = reply("x");
        let of = |indexes: &[u32]| {
            let ids = indexes
                .iter()
                .map(|index| sent_event_id(&reply, *index).expect("an id"));
            sent_parts(&reply, &ids.collect())
        };
        assert_eq!([of(&[]), of(&[1]), of(&[0]), of(&[0, 1, 3])], [0, 0, 1, 2]);
    }
}
