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

use super::breakers::Breakers;
use super::builtin::{self, Builtin};
use super::command::Commands;
use super::declared::{Action, Hook, OnFailure};
use super::gate::{Gate, Gated};
use super::moment::{Moment, with_result};
use super::outcome::{HookContext, HookOutcome, RunHookError};
use super::point::Point;
use super::rate;
use super::record::Recorder;
use super::rules::{HookRules, HookSet};
use super::runs::Ran;
use super::script;

/// All hooks of one broker.
#[derive(Debug)]
pub struct Hooks {
    rules: HookRules,
    bus: Bus,
    clock: SharedClock,
    recorder: Recorder,
    breakers: Breakers,
    commands: Commands,
}

/// Combined outcome of the hooks of a point that belongs to no call.
#[derive(Debug, Default)]
pub struct Said {
    /// Runs to be recorded in the ledger.
    pub ran: Vec<Ran>,
    /// Reason for which the next step must not happen.
    pub denied: Option<String>,
    /// Text or value that replaces the one that the hooks saw.
    pub rewritten: Option<serde_json::Value>,
}

impl Hooks {
    /// Creates the hooks of `rules`, run by the broker `instance`.
    #[must_use]
    pub fn new(rules: HookRules, bus: Bus, clock: SharedClock, instance: &str) -> Self {
        let recorder = Recorder::new(bus.clone(), Arc::clone(&clock));
        Self {
            commands: Commands::new(rules.allow.clone(), recorder.clone(), Arc::clone(&clock)),
            breakers: Breakers::new(&bus, Arc::clone(&clock), instance),
            rules,
            bus,
            clock,
            recorder,
        }
    }

    /// Follows the breakers that other brokers change, forever.
    pub async fn follow(&self) {
        self.breakers.follow().await;
    }

    /// Returns the hooks of a turn of `session`, with those of the sessions that it works for.
    #[must_use]
    pub fn of(&self, session: &SessionRef, inherited: &[SessionRef]) -> Arc<HookSet> {
        if self.rules.is_empty() {
            return Arc::default();
        }
        Arc::new(self.rules.of(session, inherited))
    }

    /// Runs the hooks before `call`; returns their decision, and the runs for the ledger.
    pub async fn gate(&self, moment: &Moment, call: &ToolCall) -> (Gated, Vec<Ran>) {
        let hooks: Vec<Arc<Hook>> = moment.set.at(Point::PreToolUse).cloned().collect();
        let mut gate = Gate::new(hooks, moment.before(call));
        let mut ran = Vec::new();

        let mut round = 0;
        while let Some((hook, context)) = gate.due() {
            let said = self.ask(&hook, moment, context, round).await;
            ran.extend(self.tell(&hook, moment, context, &said, round).await);
            gate.heard(&hook, said);
            round += 1;
        }

        (gate.result(), ran)
    }

