//! Sent parts in `EVENTS`: the evidence for a delivery that may have been started before and has no receipt.
//!
//! Receipts can be lost without a trace: a power failure removes the end of a stream, and the stream's witness may
//! not have seen more than the rest. Each sent part is also an event, in another stream.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use shared::bus::{Bus, ReadStreamError};
use shared::model::event::EventId;
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::topology::streams;

use crate::destination::Destination;
use crate::outbound::{sent_event_id, sent_text};
use crate::plan::MessagePart;

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
    /// Hash of the text of each event.
    texts: HashMap<EventId, TextHash>,
}

/// SHA-256 of a text.
type TextHash = [u8; 32];

fn hash_text(text: &str) -> TextHash {
    Sha256::digest(text).into()
}

/// The parts of a reply that have events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentParts {
    /// Number of them, counted from the first without a gap.
    pub count: u32,
    /// Whether each has the text of the part with its index as it is planned now.
    pub are_planned: bool,
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

    /// Returns the parts of `reply`, planned as `parts` now, that were sent to `destination` since `since`.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read.
    pub async fn find_sent_parts(
        &self,
        destination: &Destination,
        reply: &Reply,
        parts: &[MessagePart],
        since: UnixMillis,
    ) -> Result<SentParts, ReadStreamError> {
        let subject = destination.sent_subject();
        let last = self.bus.last_on_subject(streams::EVENTS, &subject).await?;
        // Without a newer event no part was sent, and nothing has to be read.
        let Some(last) = last.filter(|last| last.published_at >= since) else {
            return Ok(sent_parts(reply, parts, &HashMap::new()));
        };

        // An earlier walk is continued, if it began early enough.
        let known = self.lock().remove(destination);
        let mut walk = known.filter(|walk| walk.since <= since).unwrap_or_else(|| Walk {
            since,
            through: 0,
            texts: HashMap::new(),
        });

        self.walk_on(&subject, &mut walk, last.sequence).await?;
        let sent = sent_parts(reply, parts, &walk.texts);
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
            // The first event of an id is that of the sending: edits of the message follow it.
            for event in events {
                let text = hash_text(&event.content);
                walk.texts.entry(event.id).or_insert(text);
            }
            walk.through = through;
        }

        Ok(())
    }

    fn keep_walk(&self, destination: &Destination, walk: Walk) {
        let mut walks = self.lock();
        let held: usize = walks.values().map(|walk| walk.texts.len()).sum();
        if held + walk.texts.len() > MAX_WALKED {
            walks.clear();
        }
        if walk.texts.len() <= MAX_WALKED {
            walks.insert(destination.clone(), walk);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, Walk>> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the parts of `reply`, planned as `parts` now, that have an event in `texts`.
fn sent_parts(reply: &Reply, parts: &[MessagePart], texts: &HashMap<EventId, TextHash>) -> SentParts {
    let text = |index: u32| sent_event_id(reply, index).ok().and_then(|id| texts.get(&id));
    let sent: Vec<&TextHash> = (0..).map_while(text).collect();
    let is_planned = |(index, sent): (usize, &&TextHash)| {
        let part = parts.get(index);
        part.is_some_and(|part| hash_text(&sent_text(reply, part)) == **sent)
    };
    SentParts {
        count: u32::try_from(sent.len()).unwrap_or(u32::MAX),
        // The event of a change has other words.
        are_planned: reply.action.is_some() || sent.iter().enumerate().all(is_planned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkLimit, LengthUnit};
    use crate::examples::reply;
    use crate::plan::{PartLayout, plan_parts};

    #[test]
    fn parts_count_from_the_first_on_up_to_the_first_gap_and_tell_another_plan() {
        let reply = reply("one two three four five six seven eight");
        let limit = |max| ChunkLimit {
            max,
            unit: LengthUnit::Characters,
        };
        let plan = |max| plan_parts(&reply, PartLayout::markdown(Some(limit(max))));
        let of = |indexes: &[u32], max| {
            let (made, now) = (plan(10), plan(max));
            let events = indexes.iter().map(|index| {
                let part = made.iter().find(|part| part.index == *index).expect("a part");
                let text = hash_text(&sent_text(&reply, part));
                (sent_event_id(&reply, *index).expect("an id"), text)
            });
            let found = sent_parts(&reply, &now, &events.collect());
            (found.count, found.are_planned)
        };
        assert!(plan(10).len() > 3);
        for (indexes, count) in [(&[][..], 0), (&[1], 0), (&[0], 1), (&[0, 1, 3], 2)] {
            assert_eq!(of(indexes, 10), (count, true));
        }
        assert_eq!(of(&[0], 16), (1, false));
        assert_eq!(of(&[0, 1], 1_000), (2, false));
    }
}
