//! Albums: files that were sent together come as messages of their own, and are merged to one event. *Pure.*
//!
//! With `debounce_ms`, texts that one person writes behind each other are merged likewise: a burst. It is an album whose
//! name is that of its first message, with a wait of its own.
//!
//! The vendor does not say how many messages an album has, so it is complete if nothing of it came for a while. What comes
//! of a chat behind an open album waits, so that the chat keeps its order. Source:
//! <https://core.telegram.org/bots/api#message>, `media_group_id`.
//!
//! Which messages an album has is decided once: [`ClosedAlbum`] is stored before its event is published. Otherwise a
//! message that came late, and was an event of its own, could be in the album after a crash, whose event is a repetition
//! that no service reads: it would be lost.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shared::model::approval::read_decision_word;
use shared::model::event::{Event, EventDirection, MAX_ATTACHMENTS, PlatformIds};
use shared::model::time::UnixMillis;

use super::normalize::MAX_RAW_BYTES;

/// Maximum time for which an album is open, as a multiple of the wait for its next message.
const MOST_WAITS: i64 = 5;

/// Beginning of a burst's name, before the id of its first message. The vendor's ids of albums are numbers.
const BURST: &str = "burst/";

/// Maximum number of messages of a burst.
const MAX_BURST: usize = 20;

/// How long messages wait for what belongs to them, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeWaits {
    /// Wait for an album's next message.
    pub album_ms: i64,
    /// Wait for the next text of a burst; 0 = each text is an event of its own.
    pub burst_ms: i64,
}

/// An album whose messages are decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosedAlbum {
    /// Chat of the album.
    pub chat: String,
    /// The vendor's id of the album, or the name of a burst.
    pub album: String,
    /// Ids of its messages, as far as they came in time, ascending.
    pub messages: Vec<i64>,
}

/// An event that may be published, and the updates of which it consists.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyEvent {
    /// Event.
    pub event: Event,
    /// Numbers of its updates.
    pub updates: Vec<i64>,
    /// Decision to be stored before it is published, if it is an album.
    pub closed: Option<ClosedAlbum>,
}

/// An entry of a chat's queue.
#[derive(Debug)]
enum Waiting {
    /// An event behind an album.
    Single { update: i64, event: Box<Event> },
    /// An album.
    Album {
        album: String,
        wait_ms: i64,
        parts: Vec<(i64, Event)>,
        opened: UnixMillis,
        grown: UnixMillis,
        /// Number of messages that it has, if that was decided before.
        expected: Option<usize>,
    },
}

/// The albums that are not complete, and the events that wait behind them.
#[derive(Debug)]
pub struct AlbumMerger {
    waits: MergeWaits,
    chats: BTreeMap<String, VecDeque<Waiting>>,
    decided: Vec<ClosedAlbum>,
}

impl AlbumMerger {
    /// Returns a merger that waits as `waits` says. `decided` are albums that were closed before.
    #[must_use]
    pub const fn new(waits: MergeWaits, decided: Vec<ClosedAlbum>) -> Self {
        Self {
            waits,
            chats: BTreeMap::new(),
            decided,
        }
    }

    /// Takes the event of an update. Ask [`AlbumMerger::take_ready`] for those that may be published.
    pub fn push(&mut self, update: i64, event: Event, now: UnixMillis) {
        let named = self.name_of(&event);
        let queue = self.chats.entry(event.peer.id.clone()).or_default();
        let Some((album, wait_ms)) = named else {
            queue.push_back(Waiting::Single {
                update,
                event: Box::new(event),
            });
            return;
        };

        let id = message_id(&event);
        let decided = self
            .decided
            .iter()
            .find(|closed| closed.chat == event.peer.id && closed.album == album && closed.messages.contains(&id));
        let expected = decided.map(|closed| closed.messages.len());

        let open = queue.iter_mut().find_map(|waiting| match waiting {
            // A message that came too late is not in the album that was decided.
            Waiting::Album {
                album: open,
                parts,
                grown,
                expected: of,
                ..
            } if *open == album && *of == expected => Some((parts, grown)),
            Waiting::Album { .. } | Waiting::Single { .. } => None,
        });
        match open {
            Some((parts, grown)) => {
                // The same update comes again as long as it is not confirmed.
                if !parts.iter().any(|(_, part)| message_id(part) == id) {
                    parts.push((update, event));
                    *grown = now;
                }
            }
            None => queue.push_back(Waiting::Album {
                album,
                wait_ms,
                parts: vec![(update, event)],
                opened: now,
                grown: now,
                expected,
            }),
        }
    }

