//! Intents against the real server.

mod audit;
mod clearing;
mod conditions;
mod hooks;
mod lifecycle;
mod looking;
mod lost;
mod pairs;
mod races;
mod restored;
mod sending;
mod withdrawal;
mod world;
