//! `EVENTS` → `threads`. Nearly every event changes the row of its thread, so the changes of one transaction are gathered and
//! written once.

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::{Connection, params};
use serde_json::Value;

use super::details::thread_of;
use crate::model::event::{Event, PeerKind};

/// Keys of an event's metadata with the name of its conversation: platforms have different words for it.
const NAMES: [&str; 5] = ["thread_name", "thread_title", "group_name", "chat_name", "subject"];

/// Changes of threads by the events of one transaction.
#[derive(Debug, Default)]
pub(in crate::projection) struct ThreadChanges<'a> {
    /// Index in `changes`, by thread and channel.
    known: HashMap<(Cow<'a, str>, &'a str), usize>,
    /// In the order of their first events: the first event of a thread decides its channel.
    changes: Vec<ThreadChange<'a>>,
}

#[derive(Debug)]
struct ThreadChange<'a> {
    thread: Cow<'a, str>,
    /// The first event, which describes a new thread.
    first: &'a Event,
    /// The last name that an event gives.
    name: Option<&'a str>,
    /// The first parent that an event names.
    parent: Option<&'a str>,
    /// Times of the earliest and the latest event: an import brings earlier ones.
    created_at: i64,
    updated_at: i64,
}

impl<'a> ThreadChanges<'a> {
    /// Records the first occurrence of `event`, which is later than the events before it.
    pub(super) fn note(&mut self, event: &'a Event) {
        // An origin that cannot speak on a conversation must not describe it.
        if !event.origin.speaks_on(event) {
            return;
        }

        let thread = thread_of(event);
        let name = NAMES
            .iter()
            .find_map(|key| event.metadata.get(*key).and_then(Value::as_str));
        let (parent, at) = (event.peer.parent_id.as_deref(), event.timestamp.0);
        let key = (thread, event.channel.as_str());
        if let Some(change) = self.known.get(&key).and_then(|&index| self.changes.get_mut(index)) {
            change.name = name.or(change.name);
            change.parent = change.parent.or(parent);
            change.created_at = change.created_at.min(at);
            change.updated_at = change.updated_at.max(at);
            return;
        }

        self.changes.push(ThreadChange {
            thread: key.0.clone(),
            first: event,
            name,
            parent,
            created_at: at,
            updated_at: at,
        });
        self.known.insert(key, self.changes.len() - 1);
    }

    /// Writes the table `threads`. An event of another channel does not describe a thread, even if it names the thread's id.
    pub(in crate::projection) fn write(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        let mut statement = connection.prepare_cached(
            "INSERT INTO threads(id, channel, name, is_group, source_adapter, source_id, parent_thread_id, created_at, updated_at)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)
             ON CONFLICT(id) DO UPDATE SET name = coalesce(excluded.name, name),
               parent_thread_id = coalesce(parent_thread_id, excluded.parent_thread_id),
               created_at = min(created_at, excluded.created_at), updated_at = max(updated_at, excluded.updated_at)
             WHERE channel = excluded.channel",
        )?;
        for change in &self.changes {
            statement.execute(params![
                change.thread,
                change.first.channel,
                change.name,
                change.first.peer.kind != PeerKind::Dm,
                change.first.source_adapter,
                change.first.peer.id,
                change.parent,
                change.created_at,
                change.updated_at,
            ])?;
        }

        Ok(())
    }
}
