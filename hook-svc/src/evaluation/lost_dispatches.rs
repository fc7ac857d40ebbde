//! Search for dispatches that `DISPATCHES` has lost: it was restored to an older state, emptied or created again.
//!
//! The records say which hook fired with which event and with which result, so a lost dispatch can be made again, with
//! its own id. If the ledger has consumed it and its turn is over, it is done. If not, it is published again; if the
//! ledger itself was restored and cannot tell, it is held. A dispatch that cannot be made again becomes a dead letter,
//! with its event. The stream is compared at a start, after a new connection, and when its identity or range shows that
//! it is another one. The time back to which it is compared is stored every few seconds (KV `positions`).

mod consumed;
mod fired;
mod made_again;
mod stream_seen;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shared::bus::{
    CasError, HoldError, Kv, MarkedStream, OutgoingMessage, PublishError, ReadStreamError, StoredMessage, StreamInfo,
    StreamPages, StreamWitness, WitnessError, claim,
};
use shared::clock::pause;
use shared::model::dispatch::Dispatch;
use shared::model::restore::{HOLD_KEY, RestoreHold};
use shared::model::time::{UnixMillis, millis_of};
use shared::process::ShutdownSignal;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::topology::{INVOCATIONS_KEPT, buckets, streams};
use shared::wire::witness::WaitingMark;
use tokio::sync::watch;
use ulid::Ulid;

use self::consumed::ConsumedDispatches;
use self::fired::{Fired, FiredWindows};
use self::stream_seen::StreamSeen;
use crate::evaluation::evaluator::EventEvaluator;
use crate::evaluation::partition_consumer::{PartitionConsumer, SERVICE};

/// Interval at which the time back to which dispatches wait is stored.
const EVERY: Duration = Duration::from_secs(2);
/// Margin that is subtracted from that time, milliseconds: clocks differ, and a dispatch is stored before its record.
const MARGIN_MS: i64 = 10_000;
/// Messages per read of a stream.
const PAGE: usize = 500;
/// Fires that are compared at once, so that a long backlog takes no more memory than this many ids.
const WINDOW: usize = 10_000;

/// Compares `DISPATCHES` with the invocation records and the ledger.
pub(crate) struct LostDispatches {
    owner: Arc<PartitionConsumer>,
    noted: Kv<WaitingMark>,
    witness: StreamWitness,
    /// Whether the witness was asked. It may then have reported a doubt, and is kept up to date until that is settled.
    is_asked: AtomicBool,
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

