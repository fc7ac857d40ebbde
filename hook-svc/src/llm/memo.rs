//! Answers to identical questions within one event. Where there is none, whoever asked meanwhile shares why; who asks
//! afterwards asks anew.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::model::event::EventId;
use tokio::sync::OnceCell;

use crate::runner::CallError;

/// Answers kept; the oldest go first. Events are evaluated within seconds, so that their answers are among the newest.
const KEPT: usize = 4_096;

type Key = [u8; 32];
type Cell = Arc<OnceCell<Result<String, CallError>>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Memo(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    cells: HashMap<Key, Cell>,
    oldest: VecDeque<Key>,
}

impl Memo {
    /// The place for the answer to `question` upon `event`.
    pub(super) fn cell(&self, event: &EventId, question: &Value) -> Cell {
        let mut hasher = Sha256::new();
        hasher.update(event.as_str().as_bytes());
        hasher.update([0]);
        hasher.update(question.to_string().as_bytes());
        let key: Key = hasher.finalize().into();

        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = kept.cells.get_mut(&key) {
            if matches!(cell.get(), Some(Err(_))) {
                *cell = Cell::default();
            }
            return Arc::clone(cell);
        }

        if kept.oldest.len() >= KEPT
            && let Some(oldest) = kept.oldest.pop_front()
        {
            kept.cells.remove(&oldest);
        }

        let cell = Cell::default();
        kept.cells.insert(key, Arc::clone(&cell));
        kept.oldest.push_back(key);

        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_same_question_upon_the_same_event_has_one_place_and_old_ones_go() {
        let memo = Memo::default();
        let event = |number: usize| EventId::parse(format!("a:{number}")).expect("valid");
        let first = memo.cell(&event(0), &json!({"prompt": "x"}));

        assert!(Arc::ptr_eq(&first, &memo.cell(&event(0), &json!({"prompt": "x"}))));
        assert!(!Arc::ptr_eq(&first, &memo.cell(&event(0), &json!({"prompt": "y"}))));
        assert!(!Arc::ptr_eq(&first, &memo.cell(&event(1), &json!({"prompt": "x"}))));

        first.set(Err(CallError::new("provider_down", "x"))).expect("empty");
        let second = memo.cell(&event(0), &json!({"prompt": "x"}));
        assert!(!Arc::ptr_eq(&first, &second), "what was not answered is asked anew");

        second.set(Ok("y".to_owned())).expect("empty");
        assert!(Arc::ptr_eq(&second, &memo.cell(&event(0), &json!({"prompt": "x"}))));

        for number in 0..KEPT {
            memo.cell(&event(number + 2), &json!({}));
        }

        assert!(!Arc::ptr_eq(&second, &memo.cell(&event(0), &json!({"prompt": "x"}))));
    }
}
