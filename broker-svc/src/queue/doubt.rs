//! Dispatches for which a session's cursor cannot tell whether they were handled: the record decides.
//!
//! Three things raise a doubt. First, the cursor names a message that `DISPATCHES` does not have any more: then the
//! ledger says which dispatches were consumed. Second, an event is no newer than those that the session has handled,
//! and not young: a hook replica that was stopped, or evaluates again after a restore, may have published its
//! dispatch a second time, outside the server's duplicate window (or the message itself says that it may be a
//! repetition); then the session's own subject says whether an earlier message has the id. Third, the ledger was
//! restored to an older state: then it is unknown whether earlier arrivals were handled. A dispatch is held. An order
//! for the moment in which it was given (reset, abort, interrupt) is not carried out and becomes a dead letter; any
//! other order changes nothing when it is repeated.

use std::collections::HashMap;
use std::sync::Arc;

use shared::bus::ReadStreamError;
use shared::model::ledger::{DispatchStanding, LedgerCursor};
use shared::model::position::{FoundPosition, PositionStanding, judge_position};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::MSG_ID;
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use crate::broker::BrokerContext;
use crate::broker::stream_facts::StreamEra;
use crate::error::RunSessionError;
use crate::ledger::state_cache::CachedSession;
use crate::ledger::writer::read_stretch;
use crate::queue::inbox::{self, InvalidDispatch};
use crate::session::{InboxItem, PendingDispatch, PlacedOrder};

/// Age below which a repeated message id was refused by the server's duplicate window (120 s), milliseconds; clocks
/// of sources may be ahead by the rest.
const YOUNG_MS: i64 = 30_000;
/// Maximum difference between the clocks of sources, brokers and servers, milliseconds.
const SKEW_MS: i64 = 600_000;
/// Number of messages read at once.
const PAGE: usize = 256;

/// Result for a dispatch in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoubtResolution {
    /// The ledger has consumed it.
    Consumed,
    /// An earlier message has its id.
    Repeated,
    /// It cannot be known whether it was handled.
    Unknown,
    /// Its turn was given up because it was lost; it came too late.
    TurnLost,
}

/// Results about a session while its owner holds it.
#[derive(Debug, Default)]
pub struct SessionDoubts {
    /// Whether the cursor is void, because it counts a stream that is gone.
    pub is_void: bool,
    /// The ledger's records of dispatches since a time.
    known: Option<(UnixMillis, HashMap<Ulid, DispatchStanding>)>,
    copies: Option<Copies>,
}

/// First messages of a session's subject, by id, since a time and through a sequence.
#[derive(Debug)]
struct Copies {
    since: UnixMillis,
    through: u64,
    first: HashMap<String, u64>,
}

/// Returns whether the newest message that the cursor of `remembered` counts is the one that `DISPATCHES` has at that
/// sequence; checked once in each era.
///
/// # Errors
/// Returns [`ReadStreamError`] if the leader cannot be read.
pub async fn is_sound(
    broker: &BrokerContext,
    era: &StreamEra,
    session: &SessionRef,
    remembered: &mut CachedSession,
) -> Result<bool, ReadStreamError> {
    // The stream cannot change within an era, so one check is enough.
    if remembered.era == era.number {
        return Ok(true);
    }

    remembered.era = era.number;
    let newest = remembered.fold.cursor.newest.as_ref();
    let Some(newest) = newest.filter(|newest| newest.sequence > 0) else {
        return Ok(true);
    };

    // A message before the first one is gone for certain, and needs no request.
    let found = match newest.sequence < era.first {
        true => None,
        false => broker.bus.at_sequence(DISPATCHES, newest.sequence).await?,
    };
    let found = FoundPosition {
        incarnation: &era.incarnation,
        lineage: &era.lineage,
        first: era.first,
        stored_at_ns: found.map(|found| found.stored_at_ns),
    };

    match judge_position(newest, &found) {
        PositionStanding::Holds => {
            broker.streams.note_cursor(session, None);
            Ok(true)
        }
        PositionStanding::Void(why) => {
            broker.streams.note_cursor(session, Some(why));
            tracing::error!(
                %session, sequence = newest.sequence, reason = why,
                "session cursor is void; using the ledger to find handled dispatches"
            );

            metrics::counter!("nexus_positions_void_total", "stream" => DISPATCHES).increment(1);
            Ok(false)
        }
    }
}

