//! Intents against the real server.

mod conditions;
mod hooks;
mod lifecycle;
mod races;
mod world;
