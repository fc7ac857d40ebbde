//! Answers of this replica's copy of the read model to replicas without one: `nexus.svc.model.{instance}.…`.
//!
//! Each process of hooks elsewhere has a session here, with one transaction for each event, as if its host had the
//! file. A question that the copy cannot answer now (it is behind, or about to be closed) is refused at once, so that
//! another copy is asked.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use shared::bus::ServiceSpec;
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::projection::api::SearchReply;
use shared::projection::script_query::{MAX_QUERY, ModelQuery, ModelQueryError, ModelSession};
use shared::projection::search::peers::VectorsQuestion;
use shared::projection::{FeedSource, Projection, QueryProjectionError};
use shared::wire::subject::token;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::file_service::FileLender;
use super::peer_api::{
    FindFirstQuestion, FirstQuestion, FirstReply, FoundFirst, InvocationsQuestion, InvocationsReply, QueryQuestion,
    QueryReply, ReachedQuestion, ReachedReply, SERVICE, SearchQuestion,
};
use crate::runner::run_query;

/// Error code of a question that this copy cannot answer now.
const UNAVAILABLE: usize = 503;

/// Time for which a copy that is behind waits before it says so.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time limit for reaching a given end of `EVENTS`.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Most queries that run at once.
const AT_ONCE: usize = 8;

/// Most of them that are of processes whose queries are slow: hooks of one author must not take the turns of all others.
const SLOW_AT_ONCE: usize = AT_ONCE / 2;

/// Duration from which on a query is slow. Shorter ones free their turns so soon that those who wait get one in time.
const SLOW: Duration = Duration::from_millis(250);

/// Time for which a process counts as slow after such a query.
const SLOW_FOR: Duration = Duration::from_secs(10);

/// Lag from which on the copy does not say whether an event is new: shorter than the server's duplicate window, in
/// which repetitions are recognised without it.
const MAX_LAG: Duration = Duration::from_secs(60);

/// Time after which the session of a process that asks no more is closed.
const UNUSED: Duration = Duration::from_secs(5);

/// Interval at which old transactions are ended.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// This replica's copy, as others ask it.
#[derive(Debug)]
pub(crate) struct CopyService {
    projection: Projection,
    clock: SharedClock,
    sessions: Mutex<HashMap<String, IdleSession>>,
    turns: Semaphore,
    slow_turns: Semaphore,
    /// Processes that count as slow, each with the time until which it does.
    slow: Mutex<HashMap<String, Instant>>,
    lender: Arc<FileLender>,
}

/// A turn for a query; others may have it when it is dropped.
struct QueryTurn<'a> {
    /// One of the few for processes whose queries are slow, if the query is of one.
    _slow: Option<SemaphorePermit<'a>>,
    _turn: SemaphorePermit<'a>,
}

/// A session that answers nothing at the moment.
#[derive(Debug)]
struct IdleSession {
    session: ModelSession,
    used_at: Instant,
}

impl CopyService {
    /// Returns the service over `projection`.
    pub(crate) fn new(projection: Projection, clock: SharedClock) -> Arc<Self> {
        Arc::new(Self {
            lender: FileLender::new(projection.clone(), Arc::clone(&clock)),
            projection,
            clock,
            sessions: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            slow_turns: Semaphore::new(SLOW_AT_ONCE),
            slow: Mutex::default(),
        })
    }

    /// Returns the endpoints at the replica `instance`.
    pub(crate) fn service_spec(self: &Arc<Self>, instance: &str) -> ServiceSpec {
        let spec = ServiceSpec::new(SERVICE, "the copy of the read model of one replica").of_instance(token(instance));
        let (query, reached, first) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let (find_first, invocations, search) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let vectors = Arc::clone(self);

        let spec = self.lender.add_endpoints(spec);
        spec.raw_endpoint("query", move |question: QueryQuestion| {
            let copy = Arc::clone(&query);
            async move { Ok(Bytes::from(copy.answer_query(question).await.to_bytes())) }
        })
        .raw_endpoint("vectors", move |question: VectorsQuestion| {
            let copy = Arc::clone(&vectors);
            async move { copy.answer_vectors(question).await }
        })
        .endpoint("reached", move |question: ReachedQuestion| {
            let copy = Arc::clone(&reached);
            async move { Ok(copy.answer_reached(&question).await) }
        })
        .endpoint("first", move |question: FirstQuestion| {
            let copy = Arc::clone(&first);
            async move { copy.answer_first(&question) }
        })
        .endpoint("find_first", move |question: FindFirstQuestion| {
            let copy = Arc::clone(&find_first);
            async move { copy.answer_find_first(&question).await }
        })
        .endpoint("search", move |question: SearchQuestion| {
            let copy = Arc::clone(&search);
            async move { copy.answer_search(question).await }
        })
        .endpoint("invocations", move |question: InvocationsQuestion| {
            let copy = Arc::clone(&invocations);
            async move {
                let found = copy.projection.invocations(question.hook, question.limit).await;
                let invocations = found.map_err(|error| unavailable(&error))?;
                Ok(InvocationsReply { invocations })
            }
        })
    }