    async fn find_lost(&self, known: Option<&StreamSeen>) -> Result<StreamSeen, LookError> {
        let bus = &self.evaluator().performer.bus;
        // Taken first: if this connection ends during the comparison, the next one must compare again.
        let connection = bus.connection_number();

        // Taken before the comparison: later messages belong to the next one.
        let now = self.server_time().await?;
        let info = bus.stream_info(streams::DISPATCHES).await?;
        let seen = StreamSeen {
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

    /// Returns the time after which dispatches may be unconsumed: the sweepers have found all earlier ones handled.
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

        if let Some(floor) = bus.swept_floor().await? {
            let floor_at = UnixMillis(floor.stored_at_ns / 1_000_000);
            let at = if floor.sequence >= info.state.last {
                now
            } else {
                floor_at
            };
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
        let kept = millis_of(INVOCATIONS_KEPT);
        let oldest = now.plus(-kept).plus(2 * MARGIN_MS);
        let holds = self.evaluator().performer.bus.kv::<RestoreHold>(buckets::RESTORE);
        let restored = holds.find(HOLD_KEY).await?.0.and_then(|hold| hold.at);
        let oldest = restored.map_or(oldest, |restored| oldest.max(restored));
        Ok(former.unwrap_or(oldest).max(oldest))
    }

    /// Handles the dispatches since `since` that are neither in their stream, whose last sequence is `last`, nor in the
    /// ledger.
    async fn find(&self, since: UnixMillis, last: u64) -> Result<(), LookError> {
        let records = StreamPages::since(&self.evaluator().performer.bus, streams::INVOCATIONS, since);
        let mut windows = FiredWindows::new(records, WINDOW);
        let mut count = 0;

        loop {
            let fired = windows.next().await?;
            let Some(first) = self.first_made(&fired).await? else {
                break;
            };
            count += self.find_among(fired, first.plus(-MARGIN_MS), last).await?;
        }

        if count > 0 {
            metrics::counter!("nexus_hook_lost_dispatches_total").increment(count as u64);
            tracing::warn!(
                count,
                since_ms = since.0,
                "dispatches missing from DISPATCHES and the ledger; publishing them again or holding them"
            );
        }

        Ok(())
    }

    /// Returns a time by the server's clock before which none of the dispatches `fired` was made, `None` if there are
    /// none.
    async fn first_made(&self, fired: &BTreeMap<Ulid, Fired>) -> Result<Option<UnixMillis>, ReadStreamError> {
        let first = fired.iter().map(|(id, fired)| fired.first_made_at(*id)).min();
        let Some((first, event)) = first.zip(fired.values().map(|fired| fired.event_seq).min()) else {
            return Ok(None);
        };

        // A dispatch is stored after its event, even if the clocks of its source and of the replicas disagree.
        let event = self
            .evaluator()
            .performer
            .bus
            .at_sequence(streams::EVENTS, event)
            .await?;
        Ok(Some(event.map_or(first, |event| first.min(event.published_at))))
    }

    /// As [`Self::find`], for the dispatches `fired`, none of which was made before `since`. Returns the number of lost
    /// ones.
    async fn find_among(
        &self,
        mut fired: BTreeMap<Ulid, Fired>,
        since: UnixMillis,
        last: u64,
    ) -> Result<usize, LookError> {
        // The records were read before: a dispatch is stored before its record, and consumed after both.
        self.read_since(streams::DISPATCHES, since, |stored| {
            if let Ok(dispatch) = stored.decode::<Dispatch>() {
                fired.remove(&dispatch.id);
            }
            !fired.is_empty()
        })
        .await?;

        if fired.is_empty() {
            return Ok(0);
        }

        self.is_asked.store(true, Ordering::Relaxed);
        let doubt_until = self.witness.doubt_until(self.evaluator().clock.now()).await?;
        let mut consumed = ConsumedDispatches::default();
        self.read_since(streams::LEDGER, since, |stored| {
            let record = stored.decode_known_entries();
            for id in record.iter().flat_map(|record| consumed.take_record(record)) {
                fired.remove(&id);
            }
            !fired.is_empty()
        })
        .await?;

        // Ids begin with the event's time, so this is the order of the events.
        for (id, fired) in &fired {
            self.see_to(*id, fired, doubt_until, last).await?;
        }

        Ok(fired.len())
    }

    /// Calls `take` with each message of `stream` since `since`, until it returns false.
    async fn read_since(
        &self,
        stream: &'static str,
        since: UnixMillis,
        mut take: impl FnMut(&StoredMessage) -> bool,
    ) -> Result<(), ReadStreamError> {
        let mut pages = StreamPages::since(&self.evaluator().performer.bus, stream, since);
        loop {
            let page = pages.next().await?;
            if page.is_empty() || !page.iter().all(&mut take) {
                return Ok(());
            }
        }
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
            // The records were put back meanwhile: they are compared once more.
            let stream = streams::INVOCATIONS.to_owned();
            let detail = format!("record {} of lost dispatch {id} is gone", fired.record);
            return Err(ReadStreamError::Unavailable { stream, detail }.into());
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
                "DISPATCHES has lost the dispatch, and the ledger of {} was restored to a state before it: it may have run",
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
                "dispatch {id} of hook {} is lost and cannot be published again: {why}",
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
