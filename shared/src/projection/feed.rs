//! Streams → batches → [`Projection`]: one ordered reader per stream, decoded off the runtime's threads. That of
//! `EVENTS` passes on what it reads to the owners of partitions in the same process ([`Tap`]).
//!
//! Nothing that a message holds stops it: what cannot be decoded is counted and passed over. What it cannot
//! do without (the server, room on the disk) it waits for. Where the file is made anew, or a stream turns out
//! to be younger than the file, all streams are read from the beginning.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::applied::{Applied, Source};
use super::error::ApplyBatchError;
use super::read_ahead::{Messages, Read, read_ahead, read_on};
use super::{Command, Projection};
use crate::bus::{Bus, Incoming, Ordered, Tap};
use crate::clock::pause;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;
use crate::process::Shutdown;
use crate::wire::envelope::DecodeError;
use crate::wire::subject;

/// Messages of one stream in one batch at most: so many wait only where much is to be taken in, and the more rows a
/// transaction has, the fewer times it writes the same pages.
pub(super) const BATCH_MESSAGES: usize = 2_000;

/// Payload in one batch at most, bytes (one message may be larger).
pub(super) const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// How long a batch waits to fill while nobody waits for its position.
const LINGER: Duration = Duration::from_millis(50);

/// Wait before the same is tried again: a stream that is not there, a disk without room.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How often progress is told while there is much to take in.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// From how many messages on it is worth telling.
const MUCH: u64 = 10_000;

/// Feeds `projection` until `shutdown`; what was taken in by then is stored.
///
/// # Errors
/// [`ApplyBatchError::Closed`] where the writer has stopped: the process cannot go on without it.
pub async fn run(bus: Bus, projection: Projection, shutdown: Shutdown) -> Result<(), ApplyBatchError> {
    run_tapped(bus, projection, Tap::default(), shutdown).await
}

/// As [`run`]; others take their messages of `EVENTS` from `tap`.
///
/// # Errors
/// As [`run`].
pub async fn run_tapped(bus: Bus, projection: Projection, tap: Tap, shutdown: Shutdown) -> Result<(), ApplyBatchError> {
    loop {
        let streams = Source::ALL.map(|source| follow(&bus, &projection, &tap, source));
        let ended = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = tell_progress(&projection) => continue,
            ended = try_join_all(streams) => ended,
        };
        match ended {
            Ok(_) | Err(ApplyBatchError::Rebuilt | ApplyBatchError::Passing(_)) => {}
            Err(ApplyBatchError::Closed) => return Err(ApplyBatchError::Closed),
        }
    }
}

/// Takes in one stream from its position on, for ever.
async fn follow(bus: &Bus, projection: &Projection, tap: &Tap, source: Source) -> Result<(), ApplyBatchError> {
    let (ordered, end) = start(bus, projection, source).await?;
    if source != Source::Events {
        return take_in(projection, source, ordered).await;
    }
    let position = projection.position(source);
    let passing = tap.begin(position, position == end);
    let (read, messages) = read_ahead();
    // Reading goes on while a batch is stored: those at the tap wait for no disk.
    tokio::select! {
        never = read_on(ordered, &passing, read) => match never {},
        ended = take_in(projection, source, messages) => ended,
    }
}

