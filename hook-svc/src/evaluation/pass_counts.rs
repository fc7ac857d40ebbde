//! Counts passes until they are reported: a pass alone costs two additions, and a record reports those of the last
//! second. *Pure.*

use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::model::invocation::{HookPasses, MAX_TOLD_LATENCIES};

use crate::runner::HookSet;

/// Interval at which passes are reported.
const TELL: Duration = Duration::from_secs(1);

/// Passes of the hooks of one set that were not reported yet.
#[derive(Debug, Default)]
pub(crate) struct PassCounts {
    set: Arc<HookSet>,
    /// Counts by index into the set.
    hooks: Vec<Untold>,
    told: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Untold {
    count: u32,
    /// Ring buffer: the latest is at `count - 1` modulo its length.
    latencies_us: [u32; MAX_TOLD_LATENCIES],
}

impl PassCounts {
    /// Counts a pass of hook `index` of `set`.
    pub(crate) fn count_pass(&mut self, set: &Arc<HookSet>, index: usize, latency_us: u32) {
        if !Arc::ptr_eq(&self.set, set) {
            // The rest of the former set is at most a second's worth, and is dropped with it.
            self.set = Arc::clone(set);
            self.hooks.clear();
            self.hooks.resize(set.hooks().len(), Untold::default());
        }

        if let Some(hook) = self.hooks.get_mut(index) {
            hook.latencies_us[hook.count as usize % MAX_TOLD_LATENCIES] = latency_us;
            hook.count = hook.count.saturating_add(1);
        }
    }

    /// Returns the passes to report at `now`; empty if some were reported less than a second ago.
    pub(crate) fn due_counts(&mut self, now: Instant) -> Vec<HookPasses> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TELL) {
            return Vec::new();
        }
        self.told = Some(now);
        let named = self.hooks.iter_mut().zip(self.set.hooks());
        named
            .filter(|(untold, _)| untold.count > 0)
            .map(|(untold, hook)| std::mem::take(untold).to_counts(&hook.id))
            .collect()
    }
}

impl Untold {
    fn to_counts(self, hook_id: &str) -> HookPasses {
        let kept = (self.count as usize).min(MAX_TOLD_LATENCIES);
        let first = self.count as usize - kept;
        HookPasses {
            hook_id: hook_id.to_owned(),
            count: self.count,
            latencies_us: (first..self.count as usize)
                .map(|at| self.latencies_us[at % MAX_TOLD_LATENCIES])
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;
    use crate::registry::active_hooks::tests::source;

    #[test]
    fn passes_are_told_once_a_second_with_the_latest_latencies() {
        let set = Arc::new(HookSet::new([source("a"), source("b")]));
        let (mut passes, start) = (PassCounts::default(), SystemClock.monotonic());
        for us in 1..=25 {
            passes.count_pass(&set, 1, us);
        }

        let told = passes.due_counts(start);
        assert_eq!((told.len(), told[0].hook_id.as_str(), told[0].count), (1, "b", 25));
        assert_eq!(told[0].latencies_us, (6..=25).collect::<Vec<_>>());

        passes.count_pass(&set, 0, 9);
        assert!(passes.due_counts(start + TELL / 2).is_empty());
        assert_eq!(passes.due_counts(start + TELL)[0].latencies_us, [9]);
        assert!(passes.due_counts(start + TELL * 2).is_empty());
    }
}
