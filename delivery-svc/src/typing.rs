//! When an account shows that it writes: while a turn runs, and not longer. *Pure.*
//!
//! A broker sends a beat every few seconds while a turn runs. A platform shows one call for some seconds, and stops by
//! itself: when the beats stop, because the turn has ended or its broker has died, nothing has to be taken back. A turn
//! whose reply was sent shows nothing more, whatever beats are still on their way, and no turn shows it for longer than
//! [`MAX_TYPING`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shared::bus::partition::PartitionLease;
use shared::model::time::UnixMillis;
use ulid::Ulid;

/// Time after which a turn shows nothing more: people do not wait for a sign of life for longer.
pub const MAX_TYPING: Duration = Duration::from_mins(5);

/// Time before the end of what the platform shows at which it is called again.
const AHEAD: Duration = Duration::from_millis(1_500);

/// Maximum number of conversations and turns that are remembered.
const MAX_REMEMBERED: usize = 4_096;

/// A conversation, and the account that writes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeatPlace {
    /// Name of the account, with its channel.
    pub account: String,
    /// Name of the conversation, with its account.
    pub conversation: String,
}

/// The conversations in which the accounts of this process write.
#[derive(Debug, Default)]
pub struct TypingBoard {
    /// The last call, by conversation.
    called: HashMap<String, ShownTurn>,
    /// Time of the first beat, by turn.
    begun: HashMap<Ulid, Instant>,
    /// Times until which platforms limit accounts' calls that show it, by account.
    limited: HashMap<String, Instant>,
    /// Turns whose reply was sent, oldest first.
    sent: VecDeque<Ulid>,
    sent_set: HashSet<Ulid>,
}

/// A call that shows that a turn writes.
#[derive(Debug)]
struct ShownTurn {
    turn: Ulid,
    at: Instant,
}

impl TypingBoard {
    /// Notes a beat of `turn` for `place`, whose platform shows a call for `lasts`. Returns whether it is called now.
    pub fn note_beat(&mut self, place: &BeatPlace, turn: Ulid, lasts: Duration, now: Instant) -> bool {
        let is_limited = self.limited.get(&place.account).is_some_and(|until| now < *until);
        if is_limited || self.sent_set.contains(&turn) {
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
        // A message ends the sign that was shown before it.
        let is_shown =
            |shown: &ShownTurn| now.saturating_duration_since(shown.at) < again && !self.sent_set.contains(&shown.turn);
        if self.called.get(&place.conversation).is_some_and(is_shown) {
            return false;
        }
        if self.called.len() >= MAX_REMEMBERED {
            self.called
                .retain(|_, shown| now.saturating_duration_since(shown.at) < again);
        }
        let shown = ShownTurn { turn, at: now };
        self.called.insert(place.conversation.clone(), shown);
        true
    }

    /// Returns whether the last call for `place` shows that `turn` writes.
    #[must_use]
    pub fn shows(&self, place: &BeatPlace, turn: Ulid) -> bool {
        let shown = self.called.get(&place.conversation);
        shown.is_some_and(|shown| shown.turn == turn)
    }

    /// Notes that `turn` is over without a reply. Returns whether its call was the last one for `place`.
    pub fn note_over(&mut self, place: &BeatPlace, turn: Ulid) -> bool {
        let is_last = self.shows(place, turn);
        if is_last {
            self.called.remove(&place.conversation);
        }
        is_last
    }

    /// Notes that the call of `turn` for `place` was not made, or showed nothing: its next beat makes another one.
    pub fn note_unshown(&mut self, place: &BeatPlace, turn: Ulid) {
        let _was_last = self.note_over(place, turn);
    }

    /// Notes that the platform limits the calls of `account` that show it, for `wait`.
    pub fn note_limit(&mut self, account: &str, wait: Duration, now: Instant) {
        self.limited.retain(|_, until| now < *until);
        self.limited.insert(account.to_owned(), now + wait.min(MAX_TYPING));
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

/// The conversations in which accounts write, as the tasks of a process share them, and the partitions that it owns: the
/// owner alone knows whether a reply was sent.
#[derive(Debug, Default)]
pub struct SharedTyping {
    board: Mutex<TypingBoard>,
    /// The partitions with their leases, and the times from which on they are owned.
    owned: Mutex<HashMap<u16, (PartitionLease, UnixMillis)>>,
}

/// The ownership of a partition; dropping it ends it.
#[derive(Debug)]
pub struct TypingOwnership<'a> {
    typing: &'a SharedTyping,
    partition: u16,
}

impl Drop for TypingOwnership<'_> {
    fn drop(&mut self) {
        self.typing.lock_owned().remove(&self.partition);
    }
}

impl SharedTyping {
    fn lock(&self) -> MutexGuard<'_, TypingBoard> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_owned(&self) -> MutexGuard<'_, HashMap<u16, (PartitionLease, UnixMillis)>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this process owns `partition` from `since` on, as long as `lease` lasts.
    #[must_use]
    pub fn own_partition(&self, partition: u16, lease: PartitionLease, since: UnixMillis) -> TypingOwnership<'_> {
        self.lock_owned().insert(partition, (lease, since));
        TypingOwnership {
            typing: self,
            partition,
        }
    }

