//! Which hooks have killed workers, and which are therefore not called for a while. *Pure.*
//!
//! A hook that loops or crashes its process costs every event in flight a re-run, so it gets one more chance and is
//! then benched: its events are answered with an error at once. After the bench one more death benches it again. A
//! changed source starts anew.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::HookSource;

/// Deaths after which a hook is benched.
const MAX_DEATHS: u32 = 2;

/// How long a benched hook is not called.
const BENCH: Duration = Duration::from_mins(1);

/// A death so long ago is forgotten.
const MEMORY: Duration = Duration::from_mins(10);

/// Most sources remembered; beyond it the memory is cleared, which costs at most more deaths.
const MAX_REMEMBERED: usize = 4_096;

/// Deaths by hook and source.
#[derive(Debug, Default)]
pub(super) struct Blame {
    marks: HashMap<(String, String), Mark>,
}

#[derive(Debug)]
struct Mark {
    deaths: u32,
    last: Instant,
    at_load: bool,
    error: String,
}

impl Blame {
    /// `hook` killed its worker, `at_load` before it could be called at all. True when it is now benched.
    pub(super) fn died(&mut self, hook: &HookSource, at_load: bool, cause: &str, now: Instant) -> bool {
        if self.marks.len() >= MAX_REMEMBERED {
            self.marks.clear();
        }
        let fresh = || Mark {
            deaths: 0,
            last: now,
            at_load,
            error: String::new(),
        };
        let mark = self.marks.entry(key(hook)).or_insert_with(fresh);
        if now.saturating_duration_since(mark.last) > MEMORY {
            mark.deaths = 0;
        }
        mark.deaths += 1;
        mark.last = now;
        mark.at_load |= at_load;
        mark.error = format!("killed its worker {} times: {cause}", mark.deaths);
        mark.deaths >= MAX_DEATHS
    }

    /// Why `hook` is not called now; `None` = it is.
    pub(super) fn bench(&self, hook: &HookSource, now: Instant) -> Option<&str> {
        if self.marks.is_empty() {
            return None;
        }
        let mark = self.marks.get(&key(hook))?;
        let benched = mark.deaths >= MAX_DEATHS && now.saturating_duration_since(mark.last) < BENCH;
        (benched || self.is_barred(hook)).then_some(mark.error.as_str())
    }

    /// Whether `hook` may not even be loaded: it kills workers by being loaded.
    pub(super) fn is_barred(&self, hook: &HookSource) -> bool {
        self.marks
            .get(&key(hook))
            .is_some_and(|mark| mark.at_load && mark.deaths >= MAX_DEATHS)
    }

    /// Whether nobody has killed a worker.
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

fn key(hook: &HookSource) -> (String, String) {
    (hook.id.clone(), hook.content_hash.clone())
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
            sees: crate::runner::Sees::Everything,
        }
    }

    #[test]
    fn the_second_death_benches_and_time_frees() {
        let start = SystemClock.monotonic();
        let mut blame = Blame::default();
        assert!(!blame.died(&hook("a"), false, "no progress", start));
        assert_eq!(blame.bench(&hook("a"), start), None);
        assert!(blame.died(&hook("a"), false, "no progress", start));
        assert_eq!(
            blame.bench(&hook("a"), start),
            Some("killed its worker 2 times: no progress")
        );
        assert_eq!(blame.bench(&hook("b"), start), None, "a changed source starts anew");
        assert_eq!(blame.bench(&hook("a"), start + BENCH), None);
        assert!(
            blame.died(&hook("a"), false, "again", start + BENCH),
            "one more death benches again"
        );
        assert!(!blame.died(&hook("a"), false, "much later", start + BENCH + MEMORY * 2));
    }

    #[test]
    fn a_hook_that_kills_by_being_loaded_stays_out() {
        let start = SystemClock.monotonic();
        let mut blame = Blame::default();
        blame.died(&hook("a"), true, "no progress", start);
        assert!(!blame.is_barred(&hook("a")));
        blame.died(&hook("a"), true, "no progress", start);
        assert!(blame.is_barred(&hook("a")));
        assert!(blame.bench(&hook("a"), start + BENCH * 2).is_some());
    }
}
