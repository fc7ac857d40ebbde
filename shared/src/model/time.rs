//! Instants as they travel: Unix milliseconds. *Pure.*

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant in Unix milliseconds (UTC).
///
/// A value, not a clock: only [`crate::clock`] reads time.
///
/// ```
/// use shared::model::time::UnixMillis;
///
/// let start = UnixMillis::from_seconds(60);
/// assert_eq!(start.plus(1_500).since(start), 1_500);
/// assert_eq!(UnixMillis(-1).seconds(), -1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// Returns this instant moved forward by `millis`, or backward if `millis` is negative. Saturates at the bounds.
    #[must_use]
    pub const fn plus(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Returns the milliseconds from `earlier` to this instant; negative if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the whole seconds since the epoch, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// Returns this instant in UTC as RFC 3339, for people; beyond the year 9999, as Unix milliseconds.
    ///
    /// ```
    /// use shared::model::time::UnixMillis;
    ///
    /// assert_eq!(UnixMillis(1_500).to_rfc3339(), "1970-01-01T00:00:01.5Z");
    /// ```
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        jiff::Timestamp::from_millisecond(self.0).map_or_else(|_| self.0.to_string(), |at| at.to_string())
    }

    /// Returns the instant at whole `seconds` since the epoch. Saturates at the bounds.
    #[must_use]
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }
}

/// Returns `duration` in whole milliseconds, rounded down. Saturates at the bound.
///
/// ```
/// use std::time::Duration;
///
/// use shared::model::time::{UnixMillis, millis_of};
///
/// assert_eq!(UnixMillis(1).plus(millis_of(Duration::from_micros(2_900))), UnixMillis(3));
/// ```
#[must_use]
pub fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl std::fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
