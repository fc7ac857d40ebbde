//! The sweeper: gives a session with something to do a claim if its wake-up was lost.
//!
//! Each broker sweeps the parts that it reads; two at once would only claim twice, and the second claim is refused. The
//! sweeper walks over a part of `DISPATCHES` and looks at each session whose dispatch is old enough and not known to be
//! consumed. Dispatches that this broker consumed itself are not even read. Source: `docs/design/sessions.md` §1.9.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::bus::claim::{self, ClaimedKey};
use shared::bus::{CasError, ReadStreamError, StoredMessage, WitnessError, position};
use shared::clock::pause;
use shared::metric::ABSENT;
use shared::model::approval::{ApprovalStatus, SessionDecision};
use shared::model::dispatch::Dispatch;
use shared::model::ledger::LedgerCursor;
use shared::model::position::PositionStanding as Place;
use shared::model::session::SessionRef;
use shared::wire::headers::TraceCarrier;
use shared::wire::session_mark::{SettledFloor, sweeper_key};
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_CHECKPOINTS;
use shared::wire::topology::streams::{CLAIMS, DISPATCHES};
use shared::wire::topology::{SESSION_PARTS, claims_consumer, partition_filter};

use crate::approval::store::{KeepApprovalError, ends_untold};
use crate::broker::BrokerContext;
use crate::error::RunSessionError;
use crate::ledger::state::{RunState, is_runnable};
use crate::ledger::writer::load;
use crate::queue::doubt;
use crate::queue::inbox::InvalidDispatch;
use crate::queue::sweep::{DueSession, SweepState};
use crate::turn::journal::AwaitedApproval;

/// Number of messages read at once.
const PAGE: usize = 256;
/// Maximum number of pages of a part that are read in one sweep.
const MAX_PAGES: usize = 16;
/// Maximum number of sessions of a part that are looked at in one sweep.
const MAX_LOOKS: usize = 64;
/// Maximum number of unreadable ledgers in one sweep; with more, the server is away and the sessions are not broken.
const MAX_UNREADABLE: u32 = 3;
/// Time within which the server says how many claims there are, in all attempts.
const COUNTED_WITHIN: Duration = Duration::from_secs(5);
/// Interval at which the floor is stored.
const FLOOR_EVERY: Duration = Duration::from_secs(5);

/// Progress of the sweeper in one part, and its era: over another connection `DISPATCHES` may be another stream.
struct Walking {
    part: u16,
    era: u64,
    walk: SweepState,
    written: (u64, Instant),
}

/// Sweeps the parts that this broker reads, and reports the claims, until shutdown is requested.
pub async fn serve(broker: Arc<BrokerContext>) {
    // A sweep waits for a server that does not answer, for longer than a number on the page may be old.
    tokio::join!(keep_reporting(&broker), keep_sweeping(&broker));
}

async fn keep_sweeping(broker: &Arc<BrokerContext>) {
    let every = Duration::from_millis(broker.config.sweep_interval_ms);
    let stop = broker.shutdown.clone();

    let mut walks: BTreeMap<u16, Walking> = BTreeMap::new();
    loop {
        tokio::select! {
            () = stop.requested() => return,
            () = pause(every) => {}
        }

        note_claims(broker).await;
        if let Err(error) = sweep_parts(broker, &mut walks).await {
            tracing::warn!(%error, "sweep incomplete; retrying");
        }
    }
}

/// Notes how many claims wait in the parts that this broker reads.
async fn note_claims(broker: &BrokerContext) {
    // With every slot taken, no claim arrives that would report the number.
    for part in 0..SESSION_PARTS {
        if !broker.reads_part(part) {
            broker.activity.note_waiting(part, 0);
        } else if let Ok(lag) = broker.bus.consumer_lag(CLAIMS, &claims_consumer(part)).await {
            broker.activity.note_waiting(part, lag.waiting);
        }
    }
}

/// Reports how many claims there are on the server.
async fn keep_reporting(broker: &BrokerContext) {
    let every = Duration::from_millis(broker.config.sweep_interval_ms);
    let stop = broker.shutdown.clone();
    loop {
        tokio::select! {
            () = stop.requested() => return,
            () = pause(every) => {}
        }

        // Reported by all brokers, not only by those that read a part: the metric must survive a change of them.
        // A number of some time ago would scale brokers; none does not.
        let asked = tokio::time::timeout(COUNTED_WITHIN, broker.bus.stream_state(CLAIMS)).await;
        let pending = asked.ok().and_then(Result::ok);
        let pending = pending.map_or(ABSENT, |state| u32::try_from(state.messages).unwrap_or(u32::MAX).into());
        metrics::gauge!("nexus_broker_claims_pending").set(pending);
    }
}

