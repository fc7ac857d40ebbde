//! What stories, chaos and benches share: a whole Nexus in a temporary directory, and what its streams hold.

pub mod eventually;
pub mod load;
pub mod record;
pub mod world;
