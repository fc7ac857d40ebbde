//! Throughput and latency of one arrangement of workers.

use serde::Serialize;

/// Figures of one arrangement.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Figure {
    /// Events per second with all workers busy.
    pub(super) events_per_s: f64,
    /// Median time of a single event, there and back, in microseconds.
    pub(super) p50_us: f64,
    /// Time within which 99 % of single events return, in microseconds.
    pub(super) p99_us: f64,
}
