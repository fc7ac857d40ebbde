//! The only code that reads time, waits, or creates random ids.
//!
//! Code that decides takes an instant or an id as an argument; the code around it holds a [`SharedClock`] and a
//! [`SharedIds`]. Tests pass `testing::ManualClock` and `testing::SeededIds`, and a process that a test starts reads
//! its time from a file ([`TEST_CLOCK`]).

#[cfg(all(feature = "testing", debug_assertions))]
mod rehearsed;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ulid::Ulid;

use crate::model::time::{UnixMillis, millis_of};

/// A source of time for a service.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the wall-clock time, which is written into messages and compared with instants from outside. It may
    /// jump.
    fn now(&self) -> UnixMillis;

    /// Returns the boot-time instant, with which deadlines and leases are measured. It never goes back, and it
    /// includes the time for which the process was stopped or the host was suspended.
    fn monotonic(&self) -> Instant;
}

/// Environment variable for tests with the offsets of a process's clocks, or the path of a file that contains them:
/// `wall=+86400s boot=+86400s`, or `stood=5s` for a machine that was paused. The file is read again while the process
/// runs; `{path}.{instance}` takes precedence over `{path}`.
///
/// Only builds with the feature `testing` and debug assertions read it. A release build has no code for it.
pub const TEST_CLOCK: &str = "NEXUS_TEST_CLOCK";

/// A clock that is passed between the parts of a service.
pub type SharedClock = Arc<dyn Clock>;

/// The clocks of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> UnixMillis {
        // A system clock before 1970 reads as the epoch; one after the year 292 million saturates.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(millis_of(since)).plus(offsets().wall_ms)
    }

    fn monotonic(&self) -> Instant {
        let (first, origin) = *ORIGIN.get_or_init(|| (process_time(), since_boot()));
        let ClockOffsets { boot, stood, .. } = offsets();
        first + (since_boot().saturating_sub(origin) + boot).saturating_sub(stood)
    }
}

/// An instant of this process, and the time since boot at which it was read.
static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn process_time() -> Instant {
    Instant::now()
}

/// Returns the time since the host started, including suspension, which `Instant` leaves out on Linux.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let read = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(read).unwrap_or_default()
}

/// Returns the time since the first reading. On other systems the clock behind `Instant` includes suspension.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    process_time().saturating_duration_since(*FIRST.get_or_init(process_time))
}

/// The offsets of this process's clocks from the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ClockOffsets {
    wall_ms: i64,
    boot: Duration,
    /// How long the boot-time clock stood while the host's went on.
    stood: Duration,
}

#[cfg(all(feature = "testing", debug_assertions))]
fn offsets() -> ClockOffsets {
    rehearsed::current_offsets()
}

#[cfg(not(all(feature = "testing", debug_assertions)))]
const fn offsets() -> ClockOffsets {
    ClockOffsets {
        wall_ms: 0,
        boot: Duration::ZERO,
        stood: Duration::ZERO,
    }
}

/// Returns whether a test sets this process's clock ([`TEST_CLOCK`]); always `false` in release builds.
#[must_use]
pub fn is_rehearsed() -> bool {
    #[cfg(all(feature = "testing", debug_assertions))]
    let set = rehearsed::is_set();
    #[cfg(not(all(feature = "testing", debug_assertions)))]
    let set = false;
    set
}

/// A wall clock that is ahead of another by a fixed time, to rehearse future dates.
#[derive(Debug)]
pub struct OffsetClock {
    inner: SharedClock,
    ahead_ms: i64,
}

impl OffsetClock {
    /// Returns a clock `ahead_ms` ahead of `inner`, or `inner` itself if `ahead_ms` is 0.
    #[must_use]
    pub fn over(inner: SharedClock, ahead_ms: i64) -> SharedClock {
        if ahead_ms == 0 {
            return inner;
        }
        tracing::warn!(ahead_ms, "clock is ahead of the host's");
        Arc::new(Self { inner, ahead_ms })
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> UnixMillis {
        self.inner.now().plus(self.ahead_ms)
    }

    fn monotonic(&self) -> Instant {
        self.inner.monotonic()
    }
}

/// A source of ids for new things; deterministic ids are computed from their cause instead.
pub trait IdSource: std::fmt::Debug + Send + Sync + 'static {
    /// Returns a new ULID.
    fn ulid(&self) -> Ulid;

    /// Returns a random number in 0..1, the jitter of a wait. It is drawn from the randomness of a new id.
    #[must_use]
    fn draw_jitter(&self) -> f64 {
        let low = self.ulid().random() & u128::from(u32::MAX);
        u32::try_from(low).map_or(0.5, |low| f64::from(low) / (f64::from(u32::MAX) + 1.0))
    }
}

/// An id source that is passed between the parts of a service.
pub type SharedIds = Arc<dyn IdSource>;

/// Random ULIDs with the time of [`SystemClock`].
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn ulid(&self) -> Ulid {
        let stamp = u64::try_from(SystemClock.now().0).unwrap_or_default();
        Ulid::from_parts(stamp, Ulid::generate().random())
    }
}

/// Waits for `duration`. This is the only wrapper of the runtime's timer for a service's own waits.
///
/// A wait that must end at shutdown is raced against `ShutdownSignal::requested`.
///
/// Under [`TEST_CLOCK`] the wait ends within 20 ms after the boot time has passed its end.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub async fn pause(duration: Duration) {
    if !is_rehearsed() {
        return tokio::time::sleep(duration).await;
    }

    let until = SystemClock.monotonic() + duration;
    loop {
        let left = until.saturating_duration_since(SystemClock.monotonic());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_millis(20))).await;
    }
}

/// Blocks this thread for `duration`. The thread must not be one of the runtime's.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn rest_thread(duration: Duration) {
    std::thread::sleep(duration);
}

/// Length of one step of [`run_for`].
const STEP: Duration = Duration::from_millis(250);
/// Minimum length of a step during which the process was stopped.
const STOPPED: Duration = Duration::from_secs(1);

/// Waits until this process has run for `duration`. Unlike [`pause`], time for which the process was stopped does not
/// count, and input that arrived in the meantime has one step's time to be handled, so that a call in progress does
/// not time out only because of the stop.
pub async fn run_for(duration: Duration) {
    let mut left = duration;
    while !left.is_zero() {
        let step = left.min(STEP);
        let begun = SystemClock.monotonic();
        pause(step).await;
        if SystemClock.monotonic().saturating_duration_since(begun) < STOPPED {
            left -= step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_is_past_the_year_2024() {
        assert!(SystemClock.now() > UnixMillis::from_seconds(1_704_067_200));
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let first = SystemClock.monotonic();
        assert!(SystemClock.monotonic() >= first);
    }

    #[test]
    fn minted_ids_differ_and_carry_the_time() {
        let (first, second) = (SystemIds.ulid(), SystemIds.ulid());
        assert_ne!(first, second);
        let minted = UnixMillis(i64::try_from(first.timestamp_ms()).expect("48 bits fit"));
        assert!(SystemClock.now().since(minted).abs() < 60_000);
    }
}