/// Takes in what comes from `messages`, for ever.
async fn take_in(projection: &Projection, source: Source, mut messages: impl Messages) -> Result<(), ApplyBatchError> {
    loop {
        let (batch, since) = gather(&mut messages, projection).await;
        let Some(last) = batch.last() else { continue };
        projection
            .0
            .lag
            .heard(source, last.sequence.saturating_add(last.pending));
        let count = batch.len();
        let decoded =
            tokio::task::spawn_blocking(move || batch.iter().map(|message| decode(source, message)).collect());
        let batch: Vec<Applied> = decoded.await.map_err(|_| ApplyBatchError::Closed)?;
        store(projection, source, Arc::new(batch)).await?;
        projection.0.lag.took_in(source, since);
        metrics::counter!("nexus_projection_messages_total", "stream" => source.stream())
            .increment(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// Waits for the stream and begins behind the position; answers where the stream ended then as well.
async fn start(bus: &Bus, projection: &Projection, source: Source) -> Result<(Ordered, u64), ApplyBatchError> {
    loop {
        let generation = projection.0.generation.load(Ordering::Acquire);
        let position = projection.position(source);
        let state = match bus.stream_state(source.stream()).await {
            Ok(state) => state,
            Err(error) => {
                tracing::debug!(stream = source.stream(), %error, "stream is not there yet");
                pause(RETRY_PAUSE).await;
                continue;
            }
        };
        if state.last < position {
            let detail = format!(
                "{} ends at {}, the file is at {position}: another server's data",
                source.stream(),
                state.last
            );
            projection
                .0
                .commands
                .send(Command::Damaged { detail, generation })
                .await
                .map_err(|_| ApplyBatchError::Closed)?;
            // Commands are taken in order: once this is answered, the positions are those of the new file.
            projection.apply(Vec::new()).await?;
            return Err(ApplyBatchError::Rebuilt);
        }
        projection
            .0
            .lag
            .heard(source, if state.messages == 0 { position } else { state.last });
        match bus.ordered(source.stream(), &[], position.saturating_add(1)).await {
            Ok(ordered) => return Ok((ordered, state.last)),
            Err(error) => {
                tracing::debug!(stream = source.stream(), %error, "stream cannot be read yet");
                pause(RETRY_PAUSE).await;
            }
        }
    }
}

/// The next messages: as many as there are, and as come within [`LINGER`] unless somebody waits for them. Answers since
/// when the read model is behind the last of them as well.
async fn gather(from: &mut impl Messages, projection: &Projection) -> (Vec<Incoming>, UnixMillis) {
    let Read { incoming, mut since } = from.next().await;
    let mut bytes = incoming.payload.len();
    let mut messages = vec![incoming];
    let mut linger = std::pin::pin!(pause(LINGER));
    while messages.len() < BATCH_MESSAGES && bytes < BATCH_BYTES {
        let wanted = projection.0.wanted.notified();
        let all_there = messages.last().is_some_and(|message| message.pending == 0);
        if all_there && projection.is_awaited() {
            break;
        }
        tokio::select! {
            read = from.next() => {
                bytes = bytes.saturating_add(read.incoming.payload.len());
                since = read.since;
                messages.push(read.incoming);
            }
            () = &mut linger => break,
            () = wanted => {}
        }
    }
    (messages, since)
}

/// Stores `batch`, however often the surroundings refuse.
pub(super) async fn store(
    projection: &Projection,
    source: Source,
    batch: Arc<Vec<Applied>>,
) -> Result<(), ApplyBatchError> {
    loop {
        match projection.apply_shared(Arc::clone(&batch)).await {
            Err(ApplyBatchError::Passing(error)) => {
                tracing::warn!(stream = source.stream(), %error, "read model cannot be written, trying again");
                pause(RETRY_PAUSE).await;
            }
            outcome @ (Ok(()) | Err(ApplyBatchError::Rebuilt | ApplyBatchError::Closed)) => return outcome,
        }
    }
}

pub(super) fn decode(source: Source, message: &Incoming) -> Applied {
    let sequence = message.sequence;
    let decoded: Result<Applied, DecodeError> = match source {
        Source::Events => message.decode().map(|event| Applied::Event {
            sequence,
            published_at: message.published_at,
            event: Box::new(event),
        }),
        Source::Invocations => message.decode().map(|record| Applied::Invocations {
            sequence,
            record: Box::new(record),
        }),
        Source::Dispatches => message.decode().map(|dispatch| Applied::Dispatch {
            sequence,
            published_at: message.published_at,
            dispatch: Box::new(dispatch),
        }),
        Source::Ledger => message.decode().map(|record| Applied::Ledger {
            sequence,
            subject: message.subject.clone(),
            session: session_of(&message.subject),
            record: Box::new(record),
        }),
        Source::Receipts => message.decode().map(|receipt| Applied::Receipt {
            sequence,
            receipt: Box::new(receipt),
        }),
    };
    decoded.unwrap_or_else(|error| {
        let event_id = message.headers.event_id(&message.subject);
        tracing::warn!(stream = source.stream(), sequence, event_id, subject = %message.subject, %error, "message cannot be read, passed over");
        metrics::counter!("nexus_projection_unreadable_total", "stream" => source.stream()).increment(1);
        Applied::Unreadable { source, sequence }
    })
}

/// The session that a ledger subject names, where its tokens are not shortened.
fn session_of(subject: &str) -> Option<SessionRef> {
    let (persona, session) = subject::parse_session(subject)?;
    Some(SessionRef {
        persona: subject::untoken(persona)?,
        session: subject::untoken(session)?,
    })
}

/// Tells how much there is still to take in, as long as it is much.
async fn tell_progress(projection: &Projection) {
    loop {
        pause(PROGRESS_EVERY).await;
        let positions = *projection.0.positions.borrow();
        let Some(behind) = projection.0.lag.messages(positions) else {
            continue;
        };
        if behind >= MUCH {
            let events = positions.of(Source::Events);
            tracing::info!(behind, events, "read model is catching up");
        }
    }
}