    /// Ends old transactions, unused sessions and loans; never returns.
    pub(crate) async fn end_old(&self) {
        loop {
            pause(LOOK_EVERY).await;
            let now = self.clock.monotonic();
            self.sessions().retain(|_, idle| {
                idle.session.end_old(|_| true);
                now.saturating_duration_since(idle.used_at) < UNUSED
            });
            self.slow().retain(|_, until| *until > now);
            self.lender.end_old();
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, IdleSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slow(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for up to [`PATIENCE`] for a turn for a query of the process `asker`; a process that is slow needs one of a few as well.
    /// Returns `None` if there is none in time.
    async fn take_turn(&self, asker: &str) -> Option<QueryTurn<'_>> {
        let now = self.clock.monotonic();
        let is_slow = self.slow().get(asker).is_some_and(|until| *until > now);
        let turn = async {
            let slow = match is_slow {
                true => Some(self.slow_turns.acquire().await.ok()?),
                false => None,
            };
            Some(QueryTurn {
                _slow: slow,
                _turn: self.turns.acquire().await.ok()?,
            })
        };
        tokio::time::timeout(PATIENCE, turn).await.ok().flatten()
    }

    /// Waits a moment for the copy to reach `sequence`; returns whether it has.
    async fn has_reached(&self, sequence: u64) -> bool {
        let reached = self.projection.wait_reached(FeedSource::Events, sequence);
        matches!(tokio::time::timeout(PATIENCE, reached).await, Ok(Ok(())))
    }

    async fn answer_query(&self, question: QueryQuestion) -> QueryReply {
        let QueryQuestion { asker, query, at_least } = question;
        if !self.has_reached(at_least).await {
            return QueryReply::Away(self.describe_lag(at_least));
        }
        let Some(_turn) = self.take_turn(&asker).await else {
            return QueryReply::Away("the copy is busy".to_owned());
        };

        // A process waits for each answer; one that asks again before has asked another copy meanwhile.
        let idle = self.sessions().remove(&asker);
        let session = idle.map_or_else(|| self.new_session(), |idle| idle.session);
        let began = self.clock.monotonic();
        let until = began + MAX_QUERY;
        // The sequence names the event, and thereby the evaluation, of which a process has one for each event.
        let evaluation = (query.sequence & u64::from(u32::MAX)) as u32;
        let query = ModelQuery {
            sequence: at_least,
            ..query
        };
        let Some(ran) = run_query(session, evaluation, query, (until, MAX_QUERY)).await else {
            return QueryReply::Away("the query failed".to_owned());
        };

        let used_at = self.clock.monotonic();
        if used_at.saturating_duration_since(began) >= SLOW {
            self.slow().insert(asker.clone(), used_at + SLOW_FOR);
        }
        let idle = IdleSession {
            session: ran.session,
            used_at,
        };
        self.sessions().insert(asker, idle);
        match ran.outcome {
            // An earlier transaction may be of a state before the one that the asker has seen elsewhere.
            Ok(_) if ran.position < at_least => QueryReply::Away("the transaction is older".to_owned()),
            Ok(body) => QueryReply::Page(ran.position, body),
            Err(ModelQueryError::Unavailable(text)) => QueryReply::Away(text),
            Err(error) => QueryReply::Failed(error),
        }
    }

    fn new_session(&self) -> ModelSession {
        ModelSession::new(PathBuf::from(self.projection.path()), Arc::clone(&self.clock))
    }

    async fn answer_reached(&self, question: &ReachedQuestion) -> ReachedReply {
        if question.beyond > 0 {
            self.has_reached(question.beyond.saturating_add(1)).await;
        }
        ReachedReply {
            position: self.projection.position(FeedSource::Events),
            building: !self.projection.is_caught_up(),
        }
    }

    fn answer_first(&self, question: &FirstQuestion) -> Result<FirstReply, (usize, String)> {
        let lag = self.projection.lag(self.clock.now());
        if lag.is_none_or(|lag| lag > MAX_LAG) {
            return Err((UNAVAILABLE, "the copy is too far behind".to_owned()));
        }

        let events = question.events.iter();
        let is_first = events.map(|(id, sequence)| self.projection.is_first(id, *sequence));
        let is_first: Result<Vec<bool>, QueryProjectionError> = is_first.collect();
        Ok(FirstReply {
            is_first: is_first.map_err(|error| unavailable(&error))?,
        })
    }

    async fn answer_search(&self, question: SearchQuestion) -> Result<SearchReply, (usize, String)> {
        let SearchQuestion { request, at_least } = question;
        if !self.has_reached(at_least).await {
            return Err((UNAVAILABLE, self.describe_lag(at_least)));
        }
        let found = self.projection.search(request).await;
        found.map_err(|error| unavailable(&error))
    }

    async fn answer_vectors(&self, question: VectorsQuestion) -> Result<Bytes, (usize, String)> {
        let model = question.model.clone();
        let lent = self.projection.lend_vectors(question).await;
        let lent = lent.map_err(|error| unavailable(&error))?;
        let reply = lent.ok_or_else(|| (UNAVAILABLE, format!("the copy does not embed with `{model}`")))?;
        Ok(Bytes::from(reply.to_bytes()))
    }

    fn describe_lag(&self, at_least: u64) -> String {
        let position = self.projection.position(FeedSource::Events);
        format!("the copy is at event {position}, before {at_least}")
    }

    async fn answer_find_first(&self, question: &FindFirstQuestion) -> Result<FoundFirst, (usize, String)> {
        let found = find_first(&self.projection, question, CATCH_UP).await;
        found.map_err(|error| (UNAVAILABLE, error))
    }
}

/// Finds where an event occurred first, once `projection` has reached the end of `EVENTS` that `question` names.
///
/// # Errors
/// Returns the reason why that cannot be told.
pub(crate) async fn find_first(
    projection: &Projection,
    question: &FindFirstQuestion,
    patience: Duration,
) -> Result<FoundFirst, String> {
    let reached = projection.wait_reached(FeedSource::Events, question.reached);
    match tokio::time::timeout(patience, reached).await {
        Ok(reached) => reached.map_err(|error| describe_error(&error))?,
        Err(_) => return Err(format!("the read model has not reached sequence {}", question.reached)),
    }

    // A stream that was put back shows only once the feed has compared it: the mark tells of which one the file is.
    let mark = projection.stream_position(FeedSource::Events);
    let sequence = projection.first_sequence(&question.id);
    Ok(FoundFirst {
        mark: mark.map_err(|error| describe_error(&error))?,
        sequence: sequence.map_err(|error| describe_error(&error))?,
    })
}

fn unavailable(error: &QueryProjectionError) -> (usize, String) {
    (UNAVAILABLE, describe_error(error))
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use shared::clock::SystemClock;

    use super::*;

    /// Runs until it is interrupted.
    const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

    fn question(asker: &str, sql: &str) -> QueryQuestion {
        QueryQuestion {
            asker: asker.to_owned(),
            query: serde_json::from_value(serde_json::json!({ "sql": sql })).expect("a query"),
            at_least: 0,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn processes_whose_queries_are_slow_leave_turns_to_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let projection = Projection::open(&folder.path().join("read.db")).expect("it opens");
        let copy = CopyService::new(projection, Arc::new(SystemClock));
        let askers: Vec<String> = (0..AT_ONCE).map(|number| format!("h-{number}/7")).collect();
        let ask_endlessly = async || {
            let asked = askers.iter().map(|asker| copy.answer_query(question(asker, ENDLESS)));
            join_all(asked).await
        };

        // Nobody knows them yet, so all run.
        let timed_out = QueryReply::Failed(ModelQueryError::TimedOut);
        assert!(ask_endlessly().await.iter().all(|reply| *reply == timed_out));

        // From now on some of them are sent away, and another process is answered.
        let other_process = async {
            for number in 0..5 {
                let reply = copy.answer_query(question("h-0/8", "SELECT 1")).await;
                assert!(matches!(reply, QueryReply::Page(..)), "{number}: {reply:?}");
                pause(Duration::from_millis(50)).await;
            }
        };
        let (replies, ()) = tokio::join!(ask_endlessly(), other_process);
        let ran = replies.iter().filter(|reply| **reply == timed_out).count();
        assert!(ran < AT_ONCE, "{replies:?}");
    }
}
