//! The read model as this replica reaches it: its own copy while it keeps one, else the copies of other replicas.
//!
//! Evaluation asks here and need not know which it is. A copy that is still being built answers nothing that another
//! replica's copy can; if there is no other, the replica waits for its own, as a single replica does.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use shared::model::event::EventId;
use shared::model::hook_api::InvocationRow;
use shared::model::time::UnixMillis;
use shared::projection::api::{SearchReply, SearchRequest};
use shared::projection::script_query::ModelQueryError;
use shared::projection::{FeedSource, Projection, QueryProjectionError};
use tokio::sync::watch;

use super::copy_service::find_first;
use super::first_check::{FirstAsker, FirstCheck, first_check};
use super::peer_api::{FindFirstQuestion, FoundFirst, InvocationsQuestion, InvocationsReply, SearchQuestion};
use super::peer_copies::PeerCopies;
use super::reader_waits::{ReaderWait, ReaderWaits};
use crate::runner::{AskedQuery, ModelSource, PeerAnswer};

/// Time limit for a question to another replica's copy that is not a script's query.
const ANSWER: Duration = Duration::from_secs(5);

/// Time limit for a search elsewhere.
const SEARCH: Duration = Duration::from_secs(20);

/// This replica's own copy.
#[derive(Debug, Clone, Default)]
pub(crate) enum OwnCopy {
    /// Whether the replica keeps one is not decided yet.
    #[default]
    Undecided,
    /// The replica keeps none.
    None,
    /// The copy is behind the streams.
    Building(Projection),
    /// The copy answers.
    Ready(Projection),
}

/// Where answers come from, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelStanding {
    /// Whether this replica keeps a copy is not decided yet.
    Undecided,
    /// The own copy answers; contains how far it is behind, `None` if that is unknown.
    Own(Option<Duration>),
    /// The own copy is being built, and no other one answers; contains how far it is behind.
    Building(Option<Duration>),
    /// Copies of other replicas answer.
    Peers(Vec<String>),
    /// No copy answers.
    Lost,
}

/// Reason why a question to the read model has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskModelError {
    /// The own copy cannot be read.
    #[error(transparent)]
    Own(#[from] QueryProjectionError),
    /// No copy has answered; contains the reason.
    #[error("the read model has not answered: {0}")]
    Peers(String),
}

/// Access to the read model; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ModelAccess(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    own: watch::Sender<OwnCopy>,
    /// Whether the own copy answers operators and other replicas.
    served: AtomicBool,
    /// Why the own copy cannot be opened.
    unopened: Mutex<Option<String>>,
    peers: PeerCopies,
    first: FirstCheck,
    waits: ReaderWaits,
}

impl ModelAccess {
    /// Returns the access of a replica whose own copy, if it keeps one, is at `path`, with the task that asks `peers`
    /// in batches.
    pub(crate) fn new(path: PathBuf, peers: PeerCopies) -> (Self, FirstAsker) {
        let (first, asker) = first_check(peers.clone());
        let inner = Inner {
            path,
            own: watch::Sender::new(OwnCopy::Undecided),
            served: AtomicBool::new(false),
            unopened: Mutex::default(),
            waits: ReaderWaits::new(peers.clock()),
            peers,
            first,
        };
        (Self(Arc::new(inner)), asker)
    }

    /// Path of the own copy, which scripts see as `ctx.dbPath` whether it exists or not.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Copies of other replicas.
    pub(crate) fn peers(&self) -> &PeerCopies {
        &self.0.peers
    }

    /// Declares that this replica keeps no copy, unless it has one.
    pub(crate) fn decide_none(&self) {
        self.0.own.send_if_modified(|own| {
            let is_news = matches!(own, OwnCopy::Undecided);
            if is_news {
                *own = OwnCopy::None;
            }
            is_news
        });
    }

    /// Replaces the state of the own copy.
    pub(crate) fn set_own(&self, own: OwnCopy) {
        self.0.own.send_replace(own);
    }

    /// Records whether the own copy answers operators and other replicas.
    pub(crate) fn note_served(&self, served: bool) {
        self.0.served.store(served, Ordering::Relaxed);
    }

    /// Returns whether the own copy answers operators and other replicas.
    pub(crate) fn is_served(&self) -> bool {
        self.0.served.load(Ordering::Relaxed)
    }

