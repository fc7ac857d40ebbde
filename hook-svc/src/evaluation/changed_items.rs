//! What becomes of the dispatches of an item that was edited or deleted at its source.
//!
//! The record of the item's first event names the dispatches that its hooks made, and their sessions. Each of these
//! sessions gets an order. After a deletion, a dispatch that waits there is dropped; after an edit, it gets the new text. A
//! turn that has begun goes on. The orders have derived ids and are stored before the change's own record, so that a
//! repetition after a crash has no effect.
//!
//! Every second counts, because the turn may begin. So the orders wait for no hook of the change itself, and for no event
//! of the conversation but those of the same item: its first event has a record only when its hooks have answered, and the
//! orders of earlier changes come first. While they wait, the hooks of the change are called.
//!
//! An event can name any item. A change therefore counts only if its origin is proven and the same as that of the item's
//! first event, in the same conversation. Source: `docs/design/sessions.md` §2.

use futures_util::FutureExt as _;
use futures_util::future::try_join;
use shared::bus::{OutgoingMessage, claim};
use shared::model::dispatch::derived_ulid;
use shared::model::event::{Event, EventDirection, MERGED_TEXTS, PlatformIds};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::order::{MAX_EDIT_BYTES, OrderKind, SessionOrder};
use shared::model::origin::EventOrigin;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};
use ulid::Ulid;

use crate::error::HandleEventError;
use crate::evaluation::evaluator::EventEvaluator;
use crate::evaluation::task::EventTask;

impl EventEvaluator {
    /// Gives the orders that follow from `task`'s event if it is an edit or a deletion of an item, and awaits `evaluating`,
    /// which calls its hooks. The orders come first, unless they have to wait for the item's earlier events.
    pub(super) async fn order_beside<T>(
        &self,
        task: &EventTask,
        carrier: &TraceCarrier,
        evaluating: impl Future<Output = Result<T, HandleEventError>>,
    ) -> Result<T, HandleEventError> {
        let Some(change) = item_change(&task.event) else {
            task.settle_change();
            return evaluating.await;
        };

        if task.place.is_item_free() {
            self.order_changes(task, change, carrier).await?;
            return evaluating.await;
        }

        // Neither interrupts the other when it fails, because actions of hooks are completed before a repetition. If this
        // replica stops, the next owner does both.
        let ordering = self.order_changes(task, change, carrier).map(Ok::<_, HandleEventError>);
        let evaluating = evaluating.map(|answered| match answered {
            Err(error) if error.is_stop() => Err(error),
            answered => Ok(answered),
        });
        let (ordered, answered) = try_join(ordering, evaluating).await?;
        ordered?;
        answered
    }

    /// Gives the orders that follow from `task`'s event, which is a `change` of its item.
    async fn order_changes(
        &self,
        task: &EventTask,
        change: ItemChange,
        carrier: &TraceCarrier,
    ) -> Result<(), HandleEventError> {
        if !task.place.is_item_free() {
            task.lent.waits_for_its_turn();
            task.place.wait_item().await;
        }

        let bus = &self.performer.bus;
        for order in self.change_orders(task, change).await? {
            let out = OutgoingMessage::new(subject::dispatch(&order.target), &order).msg_id(order.id.to_string());
            bus.publish(out.carrier(carrier)).await?;
            claim::publish(bus, &order.target, carrier).await?;
            tracing::info!(
                event_id = %task.event.id, order_id = %order.id, session = %order.target, order = order.wanted.name(),
                "message was changed at its source; its session gets an order"
            );
        }

        task.settle_change();
        Ok(())
    }

