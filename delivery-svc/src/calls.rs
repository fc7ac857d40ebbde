//! Calls to platforms, which run independently of the code that waits for them.
//!
//! A platform may have received a call although the replica was stopped and lost the partition in the meantime, and
//! the response may be in a socket of that process. A call therefore runs in its own task, and its outcome is kept
//! until a receipt records it: for this replica, if it gets the partition back, and for the next owner, which asks
//! (`former_owners`).

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use shared::clock::SharedClock;
use tokio::sync::watch;
use tracing::Instrument as _;
use ulid::Ulid;

use crate::attempt::{CallOutcome, RequestSent};
use crate::job::StreamPlace;

/// Interval of the search for outcomes that no receipt recorded.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// Number of searches for which an outcome is kept, longer than any next owner waits for it. Searches are counted and
/// not time, because a process that was stopped for long still has the outcomes that others ask for.
const KEPT_FOR: u32 = 15;

/// The identity of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallId {
    /// Id of the delivery.
    pub delivery: Ulid,
    /// Place of the delivery in `DELIVERIES`: a delivery that was given up and published again is another copy.
    pub copy: StreamPlace,
    /// Index of the part, from 0.
    pub part: u32,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

impl CallId {
    const fn delivery_and_copy(&self) -> (Ulid, StreamPlace) {
        (self.delivery, self.copy)
    }
}

/// The progress of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum CallStage {
    /// The call is running.
    UnderWay,
    /// The call has ended.
    Ended {
        /// Outcome of the call.
        call: CallOutcome,
    },
}

/// A call until a receipt records its outcome.
#[derive(Debug)]
struct Kept {
    id: CallId,
    /// Number of searches since the call was made.
    looks: u32,
    outcome: watch::Receiver<Option<CallOutcome>>,
}

impl Kept {
    fn is_under_way(&self) -> bool {
        self.outcome.borrow().is_none() && self.outcome.has_changed().is_ok()
    }
}

#[derive(Debug)]
struct Book {
    /// Calls by delivery and copy.
    kept: HashMap<(Ulid, StreamPlace), Vec<Kept>>,
    looked_at: Instant,
}

impl Book {
    fn get(&self, id: CallId) -> Option<&Kept> {
        self.kept.get(&id.delivery_and_copy())?.iter().find(|one| one.id == id)
    }
}

/// The calls of one process.
#[derive(Debug)]
pub struct ProcessCalls {
    book: Mutex<Book>,
    clock: SharedClock,
}

impl ProcessCalls {
    /// Creates an empty book of calls.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        let looked_at = clock.monotonic();
        let kept = HashMap::new();
        Self {
            book: Mutex::new(Book { kept, looked_at }),
            clock,
        }
    }

    fn lock_book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `call` and waits for its outcome, which is kept. A panic of the channel counts as an attempt without a
    /// response, because the platform may have received the call. Returns `None` if the process is about to end.
    pub async fn make_call(
        &self,
        id: CallId,
        call: impl Future<Output = CallOutcome> + Send + 'static,
    ) -> Option<CallOutcome> {
        let (told, outcome) = watch::channel(None);
        self.keep_outcome(id, outcome.clone());

        // A separate task, because the caller may be gone when the response arrives.
        let guarded = AssertUnwindSafe(call).catch_unwind();
        let told = async move { told.send_replace(Some(guarded.await.unwrap_or_else(|panic| broke_off(&*panic)))) };
        tokio::spawn(told.in_current_span());

        let made = await_end(outcome).await;
        if matches!(made, None | Some(CallOutcome::Withheld)) {
            self.drop_one(id);
        }

        made
    }

    fn keep_outcome(&self, id: CallId, outcome: watch::Receiver<Option<CallOutcome>>) {
        let now = self.clock.monotonic();
        let mut book = self.lock_book();
        if now.saturating_duration_since(book.looked_at) > LOOK_EVERY {
            book.looked_at = now;
            book.kept.retain(|_, calls| {
                calls.iter_mut().for_each(|one| one.looks += 1);
                calls.iter().any(|one| one.is_under_way() || one.looks < KEPT_FOR)
            });
        }

        let calls = book.kept.entry(id.delivery_and_copy()).or_default();
        calls.retain(|one| one.id != id);
        calls.push(Kept { id, looks: 0, outcome });
    }

    fn drop_one(&self, id: CallId) {
        let mut book = self.lock_book();
        let calls = book.kept.entry(id.delivery_and_copy()).or_default();
        calls.retain(|one| one.id != id);
        if calls.is_empty() {
            book.kept.remove(&id.delivery_and_copy());
        }
    }

    /// Returns the outcome of the call `id` if this process made it. Waits if the call is running.
    pub async fn await_outcome(&self, id: CallId) -> Option<CallOutcome> {
        let kept = self.lock_book().get(id).map(|kept| kept.outcome.clone());
        await_end(kept?).await.filter(|call| *call != CallOutcome::Withheld)
    }

    /// Returns the progress of the call `id` if this process made it.
    #[must_use]
    pub fn stage_of(&self, id: CallId) -> Option<CallStage> {
        let book = self.lock_book();
        let kept = book.get(id)?;
        let ended = kept.outcome.borrow().clone();
        match ended {
            Some(CallOutcome::Withheld) => None,
            Some(call) => Some(CallStage::Ended { call }),
            None => kept.is_under_way().then_some(CallStage::UnderWay),
        }
    }

    /// Removes the calls of a delivery, whose outcomes are recorded by receipts.
    pub fn forget_delivery(&self, delivery: Ulid, copy: StreamPlace) {
        self.lock_book().kept.remove(&(delivery, copy));
    }
}

