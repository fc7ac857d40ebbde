//! The read model: the streams as SQLite tables, for hook scripts (`dbPath`), for `nexus trace`, and to refuse
//! events whose id occurred before.
//!
//! It holds nothing of its own: the streams are the record, so a file that is missing, damaged or of
//! another schema is made anew from them. Two things keep it equal to them whatever happens:
//!
//! * the position in each stream is committed in the transaction of the rows that came from it, and a
//!   message at or below its position is passed over, so a message counts once;
//! * each table is written from one stream only, so the order in which streams are read cannot show.
//!
//! One thread writes, a small pool of connections reads; WAL lets them not wait for each other. The file
//! belongs to one process. Source: `hooks.md` "Read model".

pub mod api;
mod applied;
mod apply;
pub mod asked;
mod error;
pub mod feed;
pub mod given_up;
mod invocations;
mod lag;
mod query;
mod read_ahead;
mod readers;
mod schema;
pub mod search;
mod seen;
pub mod snapshot;
pub mod step;
mod trace;
mod turns;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub use applied::{Applied, Positions, Source};
pub use apply::hooks::ListedHook;
pub use error::{ApplyBatchError, OpenProjectionError, QueryProjectionError};

use crate::model::event::EventId;
use crate::model::hook_api::InvocationRow;
use crate::model::identity::Identities;
use crate::model::position::Position;
use crate::model::time::UnixMillis;
use api::{FindReply, FindRequest, HistoryReply, HistoryRequest, ThreadsReply, ThreadsRequest, Trace, TraceRequest};
use apply::people::People;
use given_up::GivenUp;
use lag::Lag;
use readers::Readers;
use search::Search;
use seen::{Recall, Seen};
use writer::{Command, Writer};

/// The read model of one process. Clones share it; the writer stops with the last of them.
#[derive(Debug, Clone)]
pub struct Projection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    commands: mpsc::Sender<Command>,
    positions: watch::Receiver<Positions>,
    /// Counts how often the file was made anew while open.
    generation: Arc<AtomicU64>,
    readers: Readers,
    seen: Arc<Seen>,
    lag: Lag,
    search: Search,
    /// How many wait for a position: as long as somebody does, batches are not waited for to fill.
    waiting: AtomicUsize,
    /// A copy of the file is being made.
    copying: AtomicBool,
    wanted: Notify,
}

impl Projection {
    /// Opens the file at `path` (and makes its directory); one that is absent, damaged or of another schema is
    /// made anew, and the streams are to be read from the beginning.
    ///
    /// # Errors
    /// [`OpenProjectionError`] where directory, file or thread cannot be had.
    pub fn open(path: &Path) -> Result<Self, OpenProjectionError> {
        let opened = schema::open_writer(path)?;
        if let Some(reason) = &opened.discarded {
            tracing::warn!(path = %path.display(), reason, "read model was discarded, rebuilding it from the streams");
        }

        let empty = opened.positions == Positions::default();
        let seen = Arc::new(Seen::new(empty));
        let generation = Arc::new(AtomicU64::new(0));
        let (positions, watched) = watch::channel(opened.positions);
        let (commands, queue) = mpsc::channel(writer::QUEUE);

        let writer = Writer {
            path: path.to_path_buf(),
            connection: opened.connection,
            positions,
            seen: Arc::clone(&seen),
            people: People::default(),
            generation: Arc::clone(&generation),
        };

        spawn("projection-writer", move || writer.run(queue))?;

        if !empty {
            let (path, seen) = (path.to_path_buf(), Arc::clone(&seen));
            spawn("projection-ids", move || admit_known(&path, &seen))?;
        }

        Ok(Self(Arc::new(Inner {
            path: path.to_path_buf(),
            commands,
            positions: watched,
            readers: Readers::new(path.to_path_buf(), Arc::clone(&generation)),
            generation,
            seen,
            lag: Lag::default(),
            search: Search::default(),
            waiting: AtomicUsize::new(0),
            copying: AtomicBool::new(false),
            wanted: Notify::new(),
        })))
    }

