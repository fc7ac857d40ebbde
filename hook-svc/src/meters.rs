//! What is counted, as handles that cost nothing to look up.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// The service's counters, made once.
#[derive(Clone)]
pub(crate) struct Meters {
    /// Events brought to their end by evaluation.
    pub(crate) evaluated: Counter,
    /// Events that a former owner had done already.
    pub(crate) already_done: Counter,
    /// Events whose id was evaluated long ago.
    pub(crate) late_duplicates: Counter,
    /// Events given up.
    pub(crate) dead: Counter,
    /// Events that come again.
    pub(crate) again: Counter,
    /// Dispatches stored.
    pub(crate) dispatches: Counter,
    /// Fires of which nothing came.
    pub(crate) suppressed: Counter,
    /// Hooks that failed.
    pub(crate) failures: Counter,
    /// Events under way.
    pub(crate) in_flight: Gauge,
    /// Seconds from the first hook's start to the record's ack.
    pub(crate) seconds: Histogram,
    /// Seconds that events had waited in the stream when they were taken up.
    pub(crate) lag: Histogram,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let events = |outcome: &'static str| counter!("nexus_hook_events_total", "outcome" => outcome);
        Self {
            evaluated: events("evaluated"),
            already_done: events("already_done"),
            late_duplicates: events("late_duplicate"),
            dead: events("dead_letter"),
            again: events("again"),
            dispatches: counter!("nexus_hook_dispatches_total"),
            suppressed: counter!("nexus_hook_suppressed_total"),
            failures: counter!("nexus_hook_failures_total"),
            in_flight: gauge!("nexus_hook_in_flight_events"),
            seconds: histogram!("nexus_hook_evaluate_seconds"),
            lag: histogram!("nexus_hook_wait_seconds"),
        }
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}
