//! Intents that wait for an event. Marks in KV list them, and `EVENTS` is read only while there are marks.
//!
//! Every replica reads; the first one to write the intent fires it. A mark says after which event it counts, so a
//! reader that starts, or learns of a mark late, starts there. The nominal time of such a firing is the store time of
//! the event, which is the same for all replicas. A mark is stored before its intent, so a match may precede the value:
//! then it is tried again.
//!
//! A mark names a message. If `EVENTS` was restored, truncated or created again, the message is gone: then events count
//! that were stored later than it was, and an intent that has fired already says so itself. This is checked when a mark
//! is read and whenever the connection is re-established.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::bus::position::{told_sound, told_void};
use shared::bus::{Bus, CasError, IncomingMessage, Kv, KvEvent, OrderedReader, ReadStreamError};
use shared::clock::pause;
use shared::model::intent::mark::IntentMark;
use shared::model::intent::{Intent, IntentCode, IntentSchedule};
use shared::model::position::{PositionStanding, StreamPosition};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::subject::token;
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::EVENTS;

use super::error::HandleIntentError;
use super::executor::IntentExecutor;

/// Name of the marks' positions in the service's status.
const WHAT: &str = "intents that wait for an event";
/// Prefix of the keys of marks.
const PREFIX: &str = "c.";
/// Number of events after which the position in a mark is updated.
const PROGRESS_EVERY: u64 = 5_000;
/// Longest wait for the intent of a match, milliseconds.
const ORPHAN_MS: i64 = 60_000;
/// Pause before a match is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// Number of waiting matches above which no more events are read. The matches of one event are never split.
const MAX_WAITING: usize = 10_000;

fn key(mark: &IntentMark) -> String {
    format!("c.{}.{}", token(&mark.agent), mark.intent)
}

/// Returns the mark of `intent`, or `None` if it waits for no event.
#[must_use]
pub fn mark_of(intent: &Intent) -> Option<IntentMark> {
    match &intent.intent.schedule {
        IntentSchedule::EventMatches { matches, .. } => Some(IntentMark {
            intent: intent.intent.id,
            agent: intent.intent.agent.clone(),
            matches: matches.clone(),
            from: intent.events_from,
            position: intent.events_position.clone(),
            at: intent.lineage.last().map_or(intent.proposed_at, |lineage| lineage.at),
        }),
        IntentSchedule::At { .. }
        | IntentSchedule::After { .. }
        | IntentSchedule::Cron { .. }
        | IntentSchedule::Rrule { .. }
        | IntentSchedule::UserIdle { .. }
        | IntentSchedule::ChatEnded { .. } => None,
    }
}

/// Stores `mark` in KV.
///
/// # Errors
/// Returns [`HandleIntentError`] if the server rejects it.
pub async fn store_mark(bus: &Bus, mark: &IntentMark) -> Result<(), HandleIntentError> {
    let marks: Kv<IntentMark> = bus.kv(INTENTS);
    let put = marks.put(&key(mark), mark).await;
    put.map(|_| ())
        .map_err(|error| HandleIntentError::from_cas(mark.intent, error))
}

/// Removes the mark of `intent`, if it has one. A reader removes a mark that stays behind.
pub async fn remove_mark(bus: &Bus, intent: &Intent) {
    let Some(mark) = mark_of(intent) else { return };
    let marks: Kv<IntentMark> = bus.kv(INTENTS);
    if let Err(error) = marks.delete(&key(&mark), None).await {
        tracing::debug!(intent = %mark.intent, %error, "failed to delete a mark");
    }
}

/// A match to be handled.
#[derive(Debug)]
struct Match {
    mark: IntentMark,
    at: UnixMillis,
}

/// A mark, and the position in the present stream after which events count for it.
#[derive(Debug, Clone)]
struct Awaited {
    mark: IntentMark,
    /// Sequence after which events count; none = the leader has not been asked yet.
    from: Option<u64>,
}

/// Reads events for the intents that wait for one.
#[derive(Debug)]
pub struct ConditionWatcher {
    clerk: Arc<IntentExecutor>,
    marks: BTreeMap<String, Awaited>,
    reader: Option<OrderedReader>,
    /// Position up to which events were read; without a store time if none was read yet.
    position: StreamPosition,
    /// Sequence after which events must be read again as soon as possible.
    again_from: Option<u64>,
    /// Whether the start of some marks is still unknown.
    has_unasked: bool,
    waiting: VecDeque<Match>,
}

impl ConditionWatcher {
    /// Creates a watcher that fires intents through `clerk`.
    #[must_use]
    pub fn new(clerk: Arc<IntentExecutor>) -> Self {
        Self {
            clerk,
            marks: BTreeMap::new(),
            reader: None,
            position: StreamPosition::default(),
            again_from: None,
            has_unasked: false,
            waiting: VecDeque::new(),
        }
    }

