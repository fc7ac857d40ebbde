//! Stores what a reader took in: events and gaps first, then the position.

use shared::model::event::{Event, FROM_BOT, PeerKind, UNPAIRED};

use super::account_context::SourceResult;
use super::reader::GatewayReader;
use super::taken::TakenBatch;
use crate::source::port::sink::SourcePosition;
use crate::source::port::{PutEventsError, SourceGap};

/// Returns whether `event` was written directly by a sender without permission, or by a program. Their channels get
/// no marks, because anybody could push out those of others.
fn is_strangers(event: &Event) -> bool {
    let mut withheld = event.withheld_tags();
    event.peer.kind == PeerKind::Dm && withheld.any(|tag| tag == UNPAIRED || tag == FROM_BOT)
}

impl GatewayReader<'_> {
    /// Notes up to where the events of the session are stored once the batch is that is stored next: up to the first
    /// dispatch that waits.
    pub(super) fn note_stored(&mut self) {
        let Some(session) = &mut self.progress.position.session else {
            return;
        };
        let waiting = self.texts.keys().filter(|waiting| waiting.session == session.id);
        let waiting = waiting.map(|waiting| waiting.seq).min();
        let first = waiting.into_iter().chain(self.deferred.first_seq(&session.id)).min();
        let stored = first.map_or(self.taken_seq, |first| first.saturating_sub(1));
        session.seq = session.seq.max(stored.min(self.taken_seq));
    }

    /// Stores `batch`, and the watermark with it.
    pub(super) async fn store_batch(&mut self, mut batch: TakenBatch) -> SourceResult<()> {
        self.decide_texts(&mut batch).await?;
        for letter in &batch.letters {
            self.sink
                .give_up_payload(&letter.payload, letter.reason, &letter.detail)
                .await?;
        }

        // Now it is known which senders may write.
        let settled = self.sink.settle(std::mem::take(&mut batch.events)).await?;
        for message in &batch.messages {
            let event = message.event.and_then(|number| settled.events().get(number));
            // The bot's own message makes no event: it may be the code that a stranger was sent.
            let is_withheld = match event {
                Some(event) => is_strangers(event),
                None => message.is_direct && !self.progress.has_mark(&message.channel),
            };
            if !is_withheld {
                self.progress.note_message(&message.channel, message.id);
            }
        }

        self.note_stored();
        self.note_texts_stored(&batch);
        let position = self.progress.make_position(self.now());
        let stored = self.sink.put_settled(settled, &batch.gaps, position).await;
        self.settle_size(stored).await
    }

    /// Stores `events` and `gaps` with `position`.
    pub(super) async fn put_batch(
        &mut self,
        events: Vec<Event>,
        gaps: &[SourceGap],
        position: SourcePosition,
    ) -> SourceResult<()> {
        let settled = self.sink.settle(events).await?;
        let stored = self.sink.put_settled(settled, gaps, position).await;
        self.settle_size(stored).await
    }

    /// Takes in how a batch was `stored`. A watermark that is too large is made smaller, and written again.
    async fn settle_size(&mut self, stored: Result<(), PutEventsError>) -> SourceResult<()> {
        let mut stored = stored;
        while let Err(error @ PutEventsError::WatermarkTooLarge { .. }) = &stored {
            self.sink.report(Err(&error.to_string()));
            if !self.progress.compact() {
                break;
            }
            tracing::warn!(account = self.context.name, %error, "the position is made smaller");
            let now = self.now();
            let gaps: Vec<SourceGap> = self.progress.take_left_out(now).into_iter().collect();
            let position = self.progress.make_position(now);
            let settled = self.sink.settle(Vec::new()).await?;
            stored = self.sink.put_settled(settled, &gaps, position).await;
        }
        Ok(stored?)
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn strangers_and_programs_that_write_directly_leave_no_marks() {
        let of = |kind: PeerKind, tag: &str| {
            let id = EventId::parse("discord:main/1/2").expect("an id");
            let mut event = Event::new(id, "discord", "1", UnixMillis(1));
            event.peer.kind = kind;
            event.add_tag(tag);
            is_strangers(&event)
        };
        assert!(of(PeerKind::Dm, UNPAIRED) && of(PeerKind::Dm, FROM_BOT));
        assert!(!of(PeerKind::Dm, "urgent") && !of(PeerKind::Dm, "backfilled"));
        // The channels of guilds are as many as their owners make.
        assert!(!of(PeerKind::Channel, FROM_BOT));
    }
}
