//! Intents that wait for an event: marks in KV say which there are, and `EVENTS` is read only while there are any.
//!
//! Every replica reads; whose compare-and-set is first fires. A mark says from which event on it counts, so a reader that
//! begins, or hears of a mark late, begins there. The nominal time of such a firing is when the event was stored: the
//! same for all. A mark is made before its intent is, so a match may come before the value is there: it is tried again.
//!
//! A mark names a message. Where `EVENTS` was put back, cut or made anew, that message is not there any more: then events
//! count that were stored later than it was, and an intent that has fired already says so itself. That is asked when a
//! mark is heard of and whenever the connection stands anew.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::bus::position::{told_sound, told_void};
use shared::bus::{Bus, CasError, Incoming, Kv, KvEvent, Ordered, ReadStreamError};
use shared::clock::pause;
use shared::model::intent::mark::IntentMark;
use shared::model::intent::{Intent, IntentCode, IntentSchedule};
use shared::model::position::{Position, Standing};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::Shutdown;
use shared::wire::subject::token;
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::EVENTS;

use super::clerk::IntentExecutor;
use super::error::HandleIntentError;

/// How the places of marks in `EVENTS` are named where they are told of.
const WHAT: &str = "intents that wait for an event";
/// Where the keys of marks begin.
const PREFIX: &str = "c.";
/// Events after which a mark is brought up to where the reader is.
const PROGRESS_EVERY: u64 = 5_000;
/// How long a match waits for its intent to be there, milliseconds.
const ORPHAN_MS: i64 = 60_000;
/// Wait before a match that could not be handled is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// So many matches may wait to be tried again before no more events are read; those of one event are never parted.
const MAX_WAITING: usize = 10_000;

fn key(mark: &IntentMark) -> String {
    format!("c.{}.{}", token(&mark.agent), mark.intent)
}

/// The mark of `intent`; none where it waits for no event.
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

/// Stores `mark`.
///
/// # Errors
/// [`HandleIntentError`] where the server refuses it.
pub async fn store_mark(bus: &Bus, mark: &IntentMark) -> Result<(), HandleIntentError> {
    let marks: Kv<IntentMark> = bus.kv(INTENTS);
    let put = marks.put(&key(mark), mark).await;
    put.map(|_| ())
        .map_err(|error| HandleIntentError::from_cas(mark.intent, error))
}

/// Removes the mark of `intent`, if it has one. One that stays behind is removed by the reader that it leads astray.
pub async fn remove_mark(bus: &Bus, intent: &Intent) {
    let Some(mark) = mark_of(intent) else { return };
    let marks: Kv<IntentMark> = bus.kv(INTENTS);
    if let Err(error) = marks.delete(&key(&mark), None).await {
        tracing::debug!(intent = %mark.intent, %error, "failed to delete a mark");
    }
}

/// A match that is to be handled.
#[derive(Debug)]
struct Match {
    mark: IntentMark,
    at: UnixMillis,
}

/// A mark, and from where on events count for it in the stream as it is.
#[derive(Debug, Clone)]
struct Awaited {
    mark: IntentMark,
    /// Events behind this sequence; none = the leader was not asked yet.
    from: Option<u64>,
}

/// Reads events for the intents that wait for one.
#[derive(Debug)]
pub struct ConditionWatcher {
    clerk: Arc<IntentExecutor>,
    marks: BTreeMap<String, Awaited>,
    reader: Option<Ordered>,
    /// Everything up to here was read; without a time where nothing was yet.
    position: Position,
    /// From behind this one on events are to be read again, as soon as they can be.
    again_from: Option<u64>,
    /// Of some marks the leader was not asked yet.
    has_unasked: bool,
    waiting: VecDeque<Match>,
}

impl ConditionWatcher {
    /// For `clerk`.
    #[must_use]
    pub fn new(clerk: Arc<IntentExecutor>) -> Self {
        Self {
            clerk,
            marks: BTreeMap::new(),
            reader: None,
            position: Position::default(),
            again_from: None,
            has_unasked: false,
            waiting: VecDeque::new(),
        }
    }

    fn marks_bucket(&self) -> Kv<IntentMark> {
        self.clerk.bus.kv(INTENTS)
    }

    /// Reads until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut changes = self.marks_bucket().watch(PREFIX);
        let mut connections = self.clerk.bus.connections();