    fn marks_bucket(&self) -> Kv<IntentMark> {
        self.clerk.bus.kv(INTENTS)
    }

    /// Reads events until `shutdown`.
    pub async fn run(mut self, shutdown: ShutdownSignal) {
        let mut changes = self.marks_bucket().watch(PREFIX);
        let mut connections = self.clerk.bus.connections();

        let mut again = Box::pin(pause(AGAIN));
        loop {
            // With many matches waiting, no more events are read: they stay in the stream.
            let full = self.is_full();
            let owes = self.has_unasked || self.again_from.is_some() || !self.waiting.is_empty();
            tokio::select! {
                () = shutdown.requested() => return,
                () = connections.stands_anew() => {
                    connections.count_from_now();
                    self.doubt_position().await;
                }
                change = changes.next() => self.handle_change(change).await,
                event = next(&mut self.reader), if !full => self.match_event(&event).await,
                () = &mut again, if owes => {
                    self.read_again().await;
                    self.try_again().await;
                    again.set(pause(AGAIN));
                }
            }
        }
    }

    /// Returns whether so many matches wait that no more events are read. Unread events stay in the stream.
    fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    async fn handle_change(&mut self, change: KvEvent<IntentMark>) {
        match change {
            KvEvent::Put { key, value, .. } => {
                let known = self.marks.get(&key).filter(|known| known.mark.matches == value.matches);
                // If the mark is known and waits for the same events, only its position has changed.
                let from = known.and_then(|known| known.from);
                self.marks.insert(key, Awaited { mark: value, from });

                if from.is_none() {
                    self.has_unasked = true;
                    self.read_again().await;
                }
            }
            KvEvent::Gone { key, .. } | KvEvent::Bad { key, .. } => {
                self.marks.remove(&key);
                // Without marks no event has to be read.
                if self.marks.is_empty() {
                    self.reader = None;
                    self.again_from = None;
                    self.has_unasked = false;
                }
            }
            KvEvent::Anew | KvEvent::Current => {}
        }
    }

    /// Handles a new connection: `EVENTS` may be another stream than the one that was read.
    async fn doubt_position(&mut self) {
        if self.position.stored_at_ns != 0 {
            match self.clerk.bus.check_position(EVENTS, &self.position).await {
                Ok(PositionStanding::Holds) => return,
                Ok(PositionStanding::Void(_)) => {}
                Err(error) => tracing::debug!(%error, "failed to query events"),
            }
        }

        for awaited in self.marks.values_mut() {
            awaited.from = None;
        }

        self.reader = None;
        self.again_from = None;
        self.has_unasked = !self.marks.is_empty();
        self.read_again().await;
    }

    /// Finds the start of the marks whose start is unknown, and reads events from there. If that fails, it is tried
    /// again later.
    async fn read_again(&mut self) {
        if let Err(error) = self.query_start().await {
            tracing::warn!(%error, "failed to find the start position for intents that wait for events; retrying");
            return;
        }

        let Some(from) = self.again_from else { return };
        match self.clerk.bus.read_ordered(EVENTS, &[], from + 1).await {
            Ok(reader) => {
                self.position = StreamPosition {
                    incarnation: reader.incarnation().to_owned(),
                    sequence: from,
                    stored_at_ns: 0,
                };
                self.reader = Some(reader);
                self.again_from = None;
            }
            Err(error) => tracing::warn!(%error, "failed to read events for intents that wait for them; retrying"),
        }
    }

    /// Determines the start of the marks whose start is unknown.
    async fn query_start(&mut self) -> Result<(), ReadStreamError> {
        if !self.has_unasked {
            return Ok(());
        }

        let unasked = self.marks.iter().filter(|(_, awaited)| awaited.from.is_none());
        let unasked: Vec<(String, IntentMark)> = unasked
            .map(|(key, awaited)| (key.clone(), awaited.mark.clone()))
            .collect();
        for (key, mark) in unasked {
            let from = self.counted_from(&key, &mark).await?;
            if self.reader.is_none() || from < self.position.sequence {
                self.again_from = Some(self.again_from.map_or(from, |again| again.min(from)));
            }

            if let Some(awaited) = self.marks.get_mut(&key) {
                awaited.from = Some(from);
            }
        }

        self.has_unasked = false;
        Ok(())
    }

