//! The read model: the streams as SQLite tables, for hook scripts (`dbPath`), for `nexus trace`, and to reject events
//! whose id occurred before.
//!
//! It holds no data of its own. The streams are the record, so a file that is missing, damaged or of another schema is
//! rebuilt from them. Two rules keep the file equal to the streams after any failure:
//!
//! * the position in each stream is committed in the transaction of the rows that came from it, and a message at or
//!   below its position is skipped, so a message counts once;
//! * each table is written from one stream only, so the order in which the streams are read has no effect.
//!
//! One thread writes, a small pool of connections reads; with WAL they do not wait for each other. The file belongs to
//! one process. Source: `docs/design/hooks.md` §5.

pub mod api;
mod applied;
mod apply;
mod backlog;
mod error;
pub mod feed;
pub mod given_up;
mod invocations;
mod lag;
mod progress;
mod query;
mod read_ahead;
mod readers;
mod schema;
pub mod script_query;
pub mod search;
mod seen;
pub mod snapshot;
pub mod step;
mod trace;
mod turns;
mod write_faults;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub use applied::{AppliedRecord, FeedSource, StreamPositions};
pub use apply::hooks::ListedHook;
pub use backlog::Backlog;
pub use error::{ApplyBatchError, FreezeFileError, OpenProjectionError, QueryProjectionError};

use crate::model::event::EventId;
use crate::model::hook_api::InvocationRow;
use crate::model::identity::Identities;
use crate::model::time::UnixMillis;
use api::{
    EventTrace, FindReply, FindRequest, HistoryReply, HistoryRequest, ThreadsReply, ThreadsRequest, TraceRequest,
};
use apply::people::ContactTable;
use backlog::SeenEvents;
use given_up::GivenUp;
use lag::FeedLag;
use readers::ReaderPool;
use search::SearchIndex;
use seen::{SeenMessages, SeenVerdict};
use snapshot::OpenedFiles;
use write_faults::WriteFaults;
use writer::{AfterShortening, ModelWriter, WriterCommand};

/// The read model of one process. Clones share it; the writer stops with the last of them.
#[derive(Debug, Clone)]
pub struct Projection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    commands: mpsc::Sender<WriterCommand>,
    positions: watch::Receiver<StreamPositions>,
    /// Number of times that the file was rebuilt while open.
    generation: Arc<AtomicU64>,
    readers: ReaderPool,
    seen: Arc<SeenMessages>,
    lag: FeedLag,
    faults: WriteFaults,
    backlog: Mutex<SeenEvents>,
    search: SearchIndex,
    /// Number of callers that wait for a position: while there are any, a batch is applied without waiting for it to
    /// fill.
    waiting: AtomicUsize,
    /// Number of copies of the file that are being made.
    copying: AtomicUsize,
    /// The file as it is read for others, beside SQLite.
    raw: OpenedFiles,
    wanted: Notify,
    /// Whether batches may be as large, and so as late, as [`Projection::set_caught_up`] says.
    caught_up: AtomicBool,
}

impl Projection {
    /// Opens the file at `path` (and creates its directory). A file that is absent, damaged or of another schema is
    /// created again, and the streams must then be read from the beginning.
    ///
    /// # Errors
    /// Returns [`OpenProjectionError`] if the directory, the file or the thread cannot be created.
    pub fn open(path: &Path) -> Result<Self, OpenProjectionError> {
        let opened = schema::open_writer(path)?;
        if let Some(reason) = &opened.discarded {
            tracing::warn!(path = %path.display(), reason, "read model discarded; rebuilding it from the streams");
        }

        // A new file has no ids, so its filter is complete from the start.
        let empty = opened.positions == StreamPositions::default();
        let seen = Arc::new(SeenMessages::new(empty));
        let generation = Arc::new(AtomicU64::new(0));
        let (positions, watched) = watch::channel(opened.positions);
        let (commands, queue) = mpsc::channel(writer::QUEUE);

        // One thread writes, in the order of the commands: SQLite allows only one writer anyway.
        let writer = ModelWriter {
            path: path.to_path_buf(),
            connection: opened.connection,
            positions,
            seen: Arc::clone(&seen),
            people: ContactTable::default(),
            generation: Arc::clone(&generation),
        };

        spawn("projection-writer", move || writer.run(queue))?;

        // Until the ids of the file are in the filter, every id is looked up in the file.
        if !empty {
            let (path, seen) = (path.to_path_buf(), Arc::clone(&seen));
            spawn("projection-ids", move || admit_known(&path, &seen))?;
        }

        Ok(Self(Arc::new(Inner {
            path: path.to_path_buf(),
            commands,
            positions: watched,
            readers: ReaderPool::new(path.to_path_buf(), Arc::clone(&generation)),
            generation,
            seen,
            lag: FeedLag::default(),
            faults: WriteFaults::default(),
            backlog: Mutex::default(),
            search: SearchIndex::default(),
            waiting: AtomicUsize::new(0),
            copying: AtomicUsize::new(0),
            raw: OpenedFiles::default(),
            wanted: Notify::new(),
            caught_up: AtomicBool::new(false),
        })))
    }

