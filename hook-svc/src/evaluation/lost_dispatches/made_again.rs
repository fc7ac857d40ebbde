//! A lost dispatch, made as it was for the first time: from its record and its event.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{OutgoingMessage, ReadStreamError, StoredMessage};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::hook::HookResult;
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::wire::topology::streams;
use ulid::Ulid;

use super::fired::Fired;
use super::{LostDispatches, PAGE};
use crate::read_model::peer_api::FoundFirst;
use crate::registry::active_hooks::{HookAuthor, HookTraits};
use crate::routing::HookFire;

/// How long the read model may take to reach the events before it is asked where one is.
const CATCH_UP: Duration = Duration::from_secs(5);

/// A dispatch that was made again, with its message; or the message that it was to be made from, and why it cannot be.
pub(super) type MadeAgain = Result<(Dispatch, OutgoingMessage), (Box<StoredMessage>, String)>;

impl LostDispatches {
    /// The dispatch `id`, made as it was for the first time; else the message that is given up instead, and why.
    pub(super) async fn made_again(
        &self,
        id: Ulid,
        fired: &Fired,
        stored: &StoredMessage,
    ) -> Result<MadeAgain, ReadStreamError> {
        let given_up = |message: &StoredMessage, why: &str| Ok(Err((Box::new(message.clone()), why.to_owned())));
        let Ok(record) = stored.decode::<EventInvocations>() else {
            return given_up(stored, "the invocation record cannot be read");
        };

        let bus = &self.evaluator().performer.bus;
        let recorded = bus.at_sequence(streams::EVENTS, record.event_seq).await?;
        let recorded = recorded.and_then(|message| self.make(id, fired, &record, message));
        if let Some(Ok(made)) = recorded {
            return Ok(Ok(made));
        }

        // A source that sent the event again has stored it at another sequence. A change has the id of its item, so
        // that several messages may have the id, and the right one is the one of which this dispatch is made.
        let mut refused = recorded.and_then(Result::err);
        let first = self.first_of(&record).await?;
        let subject = first.as_ref().map(|first| first.subject.clone()).unwrap_or_default();
        let mut page = Vec::from_iter(first);
        while let Some(last) = page.last().map(|message| message.sequence) {
            for message in page {
                match self.make(id, fired, &record, message) {
                    Some(Ok(made)) => return Ok(Ok(made)),
                    Some(Err(error)) => drop(refused.get_or_insert(error)),
                    None => {}
                }
            }
            page = bus.read_history(streams::EVENTS, &subject, last + 1, PAGE).await?;
        }

        match refused {
            Some(refused) => Ok(Err(refused)),
            None => given_up(stored, "its event is also missing"),
        }
    }

    /// Makes the dispatch `id` of `message`, or returns why that is impossible; `None` if `message` is no message of
    /// the record's event.
    fn make(&self, id: Ulid, fired: &Fired, record: &EventInvocations, message: StoredMessage) -> Option<MadeAgain> {
        let performer = &self.evaluator().performer;
        let event = message.read_event(performer.bus.trust()).ok()?;
        if event.id != record.event_id {
            return None;
        }

        let made = match recorded_result(record, id).filter(|_| !record.is_slim) {
            None => Err("the hook's result was too large to be stored".to_owned()),
            Some(result) => performer.letter_of(HookFire {
                event: &event,
                event_seq: message.sequence,
                hook_id: &fired.hook_id,
                traits: &self.hook_traits(&event, &fired.hook_id),
                result,
                evaluated_at: record.started_at,
            }),
        };

        Some(match made {
            Ok((dispatch, out)) if dispatch.id == id => Ok((dispatch, out)),
            Ok(_) => Err((
                Box::new(message),
                "evaluating the event again gives a different dispatch".to_owned(),
            )),
            Err(why) => Err((Box::new(message), why)),
        })
    }

    /// Returns the first message in `EVENTS` with the id of the record's event, by the read model, if it has one.
    async fn first_of(&self, record: &EventInvocations) -> Result<Option<StoredMessage>, ReadStreamError> {
        let (bus, model) = (&self.evaluator().performer.bus, &self.evaluator().model);
        let last = bus.stream_state(streams::EVENTS).await?.last;
        let unreadable = |detail: String| ReadStreamError::Unavailable {
            stream: streams::EVENTS.to_owned(),
            detail,
        };

        // A read model that is behind may not have the message yet; this is tried again.
        let found = model.find_first(&record.event_id, last, CATCH_UP).await;
        let FoundFirst { sequence: first, mark } = found.map_err(|error| unreadable(error.to_string()))?;
        if let Some(mark) = mark
            && !bus.check_position(streams::EVENTS, &mark).await?.holds()
        {
            return Err(unreadable("the read model was built from another stream".to_owned()));
        }

        match first {
            Some(first) => bus.at_sequence(streams::EVENTS, first).await,
            None => Ok(None),
        }
    }

    /// Returns the present traits of the hook; a hook that is gone has the least rights.
    fn hook_traits(&self, event: &Event, hook_id: &str) -> HookTraits {
        match hook_id {
            crate::evaluation::heartbeat::HOOK_ID => HookTraits {
                author: Arc::new(HookAuthor::Operator),
                ..HookTraits::default()
            },
            crate::routing::bindings::HOOK_ID => self
                .evaluator()
                .bound_action(event)
                .map(|wish| wish.traits)
                .unwrap_or_default(),
            _ => self
                .evaluator()
                .performer
                .registry
                .current_roster()
                .hook_traits(hook_id),
        }
    }
}

/// Returns the hook's result from which the dispatch `id` was made.
fn recorded_result(record: &EventInvocations, id: Ulid) -> Option<&HookResult> {
    record.hooks.iter().find_map(|hook| match &hook.outcome {
        HookOutcome::Fired { dispatch, result, .. } if *dispatch == id => Some(&**result),
        HookOutcome::Fired { .. }
        | HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    })
}
