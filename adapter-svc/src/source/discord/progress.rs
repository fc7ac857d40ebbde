//! How far a bot's account is read. *Pure.*
//!
//! The session and its number bring what came since, as long as the vendor keeps them. If it does not, each channel is
//! read from its newest stored message on; channels of a guild that have none, from the time at which the guild was
//! first seen. Nothing is replayed that is older than the first start, or than the bot's entry into a guild.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;
use shared::platform::discord::snowflake::{first_id_at, time_of};
use shared::wire::watermark::SourceWatermark;

use super::link::GatewaySession;
use crate::source::merge::MergeMemory;
use crate::source::port::SourceGap;
use crate::source::port::sink::SourcePosition;

/// Interval in which the watermark is written although nothing happens, in milliseconds.
pub(super) const NOTE_EVERY_MS: i64 = 60_000;

/// Time that is read again before a channel's newest message, in milliseconds: messages of one time may come in another
/// order than that of their ids.
const OVERLAP_MS: i64 = 10_000;

/// Maximum number of channels with a mark of their own.
const MAX_MARKS: usize = 1_000;

/// Maximum number of channels whose histories are to be read.
const MAX_PENDING: usize = 2_000;

/// Maximum number of channels that are known to be hidden.
const MAX_HIDDEN: usize = 1_000;

/// Part of the account that a gap names if more histories are to be read than [`MAX_PENDING`].
const LEFT_OUT: &str = "left-out";

/// The position in a watermark. Values are ids of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DiscordPosition {
    /// Session to be resumed: a hint, which may be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<GatewaySession>,
    /// By guild: id from which channels without a mark are read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub guilds: BTreeMap<String, u64>,
    /// By channel: the newest message that is stored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<String, u64>,
    /// By channel whose history is to be read: the id from which on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pending: BTreeMap<String, u64>,
    /// By channel whose history the bot may not read: the rights under which it was refused, 0 if they were not known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hidden: BTreeMap<String, u64>,
    /// Texts that were merged.
    #[serde(skip_serializing_if = "MergeMemory::is_empty")]
    pub texts: MergeMemory,
}

/// How far the account of one bot is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiscordProgress {
    /// The bot and the token that the position is of.
    of: String,
    /// Position.
    pub position: DiscordPosition,
    /// Whether there was none: nothing is missing.
    is_first: bool,
    complete_until: UnixMillis,
    /// Time up to which everything was stored when the session was begun.
    complete_before: UnixMillis,
    noted_at: UnixMillis,
    /// Channels whose histories were to be read before the session was begun, or before this process: `complete_before` says
    /// nothing about them.
    owed: BTreeSet<String>,
    /// Whether histories are left out that would have been read, and that is not told yet.
    is_left_out: bool,
    /// Whether that was told in this session.
    is_told: bool,
}

/// What is stored when a session was begun.
#[derive(Debug)]
pub(super) struct SessionStart {
    /// The gap that the former session left; `None` at the first start.
    pub gap: Option<SourceGap>,
    /// Position with the gap, and with the new session.
    pub after: SourcePosition,
}

impl DiscordProgress {
    /// Returns the progress of the bot `bot_id` with a token of hash `token_hash`, as the watermark `from` says at `now`.
    #[must_use]
    pub(super) fn resume(bot_id: &str, token_hash: &str, from: Option<&SourceWatermark>, now: UnixMillis) -> Self {
        let fresh = Self {
            of: format!("bot {bot_id} {token_hash}"),
            position: DiscordPosition::default(),
            is_first: true,
            complete_until: now,
            complete_before: now,
            noted_at: UnixMillis(0),
            owed: BTreeSet::new(),
            is_left_out: false,
            is_told: false,
        };
        // Ids are the vendor's, so that they hold for every token of the bot, but not for another bot's rights.
        let from = from.filter(|from| from.of.starts_with(&format!("bot {bot_id} ")));
        let Some((from, mut position)) = from.and_then(|from| {
            let position: DiscordPosition = serde_json::from_value(from.position.clone()).ok()?;
            Some((from, position))
        }) else {
            return fresh;
        };

        // A session belongs to its token.
        position.session = position.session.filter(|_| from.of == fresh.of);
        Self {
            owed: position.pending.keys().cloned().collect(),
            position,
            is_first: false,
            complete_until: from.complete_until,
            complete_before: from.complete_until,
            ..fresh
        }
    }

    /// Takes in that a session was begun at `now` in which the bot is in `guilds`. Returns what is to be stored. What came
    /// before is stored with the position of before, which does not count as complete up to now: a crash in between tells the
    /// gap then.
    pub(super) fn start_session(
        &mut self,
        session: GatewaySession,
        guilds: &[String],
        now: UnixMillis,
    ) -> SessionStart {
        let gap = self.begin_session(session, guilds, now);
        if let Some(gap) = &gap {
            self.note_gap(gap.to);
        }
        let after = self.make_position(now);
        SessionStart { gap, after }
    }