    /// Records why the own copy cannot be opened at the moment; `None` if it is open, or cannot be opened at all.
    pub(crate) fn note_unopened(&self, why: Option<String>) {
        *self.0.unopened.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns why the own copy cannot be opened or written at the moment; `None` if it can, or there is none.
    pub(crate) fn write_fault(&self) -> Option<String> {
        let unopened = self.0.unopened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        unopened.or_else(|| self.any()?.write_fault())
    }

    /// Returns the number of messages that the own copy has still to read, `None` if it is unknown.
    pub(crate) fn remaining_messages(&self) -> Option<u64> {
        self.any()?.remaining_messages()
    }

    /// Follows the state of the own copy.
    pub(crate) fn follow_own(&self) -> watch::Receiver<OwnCopy> {
        self.0.own.subscribe()
    }

    /// Returns the own copy if it answers.
    fn ready(&self) -> Option<Projection> {
        match &*self.0.own.borrow() {
            OwnCopy::Ready(projection) => Some(projection.clone()),
            OwnCopy::Undecided | OwnCopy::None | OwnCopy::Building(_) => None,
        }
    }

    /// Returns the own copy, even if it is behind.
    fn any(&self) -> Option<Projection> {
        match &*self.0.own.borrow() {
            OwnCopy::Ready(projection) | OwnCopy::Building(projection) => Some(projection.clone()),
            OwnCopy::Undecided | OwnCopy::None => None,
        }
    }

    /// Returns the own copy if it answers here: once it is ready, and before if no other one answers.
    fn answering(&self) -> Option<Projection> {
        self.ready().or_else(|| self.any().filter(|_| !self.0.peers.answer()))
    }

    /// Follows the copies of other replicas while this one needs them; never returns.
    pub(crate) async fn follow_peers(&self) {
        self.0.peers.follow(|| self.ready().is_none()).await;
    }

    /// Returns where answers come from at `now`.
    pub(crate) fn standing(&self, now: UnixMillis) -> ModelStanding {
        let own = self.0.own.borrow().clone();
        match own {
            OwnCopy::Ready(projection) => ModelStanding::Own(projection.lag(now)),
            OwnCopy::Building(_) | OwnCopy::None if self.0.peers.answer() => ModelStanding::Peers(self.0.peers.names()),
            OwnCopy::Undecided => ModelStanding::Undecided,
            OwnCopy::Building(projection) => ModelStanding::Building(projection.lag(now)),
            OwnCopy::None => ModelStanding::Lost,
        }
    }

    /// Returns whether some copy answers, or the own one will.
    fn is_available(&self) -> bool {
        self.any().is_some() || self.0.peers.answer()
    }

    /// Returns whether an evaluation may wait for its event in the read model: some copy is near the streams' ends, and
    /// the evaluations that wait already get on.
    pub(crate) fn is_worth_waiting(&self) -> bool {
        let is_near = self.ready().is_some() || self.0.peers.are_near();
        is_near && !self.0.waits.is_crowded()
    }

    /// Counts an evaluation that waits for its event in the read model, as long as the return value lives.
    pub(crate) fn note_waiting(&self) -> ReaderWait {
        self.0.waits.begin()
    }

    /// Returns whether, after `since`, an evaluation got its event that had waited long for it, because copies were away or far
    /// behind.
    pub(crate) fn were_away_since(&self, since: Instant) -> bool {
        self.0.waits.were_away_since(since)
    }

    /// Waits until no copy answers and none is being built here.
    pub(crate) async fn wait_lost(&self) {
        let mut own = self.0.own.subscribe();
        while self.is_available() {
            tokio::select! {
                changed = own.changed() => if changed.is_err() { std::future::pending::<()>().await },
                () = self.0.peers.wait_lost(), if self.any().is_none() => {}
            }
        }
    }

    /// Returns whether the own copy's writer has stopped, so that this replica cannot go on.
    pub(crate) fn is_closed(&self) -> bool {
        self.any().is_some_and(|own| own.is_closed())
    }

    /// Waits until the read model has applied the event `sequence`, wherever queries are answered then. Returns false
    /// if this replica's own copy has stopped.
    pub(crate) async fn wait_reached(&self, sequence: u64) -> bool {
        let mut own = self.0.own.subscribe();
        loop {
            let known = own.borrow_and_update().clone();
            let reached = async {
                match known {
                    OwnCopy::Ready(projection) => projection.wait_reached(FeedSource::Events, sequence).await.is_ok(),
                    OwnCopy::Undecided | OwnCopy::None => {
                        self.0.peers.wait_reached(sequence).await;
                        true
                    }
                    OwnCopy::Building(projection) => tokio::select! {
                        reached = projection.wait_reached(FeedSource::Events, sequence) => reached.is_ok(),
                        () = self.0.peers.wait_reached(sequence) => true,
                    },
                }
            };

            tokio::select! {
                biased;
                reached = reached => return reached,
                // The sender lives as long as this.
                _ = own.changed() => {}
            }
        }
    }

    /// Returns whether queries on the event `sequence` would be answered now.
    pub(crate) fn has_reached(&self, sequence: u64) -> bool {
        self.wait_reached(sequence).now_or_never() == Some(true)
    }

    /// As [`Self::wait_reached`], for a deferred evaluation; does not return if the own copy has stopped, since the process
    /// ends then.
    pub(crate) async fn wait_for_event(&self, sequence: u64) {
        let begun = self.0.waits.now();
        if !self.wait_reached(sequence).await {
            std::future::pending::<()>().await;
        }
        self.0.waits.note_waited(begun);
    }

    /// Waits until the own copy, if there is one, has applied the record `sequence` of `INVOCATIONS`; returns whether
    /// it has.
    pub(crate) async fn wait_records(&self, sequence: u64) -> bool {
        match self.ready() {
            Some(own) => own.wait_reached(FeedSource::Invocations, sequence).await.is_ok(),
            None => false,
        }
    }

    /// Returns whether event `id` certainly has no record among those up to `through`. Without an own copy that is
    /// unknown: the leader is asked then.
    pub(crate) async fn has_no_record(&self, id: &EventId, through: u64) -> bool {
        match self.ready() {
            Some(own) => own.has_no_record(id, through).await.unwrap_or(false),
            None => false,
        }
    }

    /// Returns whether the event `id` occurs for the first time at `sequence`, as far as a copy can tell.
    pub(crate) async fn is_first(&self, id: &EventId, sequence: u64) -> bool {
        let Some(own) = self.answering() else {
            return !self.0.peers.answer() || self.0.first.is_first(id, sequence).await;
        };
        // The dispatch's id recognises a repetition, and nothing brings back an event that was taken for one.
        if !own.is_compared() {
            return true;
        }

        own.is_first(id, sequence).unwrap_or_else(|error| {
            tracing::warn!(event_id = %id, %error, "read model cannot tell if an event is new");
            true
        })
    }

    /// Finds where the event `id` occurred first, in a copy that has reached the event `reached`.
    ///
    /// # Errors
    /// Returns [`AskModelError`] if no copy has come that far within `patience`.
    pub(crate) async fn find_first(
        &self,
        id: &EventId,
        reached: u64,
        patience: Duration,
    ) -> Result<FoundFirst, AskModelError> {
        let question = FindFirstQuestion {
            id: id.clone(),
            reached,
        };
        if let Some(own) = self.answering() {
            let found = find_first(&own, &question, patience).await;
            return found.map_err(AskModelError::Peers);
        }

        let asked = self.0.peers.ask("find_first", &question, ANSWER).await;
        asked.map_err(|error| AskModelError::Peers(error.to_string()))
    }

    /// Returns the last `limit` invocations of the hook `hook` that did more than pass, the newest first.
    ///
    /// # Errors
    /// Returns [`AskModelError`] if no copy answers.
    pub(crate) async fn invocations(&self, hook: String, limit: u32) -> Result<Vec<InvocationRow>, AskModelError> {
        if let Some(own) = self.answering() {
            return Ok(own.invocations(hook, limit).await?);
        }

        let question = InvocationsQuestion { hook, limit };
        let asked: Result<InvocationsReply, _> = self.0.peers.ask("invocations", &question, ANSWER).await;
        let reply = asked.map_err(|error| AskModelError::Peers(error.to_string()))?;
        Ok(reply.invocations)
    }

    /// Returns the events that are similar to a text, from a copy that has the event `sequence`.
    ///
    /// # Errors
    /// Returns [`AskModelError`] if no copy answers.
    pub(crate) async fn search(&self, request: SearchRequest, sequence: u64) -> Result<SearchReply, AskModelError> {
        let own = self.any().filter(|_| self.is_local(sequence));
        if let Some(own) = own.or_else(|| self.answering()) {
            own.wait_reached(FeedSource::Events, sequence).await?;
            return Ok(own.search(request).await?);
        }

        let question = SearchQuestion {
            request,
            at_least: sequence,
        };
        let asked = self.0.peers.ask_patiently("search", &question, SEARCH).await;
        asked.map_err(|error| AskModelError::Peers(error.to_string()))
    }
}

#[async_trait]
impl ModelSource for ModelAccess {
    fn is_local(&self, sequence: u64) -> bool {
        match &*self.0.own.borrow() {
            OwnCopy::Ready(_) => true,
            OwnCopy::Building(own) => own.position(FeedSource::Events) >= sequence,
            OwnCopy::Undecided | OwnCopy::None => false,
        }
    }

    async fn ask_peers(&self, asked: AskedQuery) -> Result<PeerAnswer, ModelQueryError> {
        let (body, took) = self.0.peers.query(asked.process, asked.query).await?;
        Ok(PeerAnswer { body, took })
    }
}
