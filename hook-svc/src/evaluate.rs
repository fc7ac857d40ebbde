//! One event's way: done already? known already? — evaluate — publish each fire as soon as it is known — decide
//! the fallbacks — store the record — ack.
//!
//! The record is the event's done-marker and is stored before the ack. Whoever is given the event again reads the
//! marker first; what a crash left half done is done again with the same ids, which changes nothing.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use shared::bus::{Outgoing, PublishError};
use shared::clock::SharedClock;
use shared::model::event::EventId;
use shared::model::hook::{HookResult, StoredAnswer};
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use shared::projection::{Projection, Source};
use shared::wire::headers::{Carrier, MSG_ID};
use shared::wire::subject;
use shared::wire::topology::streams::INVOCATIONS;

use crate::bindings::Bindings;
use crate::breakers::Breakers;
use crate::choice::Signs;
use crate::error::HandleEventError;
use crate::fire::{Performer, Wish};
use crate::invocation::{Evaluated, ROUTED_BY_ANOTHER, billed, failure, invocation, record, slim};
use crate::passes::Passes;
use crate::roster::{Roster, Traits};
use crate::runner::{Done, Evaluation, Job, Outcome, Pools, Spent, Step, Verdict};
use crate::task::Task;

/// How message ids of redriven dead letters begin (`nexus dlq redrive`).
const REDRIVEN: &str = "redrive:";

/// Evaluates events; shared by all partitions of this replica.
#[derive(Debug)]
pub(crate) struct Evaluator {
    pub(crate) performer: Performer,
    pub(crate) pool: Pools,
    pub(crate) breakers: Breakers,
    pub(crate) bindings: Bindings,
    pub(crate) passes: Mutex<Passes>,
    pub(crate) projection: Projection,
    pub(crate) clock: SharedClock,
    pub(crate) instance: String,
}

/// What the hooks did with an event.
#[derive(Debug, Default)]
struct Outcomes {
    passed: u32,
    hooks: Vec<HookInvocation>,
}

impl Evaluator {
    /// Brings `task`'s event to its end; it may be acked afterwards.
    pub(crate) async fn handle(&self, task: &Task, carrier: &Carrier) -> Result<(), HandleEventError> {
        let meters = &self.performer.meters;
        if task.replayed && !task.marker_read && self.is_done(task).await? {
            meters.already_done.increment(1);
            return Ok(());
        }
        if task.is_shown() && self.is_late_duplicate(task) {
            meters.late_duplicates.increment(1);
            return Ok(());
        }
        let started_at = self.clock.now();
        let outcomes = self.evaluate(task, started_at, carrier).await?;
        let evaluated = Evaluated {
            event_id: task.event.id.clone(),
            event_seq: task.sequence,
            evaluated_by: self.instance.clone(),
            started_at,
            finished_at: self.clock.now(),
            passed: outcomes.passed,
            hooks: outcomes.hooks,
            passes: self.passes_due(),
        };
        self.store(task, record(evaluated), carrier).await?;
        meters.evaluated.increment(1);
        Ok(())
    }

    /// Whether the event's record is stored, as the leader says.
    pub(crate) async fn is_done(&self, task: &Task) -> Result<bool, HandleEventError> {
        let subject = subject::invocation(task.partition, &marker_id(task));
        let Some(stored) = self.performer.bus.last_on_subject(INVOCATIONS, &subject).await? else {
            return Ok(false);
        };
        match stored.decode::<EventInvocations>() {
            Ok(record) => Ok(record.event_seq == task.sequence),
            Err(error) => {
                tracing::warn!(event_id = %task.event.id, %error, "record of the event cannot be read, it is evaluated again");
                Ok(false)
            }
        }
    }