    /// Path of the file, which scripts open read-only.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the size of the write-ahead log beside the file, in bytes. It grows beyond some tens of megabytes only
    /// while a reader keeps an old state open, because the log cannot be restarted before that reader ends.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        std::fs::metadata(schema::side_file(&self.0.path, "-wal")).map_or(0, |log| log.len())
    }

    /// Applies `batch` in one transaction, including its positions. The messages of one stream must be in order; those
    /// at or below its position are skipped.
    ///
    /// # Errors
    /// Returns [`ApplyBatchError`]; no part of the batch is stored then.
    pub async fn apply(&self, batch: Vec<AppliedRecord>) -> Result<(), ApplyBatchError> {
        self.apply_shared(Arc::new(batch)).await
    }

    async fn apply_shared(&self, batch: Arc<Vec<AppliedRecord>>) -> Result<(), ApplyBatchError> {
        self.send_command(|done| WriterCommand::Apply { batch, done }).await
    }

    /// Sends a command to the writer, and waits until it is done.
    async fn send_command(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), ApplyBatchError>>) -> WriterCommand,
    ) -> Result<(), ApplyBatchError> {
        let (done, outcome) = oneshot::channel();
        self.0
            .commands
            .send(command(done))
            .await
            .map_err(|_| ApplyBatchError::Closed)?;

        outcome.await.unwrap_or(Err(ApplyBatchError::Closed))
    }

    /// Replaces the identities: persons, their contacts and links are written again, including those of contacts met
    /// before. `now` is the creation time of new persons.
    ///
    /// # Errors
    /// Returns [`ApplyBatchError`]; the file keeps its former identities then.
    pub async fn set_identities(&self, identities: Identities, now: UnixMillis) -> Result<(), ApplyBatchError> {
        self.write(move |connection, people| {
            people.set_identities(identities, now);
            people.relink_contacts(connection)
        })
        .await
    }

    /// Replaces the registry's hooks by `hooks`.
    ///
    /// # Errors
    /// Returns [`ApplyBatchError`]; the file keeps its former hooks then.
    pub async fn list_hooks(&self, hooks: Vec<ListedHook>) -> Result<(), ApplyBatchError> {
        self.write(move |connection, _| apply::hooks::list(connection, &hooks))
            .await
    }

    /// Lets the writer do `work` in a transaction of its own.
    async fn write(
        &self,
        work: impl FnOnce(&Connection, &mut ContactTable) -> Result<(), rusqlite::Error> + Send + 'static,
    ) -> Result<(), ApplyBatchError> {
        let work = Box::new(work);
        self.send_command(|done| WriterCommand::Write { work, done }).await
    }

    /// Copies the log beside the file into the file and truncates it, as far as no reader keeps an older state open.
    ///
    /// # Errors
    /// Returns [`ApplyBatchError`]: `Passing` if a reader does.
    pub async fn shorten_log(&self) -> Result<(), ApplyBatchError> {
        self.shorten_then(Box::new(|| {})).await
    }

    /// As [`Self::shorten_log`]; if it succeeds, `then` runs while the log is still empty.
    async fn shorten_then(&self, then: AfterShortening) -> Result<(), ApplyBatchError> {
        self.send_command(|done| WriterCommand::Shorten { then, done }).await
    }

    /// Returns whether the message `sequence` of `EVENTS` is the first occurrence of `id`, as far as the projection
    /// has come. Called for every event, so new ids are decided in memory.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub fn is_first(&self, id: &EventId, sequence: u64) -> Result<bool, QueryProjectionError> {
        match self.0.seen.recall(seen::fingerprint(id.as_str())) {
            SeenVerdict::Absent => Ok(true),
            SeenVerdict::Recent(first) if first == sequence => Ok(true),
            SeenVerdict::Recent(_) | SeenVerdict::Unknown => {
                let first = self.read(|connection| query::first_sequence(connection, id.as_str()))?;
                Ok(first.is_none_or(|first| first >= sequence))
            }
        }
    }

    /// Returns the stream sequence of the first occurrence of `id`, or `None` if it has not occurred, as far as the
    /// projection has come.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub fn first_sequence(&self, id: &EventId) -> Result<Option<u64>, QueryProjectionError> {
        match self.0.seen.recall(seen::fingerprint(id.as_str())) {
            SeenVerdict::Absent => Ok(None),
            SeenVerdict::Recent(_) | SeenVerdict::Unknown => {
                self.read(|connection| query::first_sequence(connection, id.as_str()))
            }
        }
    }

    /// Returns whether event `id` certainly has no record among the messages of `INVOCATIONS` up to `through`. Returns
    /// false if it has one, if the read model has not come that far, or if it had to skip a record. (A server that
    /// lost the stream's end and has grown beyond it again cannot be told from one that has not.)
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn has_no_record(&self, id: &EventId, through: u64) -> Result<bool, QueryProjectionError> {
        let id = id.clone();
        self.run_query(move |connection| query::has_no_record(connection, id.as_str(), through))
            .await
    }

    /// Returns the events that match `request`, the newest first.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn find(&self, request: FindRequest) -> Result<FindReply, QueryProjectionError> {
        self.run_query(move |connection| query::find(connection, &request))
            .await
    }

    /// Returns the end of a conversation.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn history(&self, request: HistoryRequest) -> Result<HistoryReply, QueryProjectionError> {
        self.run_query(move |connection| query::read_history(connection, &request))
            .await
    }

    /// Returns the threads of a conversation, the one with the newest event first.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn threads(&self, request: ThreadsRequest) -> Result<ThreadsReply, QueryProjectionError> {
        self.run_query(move |connection| query::threads(connection, &request))
            .await
    }

    /// Returns the last `limit` invocations of the hook `hook_id` that did more than pass, the newest first.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn invocations(&self, hook_id: String, limit: u32) -> Result<Vec<InvocationRow>, QueryProjectionError> {
        self.run_query(move |connection| invocations::of_hook(connection, &hook_id, limit))
            .await
    }

    /// Returns every step that an event led to.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn trace(&self, request: TraceRequest, given_up: GivenUp) -> Result<EventTrace, QueryProjectionError> {
        self.run_query(move |connection| trace::trace_event(connection, request.event_id.as_str(), given_up))
            .await
    }

    /// Stops the writer and closes the file; applied messages are stored. Other clones can still be queried.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.0.commands.send(WriterCommand::Close { done }).await.is_ok() {
            // An error means that the writer has stopped already, which is the purpose of this call.
            let _ = closed.await;
        }
    }

    async fn run_query<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, QueryProjectionError> {
        let projection = self.clone();
        tokio::task::spawn_blocking(move || projection.read(question))
            .await
            .unwrap_or(Err(QueryProjectionError::Closed))
    }

    fn read<T>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, QueryProjectionError> {
        let generation = self.0.generation.load(Ordering::Acquire);
        self.0.readers.with(question).map_err(|error| {
            if schema::is_damage(&error) {
                // If the queue is full, the writer will find the damage itself, or the next reader reports it.
                let _ = self.0.commands.try_send(WriterCommand::Damaged {
                    detail: error.to_string(),
                    generation,
                });
            }

            QueryProjectionError::Sqlite(error)
        })
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), OpenProjectionError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
        .map_err(OpenProjectionError::Thread)
}

/// Adds the ids of the file to the filter. The writer adds the ids that it applies meanwhile.
fn admit_known(path: &Path, seen: &SeenMessages) {
    let admit = || -> Result<(), rusqlite::Error> {
        let connection = schema::open_reader(path)?;
        let mut statement = connection.prepare("SELECT id FROM events")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            seen.note_stored(seen::fingerprint(row.get_ref(0)?.as_str()?));
        }

        Ok(())
    };

    match admit() {
        Ok(()) => seen.mark_complete(),
        Err(error) => tracing::warn!(%error, "failed to list known event ids; looking up each id"),
    }
}

#[cfg(test)]
mod tests;