    /// Returns the orders that follow from `task`'s event, which is a `change` of its item.
    async fn change_orders(&self, task: &EventTask, change: ItemChange) -> Result<Vec<SessionOrder>, HandleEventError> {
        let (bus, event) = (&self.performer.bus, &task.event);
        let subject = subject::invocation(task.partition, &event.id);
        let stored = bus.last_on_subject(INVOCATIONS, &subject).await?;
        let Some(record) = stored.and_then(|stored| stored.decode::<EventInvocations>().ok()) else {
            // An event that ended because this replica stops has no record yet: the next owner handles both. Otherwise the
            // item is so old that none of its dispatches waits.
            return if self.is_stopping() {
                Err(HandleEventError::Stopped)
            } else {
                Ok(Vec::new())
            };
        };

        // Who brought the item is known from its own message.
        let stored = bus.at_sequence(EVENTS, record.event_seq).await?;
        let Some(original) = stored.and_then(|stored| stored.read_event(bus.trust()).ok()) else {
            return Ok(Vec::new());
        };

        if !may_change(event, &original) {
            tracing::info!(
                event_id = %event.id, origin = %event.origin, sender = event.from.id,
                "change is not by the party that brought the message; its dispatches stay"
            );
            return Ok(Vec::new());
        }

        // The text of an event that was made of several messages is that of all; an edit may have the new text of one alone.
        let messages = PlatformIds::from_event(&original).map_or(0, |platform| platform.ids.len());
        let is_whole = event.metadata.contains_key(MERGED_TEXTS);
        match change {
            ItemChange::Edited(_) if messages > 1 && !is_whole => return Ok(Vec::new()),
            ItemChange::Edited(_) | ItemChange::Deleted => {}
        }

        let made = made_dispatches(&record, change);
        Ok(made
            .map(|(dispatch, target)| change_order(event, change, dispatch, target))
            .collect())
    }
}

/// A change of an item that matters to its dispatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemChange {
    /// The item was deleted.
    Deleted,
    /// The item was edited at this time.
    Edited(UnixMillis),
}

/// Returns the change that `event` is about. An update without a time of an edit is about something else, such as the
/// files of the message.
fn item_change(event: &Event) -> Option<ItemChange> {
    if !is_proven(&event.origin) {
        return None;
    }

    match event.direction {
        EventDirection::Deleted => Some(ItemChange::Deleted),
        // Whoever may not write now gives the agent no new text either. A message can still be taken back.
        EventDirection::Updated if event.content.len() <= MAX_EDIT_BYTES && event.withheld_tags().next().is_none() => {
            event.edited_at.map(ItemChange::Edited)
        }
        EventDirection::Received
        | EventDirection::Sent
        | EventDirection::Observed
        | EventDirection::Created
        | EventDirection::Updated => None,
    }
}

/// Returns whether `origin` proves a party outside that may change what it has brought.
const fn is_proven(origin: &EventOrigin) -> bool {
    match origin {
        EventOrigin::Verified { .. } | EventOrigin::Token { .. } | EventOrigin::Edge { .. } => true,
        // An open event proves nothing. What Nexus itself has sent was not written by a person who could take it back.
        EventOrigin::Open | EventOrigin::System => false,
    }
}

/// Returns whether `change` of an item counts for what was made of the item's first event, `original`: the same party
/// brought both, and is known.
fn may_change(change: &Event, original: &Event) -> bool {
    // Some platforms do not say who deleted a message. Their word that it is gone is enough, because it comes from the
    // account that brought the message. A text has to be the sender's own.
    let is_nameless_deletion = change.direction == EventDirection::Deleted && change.from.id.is_empty();
    is_proven(&change.origin)
        && (is_nameless_deletion || change.from.id == original.from.id)
        && change.id == original.id
        && change.origin == original.origin
        && change.conversation() == original.conversation()
}

/// Returns the dispatches that `record` names and that `change` reaches, with their sessions.
fn made_dispatches(record: &EventInvocations, change: ItemChange) -> impl Iterator<Item = (Ulid, &SessionRef)> {
    record.hooks.iter().filter_map(move |hook| match &hook.outcome {
        HookOutcome::Fired {
            dispatch,
            result,
            target,
        } => {
            // A hook that gives rights of its own has given them to the text that it has seen. A slim record does not say
            // whether it did.
            let is_reached = match change {
                ItemChange::Deleted => true,
                ItemChange::Edited(_) => !record.is_slim && result.permissions.is_none(),
            };
            target.as_ref().filter(|_| is_reached).map(|target| (*dispatch, target))
        }
        HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    })
}

