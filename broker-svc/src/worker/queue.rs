//! Reads the session's subject, and records the messages that do not become a turn.

use shared::model::event::EventId;
use shared::model::ledger::{DispatchRef, DropReason, LedgerCursor, LedgerEntry};
use shared::model::order::OrderKind;
use ulid::Ulid;

use super::Worker;
use super::approve::ApprovalPoll;
use crate::agent::context::dropped_line;
use crate::error::RunSessionError;
use crate::queue::doubt::{DoubtResolution, give_up_order, hold_dispatch};
use crate::queue::inbox::{InboxPoll, InvalidDispatch};
use crate::session::{InboxItem, PendingDispatch, PlacedOrder, SessionEffect, SessionInput};

/// Messages that a look found and that are not run.
#[derive(Debug, Default)]
struct LeftOut {
    /// Messages that the ledger has consumed.
    consumed: Vec<InboxItem>,
    /// Messages with the id of an earlier one.
    repeated: Vec<InboxItem>,
    /// Dispatches that may have been handled before; they are held.
    held: Vec<InboxItem>,
    /// Held dispatches whose turn was given up because they were lost. Their ids are not remembered: an operator may redrive
    /// the dead letter instead.
    late: Vec<InboxItem>,
    /// Orders that may have been handled before; they have dead letters.
    unsure: Vec<InboxItem>,
}

