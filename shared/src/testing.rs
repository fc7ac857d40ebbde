//! What tests of every crate use: a clock one can move, seeded ids, a real NATS server of one's own.

mod clock;
mod ids;
pub mod nats;

pub use clock::ManualClock;
pub use ids::SeededIds;
