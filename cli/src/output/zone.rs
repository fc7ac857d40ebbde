//! Times as people read them: in the zone of the reader, or in UTC with `--utc`.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use shared::model::time::UnixMillis;

/// Time zone in which a command shows times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    zone: TimeZone,
}

impl Zone {
    /// Returns UTC.
    #[must_use]
    pub const fn utc() -> Self {
        Self { zone: TimeZone::UTC }
    }

    /// Returns the zone of this process: `TZ`, else that of the machine, else UTC.
    #[must_use]
    pub fn of_reader() -> Self {
        Self {
            zone: TimeZone::try_system().unwrap_or(TimeZone::UTC),
        }
    }

    /// Returns the zone with the IANA name `name`, or UTC if there is none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            zone: TimeZone::get(name).unwrap_or(TimeZone::UTC),
        }
    }

    /// Returns `at` as date and time to the second: `2026-11-22 09:00:00`.
    #[must_use]
    pub fn date_time(&self, at: UnixMillis) -> String {
        self.format("%Y-%m-%d %H:%M:%S", at)
    }

    /// Returns `at` as time of day with milliseconds: `09:00:00.000`.
    #[must_use]
    pub fn clock(&self, at: UnixMillis) -> String {
        self.format("%H:%M:%S%.3f", at)
    }

    /// Returns `at` with its weekday and the offset of the zone: `Sun 2026-11-22 04:00:00 -05:00`.
    #[must_use]
    pub fn with_offset(&self, at: UnixMillis) -> String {
        self.format("%a %Y-%m-%d %H:%M:%S %:z", at)
    }

    /// Returns the date of `at`: `2026-11-22`.
    #[must_use]
    pub fn date(&self, at: UnixMillis) -> String {
        self.format("%Y-%m-%d", at)
    }

    /// Returns the instant of a wall clock without a zone, such as `2026-11-22T09:00:00.5`, if it has one in this zone.
    #[must_use]
    pub fn parse_local(&self, text: &str) -> Option<UnixMillis> {
        let local: jiff::civil::DateTime = text.parse().ok()?;
        let zoned = local.to_zoned(self.zone.clone()).ok()?;
        Some(UnixMillis(zoned.timestamp().as_millisecond()))
    }

    fn format(&self, format: &str, at: UnixMillis) -> String {
        match Timestamp::from_millisecond(at.0) {
            Ok(at) => at.to_zoned(self.zone.clone()).strftime(format).to_string(),
            // Beyond the year 9999: the number is all that can be said.
            Err(_) => at.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_their_zone() {
        let at = UnixMillis(1_795_338_000_004);
        let (utc, york) = (Zone::utc(), Zone::named("America/New_York"));
        assert_eq!(utc.date_time(at), "2026-11-22 09:00:00");
        assert_eq!(york.date_time(at), "2026-11-22 04:00:00");
        assert_eq!(utc.clock(at), "09:00:00.004");
        assert_eq!(york.with_offset(at), "Sun 2026-11-22 04:00:00 -05:00");
        assert_eq!(utc.date(UnixMillis(-1)), "1969-12-31");
        assert_eq!(york.parse_local("2026-11-22T04:00:00.004"), Some(at));
        assert_eq!(utc.date_time(UnixMillis(i64::MAX)), i64::MAX.to_string());
    }
}
