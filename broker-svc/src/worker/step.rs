//! What the steps of a turn share: their inputs, and how one ends.

use serde_json::Value;
use shared::model::approval::Party;
use shared::model::ledger::ToolCall;
use shared::wire::agent::AgentRequest;

use super::turn::Ended;
use crate::agent::port::{Offer, Stepper};
use crate::hook_point::Moment;
use crate::personas::Persona;
use crate::tool::schema::misfit;
use crate::turn::Turn;

/// What stays the same over a turn's steps.
pub(super) struct Thinking<'a> {
    pub(super) turn: &'a Turn,
    pub(super) persona: &'a Persona,
    pub(super) stepper: &'a dyn Stepper,
    pub(super) offers: Vec<Offer>,
    pub(super) request: AgentRequest,
    /// Who wrote what the turn answers.
    pub(super) initiator: Option<Party>,
    pub(super) moment: Moment,
}

impl Thinking<'_> {
    /// What is wrong with `arguments` by the schema of the tool `name`.
    pub(super) fn misfit(&self, name: &str, arguments: &Value) -> Option<String> {
        misfit(&self.offer(name)?.description.parameters, arguments)
    }

    pub(super) fn offer(&self, name: &str) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.description.name == name)
    }
}

/// How a step went.
pub(super) enum Stepped {
    On,
    Ended(Ended),
}

/// Whether a call runs.
pub(super) enum Confirmed {
    /// It does, with these arguments.
    Run(ToolCall),
    /// It does not, now.
    Stepped(Stepped),
}
