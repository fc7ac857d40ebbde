//! Hooks inside a turn: code around the model that the model neither sees nor argues with.
//!
//! [`rules`] reads the declarations of `hooks.yaml` and `personas.yaml` ([`declared`], [`condition`], [`builtin`],
//! [`reminder`], [`allow_list`]). [`turn_hooks`] runs the hooks of a [`point`], each kind through its own file
//! ([`command`] with the protocol of [`claude`], [`script`], [`rate`]), by the contract of [`outcome`]. [`gate`]
//! decides about a tool call, [`callback`] serves agents that run tools themselves, and [`record`] and [`runs`]
//! record the outcomes of hooks. Source: `docs/design/sessions.md` §7; seed 002; seed 004.

pub mod allow_list;
pub mod breakers;
pub mod builtin;
pub mod callback;
pub mod claude;
pub mod command;
pub mod condition;
pub mod declared;
pub mod fault;
pub mod gate;
pub mod hooked_turn;
pub mod outcome;
pub mod point;
pub mod rate;
pub mod record;
pub mod reminder;
pub mod rules;
pub mod runs;
pub mod script;
pub mod truncate;
pub mod turn_hooks;

pub use gate::GateDecision;
pub use hooked_turn::HookedTurn;
pub use point::HookPoint;
pub use turn_hooks::{PointOutcome, TurnHooks};
