//! How far a bot's updates are read. *Pure.*
//!
//! The offset of `getUpdates` is only what the server is told: it confirms everything below it. It is sent once, in the
//! call after the events are durable, and never again: `update_id` becomes random after a week without updates, and
//! starts again with a new token, so that an offset that is kept would confirm updates that were never read. For the
//! same reason no two updates are compared by it, except those that wait side by side. Source:
//! <https://core.telegram.org/bots/api#getupdates>.
//!
//! The times up to which everything is stored are the vendor's, because the vendor decides how long updates are kept: a clock
//! of ours that is wrong neither tells a gap that is none, nor hides one.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shared::model::event::{Event, MIGRATED_FROM, MIGRATED_TO};
use shared::model::time::UnixMillis;
use shared::wire::watermark::SourceWatermark;

use crate::source::merge::MergeDecision;
use crate::source::port::SourceGap;
use crate::source::port::sink::SourcePosition;

/// Time for which the vendor keeps updates, in milliseconds.
pub const KEPT_MS: i64 = 24 * 3_600_000;
/// Age from which an offset is not sent any more, in milliseconds: before the vendor's week is over.
pub const OFFSET_LASTS_MS: i64 = 6 * 24 * 3_600_000;
/// Interval in which the watermark is written although nothing happens, in milliseconds.
pub const NOTE_EVERY_MS: i64 = 60_000;

/// Maximum number of groups of which it is remembered that they became supergroups.
const MAX_MOVED: usize = 200;

/// The position in a watermark.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelegramPosition {
    /// Offset that confirms everything that is durable, while the server was not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// Albums and bursts that are decided and may come again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<MergeDecision>,
    /// Groups that have become supergroups, the latest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedGroup>,
}

/// A group that has become a supergroup, whose chat has another id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MovedGroup {
    /// Id of the group.
    pub from: String,
    /// Id of the supergroup.
    pub to: String,
}

/// How far the updates of one bot are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateProgress {
    /// The bot and the token whose updates the position counts.
    of: String,
    /// Position.
    pub position: TelegramPosition,
    complete_until: UnixMillis,
    noted_at: UnixMillis,
}

impl UpdateProgress {
    /// Returns the progress of the bot `bot_id` with a token of hash `token_hash`, as the watermark `from` says. `now` is the
    /// vendor's time.
    #[must_use]
    pub fn resume(bot_id: i64, token_hash: &str, from: Option<&SourceWatermark>, now: UnixMillis) -> Self {
        let of = format!("bot {bot_id} {token_hash}");
        let fresh = Self {
            of,
            position: TelegramPosition::default(),
            complete_until: now,
            noted_at: UnixMillis(0),
        };
        // Another bot has other updates. Without a position all that the vendor still has is read.
        let Some(from) = from.filter(|from| from.of.starts_with(&format!("bot {bot_id} "))) else {
            return fresh;
        };

        let is_fresh = now.since(from.complete_until) < OFFSET_LASTS_MS;
        let position: TelegramPosition = serde_json::from_value(from.position.clone()).unwrap_or_default();
        Self {
            position: TelegramPosition {
                offset: position.offset.filter(|_| is_fresh && from.of == fresh.of),
                closed: position.closed,
                moved: position.moved,
            },
            complete_until: from.complete_until,
            ..fresh
        }
    }

