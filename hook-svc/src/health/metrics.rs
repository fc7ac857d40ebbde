//! Metrics of the service, as handles that need no look-up.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::runner::SandboxLevel;

/// Handles of the service's metrics, created once.
#[derive(Debug, Clone)]
pub(crate) struct ServiceMeters {
    /// Number of events completed by evaluation.
    pub(crate) evaluated: Counter,
    /// Number of events that a former owner had already completed.
    pub(crate) already_done: Counter,
    /// Number of events whose id was evaluated long ago.
    pub(crate) late_duplicates: Counter,
    /// Number of events settled without evaluation, because they are so old that their record may have expired.
    pub(crate) beyond_records: Counter,
    /// Number of events whose record is stored but some of whose hooks had no place.
    pub(crate) deferred: Counter,
    /// Number of events that became dead letters.
    pub(crate) dead: Counter,
    /// Number of repeated attempts to evaluate an event.
    pub(crate) again: Counter,
    /// Number of dispatches stored.
    pub(crate) dispatches: Counter,
    /// Number of suppressed fires.
    pub(crate) suppressed: Counter,
    /// Number of failures of hooks.
    pub(crate) failures: Counter,
    /// Number of events being evaluated.
    pub(crate) in_flight: Gauge,
    /// Seconds from the start of an evaluation to the ack of its record.
    pub(crate) seconds: Histogram,
    /// Seconds that events had waited in the stream when their evaluation began.
    pub(crate) lag: Histogram,
}

impl ServiceMeters {
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

/// Sets the gauge of the sandbox's level: 1 for `level`, 0 for the others.
pub(crate) fn count_sandbox_level(level: SandboxLevel) {
    for one in SandboxLevel::ALL {
        let is_this = if one == level { 1.0 } else { 0.0 };
        gauge!("nexus_hook_sandbox", "level" => one.name()).set(is_this);
    }
}

/// End of the deferred evaluations of one event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DeferredOutcome {
    /// The evaluations were made.
    Made,
    /// A record already had their outcomes.
    DoneBefore,
    /// The evaluations waited too long.
    GivenUp,
}

/// Counts the end of an event's deferred evaluations.
pub(crate) fn count_owed_end(end: DeferredOutcome) {
    let end = match end {
        DeferredOutcome::Made => "made",
        DeferredOutcome::DoneBefore => "done_before",
        DeferredOutcome::GivenUp => "given_up",
    };
    counter!("nexus_hook_deferred_total", "end" => end).increment(1);
}

/// Counts an event with deferred evaluations while this value lives.
#[derive(Debug)]
pub(crate) struct WaitingEvent(());

impl WaitingEvent {
    pub(crate) fn start_waiting() -> Self {
        gauge!("nexus_hook_deferred_events").increment(1.0);
        Self(())
    }
}

impl Drop for WaitingEvent {
    fn drop(&mut self) {
        gauge!("nexus_hook_deferred_events").decrement(1.0);
    }
}
