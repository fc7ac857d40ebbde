//! Recovery of dispatches that their stream has lost: `DISPATCHES` restored to an older state, emptied or recreated.
//!
//! The records name which hook fired for which event with which result, so a lost dispatch can be built again, with its
//! own id. If the ledger has consumed it, it is done. If not, it is published again; if the ledger itself was restored,
//! that is unknown, and the dispatch is held. A dispatch that cannot be rebuilt becomes a dead letter with its event.
//! The stream is compared whenever it may be another one: when this process starts, when a connection is restored, and
//! when the stream differs from the former one. One replica at a time does that. Every few seconds it notes (KV
//! `positions`) how far a comparison must look back, and the stream's last message: if that message is still there,
//! only later messages are compared.

mod fired;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shared::bus::{
    CasError, HoldError, Kv, Marked, Outgoing, Pages, PublishError, ReadStreamError, Stored, StreamInfo, TaskLease,
    Witness, WitnessError, claim,
};
use shared::clock::pause;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::invocation::EventInvocations;
use shared::model::ledger::LedgerRecord;
use shared::model::restore::{HOLD_KEY, RestoreHold};
use shared::model::time::UnixMillis;
use shared::process::Shutdown;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{Carrier, Headers};
use shared::wire::held::{Held, HeldKind, HeldUntil};
use shared::wire::session_mark::{SWEEPER, SettledFloor};
use shared::wire::topology::{INVOCATIONS_KEPT, buckets, streams};
use shared::wire::witness::Waiting;
use tokio::sync::watch;
use ulid::Ulid;

use crate::evaluate::Evaluator;
use crate::owner::{Owner, SERVICE};
use crate::roster::{Author, Traits};
use crate::routing::Fire;
use fired::{Fired, answered, count_read, first_start, leave_out_stored, next_fires};

/// Interval at which the time of the oldest waiting dispatch is noted.
const EVERY: Duration = Duration::from_secs(2);
/// Milliseconds by which the noted time is earlier: clocks differ, and a dispatch is stored before its record.
const MARGIN_MS: i64 = 10_000;
/// Name of the task that one replica at a time does.
const TASK: &str = "lost-dispatches";

/// Comparison of `DISPATCHES` with the records and the ledger.
pub(crate) struct LostDispatches {
    owner: Arc<Owner>,
    noted: Kv<Waiting>,
    witness: Witness,
    lease: TaskLease,
    /// Whether the witness was asked, and may have reported a doubt: it is kept up to date until that is settled.
    is_asked: bool,
}

/// Identity of the stream at a look, and its extent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    connection: u64,
    incarnation: String,
    created: String,
    first: u64,
    last: u64,
}

impl Seen {
    /// Returns whether `later` is the same stream on the same connection, neither restored to an older state nor cut.
    /// Messages that age deleted do not count as a cut.
    fn is_followed_by(&self, later: &Self) -> bool {
        let of = |seen: &Self| (seen.connection, seen.incarnation.clone(), seen.created.clone());
        of(self) == of(later) && self.last <= later.last && later.first <= self.last.max(self.first)
    }
}