impl SessionDoubts {
    /// Returns the state of `arrival` if it is in doubt; `None` if it is new.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the record cannot be read.
    pub async fn judge_arrival(
        &mut self,
        broker: &BrokerContext,
        era: &StreamEra,
        session: &SessionRef,
        cursor: &LedgerCursor,
        arrival: &InboxItem,
    ) -> Result<Option<DoubtResolution>, RunSessionError> {
        let (id, arrived) = match arrival {
            InboxItem::Dispatch(pending) => (pending.dispatch.id, pending.arrived),
            InboxItem::Order(placed) => (placed.order.id, placed.arrived),
            // The approval itself tells the decision.
            InboxItem::Decision(_) => return Ok(None),
        };

        // An operator wants the dispatch run whose turn was given up, also if a late copy is held meanwhile.
        if matches!(arrival, InboxItem::Dispatch(pending) if pending.is_redriven)
            && self.is_lost(broker, session, id).await?
        {
            return Ok(None);
        }

        let is_older = era.doubt_until.is_some_and(|until| arrived <= until);
        let made = made_at(id).min(arrived);
        if self.is_void || is_older {
            match self.standing(broker, session, id, made).await? {
                Some(DispatchStanding::Consumed) => return Ok(Some(DoubtResolution::Consumed)),
                Some(DispatchStanding::Lost) => return Ok(Some(DoubtResolution::TurnLost)),
                None => {}
            }
        }

        let InboxItem::Dispatch(pending) = arrival else {
            let is_for_now = matches!(arrival, InboxItem::Order(placed) if placed.order.wanted.is_for_now());
            return Ok((is_older && is_for_now).then_some(DoubtResolution::Unknown));
        };

        if is_older {
            return Ok(Some(DoubtResolution::Unknown));
        }

        if !self.may_be_copy(pending, cursor) {
            return Ok(None);
        }

        if self.is_copy(broker, session, pending).await? {
            return Ok(Some(DoubtResolution::Repeated));
        }

        // The first message may be gone by age; the ledger keeps the ids that it has consumed.
        Ok(match self.standing(broker, session, id, made).await? {
            Some(DispatchStanding::Consumed) => Some(DoubtResolution::Consumed),
            Some(DispatchStanding::Lost) => Some(DoubtResolution::TurnLost),
            None => None,
        })
    }

    /// Returns whether the ledger's last record of the dispatch `id` is that it is lost.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the ledger cannot be read.
    pub async fn is_lost(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
        id: Ulid,
    ) -> Result<bool, RunSessionError> {
        let standing = self.standing(broker, session, id, made_at(id)).await?;
        Ok(standing == Some(DispatchStanding::Lost))
    }

    /// Forgets what the ledger says, which has changed otherwise than by new dispatches.
    pub fn forget_standings(&mut self) {
        self.known = None;
    }

    /// Returns whether an earlier message may have `pending`'s id.
    fn may_be_copy(&self, pending: &PendingDispatch, cursor: &LedgerCursor) -> bool {
        // The age counts from the event, which the dispatch shares with a repetition that is evaluated much later.
        let age = pending.arrived.since(first_made(pending));
        let is_young = (0..YOUNG_MS).contains(&age);
        let is_past = self.is_void || pending.dispatch.event_seq <= cursor.event_seq;
        pending.is_repeated || (!is_young && is_past)
    }