    /// Whether the id first occurred elsewhere: beyond the server's duplicate window the read model knows.
    /// An operator who publishes a dead letter again means it to be evaluated.
    fn is_late_duplicate(&self, task: &Task) -> bool {
        if task
            .incoming
            .headers
            .get(MSG_ID)
            .is_some_and(|id| id.starts_with(REDRIVEN))
        {
            return false;
        }
        match self.projection.is_first(&task.event.id, task.sequence) {
            Ok(first) => {
                if !first {
                    tracing::debug!(event_id = %task.event.id, sequence = task.sequence, "event occurred before");
                }
                !first
            }
            Err(error) => {
                tracing::warn!(event_id = %task.event.id, %error, "read model cannot tell whether the event is new");
                false
            }
        }
    }

    /// Shows the event to every hook and performs what they wish.
    async fn evaluate(&self, task: &Task, now: UnixMillis, carrier: &Carrier) -> Result<Outcomes, HandleEventError> {
        let (stored, decided) = if task.replayed && task.is_shown() {
            self.decided_before(&task.event.id).await?
        } else {
            (Vec::new(), Vec::new())
        };
        let in_force = self.pool.current();
        let me = format!("{}/{}", self.instance, task.event.id);
        let choice = self.choose(in_force.set(), &task.event, &decided, &me).await;
        let job = Job {
            event_id: task.event.id.clone(),
            event_json: Bytes::from(serde_json::to_vec(&task.event).unwrap_or_default()),
            now,
            only: choice.only.clone(),
        };
        if self.pool.reads_model() {
            // A script that asks must find the very event that it is shown, and everything before it.
            let caught_up = self.projection.reached(Source::Events, task.sequence).await;
            caught_up.map_err(|_| HandleEventError::Stopped)?;
        }
        let mut evaluation = self.pool.evaluate(in_force, job).await;
        let roster = self.performer.registry.roster_of(evaluation.set());
        let mut course = Course::new(&roster, task);
        course.outcomes.hooks.extend(choice.skipped(evaluation.set()));
        let mut performing = FuturesUnordered::new();
        let perform = |wish| self.performer.perform(task, wish, now, carrier);
        for wish in stored {
            course.underway.push(wish.hook_id.clone());
            performing.push(perform(wish));
        }
        if let Some(wish) = heartbeat(task) {
            course.underway.push(wish.hook_id.clone());
            performing.push(perform(wish));
        }
        if let Some(wish) = self.bound(&task.event)
            && let Some(wish) = course.wants(wish)
        {
            performing.push(perform(wish));
        }
        loop {
            tokio::select! {
                biased;
                step = evaluation.next(), if !course.all_answered => {
                    let step = step.ok_or(HandleEventError::Stopped)?;
                    if let Some(wish) = course.take(step, &evaluation, &self.performer) {
                        performing.push(perform(wish));
                    }
                }
                Some(performed) = performing.next(), if !performing.is_empty() => course.performed(performed?),
                else => break,
            }
            if course.all_answered && performing.is_empty() {
                let fallbacks = course.fallbacks();
                if !fallbacks.is_empty() {
                    let volatile = choice.volatile(evaluation.set());
                    let passed = volatile.filter(|id| !course.underway.iter().any(|fired| fired == id));
                    self.keep_passes(&task.event.id, passed).await?;
                }
                for wish in fallbacks {
                    performing.push(perform(wish));
                }
            }
        }
        self.settle(&choice, evaluation.set(), &course.health, &me).await;
        Ok(course.outcomes)
    }

    /// What an earlier delivery of this event decided: fires of one-shot hooks that it won, and answers of hooks that
    /// might answer otherwise now. The fires, and the ids of all hooks that have answered.
    async fn decided_before(&self, event: &EventId) -> Result<(Vec<Wish>, Vec<String>), HandleEventError> {
        let roster = self.performer.registry.current();
        let wish = |hook_id: &str, result: &HookResult| Wish {
            traits: roster.traits(hook_id),
            hook_id: hook_id.to_owned(),
            latency_us: 0,
            result: Box::new(result.clone()),
            decided: true,
            volatile: false,
            spent: Spent::default(),
        };
        let fires = roster.stored_fires(event).iter();
        let mut wishes: Vec<Wish> = fires.map(|fire| wish(&fire.hook_id, &fire.result)).collect();
        let mut decided: Vec<String> = wishes.iter().map(|wish| wish.hook_id.clone()).collect();
        let answers = self.performer.answers.of(event).await;
        for answer in answers.map_err(HandleEventError::Answers)? {
            if let StoredAnswer::Fired { hook_id, result } = &answer {
                wishes.push(wish(hook_id, result));
            }
            decided.push(answer.hook_id().to_owned());
        }
        Ok((wishes, decided))
    }

