//! Feeding the read model: one ordered reader per stream, batches, decoding off the runtime's threads. The reader of
//! `EVENTS` passes its messages on to the owners of partitions in the same process ([`StreamTap`]).
//!
//! No message can stop it: one that cannot be decoded is counted and skipped. It waits for the resources that it
//! cannot do without (the server, room on the disk). If the file was rebuilt, or a stream is not the one whose message
//! the file's position names, all streams are read from the beginning. This is checked at the start and after every
//! reconnect.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::applied::{AppliedRecord, FeedSource};
use super::error::ApplyBatchError;
use super::read_ahead::{AheadMessages, ReadResult, read_ahead, read_on};
use super::{Projection, WriterCommand};
use crate::bus::position::{told_sound, told_void};
use crate::bus::{Bus, IncomingMessage, OrderedReader, StreamTap};
use crate::clock::pause;
use crate::model::approval::SessionDecision;
use crate::model::order::SessionOrder;
use crate::model::position::{PositionStanding, StreamPosition};
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;
use crate::process::ShutdownSignal;
use crate::wire::envelope::WireMessage as _;
use crate::wire::headers::SCHEMA;
use crate::wire::seal::{ReadEventError, TrustKeys};
use crate::wire::subject;

/// Maximum number of messages of one stream in one batch. Batches become this large only if there is a backlog or much
/// load; the more rows a transaction has, the fewer times it writes the same pages.
pub(super) const BATCH_MESSAGES: usize = 6_000;

/// Maximum payload of one batch, in bytes (one message may be larger).
pub(super) const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Time for which a batch waits to fill while no caller waits for its position.
const LINGER: Duration = Duration::from_millis(50);

/// The same for a batch that had [`BUSY_MESSAGES`] within [`LINGER`]: nearly half of the writer's time are commits, which write
/// each page that a transaction has changed.
const BUSY_LINGER: Duration = Duration::from_millis(500);

/// The same in a read model that has caught up ([`Projection::set_caught_up`]).
const CAUGHT_UP_LINGER: Duration = Duration::from_secs(2);

/// Number of messages from which on a batch counts as one under load.
const BUSY_MESSAGES: usize = 16;

/// Pause before a retry: the stream does not exist yet, the disk has no room.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Interval at which progress is logged while there is a large backlog.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Backlog from which progress is logged, in messages.
const MUCH: u64 = 10_000;

/// Feeds `projection` until `shutdown`. Messages applied by then are stored.
///
/// # Errors
/// Returns [`ApplyBatchError::Closed`] if the writer has stopped: the process cannot continue without it.
pub async fn run(bus: Bus, projection: Projection, shutdown: ShutdownSignal) -> Result<(), ApplyBatchError> {
    run_tapped(bus, projection, StreamTap::default(), shutdown).await
}

/// As [`run`], with `tap` as the source of `EVENTS` for owners of partitions.
///
/// # Errors
/// As [`run`].
pub async fn run_tapped(
    bus: Bus,
    projection: Projection,
    tap: StreamTap,
    shutdown: ShutdownSignal,
) -> Result<(), ApplyBatchError> {
    let mut connections = bus.connections();
    loop {
        connections.count_from_now();
        let streams = FeedSource::ALL.map(|source| follow_source(&bus, &projection, &tap, source));
        let ended = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = tell_progress(&projection) => continue,
            () = connections.stands_anew() => continue,
            ended = try_join_all(streams) => ended,
        };

        match ended {
            Ok(_) | Err(ApplyBatchError::Rebuilt | ApplyBatchError::Passing(_)) => {}
            Err(ApplyBatchError::Closed) => return Err(ApplyBatchError::Closed),
        }
    }
}

/// Applies one stream from its position on. Returns only with an error.
async fn follow_source(
    bus: &Bus,
    projection: &Projection,
    tap: &StreamTap,
    source: FeedSource,
) -> Result<(), ApplyBatchError> {
    let StartedSource {
        ordered,
        end,
        incarnation,
    } = start(bus, projection, source).await?;
    // The batch that could not be stored may be of a stream that is gone.
    if projection.position(source) >= end {
        projection.note_written(source);
    }

    if source != FeedSource::Events {
        return take_in(bus, projection, source, &incarnation, ordered).await;
    }

    let position = projection.position(source);
    let passing = tap.begin_behind(position, position == end);
    projection.begin_backlog(position);
    let (read, messages) = read_ahead();

    // Reading continues while a batch is stored, so that takers at the tap do not wait for the disk.
    tokio::select! {
        never = read_on(ordered, &passing, read, |incoming| projection.note_seen(incoming)) => match never {},
        ended = take_in(bus, projection, source, &incarnation, messages) => ended,
    }
}

/// A stream whose reading is about to start.
struct StartedSource {
    ordered: OrderedReader,
    /// Last sequence of the stream at that time.
    end: u64,
    incarnation: String,
}

