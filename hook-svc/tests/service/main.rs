//! hook-svc as a real process, with a real nats-server and a real Bun.

mod agents;
mod anew;
mod backfilled;
mod breakers;
mod changed_items;
mod copies;
mod crash;
mod deferred;
mod evaluation;
mod examples;
mod faults;
mod fetch;
mod fifty;
mod forgery;
mod head_of_line;
mod hooks;
mod hostile;
mod lent;
#[path = "../runner/old_kernel.rs"]
mod old_kernel;
mod older_kernels;
mod poison;
mod read_model;
mod reload;
mod replicas;
mod restored;
mod restored_flow;
mod sandbox;
mod seed;
mod snapshots;
mod standstill;
mod tools;
mod turn;
mod world;
