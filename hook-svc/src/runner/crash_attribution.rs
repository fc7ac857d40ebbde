//! Which hooks are suspected of killing workers, and which of them are suspended for a while. *Pure.*
//!
//! A hook that loops or crashes its process costs every event in flight a re-run. A hook that killed a worker, or was
//! waiting in one that died without naming the hook that ran, becomes a suspect: it is called in a process of its own,
//! so that its next death is certainly its own and costs no other hook. After a second death it is benched: its events
//! fail with an error at once. After the bench, one more death benches it again. [`CLEAN_RUNS`] runs without a death
//! clear it. A changed source starts without a mark.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{HookSet, HookSource};

/// Number of deaths after which a hook is benched.
const MAX_DEATHS: u32 = 2;

/// Number of runs without a death that clear a suspect.
const CLEAN_RUNS: u32 = 20;

/// Time during which a benched hook is not called.
const BENCH: Duration = Duration::from_mins(1);

/// Age at which a death is forgotten.
const MEMORY: Duration = Duration::from_mins(10);

/// Most sources remembered; if there are more, all marks are cleared, which costs at most more deaths.
const MAX_REMEMBERED: usize = 4_096;

/// Marks by hook id; each mark is for one source.
#[derive(Debug, Default)]
pub(super) struct CrashAttribution {
    marks: HashMap<String, Mark>,
}

#[derive(Debug)]
struct Mark {
    source: String,
    deaths: u32,
    clean: u32,
    /// Time of the last death or suspicion.
    last: Instant,
    /// Time of the last death, if any: a suspicion does not prolong a bench.
    died_at: Option<Instant>,
    at_load: bool,
    error: String,
}

impl Mark {
    fn new(hook: &HookSource, now: Instant) -> Self {
        Self {
            source: hook.content_hash.clone(),
            deaths: 0,
            clean: 0,
            last: now,
            died_at: None,
            at_load: false,
            error: String::new(),
        }
    }

    /// Returns whether the mark is still valid. A hook that kills by being loaded stays apart; any other mark expires.
    fn is_valid(&self, now: Instant) -> bool {
        self.at_load || now.saturating_duration_since(self.last) <= MEMORY
    }
}

impl CrashAttribution {
    /// Records that `hook` killed its worker; `at_load` if it did so while being loaded. Returns true if the hook is
    /// now benched.
    pub(super) fn record_death(&mut self, hook: &HookSource, at_load: bool, cause: &str, now: Instant) -> bool {
        let mark = self.mark_of(hook, now);
        let is_old = |died_at: Instant| now.saturating_duration_since(died_at) > MEMORY;
        if mark.died_at.is_some_and(is_old) {
            mark.deaths = 0;
        }

        mark.deaths += 1;
        mark.clean = 0;
        (mark.last, mark.died_at) = (now, Some(now));
        mark.at_load |= at_load;
        mark.error = format!("killed its worker {} times: {cause}", mark.deaths);

        mark.deaths >= MAX_DEATHS
    }

    /// Returns whether `hook` is called apart from others.
    pub(super) fn is_suspect(&self, hook: &HookSource, now: Instant) -> bool {
        self.find_mark(hook).is_some_and(|mark| mark.is_valid(now))
    }

    /// Records that `hook` was waiting in a worker that died without naming the hook that ran.
    pub(super) fn record_suspect(&mut self, hook: &HookSource, now: Instant) {
        let mark = self.mark_of(hook, now);
        mark.last = now;
        mark.clean = 0;
    }

    fn mark_of(&mut self, hook: &HookSource, now: Instant) -> &mut Mark {
        if self.marks.len() >= MAX_REMEMBERED {
            self.marks.clear();
        }
        let fresh = || Mark::new(hook, now);
        let mark = self.marks.entry(hook.id.clone()).or_insert_with(fresh);
        if mark.source != hook.content_hash {
            *mark = fresh();
        }
        mark
    }

    fn find_mark(&self, hook: &HookSource) -> Option<&Mark> {
        let mark = self.marks.get(&hook.id)?;
        (mark.source == hook.content_hash).then_some(mark)
    }