impl Worker<'_> {
    pub(super) async fn read_inbox(&mut self) -> Result<InboxPoll, RunSessionError> {
        Ok(self.inbox.look(self.broker, &self.claimed.session).await?)
    }

    /// Hands the messages of `look` to the machine; unreadable ones become dead letters.
    pub(super) async fn take_in(&mut self, mut look: InboxPoll) -> Result<(), RunSessionError> {
        let cursor = &self.owner.fold().cursor;
        look.good.retain(|arrival| !cursor.contains(arrival.sequence()));
        look.bad.retain(|bad| !cursor.contains(bad.stored.sequence));
        // The floor must not pass an unreadable message before its dead letter is stored.
        self.inbox.hold_floor(look.bad.iter().map(|bad| bad.stored.sequence));
        let (good, left) = self.sift_arrivals(look.good).await?;
        let ApprovalPoll {
            others,
            words,
            questions,
            empty,
        } = Box::pin(self.take_decisions(good)).await?;

        let effects = self
            .machine
            .handle(SessionInput::Arrived(others), self.broker.clock.now());

        for bad in look.bad {
            self.give_up(&bad).await?;
        }

        // Only now does the machine know the open messages below them. A question must be known before its end.
        let asked = !questions.is_empty();

        for (sequence, request) in questions {
            self.take_question(sequence, request);
        }

        self.note_effects(effects);
        self.write_left_out(&left);

        for word in &words {
            self.drop_word(word);
        }

        for (sequence, approval) in empty {
            self.drop_told(sequence, &approval);
        }

        // The agent's gate finds in the ledger that the question is known, and a record has a size; a cancellation is
        // appended with the turn's end.
        if (asked || self.turns.has_staged_much()) && self.canceled.is_none() {
            self.owner.commit_staged().await?;
            self.turns.note_append();
        }

        Ok(())
    }

    /// Separates the messages that were handled before, as the record says, and holds those that may have been.
    /// Nothing is staged yet, because the machine does not know the other open messages.
    async fn sift_arrivals(&mut self, arrivals: Vec<InboxItem>) -> Result<(Vec<InboxItem>, LeftOut), RunSessionError> {
        let (mut good, mut left) = (Vec::with_capacity(arrivals.len()), LeftOut::default());
        for arrival in arrivals {
            // The machine consumes a copy after the dispatch that waits or runs.
            let is_open = arrival.id().is_some_and(|id| self.machine.is_open(id));
            let session = &self.claimed.session;
            let doubt = if is_open {
                None
            } else {
                let cursor = self.owner.fold().cursor.clone();
                self.inbox.doubt(self.broker, session, &cursor, &arrival).await?
            };

            // The id of an order in doubt is not remembered: an operator may redrive its dead letter. Nor is that of a
            // copy: the first message may have come with it, and the machine does not know it yet.
            let is_unsure_order = doubt == Some(DoubtResolution::Unknown) && matches!(arrival, InboxItem::Order(_));
            let is_copy = doubt == Some(DoubtResolution::Repeated);
            let is_late = doubt == Some(DoubtResolution::TurnLost);
            if doubt.is_some() {
                let id = arrival.id().filter(|_| !is_unsure_order && !is_copy && !is_late);
                self.machine.note_known(id, &[arrival.sequence()]);
            }

            match (doubt, arrival) {
                (None, arrival) => good.push(arrival),
                (Some(DoubtResolution::Repeated), arrival) => left.repeated.push(arrival),
                (Some(DoubtResolution::Unknown), InboxItem::Dispatch(pending)) => {
                    let why = format!(
                        "the ledger of {session} was restored to a state before the dispatch, which may have run"
                    );
                    hold_dispatch(self.broker, &pending, &why).await?;
                    left.held.push(InboxItem::Dispatch(pending));
                }
                (Some(DoubtResolution::TurnLost), InboxItem::Dispatch(pending)) => {
                    let why =
                        format!("{session} has given up the turn of the dispatch, which was lost and came too late");
                    hold_dispatch(self.broker, &pending, &why).await?;
                    left.late.push(InboxItem::Dispatch(pending));
                }
                (Some(DoubtResolution::Unknown), InboxItem::Order(placed)) => {
                    give_up_order(self.broker, session, &placed).await?;
                    left.unsure.push(InboxItem::Order(placed));
                }
                (
                    Some(DoubtResolution::Consumed | DoubtResolution::Unknown | DoubtResolution::TurnLost),
                    arrival @ (InboxItem::Dispatch(_) | InboxItem::Order(_) | InboxItem::Decision(_)),
                ) => left.consumed.push(arrival),
            }
        }

        Ok((good, left))
    }

    /// Stages the messages that are left out: repeated and held ones one by one, and those that the ledger has
    /// consumed already in one entry, for the cursor alone.
    fn write_left_out(&mut self, left: &LeftOut) {
        let session = &self.claimed.session;
        if !left.consumed.is_empty() {
            let dispatches = left.consumed.len();
            tracing::warn!(%session, dispatches, "skipping dispatches that the ledger records as handled");
            metrics::counter!("nexus_broker_recovered_dispatches_total").increment(dispatches as u64);
        }

        for arrival in &left.repeated {
            tracing::warn!(%session, dispatch_id = ?arrival.id(), "skipping a repeated dispatch");
            metrics::counter!("nexus_broker_repeated_dispatches_total").increment(1);
        }

        // The entry does not name the order's id, so that the dead letter can be redriven.
        for arrival in &left.unsure {
            let dispatch = DispatchRef {
                id: Ulid::nil(),
                ..arrival.dispatch_ref()
            };
            let cursor = self.cursor_after(&[arrival.sequence()]);
            self.owner.stage_entry(LedgerEntry::DispatchDropped {
                dispatch,
                reason: DropReason::OrderInDoubt,
                detail: None,
                cursor,
            });
        }

        // One entry is enough, because only the cursor must pass them.
        let consumed: Vec<u64> = left.consumed.iter().map(InboxItem::sequence).collect();
        if let Some(last) = left.consumed.last() {
            self.drop_arrival(last, &consumed, DropReason::HandledBefore);
        }

        let one_by_one = left.repeated.iter().map(|arrival| (arrival, DropReason::Repeated));
        let held = left.held.iter().map(|arrival| (arrival, DropReason::Held));
        let late = left.late.iter().map(|arrival| (arrival, DropReason::Lost));
        for (arrival, reason) in one_by_one.chain(held).chain(late) {
            self.drop_arrival(arrival, &[arrival.sequence()], reason);
        }
    }

    fn drop_arrival(&mut self, arrival: &InboxItem, consumed: &[u64], reason: DropReason) {
        let cursor = self.cursor_after(consumed);
        self.owner.stage_entry(LedgerEntry::DispatchDropped {
            dispatch: arrival.dispatch_ref(),
            reason,
            detail: None,
            cursor,
        });
    }

    async fn give_up(&mut self, bad: &InvalidDispatch) -> Result<(), RunSessionError> {
        self.owner.ensure_owned().await?;
        self.broker
            .bus
            .dead_letter_record(bad.to_dead_letter(self.broker.clock.now()))
            .await?;

        let dispatch = bad.dispatch_ref();
        self.inbox.free_floor(dispatch.sequence);
        let cursor = self.cursor_after(&[dispatch.sequence]);
        self.owner.stage_entry(LedgerEntry::DispatchDropped {
            dispatch,
            reason: DropReason::Unreadable,
            detail: Some(format!("{}: {}", bad.reason, bad.detail)),
            cursor,
        });

        self.owner.commit_staged().await
    }

    /// Stages the effects that can be recorded at once and queues the rest. A cancellation is appended with the
    /// turn's end, so that an owner that takes over in between cancels the turn too.
    pub(super) fn note_effects(&mut self, effects: Vec<SessionEffect>) {
        for effect in effects {
            match effect {
                SessionEffect::Drop { pending, reason } => self.drop_one(&pending, reason),
                SessionEffect::Cancel { reason } => self.canceled = Some(reason),
                SessionEffect::Carry { placed } => self.carry_out_order(placed),
                SessionEffect::Repeated { placed } => self.drop_repeated_order(&placed),
                SessionEffect::Decide { told } => self.take_decision(told),
                SessionEffect::Start { .. } | SessionEffect::Wake { .. } => self.effects.push_back(effect),
            }
        }
    }

    fn drop_one(&mut self, pending: &PendingDispatch, reason: DropReason) {
        let cursor = self.cursor_after(&[pending.sequence]);
        tracing::info!(
            session = %self.claimed.session, dispatch_id = %pending.dispatch.id, event_id = %pending.dispatch.event_id,
            reason = reason.name(), "dispatch dropped"
        );

        metrics::counter!("nexus_broker_dropped_total", "reason" => reason.name()).increment(1);
        if reason == DropReason::Duplicate {
            metrics::counter!("nexus_broker_repeated_dispatches_total").increment(1);
        }
        // The note is shown to the model in a later turn; the ledger has no other copy of the message.
        let content = if reason.leaves_a_note() {
            dropped_line(pending)
        } else {
            String::new()
        };

        self.owner.stage_entry(LedgerEntry::DispatchDropped {
            dispatch: DispatchRef {
                content,
                ..pending.dispatch_ref()
            },
            reason,
            detail: None,
            cursor,
        });
    }

    fn carry_out_order(&mut self, placed: PlacedOrder) {
        let PlacedOrder { sequence, order, .. } = placed;
        let (wanted, by) = (order.wanted.name(), order.by.as_str());
        tracing::info!(session = %self.claimed.session, order = wanted, by, reason = order.reason, "order applied");

        if let OrderKind::Edit { content, .. } = &order.wanted {
            self.turns.note_staged(content.len());
        }
        if order.wanted == OrderKind::Reset {
            let reason = format!("by {}", order.by);
            self.owner.stage_entry(LedgerEntry::SessionReset { reason });
        }

        let cursor = self.cursor_after(&[sequence]);
        let order = Box::new(order);
        self.owner.stage_entry(LedgerEntry::Ordered {
            order,
            sequence,
            cursor,
        });
    }

    fn drop_repeated_order(&mut self, placed: &PlacedOrder) {
        self.drop_named("order", placed.order.id, placed.sequence, DropReason::Duplicate);
    }

    /// Stages that a message of `kind`, which is not a dispatch, leads to nothing.
    pub(super) fn drop_named(&mut self, kind: &str, id: Ulid, sequence: u64, reason: DropReason) {
        let event_id = EventId::parse(format!("{kind}:{id}")).expect("a word, a colon and a ULID");
        let cursor = self.cursor_after(&[sequence]);
        self.owner.stage_entry(LedgerEntry::DispatchDropped {
            dispatch: DispatchRef {
                id,
                sequence,
                event_id,
                content: String::new(),
                stranger: None,
            },
            reason,
            detail: None,
            cursor,
        });
    }

    /// Returns the cursor once the messages at `consumed` are done.
    pub(super) fn cursor_after(&mut self, consumed: &[u64]) -> LedgerCursor {
        let open = self.machine.lowest_open(consumed);
        self.inbox.cursor_after(&self.owner.fold().cursor, consumed, open)
    }
}