    /// Takes in that a group has become a supergroup, if `event` tells it, and names in `event` which group its chat was.
    /// Telegram says it once in each of the two chats, and not in later messages. Of too many groups the oldest one is forgotten
    /// of which `is_named` says that no setting names it: anybody can make groups with the bot.
    pub fn follow_move(&mut self, event: &mut Event, is_named: impl Fn(&str) -> bool) {
        let told = |key: &str| event.metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let here = event.peer.id.clone();
        let moved = match (told(MIGRATED_TO), told(MIGRATED_FROM)) {
            (Some(to), _) => Some(MovedGroup { from: here, to }),
            (None, Some(from)) => Some(MovedGroup { from, to: here }),
            (None, None) => None,
        };
        let groups = &mut self.position.moved;
        if let Some(moved) = moved {
            groups.retain(|known| known.to != moved.to);
            groups.push(moved);
            while groups.len() > MAX_MOVED {
                let oldest = groups.iter().position(|known| !is_named(&known.from));
                groups.remove(oldest.unwrap_or(0));
            }
        }

        if let Some(known) = groups.iter().find(|known| known.to == event.peer.id) {
            event.metadata.insert(MIGRATED_FROM.to_owned(), json!(known.from));
        }
    }

    /// Returns the time up to which everything is stored, by the vendor's clock.
    #[must_use]
    pub const fn complete_until(&self) -> UnixMillis {
        self.complete_until
    }

    /// Returns the gap before an answer that the vendor made at `now`; `None` if the vendor had everything since the last one.
    #[must_use]
    pub fn find_gap(&self, now: UnixMillis) -> Option<SourceGap> {
        let kept_from = now.plus(-KEPT_MS);
        (self.complete_until < kept_from).then(|| SourceGap {
            from: self.complete_until,
            to: kept_from,
            item: None,
            reason: "Telegram keeps updates for 24 hours; older ones were not read in time".to_owned(),
        })
    }

    /// Notes that everything up to `now`, the vendor's time, is stored. After a longer time without that it is written soon, also
    /// if an event has just been stored with the former time.
    pub fn note_complete(&mut self, now: UnixMillis) {
        if now.since(self.complete_until) >= NOTE_EVERY_MS {
            self.noted_at = UnixMillis(0);
        }
        self.complete_until = self.complete_until.max(now);
    }

    /// Notes that the gap up to `to` is told.
    pub fn note_gap(&mut self, to: UnixMillis) {
        self.complete_until = self.complete_until.max(to);
    }

    /// Returns whether the watermark must be written at `now`, by our clock, although no event came. A clock that was set back
    /// does not delay it for longer than it was set back.
    #[must_use]
    pub fn is_note_due(&self, now: UnixMillis) -> bool {
        now.since(self.noted_at) >= NOTE_EVERY_MS
    }

