//! Turns that cannot go on, because `DISPATCHES` has lost a dispatch of theirs that was not made again in time.
//!
//! Such a turn ends as interrupted. Its dispatches that were found are held; each of the others becomes a dead letter,
//! with its event if that is found. The ledger notes them as lost and not as consumed, so that a redriven event leads to
//! a turn; a copy that hook-svc makes too late is held. Source: `docs/design/trust.md` §2.5.

use shared::bus::{StoredMessage, dead_letter};
use shared::model::ledger::{DispatchRef, DropReason, LedgerEntry};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{CAUSATION, DISPATCH};
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use super::Worker;
use super::turn::TurnOutcome;
use crate::config::SERVICE;
use crate::error::RunSessionError;
use crate::queue::doubt::hold_dispatch;
use crate::queue::event_search::find_event;
use crate::queue::inbox::DispatchSearch;
use crate::session::PendingDispatch;
use crate::turn::Turn;
use crate::turn::journal::RunningTurn;

/// Reason in the dead letter of a lost dispatch; hook-svc writes the same.
const DISPATCH_LOST: &str = "dispatch_lost";

impl Worker<'_> {
    /// Ends `running`, of whose own dispatches only `found` are there, and appends that.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if a dispatch cannot be held or dead-lettered, or the session has another owner.
    pub(super) async fn end_lost_turn(
        &mut self,
        running: &RunningTurn,
        found: &[PendingDispatch],
    ) -> Result<(), RunSessionError> {
        // Those that were put in later are not waited for, but each must be accounted for.
        let mut search = DispatchSearch::new(running.dispatches.clone());
        search.read_on(&self.broker.bus, &self.claimed.session).await?;

        self.owner.ensure_owned().await?;
        let why = format!(
            "turn {} of the dispatch cannot go on, because another one of its dispatches is lost",
            running.turn
        );
        for pending in search.found() {
            hold_dispatch(self.broker, &pending, &why).await?;
        }
        let lost = search.missing();
        self.dead_letter_lost(running.turn, &lost).await?;

        let reason = format!("{} of its dispatches are lost; each is a dead letter", lost.len());
        let partial = running.last_answer().map(|(_, content, _)| content.to_owned());
        let partial = partial.unwrap_or_default();
        let turn = Turn::from_running(&self.claimed.session, self.owner.fold(), running, found);
        self.settle_outside().await?;
        self.end_turn(&turn, found, TurnOutcome::Canceled { reason, partial });

        for pending in search.found() {
            self.stage_dropped(pending.dispatch_ref(), DropReason::Held);
        }
        self.stage_lost_dispatches(&lost);
        self.flush().await?;

        self.inbox.forget_standings();
        Ok(())
    }

    /// Stores a dead letter for each of the dispatches `lost` of `turn`.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the event cannot be searched for or the dead letter cannot be stored.
    pub(super) async fn dead_letter_lost(&self, turn: Ulid, lost: &[DispatchRef]) -> Result<(), RunSessionError> {
        for known in lost {
            let event = find_event(&self.broker.bus, known).await?;
            let found = LostDispatch {
                session: &self.claimed.session,
                turn,
                known,
                event: event.as_ref(),
            };
            let letter = found.to_dead_letter(self.broker.clock.now());
            self.broker.bus.dead_letter_record(letter).await?;
        }
        Ok(())
    }

    /// Stages that the dispatches `lost` are lost, after the end of their turn: one that comes later is not known.
    pub(super) fn stage_lost_dispatches(&mut self, lost: &[DispatchRef]) {
        for known in lost {
            self.stage_dropped(known.clone(), DropReason::Lost);
        }
        let ids: Vec<Ulid> = lost.iter().map(|known| known.id).collect();
        self.machine.forget_ids(&ids);
    }

    /// Stages that `dispatch` is not run; the cursor stays where it is.
    pub(super) fn stage_dropped(&mut self, dispatch: DispatchRef, reason: DropReason) {
        metrics::counter!("nexus_broker_dropped_total", "reason" => reason.name()).increment(1);
        let entry = self.dropped_entry(dispatch, reason);
        self.owner.stage_entry(entry);
    }

    /// Returns the entry that `dispatch` is not run; the cursor in it is the present one.
    pub(super) fn dropped_entry(&self, dispatch: DispatchRef, reason: DropReason) -> LedgerEntry {
        LedgerEntry::DispatchDropped {
            dispatch,
            reason,
            detail: None,
            cursor: self.owner.fold().cursor.clone(),
        }
    }
}

