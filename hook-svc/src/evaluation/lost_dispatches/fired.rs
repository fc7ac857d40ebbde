//! The fires that the records name, a bounded number at a time.

use std::collections::{BTreeMap, VecDeque};

use shared::bus::{ReadStreamError, StoredMessage, StreamPages};
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use ulid::Ulid;

/// A fire that a record names.
#[derive(Debug)]
pub(super) struct Fired {
    /// The record's sequence in `INVOCATIONS`.
    pub(super) record: u64,
    pub(super) hook_id: String,
    pub(super) started_at: UnixMillis,
    /// Sequence of the event, as the record names it.
    pub(super) event_seq: u64,
    /// Time at which the server stored the record.
    pub(super) stored_at: UnixMillis,
}

impl Fired {
    /// Returns a time before which the dispatch `id` was not made, as far as the record tells. If its event was
    /// evaluated more than once, the record is of the last evaluation and the dispatch of the first one, but an id
    /// begins with the time of its event. Both times are those of other clocks, which may be ahead of the server's.
    pub(super) fn first_made_at(&self, id: Ulid) -> UnixMillis {
        let event_at = i64::try_from(id.timestamp_ms()).unwrap_or(i64::MAX);
        self.started_at.min(UnixMillis(event_at)).min(self.stored_at)
    }
}

/// Reader of the records, window by window.
#[derive(Debug)]
pub(super) struct FiredWindows {
    records: StreamPages,
    /// Records that were read and belong to no window yet.
    page: VecDeque<StoredMessage>,
    window: usize,
}

impl FiredWindows {
    /// Creates a reader of `records` whose windows have `window` fires, and at most those of one record more.
    pub(super) const fn new(records: StreamPages, window: usize) -> Self {
        Self {
            records,
            page: VecDeque::new(),
            window,
        }
    }

    /// Returns the fires of the next window by their dispatches; empty after the last record.
    pub(super) async fn next(&mut self) -> Result<BTreeMap<Ulid, Fired>, ReadStreamError> {
        let mut fired = BTreeMap::new();
        while fired.len() < self.window {
            if let Some(stored) = self.page.pop_front() {
                fired.extend(fires(&stored));
                continue;
            }

            self.page = self.records.next().await?.into();
            if self.page.is_empty() {
                break;
            }
        }

        Ok(fired)
    }
}

/// The fires that the record in `stored` names, by their dispatches.
fn fires(stored: &StoredMessage) -> Vec<(Ulid, Fired)> {
    let Ok(record) = stored.decode::<EventInvocations>() else {
        return Vec::new();
    };
    let (started_at, event_seq, stored_at) = (record.started_at, record.event_seq, stored.published_at);
    let fire = |hook: HookInvocation| match hook.outcome {
        HookOutcome::Fired { dispatch, .. } => Some((
            dispatch,
            Fired {
                record: stored.sequence,
                hook_id: hook.hook_id,
                started_at,
                event_seq,
                stored_at,
            },
        )),
        HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    };

    record.hooks.into_iter().filter_map(fire).collect()
}

#[cfg(test)]
mod tests {
    use shared::bus::OutgoingMessage;
    use shared::model::event::EventId;
    use shared::model::hook::HookResult;
    use shared::testing::world;
    use shared::wire::subject;
    use shared::wire::topology::streams::INVOCATIONS;

    use super::*;

    #[test]
    fn clocks_that_are_ahead_hide_no_dispatch() {
        let (then, ahead) = (UnixMillis(1_764_000_000_000), UnixMillis(1_764_086_400_000));
        let at = |started_at| Fired {
            record: 1,
            hook_id: "hook".to_owned(),
            started_at,
            event_seq: 1,
            stored_at: then,
        };
        let id = |millis: UnixMillis| Ulid::from_parts(millis.0.cast_unsigned(), 7);

        assert_eq!(at(ahead).first_made_at(id(ahead)), then);
        assert_eq!(at(ahead).first_made_at(id(then.plus(-5))), then.plus(-5));
        assert_eq!(at(then.plus(-9)).first_made_at(id(ahead)), then.plus(-9));
    }

    /// The record of an event upon which two hooks fired.
    fn record(number: u64) -> EventInvocations {
        let fired = |hook: u64| HookInvocation {
            hook_id: format!("hook-{hook}"),
            latency_us: 1,
            outcome: HookOutcome::Fired {
                dispatch: Ulid::from_parts(number, u128::from(hook)),
                result: Box::new(HookResult::default()),
                target: None,
            },
            llm_calls: 0,
            llm_tokens_in: 0,
            llm_tokens_out: 0,
            llm_cost_usd: 0.0,
            search_calls: 0,
        };

        EventInvocations {
            event_id: EventId::parse(format!("test:{number}")).expect("an id"),
            event_seq: number,
            evaluated_by: "a".to_owned(),
            started_at: UnixMillis(1),
            finished_at: UnixMillis(2),
            passed: 0,
            hooks: vec![fired(1), fired(2)],
            passes: Vec::new(),
            is_slim: false,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_fire_is_in_one_window_and_no_window_is_larger_than_it_may_be() {
        let (_server, bus) = world().await;
        for number in 1..=5 {
            let record = record(number);
            let out = OutgoingMessage::new(subject::invocation(0, &record.event_id), &record);
            bus.publish(out).await.expect("stored");
        }

        let records = StreamPages::since(&bus, INVOCATIONS, UnixMillis(0));
        let mut windows = FiredWindows::new(records, 3);
        let mut sizes = Vec::new();
        let mut all = BTreeMap::new();
        loop {
            let window = windows.next().await.expect("read");
            if window.is_empty() {
                break;
            }
            sizes.push(window.len());
            all.extend(window);
        }

        assert_eq!(sizes, [4, 4, 2]);
        assert_eq!(all.len(), 10);
    }
}
