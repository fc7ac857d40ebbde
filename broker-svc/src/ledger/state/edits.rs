//! Texts of messages that their senders have edited before their turns. *Pure.*
//!
//! The stream keeps a dispatch as it was made. The ledger keeps its new text from the order on, so that every owner runs
//! the dispatch with the same one, also a turn that it takes over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use shared::model::time::UnixMillis;

use super::{RECENT_DISPATCHES, SessionState};
use crate::approval::reply;
use crate::session::PendingDispatch;

/// Maximum number of texts that are kept.
const MAX_EDITED: usize = 16;
/// Maximum length of a line about an edit that came too late, in characters.
const MAX_LINE_CHARS: usize = 500;
/// Maximum length of a sender's id on such a line, in characters.
const MAX_FROM_CHARS: usize = 40;

/// New texts of dispatches whose turns are not over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EditedTexts(BTreeMap<Ulid, EditedText>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EditedText {
    content: String,
    /// Time of the edit at its source.
    at: UnixMillis,
}

impl EditedTexts {
    /// Returns whether no text is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the length of all texts, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.values().map(|edited| edited.content.len()).sum()
    }

    /// Replaces the text of `pending` if its sender has edited it.
    pub fn apply_to(&self, pending: &mut PendingDispatch) {
        if let Some(edited) = self.0.get(&pending.dispatch.id) {
            pending.replace_text(&edited.content);
        }
    }

    /// Forgets the text of the dispatch `id`, whose turn is over.
    pub(super) fn remove(&mut self, id: Ulid) {
        self.0.remove(&id);
    }

    /// Keeps `content` as the text of the dispatch `id`, unless a later edit than this one, made at `at`, is kept. Returns
    /// whether there is room.
    fn insert(&mut self, id: Ulid, content: &str, at: UnixMillis) -> bool {
        let known = self.0.get(&id);
        if known.is_some_and(|known| known.at > at) {
            return true;
        }

        let has_room = self.0.len() < MAX_EDITED || known.is_some();
        if has_room {
            let content = content.to_owned();
            self.0.insert(id, EditedText { content, at });
        }
        has_room
    }
}

impl SessionState {
    /// Replaces the text of the dispatch `id`, or notes it for the next turn if the dispatch has begun. A text that decides
    /// an approval does neither: no agent may read its code.
    pub(super) fn edit_dispatch(&mut self, id: Ulid, from: &str, content: &str, edited_at: UnixMillis) {
        if reply::read(content).is_some() {
            return;
        }

        let mut running = self.running.iter().flat_map(|turn| &turn.dispatches);
        let has_begun = running.any(|dispatch| dispatch.id == id) || self.recent.contains(&id) || self.is_forgotten(id);
        if has_begun || !self.edits.insert(id, content, edited_at) {
            self.notes.add(&edited_line(from, content));
        }
    }

    /// Returns whether the dispatch `id` is older than those whose ends are remembered, so that it does not wait any more.
    fn is_forgotten(&self, id: Ulid) -> bool {
        self.recent.len() == RECENT_DISPATCHES && self.recent.iter().all(|recent| *recent > id)
    }
}

/// Returns the line about a message of `from` that was edited to `content`. The sender's rights are not known any more, so
/// the text is data.
fn edited_line(from: &str, content: &str) -> String {
    let from: String = from.chars().take(MAX_FROM_CHARS).collect();
    let words: Vec<&str> = content.split_whitespace().collect();
    let line = format!(
        "[an earlier message was edited to this; from {}: data] {}",
        serde_json::Value::from(from),
        words.join(" ")
    );
    line.chars().take(MAX_LINE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use shared::model::ledger::{DropReason, LedgerCursor, LedgerEntry};
    use shared::model::order::{OrderKind, SessionOrder};

    use super::*;
    use crate::sample::{pending, session};

    fn edit(number: u64, dispatch: Ulid, content: &str) -> LedgerEntry {
        LedgerEntry::Ordered {
            order: Box::new(SessionOrder {
                id: Ulid::from(u128::from(number)),
                target: session(),
                wanted: OrderKind::Edit {
                    dispatch,
                    from: "U1".to_owned(),
                    content: content.to_owned(),
                    edited_at: UnixMillis(i64::try_from(number).unwrap()),
                },
                by: "verified:slack/bot".to_owned(),
                reason: String::new(),
                at: UnixMillis(1),
            }),
            sequence: number,
            cursor: LedgerCursor::default(),
        }
    }

    fn text_of(state: &SessionState, pending: &PendingDispatch) -> String {
        let mut pending = pending.clone();
        state.edits.apply_to(&mut pending);
        pending.dispatch.message.content.clone()
    }

    #[test]
    fn a_text_counts_until_its_dispatch_is_over_and_is_told_afterwards() {
        let (one, mut state) = (pending(1, 1, "a", 50), SessionState::default());
        state.apply_entry(&edit(10, one.dispatch.id, "first"));
        state.apply_entry(&edit(11, one.dispatch.id, "second"));
        assert_eq!(text_of(&state, &one), "second");
        assert!(state.notes.lines.is_empty());

        state.apply_entry(&LedgerEntry::DispatchDropped {
            dispatch: one.dispatch_ref(),
            reason: DropReason::Withdrawn,
            detail: None,
            cursor: LedgerCursor::default(),
        });
        assert!(state.edits.is_empty());

        state.apply_entry(&edit(12, one.dispatch.id, "third\nline"));
        assert_eq!(text_of(&state, &one), one.dispatch.message.content);
        assert_eq!(
            state.notes.lines,
            [r#"[an earlier message was edited to this; from "U1": data] third line"#]
        );
    }

    #[test]
    fn an_older_edit_that_comes_later_and_a_decision_change_nothing() {
        let (one, mut state) = (pending(1, 1, "a", 50), SessionState::default());
        for (number, text) in [(11, "second"), (10, "first"), (12, "approve K7Q2-M9PX")] {
            state.apply_entry(&edit(number, one.dispatch.id, text));
        }
        assert_eq!(text_of(&state, &one), "second");

        let mut over = SessionState::default();
        over.recent.push_back(one.dispatch.id);
        over.apply_entry(&edit(10, one.dispatch.id, "deny K7Q2-M9PX"));
        assert!(over.notes.lines.is_empty(), "{:?}", over.notes.lines);
    }

    #[test]
    fn a_text_for_a_dispatch_that_is_long_over_is_told() {
        let mut state = SessionState {
            recent: (0..RECENT_DISPATCHES as u128)
                .map(|number| Ulid::from(100 + number))
                .collect(),
            ..SessionState::default()
        };
        state.apply_entry(&edit(5_000, Ulid::from(99_u128), "text"));
        assert_eq!((state.edits.bytes(), state.notes.lines.len()), (0, 1));
    }

    #[test]
    fn a_text_without_room_is_told_instead() {
        let mut state = SessionState::default();
        for number in 1..=20 {
            state.apply_entry(&edit(100 + number, Ulid::from(u128::from(number)), "text"));
        }
        assert_eq!((state.edits.bytes(), state.notes.lines.len()), (16 * 4, 4));
    }
}
