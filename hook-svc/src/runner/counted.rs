//! One of a number, counted while it is there.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts as one in a number until it is dropped.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    /// Adds one to `number`.
    pub(super) fn new(number: &'a AtomicUsize) -> Self {
        number.fetch_add(1, Ordering::Relaxed);
        Self(number)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