/// Returns the order to `target` about `dispatch` that follows from `event`, which is a `change` of its item.
fn change_order(event: &Event, change: ItemChange, dispatch: Ulid, target: &SessionRef) -> SessionOrder {
    // Of the dispatch and the edit alone, so that a change that its source sends twice gives one order. Times of edits are
    // seconds on some platforms, so the text counts too.
    let made_at = UnixMillis(i64::try_from(dispatch.timestamp_ms()).unwrap_or(i64::MAX));
    let (of, reason) = match change {
        ItemChange::Deleted => ("withdraw".to_owned(), "deleted"),
        ItemChange::Edited(at) => (format!("edit {} {}", at.0, event.content), "edited"),
    };
    let wanted = match change {
        ItemChange::Deleted => OrderKind::Withdraw {
            dispatch,
            // The answer may have been shown in part, and tools may have run.
            spares_turn: true,
        },
        ItemChange::Edited(edited_at) => OrderKind::Edit {
            dispatch,
            from: event.from.id.clone(),
            content: event.content.clone(),
            edited_at,
        },
    };

    SessionOrder {
        id: derived_ulid(made_at, &[event.id.as_str(), &of, &dispatch.to_string()]),
        target: target.clone(),
        wanted,
        by: event.origin.to_string(),
        reason: format!("{} was {reason} at its source", event.id),
        at: event.received_at,
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::{EventId, UNPAIRED};
    use shared::model::hook::HookResult;
    use shared::model::permission::PermissionSet;

    use super::*;
    use crate::evaluation::record::{EvaluationSummary, new_invocation, record};

    fn message() -> Event {
        let id = EventId::parse("slack:bot/C1/17.5").expect("an id");
        let mut event = Event::new(id, "slack", "C1", UnixMillis(1_700_000_000_000));
        event.account_id = Some("bot".to_owned());
        event.origin = EventOrigin::account("slack", "bot");
        event.from.id = "U1".to_owned();
        event
    }

    fn deletion() -> Event {
        Event {
            direction: EventDirection::Deleted,
            ..message()
        }
    }

    /// Returns whether the deletion, changed by `change`, withdraws what was made of the message.
    fn check(change: impl FnOnce(&mut Event)) -> bool {
        let mut deletion = deletion();
        change(&mut deletion);
        may_change(&deletion, &message())
    }

    #[test]
    fn the_account_that_brought_a_message_takes_it_back() {
        assert!(check(|_| {}));
        assert!(
            check(|event| event.from.id.clear()),
            "the platform does not say who deleted it"
        );
    }

    #[test]
    fn nobody_else_takes_it_back() {
        assert!(!check(|event| event.origin = EventOrigin::Open));
        assert!(!check(|event| event.origin = EventOrigin::System));
        assert!(!check(|event| event.origin = EventOrigin::account("slack", "other")));
        assert!(!check(
            |event| event.origin = EventOrigin::Token { name: "ci".to_owned() }
        ));
        assert!(!check(|event| event.from.id = "U2".to_owned()));
        assert!(!check(|event| event.peer.id = "C2".to_owned()));
        assert!(!check(|event| event.account_id = None));
        assert!(!check(
            |event| event.id = EventId::parse("slack:bot/C1/18.5").expect("an id")
        ));

        let mut nameless = deletion();
        nameless.direction = EventDirection::Updated;
        assert!(may_change(&nameless, &message()));
        nameless.from.id.clear();
        assert!(!may_change(&nameless, &message()), "a text has to be the sender's own");

        let open = |mut event: Event| {
            event.origin = EventOrigin::Open;
            event
        };
        assert!(!may_change(&open(deletion()), &open(message())), "no party is proven");
    }

    #[test]
    fn each_dispatch_of_the_record_gets_one_order() {
        let target = |session: &str| SessionRef {
            persona: "default".to_owned(),
            session: session.to_owned(),
        };
        let fired = |number: u64, session: Option<&str>| HookOutcome::Fired {
            dispatch: Ulid::from_parts(number, 1),
            result: Box::new(HookResult {
                permissions: (number == 2).then(PermissionSet::default),
                ..HookResult::default()
            }),
            target: session.map(target),
        };
        let record = record(EvaluationSummary {
            event_id: message().id,
            event_seq: 1,
            evaluated_by: "a".to_owned(),
            started_at: UnixMillis(1),
            finished_at: UnixMillis(2),
            passed: 0,
            hooks: vec![
                new_invocation("a", 1, fired(1, Some("main"))),
                new_invocation("b", 1, HookOutcome::Passed),
                new_invocation("c", 1, fired(2, Some("other"))),
                new_invocation("d", 1, fired(3, None)),
            ],
            passes: Vec::new(),
        });

        let edited = ItemChange::Edited(UnixMillis(7));
        let edited: Vec<_> = made_dispatches(&record, edited).map(|(id, _)| id).collect();
        assert_eq!(edited, [Ulid::from_parts(1, 1)], "the other one has rights of its own");

        let deleted = || made_dispatches(&record, ItemChange::Deleted);
        let orders = || deleted().map(|(id, target)| change_order(&deletion(), ItemChange::Deleted, id, target));
        let orders: [Vec<SessionOrder>; 2] = [orders().collect(), orders().collect()];
        assert_eq!(orders[0], orders[1], "a repetition gives the same orders");

        let found: Vec<_> = orders[0].iter().map(|order| (&order.target, &order.wanted)).collect();
        let withdraws = |number: u64| OrderKind::Withdraw {
            dispatch: Ulid::from_parts(number, 1),
            spares_turn: true,
        };
        assert_eq!(
            found,
            [(&target("main"), &withdraws(1)), (&target("other"), &withdraws(2))]
        );
        assert_ne!(orders[0][0].id, orders[0][1].id);
    }

    #[test]
    fn an_edit_has_a_time_and_a_text_that_the_ledger_can_keep() {
        let edit = |at: Option<i64>, bytes: usize| Event {
            direction: EventDirection::Updated,
            edited_at: at.map(UnixMillis),
            content: "x".repeat(bytes),
            ..message()
        };
        let at = ItemChange::Edited(UnixMillis(7));
        assert_eq!(item_change(&edit(Some(7), MAX_EDIT_BYTES)), Some(at));
        assert_eq!(item_change(&edit(Some(7), MAX_EDIT_BYTES + 1)), None);
        assert_eq!(item_change(&edit(None, 1)), None, "only its files have come");
        let mut withheld = edit(Some(7), 1);
        withheld.tags.push(UNPAIRED.to_owned());
        assert_eq!(item_change(&withheld), None, "who may not write changes no text");
        assert_eq!(item_change(&message()), None);
        assert_eq!(item_change(&deletion()), Some(ItemChange::Deleted));

        let target = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };
        let order = |at: i64| {
            let change = ItemChange::Edited(UnixMillis(at));
            change_order(&edit(Some(at), 2), change, Ulid::from_parts(1, 1), &target)
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7).id, order(8).id, "each edit counts");
        let longer = change_order(&edit(Some(7), 3), at, Ulid::from_parts(1, 1), &target);
        assert_ne!(order(7).id, longer.id, "also the second one within a second");
        let wanted = OrderKind::Edit {
            dispatch: Ulid::from_parts(1, 1),
            from: "U1".to_owned(),
            content: "xx".to_owned(),
            edited_at: UnixMillis(7),
        };
        assert_eq!(order(7).wanted, wanted);
    }
}
