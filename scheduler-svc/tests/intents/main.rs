//! Intents against the real server.

mod clearing;
mod conditions;
mod hooks;
mod lifecycle;
mod races;
mod world;