    /// Returns the name of the album or burst to which `event` belongs, and how long it waits; `None` if it is alone.
    fn name_of(&self, event: &Event) -> Option<(String, i64)> {
        if let Some(album) = album_of(event) {
            return Some((album, self.waits.album_ms));
        }
        if self.waits.burst_ms <= 0 || !is_text(event) {
            return None;
        }

        let (chat, id) = (&event.peer.id, message_id(event));
        let is_decided = |closed: &&ClosedAlbum| {
            closed.chat == *chat && closed.album.starts_with(BURST) && closed.messages.contains(&id)
        };
        let decided = self.decided.iter().find(is_decided).map(|closed| closed.album.clone());
        // Only what is at the end of the queue: between the texts of a burst nothing else happens in the chat.
        let last = self.chats.get(chat).and_then(VecDeque::back);
        let open = || last.and_then(|last| last.burst_before(event)).map(str::to_owned);

        let name = decided.or_else(open).unwrap_or_else(|| format!("{BURST}{id}"));
        Some((name, self.waits.burst_ms))
    }

    /// Returns the events that may be published at `now`, in the order of each chat.
    pub fn take_ready(&mut self, now: UnixMillis) -> Vec<ReadyEvent> {
        let mut ready = Vec::new();
        for queue in self.chats.values_mut() {
            while queue.front().is_some_and(|first| first.is_ready(now)) {
                // An event published before a crash needs no second one.
                let waiting = queue
                    .pop_front()
                    .filter(|waiting| !waiting.was_published(&self.decided));
                ready.extend(waiting.map(Waiting::into_ready));
            }
        }

        self.chats.retain(|_, queue| !queue.is_empty());
        ready
    }

    /// Returns the time at which the next album is complete if nothing more comes of it; `None` without an open one.
    #[must_use]
    pub fn next_due(&self) -> Option<UnixMillis> {
        let fronts = self.chats.values().filter_map(VecDeque::front);
        fronts.map(Waiting::due).min()
    }

    /// Returns the lowest number of the updates that wait; `None` if none waits. Nothing from it on may be confirmed.
    #[must_use]
    pub fn first_update(&self) -> Option<i64> {
        let waiting = self.chats.values().flatten();
        waiting.flat_map(Waiting::updates).min()
    }

    /// Returns whether the event of `update` waits.
    #[must_use]
    pub fn holds(&self, update: i64) -> bool {
        let mut waiting = self.chats.values().flatten();
        waiting.any(|waiting| waiting.updates().contains(&update))
    }
}

impl Waiting {
    fn due(&self) -> UnixMillis {
        match self {
            Self::Single { .. } => UnixMillis(i64::MIN),
            Self::Album {
                parts,
                expected: Some(of),
                ..
            } if parts.len() >= *of => UnixMillis(i64::MIN),
            Self::Album {
                wait_ms, opened, grown, ..
            } => grown
                .plus(*wait_ms)
                .min(opened.plus(wait_ms.saturating_mul(MOST_WAITS))),
        }
    }

    fn is_ready(&self, now: UnixMillis) -> bool {
        self.due() <= now
    }

    /// Returns the name of the burst that it is, if the text `event` continues it: of the same person and topic, and no
    /// answer to another message.
    fn burst_before(&self, event: &Event) -> Option<&str> {
        let Self::Album {
            album,
            parts,
            expected: None,
            ..
        } = self
        else {
            return None;
        };

        let (_, first) = parts.first()?;
        let is_same = (&first.from.id, &first.thread_id) == (&event.from.id, &event.thread_id);
        let continues = album.starts_with(BURST) && is_same && event.reply_to.is_none() && parts.len() < MAX_BURST;
        continues.then_some(album.as_str())
    }

