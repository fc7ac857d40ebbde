//! Scripts' queries of the read model.
//!
//! A process asks by a frame and blocks until the answer is in a pipe of its own, so it has one query at a time; a
//! process that sends a second one is killed. Only the host knows whether it owes an answer: for that time its
//! standstill is not held against it, while the term of its evaluation goes on.

use std::collections::HashMap;
use std::io::PipeWriter;
use std::sync::Arc;
use std::time::Duration;

use shared::clock::pause;
use shared::projection::script_query::{MAX_QUERY, ModelQuery, ModelQueryError, ModelSession};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;

use super::{Run, State, WorkerDeath};
use crate::runner::in_flight::ImpossibleAnswer;
use crate::runner::model_source::{AskedQuery, PeerAnswer, run_query};
use crate::runner::protocol::{self, QueryFrame};

/// Most bytes, and most time of the host, for all queries of one evaluation.
const MAX_BYTES: usize = 64 * 1024 * 1024;
const MAX_TIME: Duration = Duration::from_secs(5);

/// State of a process's query.
#[derive(Debug, Default)]
pub(super) enum QueryState {
    /// There is no query.
    #[default]
    Nothing,
    /// The process has sent a query, for the event of this slot if one is under way.
    Asked(Option<u32>, Box<ModelQuery>),
    /// The host is running the query.
    Open,
    /// The answer is being written.
    Answered,
}

impl QueryState {
    /// Returns whether the host owes the process an answer.
    pub(super) const fn is_open(&self) -> bool {
        match self {
            Self::Asked(..) | Self::Open => true,
            Self::Nothing | Self::Answered => false,
        }
    }
}

/// Bytes and time that an evaluation's queries have used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    bytes: usize,
    time: Duration,
}

/// Answer to a query as a frame, its size, the time that counts, and the session for the next query.
struct Done {
    session: ModelSession,
    frame: Vec<u8>,
    bytes: usize,
    time: Duration,
}

impl State<'_> {
    /// Accepts a query of the process. Fails if the previous one is not answered.
    pub(super) fn queue_query(&mut self, frame: QueryFrame) -> Result<(), ImpossibleAnswer> {
        match self.query {
            QueryState::Nothing => {}
            QueryState::Asked(..) | QueryState::Open | QueryState::Answered => return Err(ImpossibleAnswer::Query),
        }

        let QueryFrame {
            opened,
            slot,
            mut query,
        } = frame;
        let under_way = |slot: i64| {
            u32::try_from(slot)
                .ok()
                .filter(|slot| self.in_flight.contains_key(slot))
        };
        let evaluation = under_way(opened)
            .or_else(|| under_way(slot))
            .or_else(|| self.in_flight.keys().min().copied());

        // The host, not the process, determines how current an answer must be.
        let flight = evaluation.and_then(|slot| self.in_flight.get(&slot));
        query.sequence = flight.map_or(0, |flight| flight.job().sequence);
        self.query = QueryState::Asked(evaluation, Box::new(query));

        Ok(())
    }
}

