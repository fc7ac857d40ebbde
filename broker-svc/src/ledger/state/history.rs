//! The history: the texts of finished turns, as far as they are remembered. *Pure.*

use serde::{Deserialize, Serialize};
use shared::model::ledger::DispatchRef;
use ulid::Ulid;

use super::SessionState;
use crate::agent::message_text::{as_data, shorten_text};

/// Maximum number of turns in the history.
pub const HISTORY_TURNS: usize = 64;
/// Maximum text of the history, bytes over all turns.
pub const HISTORY_BYTES: usize = 48 * 1_024;
/// Maximum text of the history in one request, bytes. With one more turn the whole history is still remembered, so
/// that a turn left out for want of room is in the summary before that.
pub const MAX_SENT_HISTORY: usize = HISTORY_BYTES - 2 * MAX_HISTORY_TEXT;

/// Maximum text of one side of an exchange in the history, bytes.
pub const MAX_HISTORY_TEXT: usize = 8 * 1_024;

/// One finished turn of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryTurn {
    /// Id of the turn.
    pub turn: Ulid,
    /// Text of the user; text that is not the owner's is marked.
    pub user: String,
    /// Text of the agent's answer.
    pub agent: String,
}

impl HistoryTurn {
    pub(super) const fn bytes(&self) -> usize {
        self.user.len() + self.agent.len()
    }
}

impl SessionState {
    /// Adds a turn that ended without an answer, with its partial text and the tools that it began.
    pub(super) fn remember_broken_off(&mut self, turn: Ulid, partial: &str, why: &str) {
        let Some(running) = &self.running else { return };
        let mut said = String::new();
        for text in running
            .last_answer()
            .map(|(_, content, _)| content)
            .into_iter()
            .chain([partial])
        {
            if !text.is_empty() {
                said.push_str(&shorten_text(text, MAX_HISTORY_TEXT / 4));
                said.push('\n');
            }
        }

        // The next turn must know which tools have had an effect.
        let tools = running.begun_calls();
        if !tools.is_empty() {
            said.push_str(&format!(
                "[tools that ran: {}]\n",
                shorten_text(&tools.join(", "), MAX_HISTORY_TEXT / 4)
            ));
        }

        said.push_str(&format!("[{why}]"));
        self.remember_turn(turn, &said);
    }

    pub(super) fn remember_turn(&mut self, turn: Ulid, agent: &str) {
        let Some(running) = &self.running else { return };
        let marked = |said: &DispatchRef| match &said.stranger {
            Some(from) => as_data(from, &said.content),
            None => said.content.clone(),
        };

        let said: Vec<String> = running.dispatches.iter().map(marked).collect();
        let exchange = HistoryTurn {
            turn,
            user: shorten_text(&said.join("\n"), MAX_HISTORY_TEXT),
            agent: shorten_text(agent, MAX_HISTORY_TEXT),
        };

        self.history.push_back(exchange);
        let mut bytes: usize = self.history.iter().map(HistoryTurn::bytes).sum();
        while self.history.len() > HISTORY_TURNS || (bytes > HISTORY_BYTES && self.history.len() > 1) {
            bytes -= self.history.pop_front().map_or(0, |oldest| oldest.bytes());
        }
    }

    pub(super) fn compact(&mut self, through: Ulid, summary: &str) {
        if let Some(last) = self.history.iter().position(|exchange| exchange.turn == through) {
            self.history.drain(..=last);
        }
        self.summary = Some(summary.to_owned());
    }
}