/// Error that prevents a comparison of the stream.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Note(#[from] CasError),
    #[error(transparent)]
    Hold(#[from] HoldError),
    #[error(transparent)]
    Witness(#[from] WitnessError),
}

impl LostDispatches {
    /// Creates the recovery on `owner`'s bus.
    pub(crate) fn new(owner: Arc<Owner>) -> Self {
        let bus = &owner.evaluator.performer.bus;
        Self {
            noted: bus.kv(buckets::POSITIONS),
            witness: Witness::new(bus, Marked::Dispatches),
            lease: TaskLease::new(bus, TASK, owner.evaluator.instance.clone()),
            is_asked: false,
            owner,
        }
    }

    fn evaluator(&self) -> &Evaluator {
        &self.owner.evaluator
    }

    /// Watches the stream until `stop`, beginning when the hooks are known (`may_join`).
    pub(crate) async fn keep(mut self, mut may_join: watch::Receiver<bool>, stop: Shutdown) {
        let mut connections = self.evaluator().performer.bus.connections();
        let mut known = None;
        loop {
            // A dispatch depends on the rights of its hook, so none is built while the hooks are unknown.
            let knows = tokio::select! {
                knows = may_join.wait_for(|may| *may) => knows.is_ok(),
                () = stop.requested() => false,
            };
            if !knows {
                break;
            }

            match self.look(known.as_ref()).await {
                Ok(seen) => known = seen,
                Err(error) => tracing::debug!(%error, "failed to compare DISPATCHES with the records; retrying"),
            }

            tokio::select! {
                () = stop.requested() => break,
                () = connections.stands_anew() => {}
                () = pause(EVERY) => {}
            }
        }

        self.lease.give_back().await;
    }

    /// Checks the stream if this replica has the task, and compares it if it may have lost messages. Returns the state
    /// of the stream; `None` if another replica has the task.
    async fn look(&mut self, known: Option<&Seen>) -> Result<Option<Seen>, LookError> {
        if !self.lease.hold().await? {
            return Ok(None);
        }

        let bus = self.evaluator().performer.bus.clone();
        // The number is read first: a connection that ends meanwhile counts as another one at the next look.
        let connection = bus.connection_number();

        // The time is read before the look: later messages are covered by the next one.
        let now = self.server_time().await?;
        let info = bus.stream_info(streams::DISPATCHES).await?;
        let seen = Seen {
            connection,
            incarnation: info.incarnation.clone(),
            created: info.created.clone(),
            first: info.state.first,
            last: info.state.last,
        };

        let former = self.noted.find(streams::DISPATCHES).await?.0;
        let waited_since = former.as_ref().map(|noted| noted.since);

        if !known.is_some_and(|known| known.is_followed_by(&seen)) {
            let mut since = self.since(waited_since, now).await?;
            // No message up to the last one that was seen is lost.
            if let Some(former) = former.as_ref().and_then(|noted| noted.seen.as_ref())
                && bus.is_as_seen(streams::DISPATCHES, &info, former).await?
            {
                since = since.max(former.at.plus(-MARGIN_MS));
            }

            self.find(since, info.state.last).await?;
        }

        if self.is_asked {
            self.witness.check(self.evaluator().clock.now()).await?;
        }

        let noted = Waiting {
            since: self.waits_since(&info, waited_since, now).await?,
            seen: bus.seen_stream(streams::DISPATCHES, &info, now).await?,
        };
        self.noted.put(streams::DISPATCHES, &noted).await?;

        Ok(Some(seen))
    }

    async fn server_time(&self) -> Result<UnixMillis, ReadStreamError> {
        let evaluator = self.evaluator();
        let server = evaluator.performer.bus.server_clock(evaluator.clock.as_ref()).await?;
        Ok(evaluator.clock.now().plus(server.ahead_ms))
    }

    /// Returns the time since which dispatches may not be consumed: the sweeper has found everything before it handled.
    async fn waits_since(
        &self,
        info: &StreamInfo,
        former: Option<UnixMillis>,
        now: UnixMillis,
    ) -> Result<UnixMillis, LookError> {
        let bus = &self.evaluator().performer.bus;

        if info.state.messages == 0 {
            return Ok(now.plus(-MARGIN_MS));
        }

        let floors = bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
        let floor = floors.find(SWEEPER).await?.0;
        if let Some((floor, position)) = floor.and_then(|floor| Some((floor.sequence, floor.position?)))
            && bus.standing(streams::DISPATCHES, &position).await?.holds()
        {
            let floor_at = UnixMillis(position.stored_at_ns / 1_000_000);
            let at = if floor >= info.state.last { now } else { floor_at };
            return Ok(at.plus(-MARGIN_MS));
        }

        if let Some(former) = former {
            return Ok(former);
        }

        let first = bus.next_on_subject(streams::DISPATCHES, ">", info.state.first).await?;
        Ok(first.map_or(now, |first| first.published_at).plus(-MARGIN_MS))
    }

    /// Returns the time since which dispatches may have been lost. Expired records show nothing about older ones, and a
    /// restored backup has every dispatch of its records.
    async fn since(&self, former: Option<UnixMillis>, now: UnixMillis) -> Result<UnixMillis, LookError> {
        let kept = i64::try_from(INVOCATIONS_KEPT.as_millis()).unwrap_or(i64::MAX);
        let oldest = now.plus(-kept).plus(2 * MARGIN_MS);
        let holds = self.evaluator().performer.bus.kv::<RestoreHold>(buckets::RESTORE);
        let restored = holds.find(HOLD_KEY).await?.0.and_then(|hold| hold.at);
        let oldest = restored.map_or(oldest, |restored| oldest.max(restored));
        Ok(former.unwrap_or(oldest).max(oldest))
    }

    /// Handles the dispatches that were made since `since` and are neither in their stream, whose end is `last`, nor in
    /// the ledger. Only a part of the records, and the lost dispatches, are kept in memory.
    async fn find(&mut self, since: UnixMillis, last: u64) -> Result<(), LookError> {
        // The order matters: a dispatch is stored before its record, and consumed after both.
        let mut records = Pages::since(&self.evaluator().performer.bus, streams::INVOCATIONS, since);
        let mut lost = BTreeMap::new();
        loop {
            let (mut fired, until) = next_fires(&mut records).await?;
            let Some(until) = until else { break };
            leave_out_stored(&self.evaluator().performer.bus, &mut fired, Some(until)).await?;
            lost.append(&mut fired);

            // Reading takes time; without renewal another replica would take the task too.
            self.lease.hold().await?;
        }

        count_read(records.read());

        // A dispatch that was published again is after its record in time.
        leave_out_stored(&self.evaluator().performer.bus, &mut lost, None).await?;
        let Some(first) = first_start(&lost) else {
            return Ok(());
        };

        self.is_asked = true;
        let doubt_until = self.witness.doubt_until(self.evaluator().clock.now()).await?;
        let mut ledger = Pages::since(&self.evaluator().performer.bus, streams::LEDGER, first);
        loop {
            let page = ledger.next().await?;
            if page.is_empty() {
                break;
            }
            let entries = page.iter().filter_map(|stored| stored.decode::<LedgerRecord>().ok());
            for id in entries.flat_map(|record| record.consumed()) {
                lost.remove(&id);
            }
        }

        count_read(ledger.read());

        // Ids begin with the event's time, so this is the order of the events.
        for (id, fired) in &lost {
            self.see_to(*id, fired, doubt_until, last).await?;
        }

        if !lost.is_empty() {
            let count = lost.len();
            metrics::counter!("nexus_hook_lost_dispatches_total").increment(count as u64);
            tracing::warn!(
                count,
                since_ms = since.0,
                "dispatches missing from DISPATCHES and the ledger; publishing them again or holding them"
            );
        }

        Ok(())
    }

    /// Publishes the dispatch `id` again, or holds it if the ledger is in doubt about that time.
    async fn see_to(
        &self,
        id: Ulid,
        fired: &Fired,
        doubt_until: Option<UnixMillis>,
        last: u64,
    ) -> Result<(), LookError> {
        let bus = &self.evaluator().performer.bus;
        let Some(stored) = bus.at_sequence(streams::INVOCATIONS, fired.record).await? else {
            return Ok(());
        };

        let (dispatch, out) = match self.made_again(id, fired, &stored).await? {
            Ok(made) => made,
            Err((message, why)) => return Ok(self.give_up(id, fired, &message, &why).await?),
        };
        if doubt_until.is_some_and(|until| fired.started_at <= until) {
            bus.hold(&self.held(&dispatch, &out)).await?;
            return Ok(());
        }

        // The server may still remember the message id of the lost copy, so each copy has an id of its own.
        let copy = out.msg_id(format!("lost:{last}:{id}"));
        bus.publish(copy.repeated()).await?;
        claim::publish(bus, &dispatch.target, &Carrier::default()).await?;

        Ok(())
    }

    /// Builds the dispatch `id` as it was built first. Otherwise returns the message to give up instead, and the
    /// reason.
    async fn made_again(
        &self,
        id: Ulid,
        fired: &Fired,
        stored: &Stored,
    ) -> Result<Result<(Dispatch, Outgoing), (Box<Stored>, String)>, ReadStreamError> {
        let performer = &self.evaluator().performer;
        let Ok(record) = stored.decode::<EventInvocations>() else {
            return Ok(Err((Box::new(stored.clone()), "its record cannot be read".to_owned())));
        };

        let message = performer.bus.at_sequence(streams::EVENTS, record.event_seq).await?;
        let event = message.and_then(|message| Some((message.event(performer.bus.trust()).ok()?, message)));
        let Some((event, message)) = event.filter(|(event, _)| event.id == record.event_id) else {
            return Ok(Err((Box::new(stored.clone()), "its event is gone as well".to_owned())));
        };

        let given_up = |why: String| Ok(Err((Box::new(message.clone()), why)));
        let Some(result) = answered(&record, id).filter(|_| !record.is_slim) else {
            return given_up("what its hook answered was too large to be kept".to_owned());
        };

        let traits = self.traits(&event, &fired.hook_id);
        let made = performer.letter_of(Fire {
            event: &event,
            event_seq: record.event_seq,
            hook_id: &fired.hook_id,
            traits: &traits,
            result,
            evaluated_at: record.started_at,
        });

        match made {
            Ok((dispatch, out)) if dispatch.id == id => Ok(Ok((dispatch, out))),
            Ok(_) => given_up("it would be another one today".to_owned()),
            Err(why) => given_up(why),
        }
    }

    /// Returns the current traits of the hook; a hook that is gone has the least rights.
    fn traits(&self, event: &Event, hook_id: &str) -> Traits {
        match hook_id {
            crate::heartbeat::HOOK_ID => Traits {
                author: Arc::new(Author::Operator),
                ..Traits::default()
            },
            crate::bindings::HOOK_ID => self
                .evaluator()
                .bound(event)
                .map(|wish| wish.traits)
                .unwrap_or_default(),
            _ => self.evaluator().performer.registry.current().traits(hook_id),
        }
    }

    fn held(&self, dispatch: &Dispatch, out: &Outgoing) -> Held {
        Held {
            kind: HeldKind::Dispatch,
            id: dispatch.id,
            stream: streams::DISPATCHES.to_owned(),
            sequence: 0,
            subject: out.subject.clone(),
            headers: pairs(&out.headers),
            payload: Held::encode_payload(&out.payload),
            why: format!(
                "DISPATCHES has lost it, and the ledger of {} is older than it: it may have run",
                dispatch.target
            ),
            at: self.evaluator().clock.now(),
            wanted: HeldUntil::Decided,
        }
    }

    /// Publishes `message`, the event or the rest of it, as a dead letter: if that is republished, it is evaluated
    /// again.
    async fn give_up(&self, id: Ulid, fired: &Fired, message: &Stored, why: &str) -> Result<(), PublishError> {
        let letter = DeadLetter {
            service: SERVICE.to_owned(),
            subject: message.subject.clone(),
            redrive_subject: shared::bus::dead_letter::redrive_subject(&message.subject),
            stream: streams::DISPATCHES.to_owned(),
            sequence: 0,
            headers: pairs(&message.headers),
            payload: DeadLetter::encode_payload(&message.payload),
            reason: "dispatch_lost".to_owned(),
            detail: format!(
                "dispatch {id} of hook {} is lost and cannot be made again: {why}",
                fired.hook_id
            ),
            attempts: 0,
            at: self.evaluator().clock.now(),
        };

        self.evaluator().performer.bus.dead_letter_record(letter).await
    }
}

fn pairs(headers: &Headers) -> Vec<(String, String)> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    headers.iter().map(owned).collect()
}
