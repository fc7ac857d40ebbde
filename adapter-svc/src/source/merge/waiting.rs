//! Messages that wait to be published: events of their own, and the albums and bursts that may grow. *Pure.*

use shared::model::event::Event;
use shared::model::time::UnixMillis;

use super::decision::MergeDecision;
use super::parts::{merge_parts, message_number};
use super::{BURST, MAX_BURST, MAX_BURST_BYTES, REBUILD_MS};

/// An event that may be published. `K` is what its platform is told once it is stored.
#[derive(Debug, PartialEq)]
pub struct ReadyEvent<K> {
    /// Event.
    pub event: Event,
    /// Keys with which its messages were handed over.
    pub keys: Vec<K>,
    /// Decision to be stored before it is published, if it may have been merged.
    pub decision: Option<MergeDecision>,
}

/// An entry of a place's queue.
#[derive(Debug)]
pub(super) enum Waiting<K> {
    /// An event of its own.
    Single { key: K, event: Box<Event> },
    /// An album or a burst.
    Merge(OpenMerge<K>),
}

/// An album or a burst that may grow.
#[derive(Debug)]
pub(super) struct OpenMerge<K> {
    pub(super) name: String,
    pub(super) wait_ms: i64,
    pub(super) most_ms: i64,
    /// Messages, at least one.
    pub(super) parts: Vec<Event>,
    pub(super) keys: Vec<K>,
    pub(super) opened: UnixMillis,
    pub(super) grown: UnixMillis,
    /// Number of messages that it has, if that was decided before.
    pub(super) expected: Option<usize>,
    /// Whether nothing more is awaited.
    pub(super) is_closed: bool,
}

impl<K> OpenMerge<K> {
    pub(super) fn has(&self, number: i64) -> bool {
        self.parts.iter().any(|part| message_number(part) == number)
    }

    /// Returns whether a message of the album or burst `name` is one of its own.
    pub(super) fn takes(&self, name: &str, expected: Option<usize>) -> bool {
        self.name == name && self.expected == expected && !self.is_closed
    }

    pub(super) fn due(&self) -> UnixMillis {
        let is_complete = self.expected.is_some_and(|expected| self.parts.len() >= expected);
        if self.is_closed || is_complete {
            return UnixMillis(i64::MIN);
        }
        match self.expected {
            Some(_) => self.opened.plus(REBUILD_MS),
            None => self.grown.plus(self.wait_ms).min(self.opened.plus(self.most_ms)),
        }
    }
}

impl<K> Waiting<K> {
    pub(super) const fn as_merge(&mut self) -> Option<&mut OpenMerge<K>> {
        match self {
            Self::Single { .. } => None,
            Self::Merge(open) => Some(open),
        }
    }

    pub(super) fn due(&self) -> UnixMillis {
        match self {
            Self::Single { .. } => UnixMillis(i64::MIN),
            Self::Merge(open) => open.due(),
        }
    }

    pub(super) fn is_ready(&self, now: UnixMillis) -> bool {
        let was_set_back = match self {
            Self::Single { .. } => false,
            // A clock that was set back makes nothing wait until it is that time again.
            Self::Merge(open) => now < open.opened,
        };
        was_set_back || self.due() <= now
    }

    /// Returns the name of the burst that it is, if the text `event` continues it: of the same person and thread, and no
    /// answer to another message. The merged event has the sender and the tags of its first text, so that what a program
    /// writes in a person's name, or somebody else under another name or with other roles, is none of its texts.
    pub(super) fn burst_before(&self, event: &Event) -> Option<&str> {
        let open = match self {
            Self::Merge(open) if open.expected.is_none() && !open.is_closed => open,
            Self::Merge(_) | Self::Single { .. } => return None,
        };
        let first = open.parts.first()?;
        let is_same = (&first.from, &first.tags, &first.thread_id) == (&event.from, &event.tags, &event.thread_id);
        let goes_on = event.reply_to.is_none() || event.reply_to == first.reply_to;
        let texts = open.parts.iter().chain([event]);
        let bytes: usize = texts.map(|text| text.content.len()).sum();
        let has_room = open.parts.len() < MAX_BURST && bytes <= MAX_BURST_BYTES;
        let continues = open.name.starts_with(BURST) && is_same && goes_on && has_room;
        continues.then_some(open.name.as_str())
    }

    pub(super) fn events(&self) -> &[Event] {
        match self {
            Self::Single { event, .. } => std::slice::from_ref(event.as_ref()),
            Self::Merge(open) => &open.parts,
        }
    }

    pub(super) fn keys(&self) -> &[K] {
        match self {
            Self::Single { key, .. } => std::slice::from_ref(key),
            Self::Merge(open) => &open.keys,
        }
    }

    pub(super) fn into_ready(self, place: &str) -> ReadyEvent<K> {
        match self {
            Self::Single { key, event } => ReadyEvent {
                event: *event,
                keys: vec![key],
                decision: None,
            },
            Self::Merge(open) => {
                let OpenMerge {
                    name, mut parts, keys, ..
                } = open;
                parts.sort_by_key(message_number);
                let decision = MergeDecision {
                    place: place.to_owned(),
                    name,
                    messages: parts.iter().map(message_number).collect(),
                    is_stored: false,
                };
                ReadyEvent {
                    event: merge_parts(parts),
                    keys,
                    decision: Some(decision),
                }
            }
        }
    }
}