impl Run<'_> {
    /// Answers the queries of the process for as long as it lives.
    pub(super) async fn answer_queries(&self, pipe: PipeWriter, pid: u32) -> Result<(), WorkerDeath> {
        let mut pipe = Sender::from_owned_fd(pipe.into()).map_err(WorkerDeath::Pipe)?;
        let mut session = self.new_session();

        let mut used: HashMap<u32, Used> = HashMap::new();
        loop {
            let Some((evaluation, query)) = self.take_query(&mut used) else {
                session = self.await_query(session).await;
                continue;
            };

            // The limits belong to one event, and count over all its hooks.
            let spent = evaluation.and_then(|slot| used.get(&slot)).copied().unwrap_or_default();
            let done = match (evaluation, query_refusal(evaluation, spent)) {
                (Some(slot), None) if self.common.model.is_local(query.sequence) => {
                    self.answer_query(session, slot, *query).await
                }
                (Some(_), None) => self.ask_peers(session, pid, *query).await,
                (_, refused) => {
                    let error = refused.unwrap_or_else(|| ModelQueryError::Unavailable("no event".to_owned()));
                    refuse_query(session, &error)
                }
            };

            if let Some(slot) = evaluation {
                let used = used.entry(slot).or_default();
                used.bytes = used.bytes.saturating_add(done.bytes);
                used.time += done.time;
            }

            session = done.session;
            self.state().query = QueryState::Answered;

            // If the process has exited, there is no reader; another loop notices that.
            if pipe.write_all(&done.frame).await.is_err() {
                std::future::pending::<()>().await;
            }

            self.state().query = QueryState::Nothing;
        }
    }

    fn new_session(&self) -> ModelSession {
        ModelSession::new((*self.common.db_path).into(), Arc::clone(self.clock))
    }

    /// Returns the waiting query, if there is one, and forgets the usage of evaluations that are over.
    fn take_query(&self, used: &mut HashMap<u32, Used>) -> Option<(Option<u32>, Box<ModelQuery>)> {
        let mut state = self.state();
        used.retain(|slot, _| state.in_flight.contains_key(slot));
        if !state.query.is_open() {
            return None;
        }
        match std::mem::replace(&mut state.query, QueryState::Open) {
            QueryState::Asked(slot, query) => Some((slot, query)),
            QueryState::Nothing | QueryState::Open | QueryState::Answered => None,
        }
    }

    /// Ends old transactions and waits for the next query. A transaction ends with its evaluation, or when it is as old
    /// as a query may take: it keeps the write-ahead log from being restarted.
    async fn await_query(&self, mut session: ModelSession) -> ModelSession {
        // Each takes a few microseconds, because nothing was written in it.
        let left = session.end_old(|evaluation| self.state().in_flight.contains_key(&evaluation));
        match left {
            None => self.asked.notified().await,
            Some(left) => {
                tokio::select! {
                    () = self.asked.notified() => {}
                    () = pause(left) => {}
                }
            }
        }

        session
    }

    /// Runs `query` on a thread of its own, after others of the same author.
    async fn answer_query(&self, session: ModelSession, slot: u32, query: ModelQuery) -> Done {
        let begun = self.clock.monotonic();
        let until = begun + MAX_QUERY;
        let turn = Arc::clone(&self.common.queries).acquire_owned();
        let turn = tokio::select! {
            turn = turn => turn.ok(),
            () = pause(MAX_QUERY) => None,
        };

        let Some(turn) = turn else {
            let refused = refuse_query(session, &ModelQueryError::TimedOut);
            return Done {
                time: MAX_QUERY,
                ..refused
            };
        };

        // The process may end meanwhile; the query still runs to its end, and keeps its turn.
        let left = until.saturating_duration_since(self.clock.monotonic());
        let task = tokio::spawn(async move {
            let ran = run_query(session, slot, query, (until, left)).await;
            drop(turn);
            ran
        });

        let done = match task.await {
            Ok(Some(ran)) => match ran.outcome {
                Ok(body) => page_answer(ran.session, &body),
                Err(error) => refuse_query(ran.session, &error),
            },
            Ok(None) | Err(_) => {
                let error = ModelQueryError::Unavailable("the query failed".to_owned());
                refuse_query(self.new_session(), &error)
            }
        };

        Done {
            time: self.clock.monotonic().saturating_duration_since(begun),
            ..done
        }
    }

    /// Lets another replica's copy answer `query`. The wait for a copy is not the script's.
    async fn ask_peers(&self, session: ModelSession, process: u32, query: ModelQuery) -> Done {
        match self.common.model.ask_peers(AskedQuery { process, query }).await {
            Ok(PeerAnswer { body, took }) => Done {
                time: took,
                ..page_answer(session, &body)
            },
            Err(error) => refuse_query(session, &error),
        }
    }
}

/// Returns the answer with the page `body`.
fn page_answer(session: ModelSession, body: &[u8]) -> Done {
    let mut frame = Vec::new();
    protocol::write_body(&mut frame, body);
    Done {
        session,
        frame,
        bytes: body.len(),
        time: Duration::ZERO,
    }
}

/// Returns the error for a query of an evaluation that has used `used`, if it may make no more.
fn query_refusal(evaluation: Option<u32>, used: Used) -> Option<ModelQueryError> {
    if evaluation.is_none() {
        let why = "queries are allowed only while an event is evaluated";
        return Some(ModelQueryError::Unavailable(why.to_owned()));
    }
    if used.bytes >= MAX_BYTES {
        return Some(ModelQueryError::TooLarge(
            "queries on this event have read 64 MiB, the most allowed",
        ));
    }
    (used.time >= MAX_TIME).then_some(ModelQueryError::TooLarge(
        "queries on this event have taken 5 s, the most allowed",
    ))
}

fn refuse_query(session: ModelSession, error: &ModelQueryError) -> Done {
    let mut frame = Vec::new();
    protocol::write_message(
        &mut frame,
        &serde_json::json!({"error": [error.code(), error.to_string()]}),
    );

    Done {
        session,
        frame,
        bytes: 0,
        time: Duration::ZERO,
    }
}
