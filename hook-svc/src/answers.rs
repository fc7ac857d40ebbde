//! Answers of hooks that asked the model or searched: stored before anything comes of them, in KV `hook_results`.
//!
//! Asked again they might answer otherwise. So a fire is stored before its dispatch is published, and where `@fallback`
//! hooks fire because such hooks passed, the passes are stored before; an event that comes again is decided on these.
//! One entry an event: its owner alone writes it, and where a former owner did at the same time, the first answer of
//! each hook counts. Source: `docs/design/hooks.md` §3.

use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::model::event::EventId;
use shared::model::hook::{StoredAnswer, StoredAnswers};
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_RESULTS;

/// How long answers are kept: no event comes again later.
const KEPT: Duration = Duration::from_secs(7 * 86_400);

/// How often a compare-and-set is tried again after a conflict.
const MAX_TRIES: u32 = 20;

/// See the module; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    kv: Kv<StoredAnswers>,
}

impl Answers {
    /// On `bus`.
    pub(crate) fn new(bus: &Bus) -> Self {
        Self {
            kv: bus.kv(HOOK_RESULTS),
        }
    }

    /// What is stored of the occurrence `key`. What cannot be read counts as nothing.
    pub(crate) async fn of(&self, key: &EventId) -> Result<Vec<StoredAnswer>, CasError> {
        let (stored, _) = self.kv.find(&token(key.as_str())).await?;
        Ok(stored.map(|stored| stored.answers).unwrap_or_default())
    }

    /// Stores `new` answers upon the occurrence `key`; answers all that count.
    pub(crate) async fn keep(&self, key: &EventId, new: &[StoredAnswer]) -> Result<Vec<StoredAnswer>, CasError> {
        let key = token(key.as_str());
        let mut tries = 0;
        loop {
            let (former, revision) = self.kv.find(&key).await?;
            let former = former.unwrap_or_default();
            let next = with(&former, new);
            if next == former {
                return Ok(former.answers);
            }

            match self.kv.update_ttl(&key, &next, revision, KEPT).await {
                Ok(_) => return Ok(next.answers),
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// `former` and those of `new` whose hooks have no answer yet.
fn with(former: &StoredAnswers, new: &[StoredAnswer]) -> StoredAnswers {
    let mut answers = former.answers.clone();
    for answer in new {
        if !answers.iter().any(|known| known.hook_id() == answer.hook_id()) {
            answers.push(answer.clone());
        }
    }
    StoredAnswers { answers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::model::hook::HookResult;

    #[test]
    fn the_first_answer_of_a_hook_counts() {
        let passed = |id: &str| StoredAnswer::Passed { hook_id: id.to_owned() };
        let fired = StoredAnswer::Fired {
            hook_id: "a".to_owned(),
            result: Box::new(HookResult::default()),
        };
        let first = with(&StoredAnswers::default(), std::slice::from_ref(&fired));
        let second = with(&first, &[passed("a"), passed("b")]);
        assert_eq!(second.answers, [fired, passed("b")]);
    }
}
