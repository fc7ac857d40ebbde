//! The stream as it was at the last comparison. *Pure.*

/// Identity and range of the stream at the last comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamSeen {
    pub(super) connection: u64,
    pub(super) incarnation: String,
    pub(super) created: String,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl StreamSeen {
    /// Returns whether `later` is the same stream on the same connection, neither restored to an older state nor cut.
    /// Messages that age deleted do not count as a cut.
    pub(super) fn is_followed_by(&self, later: &Self) -> bool {
        let of = |seen: &Self| (seen.connection, seen.incarnation.clone(), seen.created.clone());
        of(self) == of(later) && self.last <= later.last && later.first <= self.last.max(self.first)
    }
}
