//! hook-svc as a real process, with a real nats-server and a real Bun.

mod breakers;
mod crash;
mod evaluation;
mod examples;
mod faults;
mod fetch;
mod hooks;
mod hostile;
mod poison;
mod read_model;
mod reload;
mod replicas;
mod sandbox;
mod seed;
mod snapshots;
mod tools;
mod turn;
mod world;
