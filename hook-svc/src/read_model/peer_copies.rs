//! The copies of the read model that other replicas keep, as a replica without one asks them.
//!
//! Questions change nothing, so a question that is not answered soon is asked of the next copy as well, and the first
//! answer counts. An answer is never older than the event: the copy compares its own position in the transaction of the
//! answer, and says that it is away if it is behind.

mod following;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::{Bus, RequestError};
use shared::clock::{SharedClock, pause};
use shared::projection::script_query::{ModelQuery, ModelQueryError};
use shared::wire::headers::Headers;
use shared::wire::subject::token;
use tokio::sync::watch;

use super::peer_api::{QueryQuestion, QueryReply, subject_of};

/// Time without an answer after which the next copy is asked as well.
const HEDGE: Duration = Duration::from_millis(150);

/// Time limit for one copy's answer to a query, which itself may take a second.
const ANSWER: Duration = Duration::from_millis(1_500);

/// Time for which a script waits for a copy that can answer it, while one is near the streams' ends.
const FIND_COPY: Duration = Duration::from_secs(10);

/// Time for which it waits while all copies that answer are being built: one may have the event, and be busy.
const FIND_BUILT: Duration = Duration::from_secs(2);

/// Pause between two rounds of questions while no copy answers.
const AGAIN: Duration = Duration::from_millis(50);

/// Time for which a copy that did not answer is asked last.
const SUSPECT: Duration = Duration::from_secs(2);

/// Time after which positions of transactions are forgotten: a transaction lasts a second.
const REMEMBERED: Duration = Duration::from_secs(5);

/// Reason why no copy has answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskCopyError {
    /// No replica keeps a copy.
    #[error("no replica keeps a copy of the read model")]
    NoCopy,
    /// None of the copies answered in time; contains the last error.
    #[error("no copy of the read model has answered: {0}")]
    NoAnswer(String),
}

/// Copies of other replicas; clones share the knowledge of them.
#[derive(Debug, Clone)]
pub(crate) struct PeerCopies(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bus: Bus,
    clock: SharedClock,
    /// This replica, a token.
    me: String,
    /// Names of the replicas that hold the slots for copies.
    holders: watch::Receiver<Vec<String>>,
    state: Mutex<PeerState>,
    /// Highest sequence of `EVENTS` that someone waits for.
    wanted: watch::Sender<u64>,
    /// Number of evaluations that wait for a sequence.
    waiting: AtomicUsize,
    /// Sequence of `EVENTS` that a copy is known to have reached.
    reached: watch::Sender<u64>,
    /// Whether a copy has answered lately.
    answers: watch::Sender<bool>,
    /// Number of scripts' questions that were given up because no copy answered at all, or all are being built.
    unanswered: AtomicUsize,
}

#[derive(Debug, Default)]
struct PeerState {
    /// Copies that did not answer, by token, each with the time until which they are asked last.
    suspects: HashMap<String, Instant>,
    /// Time when a copy last said that it is near the streams' ends.
    near_at: Option<Instant>,
    /// Positions of the transactions of processes, by process and event.
    positions: HashMap<(u32, u64), (u64, Instant)>,
}

impl PeerCopies {
    /// Returns the copies of the replicas in `holders`, as the replica `instance` asks them.
    pub(crate) fn new(bus: &Bus, instance: &str, holders: watch::Receiver<Vec<String>>, clock: SharedClock) -> Self {
        Self(Arc::new(Inner {
            bus: bus.clone(),
            clock,
            me: token(instance),
            holders,
            state: Mutex::default(),
            wanted: watch::Sender::new(0),
            waiting: AtomicUsize::new(0),
            reached: watch::Sender::new(0),
            answers: watch::Sender::new(false),
            unanswered: AtomicUsize::new(0),
        }))
    }