/// Applies `messages`, of the stream's `incarnation`. Returns only with an error.
async fn take_in(
    bus: &Bus,
    projection: &Projection,
    source: FeedSource,
    incarnation: &str,
    mut messages: impl AheadMessages,
) -> Result<(), ApplyBatchError> {
    loop {
        let GatheredBatch {
            messages: batch,
            arrived,
            since,
        } = gather_batch(&mut messages, projection).await;
        let Some(last) = batch.last() else { continue };
        let end = last.sequence.saturating_add(last.pending);
        let positions = *projection.0.positions.borrow();
        projection.0.lag.note_arrived(source, end, arrived, positions);

        // The position is part of the same transaction as the messages: both or neither.
        let count = batch.len();
        let position = StreamPosition {
            incarnation: incarnation.to_owned(),
            sequence: last.sequence,
            stored_at_ns: last.stored_at_ns,
        };

        // Decoding a batch takes long, and this thread also renews leases.
        let trust = Arc::clone(bus.trust());
        let decoded =
            tokio::task::spawn_blocking(move || batch.iter().map(|message| decode(source, message, &trust)).collect());
        let mut batch: Vec<AppliedRecord> = decoded.await.map_err(|_| ApplyBatchError::Closed)?;
        batch.push(AppliedRecord::Mark { source, position });
        store_batch(projection, source, Arc::new(batch)).await?;
        projection.0.lag.took_in(source, since);
        metrics::counter!("nexus_projection_messages_total", "stream" => source.stream())
            .increment(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// Returns the reason why the rows of `source` come from another stream than the current one, or `None` if the file's
/// position is valid in it.
async fn find_difference(
    bus: &Bus,
    projection: &Projection,
    source: FeedSource,
    last: u64,
) -> Result<Option<String>, String> {
    let position = projection.position(source);
    let stream = source.stream();
    let mark = projection.stream_position(source).map_err(|error| error.to_string())?;

    let what = format!("read model's {stream}");
    if last < position {
        let void = mark.unwrap_or_else(|| StreamPosition {
            sequence: position,
            ..StreamPosition::default()
        });
        told_void(&what, stream, &void, "the stream ends before it");
        return Ok(Some(format!("{stream} ends at {last}, the file is at {position}")));
    }

    // A file without a position to compare counts as valid.
    let Some(mark) = mark.filter(|mark| mark.sequence <= position) else {
        told_sound(&what);
        return Ok(None);
    };
    match bus
        .check_position(stream, &mark)
        .await
        .map_err(|error| error.to_string())?
    {
        PositionStanding::Holds => {
            told_sound(&what);
            Ok(None)
        }
        PositionStanding::Void(why) => {
            told_void(&what, stream, &mark, why);
            Ok(Some(format!("position {} of {stream}: {why}", mark.sequence)))
        }
    }
}

/// Waits until the stream exists, and starts to read after the position.
async fn start(bus: &Bus, projection: &Projection, source: FeedSource) -> Result<StartedSource, ApplyBatchError> {
    loop {
        // Read before the position, so that a rebuild in between is noticed.
        let generation = projection.0.generation.load(Ordering::Acquire);
        let position = projection.position(source);
        let asked = async {
            let info = bus
                .stream_info(source.stream())
                .await
                .map_err(|error| error.to_string())?;
            let difference = find_difference(bus, projection, source, info.state.last).await?;
            Ok::<_, String>((info, difference))
        };

        let (info, difference) = match asked.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(stream = source.stream(), error, "stream does not exist yet");
                pause(RETRY_PAUSE).await;
                continue;
            }
        };

        let state = info.state;

        // The stream was restored or created again: rows of messages that no longer exist must go.
        if let Some(detail) = difference {
            projection
                .0
                .commands
                .send(WriterCommand::Damaged { detail, generation })
                .await
                .map_err(|_| ApplyBatchError::Closed)?;

            // Commands are executed in order: after this one, the positions are those of the new file.
            projection.apply(Vec::new()).await?;
            return Err(ApplyBatchError::Rebuilt);
        }

        projection
            .0
            .lag
            .note_end(source, if state.messages == 0 { position } else { state.last });

        match bus.read_ordered(source.stream(), &[], position.saturating_add(1)).await {
            Ok(ordered) => {
                return Ok(StartedSource {
                    ordered,
                    end: state.last,
                    incarnation: info.incarnation,
                });
            }
            Err(error) => {
                tracing::debug!(stream = source.stream(), %error, "failed to read a stream; retrying");
                pause(RETRY_PAUSE).await;
            }
        }
    }
}

/// Messages that are stored together.
struct GatheredBatch {
    messages: Vec<IncomingMessage>,
    /// Time since which the read model lacks the first of them.
    arrived: UnixMillis,
    /// Time since which it lacks the message after the last of them.
    since: UnixMillis,
}

/// Collects the next messages: those that are there, and those that arrive within [`LINGER`], or under load within
/// [`BUSY_LINGER`] or [`CAUGHT_UP_LINGER`], unless a caller waits for them.
async fn gather_batch(from: &mut impl AheadMessages, projection: &Projection) -> GatheredBatch {
    let ReadResult { incoming, mut since } = from.next().await;
    let arrived = since;
    let mut bytes = incoming.payload.len();
    let mut messages = vec![incoming];

    let mut linger = std::pin::pin!(pause(LINGER));
    let mut is_extended = false;
    while messages.len() < BATCH_MESSAGES && bytes < BATCH_BYTES {
        // Registered before the check, so that a new waiter is not missed.
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
            () = &mut linger => {
                if is_extended || messages.len() < BUSY_MESSAGES {
                    break;
                }
                let whole = if projection.is_caught_up() { CAUGHT_UP_LINGER } else { BUSY_LINGER };
                linger.set(pause(whole.saturating_sub(LINGER)));
                is_extended = true;
            }
            () = wanted => {}
        }
    }

    GatheredBatch {
        messages,
        arrived,
        since,
    }
}