    /// Takes in that a session was begun. Returns the gap that this leaves; `None` at the first start.
    fn begin_session(&mut self, session: GatewaySession, guilds: &[String], now: UnixMillis) -> Option<SourceGap> {
        let gap = (!self.is_first).then(|| SourceGap {
            from: self.complete_until,
            to: now,
            item: None,
            reason: "the session with Discord could not be resumed: messages of this time are read from the channels' \
                     histories; edits, deletions, reactions, presses of buttons, and messages of people who wrote directly \
                     for the first time are missing"
                .to_owned(),
        });
        self.is_first = false;
        self.complete_before = self.complete_until;
        self.position.session = Some(session);
        for guild in guilds {
            self.enter_guild(guild, now);
        }
        self.is_told = false;
        self.owed = self.position.pending.keys().cloned().collect();
        // Direct channels are in no list, and threads may be archived.
        for (channel, newest) in self.position.channels.clone() {
            self.add_pending(&channel, before(newest));
        }
        gap
    }

    /// Notes that the history of `channel` is to be read from `from` on, or from an earlier id that is known already.
    fn add_pending(&mut self, channel: &str, from: u64) {
        let pending = &mut self.position.pending;
        if let Some(known) = pending.get_mut(channel) {
            *known = from.min(*known);
        } else if pending.len() < MAX_PENDING {
            pending.insert(channel.to_owned(), from);
        } else {
            self.is_left_out = true;
        }
    }

    /// Returns the gap of the histories that are left out since the last call, once a session.
    pub(super) fn take_left_out(&mut self, now: UnixMillis) -> Option<SourceGap> {
        let is_left_out = std::mem::take(&mut self.is_left_out);
        if !is_left_out || std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        Some(SourceGap {
            from: self.complete_before,
            to: now,
            item: Some(LEFT_OUT.to_owned()),
            reason: "more channels have news than Nexus keeps positions of: messages of this time in some of them are missing"
                .to_owned(),
        })
    }

    /// Notes that the message `id` of `channel`, which came from the gateway, is to be read from the history instead.
    pub(super) fn leave_to_history(&mut self, channel: &str, id: u64) {
        self.add_pending(channel, before(id));
    }

    /// Makes the position smaller, by leaving out the half that matters least: first marks, the oldest ones, then
    /// histories, and in the end the texts that were merged. Returns `false` if nothing can be left out.
    pub(super) fn compact(&mut self) -> bool {
        let marks = self.position.channels.len();
        let had_hidden = !std::mem::take(&mut self.position.hidden).is_empty();
        if marks > 0 {
            self.keep_marks(marks / 2);
            return true;
        }

        let pending = self.position.pending.len();
        if pending == 0 {
            // Texts that were merged may come again alone then.
            let texts = &mut self.position.texts.decided;
            let known = texts.len();
            texts.retain(|decided| !decided.is_stored);
            return had_hidden || texts.len() < known;
        }
        while self.position.pending.len() > pending / 2 {
            self.position.pending.pop_last();
        }
        self.is_left_out = true;
        true
    }

    /// Takes in that the bot is in `guild`, at `now` for the first time unless it is known.
    pub(super) fn enter_guild(&mut self, guild: &str, now: UnixMillis) {
        let from = first_id_at(now);
        self.position.guilds.entry(guild.to_owned()).or_insert(from);
    }

    /// Takes in that the bot is not in `guild` any more.
    pub(super) fn leave_guild(&mut self, guild: &str) {
        self.position.guilds.remove(guild);
    }

    /// Takes in that the newest message of `channel` of `guild` is `newest`: what is not stored is to be read, unless the
    /// channel is hidden and the bot's rights are still `rights`.
    pub(super) fn note_listed(&mut self, guild: &str, channel: &str, newest: Option<u64>, rights: u64) {
        let newest = newest.unwrap_or(0);
        let position = &mut self.position;
        if position.hidden.get(channel).is_some_and(|known| *known == rights) {
            return;
        }
        position.hidden.remove(channel);
        let is_owed = self.owed.contains(channel);
        match position.channels.get(channel) {
            // One of the same time with a lower id would have come by then.
            Some(mark) if !is_owed && newest <= *mark && time_of(*mark).plus(OVERLAP_MS) < self.complete_before => {
                position.pending.remove(channel);
            }
            // It is to be read already.
            Some(_) => {}
            None => {
                let floor = position.guilds.get(guild).copied().unwrap_or(u64::MAX);
                if newest > floor {
                    self.add_pending(channel, floor);
                }
            }
        }
    }

    /// Takes in that the message `id` of `channel` came from the gateway. It says nothing about those before it while
    /// the channel's history is to be read.
    pub(super) fn note_message(&mut self, channel: &str, id: u64) {
        if self.position.pending.contains_key(channel) {
            return;
        }
        self.mark(channel, id);
    }

