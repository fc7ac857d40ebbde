//! The post-turn hooks of finished turns. The ledger records which hooks are due, and they run one after the other
//! while the session goes on.
//!
//! One hook of a session runs at a time, in a task of its own, so that neither a new turn nor a stop waits for it. A
//! hook that has run is not run again, even if others fail. A hook that fails is tried again a little later, and is
//! then skipped and reported. The task ends with its owner: the session's next owner runs the hook again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use shared::clock::pause;
use shared::model::ledger::{FinishedTurn, LedgerEntry, TurnEnding, UnseenCall};
use shared::model::time::{UnixMillis, millis_of};
use tokio::task::{JoinError, JoinSet};
use ulid::Ulid;

use super::Worker;
use super::wait::LOOK_EVERY;
use crate::error::RunSessionError;
use crate::hooks::declared::DeclaredHook;
use crate::hooks::runs::TurnHookRun;
use crate::hooks::{HookPoint, HookedTurn, TurnHooks};
use crate::ledger::state::PendingPostHooks;
use crate::session::PendingDispatch;
use crate::turn::Turn;

/// Waits before a failed hook is tried again; once they are used up, the hook is skipped.
const AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// Maximum number of turns with due post-turn hooks while other turns run.
const MAX_BEHIND: usize = 8;

/// The post-turn hook that runs now, if there is one; dropping this ends the hook.
#[derive(Debug, Default)]
pub(super) struct PostHookRunner {
    tasks: JoinSet<FinishedHook>,
}

/// A post-turn hook that has run.
#[derive(Debug)]
struct FinishedHook {
    turn: Ulid,
    /// Key of the hook; none if these are the hooks after tool calls, which saw the turn's last call.
    hook: Option<String>,
    ran: Vec<TurnHookRun>,
    /// Whether the hook failed and must run again.
    failed: bool,
}

impl PostHookRunner {
    fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Shows `unseen`, the last call of `turn`, to the hooks after tool calls.
    fn show_call(&mut self, hooks: Arc<TurnHooks>, moment: HookedTurn, turn: Ulid, unseen: UnseenCall) {
        let UnseenCall { call, outcome } = unseen;
        self.tasks.spawn(async move {
            let (_, ran) = Box::pin(hooks.run_after_call(&moment, &call, outcome)).await;
            FinishedHook {
                turn,
                hook: None,
                ran,
                failed: false,
            }
        });
    }

    /// Runs `hook` after the turn of `pending`.
    fn run(&mut self, hooks: Arc<TurnHooks>, moment: HookedTurn, pending: &PendingPostHooks, hook: Arc<DeclaredHook>) {
        let turn = pending.finished.turn;
        let told = json!({ "outcome": pending.finished.ended });
        let attempt = usize::try_from(pending.tries).unwrap_or(usize::MAX);

        self.tasks.spawn(async move {
            let (ran, failed) = Box::pin(hooks.run_post_hook(&hook, &moment, told, attempt)).await;
            FinishedHook {
                turn,
                hook: Some(hook.key()),
                ran: ran.into_iter().collect(),
                failed: failed && attempt < AGAIN_AFTER.len(),
            }
        });
    }
}

/// The post-turn work that is due next.
enum Due {
    Nothing,
    At(UnixMillis),
    /// The hooks after the turn's last tool call.
    Observe(FinishedTurn, UnseenCall),
    Run(PendingPostHooks, Arc<DeclaredHook>),
}

