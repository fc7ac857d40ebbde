//! Intents that wait for an event: marks in KV say which there are, and `EVENTS` is read only while there are any.
//!
//! Every replica reads; whose compare-and-set is first fires. A mark says from which event on it counts, so a reader that
//! begins, or hears of a mark late, begins there. The nominal time of such a firing is when the event was stored: the
//! same for all. A mark is made before its intent is, so a match may come before the value is there: it is tried again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, Incoming, Kv, Ordered};
use shared::clock::pause;
use shared::model::event::Event;
use shared::model::intent::mark::IntentMark;
use shared::model::intent::{Intent, IntentCode, IntentSchedule};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::Shutdown;
use shared::wire::subject::token;
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::EVENTS;

use super::clerk::Clerk;
use super::error::HandleIntentError;
use super::store::STREAM;

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
pub async fn remember(bus: &Bus, mark: &IntentMark) -> Result<(), HandleIntentError> {
    let marks: Kv<IntentMark> = bus.kv(INTENTS);
    let put = marks.put(&key(mark), mark).await;
    put.map(|_| ())
        .map_err(|error| HandleIntentError::cas(mark.intent, error))
}

/// Removes the mark of `intent`, if it has one. One that stays behind is removed by the reader that it leads astray.
pub async fn forget(bus: &Bus, intent: &Intent) {
    let Some(mark) = mark_of(intent) else { return };
    let marks: Kv<IntentMark> = bus.kv(INTENTS);
    if let Err(error) = marks.delete(&key(&mark), None).await {
        tracing::debug!(intent = %mark.intent, %error, "mark stays behind");
    }
}

/// A match that is to be handled.
struct Match {
    mark: IntentMark,
    at: UnixMillis,
}

/// Reads events for the intents that wait for one.
pub struct Conditions {
    clerk: Arc<Clerk>,
    marks: BTreeMap<String, IntentMark>,
    reader: Option<Ordered>,
    /// Everything up to here was read.
    position: u64,
    /// From behind this one on events are to be read again, as soon as they can be.
    again_from: Option<u64>,
    waiting: VecDeque<Match>,
}

impl std::fmt::Debug for Conditions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conditions")
            .field("marks", &self.marks.len())
            .finish_non_exhaustive()
    }
}

impl Conditions {
    /// For `clerk`.
    #[must_use]
    pub const fn new(clerk: Arc<Clerk>) -> Self {
        Self {
            clerk,
            marks: BTreeMap::new(),
            reader: None,
            position: 0,
            again_from: None,
            waiting: VecDeque::new(),
        }
    }

    /// Reads until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        let filters = [format!("$KV.{INTENTS}.c.>")];
        let mut changes = loop {
            match self.clerk.bus.ordered(STREAM, &filters, 1).await {
                Ok(changes) => break changes,
                Err(error) => {
                    tracing::debug!(%error, "marks of intents cannot be read yet");
                    pause(AGAIN).await;
                }
            }
            if shutdown.is_requested() {
                return;
            }
        };
        let mut again = Box::pin(pause(AGAIN));
        loop {
            let (full, owes) = (self.is_full(), self.again_from.is_some() || !self.waiting.is_empty());
            tokio::select! {
                () = shutdown.requested() => return,
                change = changes.next() => self.changed(&change).await,
                event = next(&mut self.reader), if !full => self.event(&event).await,
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

    async fn changed(&mut self, change: &Incoming) {
        let prefix = format!("$KV.{INTENTS}.");
        let key = change.subject.strip_prefix(&prefix).unwrap_or_default().to_owned();
        match change.decode::<IntentMark>() {
            Ok(mark) if !change.payload.is_empty() => {
                let begins_earlier = self.reader.is_none() || mark.from < self.position;
                let known = self.marks.insert(key, mark.clone());
                if begins_earlier && known.is_none_or(|known| known.matches != mark.matches) {
                    self.again_from = Some(self.again_from.map_or(mark.from, |from| from.min(mark.from)));
                    self.read_again().await;
                }
            }
            Ok(_) | Err(_) => {
                self.marks.remove(&key);
                if self.marks.is_empty() {
                    self.reader = None;
                    self.again_from = None;
                }
            }
        }
    }

    /// Reads events from where marks want them read; where that cannot be, it is tried again later.
    async fn read_again(&mut self) {
        let Some(from) = self.again_from else { return };
        match self.clerk.bus.ordered(EVENTS, &[], from + 1).await {
            Ok(reader) => {
                self.reader = Some(reader);
                self.position = from;
                self.again_from = None;
            }
            Err(error) => tracing::warn!(%error, "events cannot be read yet for the intents that wait for one"),
        }
    }

    async fn event(&mut self, stored: &Incoming) {
        self.position = stored.sequence;
        let Ok(event) = stored.decode::<Event>() else { return };
        let matched: Vec<IntentMark> = self
            .marks
            .values()
            .filter(|mark| mark.from < stored.sequence && mark.matches.holds(&event))
            .cloned()
            .collect();
        let at = stored.published_at;
        self.waiting.extend(matched.into_iter().map(|mark| Match { mark, at }));
        self.try_again().await;
        self.progress().await;
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
                tracing::warn!(intent = %mark.intent, agent = mark.agent, %error, "matched intent cannot be read yet");
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
        match clerk.due(&mark.agent, mark.intent, *at, met).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(intent = %mark.intent, agent = mark.agent, %error, "matched intent is tried again");
                false
            }
        }
    }

    async fn drop_mark(&mut self, mark: &IntentMark) {
        let marks: Kv<IntentMark> = self.clerk.bus.kv(INTENTS);
        self.marks.remove(&key(mark));
        if let Err(error) = marks.delete(&key(mark), None).await {
            tracing::debug!(intent = %mark.intent, %error, "mark stays behind");
        }
    }

    /// Notes in each mark how far events were looked at for it, so that a restart need not begin at the beginning.
    async fn progress(&mut self) {
        let all_seen = self.waiting.is_empty() && self.again_from.is_none();
        if !self.position.is_multiple_of(PROGRESS_EVERY) || !all_seen {
            return;
        }
        let marks: Kv<IntentMark> = self.clerk.bus.kv(INTENTS);
        for (key, mark) in &mut self.marks {
            if mark.from + PROGRESS_EVERY > self.position {
                continue;
            }
            let Ok(Some(entry)) = marks.get(key).await else {
                continue;
            };
            if entry.value == *mark {
                mark.from = self.position;
                if let Err(error) = marks.update(key, mark, entry.revision).await {
                    tracing::debug!(intent = %mark.intent, %error, "progress was not noted");
                }
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