    /// Returns whether a copy has answered lately.
    pub(crate) fn answer(&self) -> bool {
        *self.0.answers.borrow()
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no copy answers.
    pub(crate) async fn wait_lost(&self) {
        let _ = self.0.answers.subscribe().wait_for(|answers| !*answers).await;
    }

    /// Returns the tokens of the replicas that keep copies, without this one; those that did not answer come last.
    pub(crate) fn names(&self) -> Vec<String> {
        let holders = self.0.holders.borrow().clone();
        let mut names: Vec<String> = holders.iter().map(|name| token(name)).collect();
        names.retain(|name| *name != self.0.me);
        if names.is_empty() {
            return names;
        }

        // Each replica begins with another copy, so that the copies share the questions.
        let turn = self.0.me.bytes().map(usize::from).sum::<usize>() % names.len();
        names.rotate_left(turn);

        let now = self.0.clock.monotonic();
        let mut state = self.state();
        state.suspects.retain(|_, until| *until > now);
        names.sort_by_key(|name| state.suspects.contains_key(name));
        names
    }

    /// Returns the clock by which the copies are asked.
    pub(crate) fn clock(&self) -> SharedClock {
        Arc::clone(&self.0.clock)
    }

    /// Returns the token of this replica.
    pub(crate) fn me(&self) -> &str {
        &self.0.me
    }

    /// Returns the tokens of the replicas that hold slots, in the order of the slots; this one may be among them.
    pub(crate) fn holders(&self) -> Vec<String> {
        self.0.holders.borrow().iter().map(|name| token(name)).collect()
    }

    /// Returns the number of scripts' questions that were given up because no copy answered at all, or all are being built.
    pub(crate) fn unanswered(&self) -> usize {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    /// Returns whether a script that has asked since `begun` and got no answer must not wait any longer. While no copy answers
    /// at all, or those that do are being built, waiting would only keep its process from other hooks: the question is counted
    /// as unanswered, and its evaluation is made again.
    fn gives_up(&self, begun: Instant) -> bool {
        let waited = self.0.clock.monotonic().saturating_duration_since(begun);
        let is_lost = !self.answer() || (waited >= FIND_BUILT && !self.are_near());
        // Not of one whose queries the copies send away because its others are slow: its hook has failed.
        if is_lost {
            self.0.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        is_lost || waited >= FIND_COPY
    }

    fn suspect(&self, name: &str) {
        let until = self.0.clock.monotonic() + SUSPECT;
        self.state().suspects.insert(name.to_owned(), until);
    }

    fn note_answering(&self) {
        self.0
            .answers
            .send_if_modified(|answers| !std::mem::replace(answers, true));
    }

    /// Asks the copies one after the other, without waiting long for one, and returns the first reply that `accept`
    /// takes. A copy whose reply it does not take is asked last for some time.
    async fn ask_until<T>(
        &self,
        endpoint: &str,
        question: &impl Serialize,
        timeout: Duration,
        accept: impl Fn(Bytes) -> Result<T, String>,
    ) -> Result<T, AskCopyError> {
        let payload = Bytes::from(serde_json::to_vec(question).unwrap_or_default());
        let mut names = self.names().into_iter();
        let mut asked = FuturesUnordered::new();
        // Those that have not answered yet, in the order in which they were asked.
        let mut open: Vec<String> = Vec::new();
        let mut last = AskCopyError::NoCopy;
        let ask = async |name: String| {
            let subject = subject_of(&name, endpoint);
            let reply = self
                .0
                .bus
                .request_bytes(&subject, &Headers::new(), payload.clone(), timeout)
                .await;
            let reply = reply.map(|reply| reply.payload).map_err(|error| error.to_string());
            (name, reply)
        };

        loop {
            if asked.is_empty() {
                let Some(name) = names.next() else { return Err(last) };
                open.push(name.clone());
                asked.push(ask(name));
            }

            let (name, outcome) = tokio::select! {
                Some(answered) = asked.next() => answered,
                () = pause(HEDGE), if names.len() > 0 => {
                    if let Some(name) = names.next() {
                        open.push(name.clone());
                        asked.push(ask(name));
                    }
                    continue;
                }
            };
            open.retain(|open| *open != name);

            match outcome.and_then(&accept) {
                Ok(taken) => {
                    // One that was asked before and is silent may be stopped: others are asked first for some time.
                    open.iter().for_each(|silent| self.suspect(silent));
                    self.note_answering();
                    return Ok(taken);
                }
                Err(error) => {
                    self.suspect(&name);
                    last = AskCopyError::NoAnswer(error);
                }
            }
        }
    }

    /// Asks a copy at `endpoint`.
    ///
    /// # Errors
    /// Returns [`AskCopyError`] if none answers within `timeout`.
    pub(crate) async fn ask<A: DeserializeOwned>(
        &self,
        endpoint: &str,
        question: &impl Serialize,
        timeout: Duration,
    ) -> Result<A, AskCopyError> {
        self.ask_until(endpoint, question, timeout, |bytes| {
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        })
        .await
    }

    /// As [`Self::ask`] for a script, and waits for a copy that can answer, at most for [`FIND_COPY`].
    ///
    /// # Errors
    /// Returns [`AskCopyError`] if none has answered by then.
    pub(crate) async fn ask_patiently<A: DeserializeOwned>(
        &self,
        endpoint: &str,
        question: &impl Serialize,
        timeout: Duration,
    ) -> Result<A, AskCopyError> {
        let begun = self.0.clock.monotonic();
        loop {
            match self.ask(endpoint, question, timeout).await {
                Ok(answer) => return Ok(answer),
                Err(error) if self.gives_up(begun) => return Err(error),
                Err(error) => tracing::debug!(%error, "a script waits for a copy of the read model"),
            }
            pause(AGAIN).await;
        }
    }

    /// Asks the replica `name`, a token, at `endpoint`, and returns its answer as it is.
    ///
    /// # Errors
    /// Returns [`RequestError`] if it does not answer within `timeout`, or refuses.
    pub(crate) async fn ask_one(
        &self,
        name: &str,
        endpoint: &str,
        question: &impl Serialize,
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        let payload = Bytes::from(serde_json::to_vec(question).unwrap_or_default());
        let subject = subject_of(name, endpoint);
        let answer = self
            .0
            .bus
            .request_bytes(&subject, &Headers::new(), payload, timeout)
            .await?;
        Ok(answer.payload)
    }

    /// Lets a copy answer the query of `process` of this replica, as `{"page": …}`, and waits for one that can. Returns
    /// the answer, and how long the copy took.
    ///
    /// # Errors
    /// Returns the query's error, or `Unavailable` if no copy could answer for [`FIND_COPY`].
    pub(crate) async fn query(&self, process: u32, query: ModelQuery) -> Result<(Vec<u8>, Duration), ModelQueryError> {
        let clock = &self.0.clock;
        let key = (process, query.sequence);
        let question = QueryQuestion {
            asker: format!("{}/{process}", self.0.me),
            at_least: self.position_of(key).max(query.sequence),
            query,
        };

        let begun = clock.monotonic();
        loop {
            let asked_at = clock.monotonic();
            let accept = |bytes: Bytes| match QueryReply::from_bytes(&bytes) {
                QueryReply::Away(text) => Err(text),
                reply @ (QueryReply::Page(..) | QueryReply::Failed(_)) => Ok(reply),
            };
            match self.ask_until("query", &question, ANSWER, accept).await {
                Ok(QueryReply::Page(position, body)) => {
                    self.note_position(key, position);
                    return Ok((body, clock.monotonic().saturating_duration_since(asked_at)));
                }
                Ok(QueryReply::Failed(error)) => return Err(error),
                Ok(QueryReply::Away(text)) => return Err(ModelQueryError::Unavailable(text)),
                Err(error) if self.gives_up(begun) => {
                    return Err(ModelQueryError::Unavailable(error.to_string()));
                }
                Err(error) => tracing::debug!(%error, "a script waits for a copy of the read model"),
            }
            pause(AGAIN).await;
        }
    }

    fn position_of(&self, key: (u32, u64)) -> u64 {
        let state = self.state();
        state.positions.get(&key).map_or(0, |(position, _)| *position)
    }

    /// Records where the transaction of a process stands, so that another copy that goes on for it is not behind it.
    fn note_position(&self, key: (u32, u64), position: u64) {
        let now = self.0.clock.monotonic();
        let mut state = self.state();
        if state.positions.insert(key, (position, now)).is_none() && state.positions.len().is_multiple_of(256) {
            let is_new = |noted: Instant| now.saturating_duration_since(noted) < REMEMBERED;
            state.positions.retain(|_, (_, noted)| is_new(*noted));
        }
    }
}

#[cfg(test)]
mod tests;
