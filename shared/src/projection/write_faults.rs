//! Why the file cannot be written at the moment: a full disk, a lock.

use std::sync::{Mutex, PoisonError};

use super::Projection;
use super::applied::FeedSource;

/// Reason why the last batch of each stream was not stored.
#[derive(Debug, Default)]
pub(super) struct WriteFaults(Mutex<[Option<String>; FeedSource::ALL.len()]>);

impl WriteFaults {
    /// Records how the last write of `source` ended. Returns whether that is news.
    fn note(&self, source: FeedSource, fault: Option<String>) -> bool {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut faults[source as usize];
        let is_news = *known != fault;
        *known = fault;
        is_news
    }

    fn any(&self) -> Option<String> {
        let faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults.iter().flatten().next().cloned()
    }
}

impl Projection {
    /// Returns why the file cannot be written, `None` if it can. It is tried again until it can: nothing is lost, and the
    /// read model falls behind meanwhile.
    #[must_use]
    pub fn write_fault(&self) -> Option<String> {
        self.0.faults.any()
    }

    /// Records that a batch of `source` was not stored, because of `fault`.
    pub(super) fn note_unwritten(&self, source: FeedSource, fault: &str) {
        if self.0.faults.note(source, Some(fault.to_owned())) {
            tracing::warn!(
                stream = source.stream(),
                error = fault,
                "failed to write the read model; retrying until it succeeds"
            );
        }
    }

    /// Records that nothing of `source` waits to be stored, or that it was.
    pub(super) fn note_written(&self, source: FeedSource) {
        if self.0.faults.note(source, None) {
            tracing::info!(stream = source.stream(), "the read model is written again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_streams_fault_stands_until_the_stream_is_stored() {
        let faults = WriteFaults::default();
        let full = || Some("full".to_owned());
        assert!(faults.note(FeedSource::Events, full()) && !faults.note(FeedSource::Events, full()));
        assert!(!faults.note(FeedSource::Ledger, None));
        assert_eq!(faults.any(), full(), "another stream's batch was small enough");
        assert!(faults.note(FeedSource::Events, None));
        assert_eq!(faults.any(), None);
    }
}
