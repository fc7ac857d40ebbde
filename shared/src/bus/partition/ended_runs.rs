//! Which runs of processes have ended, of those that have tried a message.
//!
//! A replica announces its run with its membership each [`TICK`], for as long as it lives. A run that is announced anew
//! has lost a partition's lease and was not ended by the message in hand. A run that is not announced has ended: its
//! process is gone or stands still, or a handler of it has panicked, which begins another run. An announcement outlasts
//! its process by at most [`TTL`], so the one that is found first proves nothing.

use std::collections::HashMap;

use crate::clock::pause;
use crate::wire::session_mark::GroupMember;

use super::super::error::ReadStreamError;
use super::super::kv::Kv;
use super::{TICK, TTL};

/// Judges runs by their announcements. *Pure.*
#[derive(Debug)]
struct RunJudge {
    /// Runs that are not known to live or to have ended.
    open: Vec<String>,
    ended: Vec<String>,
    /// First revision at which each run was found announced.
    first: HashMap<String, u64>,
}

impl RunJudge {
    fn new(runs: Vec<String>) -> Self {
        Self {
            open: runs,
            ended: Vec::new(),
            first: HashMap::new(),
        }
    }

    /// Judges the open runs by the runs that are announced now, with their revisions.
    fn note_announced(&mut self, announced: &HashMap<String, u64>) {
        for run in std::mem::take(&mut self.open) {
            match (announced.get(&run), self.first.get(&run)) {
                (None, _) => self.ended.push(run),
                (Some(now), Some(first)) if now > first => {}
                (Some(now), _) => {
                    self.first.entry(run.clone()).or_insert(*now);
                    self.open.push(run);
                }
            }
        }
    }

    /// Returns the runs that have ended, and those of which that is not known.
    fn into_ended(self) -> Vec<String> {
        self.ended.into_iter().chain(self.open).collect()
    }
}

/// Returns those of `runs` that have ended. Waits until each is announced anew or is not announced any more, at most a
/// little longer than an announcement lasts; a run that is still undecided then counts as ended.
///
/// # Errors
/// Returns [`ReadStreamError`] if the announcements cannot be read.
pub(super) async fn find_ended_runs(
    members: &Kv<GroupMember>,
    group: &str,
    runs: Vec<String>,
) -> Result<Vec<String>, ReadStreamError> {
    let looks = (TTL + TICK).as_millis().div_ceil((TICK / 2).as_millis());
    let mut judge = RunJudge::new(runs);
    for _ in 0..looks {
        if judge.open.is_empty() {
            break;
        }

        judge.note_announced(&announced_runs(members, group).await?);
        if !judge.open.is_empty() {
            pause(TICK / 2).await;
        }
    }

    Ok(judge.into_ended())
}

/// Returns the runs that the members of `group` announce, with the newest revision of each.
async fn announced_runs(members: &Kv<GroupMember>, group: &str) -> Result<HashMap<String, u64>, ReadStreamError> {
    let prefix = format!("{group}.");
    let mut announced = HashMap::new();
    for (key, entry) in members.entries().await? {
        if key.starts_with(&prefix) {
            let newest = announced.entry(entry.value.run).or_insert(entry.revision);
            *newest = entry.revision.max(*newest);
        }
    }

    Ok(announced)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges one run by what is found at each look, a revision or nothing. Returns whether it counts as ended.
    fn check(looks: &[Option<u64>]) -> bool {
        let mut judge = RunJudge::new(vec!["run".to_owned()]);
        for look in looks {
            let announced = look.map(|revision| ("run".to_owned(), revision));
            judge.note_announced(&announced.into_iter().collect());
        }
        !judge.into_ended().is_empty()
    }

    #[test]
    fn a_run_that_is_announced_anew_lives_and_any_other_has_ended() {
        assert!(check(&[None]), "it is gone");
        assert!(check(&[Some(7)]), "its first announcement may outlast it");
        assert!(check(&[Some(7), Some(7), None]), "its announcement has run out");
        assert!(check(&[Some(7), Some(7), Some(7)]), "nothing is known");
        assert!(!check(&[Some(7), Some(9)]));
        assert!(
            !check(&[Some(7), Some(7), Some(9), None]),
            "it lived after it lost the lease"
        );
    }

    #[test]
    fn runs_are_judged_apart() {
        let mut judge = RunJudge::new(["a", "b", "c"].map(str::to_owned).to_vec());
        let look = |runs: &[(&str, u64)]| runs.iter().map(|(run, at)| ((*run).to_owned(), *at)).collect();
        judge.note_announced(&look(&[("a", 1), ("b", 2), ("me", 3)]));
        assert_eq!((judge.open.len(), judge.ended.len()), (2, 1));
        judge.note_announced(&look(&[("a", 4), ("me", 5)]));
        assert_eq!(judge.into_ended(), ["c", "b"]);
    }
}
