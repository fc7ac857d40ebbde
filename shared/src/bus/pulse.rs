//! Detection of times in which this process did not run.
//!
//! A process that was stopped (SIGSTOP, a suspended host) for longer than its leases last continues with work that
//! another replica has taken over. The time between two signs of life is therefore measured by the boot-time clock. If
//! it is longer than a lease, the connection is closed before anything else is published, and publishing waits for a
//! moment. Until then every owner has found that its lease is over, and has dropped its work. Data that was in the
//! socket may still arrive; it is recognised by its ids.
//!
//! A separate thread gives the signs, one thread per process. A runtime whose tasks waited for long on a busy machine
//! was not stopped, and keeps its connection.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{Clock as _, SystemClock, pause, rest_thread};

/// Gap after which leases are over: their time to live (3 s) less the holders' margin.
const GAP: Duration = Duration::from_millis(2_700);
/// Interval between signs of life.
const EVERY: Duration = Duration::from_millis(250);
/// Time for which publishing waits after a gap.
const REST: Duration = Duration::from_millis(500);

/// Time of the last sign of life of the process, and the number of gaps longer than [`GAP`].
#[derive(Debug, Clone, Copy)]
struct ClockSigns {
    last: Instant,
    gaps: u64,
}

impl ClockSigns {
    /// Records a sign of life at `now`. Returns the number of gaps, including one that ends now.
    fn note_beat(&mut self, now: Instant) -> u64 {
        if now.saturating_duration_since(self.last) > GAP {
            self.gaps += 1;
            tracing::warn!("process was suspended for longer than its leases: dropping work in progress");
            metrics::counter!("nexus_bus_gaps_total").increment(1);
        }
        self.last = now;
        self.gaps
    }
}

/// Signs of life of this process; `None` before its first connection.
static SIGNS: Mutex<Option<ClockSigns>> = Mutex::new(None);

/// Gives a sign of life, and returns the number of gaps so far.
fn give_beat() -> u64 {
    let mut signs: MutexGuard<'_, Option<ClockSigns>> = SIGNS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = SystemClock.monotonic();
    signs.get_or_insert(ClockSigns { last: now, gaps: 0 }).note_beat(now)
}

/// Starts the thread that gives signs of life, once per process.
fn keep_beating() {
    static STARTED: Once = Once::new();

    STARTED.call_once(|| {
        let thread = std::thread::Builder::new().name("pulse".to_owned());
        let begun = thread.spawn(|| {
            loop {
                rest_thread(EVERY);
                give_beat();
            }
        });

        if let Err(error) = begun {
            // Publishing gives signs too; without the thread, a quiet process closes its connection now and then.
            tracing::warn!(%error, "failed to start the suspension watchdog");
        }
    });
}

/// State of one connection: the number of gaps it knows, and the end of its rest.
#[derive(Debug)]
struct SeenBeats {
    gaps: u64,
    rest_until: Option<Instant>,
}

impl SeenBeats {
    /// Records at `now` that there were `gaps`. Returns whether there is a new one.
    fn note_gaps(&mut self, gaps: u64, now: Instant) -> bool {
        let is_new = gaps != self.gaps;
        self.gaps = gaps;
        if is_new {
            self.rest_until = Some(now + REST);
        }
        is_new
    }

    /// Returns how long publishing must wait at `now`; `None` if it need not.
    fn rest_left(&mut self, now: Instant) -> Option<Duration> {
        let left = self.rest_until?.saturating_duration_since(now);
        if left.is_zero() {
            self.rest_until = None;
            return None;
        }
        Some(left)
    }
}

/// Signs of life of the process, as one connection has handled them.
#[derive(Debug)]
pub(super) struct ClockPulse {
    seen: Mutex<SeenBeats>,
}

impl Default for ClockPulse {
    fn default() -> Self {
        keep_beating();
        Self {
            seen: Mutex::new(SeenBeats {
                gaps: give_beat(),
                rest_until: None,
            }),
        }
    }
}

impl ClockPulse {
    /// Waits until publishing over `client` is allowed. Closes its connection first if the process was stopped.
    pub(super) async fn wait_awake(&self, client: &async_nats::Client) {
        loop {
            let (is_new, rest) = {
                let gaps = give_beat();
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let now = SystemClock.monotonic();
                (seen.note_gaps(gaps, now), seen.rest_left(now))
            };

            if is_new && let Err(error) = client.force_reconnect().await {
                tracing::debug!(%error, "failed to close the connection");
            }

            match rest {
                Some(rest) => pause(rest).await,
                None => return,
            }
        }
    }

    /// Repeats [`ClockPulse::wait_awake`] at intervals, so that a connection without publishes is closed as well; never
    /// ends.
    pub(super) async fn keep_watch(self: Arc<Self>, client: async_nats::Client) {
        loop {
            pause(EVERY).await;
            self.wait_awake(&client).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_longer_than_a_lease_is_told_once_and_makes_publishing_rest() {
        let then = SystemClock.monotonic();
        let mut signs = ClockSigns { last: then, gaps: 0 };
        assert_eq!(signs.note_beat(then + GAP), 0);

        let woken = then + GAP * 3;
        assert_eq!((signs.note_beat(woken), signs.note_beat(woken)), (1, 1));

        let mut seen = SeenBeats {
            gaps: 0,
            rest_until: None,
        };
        assert!(seen.note_gaps(1, woken) && !seen.note_gaps(1, woken));
        assert_eq!(seen.rest_left(woken), Some(REST));
        assert_eq!(seen.rest_left(woken + REST), None);
        assert_eq!(seen.rest_left(woken), None, "it is over");
    }

    #[test]
    fn signs_are_given_although_nothing_of_a_runtime_runs() {
        let _pulse = ClockPulse::default();
        let last = || SIGNS.lock().expect("not poisoned").expect("begun").last;
        let (first, deadline) = (last(), SystemClock.monotonic() + GAP);
        while last() == first {
            assert!(SystemClock.monotonic() < deadline, "no sign of life");
            rest_thread(Duration::from_millis(10));
        }
    }
}