/// Returns the outcome of a call whose channel panicked.
fn broke_off(panic: &(dyn Any + Send)) -> CallOutcome {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    metrics::counter!("nexus_delivery_panics_total").increment(1);
    tracing::error!(
        panic = said.unwrap_or("without words"),
        "channel panicked; this is a bug"
    );

    CallOutcome::Unreachable {
        sent: RequestSent::Maybe,
        reason: "the channel failed unexpectedly; the log has the reason".to_owned(),
    }
}

async fn await_end(mut outcome: watch::Receiver<Option<CallOutcome>>) -> Option<CallOutcome> {
    let told = outcome.wait_for(Option::is_some).await;
    told.ok().and_then(|call| call.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::clock::SystemClock;
    use shared::model::time::UnixMillis;
    use shared::testing::ManualClock;

    use super::*;

    const fn at(sequence: u64) -> StreamPlace {
        StreamPlace {
            sequence,
            stored_at_ns: 1,
        }
    }

    const ID: CallId = CallId {
        delivery: Ulid::from_parts(1, 1),
        copy: at(7),
        part: 0,
        attempt: 1,
    };

    fn answered() -> CallOutcome {
        CallOutcome::Accepted {
            platform_ids: vec!["7".to_owned()],
            live: None,
        }
    }

    #[tokio::test]
    async fn a_call_ends_although_nobody_waits_for_it_and_is_told_to_whoever_asks() {
        let calls = Arc::new(ProcessCalls::new(Arc::new(SystemClock)));
        let (answer, waits) = tokio::sync::oneshot::channel();
        let made = {
            let calls = Arc::clone(&calls);
            tokio::spawn(async move { calls.make_call(ID, async { waits.await.expect("an answer") }).await })
        };

        while calls.stage_of(ID).is_none() {
            tokio::task::yield_now().await;
        }

        assert_eq!(calls.stage_of(ID), Some(CallStage::UnderWay));

        made.abort();
        answer.send(answered()).expect("the call goes on");
        assert_eq!(calls.await_outcome(ID).await, Some(answered()));
        assert_eq!(calls.stage_of(ID), Some(CallStage::Ended { call: answered() }));

        let other = CallId { copy: at(8), ..ID };
        assert_eq!(calls.await_outcome(other).await, None, "another copy of the delivery");

        calls.forget_delivery(ID.delivery, ID.copy);
        assert_eq!(calls.await_outcome(ID).await, None);
    }

    #[tokio::test]
    async fn ends_are_kept_over_a_day_in_which_the_process_was_stopped_and_not_for_ever() {
        let clock = Arc::new(ManualClock::at(UnixMillis(0)));
        let calls = ProcessCalls::new(clock.clone());
        let call = |sequence| CallId {
            copy: at(sequence),
            ..ID
        };

        calls.make_call(call(1), async { answered() }).await;
        clock.advance(24 * 3_600_000);
        calls.make_call(call(2), async { answered() }).await;

        assert_eq!(calls.await_outcome(call(1)).await, Some(answered()));

        for sequence in 3..3 + u64::from(KEPT_FOR) {
            clock.advance(120_000);
            calls.make_call(call(sequence), async { answered() }).await;
        }

        assert_eq!(calls.await_outcome(call(1)).await, None, "nobody asks any more");
    }

    #[tokio::test]
    async fn what_was_withheld_counts_as_not_made() {
        let calls = ProcessCalls::new(Arc::new(SystemClock));
        assert_eq!(
            calls.make_call(ID, async { CallOutcome::Withheld }).await,
            Some(CallOutcome::Withheld)
        );
        assert_eq!(calls.await_outcome(ID).await, None);
        assert_eq!(calls.stage_of(ID), None);
    }

    #[tokio::test]
    async fn a_channel_that_panics_has_made_an_attempt_without_an_answer() {
        let calls = ProcessCalls::new(Arc::new(SystemClock));
        let made = calls.make_call(ID, async { panic!("broken") }).await;
        assert!(matches!(made, Some(CallOutcome::Unreachable { .. })), "{made:?}");
        assert_eq!(calls.await_outcome(ID).await, made, "the next owner is told");
    }
}
