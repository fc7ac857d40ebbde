//! The history: what was said in the turns that are over, as much as is remembered. *Pure.*

use serde::{Deserialize, Serialize};
use shared::model::ledger::DispatchRef;
use ulid::Ulid;

use super::Fold;
use crate::message_text::as_data;
use crate::message_text::shortened;

/// Turns of history remembered.
pub const HISTORY_TURNS: usize = 64;
/// Text of history remembered, bytes over all turns.
pub const HISTORY_BYTES: usize = 48 * 1_024;
/// Text of history that can go along, bytes: with a turn more it is all remembered still, so that what goes for want of
/// room stands in the summary before.
pub const MAX_SENT_HISTORY: usize = HISTORY_BYTES - 2 * MAX_HISTORY_TEXT;

/// Longest text of one side of an exchange kept in history, bytes.
pub const MAX_HISTORY_TEXT: usize = 8 * 1_024;

/// One turn of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The turn.
    pub turn: Ulid,
    /// What the user said; what is not the owner's is marked.
    pub user: String,
    /// What the agent said.
    pub agent: String,
}

impl Exchange {
    pub(super) const fn bytes(&self) -> usize {
        self.user.len() + self.agent.len()
    }
}

impl Fold {
    /// A turn that is over without an answer: what it had said, and what it had done.
    pub(super) fn remember_broken_off(&mut self, turn: Ulid, partial: &str, why: &str) {
        let Some(running) = &self.running else { return };
        let mut said = String::new();
        for text in running
            .answered()
            .map(|(_, content, _)| content)
            .into_iter()
            .chain([partial])
        {
            if !text.is_empty() {
                said.push_str(&shortened(text, MAX_HISTORY_TEXT / 4));
                said.push('\n');
            }
        }

        let tools = running.begun_calls();
        if !tools.is_empty() {
            said.push_str(&format!(
                "[tools that ran: {}]\n",
                shortened(&tools.join(", "), MAX_HISTORY_TEXT / 4)
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
        let exchange = Exchange {
            turn,
            user: shortened(&said.join("\n"), MAX_HISTORY_TEXT),
            agent: shortened(agent, MAX_HISTORY_TEXT),
        };

        self.history.push_back(exchange);
        let mut bytes: usize = self.history.iter().map(Exchange::bytes).sum();
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
