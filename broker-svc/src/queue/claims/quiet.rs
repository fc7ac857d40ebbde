//! The last time at which certainly no claim was on its way to this process. *Pure.*
//!
//! The server counts the ack wait of a claim from when it sends the claim. If this process was stopped or starved since
//! then, the claim lay in the socket meanwhile, and the time at which it is read says nothing. While claims are waited
//! for, the client's buffer is therefore looked at again and again. A claim that was sent before one look is in the
//! buffer at the next look, because the client has read the socket in between. That holds only if the second look came
//! in time: after a stop, a look may be made before the client has read.

use std::time::{Duration, Instant};

/// Interval between two looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum time between two looks for which the client counts as running in between.
const IN_TIME: Duration = Duration::from_millis(700);

/// Looks at the client's buffer; see the module.
#[derive(Debug)]
pub(super) struct Quiet {
    since: Instant,
    looked_at: Instant,
}

impl Quiet {
    /// Begins at `now`, at which no claim is requested.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            since: now,
            looked_at: now,
        }
    }

    /// Notes a look at `now`, at which the buffer was empty.
    pub(super) fn note_empty(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked_at) <= IN_TIME {
            self.since = self.looked_at;
        }
        self.looked_at = now;
    }

    /// Returns the time before which no claim that comes now was sent.
    pub(super) const fn since(&self) -> Instant {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn what_lay_in_the_socket_while_the_process_was_stopped_is_as_old_as_the_look_before() {
        let begun = SystemClock.monotonic();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut quiet = Quiet::new(at(0));
        for ms in [10, 110, 210, 310] {
            quiet.note_empty(at(ms));
        }
        assert_eq!(quiet.since(), at(210), "the look before the last one");

        // Stopped for two minutes: the first look may come before the client has read the socket.
        quiet.note_empty(at(120_310));
        assert_eq!(quiet.since(), at(210));

        // By the next look it has.
        quiet.note_empty(at(120_410));
        assert_eq!(quiet.since(), at(120_310));
    }

    #[test]
    fn a_claim_that_comes_while_the_process_runs_is_never_too_old() {
        let begun = SystemClock.monotonic();
        let mut quiet = Quiet::new(begun);
        let mut now = begun;
        for _ in 0..100 {
            now += IN_TIME;
            assert!(now.saturating_duration_since(quiet.since()) <= super::super::MAX_AGE);
            quiet.note_empty(now);
        }
    }
}