    /// Returns the content of the watermark, to be written at `now` by our clock.
    pub fn to_position(&mut self, now: UnixMillis) -> SourcePosition {
        self.noted_at = now;
        SourcePosition {
            of: self.of.clone(),
            // A struct of integers and texts has a JSON form.
            position: serde_json::to_value(&self.position).unwrap_or_default(),
            complete_until: self.complete_until,
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

    fn watermark(of: &str, complete_until: UnixMillis) -> SourceWatermark {
        let mut progress = UpdateProgress::resume(7, "a", None, NOW);
        progress.position.offset = Some(9);
        SourceWatermark {
            of: of.to_owned(),
            position: progress.to_position(NOW).position,
            complete_until,
            by: "me".to_owned(),
        }
    }

    #[test]
    fn an_offset_is_void_for_another_bot_another_token_and_after_a_quiet_week() {
        let offset = |from: SourceWatermark| UpdateProgress::resume(7, "a", Some(&from), NOW).position.offset;
        assert_eq!(offset(watermark("bot 7 a", NOW)), Some(9));
        assert_eq!(offset(watermark("bot 7 b", NOW)), None);
        assert_eq!(offset(watermark("bot 77 a", NOW)), None);
        assert_eq!(offset(watermark("bot 7 a", NOW.plus(1 - OFFSET_LASTS_MS))), Some(9));
        assert_eq!(offset(watermark("bot 7 a", NOW.plus(-OFFSET_LASTS_MS))), None);
        let unreadable = SourceWatermark {
            position: json!("?"),
            ..watermark("bot 7 a", NOW)
        };
        assert_eq!(offset(unreadable), None);
    }

    #[test]
    fn a_gap_begins_one_millisecond_after_a_day() {
        let gap = |of: &str, ago: i64| {
            let from = watermark(of, NOW.plus(-ago));
            UpdateProgress::resume(7, "a", Some(&from), NOW).find_gap(NOW)
        };
        assert_eq!(gap("bot 7 a", KEPT_MS), None);
        let found = gap("bot 7 a", KEPT_MS + 1).expect("a gap");
        assert_eq!((found.from, found.to), (NOW.plus(-KEPT_MS - 1), NOW.plus(-KEPT_MS)));
        // A new token of the same bot does not hide it, another bot has none.
        assert!(gap("bot 7 b", 2 * KEPT_MS).is_some());
        assert_eq!(gap("bot 8 a", 2 * KEPT_MS), None);
        assert_eq!(UpdateProgress::resume(7, "a", None, NOW).find_gap(NOW), None);
    }

    #[test]
    fn a_supergroup_is_known_by_the_group_that_it_was_after_a_restart_too() {
        let mut progress = UpdateProgress::resume(7, "a", None, NOW);
        let take = |progress: &mut UpdateProgress, chat: &str, told: Option<(&str, &str)>| {
            let id = EventId::parse("telegram:main/1/1").expect("an id");
            let mut event = Event::new(id, "telegram", chat, NOW);
            event
                .metadata
                .extend(told.map(|(key, other)| (key.to_owned(), json!(other))));
            progress.follow_move(&mut event, |group| group == "-6");
            event
                .metadata
                .get(MIGRATED_FROM)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };

        assert_eq!(take(&mut progress, "-1006", None), None);
        // Either of the two notes is enough.
        assert_eq!(take(&mut progress, "-6", Some((MIGRATED_TO, "-1006"))), None);
        assert_eq!(take(&mut progress, "-1006", None).as_deref(), Some("-6"));
        assert_eq!(
            take(&mut progress, "-1007", Some((MIGRATED_FROM, "-7"))).as_deref(),
            Some("-7")
        );
        take(&mut progress, "-1006", Some((MIGRATED_FROM, "-6")));
        assert_eq!(progress.position.moved.len(), 2);

        let watermark = SourceWatermark {
            position: progress.to_position(NOW).position,
            ..watermark("bot 7 b", NOW)
        };
        let mut resumed = UpdateProgress::resume(7, "a", Some(&watermark), NOW);
        assert_eq!(take(&mut resumed, "-1007", None).as_deref(), Some("-7"));
        for number in 0..MAX_MOVED {
            take(&mut resumed, &format!("-2{number}"), Some((MIGRATED_FROM, "-8")));
        }
        assert_eq!(resumed.position.moved.len(), MAX_MOVED);
        assert_eq!(take(&mut resumed, "-1007", None), None);
        // Others push out none that the settings name.
        assert_eq!(take(&mut resumed, "-1006", None).as_deref(), Some("-6"));
    }

    #[test]
    fn a_gap_is_told_once() {
        let from = watermark("bot 7 a", NOW.plus(-2 * KEPT_MS));
        let mut progress = UpdateProgress::resume(7, "a", Some(&from), NOW);
        let gap = progress.find_gap(NOW).expect("a gap");
        progress.note_gap(gap.to);
        assert_eq!(progress.find_gap(NOW), None);
        assert!(progress.is_note_due(NOW));
        assert_eq!(progress.to_position(NOW).complete_until, gap.to);
        assert!(!progress.is_note_due(NOW.plus(NOTE_EVERY_MS - 1)));
    }

    #[test]
    fn a_position_that_was_written_with_an_old_time_is_written_again_soon() {
        let mut progress = UpdateProgress::resume(7, "t", None, NOW);
        progress.to_position(NOW);
        progress.note_complete(NOW.plus(NOTE_EVERY_MS - 1));
        assert!(!progress.is_note_due(NOW));
        progress.note_complete(NOW.plus(3 * NOTE_EVERY_MS));
        assert!(progress.is_note_due(NOW));
    }
}
