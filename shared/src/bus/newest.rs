//! Reading the newest messages of a stream, page by page towards its beginning, from the leader.
//!
//! JetStream reads forwards only. So a part of the stream before the end is read whole; it grows while parts are empty,
//! and is never larger than the page if they are full. One message is in memory at a time.

use super::connect::Bus;
use super::error::ReadStreamError;
use super::message::StoredMessage;

/// Maximum number of messages that are read for one page.
const MAX_READ: usize = 4_000;
/// Number of messages, as a multiple of the page, from which a part counts as too large.
const TOO_RICH: usize = 4;

/// A page of the newest messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestPage<T> {
    /// What was kept of each message, oldest first.
    pub items: Vec<T>,
    /// Sequence before which the next page begins; `None` if there are no older messages.
    pub before: Option<u64>,
}

/// A part of a stream that was read: sequences and what was kept, oldest first.
struct ReadPart<T> {
    found: Vec<(u64, T)>,
    read: usize,
    /// Whether reading ended because there is too much.
    is_cut: bool,
}

impl Bus {
    /// Returns the newest messages on `subject` (wildcards allowed) before the sequence `before`, or from the end on, as
    /// `keep` returns them: at most `limit`, and fewer if 4,000 messages were read for them.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn newest_messages<T>(
        &self,
        stream: &str,
        subject: &str,
        before: Option<u64>,
        limit: usize,
        mut keep: impl FnMut(StoredMessage) -> Option<T> + Send,
    ) -> Result<NewestPage<T>, ReadStreamError>
    where
        T: Send,
    {
        let limit = limit.max(1);
        let state = self.stream_state(stream).await?;
        let mut end = before.map_or(state.last + 1, |before| before.min(state.last + 1));
        let (mut pages, mut kept, mut read) = (Vec::new(), 0, 0);
        let mut width = limit as u64;

        while end > state.first && kept < limit && read < MAX_READ {
            let start = end.saturating_sub(width).max(state.first);
            let most = if width > limit as u64 {
                TOO_RICH * limit
            } else {
                usize::MAX
            };
            let mut part = self.read_part(stream, subject, (start, end), most, &mut keep).await?;
            read += part.read;
            if part.is_cut {
                width = limit as u64;
                continue;
            }

            // The width follows what is there, so that neither many empty parts nor many surplus messages are read.
            if part.found.len() < limit / 2 + 1 {
                width = width.saturating_mul(2);
            }
            let surplus = part.found.len().saturating_sub(limit - kept);
            part.found.drain(..surplus);
            end = match part.found.first() {
                Some((first, _)) if surplus > 0 => *first,
                Some(_) | None => start,
            };
            kept += part.found.len();
            pages.push(part.found);
        }

        let items = pages.into_iter().rev().flatten().map(|(_, item)| item).collect();
        Ok(NewestPage {
            items,
            before: (end > state.first).then_some(end),
        })
    }

    /// Reads the messages on `subject` from `start` to before `end`, until more than `most` were read.
    async fn read_part<T: Send>(
        &self,
        stream: &str,
        subject: &str,
        (start, end): (u64, u64),
        most: usize,
        keep: &mut (impl FnMut(StoredMessage) -> Option<T> + Send),
    ) -> Result<ReadPart<T>, ReadStreamError> {
        let (mut found, mut read, mut from) = (Vec::new(), 0, start);
        while from < end {
            let Some(stored) = self.next_on_subject(stream, subject, from).await? else {
                break;
            };
            let sequence = stored.sequence;
            if sequence >= end {
                break;
            }

            read += 1;
            if read > most {
                return Ok(ReadPart {
                    found,
                    read,
                    is_cut: true,
                });
            }
            from = sequence + 1;
            found.extend(keep(stored).map(|item| (sequence, item)));
        }

        Ok(ReadPart {
            found,
            read,
            is_cut: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::OutgoingMessage;
    use crate::testing::world;
    use crate::wire::headers::Headers;
    use crate::wire::subject::audit;
    use crate::wire::topology::streams::AUDIT;

    async fn store(bus: &Bus, topic: &str, count: usize) {
        for _ in 0..count {
            let out = OutgoingMessage::raw(audit(topic), Headers::new(), "x".into());
            bus.publish(out).await.expect("stored");
        }
    }

    /// Returns the sequences of all pages of `limit`, in the order in which they were read, and their number.
    async fn read_all(bus: &Bus, topic: &str, limit: usize) -> (Vec<u64>, usize) {
        let (mut found, mut before, mut pages) = (Vec::new(), None, 0);
        loop {
            let subject = audit(topic);
            let page = bus.newest_messages(AUDIT, &subject, before, limit, |stored| Some(stored.sequence));
            let page = page.await.expect("readable");
            assert!(page.items.len() <= limit && page.items.is_sorted(), "{page:?}");
            found.extend(page.items.into_iter().rev());
            pages += 1;
            match page.before {
                None => return (found, pages),
                next => before = next,
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pages_have_everything_once_from_the_newest_on() {
        let (_server, bus) = world().await;
        assert_eq!(read_all(&bus, "a", 5).await.0, Vec::<u64>::new());

        store(&bus, "a", 40).await;
        store(&bus, "b", 300).await;
        store(&bus, "a", 3).await;
        store(&bus, "b", 30).await;
        let of_a: Vec<u64> = (1..=40).chain(341..=343).rev().collect();
        let of_b: Vec<u64> = (41..=340).chain(344..=373).rev().collect();

        for limit in [1, 2, 5, 7, 50, 1_000] {
            let (found, pages) = read_all(&bus, "a", limit).await;
            assert_eq!(found, of_a, "pages of {limit}");
            assert!(pages <= of_a.len().div_ceil(limit) + 2, "{pages} pages of {limit}");
            assert_eq!(read_all(&bus, "b", limit).await.0, of_b, "pages of {limit}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_not_kept_does_not_end_the_search() {
        let (_server, bus) = world().await;
        store(&bus, "a", 60).await;
        let keep = |stored: StoredMessage| (stored.sequence <= 3).then_some(stored.sequence);
        let page = bus.newest_messages(AUDIT, &audit("a"), None, 2, keep).await;
        let page = page.expect("readable");
        assert_eq!((page.items, page.before), (vec![2, 3], Some(2)));
        let page = bus.newest_messages(AUDIT, &audit("a"), Some(2), 2, keep).await;
        assert_eq!(
            page.expect("readable"),
            NewestPage {
                items: vec![1],
                before: None
            }
        );
    }
}