    /// Returns whether this process owns `partition`.
    #[must_use]
    pub fn owns(&self, partition: u16) -> bool {
        self.lease_of(partition).is_some()
    }

    /// Returns the lease of `partition`, if this process owns it.
    #[must_use]
    pub fn lease_of(&self, partition: u16) -> Option<PartitionLease> {
        self.lock_owned()
            .get(&partition)
            .filter(|(lease, _)| lease.is_live())
            .map(|(lease, _)| lease.clone())
    }

    /// Returns whether `turn` began before this process owned `partition`, so that a former owner may have heard its beats.
    #[must_use]
    pub fn is_older(&self, turn: Ulid, partition: u16) -> bool {
        let began = UnixMillis(i64::try_from(turn.timestamp_ms()).unwrap_or(i64::MAX));
        let owned = self.lock_owned();
        owned.get(&partition).is_some_and(|(_, since)| began < *since)
    }

    /// Returns whether the reply of `turn` was sent by this process.
    #[must_use]
    pub fn was_sent(&self, turn: Ulid) -> bool {
        self.lock().sent_set.contains(&turn)
    }

    /// Notes a beat, as [`TypingBoard::note_beat`] does.
    pub fn note_beat(&self, place: &BeatPlace, turn: Ulid, lasts: Duration, now: Instant) -> bool {
        self.lock().note_beat(place, turn, lasts, now)
    }

    /// Returns whether a turn is shown, as [`TypingBoard::shows`] does.
    #[must_use]
    pub fn shows(&self, place: &BeatPlace, turn: Ulid) -> bool {
        self.lock().shows(place, turn)
    }

    /// Notes the end of a turn, as [`TypingBoard::note_over`] does.
    pub fn note_over(&self, place: &BeatPlace, turn: Ulid) -> bool {
        self.lock().note_over(place, turn)
    }

    /// Notes a call that showed nothing, as [`TypingBoard::note_unshown`] does.
    pub fn note_unshown(&self, place: &BeatPlace, turn: Ulid) {
        self.lock().note_unshown(place, turn);
    }

    /// Notes a limit, as [`TypingBoard::note_limit`] does.
    pub fn note_limit(&self, account: &str, wait: Duration, now: Instant) {
        self.lock().note_limit(account, wait, now);
    }