    /// The file, as scripts open it (read-only).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Size of the write-ahead log beside the file, bytes. It grows beyond some tens of megabytes only while a reader
    /// keeps an old state open: as long as it does, the log cannot be begun anew.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        std::fs::metadata(schema::beside(&self.0.path, "-wal")).map_or(0, |log| log.len())
    }

    /// Takes in `batch` in one transaction, its positions with it. Messages of one stream must come in
    /// order; those at or below its position are passed over.
    ///
    /// # Errors
    /// [`ApplyBatchError`]; nothing of the batch is stored then.
    pub async fn apply(&self, batch: Vec<Applied>) -> Result<(), ApplyBatchError> {
        self.apply_shared(Arc::new(batch)).await
    }

    async fn apply_shared(&self, batch: Arc<Vec<Applied>>) -> Result<(), ApplyBatchError> {
        self.tell(|done| Command::Apply { batch, done }).await
    }

    /// Tells the writer, and waits until it has done it.
    async fn tell(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), ApplyBatchError>>) -> Command,
    ) -> Result<(), ApplyBatchError> {
        let (done, outcome) = oneshot::channel();
        self.0
            .commands
            .send(command(done))
            .await
            .map_err(|_| ApplyBatchError::Closed)?;

        outcome.await.unwrap_or(Err(ApplyBatchError::Closed))
    }

    /// From now on `identities` says who is who: persons, their contacts and links are written anew, of contacts met
    /// before too. `now` dates persons that are new.
    ///
    /// # Errors
    /// [`ApplyBatchError`]; what the file said before still stands then.
    pub async fn identify(&self, identities: Identities, now: UnixMillis) -> Result<(), ApplyBatchError> {
        self.write(move |connection, people| {
            people.learn(identities, now);
            people.relink(connection)
        })
        .await
    }

    /// The registry holds these hooks now, in the place of all before.
    ///
    /// # Errors
    /// [`ApplyBatchError`]; what the file said before still stands then.
    pub async fn list_hooks(&self, hooks: Vec<ListedHook>) -> Result<(), ApplyBatchError> {
        self.write(move |connection, _| apply::hooks::list(connection, &hooks))
            .await
    }

    /// Has `work` done by the writer in a transaction of its own.
    async fn write(
        &self,
        work: impl FnOnce(&Connection, &mut People) -> Result<(), rusqlite::Error> + Send + 'static,
    ) -> Result<(), ApplyBatchError> {
        let work = Box::new(work);
        self.tell(|done| Command::Write { work, done }).await
    }

    /// Copies the log beside the file into it and cuts it off, as far as nobody reads what was before.
    ///
    /// # Errors
    /// [`ApplyBatchError`]: `Passing` where somebody does.
    pub async fn shorten_log(&self) -> Result<(), ApplyBatchError> {
        self.tell(|done| Command::Shorten { done }).await
    }

    /// Sequence of the last message of `source` that is taken in, 0 = none: resume after it.
    #[must_use]
    pub fn position(&self, source: Source) -> u64 {
        self.0.positions.borrow().of(source)
    }

    /// Which message the position of `source` names; none where the file does not say.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub fn mark(&self, source: Source) -> Result<Option<Position>, QueryProjectionError> {
        self.read(|connection| query::mark(connection, source))
    }

    /// Waits until the message `sequence` of `source` is taken in.
    ///
    /// # Errors
    /// [`QueryProjectionError::Closed`] where that will not happen any more.
    pub async fn reached(&self, source: Source, sequence: u64) -> Result<(), QueryProjectionError> {
        let mut positions = self.0.positions.clone();
        if positions.borrow().covers(source, sequence) {
            return Ok(());
        }

        let _waiting = Waiting::new(&self.0);
        positions
            .wait_for(|positions| positions.covers(source, sequence))
            .await
            .map(drop)
            .map_err(|_| QueryProjectionError::Closed)
    }

    /// Whether nothing more will be taken in.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.positions.has_changed().is_err()
    }

    /// Whether somebody waits for a position now.
    fn is_awaited(&self) -> bool {
        self.0.waiting.load(Ordering::Acquire) > 0
    }

    /// How far the projection is behind the stream that it is furthest behind of, at `now`; none = not known,
    /// because a stream's end was not heard of yet.
    #[must_use]
    pub fn lag(&self, now: UnixMillis) -> Option<Duration> {
        self.0.lag.at(*self.0.positions.borrow(), now)
    }

    /// Whether the message `sequence` of `EVENTS` is the first occurrence of `id`, as far as the projection has
    /// come. Asked for every event: new ids are answered from memory.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub fn is_first(&self, id: &EventId, sequence: u64) -> Result<bool, QueryProjectionError> {
        match self.0.seen.recall(seen::fingerprint(id.as_str())) {
            Recall::Absent => Ok(true),
            Recall::Recent(first) if first == sequence => Ok(true),
            Recall::Recent(_) | Recall::Unknown => {
                let first = self.read(|connection| query::first_sequence(connection, id.as_str()))?;
                Ok(first.is_none_or(|first| first >= sequence))
            }
        }
    }

    /// Stream sequence of the first occurrence of `id`; none = not seen, as far as the projection has come.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub fn first_sequence(&self, id: &EventId) -> Result<Option<u64>, QueryProjectionError> {
        match self.0.seen.recall(seen::fingerprint(id.as_str())) {
            Recall::Absent => Ok(None),
            Recall::Recent(_) | Recall::Unknown => {
                self.read(|connection| query::first_sequence(connection, id.as_str()))
            }
        }
    }

    /// Whether event `id` has no record among the messages of `INVOCATIONS` up to `through`, for certain: false where it
    /// has one, where the read model has not come that far, and where it had to pass a record over. (A server that lost
    /// the stream's end and has grown beyond it again cannot be told from one that has not.)
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub async fn has_no_record(&self, id: &EventId, through: u64) -> Result<bool, QueryProjectionError> {
        let id = id.clone();
        self.ask(move |connection| query::has_no_record(connection, id.as_str(), through))
            .await
    }

    /// Events that fit, the newest first.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub async fn find(&self, request: FindRequest) -> Result<FindReply, QueryProjectionError> {
        self.ask(move |connection| query::find(connection, &request)).await
    }

    /// The end of a conversation.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub async fn history(&self, request: HistoryRequest) -> Result<HistoryReply, QueryProjectionError> {
        self.ask(move |connection| query::history(connection, &request)).await
    }

    /// Returns the threads of a conversation, the one that was written in last first.
    ///
    /// # Errors
    /// [`QueryProjectionError`] if the file cannot be read.
    pub async fn threads(&self, request: ThreadsRequest) -> Result<ThreadsReply, QueryProjectionError> {
        self.ask(move |connection| query::threads(connection, &request)).await
    }

    /// The last `limit` invocations of the hook `hook_id` that did more than pass, the newest first.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub async fn invocations(&self, hook_id: String, limit: u32) -> Result<Vec<InvocationRow>, QueryProjectionError> {
        self.ask(move |connection| invocations::of_hook(connection, &hook_id, limit))
            .await
    }

    /// Everything that an event led to.
    ///
    /// # Errors
    /// [`QueryProjectionError`] where the file cannot be read.
    pub async fn trace(&self, request: TraceRequest, given_up: GivenUp) -> Result<Trace, QueryProjectionError> {
        self.ask(move |connection| trace::trace(connection, request.event_id.as_str(), given_up))
            .await
    }

    /// Stops the writer and closes the file; what was applied is stored. Other clones answer questions still.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.0.commands.send(Command::Close { done }).await.is_ok() {
            // An error says that the writer has gone already, which is what is wanted.
            let _ = closed.await;
        }
    }

    async fn ask<T: Send + 'static>(
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
                // Where the queue is full, the writer is about to find the damage itself, or the next reader tells.
                let _ = self.0.commands.try_send(Command::Damaged {
                    detail: error.to_string(),
                    generation,
                });
            }

            QueryProjectionError::Sqlite(error)
        })
    }
}

/// Somebody waits, as long as this lives.
struct Waiting<'a>(&'a Inner);

impl<'a> Waiting<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.waiting.fetch_add(1, Ordering::AcqRel);
        inner.wanted.notify_waiters();
        Self(inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), OpenProjectionError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
        .map_err(OpenProjectionError::Thread)
}

/// Puts the ids of the file into the filter. Ids that the writer takes in meanwhile it puts in itself.
fn admit_known(path: &Path, seen: &Seen) {
    let admit = || -> Result<(), rusqlite::Error> {
        let connection = schema::open_reader(path)?;
        let mut statement = connection.prepare("SELECT id FROM events")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            seen.admit(seen::fingerprint(row.get_ref(0)?.as_str()?));
        }

        Ok(())
    };

    match admit() {
        Ok(()) => seen.complete(),
        Err(error) => tracing::warn!(%error, "known event ids cannot be listed, every id will be looked up"),
    }
}

#[cfg(test)]
mod tests;
