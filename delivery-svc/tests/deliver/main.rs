//! Deliveries over a real NATS server: webhooks, web chat, core subjects; failures, order, takeover.

mod failures;
mod live;
mod order;
mod receiver;
mod webhook;
mod world;
