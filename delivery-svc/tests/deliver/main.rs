//! Deliveries over a real NATS server: webhooks, web chat, core subjects; failures, order, takeover.

mod acknowledgements;
mod bot_api;
mod changes;
mod copies;
mod discord;
mod discord_api;
mod failures;
mod files;
mod form;
mod frozen;
mod handover;
mod held;
mod live;
mod order;
mod outcomes;
mod parts;
mod previews;
mod receiver;
mod restored;
mod scripted;
mod slack;
mod telegram;
mod typing;
mod web_api;
mod webhook;
mod world;