    /// Stores that the hooks `passed` did, before others fire because of it.
    async fn keep_passes<'a>(
        &self,
        event: &EventId,
        passed: impl Iterator<Item = &'a str>,
    ) -> Result<(), HandleEventError> {
        let passes: Vec<StoredAnswer> = passed
            .map(|hook_id| StoredAnswer::Passed {
                hook_id: hook_id.to_owned(),
            })
            .collect();
        if !passes.is_empty() {
            let kept = self.performer.answers.keep(event, &passes).await;
            kept.map_err(HandleEventError::Answers)?;
        }
        Ok(())
    }

    /// Stores the done-marker; without what makes it large where it is too large.
    async fn store(&self, task: &Task, record: EventInvocations, carrier: &Carrier) -> Result<(), HandleEventError> {
        let id = marker_id(task);
        let outgoing = |record: &EventInvocations| {
            Outgoing::new(subject::invocation(task.partition, &id), record)
                .msg_id(format!("inv:{id}"))
                .carrier(carrier)
        };
        match self.performer.bus.publish(outgoing(&record)).await {
            Ok(_) => Ok(()),
            Err(PublishError::TooLarge { size, .. }) => {
                tracing::warn!(event_id = %task.event.id, size, "record of the event is stored without its details");
                self.performer.bus.publish(outgoing(&slim(record))).await?;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The id under which the record is stored: the event's, and for a change of an item known before, one of its own,
/// so that it does not stand for the first occurrence.
fn marker_id(task: &Task) -> EventId {
    if task.is_shown() {
        return task.event.id.clone();
    }
    let own = EventId::parse(format!("change:{}/{}", task.sequence, task.event.source_adapter));
    own.unwrap_or_else(|_| task.event.id.clone())
}

/// The fire of `task`'s event where that is a persona's heartbeat.
fn heartbeat(task: &Task) -> Option<Wish> {
    let result = crate::heartbeat::fire(&task.event).filter(|_| task.is_shown())?;
    Some(Wish {
        hook_id: crate::heartbeat::HOOK_ID.to_owned(),
        latency_us: 0,
        traits: Traits {
            only_narrows: false,
            ..Traits::default()
        },
        result: Box::new(result),
        decided: false,
        volatile: false,
        spent: Spent::default(),
    })
}

/// How far the evaluation of one event has come.
struct Course<'a> {
    roster: &'a Arc<Roster>,
    task: &'a Task,
    outcomes: Outcomes,
    /// Every hook has answered.
    all_answered: bool,
    /// Some hook's dispatch is stored.
    routed: bool,
    /// `@fallback` hooks that want to fire.
    waiting: Vec<Wish>,
    /// Hooks whose wishes were taken up.
    underway: Vec<String>,
    health: Signs,
}

impl<'a> Course<'a> {
    fn new(roster: &'a Arc<Roster>, task: &'a Task) -> Self {
        Self {
            roster,
            task,
            outcomes: Outcomes {
                passed: 0,
                hooks: Vec::new(),
            },
            all_answered: false,
            routed: false,
            waiting: Vec::new(),
            underway: Vec::new(),
            health: Signs::default(),
        }
    }

    /// Takes one step in; answers a wish to be performed now.
    fn take(&mut self, step: Step, evaluation: &Evaluation, performer: &Performer) -> Option<Wish> {
        match step {
            Step::Verdict(verdict) => self.verdict(*verdict, performer),
            Step::Waiting(indices) => {
                let hooks = evaluation.set().hooks();
                let slow = indices
                    .iter()
                    .filter_map(|&index| hooks.get(index as usize))
                    .map(|hook| hook.id.clone());
                self.narrow(slow.collect());
                None
            }
            Step::Done(Done { passed, latencies_us }) => {
                self.all_answered = true;
                self.health.latencies_us = latencies_us;
                self.outcomes.passed += passed;
                self.narrow(Vec::new());
                None
            }
        }
    }

    /// The event is open for `slow` hooks and for those whose wishes are not performed.
    fn narrow(&self, slow: Vec<String>) {
        let waiting = self.waiting.iter().map(|wish| wish.hook_id.clone());
        self.task
            .place
            .narrow(slow.into_iter().chain(waiting).chain(self.underway.iter().cloned()));
    }

    fn verdict(&mut self, verdict: Verdict, performer: &Performer) -> Option<Wish> {
        let Verdict {
            hook,
            latency_us,
            outcome,
            spent,
        } = verdict;
        self.health.told.push(hook.id.clone());
        let result = match outcome {
            Outcome::Fired(result) => result,
            Outcome::DisableSelf => Box::new(HookResult {
                disable_hook: true,
                ..HookResult::default()
            }),
            Outcome::Passed => {
                self.outcomes
                    .hooks
                    .push(billed(invocation(&hook.id, latency_us, HookOutcome::Passed), spent));
                return None;
            }
            Outcome::Failed { error, stack } => {
                self.failed(&hook.id, latency_us, &error, stack.as_deref(), performer);
                if let Some(failed) = self.outcomes.hooks.last_mut() {
                    *failed = billed(failed.clone(), spent);
                }
                self.health.failed.push(hook.id.clone());
                return None;
            }
        };
        let traits = self.roster.traits(&hook.id);
        let wish = Wish {
            hook_id: hook.id.clone(),
            latency_us,
            traits,
            result,
            decided: false,
            volatile: hook.calls_host(),
            spent,
        };
        self.wants(wish)
    }

    /// Answers `wish` where it is to be performed now; a fallback's fire waits for what the others do.
    fn wants(&mut self, wish: Wish) -> Option<Wish> {
        if wish.traits.fallback && wish.result.fire {
            self.waiting.push(wish);
            return None;
        }
        self.underway.push(wish.hook_id.clone());
        Some(wish)
    }

    fn failed(&mut self, hook_id: &str, latency_us: u64, error: &str, stack: Option<&str>, performer: &Performer) {
        tracing::warn!(event_id = %self.task.event.id, hook_id, error, "hook failed");
        performer.meters.failures.increment(1);
        performer.registry.failed(hook_id, error);
        self.task.place.done(hook_id);
        self.outcomes
            .hooks
            .push(invocation(hook_id, latency_us, failure(error, stack)));
    }

    fn performed(&mut self, invocation: HookInvocation) {
        match invocation.outcome {
            HookOutcome::Passed if invocation.search_calls == 0 && invocation.llm_calls == 0 => {
                self.outcomes.passed += 1;
            }
            HookOutcome::Passed => self.outcomes.hooks.push(invocation),
            HookOutcome::Fired { .. } => {
                self.routed = true;
                self.outcomes.hooks.push(invocation);
            }
            HookOutcome::Failed { .. } => {
                self.health.failed.push(invocation.hook_id.clone());
                self.outcomes.hooks.push(invocation);
            }
            HookOutcome::Suppressed { .. } | HookOutcome::Skipped { .. } => self.outcomes.hooks.push(invocation),
        }
    }

    /// All others have answered and are performed: the fallbacks fire where nobody routed the event.
    fn fallbacks(&mut self) -> Vec<Wish> {
        let waiting = std::mem::take(&mut self.waiting);
        if !self.routed {
            self.underway.extend(waiting.iter().map(|wish| wish.hook_id.clone()));
            return waiting;
        }
        for wish in waiting {
            let outcome = HookOutcome::Suppressed {
                reason: ROUTED_BY_ANOTHER.to_owned(),
            };
            self.task.place.done(&wish.hook_id);
            let suppressed = invocation(&wish.hook_id, wish.latency_us, outcome);
            self.outcomes.hooks.push(billed(suppressed, wish.spent));
        }
        Vec::new()
    }
}
