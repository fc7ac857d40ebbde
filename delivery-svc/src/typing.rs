//! When an account shows that it writes: while a turn runs, and not longer. *Pure.*
//!
//! A broker sends a beat every few seconds while a turn runs. A platform shows one call for some seconds, and stops by
//! itself: when the beats stop, because the turn has ended or its broker has died, nothing has to be taken back. A turn
//! whose reply was sent shows nothing more, whatever beats are still on their way, and no turn shows it for longer than
//! [`MAX_TYPING`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ulid::Ulid;

/// Time after which a turn shows nothing more: people do not wait for a sign of life for longer.
pub const MAX_TYPING: Duration = Duration::from_mins(5);

/// Time before the end of what the platform shows at which it is called again.
const AHEAD: Duration = Duration::from_millis(1_500);

/// Maximum number of conversations and turns that are remembered.
const MAX_REMEMBERED: usize = 4_096;

/// The conversations in which the accounts of this process write.
#[derive(Debug, Default)]
pub struct TypingBoard {
    /// Time of the last call, by conversation.
    called: HashMap<String, Instant>,
    /// Time of the first beat, by turn.
    begun: HashMap<Ulid, Instant>,
    /// Turns whose reply was sent, oldest first.
    sent: VecDeque<Ulid>,
    sent_set: HashSet<Ulid>,
}

impl TypingBoard {
    /// Notes a beat of `turn` for the conversation `place`, whose platform shows a call for `lasts`. Returns whether it is
    /// called now.
    pub fn note_beat(&mut self, place: &str, turn: Ulid, lasts: Duration, now: Instant) -> bool {
        if self.sent_set.contains(&turn) {
            return false;
        }
        if self.begun.len() >= MAX_REMEMBERED {
            self.begun
                .retain(|_, begun| now.saturating_duration_since(*begun) < MAX_TYPING);
        }
        if self.begun.len() >= MAX_REMEMBERED {
            return false;
        }
        let begun = *self.begun.entry(turn).or_insert(now);
        if now.saturating_duration_since(begun) >= MAX_TYPING {
            return false;
        }

        let again = lasts.saturating_sub(AHEAD);
        let is_shown = |called: &Instant| now.saturating_duration_since(*called) < again;
        if self.called.get(place).is_some_and(is_shown) {
            return false;
        }
        if self.called.len() >= MAX_REMEMBERED {
            self.called
                .retain(|_, called| now.saturating_duration_since(*called) < again);
        }
        self.called.insert(place.to_owned(), now);
        true
    }

    /// Notes that the reply of `turn` was sent.
    pub fn note_sent(&mut self, turn: Ulid) {
        self.begun.remove(&turn);
        if self.sent_set.insert(turn) {
            self.sent.push_back(turn);
        }
        if self.sent.len() > MAX_REMEMBERED
            && let Some(oldest) = self.sent.pop_front()
        {
            self.sent_set.remove(&oldest);
        }
    }
}

/// The conversations in which accounts write, as the tasks of a process share them.
#[derive(Debug, Default)]
pub struct SharedTyping(Mutex<TypingBoard>);

impl SharedTyping {
    fn lock(&self) -> MutexGuard<'_, TypingBoard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a beat, as [`TypingBoard::note_beat`] does.
    pub fn note_beat(&self, place: &str, turn: Ulid, lasts: Duration, now: Instant) -> bool {
        self.lock().note_beat(place, turn, lasts, now)
    }

    /// Notes that the reply of `turn` was sent.
    pub fn note_sent(&self, turn: Ulid) {
        self.lock().note_sent(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Ulid = Ulid::from_parts(1, 1);
    const LASTS: Duration = Duration::from_secs(5);

    /// Returns the seconds at which the platform is called, of beats at each second of `0..seconds`.
    fn calls(board: &mut TypingBoard, begun: Instant, turn: Ulid, seconds: u64) -> Vec<u64> {
        let beat = |second: &u64| board.note_beat("telegram:bot:7", turn, LASTS, begun + Duration::from_secs(*second));
        (0..seconds).filter(beat).collect()
    }

    #[test]
    fn a_platform_is_called_again_before_it_shows_nothing() {
        let (mut board, begun) = (TypingBoard::default(), Instant::now());
        assert_eq!(calls(&mut board, begun, TURN, 13), [0, 4, 8, 12]);
    }

    #[test]
    fn a_turn_whose_reply_was_sent_shows_nothing_more_and_the_next_one_does() {
        let (mut board, begun) = (TypingBoard::default(), Instant::now());
        board.note_sent(TURN);
        board.note_sent(TURN);
        assert_eq!(calls(&mut board, begun, TURN, 10), [0_u64; 0]);
        assert_eq!(calls(&mut board, begun, Ulid::from_parts(2, 2), 1), [0]);
    }

    #[test]
    fn no_turn_shows_it_for_ever() {
        let (mut board, begun) = (TypingBoard::default(), Instant::now());
        let called = calls(&mut board, begun, TURN, 3_600);
        assert!(
            called.last().is_some_and(|last| *last < MAX_TYPING.as_secs()),
            "{called:?}"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let (mut board, begun) = (TypingBoard::default(), Instant::now());
        for number in 0..20_000_u64 {
            let turn = Ulid::from_parts(number, 1);
            board.note_beat(&number.to_string(), turn, LASTS, begun);
            board.note_sent(Ulid::from_parts(number, 2));
        }
        assert!(board.begun.len() <= MAX_REMEMBERED && board.called.len() <= MAX_REMEMBERED);
        assert!(board.sent.len() <= MAX_REMEMBERED && board.sent.len() == board.sent_set.len());
        // Later turns are shown again once those are over.
        let later = begun + MAX_TYPING;
        assert!(board.note_beat("x", Ulid::from_parts(1, 9), LASTS, later));
    }
}
