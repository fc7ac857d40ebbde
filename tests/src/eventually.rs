//! Waiting for a condition, with a deadline and no fixed waits.

pub use shared::testing::eventually_within as eventually;
