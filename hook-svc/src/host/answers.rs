//! Answers of hooks that called the model or search, stored in KV `hook_results` before their actions are performed.
//!
//! In another run such hooks might answer differently. So a fire is stored before its dispatch is published, and if
//! `@fallback` hooks fire because such hooks passed, the passes are stored first; a redelivered event uses the stored
//! answers. There is one entry per event: only its owner writes it, and if a former owner did at the same time, the
//! first answer of each hook counts. Source: `docs/design/hooks.md` §3.

use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::model::event::EventId;
use shared::model::hook::{StoredAnswer, StoredAnswers};
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_RESULTS;

/// Time for which answers are kept; no event is redelivered later.
const KEPT: Duration = Duration::from_secs(7 * 86_400);

/// Most retries of a compare-and-set after a conflict.
const MAX_TRIES: u32 = 20;

/// Store of answers; cheap to clone. See the module.
#[derive(Debug, Clone)]
pub(crate) struct AnswerStore {
    kv: Kv<StoredAnswers>,
}

impl AnswerStore {
    /// Opens the store on `bus`.
    pub(crate) fn new(bus: &Bus) -> Self {
        Self {
            kv: bus.kv(HOOK_RESULTS),
        }
    }

    /// Returns the stored answers of the occurrence `key`. An unreadable entry counts as empty.
    pub(crate) async fn read_answers(&self, key: &EventId) -> Result<Vec<StoredAnswer>, CasError> {
        let (stored, _) = self.kv.find(&token(key.as_str())).await?;
        Ok(stored.map(|stored| stored.answers).unwrap_or_default())
    }

    /// Stores `new` answers for the occurrence `key`. Returns all answers that count.
    pub(crate) async fn store_answers(
        &self,
        key: &EventId,
        new: &[StoredAnswer],
    ) -> Result<Vec<StoredAnswer>, CasError> {
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

/// Returns `former` and those of `new` whose hooks have no answer yet.
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
