//! What a session owes the hooks of turns that are over. *Pure.*

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shared::model::ledger::{ToolCall, ToolOutcome};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::Fold;
use crate::hook_point::runs::{AT, LAST_HOOK, OWES, RAN, RETRIES, SETTLED};

/// Turns remembered as owing their last hooks; a session does not begin turns while it owes nearly as many.
pub const MAX_OWED: usize = 64;
/// A turn that is over and whose last hooks have not run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Owed {
    /// The turn.
    #[serde(rename = "owes", alias = "turn")]
    pub turn: Ulid,
    /// How it ended.
    #[serde(rename = "ended", alias = "outcome")]
    pub outcome: String,
    /// Sessions that it worked for: their hooks run as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub works_for: Vec<SessionRef>,
    /// What its hooks are told of it.
    #[serde(default, skip_serializing_if = "About::is_nothing")]
    pub about: About,
    /// A call of its, and how that ended, which the hooks behind calls have not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<(ToolCall, ToolOutcome)>,
    /// Names of the hooks that have run.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<String>,
    /// How often the next one was tried.
    #[serde(default)]
    pub tries: u32,
    /// When it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_at: Option<UnixMillis>,
}

/// What hooks are told of a turn at all of its points: who asked for it, and where.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct About {
    /// Who.
    pub user: String,
    /// The rest, by key.
    pub metadata: Map<String, Value>,
}

impl About {
    fn is_nothing(&self) -> bool {
        self.user.is_empty() && self.metadata.is_empty()
    }
}

impl Fold {
    /// Takes in what an entry about last hooks says.
    pub(super) fn owe(&mut self, outcome: &Value) {
        let turn = |key: &str| {
            outcome
                .get(key)
                .and_then(Value::as_str)
                .and_then(|id| id.parse::<Ulid>().ok())
        };

        if turn(OWES).is_some()
            && let Ok(owed) = serde_json::from_value::<Owed>(outcome.clone())
        {
            if self.owed.len() == MAX_OWED {
                self.owed.pop_front();
            }
            self.owed.push_back(owed);
        }

        let of = |owed: &&mut Owed, key| turn(key) == Some(owed.turn);
        if let Some(owed) = self.owed.iter_mut().find(|owed| of(owed, RAN)) {
            owed.tries = 0;
            owed.again_at = None;
            match outcome.get(LAST_HOOK).and_then(Value::as_str) {
                Some(hook) => drop(owed.done.insert(hook.to_owned())),
                None => owed.unseen = None,
            }
        }

        if let Some(owed) = self.owed.iter_mut().find(|owed| of(owed, RETRIES)) {
            owed.tries += 1;
            owed.again_at = outcome.get(AT).and_then(Value::as_i64).map(UnixMillis);
        }

        if let Some(turn) = turn(SETTLED) {
            self.owed.retain(|owed| owed.turn != turn);
        }
    }
}
