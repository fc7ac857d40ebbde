//! Intents against the real server.

mod conditions;
mod lifecycle;
mod races;
mod world;
