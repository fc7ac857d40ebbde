//! Answers to identical prompts within one event. Calls that wait for the same answer share its error; a later call
//! tries again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::model::event::EventId;
use tokio::sync::OnceCell;

use crate::runner::CallError;

/// Most answers kept; the oldest are dropped first. Events are evaluated within seconds, so their answers are among the
/// newest.
const KEPT: usize = 4_096;

type Key = [u8; 32];
type Cell = Arc<OnceCell<Result<String, CallError>>>;

/// Cache of answers; see the module.
#[derive(Debug, Default)]
pub(super) struct AnswerMemo(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    cells: HashMap<Key, Cell>,
    oldest: VecDeque<Key>,
}

impl AnswerMemo {
    /// Returns the cell for the answer to `question` for `event`; a cell with an error is replaced by an empty one.
    pub(super) fn answer_cell(&self, event: &EventId, question: &Value) -> Cell {
        let mut hasher = Sha256::new();
        hasher.update(event.as_str().as_bytes());
        hasher.update([0]);
        hasher.update(question.to_string().as_bytes());
        let key: Key = hasher.finalize().into();

        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = kept.cells.get_mut(&key) {
            // An error is not kept: the next question asks again.
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
        let memo = AnswerMemo::default();
        let event = |number: usize| EventId::parse(format!("a:{number}")).expect("valid");
        let first = memo.answer_cell(&event(0), &json!({"prompt": "x"}));

        assert!(Arc::ptr_eq(
            &first,
            &memo.answer_cell(&event(0), &json!({"prompt": "x"}))
        ));
        assert!(!Arc::ptr_eq(
            &first,
            &memo.answer_cell(&event(0), &json!({"prompt": "y"}))
        ));
        assert!(!Arc::ptr_eq(
            &first,
            &memo.answer_cell(&event(1), &json!({"prompt": "x"}))
        ));

        first.set(Err(CallError::new("provider_down", "x"))).expect("empty");
        let second = memo.answer_cell(&event(0), &json!({"prompt": "x"}));
        assert!(!Arc::ptr_eq(&first, &second), "what was not answered is asked anew");

        second.set(Ok("y".to_owned())).expect("empty");
        assert!(Arc::ptr_eq(
            &second,
            &memo.answer_cell(&event(0), &json!({"prompt": "x"}))
        ));

        for number in 0..KEPT {
            memo.answer_cell(&event(number + 2), &json!({}));
        }

        assert!(!Arc::ptr_eq(
            &second,
            &memo.answer_cell(&event(0), &json!({"prompt": "x"}))
        ));
    }
}
