//! Fires that records name, compared with the dispatches in their stream.

use std::collections::BTreeMap;

use shared::bus::{Bus, Pages, ReadStreamError, Stored};
use shared::model::dispatch::Dispatch;
use shared::model::hook::HookResult;
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::topology::streams;
use ulid::Ulid;

use super::MARGIN_MS;

/// Number of pages of records that are compared at a time.
const PAGES: usize = 10;

/// A fire that a record names.
pub(super) struct Fired {
    /// Sequence of the record in `INVOCATIONS`.
    pub(super) record: u64,
    pub(super) hook_id: String,
    pub(super) started_at: UnixMillis,
}

/// Removes from `fired` the dispatches that are in their stream, looking at messages stored up to `until`; `None` means
/// all.
pub(super) async fn leave_out_stored(
    bus: &Bus,
    fired: &mut BTreeMap<Ulid, Fired>,
    until: Option<UnixMillis>,
) -> Result<(), ReadStreamError> {
    let Some(first) = first_start(fired) else {
        return Ok(());
    };

    let mut dispatches = Pages::since(bus, streams::DISPATCHES, first);
    while !fired.is_empty() {
        let page = dispatches.next().await?;
        let is_over = |stored: &Stored| until.is_some_and(|until| stored.published_at > until.plus(MARGIN_MS));
        if page.first().is_none_or(is_over) {
            break;
        }
        for dispatch in page.iter().filter_map(|stored| stored.decode::<Dispatch>().ok()) {
            fired.remove(&dispatch.id);
        }
    }

    count_read(dispatches.read());
    Ok(())
}

/// Returns the fires of the next records, by their dispatches, and the time when the last of the records was stored;
/// `None` if there are no more.
pub(super) async fn next_fires(
    records: &mut Pages,
) -> Result<(BTreeMap<Ulid, Fired>, Option<UnixMillis>), ReadStreamError> {
    let (mut fired, mut until) = (BTreeMap::new(), None);
    for _ in 0..PAGES {
        let page = records.next().await?;
        let Some(last) = page.last() else { break };
        until = Some(last.published_at);
        fired.extend(page.iter().flat_map(fires));
    }

    Ok((fired, until))
}

/// Returns a time before the first of `fired` was made; `None` if it is empty.
pub(super) fn first_start(fired: &BTreeMap<Ulid, Fired>) -> Option<UnixMillis> {
    let first = fired.values().map(|fired| fired.started_at).min();
    first.map(|first| first.plus(-MARGIN_MS))
}

pub(super) fn count_read(messages: u64) {
    metrics::counter!("nexus_hook_lost_dispatches_read_total").increment(messages);
}

/// Returns the fires that the record in `stored` names, by their dispatches.
fn fires(stored: &Stored) -> Vec<(Ulid, Fired)> {
    let Ok(record) = stored.decode::<EventInvocations>() else {
        return Vec::new();
    };
    let started_at = record.started_at;
    let fire = |hook: shared::model::invocation::HookInvocation| match hook.outcome {
        HookOutcome::Fired { dispatch, .. } => Some((
            dispatch,
            Fired {
                record: stored.sequence,
                hook_id: hook.hook_id,
                started_at,
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

/// Returns the result of the hook from whose fire the dispatch `id` was made.
pub(super) fn answered(record: &EventInvocations, id: Ulid) -> Option<&HookResult> {
    record.hooks.iter().find_map(|hook| match &hook.outcome {
        HookOutcome::Fired { dispatch, result } if *dispatch == id => Some(&**result),
        HookOutcome::Fired { .. }
        | HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    })
}