    /// Returns the hooks of `set` whose mark meets `holds`, by index, ascending.
    fn marked_hooks<'a>(&'a self, set: &HookSet, holds: impl Fn(&Mark) -> bool) -> Vec<(u32, &'a Mark)> {
        let known = self.marks.iter().filter(|(_, mark)| holds(mark));
        let known = known.filter_map(|(id, mark)| Some((set.index(id)?, mark)));
        let is_same = |index: u32, mark: &Mark| {
            let hook = set.hooks().get(index as usize);
            hook.is_some_and(|hook| hook.content_hash == mark.source)
        };
        let mut marked: Vec<(u32, &Mark)> = known.filter(|(index, mark)| is_same(*index, mark)).collect();
        marked.sort_unstable_by_key(|(index, _)| *index);
        marked
    }

    /// Returns the hooks of `set` that must be called apart from others, by index, ascending.
    pub(super) fn suspect_indices(&self, set: &HookSet, now: Instant) -> Vec<u32> {
        let marked = self.marked_hooks(set, |mark| mark.is_valid(now));
        marked.into_iter().map(|(index, _)| index).collect()
    }

    /// Records that `hook`, a suspect, has run apart without a death. Returns true if that clears it.
    pub(super) fn record_clean_run(&mut self, hook: &HookSource) -> bool {
        let Some(mark) = self
            .marks
            .get_mut(&hook.id)
            .filter(|mark| mark.source == hook.content_hash)
        else {
            return false;
        };

        mark.clean += 1;
        let is_clear = mark.clean >= CLEAN_RUNS && !mark.at_load;
        if is_clear {
            self.marks.remove(&hook.id);
        }

        is_clear
    }

    /// Returns whether `hook` must not be loaded beside others: it has killed a worker by being loaded.
    pub(super) fn is_loaded_apart(&self, hook: &HookSource) -> bool {
        self.find_mark(hook).is_some_and(|mark| mark.at_load)
    }

    /// Returns the hooks of `set` that are suspended now, by index, ascending, with the reason.
    pub(super) fn benched_hooks(&self, set: &HookSet, now: Instant) -> Vec<(u32, &str)> {
        let is_recent = |died_at: Instant| now.saturating_duration_since(died_at) < BENCH;
        let is_benched =
            |mark: &Mark| mark.deaths >= MAX_DEATHS && (mark.at_load || mark.died_at.is_some_and(is_recent));
        let marked = self.marked_hooks(set, is_benched);
        marked
            .into_iter()
            .map(|(index, mark)| (index, mark.error.as_str()))
            .collect()
    }

    /// Returns whether `hook` must not be loaded at all: it kills workers by being loaded.
    pub(super) fn is_barred(&self, hook: &HookSource) -> bool {
        self.find_mark(hook)
            .is_some_and(|mark| mark.at_load && mark.deaths >= MAX_DEATHS)
    }

    /// Returns whether no hook is suspected.
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::clock::{Clock as _, SystemClock};
    use shared::model::time::UnixMillis;

    fn hook(hash: &str) -> HookSource {
        HookSource {
            id: "loops".to_owned(),
            name: "loops".to_owned(),
            source: String::new(),
            content_hash: hash.to_owned(),
            timeout_ms: 1_000,
            created_at: UnixMillis(0),
            created_by: "operator".to_owned(),
            sees: crate::runner::HookScope::Everything,
            net: Vec::new(),
        }
    }

    fn bench(blame: &CrashAttribution, hook: &HookSource, now: Instant) -> Option<String> {
        let set = HookSet::new([hook.clone()]);
        let benched = blame.benched_hooks(&set, now);
        benched.first().map(|(_, error)| (*error).to_owned())
    }

    fn is_suspect(blame: &CrashAttribution, hook: &HookSource, now: Instant) -> bool {
        blame.suspect_indices(&HookSet::new([hook.clone()]), now) == [0]
    }

    #[test]
    fn the_second_death_benches_and_time_frees() {
        let start = SystemClock.monotonic();
        let mut blame = CrashAttribution::default();
        assert!(!blame.record_death(&hook("a"), false, "no progress", start));
        assert_eq!(bench(&blame, &hook("a"), start), None);
        assert!(blame.record_death(&hook("a"), false, "no progress", start));
        assert_eq!(
            bench(&blame, &hook("a"), start).as_deref(),
            Some("killed its worker 2 times: no progress")
        );
        assert_eq!(bench(&blame, &hook("b"), start), None, "a changed source starts anew");

        blame.record_suspect(&hook("a"), start + BENCH / 2);
        assert_eq!(bench(&blame, &hook("a"), start + BENCH), None, "suspicion is no death");
        assert!(
            blame.record_death(&hook("a"), false, "again", start + BENCH),
            "one more death benches again"
        );
        assert!(!blame.record_death(&hook("a"), false, "much later", start + BENCH + MEMORY * 2));
    }

    #[test]
    fn a_suspect_is_cleared_by_runs_or_by_time_and_never_benched_without_a_death() {
        let start = SystemClock.monotonic();
        let mut blame = CrashAttribution::default();
        let hook = hook("a");

        assert!(!is_suspect(&blame, &hook, start));

        for _ in 0..2 {
            blame.record_suspect(&hook, start);
            assert!(is_suspect(&blame, &hook, start) && bench(&blame, &hook, start).is_none());
            let cleared = (1..=CLEAN_RUNS).find(|_| blame.record_clean_run(&hook));
            assert_eq!(cleared, Some(CLEAN_RUNS));
            assert!(!is_suspect(&blame, &hook, start));
        }

        blame.record_suspect(&hook, start);
        assert!(!is_suspect(&blame, &hook, start + MEMORY * 2));
    }

    #[test]
    fn a_death_takes_away_the_runs_before_it() {
        let start = SystemClock.monotonic();
        let mut blame = CrashAttribution::default();
        let hook = hook("a");
        assert!(!blame.record_death(&hook, false, "no progress", start));
        assert!((1..CLEAN_RUNS).all(|_| !blame.record_clean_run(&hook)));
        assert!(blame.record_death(&hook, false, "no progress", start));
        assert!((1..CLEAN_RUNS).all(|_| !blame.record_clean_run(&hook)));
        assert!(blame.record_clean_run(&hook));
    }

    #[test]
    fn a_hook_that_kills_by_being_loaded_stays_out() {
        let start = SystemClock.monotonic();
        let mut blame = CrashAttribution::default();
        blame.record_death(&hook("a"), true, "no progress", start);
        assert!(!blame.is_barred(&hook("a")));
        assert!(
            (0..CLEAN_RUNS * 2).all(|_| !blame.record_clean_run(&hook("a"))),
            "it stays apart"
        );
        assert!(blame.is_loaded_apart(&hook("a")) && is_suspect(&blame, &hook("a"), start + MEMORY * 2));
        blame.record_death(&hook("a"), true, "no progress", start);
        assert!(blame.is_barred(&hook("a")));
        assert!(bench(&blame, &hook("a"), start + BENCH * 2).is_some());
    }
}
