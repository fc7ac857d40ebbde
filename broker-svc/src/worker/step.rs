//! Types that the steps of a turn share: their inputs, and their outcome.

use serde_json::Value;
use shared::model::approval::ApprovalParty;
use shared::model::ledger::ToolCall;
use shared::wire::agent::AgentRequest;

use super::turn::TurnOutcome;
use crate::agent::personas::Persona;
use crate::agent::port::{OfferedTool, StepAgent};
use crate::hooks::HookedTurn;
use crate::tool::arguments::find_misfit;
use crate::turn::Turn;

/// Inputs that stay the same over the steps of a turn.
pub(super) struct StepInputs<'a> {
    pub(super) turn: &'a Turn,
    pub(super) persona: &'a Persona,
    pub(super) stepper: &'a dyn StepAgent,
    pub(super) offers: Vec<OfferedTool>,
    pub(super) request: AgentRequest,
    /// Author of the messages that the turn answers.
    pub(super) initiator: Option<ApprovalParty>,
    pub(super) moment: HookedTurn,
}

impl StepInputs<'_> {
    /// Returns why `arguments` do not fit the schema of the tool `name`, if they do not.
    pub(super) fn misfit(&self, name: &str, arguments: &Value) -> Option<String> {
        find_misfit(&self.offer(name)?.description.parameters, arguments)
    }

    pub(super) fn offer(&self, name: &str) -> Option<&OfferedTool> {
        self.offers.iter().find(|offer| offer.description.name == name)
    }
}

/// Outcome of a step.
pub(super) enum StepOutcome {
    On,
    Ended(TurnOutcome),
}

/// Whether a call may run now.
pub(super) enum CallConfirmation {
    /// The call runs, with these arguments.
    Run(ToolCall),
    /// The call does not run now; the step ends like this.
    Stepped(StepOutcome),
}