    /// Returns the sequence in the present stream after which events count for `mark`.
    async fn counted_from(&self, key: &str, mark: &IntentMark) -> Result<u64, ReadStreamError> {
        let bus = &self.clerk.bus;
        let stored_at_ns = match &mark.position {
            Some(position) => match bus.check_position(EVENTS, position).await? {
                PositionStanding::Holds => return Ok(mark.from),
                PositionStanding::Void(why) => {
                    told_void(WHAT, EVENTS, position, why);
                    position.stored_at_ns
                }
            },
            // Without a position, the mark's sequence is void only if the stream is shorter.
            None if mark.from <= bus.stream_state(EVENTS).await?.last => return Ok(mark.from),
            None => mark.at.0.saturating_mul(1_000_000),
        };

        // The message at that position is gone: events count that were stored later than it was.
        let found = bus.stored_by(EVENTS, stored_at_ns).await?;
        let intent = mark.intent;
        tracing::warn!(%intent, from = mark.from, counted_from = found.sequence, "matching events for an intent by time");

        let next = IntentMark {
            from: found.sequence,
            position: (found.sequence > 0).then_some(found),
            ..mark.clone()
        };

        // Written back, so that the query is made once and not by each replica at each start.
        match self.replace_mark(key, mark, &next).await {
            Ok(()) => told_sound(WHAT),
            Err(error) => {
                tracing::debug!(%intent, %error, "failed to update a mark; its position stays void until the next query");
            }
        }

        Ok(next.from)
    }

    /// Replaces `mark` by `next`, unless KV has another value by now.
    async fn replace_mark(&self, key: &str, mark: &IntentMark, next: &IntentMark) -> Result<(), CasError> {
        let marks = self.marks_bucket();
        match marks.get(key).await? {
            Some(entry) if entry.value == *mark => marks.update(key, next, entry.revision).await.map(drop),
            Some(_) | None => Ok(()),
        }
    }

    async fn match_event(&mut self, stored: &IncomingMessage) {
        self.position = StreamPosition {
            incarnation: self.position.incarnation.clone(),
            sequence: stored.sequence,
            stored_at_ns: stored.stored_at_ns,
        };
        // An unreadable event matches nothing, and other readers report it.
        let Ok(event) = stored.read_event(self.clerk.bus.trust()) else {
            return;
        };

        let matched: Vec<IntentMark> = self
            .marks
            .values()
            .filter(|awaited| awaited.from.is_some_and(|from| from < stored.sequence))
            .map(|awaited| &awaited.mark)
            .filter(|mark| mark.matches.matches_event(&event))
            .cloned()
            .collect();

        let at = stored.published_at;
        self.waiting.extend(matched.into_iter().map(|mark| Match { mark, at }));
        self.try_again().await;
        self.note_progress().await;
    }

    async fn try_again(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(matched) = self.waiting.pop_front() else {
                return;
            };
            if !self.handle(&matched).await {
                self.waiting.push_back(matched);
            }
        }
    }

    /// Handles `matched`. Returns whether that is done.
    async fn handle(&mut self, matched: &Match) -> bool {
        let Match { mark, at } = matched;
        let clerk = &self.clerk;
        let found = match clerk.store.get(Some(&mark.agent), mark.intent).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(intent = %mark.intent, agent = mark.agent, %error, "failed to read a matched intent; retrying");
                return false;
            }
        };

        // The mark is stored before its intent, so the value may still come.
        let Some(entry) = found else {
            let orphan = clerk.clock.now().since(mark.at) > ORPHAN_MS;
            if orphan {
                self.drop_mark(mark).await;
            }
            return orphan;
        };

        // The intent has ended, or has another schedule: the mark is a leftover.
        let waits = mark_of(&entry.value).is_some_and(|wanted| wanted.matches == mark.matches);
        if entry.value.status.is_final() || !waits {
            self.drop_mark(mark).await;
            return true;
        }

        let met = Some(IntentCode::ConditionMet);
        match clerk.handle_due(&mark.agent, mark.intent, *at, met).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(intent = %mark.intent, agent = mark.agent, %error, "failed to process a matched intent; retrying");
                false
            }
        }
    }

    async fn drop_mark(&mut self, mark: &IntentMark) {
        let marks = self.marks_bucket();
        self.marks.remove(&key(mark));
        if let Err(error) = marks.delete(&key(mark), None).await {
            tracing::debug!(intent = %mark.intent, %error, "failed to delete a mark");
        }
    }

    /// Updates the positions in the marks, so that a restarted reader does not start at the beginning.
    async fn note_progress(&mut self) {
        // A position may only be noted if everything before it was handled.
        let all_seen = self.waiting.is_empty() && self.again_from.is_none() && !self.has_unasked;
        if !self.position.sequence.is_multiple_of(PROGRESS_EVERY) || !all_seen {
            return;
        }

        let marks: Vec<(String, IntentMark)> = self
            .marks
            .iter()
            .filter(|(_, awaited)| awaited.mark.from + PROGRESS_EVERY <= self.position.sequence)
            .map(|(key, awaited)| (key.clone(), awaited.mark.clone()))
            .collect();

        for (key, mark) in marks {
            let next = IntentMark {
                from: self.position.sequence,
                position: Some(self.position.clone()),
                ..mark.clone()
            };

            if let Err(error) = self.replace_mark(&key, &mark, &next).await {
                tracing::debug!(intent = %mark.intent, %error, "failed to record progress");
            }
        }
    }
}

async fn next(reader: &mut Option<OrderedReader>) -> IncomingMessage {
    match reader {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
