//! The port to the agents that answer turns. Source: `docs/design/sessions.md` §6.
//!
//! Most agents answer whole ([`port::Agent::answer_request`]). An agent that thinks in steps offers [`port::StepAgent`] instead:
//! the worker asks its model and runs its tools one at a time, with each step in the ledger before it is acted on, so
//! that a turn continues at its step on any broker that takes it.

pub mod absence;
pub mod answer_files;
pub mod context;
pub mod echo;
pub mod live;
pub mod llm;
pub mod message_text;
mod model_files;
pub mod nats;
pub mod personas;
pub mod port;
pub mod process;
