//! The readers of one process of hooks: a transaction for each evaluation that asks.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::limits::Limit;
use rusqlite::{Connection, InterruptHandle};

use super::{MAX_PAGE_BYTES, MAX_QUERY, ModelPage, ModelQuery, ModelQueryError, bind_parameters, check, read_rows};
use crate::clock::SharedClock;
use crate::projection::schema;

/// Most evaluations of one session that have a transaction at once; that of a further one ends the oldest.
pub const MAX_OPEN: usize = 8;

/// Ends the query that a session is at, from elsewhere.
#[derive(Default)]
pub struct QueryStop(Mutex<Option<InterruptHandle>>);

// By hand: the handle of SQLite has no `Debug`.
impl std::fmt::Debug for QueryStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryStop").finish_non_exhaustive()
    }
}

impl QueryStop {
    /// Ends the query that runs now; one that begins later is not touched.
    pub fn interrupt(&self) {
        if let Some(handle) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.interrupt();
        }
    }

    /// Aims at the query that runs on `connection`.
    fn aim(&self, connection: &Connection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.get_interrupt_handle());
    }
}

/// Readers of the file, one for each evaluation that has asked within the last second. Blocking.
#[derive(Debug)]
pub struct ModelSession {
    path: PathBuf,
    clock: SharedClock,
    /// By evaluation, the oldest transaction first.
    open: Vec<ReadTransaction>,
    /// A reader without a transaction, for the next evaluation.
    idle: Option<Reader>,
    stop: Arc<QueryStop>,
}

/// The transaction that one evaluation reads from.
#[derive(Debug)]
struct ReadTransaction {
    evaluation: u32,
    began: Instant,
    /// Sequence of the last message of `EVENTS` that it sees.
    position: u64,
    reader: Reader,
}

/// A connection that only reads.
#[derive(Debug)]
struct Reader {
    connection: Connection,
    /// Which file it has open, by device and number: another one may have taken its place since.
    file: (u64, u64),
}

impl ModelSession {
    /// Of the file at `path`, which is opened when something is asked.
    #[must_use]
    pub fn new(path: PathBuf, clock: SharedClock) -> Self {
        Self {
            path,
            clock,
            open: Vec::new(),
            idle: None,
            stop: Arc::default(),
        }
    }

