//! The service over HTTP on a real port, against a real nats-server.

mod approvals;
mod chat;
mod crash;
mod events;
mod hostile;
mod hosts;
mod limits;
mod markdown;
mod page;
mod threads;
mod vectors;
mod webhooks;
mod world;
