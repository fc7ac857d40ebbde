//! The dispatch seam: every hook of every point runs through here, of any kind.
//!
//! Hooks of a point run one after the other. Pure files decide about their outcomes; here hooks are asked, each
//! within its time-out, counted by its breaker, and recorded in `AUDIT`. Ledger entries are returned to the caller,
//! so that they are appended with the turn's next step. Source: seed 004 §3.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::ledger::{ToolCall, ToolOutcome};
use shared::model::session::SessionRef;
use shared::process::lifecycle::ShutdownSignal;

use super::breakers::TurnBreakers;
use super::builtin::{self, BuiltinHook};
use super::command::CommandRunner;
use super::declared::{DeclaredAction, DeclaredHook, OnFailure};
use super::gate::{GateChain, GateDecision};
use super::hooked_turn::{HookedTurn, with_result};
use super::outcome::{HookContext, HookOutcome, RunHookError};
use super::point::HookPoint;
use super::rate;
use super::record::HookRecorder;
use super::rules::{HookRules, HookSet};
use super::runs::TurnHookRun;
use super::script;

/// All hooks of one broker.
#[derive(Debug)]
pub struct TurnHooks {
    rules: HookRules,
    bus: Bus,
    clock: SharedClock,
    recorder: HookRecorder,
    breakers: TurnBreakers,
    commands: CommandRunner,
}

/// Combined outcome of the hooks of a point that belongs to no call.
#[derive(Debug, Default)]
pub struct PointOutcome {
    /// Runs to be recorded in the ledger.
    pub ran: Vec<TurnHookRun>,
    /// Reason for which the next step must not happen.
    pub denied: Option<String>,
    /// Text or value that replaces the one that the hooks saw.
    pub rewritten: Option<serde_json::Value>,
}

impl TurnHooks {
    /// Creates the hooks of `rules`, run by the broker `instance`.
    #[must_use]
    pub fn new(rules: HookRules, bus: Bus, clock: SharedClock, instance: &str) -> Self {
        let recorder = HookRecorder::new(bus.clone(), Arc::clone(&clock));
        Self {
            commands: CommandRunner::new(rules.allow.clone(), recorder.clone(), Arc::clone(&clock)),
            breakers: TurnBreakers::new(&bus, Arc::clone(&clock), instance),
            rules,
            bus,
            clock,
            recorder,
        }
    }

    /// Follows the breakers that other brokers change, until `shutdown`.
    pub async fn follow_breakers(self: Arc<Self>, shutdown: ShutdownSignal) {
        tokio::select! {
            () = self.breakers.follow_bucket() => {}
            () = shutdown.requested() => {}
        }
    }

    /// Returns the hooks of a turn of `session`, with those of the sessions that it works for.
    #[must_use]
    pub fn hooks_of(&self, session: &SessionRef, inherited: &[SessionRef]) -> Arc<HookSet> {
        if self.rules.is_empty() {
            return Arc::default();
        }
        Arc::new(self.rules.hooks_of(session, inherited))
    }

    /// Runs the hooks before `call`; returns their decision, and the runs for the ledger.
    pub async fn run_gate(&self, moment: &HookedTurn, call: &ToolCall) -> (GateDecision, Vec<TurnHookRun>) {
        let hooks: Vec<Arc<DeclaredHook>> = moment.set.at(HookPoint::PreToolUse).cloned().collect();
        let mut gate = GateChain::new(hooks, moment.context_before(call));
        let mut ran = Vec::new();

        let mut round = 0;
        while let Some((hook, context)) = gate.next_due() {
            let said = self.ask_hook(&hook, moment, context, round).await;
            ran.extend(self.record_run(&hook, moment, context, &said, round).await);
            gate.apply_outcome(&hook, said);
            round += 1;
        }

        (gate.into_result(), ran)
    }

    /// Runs the hooks after `call`; returns the outcome for the model, and the runs for the ledger.
    pub async fn run_after_call(
        &self,
        moment: &HookedTurn,
        call: &ToolCall,
        outcome: ToolOutcome,
    ) -> (ToolOutcome, Vec<TurnHookRun>) {
        let mut outcome = outcome;
        let mut ran = Vec::new();
        for (round, hook) in moment.set.at(HookPoint::PostToolUse).enumerate() {
            // Each hook sees the result as the ones before it have left it.
            let context = moment.context_after(call, &outcome);
            if !hook.should_trigger(&context) {
                continue;
            }

            let said = self.ask_hook(hook, moment, &context, round).await;
            ran.extend(self.record_run(hook, moment, &context, &said, round).await);

            match said {
                Ok(HookOutcome {
                    modified_result: Some(result),
                    ..
                }) if hook.blocking => outcome = with_result(&outcome, result),
                Ok(_) => {}
                // A redactor that failed may have left something in the result: it is withheld.
                Err(error) if hook.on_failure == OnFailure::Deny => {
                    let error = format!("the result is withheld: hook `{}` failed: {error}", hook.name);
                    outcome = ToolOutcome::Error { error };
                }
                Err(_) => {}
            }
        }

        (outcome, ran)
    }

