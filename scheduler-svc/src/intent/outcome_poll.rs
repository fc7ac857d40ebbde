//! Polls for the end of a firing: at growing intervals by a timer, and when the listener hears of an end.

use std::sync::Arc;

use shared::bus::KvEntry;
use shared::model::intent::timer::IntentTimer;
use shared::model::intent::{Intent, IntentCode, IntentFiring, event_id};
use shared::model::time::UnixMillis;
use shared::wire::subject;
use shared::wire::topology::streams::LEDGER;
use ulid::Ulid;

use super::error::HandleIntentError;
use super::executor::{IntentExecutor, Publication};
use super::machine::FiringEnd;
use super::outcome::{OutcomeSearch, SearchResult};
use super::timers::FIRST_LOOK_MS;
use super::{firing, hooks, lost_firings, sending, timers};

/// Attempts at one poll while other writers change the same intent.
const MAX_TRIES: u32 = 16;
/// Longest time between two polls, milliseconds.
const MAX_LOOK_MS: i64 = 600_000;
/// Longest wait for a turn that no broker has started, milliseconds; after it the outcome counts as unknown.
const NO_OUTCOME_MS: i64 = 24 * 3_600_000;
/// Longest wait for a turn that was started, milliseconds: an approval inside it may wait for a week.
const NO_END_MS: i64 = 8 * 24 * 3_600_000;
/// Records of a session that one search reads.
const MAX_RECORDS: u32 = 16_384;

/// Result of one poll for the end of a firing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The firing has ended.
    Over,
    /// The turn runs, or waits for an approval.
    Runs,
    /// As far as is known, no broker has started the turn.
    Unknown,
}

impl IntentExecutor {
    pub(super) async fn check_outcome(self: &Arc<Self>, timer: &IntentTimer) -> Result<(), HandleIntentError> {
        // A turn that runs may wait long for an approval; one that no broker started is given up earlier.
        let look = self.poll_outcome(&timer.agent, timer.intent, timer.nominal).await?;
        let patience = match look {
            Look::Over => return Ok(()),
            Look::Runs => NO_END_MS,
            Look::Unknown => NO_OUTCOME_MS,
        };
        let Some(entry) = self.store.get(Some(&timer.agent), timer.intent).await? else {
            return Ok(());
        };

        let Some(running) = &entry.value.running else {
            return Ok(());
        };

        let now = self.clock.now();
        let elapsed = now.since(running.at);
        if elapsed >= patience {
            let ending = FiringEnd {
                code: IntentCode::NoOutcome,
                why: format!("the outcome of the turn was unknown after {} h", patience / 3_600_000),
            };
            return self.finish_firing(&entry, &ending).await;
        }

        // The next poll is stored before the repetition below, which may fail.
        let again = now.plus(elapsed.clamp(FIRST_LOOK_MS, MAX_LOOK_MS));
        timers::set_timer(&self.bus, timer, again).await?;

        // Only after the server's own time for copies: before it the new copy would be refused.
        if look == Look::Unknown && elapsed >= lost_firings::LOST_AFTER_MS {
            self.publish_lost(&entry, running).await?;
        }

        Ok(())
    }

    /// Publishes the firing under way of `entry` again, if no record mentions it and it is in no queue.
    async fn publish_lost(
        self: &Arc<Self>,
        entry: &KvEntry<Intent>,
        running: &IntentFiring,
    ) -> Result<(), HandleIntentError> {
        let intent = &entry.value;
        // A restored, older value may show a firing that ended long ago.
        self.store.check(intent).await?;
        if !lost_firings::is_lost(&self.bus, &self.clock, intent, running).await? {
            return Ok(());
        }

        tracing::warn!(
            intent = %intent.intent.id, session = %intent.target(), event_id = %event_id(intent.intent.id, running.nominal)?,
            "firing has no record and no queued message: its stream was restored or emptied; publishing it again"
        );
        metrics::counter!("nexus_scheduler_lost_firings_total").increment(1);

        Box::pin(self.publish_firing(entry, Publication::Lost)).await
    }

