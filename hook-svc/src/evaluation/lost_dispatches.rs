//! Finds dispatches that `DISPATCHES` has lost, because it was restored to an older state, emptied or created again.
//!
//! The invocation records say which hook fired with which event and what it returned, so a lost dispatch can be made
//! again, with its own id. If the ledger has consumed it, it is done. If not, it is published again; if the ledger
//! itself was restored and cannot tell, it is held. A dispatch that can no longer be made is recorded as a dead letter,
//! with its event.
//! The stream is compared if it may be another one: when this process starts, after a new connection, and when its
//! identity or range shows it. The time back to which it must be compared is stored every few seconds (KV `positions`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shared::bus::{
    CasError, HoldError, Kv, MarkedStream, OutgoingMessage, PublishError, ReadStreamError, StoredMessage, StreamInfo,
    StreamWitness, WitnessError, claim,
};
use shared::clock::pause;
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::hook::HookResult;
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::ledger::LedgerRecord;
use shared::model::restore::{HOLD_KEY, RestoreHold};
use shared::model::time::UnixMillis;
use shared::process::ShutdownSignal;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::session_mark::{SWEEPER, SettledFloor};
use shared::wire::topology::{INVOCATIONS_KEPT, buckets, streams};
use shared::wire::witness::WaitingMark;
use tokio::sync::watch;
use ulid::Ulid;

use crate::evaluation::evaluator::EventEvaluator;
use crate::evaluation::partition_consumer::{PartitionConsumer, SERVICE};
use crate::registry::active_hooks::{HookAuthor, HookTraits};
use crate::routing::HookFire;

/// Interval at which the time back to which dispatches wait is stored.
const EVERY: Duration = Duration::from_secs(2);
/// Margin that is subtracted from that time, milliseconds: clocks differ, and a dispatch is stored before its record.
const MARGIN_MS: i64 = 10_000;
/// Messages per read of a stream.
const PAGE: usize = 500;

/// Compares `DISPATCHES` with the invocation records and the ledger.
pub(crate) struct LostDispatches {
    owner: Arc<PartitionConsumer>,
    noted: Kv<WaitingMark>,
    witness: StreamWitness,
    /// Whether the witness was asked. It may then have reported a doubt, and is kept up to date until that is settled.
    is_asked: AtomicBool,
}

/// Identity and range of the stream at the last comparison.
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

/// A fire that an invocation record names.
struct Fired {
    /// Sequence of the record in `INVOCATIONS`.
    record: u64,
    hook_id: String,
    started_at: UnixMillis,
}