    /// Returns the handle that ends its queries.
    #[must_use]
    pub fn stop(&self) -> Arc<QueryStop> {
        Arc::clone(&self.stop)
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Ends the transactions that have lasted for [`MAX_QUERY`] and those whose evaluation is over. Returns after how long
    /// the next has lasted so long; none if no transaction is open any more.
    pub fn end_old(&mut self, is_under_way: impl Fn(u32) -> bool) -> Option<Duration> {
        let now = self.clock.monotonic();
        let age = |transaction: &ReadTransaction| now.saturating_duration_since(transaction.began);
        let is_old =
            |transaction: &ReadTransaction| age(transaction) >= MAX_QUERY || !is_under_way(transaction.evaluation);

        while let Some(at) = self.open.iter().position(is_old) {
            self.end_transaction(at);
        }

        self.open.first().map(|first| MAX_QUERY.saturating_sub(age(first)))
    }

    /// Returns the sequence of the last message of `EVENTS` that the transaction of `evaluation` sees; `None` if it has
    /// none.
    #[must_use]
    pub fn position_of(&self, evaluation: u32) -> Option<u64> {
        let of = |transaction: &&ReadTransaction| transaction.evaluation == evaluation;
        self.open.iter().find(of).map(|transaction| transaction.position)
    }

    /// Answers `query` in the transaction of `evaluation`, which begins again if it is too old.
    ///
    /// # Errors
    /// [`ModelQueryError`].
    pub fn run_query(
        &mut self,
        evaluation: u32,
        query: &ModelQuery,
        until: Instant,
    ) -> Result<ModelPage, ModelQueryError> {
        check(&query.sql)?;

        let at = self.begin_transaction(evaluation, query)?;
        let connection = &self.open[at].reader.connection;
        self.stop.aim(connection);

        let mut statement = connection.prepare_cached(&query.sql)?;
        if !statement.readonly() {
            return Err(ModelQueryError::Refused("this statement writes".to_owned()));
        }

        bind_parameters(&mut statement, query)?;
        read_rows(&mut statement, query, || self.clock.monotonic() >= until)
    }

    /// Where the transaction of `evaluation` is.
    fn begin_transaction(&mut self, evaluation: u32, query: &ModelQuery) -> Result<usize, ModelQueryError> {
        let now = self.clock.monotonic();
        // All queries on one event see one state, so they share a transaction.
        let of = |transaction: &ReadTransaction| transaction.evaluation == evaluation;
        if let Some(at) = self.open.iter().position(of) {
            if now.saturating_duration_since(self.open[at].began) < MAX_QUERY {
                return Ok(at);
            }
            self.end_transaction(at);
        }

        if query.skip > 0 {
            // Rows of another state would be passed over.
            return Err(ModelQueryError::TimedOut);
        }

        // The oldest transaction ends: it keeps the log of the file from being cut.
        if self.open.len() >= MAX_OPEN {
            self.end_transaction(0);
        }

        let reader = self.reader()?;
        reader.connection.execute_batch("BEGIN")?;
        let has: i64 = reader
            .connection
            .prepare_cached("SELECT coalesce(max(sequence), 0) FROM nexus_positions WHERE stream = 'EVENTS'")?
            .query_row([], |row| row.get(0))?;

        self.open.push(ReadTransaction {
            evaluation,
            began: now,
            position: has.cast_unsigned(),
            reader,
        });
        let at = self.open.len() - 1;
        // A script must find the event that it is called with.
        if self.open[at].position < query.sequence {
            self.end_transaction(at);
            return Err(ModelQueryError::Unavailable("it has not taken in the event".to_owned()));
        }

        Ok(at)
    }

    /// A reader of the file that is at the path now.
    fn reader(&mut self) -> Result<Reader, ModelQueryError> {
        let metadata = std::fs::metadata(&self.path);
        let metadata = metadata.map_err(|error| ModelQueryError::Unavailable(error.to_string()))?;
        let file = (metadata.dev(), metadata.ino());

        if let Some(idle) = self.idle.take().filter(|idle| idle.file == file) {
            return Ok(idle);
        }

        let connection = schema::open_reader(&self.path)?;
        limit_connection(&connection)?;
        Ok(Reader { connection, file })
    }

    /// Ends the transaction at `at`. Its reader is kept for the next if it is the only one.
    fn end_transaction(&mut self, at: usize) {
        let ReadTransaction { reader, .. } = self.open.remove(at);
        if reader.connection.execute_batch("ROLLBACK").is_ok() {
            self.idle = Some(reader);
        }
    }
}

/// Bounds the bytes that SQLite holds of one value, and keeps the connection from other files.
fn limit_connection(connection: &Connection) -> Result<(), ModelQueryError> {
    let most = i32::try_from(MAX_PAGE_BYTES).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, most)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::projection::Projection;

    fn query(sql: &str) -> ModelQuery {
        serde_json::from_value(serde_json::json!({ "sql": sql })).expect("a query")
    }

    #[test]
    fn each_evaluation_reads_its_own_state_and_a_ninth_ends_the_oldest() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.sqlite");
        let _projection = Projection::open(&path).expect("a read model");
        let writer = Connection::open(&path).expect("a writer");
        let clock: SharedClock = Arc::new(SystemClock);
        let mut session = ModelSession::new(path, Arc::clone(&clock));
        let until = clock.monotonic() + MAX_QUERY;
        let tables = query("SELECT count(*) FROM sqlite_schema");
        let mut count = |evaluation| {
            let page = session.run_query(evaluation, &tables, until).expect("answered");
            format!("{:?}", page.rows)
        };

        let first = count(0);
        for evaluation in 1..u32::try_from(MAX_OPEN).expect("few") {
            writer
                .execute_batch(&format!("CREATE TABLE own{evaluation}(a)"))
                .expect("written");
            assert_ne!(count(evaluation), first, "it began later");
            assert_eq!(count(0), first, "nobody else ends its transaction");
        }

        count(100);
        assert_ne!(count(0), first, "it began again");
        assert!(session.is_open());
        assert_eq!(session.end_old(|_| false), None);
        assert!(!session.is_open());
    }
}
