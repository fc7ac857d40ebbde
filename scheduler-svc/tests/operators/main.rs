//! Requests of operators against the real server: each is done once, whoever asks, however often, and wherever a replica was
//! killed.

mod held;
mod letters;
mod world;