    /// Runs the hooks of `point`, which belongs to no call; `told` is the text or value that they see.
    pub async fn at(&self, moment: &HookedTurn, point: HookPoint, told: serde_json::Value) -> PointOutcome {
        let mut all = PointOutcome::default();
        let mut context = moment.hook_context(told);
        for (round, hook) in moment.set.at(point).enumerate() {
            let said = self.ask_hook(hook, moment, &context, round).await;
            all.ran
                .extend(self.record_run(hook, moment, &context, &said, round).await);

            match said {
                Ok(said) if hook.blocking => {
                    if let Some(other) = said.modified_result.filter(|_| point == HookPoint::PostStream) {
                        context.tool_args.clone_from(&other);
                        all.rewritten = Some(other);
                    }

                    // The first denial decides.
                    if !said.allow && point.is_gate() {
                        let default = || format!("hook `{}` does not allow it", hook.name);
                        all.denied = Some(said.error.unwrap_or_else(default));
                        return all;
                    }
                }
                Ok(_) => {}
                Err(error) if hook.on_failure == OnFailure::Deny => {
                    all.denied = Some(format!("hook `{}` could not decide: {error}", hook.name));
                    return all;
                }
                Err(_) => {}
            }
        }

        all
    }

    /// Runs `hook` after a finished turn, for the time `attempt`; `told` is the value that it sees. Returns the run,
    /// and whether the hook failed in a way that a repetition may repair.
    pub async fn run_post_hook(
        &self,
        hook: &Arc<DeclaredHook>,
        moment: &HookedTurn,
        told: serde_json::Value,
        attempt: usize,
    ) -> (Option<TurnHookRun>, bool) {
        let context = moment.hook_context(told);
        let said = self.ask_hook(hook, moment, &context, attempt).await;
        let failed = matches!(&said, Err(RunHookError::TimedOut(_) | RunHookError::Failed(_)));
        (self.record_run(hook, moment, &context, &said, attempt).await, failed)
    }

    /// Asks one hook, within its time-out, unless its breaker is open.
    async fn ask_hook(
        &self,
        hook: &Arc<DeclaredHook>,
        moment: &HookedTurn,
        context: &HookContext,
        round: usize,
    ) -> Result<HookOutcome, RunHookError> {
        // Only commands and scripts have a breaker: reminders and builtins are code of this process.
        match &hook.action {
            DeclaredAction::Builtin(builtin) => Box::pin(self.run_builtin(builtin, hook, moment, context)).await,
            DeclaredAction::Reminder(reminder) => {
                let progress = super::reminder::ReminderProgress {
                    reminded: moment.reminded.contains(&hook.key()),
                    ..moment.progress
                };

                Ok(HookOutcome {
                    context: reminder.trigger.is_due(progress).then(|| reminder.text.clone()),
                    ..HookOutcome::default()
                })
            }
            DeclaredAction::Command { command } => {
                self.breakers.admit_hook(hook).await?;
                let said = Box::pin(self.commands.run(hook, command, moment, context, round)).await;
                self.count(hook, said).await
            }
            DeclaredAction::Script { hook: script } => {
                self.breakers.admit_hook(hook).await?;
                let said = Box::pin(script::run(&self.bus, hook, script, moment, context, self.clock.now())).await;
                self.count(hook, said).await
            }
        }
    }

    async fn count(
        &self,
        hook: &DeclaredHook,
        said: Result<HookOutcome, RunHookError>,
    ) -> Result<HookOutcome, RunHookError> {
        let failed = matches!(&said, Err(RunHookError::TimedOut(_) | RunHookError::Failed(_)));
        self.breakers.record(hook, failed).await;
        said
    }

    async fn run_builtin(
        &self,
        builtin: &BuiltinHook,
        hook: &DeclaredHook,
        moment: &HookedTurn,
        context: &HookContext,
    ) -> Result<HookOutcome, RunHookError> {
        // Only the hooks that ask the server need a limit; the others compute at once.
        let within = Duration::from_millis(hook.timeout_ms);
        let late = |_| RunHookError::TimedOut(hook.timeout_ms);
        match builtin {
            BuiltinHook::ApprovalGate(ask) => Ok(HookOutcome {
                ask: Some(ask.as_ref().clone()),
                ..HookOutcome::default()
            }),
            BuiltinHook::ReadOnlyGuard { always, reads } if *always || moment.set.read_only => {
                Ok(builtin::read_only(reads, context))
            }
            BuiltinHook::ReadOnlyGuard { .. } => Ok(HookOutcome::default()),
            BuiltinHook::ResultTruncate { max_chars } => Ok(builtin::truncate_outcome(*max_chars, context)),
            BuiltinHook::ShellAllowList { argument } => {
                Ok(builtin::shell_outcome(argument, &self.rules.allow, context))
            }
            BuiltinHook::AuditLog => {
                let told = tokio::time::timeout(within, self.recorder.tool_call(hook, moment, context)).await;
                told.map_err(late)?.map_err(RunHookError::Failed)?;
                Ok(HookOutcome::default())
            }
            BuiltinHook::RateLimit { calls, window_ms } => {
                let limit = rate::CallLimit {
                    calls: *calls,
                    window_ms: *window_ms,
                };
                let asked = rate::admit_call(&self.bus, &self.clock, hook, limit, moment, context);
                tokio::time::timeout(within, asked).await.map_err(late)?
            }
        }
    }

    /// Records a hook's run in `AUDIT`, and returns the run for the ledger.
    async fn record_run(
        &self,
        hook: &DeclaredHook,
        moment: &HookedTurn,
        context: &HookContext,
        said: &Result<HookOutcome, RunHookError>,
        round: usize,
    ) -> Option<TurnHookRun> {
        let ran = TurnHookRun::from_outcome(hook, said)?;
        self.recorder.record_run(&ran, moment, context, round).await;
        Some(ran)
    }
}