    /// Returns whether the firing `nominal` of intent `id` has ended. If its turn has ended, records that.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the poll must be repeated.
    pub async fn look_for_end(&self, agent: &str, id: Ulid, nominal: UnixMillis) -> Result<bool, HandleIntentError> {
        Ok(self.poll_outcome(agent, id, nominal).await? == Look::Over)
    }

    async fn poll_outcome(&self, agent: &str, id: Ulid, nominal: UnixMillis) -> Result<Look, HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let Some(entry) = self.store.get(Some(agent), id).await? else {
                return Ok(Look::Over);
            };
            let running = entry.value.running.clone();
            // The firing has ended, but the process that ended it may have died before the cleanup.
            let Some(running) = running.filter(|running| running.nominal == nominal) else {
                self.settle_intent(&entry.value, self.clock.now()).await?;
                return Ok(Look::Over);
            };

            let ending = match running.dispatch {
                Some(dispatch) => match self.search_ledger(&entry.value, dispatch, running.at).await? {
                    SearchResult::Ended(ending) => ending,
                    SearchResult::Runs(_) => return Ok(Look::Runs),
                    SearchResult::NotYet | SearchResult::Further => return Ok(Look::Unknown),
                },
                None => match self.without_turn(&entry.value, nominal, running.at).await? {
                    Some(ending) => ending,
                    None => return Ok(Look::Unknown),
                },
            };

            // Another replica has changed the intent: its newer value is judged again.
            match self.finish_firing(&entry, &ending).await {
                Err(HandleIntentError::Conflict(_)) => {}
                other => return other.map(|()| Look::Over),
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    /// Returns how a firing that runs no turn ended, or `None` if it has not ended.
    async fn without_turn(
        &self,
        intent: &Intent,
        nominal: UnixMillis,
        at: UnixMillis,
    ) -> Result<Option<FiringEnd>, HandleIntentError> {
        if let Some(reply) = firing::firing_reply(intent, nominal)? {
            return sending::delivery_ending(&self.bus, &reply, 0).await;
        }
        let event = firing::firing_event(intent, nominal, at)?;
        hooks::hook_ending(&self.bus, intent, &event).await
    }

    /// Returns whether the firing under way of `intent` runs in `turn`, by the ledger of its session.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the call must be repeated.
    pub(super) async fn runs_in(&self, intent: &Intent, turn: Ulid) -> Result<bool, HandleIntentError> {
        let Some(running) = &intent.running else {
            return Ok(false);
        };
        let Some(dispatch) = running.dispatch else {
            return Ok(false);
        };

        Ok(match self.search_ledger(intent, dispatch, running.at).await? {
            SearchResult::Runs(in_turn) => in_turn == Some(turn),
            SearchResult::Ended(_) | SearchResult::NotYet | SearchResult::Further => false,
        })
    }

    async fn search_ledger(
        &self,
        intent: &Intent,
        dispatch: Ulid,
        at: UnixMillis,
    ) -> Result<SearchResult, HandleIntentError> {
        let mut search = OutcomeSearch::new(dispatch, at);
        let subject = subject::ledger(&intent.target());
        let mut next = self.bus.last_on_subject(LEDGER, &subject).await?;
        for _ in 0..MAX_RECORDS {
            // The session has no further record, so no broker has started the turn.
            let Some(stored) = next else {
                return Ok(SearchResult::NotYet);
            };
            let Ok(record) = stored.decode_known_entries() else {
                return Ok(SearchResult::NotYet);
            };

            match search.feed_record(&record) {
                SearchResult::Further => {}
                found @ (SearchResult::Ended(_) | SearchResult::Runs(_) | SearchResult::NotYet) => return Ok(found),
            }

            next = self.bus.previous_message(LEDGER, &stored).await?;
        }

        Ok(SearchResult::Further)
    }
}