    /// Notes that the reply of `turn` was sent.
    pub fn note_sent(&self, turn: Ulid) {
        self.lock().note_sent(turn);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    const TURN: Ulid = Ulid::from_parts(1, 1);
    const LASTS: Duration = Duration::from_secs(5);

    fn place(chat: &str) -> BeatPlace {
        let account = "telegram/bot".to_owned();
        let conversation = format!("{account}/{chat}");
        BeatPlace { account, conversation }
    }

    /// Returns the seconds at which the platform is called, of beats at each second of `0..seconds`.
    fn calls(board: &mut TypingBoard, begun: Instant, turn: Ulid, seconds: u64) -> Vec<u64> {
        let beat = |second: &u64| board.note_beat(&place("7"), turn, LASTS, begun + Duration::from_secs(*second));
        (0..seconds).filter(beat).collect()
    }

    #[test]
    fn a_platform_is_called_again_before_it_shows_nothing() {
        let (mut board, begun) = (TypingBoard::default(), SystemClock.monotonic());
        assert_eq!(calls(&mut board, begun, TURN, 13), [0, 4, 8, 12]);
    }

    #[test]
    fn a_turn_whose_reply_was_sent_shows_nothing_more_and_the_next_one_does() {
        let (mut board, begun) = (TypingBoard::default(), SystemClock.monotonic());
        board.note_sent(TURN);
        board.note_sent(TURN);
        assert_eq!(calls(&mut board, begun, TURN, 10), [0_u64; 0]);
        assert_eq!(calls(&mut board, begun, Ulid::from_parts(2, 2), 1), [0]);
    }

    #[test]
    fn what_is_shown_for_long_is_shown_anew_for_the_next_turn() {
        let (mut board, begun) = (TypingBoard::default(), SystemClock.monotonic());
        let beat = |board: &mut TypingBoard, turn: u64, second: u64| {
            let (turn, now) = (Ulid::from_parts(turn, 1), begun + Duration::from_secs(second));
            board.note_beat(&place("7"), turn, Duration::from_mins(2), now)
        };
        assert!(beat(&mut board, 1, 0) && !beat(&mut board, 1, 3));
        assert!(!beat(&mut board, 2, 3), "it is shown already");
        board.note_sent(Ulid::from_parts(1, 1));
        assert!(beat(&mut board, 2, 6) && !beat(&mut board, 2, 9));

        // The end of an earlier turn takes nothing back.
        assert!(!board.shows(&place("7"), Ulid::from_parts(1, 1)) && board.shows(&place("7"), Ulid::from_parts(2, 1)));
        assert!(!board.note_over(&place("7"), Ulid::from_parts(1, 1)));
        assert!(board.note_over(&place("7"), Ulid::from_parts(2, 1)));
        assert!(!board.note_over(&place("7"), Ulid::from_parts(2, 1)));
        assert!(beat(&mut board, 3, 12));

        // A call that was not made shows nothing: the next beat makes it, and that of another turn is none of it.
        board.note_unshown(&place("7"), Ulid::from_parts(3, 1));
        assert!(beat(&mut board, 3, 15));
        board.note_unshown(&place("7"), Ulid::from_parts(2, 1));
        assert!(!beat(&mut board, 3, 18));
    }

    #[test]
    fn a_limit_holds_the_beats_of_its_account_alone() {
        let (mut board, begun) = (TypingBoard::default(), SystemClock.monotonic());
        board.note_limit("telegram/bot", Duration::from_secs(6), begun);
        assert_eq!(calls(&mut board, begun, TURN, 9), [6]);
        let other = BeatPlace {
            account: "telegram/other".to_owned(),
            ..place("8")
        };
        board.note_limit("telegram/bot", Duration::from_secs(6), begun);
        assert!(board.note_beat(&other, TURN, LASTS, begun));
    }

    #[test]
    fn a_partition_is_owned_until_its_worker_ends() {
        let typing = SharedTyping::default();
        let lease = PartitionLease::taken_at(Arc::new(SystemClock), SystemClock.monotonic());
        let owned = typing.own_partition(3, lease, UnixMillis(1_000));
        assert!(typing.owns(3) && !typing.owns(4));
        let began = |at: u64| Ulid::from_parts(at, 1);
        assert!(typing.is_older(began(999), 3) && !typing.is_older(began(1_000), 3));
        assert!(!typing.is_older(began(999), 4), "unknown");
        drop(owned);
        assert!(!typing.owns(3));
    }

    #[test]
    fn no_turn_shows_it_for_ever() {
        let (mut board, begun) = (TypingBoard::default(), SystemClock.monotonic());
        let called = calls(&mut board, begun, TURN, 3_600);
        assert!(
            called.last().is_some_and(|last| *last < MAX_TYPING.as_secs()),
            "{called:?}"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let (mut board, begun) = (TypingBoard::default(), SystemClock.monotonic());
        for number in 0..20_000_u64 {
            let turn = Ulid::from_parts(number, 1);
            board.note_beat(&place(&number.to_string()), turn, LASTS, begun);
            board.note_sent(Ulid::from_parts(number, 2));
        }
        assert!(board.begun.len() <= MAX_REMEMBERED && board.called.len() <= MAX_REMEMBERED);
        assert!(board.sent.len() <= MAX_REMEMBERED && board.sent.len() == board.sent_set.len());
        // Later turns are shown again once those are over.
        let later = begun + MAX_TYPING;
        assert!(board.note_beat(&place("x"), Ulid::from_parts(1, 9), LASTS, later));
    }
}
