//! Compaction: when a session's history outgrows the persona's request limits, a summary replaces its beginning.
//! *Pure.*
//!
//! Source: `docs/design/sessions.md` §4. The ledger keeps everything; only the context is shorter. The summary is
//! made of the turns' first words, so that it costs nothing and is the same on every broker.

use shared::model::ledger::LedgerEntry;

use crate::agent::message_text::shorten_text;
use crate::agent::personas::{PersonaLimits, TOKEN_BYTES, tokens_of};
use crate::ledger::state::{HistoryTurn, MAX_SENT_HISTORY, SessionState};

/// Maximum length of a line about one side of a turn, bytes.
const LINE_BYTES: usize = 160;
/// Maximum length of a summary, bytes; the oldest lines are removed first.
pub const SUMMARY_BYTES: usize = 8 * 1_024;
/// Number of newest turns that are not summarized if there is room: the last texts are needed word by word.
const KEEP_TURNS: usize = 4;

/// Returns the entry that shortens the history of `fold`, if it is longer than `limits` allow: the older half is
/// summarized.
#[must_use]
pub fn compaction_entry(fold: &SessionState, limits: &PersonaLimits) -> Option<LedgerEntry> {
    let size = |exchange: &HistoryTurn| tokens_of(&exchange.user) + tokens_of(&exchange.agent);
    let total: usize = fold.history.iter().map(size).sum();
    if total <= limits.history_tokens && fold.history.len() < limits.history_turns {
        return None;
    }

    // The oldest exchanges go first, until half of the limits is free: so the next turn does not compact again.
    let mut left = total;
    let turns = fold.history.len();
    let mut going = 0;

    let is_long = |left: usize, going: usize| {
        let keeps_few = turns - going <= KEEP_TURNS;
        let wanted = left > limits.history_tokens / 2 || turns - going > limits.history_turns / 2;
        // Otherwise the fold would forget it when the turn begins, without a summary.
        let must = left > MAX_SENT_HISTORY / TOKEN_BYTES && turns - going > 1;
        must || !keeps_few && wanted
    };

    while is_long(left, going) {
        left -= size(&fold.history[going]);
        going += 1;
    }

    let last = fold.history.get(going.checked_sub(1)?)?;
    let mut lines: Vec<String> = fold.summary.iter().flat_map(|s| s.lines().map(str::to_owned)).collect();
    lines.extend(fold.history.iter().take(going).map(exchange_line));
    let mut bytes: usize = lines.iter().map(|line| line.len() + 1).sum();

    // The summary is bounded as well: its oldest lines are the least useful.
    let mut from = 0;
    while bytes > SUMMARY_BYTES && from + 1 < lines.len() {
        bytes -= lines[from].len() + 1;
        from += 1;
    }

    Some(LedgerEntry::Compacted {
        through: last.turn,
        summary: lines[from..].join("\n"),
    })
}

fn exchange_line(exchange: &HistoryTurn) -> String {
    let side = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let whole = words.join(" ");
        let cut = shorten_text(&whole, LINE_BYTES);
        if cut.len() < whole.len() {
            format!("{cut}…")
        } else {
            cut
        }
    };

    format!("- user: {} / agent: {}", side(&exchange.user), side(&exchange.agent))
}

#[cfg(test)]
mod tests {
    use shared::model::ledger::LedgerCursor;
    use shared::model::permission::PermissionPresets;
    use ulid::Ulid;

    use super::*;
    use crate::agent::port::AgentAnswer;
    use crate::ledger::state::HISTORY_TURNS;
    use crate::sample::{pending, session};
    use crate::turn::Turn;

    fn told(turns: u128, text: &str) -> SessionState {
        let mut fold = SessionState::default();
        fold.history.extend((1..=turns).map(|n| HistoryTurn {
            turn: Ulid::from(n),
            user: format!("question {n} {text}"),
            agent: format!("answer {n}"),
        }));
        fold
    }

    #[test]
    fn a_short_history_stays() {
        assert_eq!(compaction_entry(&told(31, ""), &PersonaLimits::default()), None);
    }

    #[test]
    fn a_long_one_loses_its_older_half_to_a_summary_that_tells_of_it() {
        let mut fold = told(32, "");
        let entry = compaction_entry(&fold, &PersonaLimits::default()).expect("it is too long");
        fold.apply_entry(&entry);

        assert_eq!(fold.history.len(), 16);

        let summary = fold.summary.clone().expect("a summary");
        assert!(
            summary.starts_with("- user: question 1 / agent: answer 1\n"),
            "{summary}"
        );
        assert_eq!(
            (
                summary.lines().count(),
                compaction_entry(&fold, &PersonaLimits::default())
            ),
            (16, None)
        );
    }

    #[test]
    fn with_the_longest_history_that_may_go_along_nothing_is_forgotten_without_a_summary() {
        let limits = PersonaLimits {
            history_tokens: MAX_SENT_HISTORY / TOKEN_BYTES,
            history_turns: HISTORY_TURNS,
            ..PersonaLimits::default()
        };

        for (words, turns) in [(2_000, 40), (1, 200)] {
            let mut fold = SessionState::default();
            for number in 1..=turns {
                if let Some(entry) = compaction_entry(&fold, &limits) {
                    fold.apply_entry(&entry);
                }

                let one = pending(number, number, "a", 50);
                let turn = Turn::for_pendings(&session(), &fold, &[one], &limits, &PermissionPresets::default());
                fold.apply_entry(&turn.started_entry());
                let answer = AgentAnswer {
                    content: format!("answer {number} {}", "word ".repeat(words)),
                    ..AgentAnswer::default()
                };

                let ended = turn.completed_entries(answer, LedgerCursor::default());
                ended.iter().for_each(|entry| fold.apply_entry(entry));
                let summary = fold.summary.as_deref().unwrap_or_default();
                let known = |number: u64| {
                    let told = format!("answer {number} ");
                    summary.contains(&told) || fold.history.iter().any(|exchange| exchange.agent.contains(&told))
                };

                let kept = summary.lines().count() + fold.history.len();
                assert!(
                    summary.len() + 3 * LINE_BYTES > SUMMARY_BYTES || kept == usize::try_from(number).expect("few")
                );
                assert!(number < 2 || known(number - 1));
            }
        }
    }

    #[test]
    fn whatever_happens_the_summary_is_bounded_and_the_last_words_stay() {
        let mut fold = told(40, &"word ".repeat(2_000));
        for _ in 0..20 {
            if let Some(entry) = compaction_entry(&fold, &PersonaLimits::default()) {
                fold.apply_entry(&entry);
            }
            let more = told(10, &"word ".repeat(2_000)).history;
            fold.history.extend(more);
        }

        assert!(fold.summary.is_some_and(|summary| summary.len() <= SUMMARY_BYTES));
        assert!(fold.history.len() >= KEEP_TURNS);
    }
}
