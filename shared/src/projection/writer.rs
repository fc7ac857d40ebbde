//! The writer thread: applies batches in order, several of them in one transaction.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot, watch};

use super::applied::{AppliedRecord, StreamPositions};
use super::apply::health::Health;
use super::apply::people::ContactTable;
use super::apply::threads::ThreadChanges;
use super::apply::{self, AppliedWatermarks, FirstRecord};
use super::error::{ApplyBatchError, OpenProjectionError};
use super::schema;
use super::seen::SeenMessages;

/// Maximum number of batches that share one transaction.
const MAX_GROUP: usize = 16;

/// Number of messages from which on no further batch joins, because a caller that waits for a position waits for the
/// whole transaction.
const MANY: usize = 2_000;

/// Maximum number of batches that wait for the writer; further senders wait.
pub(super) const QUEUE: usize = 16;

/// Command to the writer.
pub(super) enum WriterCommand {
    /// Apply a batch of messages.
    Apply {
        batch: Arc<Vec<AppliedRecord>>,
        done: oneshot::Sender<Result<(), ApplyBatchError>>,
    },
    /// Write something in a transaction of its own, between batches.
    Write {
        work: Work,
        done: oneshot::Sender<Result<(), ApplyBatchError>>,
    },
    /// Copy the log into the file and truncate it, unless a reader keeps it open. If that succeeds, `then` runs before
    /// anything else is written.
    Shorten {
        then: AfterShortening,
        done: oneshot::Sender<Result<(), ApplyBatchError>>,
    },
    /// The file of that generation was found damaged, or built from other streams; ignored for a later generation.
    Damaged { detail: String, generation: u64 },
    /// Close the file and stop the thread.
    Close { done: oneshot::Sender<()> },
}

/// A write that does not come from a stream.
pub(super) type Work = Box<dyn FnOnce(&Connection, &mut ContactTable) -> Result<(), rusqlite::Error> + Send>;

/// What happens while the log is empty.
pub(super) type AfterShortening = Box<dyn FnOnce() + Send>;

type Waiting = (Arc<Vec<AppliedRecord>>, oneshot::Sender<Result<(), ApplyBatchError>>);

pub(super) struct ModelWriter {
    pub(super) path: PathBuf,
    pub(super) connection: Connection,
    pub(super) positions: watch::Sender<StreamPositions>,
    pub(super) seen: Arc<SeenMessages>,
    pub(super) people: ContactTable,
    /// Number of times that the file was rebuilt under its readers.
    pub(super) generation: Arc<AtomicU64>,
}

impl ModelWriter {
    /// Executes commands until [`WriterCommand::Close`], or until all senders are gone.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<WriterCommand>) {
        let mut closing = None;
        while let Some(command) = commands.blocking_recv() {
            let mut batches = Vec::new();
            let mut damage = None;
            let mut works = Vec::new();
            let mut shorten = Vec::new();
            let mut messages = 0;

            let mut next = Some(command);
            while let Some(command) = next {
                match command {
                    WriterCommand::Apply { batch, done } => {
                        messages += batch.len();
                        batches.push((batch, done));
                    }
                    WriterCommand::Write { work, done } => works.push((work, done)),
                    WriterCommand::Shorten { then, done } => shorten.push((then, done)),
                    WriterCommand::Damaged { detail, generation } => {
                        if generation == self.generation.load(Ordering::Acquire) {
                            damage = Some(detail);
                        }
                    }
                    WriterCommand::Close { done } => closing = Some(done),
                }

                let is_full = batches.len() + works.len() >= MAX_GROUP || messages >= MANY;
                // Further commands wait for the log to be truncated.
                next = if !is_full && shorten.is_empty() {
                    commands.try_recv().ok()
                } else {
                    None
                };
            }

            let handled = self.handle(batches, damage);
            let handled = handled
                .and_then(|()| self.run_works(works))
                .and_then(|()| self.checkpoint_log(shorten));
            if handled.is_err() || closing.is_some() {
                break;
            }
        }

        drop(self.connection);