    async fn standing(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
        id: Ulid,
        made: UnixMillis,
    ) -> Result<Option<DispatchStanding>, RunSessionError> {
        let since = made.plus(-SKEW_MS);
        if self.known.as_ref().is_none_or(|(known, _)| since < *known) {
            let standings = standings_since(broker, session, since).await?;
            self.known = Some((since, standings));
        }
        Ok(self
            .known
            .as_ref()
            .and_then(|(_, standings)| standings.get(&id).copied()))
    }

    async fn is_copy(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
        pending: &PendingDispatch,
    ) -> Result<bool, ReadStreamError> {
        let since = first_made(pending).min(pending.arrived).plus(-SKEW_MS);
        // The copies that were read are kept for the next message, if they reach back far enough.
        if self.copies.as_ref().is_none_or(|copies| since < copies.since) {
            self.copies = Some(Copies {
                since,
                through: 0,
                first: HashMap::new(),
            });
        }

        let Some(copies) = &mut self.copies else {
            return Ok(false);
        };
        copies.read_to(broker, session, pending.sequence).await?;
        let first = copies.first.get(&pending.dispatch.id.to_string());

        Ok(first.is_some_and(|first| *first < pending.sequence))
    }
}

impl Copies {
    /// Reads on up to the message before `sequence`.
    async fn read_to(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
        sequence: u64,
    ) -> Result<(), ReadStreamError> {
        let subject = subject::dispatch(session);
        while self.through + 1 < sequence {
            let page = match self.through {
                0 => broker.bus.history_since(DISPATCHES, &subject, self.since, PAGE).await?,
                through => broker.bus.read_history(DISPATCHES, &subject, through + 1, PAGE).await?,
            };
            for stored in &page {
                // A dispatch that was lost and published again has a message id that ends with its own id.
                let id = stored.headers.get(MSG_ID).and_then(|id| id.rsplit(':').next());
                if let Some(id) = id {
                    self.first.entry(id.to_owned()).or_insert(stored.sequence);
                }
            }

            match page.last() {
                Some(last) => self.through = last.sequence,
                None => return Ok(()),
            }
        }

        Ok(())
    }
}

/// Returns a time at most an hour before the event of the dispatch `id` was received: no dispatch of it is older.
fn made_at(id: Ulid) -> UnixMillis {
    UnixMillis(i64::try_from(id.timestamp_ms()).unwrap_or(i64::MAX))
}

/// Returns a time at or before which the server stored nothing of the event of the dispatch `id`.
pub(crate) fn earliest_stored(id: Ulid) -> UnixMillis {
    made_at(id).plus(-SKEW_MS)
}

/// Returns the earliest time at which `pending` may have been made for the first time.
fn first_made(pending: &PendingDispatch) -> UnixMillis {
    made_at(pending.dispatch.id).min(pending.dispatch.timestamp)
}

/// Returns the last standings in `session`'s ledger of all dispatches that it names since `since`, and perhaps of older
/// ones.
async fn standings_since(
    broker: &BrokerContext,
    session: &SessionRef,
    since: UnixMillis,
) -> Result<HashMap<Ulid, DispatchStanding>, RunSessionError> {
    let mut known = HashMap::new();
    let mut through = None;
    loop {
        let stretch = read_stretch(broker, session, through).await?;
        // The stretches are read backwards, so a word that is known is newer.
        for (_, record) in stretch.records.iter().rev() {
            for (id, standing) in record.dispatch_standings().into_iter().rev() {
                known.entry(id).or_insert(standing);
            }
        }

        let oldest = stretch.records.first().map(|(_, record)| record.at);
        if stretch.upon.is_none() || oldest.is_none_or(|oldest| oldest < since) {
            return Ok(known);
        }
        through = stretch.upon;
    }
}