impl Worker<'_> {
    /// Stages, with the end of `turn`, which post-turn hooks are due after it; `ended` is how it ended.
    pub(super) fn owe_hooks(&mut self, turn: &Turn, pendings: &[PendingDispatch], ended: TurnEnding) {
        let running = self.owner.fold().running.as_ref();
        let unseen = running.and_then(|running| running.unseen_call());
        let unseen = unseen.map(|(call, outcome)| UnseenCall {
            call,
            outcome: outcome.clone(),
        });

        let hooks = self.broker.hooks();
        let hooks = hooks.hooks_of(&self.claimed.session, turn.works_for());
        if unseen.is_none() && !hooks.has_hooks(HookPoint::PostSession) {
            return;
        }
        let moment = self.hooked_turn(turn, pendings);

        self.owner.stage_entry(LedgerEntry::PostHooksDue {
            finished: Box::new(FinishedTurn {
                turn: turn.id,
                ended,
                works_for: turn.works_for().to_vec(),
                description: moment.description(),
                unseen,
            }),
        });
    }

    /// Returns the work that is due next, and settles turns without any left.
    fn due(&mut self) -> Due {
        loop {
            let Some(mut owed) = self.owner.fold().post_hooks.first().cloned() else {
                return Due::Nothing;
            };
            if let Some(unseen) = owed.finished.unseen.take() {
                return Due::Observe(owed.finished, unseen);
            }

            // The hooks that are in force now, so that one deleted since the end of the turn does not run.
            let set = self
                .broker
                .hooks()
                .hooks_of(&self.claimed.session, &owed.finished.works_for);
            let next = set
                .at(HookPoint::PostSession)
                .find(|hook| !owed.done.contains(&hook.key()));
            let Some(hook) = next.cloned() else {
                let turn = owed.finished.turn;
                self.owner.stage_entry(LedgerEntry::PostHooksSettled { turn });
                continue;
            };

            return match owed.again_at.filter(|at| *at > self.broker.clock.now()) {
                Some(at) => Due::At(at),
                None => Due::Run(owed, hook),
            };
        }
    }

    /// Stages the results of hooks that have finished meanwhile.
    fn gather(&mut self) {
        while let Some(done) = self.post_hooks.tasks.try_join_next() {
            self.has_run(done);
        }
    }

    /// Starts the hook that is due next, unless one is running. Returns the time of the next attempt if none is due
    /// before.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner.
    pub(super) async fn begin_last(&mut self) -> Result<Option<UnixMillis>, RunSessionError> {
        self.gather();

        if !self.post_hooks.is_idle() {
            return Ok(None);
        }

        let due = match self.due() {
            Due::Nothing => return Ok(None),
            Due::At(at) => return Ok(Some(at)),
            due @ (Due::Observe(..) | Due::Run(..)) => due,
        };
        // A hook may have effects outside: the ledger must name this owner first, and the claim must hold.
        self.owner.ensure_owned().await?;
        self.owner.check_live()?;

        let hooks = self.broker.hooks().clone();
        let epoch = self.owner.fold().epoch;
        let over = |finished: &FinishedTurn| {
            let set = hooks.hooks_of(&self.claimed.session, &finished.works_for);
            HookedTurn::for_finished_turn(&self.claimed.session, epoch, set, finished)
        };
        match due {
            Due::Nothing | Due::At(_) => {}
            Due::Observe(finished, unseen) => {
                let moment = over(&finished);
                self.post_hooks.show_call(hooks, moment, finished.turn, unseen);
            }
            Due::Run(pending, hook) => {
                let moment = over(&pending.finished);
                self.post_hooks.run(hooks, moment, &pending, hook);
            }
        }

        Ok(None)
    }

    /// Stages the result of a hook that has finished.
    fn has_run(&mut self, done: Result<FinishedHook, JoinError>) {
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                // A hook that panics would do so again: the turn's other hooks are given up with it.
                let turn = self.owner.fold().post_hooks.first().map(|owed| owed.finished.turn);
                tracing::error!(
                    session = %self.claimed.session, turn = turn.map(tracing::field::display), %error, "post-turn hook panicked"
                );
                let settled = turn.map(|turn| LedgerEntry::PostHooksSettled { turn });
                settled.into_iter().for_each(|entry| self.owner.stage_entry(entry));
                return;
            }
        };

        self.stage_runs(done.ran);
        let tries = self.owner.fold().post_hooks.first().map_or(0, |owed| owed.tries);
        let wait = usize::try_from(tries).ok().and_then(|tries| AGAIN_AFTER.get(tries));
        let turn = done.turn;
        let entry = match (wait.filter(|_| done.failed), done.hook) {
            (Some(wait), _) => {
                let retry_at = self.broker.clock.now().plus(millis_of(*wait));
                LedgerEntry::PostHookFailed { turn, retry_at }
            }
            (None, Some(hook)) => LedgerEntry::PostHookRan { turn, hook },
            (None, None) => LedgerEntry::UnseenCallShown { turn },
        };
        self.owner.stage_entry(entry);
    }

    /// Starts the hook that is due after a turn; waits for hooks only if too many turns have hooks due.
    ///
    /// # Errors
    /// Returns the errors of [`Worker::begin_last`].
    pub(super) async fn keep_up(&mut self) -> Result<(), RunSessionError> {
        loop {
            self.begin_last().await?;

            if self.owner.fold().post_hooks.len() <= MAX_BEHIND {
                return Ok(());
            }

            self.still_ours()?;
            self.claimed.slot.lend();
            tokio::select! {
                Some(done) = self.post_hooks.tasks.join_next() => self.has_run(done),
                () = pause(LOOK_EVERY) => {}
            }
        }
    }

    /// Appends the turns that are staged and publishes their replies, then runs all due hooks to their end. A message that
    /// arrives meanwhile goes first, also if a turn waits for an approval. If another session must have the slot, only
    /// the running hook is waited for.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner or must be handed back.
    pub(super) async fn settle_hooks(&mut self) -> Result<(), RunSessionError> {
        loop {
            if self.goes_on() && (self.canceled.is_some() || !self.yields) {
                self.resume_turn().await?;
                continue;
            }

            if self.owner.fold().post_hooks.is_empty() {
                return self.flush().await;
            }

            self.claimed.slot.lend();
            self.yields = self.yields || self.must_rest();

            let again_at = match self.yields {
                true => {
                    self.gather();
                    // No hook is started here; turns without due hooks are settled.
                    drop(self.due());
                    None
                }
                false => self.begin_last().await?,
            };

            if self.post_hooks.is_idle() && again_at.is_none() {
                return self.flush().await;
            }

            self.flush().await?;
            self.listen().await?;

            if self.yields {
                // Other work is left to the session's next owner.
                self.effects.clear();
                self.canceled = None;
            } else if self.goes_on() {
                continue;
            } else if !self.effects.is_empty() {
                self.drive_machine().await?;
                continue;
            }

            let left = again_at.map(|at| u64::try_from(at.since(self.broker.clock.now())).unwrap_or(0));
            self.wait_for_last(left.map(Duration::from_millis)).await?;
        }
    }

    /// Returns whether no more hooks may start, because the process ends or other sessions wait for the slot.
    fn must_rest(&self) -> bool {
        let is_lent = self.claimed.slot.is_lent();
        self.broker.shutdown.is_requested() || !is_lent && self.must_yield()
    }

    /// Waits for the running hook or, if there is none, for `left`; returns early if a message arrives.
    async fn wait_for_last(&mut self, left: Option<Duration>) -> Result<(), RunSessionError> {
        let mut post_hooks = std::mem::take(&mut self.post_hooks);
        let next = async {
            match left {
                Some(left) => {
                    pause(left).await;
                    None
                }
                None => post_hooks.tasks.join_next().await,
            }
        };

        let done = self.wait_beside(std::pin::pin!(next)).await?;
        self.post_hooks = post_hooks;
        done.flatten().into_iter().for_each(|done| self.has_run(done));

        Ok(())
    }
}
