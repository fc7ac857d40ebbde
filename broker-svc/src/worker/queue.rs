//! Looking at the session's subject, and writing down what does not become a turn.

use shared::model::event::EventId;
use shared::model::ledger::{Cursor, DispatchRef, LedgerEntry};
use shared::model::order::Wanted;
use ulid::Ulid;

use super::Worker;
use super::approve::Listened;
use crate::context::dropped_line;
use crate::error::RunSessionError;
use crate::fold::advanced;
use crate::inbox::{self, Bad, Look};
use crate::session::{DropReason, Effect, Input, Pending, Placed};

impl Worker<'_> {
    pub(super) async fn look(&mut self) -> Result<Look, RunSessionError> {
        let look = inbox::look(self.broker, &self.claimed.session, self.looked_through + 1).await?;
        self.looked_through = look.through.unwrap_or(self.looked_through);
        Ok(look)
    }

    /// Hands what a look found to the machine; what cannot be read is given up.
    pub(super) async fn take_in(&mut self, mut look: Look) -> Result<(), RunSessionError> {
        let cursor = &self.owner.fold().cursor;
        look.good.retain(|arrival| !cursor.contains(arrival.sequence()));
        look.bad.retain(|bad| !cursor.contains(bad.stored.sequence));
        self.bad.extend(look.bad.iter().map(|bad| bad.stored.sequence));
        let Listened {
            others,
            words,
            questions,
        } = self.hear(look.good).await?;
        let effects = self.machine.handle(Input::Arrived(others), self.broker.clock.now());
        for bad in look.bad {
            self.give_up(&bad).await?;
        }
        self.note(effects);
        // Only now the machine knows what lies open below them.
        for word in &words {
            self.drop_word(word);
        }
        let asked = !questions.is_empty();
        for (sequence, request) in questions {
            self.take_question(sequence, request);
        }
        // The agent's gate finds in the ledger that it is known; what cancels a turn is appended with the turn's end.
        if asked && self.cancelled.is_none() {
            self.owner.commit().await?;
        }
        Ok(())
    }

    async fn give_up(&mut self, bad: &Bad) -> Result<(), RunSessionError> {
        self.owner.own().await?;
        self.broker
            .bus
            .dead_letter_record(bad.letter(self.broker.clock.now()))
            .await?;
        let dispatch = bad.reference();
        self.bad.remove(&dispatch.sequence);
        let cursor = self.cursor_after(&[dispatch.sequence]);
        let reason = format!("{}: {}", bad.reason, bad.detail);
        self.owner.stage(LedgerEntry::DispatchDropped {
            dispatch,
            reason,
            cursor,
        });
        self.owner.commit().await
    }

    /// Writes down at once what can be, and keeps the rest: what cancels a turn is appended with the turn's end, so
    /// that whoever takes over in between cancels it too.
    pub(super) fn note(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Drop { pending, reason } => self.drop_one(&pending, reason),
                Effect::Cancel { reason } => self.cancelled = Some(reason),
                Effect::Carry { placed } => self.carry(placed),
                Effect::Repeated { placed } => self.repeated(&placed),
                Effect::Decide { told } => self.take_decision(told),
                Effect::Start { .. } | Effect::Wake { .. } => self.effects.push_back(effect),
            }
        }
    }

    fn drop_one(&mut self, pending: &Pending, reason: DropReason) {
        let cursor = self.cursor_after(&[pending.sequence]);
        tracing::info!(
            session = %self.claimed.session, dispatch_id = %pending.dispatch.id, event_id = %pending.dispatch.event_id,
            reason = reason.name(), "dispatch is dropped"
        );
        metrics::counter!("nexus_broker_dropped_total", "reason" => reason.name()).increment(1);
        let content = match reason {
            DropReason::Summarized | DropReason::Superseded => dropped_line(pending),
            DropReason::Duplicate
            | DropReason::Aborted
            | DropReason::OverflowOld
            | DropReason::OverflowNew
            | DropReason::Withdrawn => String::new(),
        };
        self.owner.stage(LedgerEntry::DispatchDropped {
            dispatch: DispatchRef {
                content,
                ..pending.reference()
            },
            reason: reason.name().to_owned(),
            cursor,
        });
    }

    fn carry(&mut self, placed: Placed) {
        let Placed { sequence, order } = placed;
        let (wanted, by) = (order.wanted.name(), order.by.as_str());
        tracing::info!(session = %self.claimed.session, wanted, by, reason = order.reason, "order is carried out");
        if order.wanted == Wanted::Reset {
            let reason = format!("by {}", order.by);
            self.owner.stage(LedgerEntry::SessionReset { reason });
        }
        let cursor = self.cursor_after(&[sequence]);
        let order = Box::new(order);
        self.owner.stage(LedgerEntry::Ordered {
            order,
            sequence,
            cursor,
        });
    }

    fn repeated(&mut self, placed: &Placed) {
        self.drop_named("order", placed.order.id, placed.sequence, DropReason::Duplicate.name());
    }

    /// Writes down that what is no dispatch, a `kind` of message, leads to nothing.
    pub(super) fn drop_named(&mut self, kind: &str, id: Ulid, sequence: u64, reason: &str) {
        let event_id = EventId::parse(format!("{kind}:{id}")).expect("a word, a colon and a ULID");
        let cursor = self.cursor_after(&[sequence]);
        self.owner.stage(LedgerEntry::DispatchDropped {
            dispatch: DispatchRef {
                id,
                sequence,
                event_id,
                content: String::new(),
                stranger: None,
            },
            reason: reason.to_owned(),
            cursor,
        });
    }

    /// The cursor once `consumed` are over.
    pub(super) fn cursor_after(&mut self, consumed: &[u64]) -> Cursor {
        self.consumed.extend(consumed);
        let bad = self.bad.first().copied();
        let open = self.machine.lowest_open(consumed).into_iter().chain(bad).min();
        let mut cursor = self.owner.fold().cursor.clone();
        for &sequence in consumed {
            cursor = advanced(&cursor, sequence, self.looked_through, open);
        }
        cursor
    }
}
