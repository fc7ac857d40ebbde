//! What tests of every crate use: a clock one can move, seeded ids, a real NATS server of one's own, a model server
//! that speaks the providers' wire formats.

mod clock;
mod connect;
mod ids;
pub mod model_server;
pub mod nats;

pub use clock::ManualClock;
pub use connect::connect;
pub use ids::SeededIds;
pub use model_server::ModelServer;