/// Stores `batch`, with as many retries as the environment requires.
pub(super) async fn store_batch(
    projection: &Projection,
    source: FeedSource,
    batch: Arc<Vec<AppliedRecord>>,
) -> Result<(), ApplyBatchError> {
    loop {
        match projection.apply_shared(Arc::clone(&batch)).await {
            Err(ApplyBatchError::Passing(error)) => {
                projection.note_unwritten(source, &error.to_string());
                pause(RETRY_PAUSE).await;
            }
            outcome @ (Ok(()) | Err(ApplyBatchError::Rebuilt | ApplyBatchError::Closed)) => {
                projection.note_written(source);
                return outcome;
            }
        }
    }
}

/// Decodes `message`. An event that `trust` does not admit is skipped like a message that cannot be decoded.
pub(super) fn decode(source: FeedSource, message: &IncomingMessage, trust: &TrustKeys) -> AppliedRecord {
    let sequence = message.sequence;
    let decoded: Result<AppliedRecord, ReadEventError> = match source {
        FeedSource::Events => message.read_event(trust).map(|event| AppliedRecord::Event {
            sequence,
            published_at: message.published_at,
            event,
        }),
        FeedSource::Invocations => {
            message
                .decode()
                .map_err(ReadEventError::from)
                .map(|record| AppliedRecord::Invocations {
                    sequence,
                    record: Box::new(record),
                })
        }
        FeedSource::Dispatches if is_for_the_broker_alone(message) => Ok(AppliedRecord::Beside { source, sequence }),
        FeedSource::Dispatches => {
            message
                .decode()
                .map_err(ReadEventError::from)
                .map(|dispatch| AppliedRecord::Dispatch {
                    sequence,
                    published_at: message.published_at,
                    dispatch: Box::new(dispatch),
                })
        }
        FeedSource::Ledger => message
            .decode_known_entries()
            .map_err(ReadEventError::from)
            .map(|record| AppliedRecord::Ledger {
                sequence,
                subject: message.subject.clone(),
                session: session_of(&message.subject),
                record: Box::new(record),
            }),
        FeedSource::Receipts => message
            .decode()
            .map_err(ReadEventError::from)
            .map(|receipt| AppliedRecord::Receipt {
                sequence,
                receipt: Box::new(receipt),
            }),
    };

    decoded.unwrap_or_else(|error| {
        let event_id = message.headers.event_id();
        tracing::warn!(stream = source.stream(), sequence, event_id, subject = %message.subject, %error, "message skipped by the read model");
        metrics::counter!("nexus_projection_unreadable_total", "stream" => source.stream()).increment(1);
        AppliedRecord::Unreadable { source, sequence }
    })
}

/// Returns whether `message` is an order to a session or a decision of an approval, which are stored among the
/// dispatches; their outcome is in the ledger.
fn is_for_the_broker_alone(message: &IncomingMessage) -> bool {
    let schema = message.headers.get(SCHEMA).and_then(|schema| schema.split('/').next());
    schema.is_some_and(|schema| [SessionOrder::SCHEMA, SessionDecision::SCHEMA].contains(&schema))
}

/// Returns the session that a ledger subject names, if its tokens are not shortened.
fn session_of(subject: &str) -> Option<SessionRef> {
    let (persona, session) = subject::parse_session(subject)?;
    Some(SessionRef {
        persona: subject::untoken(persona)?,
        session: subject::untoken(session)?,
    })
}

/// Logs the size of the backlog while it is large.
async fn tell_progress(projection: &Projection) {
    loop {
        pause(PROGRESS_EVERY).await;
        let Some(behind) = projection.remaining_messages() else {
            continue;
        };

        if behind >= MUCH {
            let events = projection.position(FeedSource::Events);
            tracing::info!(behind, events, "read model is catching up");
        }
    }
}