/// A dispatch that was lost under its turn.
struct LostDispatch<'a> {
    session: &'a SessionRef,
    turn: Ulid,
    known: &'a DispatchRef,
    /// The event that it was made of; `None` if it was not found.
    event: Option<&'a StoredMessage>,
}

impl LostDispatch<'_> {
    /// Returns the dead letter. Redriven, the event is evaluated once more. Without the event, the dead letter has the
    /// ledger's reference of the dispatch, as JSON, and cannot be redriven.
    fn to_dead_letter(&self, at: UnixMillis) -> DeadLetter {
        let (session, turn, known) = (self.session, self.turn, self.known);
        let lost = format!(
            "dispatch {} at {} for {session} is lost and was not published again in time; turn {turn} ended",
            known.id, known.sequence
        );
        let letter = DeadLetter {
            service: SERVICE.to_owned(),
            subject: subject::dispatch(session),
            redrive_subject: String::new(),
            stream: DISPATCHES.to_owned(),
            sequence: known.sequence,
            headers: vec![
                (CAUSATION.to_owned(), known.event_id.to_string()),
                (DISPATCH.to_owned(), known.id.to_string()),
            ],
            payload: DeadLetter::encode_payload(&serde_json::to_vec(known).unwrap_or_default()),
            reason: DISPATCH_LOST.to_owned(),
            detail: format!(
                "{lost}; event {}, by which a hook made it, was not found",
                known.event_id
            ),
            attempts: 0,
            at,
        };

        let Some(event) = self.event else { return letter };
        let headers = event.headers.iter();
        DeadLetter {
            redrive_subject: dead_letter::redrive_subject(&event.subject),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: DeadLetter::encode_payload(&event.payload),
            detail: format!("{lost}; redrive evaluates event {} once more", known.event_id),
            ..letter
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::wire::headers::Headers;

    use super::*;
    use crate::sample::session;

    #[test]
    fn a_lost_dispatch_is_in_its_letter_with_its_event_or_with_what_the_ledger_knows() {
        let known = DispatchRef {
            id: Ulid::from(9_u128),
            sequence: 7,
            event_id: EventId::parse("test:1").expect("an id"),
            content: "please pay".to_owned(),
            stranger: None,
        };
        let event = StoredMessage {
            subject: "nexus.ev.3.test.a.b".to_owned(),
            headers: [("Nexus-Event", "test:1")].into_iter().collect::<Headers>(),
            payload: b"event".as_slice().into(),
            sequence: 4,
            published_at: UnixMillis(1),
            stored_at_ns: 1_000_000,
        };
        let session = session();
        let lost = |event| LostDispatch {
            session: &session,
            turn: Ulid::from(5_u128),
            known: &known,
            event,
        };

        let whole = lost(Some(&event)).to_dead_letter(UnixMillis(2));
        assert_eq!(whole.redrive_subject, "nexus.event.test.a.b");
        assert_eq!(whole.payload_bytes().as_deref(), Some(b"event".as_slice()));
        assert_eq!((whole.stream.as_str(), whole.sequence), (DISPATCHES, 7));
        assert_eq!(whole.headers, [("Nexus-Event".to_owned(), "test:1".to_owned())]);

        let bare = lost(None).to_dead_letter(UnixMillis(2));
        let named: DispatchRef =
            serde_json::from_slice(&bare.payload_bytes().expect("base64")).expect("what the ledger knows");
        assert_eq!((named, bare.redrive_subject.as_str()), (known.clone(), ""));

        for letter in [whole, bare] {
            assert_eq!(letter.reason, DISPATCH_LOST);
            for part in [
                known.id.to_string(),
                session.to_string(),
                Ulid::from(5_u128).to_string(),
            ] {
                assert!(letter.detail.contains(&part), "{part} in {}", letter.detail);
            }
        }
    }
}
