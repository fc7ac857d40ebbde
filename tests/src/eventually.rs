//! Waiting for a condition, with a deadline and no fixed waits.

pub use shared::testing::{WorkLeft, eventually_if_it_goes_on, eventually_within as eventually};