#[derive(Debug, thiserror::Error)]
enum SweepError {
    #[error(transparent)]
    Cas(#[from] CasError),
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    #[error(transparent)]
    Witness(#[from] WitnessError),
    #[error(transparent)]
    Approval(#[from] KeepApprovalError),
}

/// Sweeps each part that this broker reads, and forgets the walks of all others. An error of one part does not keep the
/// others from being swept; the first one is returned.
async fn sweep_parts(broker: &Arc<BrokerContext>, walks: &mut BTreeMap<u16, Walking>) -> Result<(), SweepError> {
    let own = *broker.parts.borrow();
    walks.retain(|part, _| {
        // The broker that sweeps the part from now on checks its floor itself.
        let is_kept = own.contains(*part);
        if !is_kept {
            position::told_sound(&floor_name(*part));
        }
        is_kept
    });

    let era = broker.current_era().await?.number;
    let mut outcome = Ok(());
    for part in own.iter() {
        let swept = sweep_part(broker, walks, part, era).await;
        outcome = outcome.and(swept);
    }

    // Everything below all floors is settled, so the memory of it can go. A part that could not be walked has no floor.
    let has_all = own.iter().all(|part| walks.contains_key(&part));
    if let (true, Some(floor)) = (has_all, walks.values().map(|walking| walking.walk.floor()).min()) {
        broker.streams.with_settled(|settled| settled.forget_through(floor));
    }

    outcome
}

/// Sweeps `part`, on from where its walk has come to in the era `era`.
async fn sweep_part(
    broker: &Arc<BrokerContext>,
    walks: &mut BTreeMap<u16, Walking>,
    part: u16,
    era: u64,
) -> Result<(), SweepError> {
    // Another era means another stream or a restored one: the former walk says nothing about it.
    let known = walks.remove(&part).filter(|walking| walking.era == era);
    let mut walking = match known {
        Some(walking) => walking,
        None => begin_walk(broker, part, era).await?,
    };

    let swept = sweep(broker, &mut walking).await;
    walks.insert(part, walking);
    swept
}

/// Returns the name of the sweeper's floor of `part` in reports that it is void.
fn floor_name(part: u16) -> String {
    format!("sweeper's floor of part {part}")
}

/// Begins at the floor that is stored for `part`, if the leader confirms it.
async fn begin_walk(broker: &BrokerContext, part: u16, era: u64) -> Result<Walking, SweepError> {
    let floor = stored_floor(broker, part).await?;
    let state = broker.bus.stream_state(DISPATCHES).await?;
    let floor = floor.max(state.first.saturating_sub(1));
    tracing::debug!(part, floor, "this broker sweeps the part now");

    Ok(Walking {
        part,
        era,
        walk: SweepState::from_floor(floor),
        written: (floor, broker.clock.monotonic()),
    })
}

/// Returns the floor that a former sweeper of `part` has left; 0 = there is none, or the leader does not confirm it.
async fn stored_floor(broker: &BrokerContext, part: u16) -> Result<u64, SweepError> {
    let what = floor_name(part);
    let checkpoints = broker.bus.kv::<SettledFloor>(SESSION_CHECKPOINTS);
    let Some(floor) = checkpoints.find(&sweeper_key(part)).await?.0 else {
        return Ok(0);
    };

    let Some(position) = floor.position else { return Ok(0) };
    match broker.bus.check_position(DISPATCHES, &position).await? {
        Place::Holds => {
            position::told_sound(&what);
            Ok(floor.sequence)
        }
        Place::Void(why) => {
            position::told_void(&what, DISPATCHES, &position, why);
            Ok(0)
        }
    }
}

async fn sweep(broker: &Arc<BrokerContext>, held: &mut Walking) -> Result<(), SweepError> {
    read_on(broker, held.part, &mut held.walk).await?;
    // One session with a bad ledger must not stop the sweep of all others.
    let mut unreadable = 0;
    for due in held.walk.due_sessions(broker.clock.now(), MAX_LOOKS) {
        match look_at(broker, &mut held.walk, &due).await {
            Err(SweepError::Read(error)) if unreadable < MAX_UNREADABLE => {
                unreadable += 1;
                tracing::warn!(session = %due.session, %error, "failed to inspect a session; retrying later");
                held.walk.look_later(&due.session, broker.clock.now());
            }
            looked => looked?,
        }
    }

    let now = broker.clock.monotonic();
    // The floor in KV is only a hint for readers and for the next sweeper: written seldom.
    if now.saturating_duration_since(held.written.1) >= FLOOR_EVERY {
        write_floor(broker, held, now).await?;
    }

    Ok(())
}

/// Stores the floor of a part if it has moved. The floor of a part without messages moves with the stream: otherwise a
/// quiet part would make it look as if nothing since its last message were handled.
async fn write_floor(broker: &BrokerContext, held: &mut Walking, now: Instant) -> Result<(), SweepError> {
    let state = broker.bus.stream_state(DISPATCHES).await?;
    let next = held.walk.next();
    if next <= state.last {
        // Asked after the extent of the stream, so that a message of the part up to there is found.
        let filter = partition_filter(DISPATCHES, held.part);
        if broker.bus.next_on_subject(DISPATCHES, &filter, next).await?.is_none() {
            held.walk.mark_passed(state.last);
        }
    }

    let floor = held.walk.floor();
    if floor > held.written.0 {
        let sequence = floor.min(state.last);
        let position = broker.bus.position_at(DISPATCHES, sequence).await?;
        if position.is_some() {
            let named = SettledFloor { sequence, position };
            let checkpoints = broker.bus.kv(SESSION_CHECKPOINTS);
            checkpoints.put(&sweeper_key(held.part), &named).await?;
        }
    }

    held.written = (floor, now);
    Ok(())
}

/// Walks on over dispatches that are old enough.
async fn read_on(broker: &BrokerContext, part: u16, walk: &mut SweepState) -> Result<(), SweepError> {
    let age = i64::try_from(broker.config.sweep_age_ms).unwrap_or(i64::MAX);
    for _ in 0..MAX_PAGES {
        if !walk.may_go_on() {
            return Ok(());
        }

        // Sequences that this broker settled itself need no read.
        let from = broker.streams.with_settled(|settled| settled.first_gap(walk.next()));
        walk.mark_passed(from - 1);
        let page = read_page(broker, part, from).await?;
        let full = page.len() == PAGE;

        // Young dispatches are still on their regular way, with a claim of their own.
        let young = broker.clock.now().plus(-age);
        for stored in page {
            if stored.published_at > young {
                return Ok(());
            }

            let sequence = stored.sequence;
            match session_of(&stored) {
                Some(session) if !is_consumed(broker, &session, sequence) => walk.add(session, sequence),
                Some(_) => walk.mark_passed(sequence),
                // Such a message can never be consumed, and must not hold back the floor.
                None => {
                    dead_letter_sessionless(broker, &stored).await?;
                    walk.mark_passed(sequence);
                }
            }
        }

        if !full {
            return Ok(());
        }
    }

    Ok(())
}

/// Stores `stored`, of whose session nothing is known, as a dead letter.
async fn dead_letter_sessionless(broker: &BrokerContext, stored: &StoredMessage) -> Result<(), SweepError> {
    let unreadable = InvalidDispatch {
        stored: stored.clone(),
        reason: "no_session",
        detail: "neither the message nor its subject names a session".to_owned(),
    };
    let letter = unreadable.to_dead_letter(broker.clock.now());
    let stored = broker.bus.dead_letter_record(letter).await;
    Ok(stored.map_err(CasError::Publish)?)
}

/// Returns the next dispatches of `part`: from the window, or from the stream for sequences before it.
async fn read_page(broker: &BrokerContext, part: u16, from: u64) -> Result<Vec<Arc<StoredMessage>>, ReadStreamError> {
    if let Some(page) = broker.feed.with_window(|window| window.from(part, from, PAGE)) {
        return Ok(page);
    }
    let filter = partition_filter(DISPATCHES, part);
    let page = broker.bus.read_history(DISPATCHES, &filter, from, PAGE).await?;
    Ok(page.into_iter().map(Arc::new).collect())
}

fn is_consumed(broker: &BrokerContext, session: &SessionRef, sequence: u64) -> bool {
    broker.streams.with_settled(|settled| settled.contains(sequence))
        || broker.cache.is_settled_through(session, sequence)
}

/// Returns the session of a dispatch: from its content, or from its subject if the content cannot be read.
fn session_of(stored: &StoredMessage) -> Option<SessionRef> {
    let named = stored.decode::<Dispatch>().ok().map(|dispatch| dispatch.target);
    let decided = || stored.decode::<SessionDecision>().ok().map(|decided| decided.target);

    named
        .or_else(decided)
        .filter(|session| subject::dispatch(session) == stored.subject)
        .or_else(|| {
            let (persona, session) = subject::parse_session(&stored.subject)?;
            Some(SessionRef {
                persona: subject::untoken(persona)?,
                session: subject::untoken(session)?,
            })
        })
}

async fn look_at(broker: &Arc<BrokerContext>, walk: &mut SweepState, due: &DueSession) -> Result<(), SweepError> {
    let (session, now) = (&due.session, broker.clock.now());
    if broker.activity.is_parked(&subject::session_key(session)) {
        walk.leave_out(session);
        return Ok(());
    }

    if broker.activity.runs_session(session) {
        walk.look_later(session, now);
        return Ok(());
    }

    if broker.cache.is_settled_through(session, due.last) {
        walk.note_seen(
            session,
            &LedgerCursor {
                floor: due.last,
                above: Vec::new(),
                ..LedgerCursor::default()
            },
            now,
        );

        return Ok(());
    }

    let mut remembered = match load(broker, session, broker.cache.take(session)).await {
        Ok(remembered) => remembered,
        Err(RunSessionError::Read(error)) => return Err(error.into()),
        Err(error) => {
            // The broker that takes the session finds the same error, and quarantine follows.
            tracing::warn!(%session, %error, "failed to read a session's state");
            return wake_session(broker, session).await;
        }
    };

    let era = broker.current_era().await?;
    if !doubt::is_sound(broker, &era, session, &mut remembered).await? {
        // The broker that takes the session reads the ledger.
        walk.look_later(session, now);
        return wake_session(broker, session).await;
    }

    let wished = !remembered.fold.intents.owed.is_empty();
    if wished {
        walk.note_owing(session, now);
    }

    let settled = !wished && walk.note_seen(session, &remembered.fold.cursor, now);
    let awaited = remembered.fold.awaited_approval().cloned();
    if let Some(awaited) = awaited.filter(|awaited| now < awaited.expires_at) {
        if wished {
            wake_session(broker, session).await?;
        }
        return check_suspended(broker, walk, due, &awaited).await;
    }

    // A reply that is not noted is no reason: it is on its way, or its claim comes again.
    let mut standing = RunState {
        owes: false,
        ..RunState::from_fold(&remembered.fold, &remembered.published)
    };

    // Dispatches consumed above the floor say nothing about open ones below it.
    standing.cursor.above.clear();

    if remembered.fold.last_sequence > 0 {
        broker.cache.insert(session.clone(), remembered);
    }

    if wished || !settled && is_runnable(&standing, Some(due.last), now) {
        wake_session(broker, session).await?;
    }

    Ok(())
}

/// Looks at a session whose turn waits for an approval: an unreported decision is reported again. Any other message
/// may end the wait, so the session is woken once for the newest one.
async fn check_suspended(
    broker: &Arc<BrokerContext>,
    walk: &mut SweepState,
    due: &DueSession,
    awaited: &AwaitedApproval,
) -> Result<(), SweepError> {
    let standing = broker.desk().get(&awaited.approval).await?;
    if let Some(standing) = standing
        .as_ref()
        .filter(|standing| standing.status != ApprovalStatus::Pending)
    {
        tracing::info!(session = %due.session, approval = awaited.approval, "decision published again");
        broker.desk().notify_session(standing).await?;
        if ends_untold(standing.status) {
            wake_session(broker, &due.session).await?;
        }
        return Ok(());
    }

    // The owner asks again for an approval that KV has lost.
    if standing.is_none() || walk.is_new(due) {
        wake_session(broker, &due.session).await?;
    }

    Ok(())
}

async fn wake_session(broker: &BrokerContext, session: &SessionRef) -> Result<(), SweepError> {
    let woken = claim::publish(&broker.bus, session, &TraceCarrier::default())
        .await
        .map_err(CasError::Publish)?;
    if woken == ClaimedKey::New {
        metrics::counter!("nexus_broker_sweeper_wakeups_total").increment(1);
        tracing::info!(%session, "session had pending work and no claim; claim published");
    }
    Ok(())
}
