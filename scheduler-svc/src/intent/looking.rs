//! Looking for how a firing ended: on a timer that rings seldomer and seldomer, and whenever the bell says so.

use std::sync::Arc;

use shared::bus::KvEntry;
use shared::model::intent::timer::IntentTimer;
use shared::model::intent::{Intent, IntentCode, IntentFiring, event_id};
use shared::model::ledger::LedgerRecord;
use shared::model::time::UnixMillis;
use shared::wire::subject;
use shared::wire::topology::streams::LEDGER;
use ulid::Ulid;

use super::clerk::{IntentExecutor, Publication};
use super::error::HandleIntentError;
use super::machine::FiringEnd;
use super::outcome::{OutcomeSearch, SearchResult};
use super::{firing, hooks, lost, sending, timers};

/// Tries of one look while others take steps on the same intent.
const MAX_TRIES: u32 = 16;
/// First look whether a turn has ended, milliseconds after its firing; the bell is usually faster.
pub(super) const FIRST_LOOK_MS: i64 = 30_000;
/// Longest time between two looks, milliseconds.
const MAX_LOOK_MS: i64 = 600_000;
/// After so long nobody will say any more how a turn ended that nobody has begun, milliseconds.
const NO_OUTCOME_MS: i64 = 24 * 3_600_000;
/// After so long a turn that was begun is not waited for any more, milliseconds: an approval inside may wait for a week.
const NO_END_MS: i64 = 8 * 24 * 3_600_000;
/// Records of a session looked at for one end.
const MAX_RECORDS: u32 = 16_384;

/// What a look says of a firing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// It is over.
    Over,
    /// Its turn runs, or waits for a human's word.
    Runs,
    /// Nobody has begun it, as far as can be seen.
    Unknown,
}

impl IntentExecutor {
    pub(super) async fn check_outcome(self: &Arc<Self>, timer: &IntentTimer) -> Result<(), HandleIntentError> {
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
                why: format!("nobody could say within {} h how its turn ended", patience / 3_600_000),
            };
            return self.finish_firing(&entry, &ending).await;
        }

        let again = now.plus(elapsed.clamp(FIRST_LOOK_MS, MAX_LOOK_MS));
        timers::set_timer(&self.bus, timer, again).await?;

        if look == Look::Unknown && elapsed >= lost::LOST_AFTER_MS {
            self.publish_lost(&entry, running).await?;
        }

        Ok(())
    }

    /// Publishes the firing under way of `entry` again, of which no record tells, if it waits nowhere.
    async fn publish_lost(
        self: &Arc<Self>,
        entry: &KvEntry<Intent>,
        running: &IntentFiring,
    ) -> Result<(), HandleIntentError> {
        let intent = &entry.value;
        // A value that was put back to an older state may be of a firing that is long over.
        self.store.check(intent).await?;
        if !lost::is_lost(&self.bus, &self.clock, intent, running).await? {
            return Ok(());
        }

        tracing::warn!(
            intent = %intent.intent.id, session = %intent.target(), event_id = %event_id(intent.intent.id, running.nominal)?,
            "firing has no record and no queued message: its stream was restored or emptied; publishing it again"
        );
        metrics::counter!("nexus_scheduler_lost_firings_total").increment(1);

        Box::pin(self.publish_firing(entry, Publication::Lost)).await
    }

    /// Whether the firing `nominal` of intent `id` is over; where its turn has ended, it is now.
    ///
    /// # Errors
    /// [`HandleIntentError`]: to be tried again.
    pub async fn look_for_end(&self, agent: &str, id: Ulid, nominal: UnixMillis) -> Result<bool, HandleIntentError> {
        Ok(self.poll_outcome(agent, id, nominal).await? == Look::Over)
    }

    async fn poll_outcome(&self, agent: &str, id: Ulid, nominal: UnixMillis) -> Result<Look, HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let Some(entry) = self.store.get(Some(agent), id).await? else {
                return Ok(Look::Over);
            };
            let running = entry.value.running.clone();
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

            match self.finish_firing(&entry, &ending).await {
                Err(HandleIntentError::Conflict(_)) => {}
                other => return other.map(|()| Look::Over),
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    /// How a firing ended that runs no turn.
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

    /// Whether the firing under way of `intent` runs in `turn`, as the ledger of its session says.
    ///
    /// # Errors
    /// [`HandleIntentError`]: to be tried again.
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
            let Some(stored) = next else {
                return Ok(SearchResult::NotYet);
            };
            let Ok(record) = stored.decode::<LedgerRecord>() else {
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
