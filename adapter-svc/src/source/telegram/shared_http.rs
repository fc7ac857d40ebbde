//! The HTTP client of all polled accounts, which can be given new connections.
//!
//! A client has certificates in memory, so that accounts share one. If the vendor is away, each of them asks for other
//! connections, again and again: they get the same new ones.

use std::sync::{Arc, Mutex, PoisonError};

use super::client::{BotCallError, open_http};

/// A client, which accounts share. Clones are the same.
#[derive(Debug, Clone)]
pub struct SharedHttp(Arc<Mutex<NumberedHttp>>);

/// A client with its number: each later one has a higher number.
#[derive(Debug, Clone)]
pub struct NumberedHttp {
    /// Number.
    pub number: u64,
    /// Client.
    pub http: reqwest::Client,
}

impl SharedHttp {
    /// Shares `http`.
    #[must_use]
    pub fn new(http: reqwest::Client) -> Self {
        Self(Arc::new(Mutex::new(NumberedHttp { number: 0, http })))
    }

    /// Returns the newest client.
    #[must_use]
    pub fn newest(&self) -> NumberedHttp {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a client with other connections than the one with `number`: the newest, or a new one if it is that.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if a client cannot be opened.
    pub fn newer_than(&self, number: u64) -> Result<NumberedHttp, BotCallError> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.number <= number {
            *newest = NumberedHttp {
                number: number + 1,
                http: open_http()?,
            };
        }
        Ok(newest.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_whose_connections_are_dead_get_the_same_new_ones() {
        let shared = SharedHttp::new(open_http().expect("a client"));
        let first = shared.newest().number;
        let newer = |number: u64| shared.newer_than(number).expect("a client").number;
        let second = newer(first);
        assert!(second > first);
        assert_eq!((newer(first), shared.newest().number), (second, second));
        // One whose new connections are dead too gets further ones.
        assert!(newer(second) > second);
    }
}
