//! Texts that wait for those that follow, until they are stored as one event, with `debounce_ms`. Everything else waits for
//! nothing but its place in the channel's order.
//!
//! The session is not confirmed beyond the first that waits, and its channel has no mark of it, so that a crash brings all of
//! them again, from the session or from the history.

use shared::model::event::Event;

use super::account_context::SourceResult;
use super::drive::HeldDispatch;
use super::link::Dispatch;
use super::normalize::DispatchPayload;
use super::reader::{GatewayReader, apply_policy};
use super::taken::{TakenBatch, TakenMessage, WaitingDispatch};
use crate::source::merge::ReadyEvent;

impl GatewayReader<'_> {
    /// Takes in the events of `taken`, which happened in `channel`. What they need is known. What they lead to is added to
    /// `batch`, without the events themselves ([`GatewayReader::release_texts`]).
    pub(super) fn add_events(&mut self, channel: &str, taken: HeldDispatch, batch: &mut TakenBatch) {
        let Dispatch {
            session,
            seq,
            kind,
            data,
        } = &taken.dispatch;
        // The session was resumed.
        if self.texts.keys().any(|waiting| waiting.is_of(session, *seq)) {
            return;
        }

        let around = self.surroundings(channel, kind, data);
        let token = format!("{session}/{seq}");
        let payload = DispatchPayload {
            kind,
            data,
            token: &token,
        };
        let events = self.read_events(&around, payload, batch);

        let id = data.get("id").and_then(|id| id.as_str()?.parse().ok());
        let id = id.filter(|_| kind == "MESSAGE_CREATE");
        let mut message = id.map(|id| TakenMessage {
            channel: channel.to_owned(),
            id,
            event: None,
            is_direct: around.place.is_direct(),
        });
        if events.is_empty() {
            // The channel is marked up to it, so that nothing before it may wait.
            if let Some(message) = message {
                self.texts.close(channel);
                batch.messages.push(message);
            }
            batch.held.push(taken);
            return;
        }

        let (session, seq, now) = (session.clone(), *seq, self.sink.now());
        let (last, mut held) = (events.len() - 1, Some(taken));
        for (index, event) in events.into_iter().enumerate() {
            let waiting = WaitingDispatch {
                session: session.clone(),
                seq,
                message: message.take(),
                held: held.take_if(|_| index == last),
            };
            self.texts.push(channel, waiting, event, now);
        }
    }

    /// Adds the events that wait no more to `batch`.
    pub(super) fn release_texts(&mut self, batch: &mut TakenBatch) {
        for ready in self.texts.take_ready(self.sink.now()) {
            let ReadyEvent {
                mut event,
                keys,
                decision,
            } = ready;
            // In a merged event any of the texts may address the bot.
            apply_policy(&self.context.account, &mut event);

            let number = batch.events.len();
            for key in keys {
                batch.messages.extend(key.message.map(|message| TakenMessage {
                    event: Some(number),
                    ..message
                }));
                batch.held.extend(key.held);
            }
            batch.decided.extend(decision);
            batch.events.push(event);
        }
    }

    /// Stores which texts the events of `batch` have, before those are published, unless that is done. Otherwise a text that
    /// comes late could be part of an event that was published before a crash, and be lost.
    pub(super) async fn decide_texts(&mut self, batch: &mut TakenBatch) -> SourceResult<()> {
        if batch.decided.is_empty() || std::mem::replace(&mut batch.is_decided, true) {
            return Ok(());
        }
        self.progress.position.texts = self.texts.to_stored();
        let now = self.now();
        let position = self.progress.make_position(now);
        self.put_batch(Vec::new(), &[], position).await
    }

    /// Notes in the position that the events of `batch` are stored when it is.
    pub(super) fn note_texts_stored(&mut self, batch: &TakenBatch) {
        self.texts.note_stored(&batch.decided);
        self.progress.position.texts = self.texts.to_stored();
    }

    /// Stores the events that wait no more.
    pub(super) async fn store_ready_texts(&mut self) -> SourceResult<()> {
        let mut batch = TakenBatch::default();
        self.release_texts(&mut batch);
        if batch.is_empty() {
            return Ok(());
        }
        self.store_batch(batch).await
    }

    /// Stores the events that wait, because the connection has ended: the next one may be far off.
    pub(super) async fn store_waiting_texts(&mut self) -> SourceResult<()> {
        self.texts.close_growing();
        self.store_ready_texts().await
    }

    /// Adds `events`, of a page of the history of `channel`, to `batch`, without the texts that are stored in other events.
    pub(super) fn add_page(&mut self, channel: &str, events: Vec<Event>, batch: &mut TakenBatch) {
        let (mut events, decided) = self.texts.merge_page(channel, events);
        for event in &mut events {
            apply_policy(&self.context.account, event);
        }
        batch.events.extend(events);
        batch.decided.extend(decided);
    }
}
