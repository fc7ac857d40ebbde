//! Rest of the embedding between two batches, so that events have priority. *Pure.*
//!
//! Searches by meaning are rare and may find a text some time later; the handling of events must not wait. So
//! embedding leaves the processor to events while many come, but is never further behind than [`MAX_BEHIND`].

use std::time::{Duration, Instant};

/// Rest as a multiple of the batch's duration: the processor is left to others for at least as long.
const REST: f64 = 1.0;

/// The same while many events come: at most a twentieth of one processor is used.
const REST_BUSY: f64 = 19.0;

/// Longest rest after an embedder that is used over the network, however long the batch took: it uses no processor
/// here.
const LONGEST_REMOTE: Duration = Duration::from_secs(1);

/// Longest rest after a local embedder. A slow one gets its share of the processor and no more, but a machine that
/// stopped in the middle of a batch must not count as slow.
const LONGEST: Duration = Duration::from_secs(20);

/// Number of events per second from which on there are many.
const MANY: f64 = 500.0;

/// Number of events behind from which on embedding runs as if few came.
const MAX_BEHIND: u64 = 100_000;

/// Result of the last call of [`EmbeddingPace::rest_after`].
#[derive(Debug)]
pub(super) struct EmbeddingPace {
    before: Option<(u64, Instant)>,
    longest: Duration,
}

impl EmbeddingPace {
    /// Builds the pace of a local or a remote embedder.
    pub(super) const fn new(is_remote: bool) -> Self {
        Self {
            before: None,
            longest: if is_remote { LONGEST_REMOTE } else { LONGEST },
        }
    }

    /// Returns how long to rest after a batch that took `took`: events up to `reached` are in the read model `now`,
    /// and those up to `embedded` have their vectors.
    pub(super) fn rest_after(&mut self, took: Duration, reached: u64, embedded: u64, now: Instant) -> Duration {
        let before = self.before.replace((reached, now));
        let many = before.is_some_and(|(before, at)| {
            let seconds = now.saturating_duration_since(at).as_secs_f64();
            reached.saturating_sub(before) as f64 > MANY * seconds
        });

        let share = if many && reached.saturating_sub(embedded) < MAX_BEHIND {
            REST_BUSY
        } else {
            REST
        };

        took.mul_f64(share).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock as _;
    use crate::model::time::UnixMillis;
    use crate::testing::ManualClock;

    const TOOK: Duration = Duration::from_millis(10);

    #[test]
    fn rests_long_while_many_come_and_briefly_when_few_do() {
        let start = ManualClock::at(UnixMillis(0)).monotonic();
        let later = |seconds| start + Duration::from_secs(seconds);
        let mut pace = EmbeddingPace::new(false);
        assert_eq!(
            pace.rest_after(TOOK, 10_000, 256, start),
            TOOK,
            "nothing is known of before"
        );
        assert_eq!(pace.rest_after(TOOK, 11_000, 512, later(1)), TOOK * 19);
        assert_eq!(pace.rest_after(TOOK, 11_100, 768, later(2)), TOOK);
        assert_eq!(pace.rest_after(TOOK, 12_100, 1_024, later(62)), TOOK);
    }

    #[test]
    fn is_never_left_far_behind() {
        let start = ManualClock::at(UnixMillis(0)).monotonic();
        let mut pace = EmbeddingPace::new(false);
        pace.rest_after(TOOK, 0, 0, start);
        assert_eq!(
            pace.rest_after(TOOK, MAX_BEHIND, 0, start + Duration::from_secs(1)),
            TOOK
        );
    }

    #[test]
    fn an_embedder_that_is_asked_over_the_network_is_not_waited_for_long() {
        let start = ManualClock::at(UnixMillis(0)).monotonic();
        let rest = EmbeddingPace::new(true).rest_after(Duration::from_secs(30), 0, 0, start);
        assert_eq!(rest, LONGEST_REMOTE);
    }

    #[test]
    fn a_slow_one_that_works_here_takes_its_share_and_no_more() {
        let start = ManualClock::at(UnixMillis(0)).monotonic();
        let took = Duration::from_millis(600);
        let mut pace = EmbeddingPace::new(false);
        pace.rest_after(took, 0, 0, start);
        assert_eq!(
            pace.rest_after(took, 1_000, 8, start + Duration::from_secs(1)),
            took * 19
        );
        assert_eq!(pace.rest_after(took, 1_000, 16, start + Duration::from_secs(13)), took);
    }
}
