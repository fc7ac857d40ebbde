//! How far a bot's account is read. *Pure.*
//!
//! The session and its number bring what came since, as long as the vendor keeps them. If it does not, each channel is
//! read from its newest stored message on; channels of a guild that have none, from the time at which the guild was
//! first seen. Nothing is replayed that is older than the first start, or than the bot's entry into a guild.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;
use shared::wire::watermark::SourceWatermark;

use super::link::GatewaySession;
use super::snowflake::{first_id_at, time_of};
use crate::source::port::SourceGap;
use crate::source::port::sink::SourcePosition;

/// Interval in which the watermark is written although nothing happens, in milliseconds.
pub const NOTE_EVERY_MS: i64 = 60_000;

/// Time that is read again before a channel's newest message, in milliseconds: messages of one time may come in another
/// order than that of their ids.
const OVERLAP_MS: i64 = 10_000;

/// Maximum number of channels with a mark of their own.
const MAX_MARKS: usize = 1_000;

/// The position in a watermark. Values are ids of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiscordPosition {
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
}

/// How far the account of one bot is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordProgress {
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
}

/// What is stored when a session was begun.
#[derive(Debug)]
pub struct SessionStart {
    /// Position with the events before the session. It has the former session: a crash before the gap is stored finds
    /// that session, which is over, and tells the gap then.
    pub before: SourcePosition,
    /// The gap that the former session left; `None` at the first start.
    pub gap: Option<SourceGap>,
    /// Position with the gap, and with the new session.
    pub after: SourcePosition,
}

impl DiscordProgress {
    /// Returns the progress of the bot `bot_id` with a token of hash `token_hash`, as the watermark `from` says at `now`.
    #[must_use]
    pub fn resume(bot_id: &str, token_hash: &str, from: Option<&SourceWatermark>, now: UnixMillis) -> Self {
        let fresh = Self {
            of: format!("bot {bot_id} {token_hash}"),
            position: DiscordPosition::default(),
            is_first: true,
            complete_until: now,
            complete_before: now,
            noted_at: UnixMillis(0),
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
            position,
            is_first: false,
            complete_until: from.complete_until,
            complete_before: from.complete_until,
            ..fresh
        }
    }

    /// Takes in that a session was begun at `now` in which the bot is in `guilds`. Returns what is to be stored, in its
    /// order.
    pub fn start_session(&mut self, session: GatewaySession, guilds: &[String], now: UnixMillis) -> SessionStart {
        let before = self.to_position(now);
        let gap = self.begin_session(session, guilds, now);
        if let Some(gap) = &gap {
            self.note_gap(gap.to);
        }
        let after = self.to_position(now);
        SessionStart { before, gap, after }
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
        // Direct channels are in no list, and threads may be archived.
        for (channel, newest) in &self.position.channels {
            let from = before(*newest);
            let pending = self.position.pending.entry(channel.clone()).or_insert(from);
            *pending = from.min(*pending);
        }
        gap
    }

    /// Takes in that the bot is in `guild`, at `now` for the first time unless it is known.
    pub fn enter_guild(&mut self, guild: &str, now: UnixMillis) {
        let from = first_id_at(now);
        self.position.guilds.entry(guild.to_owned()).or_insert(from);
    }

    /// Takes in that the bot is not in `guild` any more.
    pub fn leave_guild(&mut self, guild: &str) {
        self.position.guilds.remove(guild);
    }

    /// Takes in that the newest message of `channel` of `guild` is `newest`: what is not stored is to be read.
    pub fn note_listed(&mut self, guild: &str, channel: &str, newest: Option<u64>) {
        let newest = newest.unwrap_or(0);
        let position = &mut self.position;
        match position.channels.get(channel) {
            // One of the same time with a lower id would have come by then.
            Some(mark) if newest <= *mark && time_of(*mark).plus(OVERLAP_MS) < self.complete_before => {
                position.pending.remove(channel);
            }
            // It is to be read already.
            Some(_) => {}
            None => {
                let floor = position.guilds.get(guild).copied().unwrap_or(u64::MAX);
                if newest > floor {
                    position.pending.entry(channel.to_owned()).or_insert(floor);
                }
            }
        }
    }

    /// Takes in that the message `id` of `channel` came from the gateway. It says nothing about those before it while
    /// the channel's history is to be read.
    pub fn note_message(&mut self, channel: &str, id: u64) {
        if self.position.pending.contains_key(channel) {
            return;
        }
        self.mark(channel, id);
    }

    /// Returns the next channel whose history is to be read, and the id from which on: the one behind `last`, in turn.
    #[must_use]
    pub fn next_pending(&self, last: Option<&str>) -> Option<(String, u64)> {
        let pending = &self.position.pending;
        let behind = last.and_then(|last| {
            pending
                .range::<str, _>((Bound::Excluded(last), Bound::Unbounded))
                .next()
        });
        let next = behind.or_else(|| pending.first_key_value());
        next.map(|(channel, after)| (channel.clone(), *after))
    }

    /// Takes in that the history of `channel` is stored up to `last`; `None` = to its end.
    pub fn note_page(&mut self, channel: &str, last: Option<u64>) {
        match last {
            Some(last) => {
                self.position.pending.insert(channel.to_owned(), last);
            }
            None => {
                if let Some(after) = self.position.pending.remove(channel) {
                    self.mark(channel, after);
                }
            }
        }
    }

    /// Takes in that `channel` cannot be read any more, from `after` on. Returns the gap.
    pub fn give_up_channel(&mut self, channel: &str, after: u64, why: &str, now: UnixMillis) -> SourceGap {
        self.position.pending.remove(channel);
        self.position.channels.remove(channel);
        SourceGap {
            from: time_of(after),
            to: now,
            item: Some(channel.to_owned()),
            reason: format!("the history of channel {channel} cannot be read: {why}"),
        }
    }

    fn mark(&mut self, channel: &str, id: u64) {
        let position = &mut self.position;
        let mark = position.channels.entry(channel.to_owned()).or_insert(id);
        *mark = id.max(*mark);

        while position.channels.len() > MAX_MARKS {
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
    pub fn note_complete(&mut self, now: UnixMillis) {
        if self.position.pending.is_empty() {
            self.complete_until = self.complete_until.max(now);
        }
    }

    /// Notes that the gap up to `to` is told.
    pub fn note_gap(&mut self, to: UnixMillis) {
        self.complete_until = self.complete_until.max(to);
    }

    /// Returns whether the watermark must be written at `now` although no event came.
    #[must_use]
    pub fn is_note_due(&self, now: UnixMillis) -> bool {
        now.since(self.noted_at) >= NOTE_EVERY_MS
    }

    /// Returns the content of the watermark, to be written at `now`.
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

/// Returns the id from which on a channel is read whose newest stored message is `id`.
fn before(id: u64) -> u64 {
    first_id_at(time_of(id).plus(-OVERLAP_MS))
}

#[cfg(test)]
mod tests;
