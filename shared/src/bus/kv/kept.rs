//! Changing a record without losing the fields in it that only a later release knows.

use bytes::Bytes;

use super::super::error::ReadStreamError;
use super::super::noted_buckets::is_noted;
use super::{Kv, is_marker};
use crate::wire::envelope::WireMessage;
use crate::wire::unknown::carry_over;

impl<T: WireMessage> Kv<T> {
    /// Returns the payload that replaces the record of `key` at `revision` by `value`, with the record's unknown fields;
    /// `None` if it has none. If the record is another by now, the write is refused in any case.
    pub(super) async fn with_unknown(
        &self,
        key: &str,
        value: &T,
        revision: u64,
    ) -> Result<Option<Bytes>, ReadStreamError> {
        if revision == 0 || !is_noted(self.bucket) {
            return Ok(None);
        }

        let stored = self.read_stored(key).await?;
        let stored = stored.filter(|stored| stored.sequence == revision && !is_marker(&stored.headers));
        // A record that cannot be decoded is replaced as a whole, by a caller who has decided so.
        Ok(stored.and_then(|stored| carry_over(&stored.headers, &stored.payload, value).ok().flatten()))
    }
}