/// Holds `pending`, for which the ledger cannot tell whether it was run, for the reason `why`.
///
/// # Errors
/// Returns [`RunSessionError`] if it cannot be stored.
pub async fn hold_dispatch(
    broker: &Arc<BrokerContext>,
    pending: &PendingDispatch,
    why: &str,
) -> Result<HeldUntil, RunSessionError> {
    let stored = inbox::message_of(&broker.bus, pending).await?;
    let held = HeldMessage {
        kind: HeldKind::Dispatch,
        id: pending.dispatch.id,
        stream: DISPATCHES.to_owned(),
        sequence: pending.sequence,
        subject: stored.subject.clone(),
        headers: stored
            .headers
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        payload: HeldMessage::encode_payload(&stored.payload),
        why: why.to_owned(),
        at: broker.clock.now(),
        wanted: HeldUntil::Decided,
    };

    Ok(broker.bus.hold_message(&held).await?)
}

/// Stores the order `placed` as a dead letter, because the ledger cannot tell whether it was carried out.
///
/// # Errors
/// Returns [`RunSessionError`] if the dead letter cannot be stored.
pub async fn give_up_order(
    broker: &Arc<BrokerContext>,
    session: &SessionRef,
    placed: &PlacedOrder,
) -> Result<(), RunSessionError> {
    let stored = inbox::order_message(&broker.bus, placed).await?;
    let wanted = placed.order.wanted.name();
    tracing::warn!(%session, order = wanted, "order not applied: the ledger was restored to a state before the order, which may have been applied; see `nexus dlq list`");

    let in_doubt = InvalidDispatch {
        stored,
        reason: "order_in_doubt",
        detail: format!(
            "the ledger of {session} was restored to a state before the order to {wanted}, which may have been applied"
        ),
    };
    broker
        .bus
        .dead_letter_record(in_doubt.to_dead_letter(broker.clock.now()))
        .await?;

    Ok(())
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::testing::sample;
    use shared::wire::headers::TraceCarrier;

    use super::*;

    /// Returns whether a dispatch of event 7 that came `age_ms` after it was made may be a copy, for a session that
    /// has handled events up to `handled`.
    fn check(age_ms: i64, handled: u64, is_void: bool) -> bool {
        check_of(age_ms, handled, is_void, false)
    }

    /// Does the same for a message that says, or does not say, that it may be a repetition.
    fn check_of(age_ms: i64, handled: u64, is_void: bool, is_repeated: bool) -> bool {
        let event = EventId::parse("test:7").expect("an id");
        let session = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };

        let made = UnixMillis(1_700_000_000_000);
        let mut dispatch = sample::dispatch(event, 7, "hook", session, made);
        dispatch.id = Ulid::from_parts(u64::try_from(made.0).expect("after 1970"), dispatch.id.random());

        let pending = PendingDispatch {
            sequence: 1,
            arrived: made.plus(age_ms),
            dispatch: Arc::new(dispatch),
            carrier: TraceCarrier::default(),
            is_repeated,
            is_redriven: false,
        };

        let doubts = SessionDoubts {
            is_void,
            ..SessionDoubts::default()
        };
        let cursor = LedgerCursor {
            event_seq: handled,
            ..LedgerCursor::default()
        };

        doubts.may_be_copy(&pending, &cursor)
    }

    #[test]
    fn a_young_dispatch_is_no_copy_for_the_server_has_refused_it() {
        for is_void in [false, true] {
            assert!(!check(0, 9, is_void), "it came at once");
            assert!(
                !check(YOUNG_MS - 1, 9, is_void),
                "the server remembers the first one's id"
            );
            assert!(check(YOUNG_MS, 9, is_void), "the server may have forgotten it");
        }

        assert!(check_of(0, 6, false, true), "it may have come under another message id");
        assert!(check(-1, 9, false), "its source's clock is ahead: it may be of any age");
    }

    #[test]
    fn a_newer_event_than_all_that_were_handled_is_new_where_the_cursor_counts() {
        assert!(check(YOUNG_MS, 7, false), "the same event, perhaps by the same hook");
        assert!(!check(YOUNG_MS, 6, false));
        assert!(check(YOUNG_MS, 6, true), "a void cursor says nothing");
    }
}