        let mut again = Box::pin(pause(AGAIN));
        loop {
            let full = self.is_full();
            let owes = self.has_unasked || self.again_from.is_some() || !self.waiting.is_empty();
            tokio::select! {
                () = shutdown.requested() => return,
                () = connections.stands_anew() => {
                    connections.begin();
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

    /// So many matches wait that no more events are read: they stay where they are.
    fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    async fn handle_change(&mut self, change: KvEvent<IntentMark>) {
        match change {
            KvEvent::Put { key, value, .. } => {
                let known = self.marks.get(&key).filter(|known| known.mark.matches == value.matches);
                // Of one that is known only its progress was noted.
                let from = known.and_then(|known| known.from);
                self.marks.insert(key, Awaited { mark: value, from });

                if from.is_none() {
                    self.has_unasked = true;
                    self.read_again().await;
                }
            }
            KvEvent::Gone { key, .. } | KvEvent::Bad { key, .. } => {
                self.marks.remove(&key);
                if self.marks.is_empty() {
                    self.reader = None;
                    self.again_from = None;
                    self.has_unasked = false;
                }
            }
            KvEvent::Anew | KvEvent::Current => {}
        }
    }

    /// The connection stands anew: `EVENTS` may be another stream than was read.
    async fn doubt_position(&mut self) {
        if self.position.stored_at_ns != 0 {
            match self.clerk.bus.standing(EVENTS, &self.position).await {
                Ok(Standing::Holds) => return,
                Ok(Standing::Void(_)) => {}
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

    /// Asks where marks of which that is not known count from, and reads events from there; where that cannot be, it is
    /// tried again later.
    async fn read_again(&mut self) {
        if let Err(error) = self.query_start().await {
            tracing::warn!(%error, "failed to find the start position for intents that wait for events; retrying");
            return;
        }

        let Some(from) = self.again_from else { return };
        match self.clerk.bus.ordered(EVENTS, &[], from + 1).await {
            Ok(reader) => {
                self.position = Position {
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

    /// Learns from where on events count for the marks of which that is not known.
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

    /// Behind which sequence of the stream as it is events count for `mark`.
    async fn counted_from(&self, key: &str, mark: &IntentMark) -> Result<u64, ReadStreamError> {
        let bus = &self.clerk.bus;
        let stored_at_ns = match &mark.position {
            Some(position) => match bus.standing(EVENTS, position).await? {
                Standing::Holds => return Ok(mark.from),
                Standing::Void(why) => {
                    told_void(WHAT, EVENTS, position, why);
                    position.stored_at_ns
                }
            },
            // A bare number tells nothing but that the stream has not come there.
            None if mark.from <= bus.stream_state(EVENTS).await?.last => return Ok(mark.from),
            None => mark.at.0.saturating_mul(1_000_000),
        };

        let found = bus.stored_by(EVENTS, stored_at_ns).await?;
        let intent = mark.intent;
        tracing::warn!(%intent, from = mark.from, counted_from = found.sequence, "matching events for an intent by time");

        let next = IntentMark {
            from: found.sequence,
            position: (found.sequence > 0).then_some(found),
            ..mark.clone()
        };

        match self.replace_mark(key, mark, &next).await {
            Ok(()) => told_sound(WHAT),
            Err(error) => tracing::debug!(%intent, %error, "the mark keeps its void position until the next query"),
        }

        Ok(next.from)
    }

    /// Writes `next` in the place of `mark`, unless something else stands there.
    async fn replace_mark(&self, key: &str, mark: &IntentMark, next: &IntentMark) -> Result<(), CasError> {
        let marks = self.marks_bucket();
        match marks.get(key).await? {
            Some(entry) if entry.value == *mark => marks.update(key, next, entry.revision).await.map(drop),
            Some(_) | None => Ok(()),
        }
    }

    async fn match_event(&mut self, stored: &Incoming) {
        self.position = Position {
            incarnation: self.position.incarnation.clone(),
            sequence: stored.sequence,
            stored_at_ns: stored.stored_at_ns,
        };
        let Ok(event) = stored.event(self.clerk.bus.trust()) else {
            return;
        };

        let matched: Vec<IntentMark> = self
            .marks
            .values()
            .filter(|awaited| awaited.from.is_some_and(|from| from < stored.sequence))
            .map(|awaited| &awaited.mark)
            .filter(|mark| mark.matches.holds(&event))
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

    /// Whether `matched` is dealt with.
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

        let Some(entry) = found else {
            let orphan = clerk.clock.now().since(mark.at) > ORPHAN_MS;
            if orphan {
                self.drop_mark(mark).await;
            }
            return orphan;
        };

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

    /// Notes in each mark how far events were looked at for it, so that a restart need not begin at the beginning.
    async fn note_progress(&mut self) {
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

async fn next(reader: &mut Option<Ordered>) -> Incoming {
    match reader {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
