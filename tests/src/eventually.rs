//! Waiting for a condition, with a deadline and no fixed waits.

pub use shared::testing::{WorkLeft, eventually_while_progressing, eventually_within as eventually};
