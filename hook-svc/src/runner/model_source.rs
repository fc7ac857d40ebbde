//! The read model as the workers' queries reach it: a file of this process, or the copies of other replicas.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use shared::projection::script_query::{ModelPage, ModelQuery, ModelQueryError, ModelSession};

use shared::clock::pause;

/// Interval at which a query that is over its time is interrupted.
const INTERRUPT_EVERY: Duration = Duration::from_millis(20);

/// A query of one process of hooks.
#[derive(Debug, Clone)]
pub struct AskedQuery {
    /// Number of the process on this host.
    pub process: u32,
    /// The query; its `sequence` also names the evaluation, of which a process has one for each event.
    pub query: ModelQuery,
}

/// Answer of another replica's copy.
#[derive(Debug)]
pub struct PeerAnswer {
    /// The answer as JSON: `{"page": …}`.
    pub body: Vec<u8>,
    /// Time that the copy needed, without the wait for one.
    pub took: Duration,
}

/// Decides where the workers' queries are answered, and answers those that this process cannot.
#[async_trait]
pub trait ModelSource: std::fmt::Debug + Send + Sync {
    /// Returns whether this process's file answers queries that need the event `sequence`.
    fn is_local(&self, sequence: u64) -> bool;

    /// Asks a copy elsewhere, and waits for one if none answers.
    ///
    /// # Errors
    /// Returns [`ModelQueryError`]: that of the query, or `Unavailable` if no copy answers in time.
    async fn ask_peers(&self, asked: AskedQuery) -> Result<PeerAnswer, ModelQueryError>;
}

/// The file of this process alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnFile;

#[async_trait]
impl ModelSource for OwnFile {
    fn is_local(&self, _sequence: u64) -> bool {
        true
    }

    async fn ask_peers(&self, _asked: AskedQuery) -> Result<PeerAnswer, ModelQueryError> {
        Err(ModelQueryError::Unavailable("there is no other copy".to_owned()))
    }
}

/// A query that has run.
#[derive(Debug)]
pub(crate) struct RunQuery {
    pub(crate) session: ModelSession,
    /// The answer as JSON, `{"page": …}`, or the error.
    pub(crate) outcome: Result<Vec<u8>, ModelQueryError>,
    /// Sequence of the last event that the query's transaction sees; 0 if it has none.
    pub(crate) position: u64,
}

/// Runs `query` in the transaction of `evaluation`, on a thread of its own, until it is done or interrupted, `left` from
/// now, which is at `until`. Returns `None` if it panics.
pub(crate) async fn run_query(
    mut session: ModelSession,
    evaluation: u32,
    query: ModelQuery,
    (until, left): (Instant, Duration),
) -> Option<RunQuery> {
    let stop = session.stop();
    // SQLite blocks, so the query has a thread of its own; it can only be interrupted from here.
    let mut working = tokio::task::spawn_blocking(move || {
        let outcome = session
            .run_query(evaluation, &query, until)
            .map(|page| page_body(&page));
        RunQuery {
            position: session.position_of(evaluation).unwrap_or(0),
            session,
            outcome,
        }
    });

    let mut wait = left;
    loop {
        tokio::select! {
            done = &mut working => return done.ok(),
            // An interrupt that comes between two statements has no effect: it is repeated.
            () = pause(wait) => {
                stop.interrupt();
                wait = INTERRUPT_EVERY;
            }
        }
    }
}

/// Returns `page` as the JSON that scripts' processes read.
fn page_body(page: &ModelPage) -> Vec<u8> {
    #[derive(serde::Serialize)]
    struct Paged<'a> {
        page: &'a ModelPage,
    }

    let mut body = Vec::with_capacity(page.bytes + 64);
    // Writing JSON of plain values to memory cannot fail.
    let written = serde_json::to_writer(&mut body, &Paged { page });
    debug_assert!(written.is_ok());

    body
}
