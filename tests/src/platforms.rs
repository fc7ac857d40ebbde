//! Stand-ins of platforms with one account each, as far as stories and chaos need them.

pub mod discord;
pub mod telegram;

use std::sync::{Arc, Mutex, PoisonError};

/// How many read an account at this moment, and the most that ever did.
#[derive(Debug, Clone, Default)]
pub struct Readers(Arc<Mutex<(usize, usize)>>);

impl Readers {
    /// Returns the most that ever read at once.
    #[must_use]
    pub fn most(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// One that reads an account, until it is dropped.
struct OpenReader(Readers);

impl OpenReader {
    fn open(readers: &Readers) -> Self {
        let mut count = readers.0.lock().unwrap_or_else(PoisonError::into_inner);
        count.0 += 1;
        count.1 = count.1.max(count.0);
        Self(readers.clone())
    }
}

impl Drop for OpenReader {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}
