//! Reading the entries of a bucket once, oldest first, page by page: without a consumer, which costs messages as long as it
//! lives.

use super::super::error::ReadStreamError;
use super::watch::decoded_event;
use super::{Kv, KvEvent, is_marker};
use crate::wire::envelope::WireMessage;

/// Size from which a page ends, in bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// The entries of a bucket whose keys have one beginning, in the order of their revisions.
///
/// Any replica of the stream gives most of them. One that lags has only the beginning, so that the leader gives the rest: no
/// entry is left out that was stored before the last page was asked for. An entry that is removed meanwhile may be among them.
#[derive(Debug)]
pub struct KvPages<T> {
    kv: Kv<T>,
    filter: String,
    /// Maximum number of entries of a page.
    most: usize,
    /// Revision to read next.
    next: u64,
}

impl<T: WireMessage> Kv<T> {
    /// Reads the entries whose keys begin with `prefix` (empty, or whole tokens with the final dot), at most `most` at a time.
    #[must_use]
    pub fn pages(&self, prefix: &str, most: usize) -> KvPages<T> {
        KvPages {
            kv: self.clone(),
            filter: self.key_subject(&format!("{prefix}>")),
            most,
            next: 1,
        }
    }
}

impl<T: WireMessage> KvPages<T> {
    /// Returns the next entries, [`KvEvent::Put`] or [`KvEvent::Bad`] each; empty = there are no more. Dropping the future leaves
    /// no entry out.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be asked. It may be asked again.
    pub async fn next(&mut self) -> Result<Vec<KvEvent<T>>, ReadStreamError> {
        let (bus, stream) = (self.kv.bus.clone(), self.kv.stream_name());
        loop {
            let page = bus.read_history_within(&stream, &self.filter, self.next, self.most, PAGE_BYTES);
            let mut page = page.await?;
            if page.is_empty() {
                page.extend(bus.next_on_subject(&stream, &self.filter, self.next).await?);
            }
            let Some(last) = page.last() else {
                return Ok(Vec::new());
            };

            self.next = last.sequence + 1;
            let mut entries = Vec::with_capacity(page.len());
            for stored in page.iter().filter(|stored| !is_marker(&stored.headers)) {
                let key = self.kv.key_of(&stored.subject).to_owned();
                entries.push(decoded_event(key, stored.sequence, stored.decode()));
            }
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }
}
