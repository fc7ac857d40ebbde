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
    /// Events settled unevaluated: so old that their record may be gone.
    pub(crate) beyond_records: Counter,
    /// Events settled but for hooks whose authors had no place for them.
    pub(crate) deferred: Counter,
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
            beyond_records: events("beyond_records"),
            deferred: events("deferred"),
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

/// What has become of deferred evaluations of one event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owed {
    /// They were made.
    Made,
    /// A record said what they did already.
    DoneBefore,
    /// They waited too long.
    GivenUp,
}

/// Counts the end of an event's deferred evaluations.
pub(crate) fn owed(end: Owed) {
    let end = match end {
        Owed::Made => "made",
        Owed::DoneBefore => "done_before",
        Owed::GivenUp => "given_up",
    };
    counter!("nexus_hook_deferred_total", "end" => end).increment(1);
}

/// An event that has deferred evaluations, while this lives.
#[derive(Debug)]
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn begin() -> Self {
        gauge!("nexus_hook_deferred_events").increment(1.0);
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        gauge!("nexus_hook_deferred_events").decrement(1.0);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}