/// The stream cannot be compared.
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
    /// Creates a comparison on the bus of `owner`.
    pub(crate) fn new(owner: Arc<PartitionConsumer>) -> Self {
        let bus = &owner.evaluator.performer.bus;
        Self {
            noted: bus.kv(buckets::POSITIONS),
            witness: StreamWitness::new(bus, MarkedStream::Dispatches),
            is_asked: AtomicBool::new(false),
            owner,
        }
    }

    fn evaluator(&self) -> &EventEvaluator {
        &self.owner.evaluator
    }

    /// Compares the stream until `stop`, after the hooks are known (`may_join`).
    pub(crate) async fn watch_stream(self, mut may_join: watch::Receiver<bool>, stop: ShutdownSignal) {
        let mut connections = self.evaluator().performer.bus.connections();
        let mut known = None;
        loop {
            // A dispatch gets the rights of its hook, so none may be made before the hooks are known.
            let knows = tokio::select! {
                knows = may_join.wait_for(|may| *may) => knows.is_ok(),
                () = stop.requested() => false,
            };
            if !knows {
                return;
            }

            match self.find_lost(known.as_ref()).await {
                Ok(seen) => known = Some(seen),
                Err(error) => tracing::debug!(%error, "failed to compare DISPATCHES with the records; retrying"),
            }

            tokio::select! {
                () = stop.requested() => return,
                () = connections.stands_anew() => {}
                () = pause(EVERY) => {}
            }
        }
    }

    async fn find_lost(&self, known: Option<&Seen>) -> Result<Seen, LookError> {
        let bus = &self.evaluator().performer.bus;
        // Taken first: if this connection ends during the comparison, the next one must compare again.
        let connection = bus.connection_number();

        // Taken before the comparison: later messages belong to the next one.
        let now = self.server_time().await?;
        let info = bus.stream_info(streams::DISPATCHES).await?;
        let seen = Seen {
            connection,
            incarnation: info.incarnation.clone(),
            created: info.created.clone(),
            first: info.state.first,
            last: info.state.last,
        };

        let former = self.noted.find(streams::DISPATCHES).await?.0.map(|noted| noted.since);

        if !known.is_some_and(|known| known.is_followed_by(&seen)) {
            self.find(self.lost_since(former, now).await?, info.state.last).await?;
        }

        if self.is_asked.load(Ordering::Relaxed) {
            self.witness.check(self.evaluator().clock.now()).await?;
        }

        let since = self.waits_since(&info, former, now).await?;
        if former != Some(since) {
            self.noted.put(streams::DISPATCHES, &WaitingMark { since }).await?;
        }

        Ok(seen)
    }

    async fn server_time(&self) -> Result<UnixMillis, ReadStreamError> {
        let evaluator = self.evaluator();
        let server = evaluator.performer.bus.server_clock(evaluator.clock.as_ref()).await?;
        Ok(evaluator.clock.now().plus(server.ahead_ms))
    }

    /// Returns the time after which dispatches may be unconsumed: the sweeper has found all earlier ones handled.
    async fn waits_since(
        &self,
        info: &StreamInfo,
        former: Option<UnixMillis>,
        now: UnixMillis,
    ) -> Result<UnixMillis, LookError> {
        let bus = &self.evaluator().performer.bus;

        // An empty stream has nothing that could wait.
        if info.state.messages == 0 {
            return Ok(now.plus(-MARGIN_MS));
        }

        let floors = bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
        let floor = floors.find(SWEEPER).await?.0;
        // The sweeper's floor counts only if the message at it is still there.
        if let Some((floor, position)) = floor.and_then(|floor| Some((floor.sequence, floor.position?)))
            && bus.check_position(streams::DISPATCHES, &position).await?.holds()
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

    /// Returns the time after which dispatches may be lost. Records that age has deleted say nothing about older ones,
    /// and a restored backup has every dispatch of its records.
    async fn lost_since(&self, former: Option<UnixMillis>, now: UnixMillis) -> Result<UnixMillis, LookError> {
        let kept = i64::try_from(INVOCATIONS_KEPT.as_millis()).unwrap_or(i64::MAX);
        let oldest = now.plus(-kept).plus(2 * MARGIN_MS);
        let holds = self.evaluator().performer.bus.kv::<RestoreHold>(buckets::RESTORE);
        let restored = holds.find(HOLD_KEY).await?.0.and_then(|hold| hold.at);
        let oldest = restored.map_or(oldest, |restored| oldest.max(restored));
        Ok(former.unwrap_or(oldest).max(oldest))
    }

    /// Handles the dispatches since `since` that are neither in their stream, whose last sequence is `last`, nor in the
    /// ledger.
    async fn find(&self, since: UnixMillis, last: u64) -> Result<(), LookError> {
        // The order of reading matters: a dispatch is stored before its record, and consumed after both.
        let mut fired = BTreeMap::new();
        self.read_since(streams::INVOCATIONS, since, |stored| {
            fired.extend(recorded_fires(stored));
        })
        .await?;
        let Some(first) = fired.values().map(|fired: &Fired| fired.started_at).min() else {
            return Ok(());
        };

        let since = first.plus(-MARGIN_MS);
        self.read_since(streams::DISPATCHES, since, |stored| {
            if let Ok(dispatch) = stored.decode::<Dispatch>() {
                fired.remove(&dispatch.id);
            }
        })
        .await?;

        if fired.is_empty() {
            return Ok(());
        }

        self.is_asked.store(true, Ordering::Relaxed);
        let doubt_until = self.witness.doubt_until(self.evaluator().clock.now()).await?;
        let mut consumed = HashSet::new();
        self.read_since(streams::LEDGER, since, |stored| {
            consumed.extend(
                stored
                    .decode::<LedgerRecord>()
                    .iter()
                    .flat_map(LedgerRecord::consumed_ids),
            );
        })
        .await?;

        fired.retain(|id, _| !consumed.contains(id));

        // Ids begin with the event's time, so this is the order of the events.
        for (id, fired) in &fired {
            self.see_to(*id, fired, doubt_until, last).await?;
        }

        if !fired.is_empty() {
            let count = fired.len();
            metrics::counter!("nexus_hook_lost_dispatches_total").increment(count as u64);
            tracing::warn!(
                count,
                since_ms = since.0,
                "dispatches missing from DISPATCHES and the ledger; publishing them again or holding them"
            );
        }

        Ok(())
    }

    /// Calls `take` with each message of `stream` since `since`. Most are read from any replica. One that lags has only
    /// the beginning, and the rest would look lost, so the leader supplies it.
    async fn read_since(
        &self,
        stream: &str,
        since: UnixMillis,
        mut take: impl FnMut(&StoredMessage),
    ) -> Result<(), ReadStreamError> {
        let bus = &self.evaluator().performer.bus;
        let mut through = None;

        let mut page = bus.history_since(stream, ">", since, PAGE).await?;
        while let Some(last) = page.last().map(|stored| stored.sequence) {
            page.iter().for_each(&mut take);
            through = Some(last);
            page = bus.read_history(stream, ">", last + 1, PAGE).await?;
        }

        let mut next = match through {
            Some(last) => last + 1,
            None => self.first_since(stream, since).await?,
        };
        while let Some(stored) = bus.next_on_subject(stream, ">", next).await? {
            take(&stored);
            next = stored.sequence + 1;
        }

        Ok(())
    }

    /// Returns the leader's sequence of the first message of `stream` that was stored since `since`; that after the
    /// last one if there is none.
    async fn first_since(&self, stream: &str, since: UnixMillis) -> Result<u64, ReadStreamError> {
        let bus = &self.evaluator().performer.bus;
        let Some(last) = bus.last_on_subject(stream, ">").await? else {
            return Ok(1);
        };

        let (mut first, mut end) = (1, last.sequence + 1);
        while first < end {
            let middle = first + (end - first) / 2;
            match bus.next_on_subject(stream, ">", middle).await? {
                Some(stored) if stored.published_at < since => first = stored.sequence + 1,
                Some(_) | None => end = middle,
            }
        }

        Ok(first)
    }

    /// Publishes the dispatch `id` again, or holds it if the ledger is in doubt about its time.
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
            bus.hold_message(&self.held_dispatch(&dispatch, &out)).await?;
            return Ok(());
        }

        // The server may still remember the id of the lost copy. A further copy costs only a check by its reader.
        let copy = out.msg_id(format!("lost:{last}:{id}"));
        bus.publish(copy.repeated()).await?;
        claim::publish(bus, &dispatch.target, &TraceCarrier::default()).await?;

        Ok(())
    }

    /// Returns the dispatch `id` as it was made the first time; else the message to give up, and the reason.
    async fn made_again(
        &self,
        id: Ulid,
        fired: &Fired,
        stored: &StoredMessage,
    ) -> Result<Result<(Dispatch, OutgoingMessage), (Box<StoredMessage>, String)>, ReadStreamError> {
        let performer = &self.evaluator().performer;
        let Ok(record) = stored.decode::<EventInvocations>() else {
            return Ok(Err((Box::new(stored.clone()), "its record cannot be read".to_owned())));
        };

        // The event may have been deleted by age or restored away, or its sequence may belong to another one now.
        let message = performer.bus.at_sequence(streams::EVENTS, record.event_seq).await?;
        let event = message.and_then(|message| Some((message.read_event(performer.bus.trust()).ok()?, message)));
        let Some((event, message)) = event.filter(|(event, _)| event.id == record.event_id) else {
            return Ok(Err((Box::new(stored.clone()), "its event is gone as well".to_owned())));
        };

        let given_up = |why: String| Ok(Err((Box::new(message.clone()), why)));
        let Some(result) = recorded_result(&record, id).filter(|_| !record.is_slim) else {
            return given_up("the hook's result was too large to be kept".to_owned());
        };

        // The present rights count: a hook that has lost a right must not use it by a repetition.
        let traits = self.hook_traits(&event, &fired.hook_id);
        let made = performer.letter_of(HookFire {
            event: &event,
            event_seq: record.event_seq,
            hook_id: &fired.hook_id,
            traits: &traits,
            result,
            evaluated_at: record.started_at,
        });

        // Another id would be a second dispatch beside one that may have run.
        match made {
            Ok((dispatch, out)) if dispatch.id == id => Ok(Ok((dispatch, out))),
            Ok(_) => given_up("made again, it would have another id".to_owned()),
            Err(why) => given_up(why),
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

    fn held_dispatch(&self, dispatch: &Dispatch, out: &OutgoingMessage) -> HeldMessage {
        HeldMessage {
            kind: HeldKind::Dispatch,
            id: dispatch.id,
            stream: streams::DISPATCHES.to_owned(),
            sequence: 0,
            subject: out.subject.clone(),
            headers: header_pairs(&out.headers),
            payload: HeldMessage::encode_payload(&out.payload),
            why: format!(
                "DISPATCHES has lost the dispatch, and the ledger of {} was restored: the dispatch may have run",
                dispatch.target
            ),
            at: self.evaluator().clock.now(),
            wanted: HeldUntil::Decided,
        }
    }

    /// Records `message`, the event or its record, as a dead letter. Published again, the event is evaluated again.
    async fn give_up(&self, id: Ulid, fired: &Fired, message: &StoredMessage, why: &str) -> Result<(), PublishError> {
        let letter = DeadLetter {
            service: SERVICE.to_owned(),
            subject: message.subject.clone(),
            redrive_subject: shared::bus::dead_letter::redrive_subject(&message.subject),
            stream: streams::DISPATCHES.to_owned(),
            sequence: 0,
            headers: header_pairs(&message.headers),
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

fn header_pairs(headers: &Headers) -> Vec<(String, String)> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    headers.iter().map(owned).collect()
}

/// Returns the fires that the record in `stored` names, with their dispatch ids.
fn recorded_fires(stored: &StoredMessage) -> Vec<(Ulid, Fired)> {
    let Ok(record) = stored.decode::<EventInvocations>() else {
        return Vec::new();
    };
    let started_at = record.started_at;
    let fire = |hook: shared::model::invocation::HookInvocation| match hook.outcome {
        HookOutcome::Fired { dispatch, .. } => Some((
            dispatch,
            Fired {
                record: stored.sequence,
                hook_id: hook.hook_id,
                started_at,
            },
        )),
        HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    };

    record.hooks.into_iter().filter_map(fire).collect()
}

/// Returns the hook's result from which the dispatch `id` was made.
fn recorded_result(record: &EventInvocations, id: Ulid) -> Option<&HookResult> {
    record.hooks.iter().find_map(|hook| match &hook.outcome {
        HookOutcome::Fired { dispatch, result } if *dispatch == id => Some(&**result),
        HookOutcome::Fired { .. }
        | HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    })
}