    /// Returns whether `channel` has a mark.
    #[must_use]
    pub(super) fn has_mark(&self, channel: &str) -> bool {
        self.position.channels.contains_key(channel)
    }

    /// Returns the channels whose histories are to be read, and the ids from which on: first those behind `last`, so that
    /// each has its turn.
    pub(super) fn pending_after(&self, last: Option<&str>) -> impl Iterator<Item = (&String, u64)> {
        let pending = &self.position.pending;
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = pending.range::<str, _>((from, Bound::Unbounded));
        // Without a last one all of them are behind.
        let up_to = last.map_or(Bound::Excluded(""), Bound::Included);
        let before = pending.range::<str, _>((Bound::Unbounded, up_to));
        behind.chain(before).map(|(channel, after)| (channel, *after))
    }

    /// Takes in that the history of `channel` behind `after` is stored up to `last`; `None` = to its end.
    pub(super) fn note_page(&mut self, channel: &str, after: u64, last: Option<u64>) {
        // Meanwhile something earlier was left to the history.
        if self.position.pending.get(channel) != Some(&after) {
            return;
        }
        match last {
            Some(last) => {
                self.position.pending.insert(channel.to_owned(), last);
            }
            None => {
                self.owed.remove(channel);
                if let Some(after) = self.position.pending.remove(channel) {
                    self.mark(channel, after);
                }
            }
        }
    }

    /// Takes in that `channel` cannot be read any more, from `after` on. Returns the gap; `None` if nothing of the channel
    /// was ever read, so that nothing is missing.
    pub(super) fn give_up_channel(
        &mut self,
        channel: &str,
        after: u64,
        why: &str,
        now: UnixMillis,
    ) -> Option<SourceGap> {
        self.position.pending.remove(channel);
        let was_marked = self.position.channels.remove(channel).is_some();
        // From its guild's floor a channel is read that never had a message for the bot.
        let is_from_floor = self.position.guilds.values().any(|floor| *floor == after);
        (was_marked || !is_from_floor).then(|| SourceGap {
            from: time_of(after),
            to: now,
            item: Some(channel.to_owned()),
            reason: format!("the history of channel {channel} cannot be read: {why}"),
        })
    }

    /// Notes that the bot may not read the history of `channel` with the rights `rights`, 0 if they are not known.
    pub(super) fn hide_channel(&mut self, channel: &str, rights: u64) {
        let hidden = &mut self.position.hidden;
        if hidden.len() < MAX_HIDDEN || hidden.contains_key(channel) {
            hidden.insert(channel.to_owned(), rights);
        }
    }

    /// Forgets that `channel` is hidden, or that any channel is: the bot's rights may have changed.
    pub(super) fn forget_hidden(&mut self, channel: Option<&str>) {
        match channel {
            Some(channel) => drop(self.position.hidden.remove(channel)),
            None => self.position.hidden.clear(),
        }
    }

    fn mark(&mut self, channel: &str, id: u64) {
        let mark = self.position.channels.entry(channel.to_owned()).or_insert(id);
        *mark = id.max(*mark);
        self.keep_marks(MAX_MARKS);
    }

    /// Removes the oldest marks beyond `most`.
    fn keep_marks(&mut self, most: usize) {
        let position = &mut self.position;
        while position.channels.len() > most {
            let oldest = position.channels.iter().min_by_key(|(_, id)| **id);
            let Some((channel, id)) = oldest.map(|(channel, id)| (channel.clone(), *id)) else {
                return;
            };
            position.channels.remove(&channel);
            // A channel without a mark has had no message since: its mark would be older, and would have gone before.
            for floor in position.guilds.values_mut() {
                *floor = id.max(*floor);
            }
        }
    }

    /// Notes that everything up to `now` is stored, if no history is to be read.
    pub(super) fn note_complete(&mut self, now: UnixMillis) {
        if self.position.pending.is_empty() {
            self.complete_until = self.complete_until.max(now);
        }
    }

    /// Notes that the gap up to `to` is told.
    pub(super) fn note_gap(&mut self, to: UnixMillis) {
        self.complete_until = self.complete_until.max(to);
    }

    /// Returns whether the watermark must be written at `now` although no event came.
    #[must_use]
    pub(super) fn is_note_due(&self, now: UnixMillis) -> bool {
        now.since(self.noted_at) >= NOTE_EVERY_MS
    }

    /// Returns the content of the watermark, to be written at `now`.
    pub(super) fn make_position(&mut self, now: UnixMillis) -> SourcePosition {
        self.noted_at = now;
        SourcePosition {
            of: self.of.clone(),
            // A struct of integers and texts has a JSON form.
            position: serde_json::to_value(&self.position).unwrap_or_default(),
            complete_until: self.complete_until,
        }
    }
}

/// Returns the id from which on a channel is read whose newest stored message is `id`.
fn before(id: u64) -> u64 {
    first_id_at(time_of(id).plus(-OVERLAP_MS))
}

#[cfg(test)]
mod tests;