        if let Some(done) = closing {
            // If the caller waits no more, the writer is closed all the same.
            let _ = done.send(());
        }
    }

    fn handle(&mut self, batches: Vec<Waiting>, damage: Option<String>) -> Result<(), OpenProjectionError> {
        let result = match damage {
            Some(detail) => Err(self.rebuild_file(&detail)?),
            None => match self.commit_batch(batches.iter().flat_map(|(batch, _)| batch.iter())) {
                Ok(()) => Ok(()),
                Err(error) if schema::is_damage(&error) => Err(self.rebuild_file(&error.to_string())?),
                Err(error) if schema::is_passing(&error) => Err(ApplyBatchError::Passing(Arc::new(error))),
                Err(_) => self.commit_singly(&batches),
            },
        };

        for (_, done) in batches {
            // A feed that was canceled meanwhile resumes at the committed position.
            let _ = done.send(result.clone());
        }

        Ok(())
    }

    /// Executes writes that do not come from a stream, each in a transaction of its own.
    fn run_works(
        &mut self,
        works: Vec<(Work, oneshot::Sender<Result<(), ApplyBatchError>>)>,
    ) -> Result<(), OpenProjectionError> {
        for (work, done) in works {
            let outcome = match self.transact(|transaction, people| work(transaction, people)) {
                Ok(()) => Ok(()),
                Err(error) if schema::is_damage(&error) => Err(self.rebuild_file(&error.to_string())?),
                Err(error) => Err(ApplyBatchError::Passing(Arc::new(error))),
            };

            // If the caller waits no more, the work is done all the same.
            let _ = done.send(outcome);
        }

        Ok(())
    }

    /// Copies the log into the file and truncates it, for each waiting caller.
    fn checkpoint_log(
        &mut self,
        waiting: Vec<(AfterShortening, oneshot::Sender<Result<(), ApplyBatchError>>)>,
    ) -> Result<(), OpenProjectionError> {
        for (then, done) in waiting {
            let outcome = match schema::checkpoint_log(&self.connection) {
                Ok(()) => {
                    then();
                    Ok(())
                }
                Err(error) if schema::is_damage(&error) => Err(self.rebuild_file(&error.to_string())?),
                Err(error) => Err(ApplyBatchError::Passing(Arc::new(error))),
            };

            // If the caller waits no more, the work is done all the same.
            let _ = done.send(outcome);
        }

        Ok(())
    }

    /// Runs `write` in one transaction. If it fails, the contacts in memory are cleared.
    fn transact<T>(
        &mut self,
        write: impl FnOnce(&Connection, &mut ContactTable) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        let people = &mut self.people;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let outcome = write(&transaction, people).and_then(|written| transaction.commit().map(|()| written));
        if outcome.is_err() {
            people.forget_stored();
        }

        outcome
    }

    fn commit_batch<'a>(&mut self, batch: impl Iterator<Item = &'a AppliedRecord>) -> Result<(), rusqlite::Error> {
        let before = *self.positions.borrow();
        let mut after = before;
        let firsts = self.transact(|transaction, people| {
            let mut firsts: Vec<FirstRecord> = Vec::new();
            let mut marks = AppliedWatermarks::default();

            let mut health = Health::default();
            let mut threads = ThreadChanges::default();
            for applied in batch {
                let (source, sequence) = applied.place();
                // A mark names the position just reached; any other message at or below its position is skipped.
                let is_mark = matches!(applied, AppliedRecord::Mark { .. }) && after.position_of(source) == sequence;
                if is_mark || !after.covers(source, sequence) {
                    firsts.extend(apply::write(transaction, people, &mut health, &mut threads, applied)?);
                    marks.note_applied(applied);
                    after.advance(source, sequence);
                }
            }

            threads.write(transaction)?;
            marks.write(transaction)?;
            health.write(transaction)?;
            apply::write_positions(transaction, before, after)?;

            Ok(firsts)
        })?;

        // Only after the commit: a failed transaction leaves nothing in memory.
        self.seen.note_committed(&firsts);
        self.positions.send_replace(after);

        Ok(())
    }

    /// Applies each message by itself, because one message that SQLite rejects must not block the others. A message
    /// that fails is skipped with a warning.
    fn commit_singly(&mut self, batches: &[Waiting]) -> Result<(), ApplyBatchError> {
        for applied in batches.iter().flat_map(|(batch, _)| batch.iter()) {
            let Err(error) = self.commit_batch(std::iter::once(applied)) else {
                continue;
            };

            let (source, sequence) = applied.place();
            let event_id = applied.event_id().map(tracing::field::display);
            tracing::warn!(stream = source.stream(), sequence, event_id, %error, "failed to project a message; skipping it");
            metrics::counter!("nexus_projection_unreadable_total", "stream" => source.stream()).increment(1);
            self.commit_batch(std::iter::once(&AppliedRecord::Unreadable { source, sequence }))
                .map_err(|error| ApplyBatchError::Passing(Arc::new(error)))?;
        }

        Ok(())
    }

    /// Discards the file and starts again at the beginning of every stream.
    fn rebuild_file(&mut self, detail: &str) -> Result<ApplyBatchError, OpenProjectionError> {
        tracing::error!(path = %self.path.display(), error = detail, "read model is damaged; rebuilding it from the streams");
        self.connection = Connection::open_in_memory().map_err(|source| OpenProjectionError::Sqlite {
            path: self.path.clone(),
            source,
        })?;

        self.connection = schema::recreate_file(&self.path)
            .inspect_err(|error| tracing::error!(%error, "failed to rebuild the read model; the writer stops"))?;
        self.people.forget_stored();
        let relinked = self.transact(|connection, people| people.relink_contacts(connection));
        relinked.map_err(|source| OpenProjectionError::Sqlite {
            path: self.path.clone(),
            source,
        })?;

        self.positions.send_replace(StreamPositions::default());
        self.generation.fetch_add(1, Ordering::Release);

        Ok(ApplyBatchError::Rebuilt)
    }
}
