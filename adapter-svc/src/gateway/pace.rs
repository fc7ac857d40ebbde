//! Rate limits per address: a bucket for each, stored as the time at which it is full again. *Pure.*
//!
//! If there are too many addresses for a bucket each, further ones share one bucket.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Maximum number of addresses with a bucket of their own.
const MAX_ADDRESSES: usize = 65_536;
/// Address of the bucket that further addresses share.
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The buckets of all addresses.
#[derive(Debug)]
pub struct RateLimiter {
    /// Cost of one request, as time.
    each: Duration,
    /// Capacity of a bucket, as time.
    holds: Duration,
    /// Time at which an address's bucket is full again. Full buckets are removed if space is needed.
    full_at: HashMap<IpAddr, Instant>,
}

impl RateLimiter {
    /// Creates buckets for `per_second` requests per second, and `burst` requests at once, for each address.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let each = Duration::from_secs(1) / per_second.max(1);
        Self {
            each,
            holds: each * burst.max(1),
            full_at: HashMap::new(),
        }
    }

    /// Counts a request of `from` at `now`.
    ///
    /// # Errors
    /// Returns the time to wait until the request is allowed.
    pub fn admit_request(&mut self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut from = address_block(from);
        if self.full_at.len() >= MAX_ADDRESSES && !self.full_at.contains_key(&from) {
            // A full bucket equals one that does not exist.
            self.full_at.retain(|_, full_at| *full_at > now);
            if self.full_at.len() >= MAX_ADDRESSES {
                from = OTHERS;
            }
        }

        let full_at = self.full_at.entry(from).or_insert(now);
        let after = (*full_at).max(now) + self.each;
        // The time until the bucket is full again is its used part.
        let lacks = after.saturating_duration_since(now).saturating_sub(self.holds);
        if !lacks.is_zero() {
            return Err(lacks);
        }

        *full_at = after;
        Ok(())
    }
}

/// Returns the address for which a client counts. A client with IPv6 usually has a block of 64 bits, which counts as
/// one.
pub(crate) fn address_block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::Clock as _;
    use shared::clock::SystemClock;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_burst_goes_through_and_then_one_by_one() {
        let mut pace = RateLimiter::new(10, 3);
        let begun = SystemClock.monotonic();
        let at = |ms| begun + Duration::from_millis(ms);

        let one = address("192.0.2.1");
        for _ in 0..3 {
            assert_eq!(pace.admit_request(one, at(0)), Ok(()));
        }

        assert_eq!(pace.admit_request(one, at(0)), Err(Duration::from_millis(100)));
        assert_eq!(
            pace.admit_request(one, at(40)),
            Err(Duration::from_millis(60)),
            "what is refused costs nothing"
        );
        assert_eq!(
            pace.admit_request(address("192.0.2.2"), at(40)),
            Ok(()),
            "another has its own"
        );
        assert_eq!(pace.admit_request(one, at(100)), Ok(()));
        assert_eq!(pace.admit_request(one, at(100)), Err(Duration::from_millis(100)));

        for _ in 0..3 {
            assert_eq!(
                pace.admit_request(one, at(60_000)),
                Ok(()),
                "it holds no more than a burst"
            );
        }

        assert!(pace.admit_request(one, at(60_000)).is_err());
    }

    #[test]
    fn a_block_of_addresses_is_one() {
        let mut pace = RateLimiter::new(1, 1);
        let now = SystemClock.monotonic();
        assert_eq!(pace.admit_request(address("2001:db8::1"), now), Ok(()));
        assert!(pace.admit_request(address("2001:db8::ffff:2"), now).is_err());
        assert_eq!(pace.admit_request(address("2001:db8:0:1::1"), now), Ok(()));
        assert_eq!(pace.admit_request(address("192.0.2.1"), now), Ok(()));
        assert!(
            pace.admit_request(address("::ffff:192.0.2.1"), now).is_err(),
            "the same, written otherwise"
        );
    }

    #[test]
    fn there_is_room_for_so_many_and_the_others_share() {
        let mut pace = RateLimiter::new(1, 1);
        let now = SystemClock.monotonic();
        for number in 1..=u32::try_from(MAX_ADDRESSES).expect("few") {
            assert_eq!(pace.admit_request(IpAddr::V4(Ipv4Addr::from_bits(number)), now), Ok(()));
        }

        assert_eq!(pace.admit_request(address("192.0.2.1"), now), Ok(()));
        assert!(
            pace.admit_request(address("192.0.2.2"), now).is_err(),
            "shared with the one before"
        );

        let later = now + Duration::from_secs(2);
        assert_eq!(pace.admit_request(address("192.0.2.2"), later), Ok(()));
        assert_eq!(pace.full_at.len(), 1, "full buckets are forgotten");
    }
}
