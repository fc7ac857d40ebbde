//! What stories, chaos and benches share: a whole Nexus in a temporary directory, and what its streams hold.

pub mod autoscaler;
pub mod cluster;
pub mod collector;
pub mod command;
pub mod driver;
pub mod eventually;
pub mod kubelet;
pub mod load;
pub mod manifests;
pub mod network;
pub mod npm;
pub mod page;
pub mod platforms;
pub mod prometheus;
pub mod receiver;
pub mod record;
pub mod slack;
pub mod stream_walk;
pub mod subject_record;
pub mod tally;
pub mod wire_client;
pub mod world;
