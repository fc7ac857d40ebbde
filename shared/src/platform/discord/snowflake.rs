//! Ids of Discord: numbers that ascend with the time at which the item was made. *Pure.* Source:
//! <https://discord.com/developers/docs/reference#snowflakes>.

use crate::model::time::UnixMillis;

/// Beginning of the vendor's time, in milliseconds since 1970.
const EPOCH_MS: i64 = 1_420_070_400_000;

/// Number of bits behind the time.
const TIME_SHIFT: u32 = 22;

/// Returns the time at which the item `id` was made; `None` if it is no id.
#[must_use]
pub fn snowflake_time(id: &str) -> Option<UnixMillis> {
    id.parse().ok().map(time_of)
}

/// Returns the time of the number `id`.
#[must_use]
pub fn time_of(id: u64) -> UnixMillis {
    // 42 bits.
    UnixMillis(i64::try_from(id >> TIME_SHIFT).unwrap_or(0) + EPOCH_MS)
}

/// Returns the lowest id that an item of the time `at` can have; 0 before the vendor's time.
#[must_use]
pub fn first_id_at(at: UnixMillis) -> u64 {
    let since = u64::try_from(at.0.saturating_sub(EPOCH_MS)).unwrap_or(0);
    since.checked_shl(TIME_SHIFT).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_times() {
        // The vendor's example.
        let at = UnixMillis(1_462_015_105_796);
        assert_eq!(snowflake_time("175928847299117063"), Some(at));
        assert_eq!(time_of(first_id_at(at)), at);
        assert!(first_id_at(at) <= 175_928_847_299_117_063 && first_id_at(at.plus(1)) > 175_928_847_299_117_063);
        assert_eq!((first_id_at(UnixMillis(0)), snowflake_time("MSG_1")), (0, None));
        assert_eq!(time_of(0), UnixMillis(EPOCH_MS));
        let _ = time_of(u64::MAX);
    }
}
