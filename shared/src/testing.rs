//! Helpers of all crates' tests: a clock that tests can move, seeded ids, a real NATS server per test, a model server
//! that implements the providers' wire formats.

mod child;
mod clock;
mod connect;
mod eventually;
mod fixture;
mod ids;
mod model_folder;
pub mod model_server;
pub mod nats;
mod process_clock;
pub mod sample;
mod says;
mod trust;

pub use child::{TestProcess, memory_kib};
pub use clock::ManualClock;
pub use connect::{connect, connect_to, world};
pub use eventually::{WorkLeft, eventually, eventually_some, eventually_while_progressing, eventually_within};
pub use fixture::{fixture, fixture_text, replace_each_part};
pub use ids::SeededIds;
pub use model_folder::model_folder;
pub use model_server::ModelServer;
pub use process_clock::ProcessClock;
pub use says::says;
pub use trust::{CLUSTER_KEY, trust, trust_section};
