//! The port behind which whoever answers sits. Source: `docs/design/sessions.md` §6.
//!
//! Most answer whole ([`port::Agent::ask`]). One that thinks in steps offers [`port::Stepper`] instead: the worker asks its model
//! and runs its tools one at a time, each step in the ledger before it is acted on, so that a turn goes on at its step
//! on whichever broker takes it.

pub mod echo;
pub mod llm;
pub mod nats;
pub mod port;
pub mod process;
