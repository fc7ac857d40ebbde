//! What `EVENTS` knows to be sent: the evidence where no receipt tells of a delivery that may have been begun before.
//!
//! Receipts can be lost without a trace: a power cut takes the last moments of a stream, and its witness had seen no more
//! than what is left. Each sent part is an event as well, in another stream.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shared::bus::{Bus, ReadStreamError};
use shared::model::event::EventId;
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::topology::streams;

use crate::destination::Destination;
use crate::outbound::sent_event_id;

/// Ids kept of what was looked through, per partition.
const MAX_WALKED: usize = 10_000;
/// Events read at once.
const PAGE: usize = 500;

/// The sent events of one partition's destinations.
#[derive(Debug)]
pub struct SentEvents {
    bus: Bus,
    /// Of destinations that were looked through, [`MAX_WALKED`] ids at most: a queue of replies to one asks again and again.
    walks: Mutex<HashMap<Destination, Walk>>,
}

/// The events of a destination that were looked through.
#[derive(Debug)]
struct Walk {
    /// From this time on.
    since: UnixMillis,
    /// Up to this sequence; 0 = nothing yet.
    through: u64,
    ids: HashSet<EventId>,
}

impl SentEvents {
    /// Knowing nothing yet.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        Self {
            bus,
            walks: Mutex::default(),
        }
    }

    /// How many parts of `reply` were sent to `destination` since `since`, from the first on and without a gap.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the stream cannot be asked.
    pub async fn parts(
        &self,
        destination: &Destination,
        reply: &Reply,
        since: UnixMillis,
    ) -> Result<u32, ReadStreamError> {
        let subject = destination.sent_subject();
        let last = self.bus.last_on_subject(streams::EVENTS, &subject).await?;
        let Some(last) = last.filter(|last| last.published_at >= since) else {
            return Ok(0);
        };

        let known = self.lock().remove(destination);
        let mut walk = known.filter(|walk| walk.since <= since).unwrap_or_else(|| Walk {
            since,
            through: 0,
            ids: HashSet::new(),
        });

        self.walk_on(&subject, &mut walk, last.sequence).await?;
        let sent = sent_parts(reply, &walk.ids);
        self.keep(destination, walk);

        Ok(sent)
    }

    /// Walks on to `newest`. The bulk is read directly; what that does not show yet comes from the leader.
    async fn walk_on(&self, subject: &str, walk: &mut Walk, newest: u64) -> Result<(), ReadStreamError> {
        while walk.through < newest {
            let mut page = match walk.through {
                0 => {
                    self.bus
                        .history_since(streams::EVENTS, subject, walk.since, PAGE)
                        .await?
                }
                through => self.bus.history(streams::EVENTS, subject, through + 1, PAGE).await?,
            };

            if page.is_empty() {
                let from = walk.through + 1;
                page.extend(self.bus.next_on_subject(streams::EVENTS, subject, from).await?);
            }

            let Some(through) = page.last().map(|stored| stored.sequence) else {
                return Ok(());
            };

            let events = page.iter().filter_map(|stored| stored.event(self.bus.trust()).ok());
            walk.ids.extend(events.map(|event| event.id));
            walk.through = through;
        }

        Ok(())
    }

    fn keep(&self, destination: &Destination, walk: Walk) {
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

/// How many parts of `reply` are among `ids`, from the first on and without a gap.
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