    /// Returns whether it is the rest of an album among `decided` whose first message was confirmed: then the event of
    /// the whole album is stored.
    fn was_published(&self, decided: &[ClosedAlbum]) -> bool {
        let Self::Album {
            album,
            parts,
            expected: Some(_),
            ..
        } = self
        else {
            return false;
        };

        let ids: Vec<i64> = parts.iter().map(|(_, part)| message_id(part)).collect();
        let chat = &parts[0].1.peer.id;
        let is_same =
            |closed: &&ClosedAlbum| closed.chat == *chat && closed.album == *album && closed.messages.contains(&ids[0]);
        let first = decided.iter().find(is_same).and_then(|closed| closed.messages.first());
        first.is_some_and(|first| !ids.contains(first))
    }

    fn updates(&self) -> Vec<i64> {
        match self {
            Self::Single { update, .. } => vec![*update],
            Self::Album { parts, .. } => parts.iter().map(|(update, _)| *update).collect(),
        }
    }

    fn into_ready(self) -> ReadyEvent {
        let updates = self.updates();
        match self {
            Self::Single { event, .. } => ReadyEvent {
                event: *event,
                updates,
                closed: None,
            },
            Self::Album { album, parts, .. } => {
                let mut parts: Vec<Event> = parts.into_iter().map(|(_, part)| part).collect();
                parts.sort_by_key(message_id);
                let messages = parts.iter().map(message_id).collect();
                let chat = parts[0].peer.id.clone();
                ReadyEvent {
                    event: merge_parts(parts),
                    updates,
                    closed: Some(ClosedAlbum { chat, album, messages }),
                }
            }
        }
    }
}

/// Returns the album of which `event` is a message; `None` if it is none, or an edit of one.
fn album_of(event: &Event) -> Option<String> {
    let album = event.metadata.get("album").and_then(Value::as_str)?;
    (event.direction == EventDirection::Received).then(|| album.to_owned())
}

/// Returns whether `event` is a text that a person has written just now: no edit, press, file or command, and no decision
/// about an approval, whose code is for no agent.
fn is_text(event: &Event) -> bool {
    let first = event.content.split_whitespace().next().unwrap_or_default();
    let counts_alone = first.starts_with('/') || read_decision_word(first).is_some();
    let is_written = event.direction == EventDirection::Received && event.target.is_none();
    is_written && event.content_types == ["text"] && !counts_alone
}

fn message_id(event: &Event) -> i64 {
    let ids = PlatformIds::from_event(event);
    let id = ids.and_then(|platform| platform.ids.first()?.rsplit('/').next()?.parse().ok());
    id.unwrap_or_default()
}

/// Returns the event of an album: its first message with the files, captions and ids of all `parts`, which are in the
/// order of their ids and at least one.
fn merge_parts(mut parts: Vec<Event>) -> Event {
    let raws: Vec<Value> = parts
        .iter()
        .filter_map(|part| part.metadata.get("raw").cloned())
        .collect();
    let is_whole = raws.len() == parts.len() && parts.len() > 1;
    let named = parts.iter().filter_map(PlatformIds::from_event);
    let ids = named.flat_map(|platform| platform.ids).collect();

    let rest = parts.split_off(1);
    let mut event = parts.remove(0);
    for part in rest {
        event.attachments.extend(part.attachments);
        for kind in part.content_types {
            if !event.content_types.contains(&kind) {
                event.content_types.push(kind);
            }
        }

        if !event.content.is_empty() && !part.content.is_empty() {
            event.content.push('\n');
        }
        event.content.push_str(&part.content);

        // A mention in any caption counts.
        if !event.mention.is_some_and(|mention| mention.me) {
            event.mention = part.mention;
        }
    }

    event.attachments.truncate(MAX_ATTACHMENTS);
    PlatformIds { ids, part: 0 }.write_to(&mut event);

    let raws = json!(raws);
    if is_whole && raws.to_string().len() <= MAX_RAW_BYTES {
        event.metadata.insert("raw".to_owned(), raws);
    }

    event
}

#[cfg(test)]
mod tests;
