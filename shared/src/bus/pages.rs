//! Reading a stream from a time on to its end, page by page.

use crate::model::time::UnixMillis;

use super::connect::Bus;
use super::error::ReadStreamError;
use super::message::StoredMessage;

/// Messages read at once.
const PAGE: usize = 500;

/// A place in a stream, behind which everything is still to be read.
///
/// Whichever replica is at hand tells most of it; one that lags has only the beginning, and the end that it lacks would
/// look lost, so the leader tells the rest.
#[derive(Debug)]
pub struct StreamPages {
    bus: Bus,
    stream: &'static str,
    since: UnixMillis,
    /// The sequence to read next; none = nothing was read yet.
    next: Option<u64>,
    read: u64,
}

impl StreamPages {
    /// Everything in `stream` that was stored at or after `since`.
    #[must_use]
    pub fn since(bus: &Bus, stream: &'static str, since: UnixMillis) -> Self {
        Self {
            bus: bus.clone(),
            stream,
            since,
            next: None,
            read: 0,
        }
    }

    /// How many messages were read.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// The next messages, oldest first; empty = the end of the stream.
    ///
    /// # Errors
    /// [`ReadStreamError`] if the stream cannot be asked.
    pub async fn next(&mut self) -> Result<Vec<StoredMessage>, ReadStreamError> {
        let mut page = match self.next {
            None => self.bus.history_since(self.stream, ">", self.since, PAGE).await?,
            Some(next) => self.bus.read_history(self.stream, ">", next, PAGE).await?,
        };

        if page.is_empty() {
            let next = match self.next {
                None => self.first().await?,
                Some(next) => next,
            };
            page.extend(self.bus.next_on_subject(self.stream, ">", next).await?);
        }

        if let Some(last) = page.last() {
            self.next = Some(last.sequence + 1);
            self.read += page.len() as u64;
        }

        Ok(page)
    }

    /// The sequence of the first message that was stored since then, by the leader; behind the last one if there is none.
    async fn first(&self) -> Result<u64, ReadStreamError> {
        let Some(last) = self.bus.last_on_subject(self.stream, ">").await? else {
            return Ok(1);
        };

        let (mut first, mut end) = (1, last.sequence + 1);
        while first < end {
            let middle = first + (end - first) / 2;
            match self.bus.next_on_subject(self.stream, ">", middle).await? {
                Some(stored) if stored.published_at < self.since => first = stored.sequence + 1,
                Some(_) | None => end = middle,
            }
        }

        Ok(first)
    }
}