    /// Runs the hooks after `call`; returns the outcome for the model, and the runs for the ledger.
    pub async fn after(&self, moment: &Moment, call: &ToolCall, outcome: ToolOutcome) -> (ToolOutcome, Vec<Ran>) {
        let mut outcome = outcome;
        let mut ran = Vec::new();
        for (round, hook) in moment.set.at(Point::PostToolUse).enumerate() {
            // Each hook sees the result as the ones before it have left it.
            let context = moment.after(call, &outcome);
            if !hook.should_trigger(&context) {
                continue;
            }

            let said = self.ask(hook, moment, &context, round).await;
            ran.extend(self.tell(hook, moment, &context, &said, round).await);

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
    pub async fn at(&self, moment: &Moment, point: Point, told: serde_json::Value) -> Said {
        let mut all = Said::default();
        let mut context = moment.context(told);
        for (round, hook) in moment.set.at(point).enumerate() {
            let said = self.ask(hook, moment, &context, round).await;
            all.ran.extend(self.tell(hook, moment, &context, &said, round).await);

            match said {
                Ok(said) if hook.blocking => {
                    if let Some(other) = said.modified_result.filter(|_| point == Point::PostStream) {
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
    pub async fn last(
        &self,
        hook: &Arc<Hook>,
        moment: &Moment,
        told: serde_json::Value,
        attempt: usize,
    ) -> (Option<Ran>, bool) {
        let context = moment.context(told);
        let said = self.ask(hook, moment, &context, attempt).await;
        let failed = matches!(&said, Err(RunHookError::TimedOut(_) | RunHookError::Failed(_)));
        (self.tell(hook, moment, &context, &said, attempt).await, failed)
    }

    /// Asks one hook, within its time-out, unless its breaker is open.
    async fn ask(
        &self,
        hook: &Arc<Hook>,
        moment: &Moment,
        context: &HookContext,
        round: usize,
    ) -> Result<HookOutcome, RunHookError> {
        // Only commands and scripts have a breaker: reminders and builtins are code of this process.
        match &hook.action {
            Action::Builtin(builtin) => Box::pin(self.builtin(builtin, hook, moment, context)).await,
            Action::Reminder(reminder) => {
                let progress = super::reminder::Progress {
                    reminded: moment.reminded.contains(&hook.key()),
                    ..moment.progress
                };

                Ok(HookOutcome {
                    context: reminder.trigger.is_due(progress).then(|| reminder.text.clone()),
                    ..HookOutcome::default()
                })
            }
            Action::Command { command } => {
                self.breakers.admit(hook).await?;
                let said = Box::pin(self.commands.run(hook, command, moment, context, round)).await;
                self.count(hook, said).await
            }
            Action::Script { hook: script } => {
                self.breakers.admit(hook).await?;
                let said = Box::pin(script::run(&self.bus, hook, script, moment, context, self.clock.now())).await;
                self.count(hook, said).await
            }
        }
    }

    async fn count(&self, hook: &Hook, said: Result<HookOutcome, RunHookError>) -> Result<HookOutcome, RunHookError> {
        let failed = matches!(&said, Err(RunHookError::TimedOut(_) | RunHookError::Failed(_)));
        self.breakers.record(hook, failed).await;
        said
    }

    async fn builtin(
        &self,
        builtin: &Builtin,
        hook: &Hook,
        moment: &Moment,
        context: &HookContext,
    ) -> Result<HookOutcome, RunHookError> {
        // Only the hooks that ask the server need a limit; the others compute at once.
        let within = Duration::from_millis(hook.timeout_ms);
        let late = |_| RunHookError::TimedOut(hook.timeout_ms);
        match builtin {
            Builtin::ApprovalGate(ask) => Ok(HookOutcome {
                ask: Some(ask.as_ref().clone()),
                ..HookOutcome::default()
            }),
            Builtin::ReadOnlyGuard { always, reads } if *always || moment.set.read_only => {
                Ok(builtin::read_only(reads, context))
            }
            Builtin::ReadOnlyGuard { .. } => Ok(HookOutcome::default()),
            Builtin::ResultTruncate { max_chars } => Ok(builtin::cut(*max_chars, context)),
            Builtin::ShellAllowList { argument } => Ok(builtin::shell(argument, &self.rules.allow, context)),
            Builtin::AuditLog => {
                let told = tokio::time::timeout(within, self.recorder.tool_call(hook, moment, context)).await;
                told.map_err(late)?.map_err(RunHookError::Failed)?;
                Ok(HookOutcome::default())
            }
            Builtin::RateLimit { calls, window_ms } => {
                let limit = rate::Limit {
                    calls: *calls,
                    window_ms: *window_ms,
                };
                let asked = rate::admit(&self.bus, &self.clock, hook, limit, moment, context);
                tokio::time::timeout(within, asked).await.map_err(late)?
            }
        }
    }

    /// Records a hook's run in `AUDIT`, and returns the run for the ledger.
    async fn tell(
        &self,
        hook: &Hook,
        moment: &Moment,
        context: &HookContext,
        said: &Result<HookOutcome, RunHookError>,
        round: usize,
    ) -> Option<Ran> {
        let ran = Ran::of(hook, said)?;
        self.recorder.ran(&ran, moment, context, round).await;
        Some(ran)
    }
}
