//! One event's way: done already? known already? — evaluate — publish each fire as soon as it is known — decide
//! the fallbacks — store the record — ack.
//!
//! The record is the event's done-marker and is stored before the ack. Whoever is given the event again reads the
//! marker first, unless the read model knows that there is none (`inherited`); what a crash left half done is done again with the same ids, which changes nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use shared::bus::{Outgoing, PublishError};
use shared::clock::SharedClock;
use shared::model::event::Event;
use shared::model::hook::{HookResult, StoredAnswer};
use shared::model::invocation::EventInvocations;
use shared::model::time::UnixMillis;
use shared::projection::{Projection, Source};
use shared::wire::headers::Carrier;
use shared::wire::subject;
use shared::wire::topology::streams::INVOCATIONS;

use crate::bindings::Bindings;
use crate::breakers::Breakers;
use crate::choice::{Choice, Signs};
use crate::course::{Course, Outcomes};
use crate::error::HandleEventError;
use crate::fire::{Performer, Wish};
use crate::inherited::Inherited;
use crate::invocation::{Evaluated, record, slim};
use crate::passes::Passes;
use crate::roster::{Roster, Traits};
use crate::runner::{Evaluation, HookSet, InForce, Job, Pools, Spent};
use crate::task::Task;

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

/// An event that every hook has answered, before that is stored.
struct Answered {
    outcomes: Outcomes,
    choice: Choice,
    set: Arc<HookSet>,
    signs: Signs,
}

impl Evaluator {
    /// Brings `task`'s event to its end; it may be acked afterwards. `again`: a former try failed half-way.
    pub(crate) async fn handle(&self, task: &Task, again: bool, carrier: &Carrier) -> Result<(), HandleEventError> {
        let meters = &self.performer.meters;
        if self.was_done(task, again).await? {
            meters.already_done.increment(1);
            return Ok(());
        }
        if task.is_shown() && self.is_late_duplicate(task) {
            meters.late_duplicates.increment(1);
            return Ok(());
        }
        let started_at = self.clock.now();
        let me = format!("{}/{}", self.instance, task.event.id);
        let Answered {
            outcomes,
            choice,
            set,
            signs,
        } = self.evaluate(task, again, &me, started_at, carrier).await?;
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
        // Afterwards, so that an event that is tried several times counts once.
        self.settle(&choice, &set, &signs, &me, started_at).await;
        meters.evaluated.increment(1);
        Ok(())
    }

    /// How long the slowest hook that sees `event` may take.
    pub(crate) fn longest_timeout(&self, event: &Event) -> Duration {
        let in_force = self.pool.current();
        let set = in_force.set();
        let seen_by = set.seeing(event);
        let of = |index: u32| set.hooks().get(index as usize).map_or(0, |hook| hook.timeout_ms);
        let longest = match &seen_by {
            Some(some) => some.iter().map(|index| of(*index)).max(),
            None => set.hooks().iter().map(|hook| hook.timeout_ms).max(),
        };
        Duration::from_millis(longest.unwrap_or(0))
    }

    /// Whether the event comes again and is done. What a try of our own has stored, the leader alone knows.
    async fn was_done(&self, task: &Task, again: bool) -> Result<bool, HandleEventError> {
        match task.inherited {
            None => Ok(false),
            Some(_) if task.marker_read => Ok(false),
            Some(_) if again => self.has_record(task).await,
            Some(inherited) => self.is_done(task, inherited).await,
        }
    }

    /// Whether a former owner, who left `inherited`, has stored the event's record.
    pub(crate) async fn is_done(&self, task: &Task, inherited: Inherited) -> Result<bool, HandleEventError> {
        Ok(!inherited.has_no_record(task, &self.projection).await && self.has_record(task).await?)
    }

    /// Whether the event's record is stored, as the leader says.
    async fn has_record(&self, task: &Task) -> Result<bool, HandleEventError> {
        let subject = subject::invocation(task.partition, &task.key());
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
        if task.is_redriven() {
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

    /// Shows the event to every hook and performs what they wish; `me` names this evaluation.
    async fn evaluate(
        &self,
        task: &Task,
        again: bool,
        me: &str,
        now: UnixMillis,
        carrier: &Carrier,
    ) -> Result<Answered, HandleEventError> {
        let in_force = self.pool.current();
        let roster = self.performer.registry.roster_of(in_force.set());
        let (stored, decided) = self.decided_before(task, again, &roster).await?;
        let choice = self.choose(in_force.set(), &task.event, &decided, me).await;
        let mut evaluation = self.show(task, in_force, &choice, now).await;
        let mut course = Course::new(&roster, task);
        course.outcomes.hooks.extend(choice.skipped(evaluation.set()));
        let mut performing = FuturesUnordered::new();
        let perform = |wish| self.performer.perform(task, wish, now, carrier);
        for wish in stored.into_iter().chain(heartbeat(task)) {
            performing.push(perform(course.perform(wish)));
        }
        if let Some(wish) = self.bound(&task.event).and_then(|wish| course.wants(wish)) {
            performing.push(perform(wish));
        }
        let mut failed = None;
        loop {
            tokio::select! {
                biased;
                step = evaluation.next(), if !course.all_answered && failed.is_none() => {
                    let step = step.ok_or_else(|| self.lost())?;
                    if let Some(wish) = course.take(step, &evaluation, &self.performer) {
                        performing.push(perform(wish));
                    }
                }
                Some(performed) = performing.next(), if !performing.is_empty() => match performed {
                    Ok(invocation) => course.performed(invocation),
                    // What others have decided already is brought to its end before the event is tried again.
                    Err(error) => failed = failed.or(Some(error)),
                },
                else => break,
            }
            if course.all_answered && performing.is_empty() && failed.is_none() {
                let fallbacks = course.fallbacks();
                if !fallbacks.is_empty() {
                    self.keep_passes(task, &choice, evaluation.set(), &course).await?;
                }
                for wish in fallbacks {
                    performing.push(perform(wish));
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let Course { outcomes, signs, .. } = course;
        let set = Arc::clone(evaluation.set());
        Ok(Answered {
            outcomes,
            choice,
            set,
            signs,
        })
    }

    /// Hands the event to those who see it. A script that asks the read model must find the very event that it is
    /// shown, and everything before it; the others do not wait for that.
    async fn show(&self, task: &Task, in_force: InForce, choice: &Choice, now: UnixMillis) -> Evaluation {
        let job = Job {
            event_id: task.key(),
            event_json: Bytes::from(serde_json::to_vec(&task.event).unwrap_or_default()),
            now,
            only: choice.only.clone(),
        };
        let readers = choice.readers(in_force.set());
        if readers.is_empty() {
            return self.pool.evaluate(in_force, job).await;
        }
        let (projection, sequence) = (self.projection.clone(), task.sequence);
        let mut caught_up = Box::pin(async move { projection.reached(Source::Events, sequence).await.is_ok() });
        match (&mut caught_up).now_or_never() {
            Some(true) => self.pool.evaluate(in_force, job).await,
            Some(false) => Evaluation::lost(in_force.set()),
            None => self.pool.evaluate_in_two(in_force, job, &readers, caught_up).await,
        }
    }

    /// Why an evaluation ended before every hook had answered.
    fn lost(&self) -> HandleEventError {
        if self.pool.is_stopped() || self.projection.is_closed() {
            HandleEventError::Stopped
        } else {
            HandleEventError::Lost
        }
    }

    /// What an earlier delivery or try of this event decided: fires of one-shot hooks that it won, and answers of hooks
    /// that might answer otherwise now. The fires, and the ids of all hooks that have answered. `roster` is that of the
    /// set about to be called, so that a hook is either in the one or in the other.
    async fn decided_before(
        &self,
        task: &Task,
        again: bool,
        roster: &Roster,
    ) -> Result<(Vec<Wish>, Vec<String>), HandleEventError> {
        let wish = |hook_id: &str, result: &HookResult| Wish {
            traits: roster.traits(hook_id),
            hook_id: hook_id.to_owned(),
            latency_us: 0,
            result: Box::new(result.clone()),
            decided: true,
            volatile: false,
            spent: Spent::default(),
        };
        let key = task.key();
        let fires = roster.stored_fires(&key).iter();
        let mut wishes: Vec<Wish> = fires.map(|fire| wish(&fire.hook_id, &fire.result)).collect();
        let mut decided: Vec<String> = wishes.iter().map(|wish| wish.hook_id.clone()).collect();
        let may_be_decided = task.inherited.is_some_and(Inherited::has_answers);
        if !(again || may_be_decided || task.is_redriven()) {
            return Ok((wishes, decided));
        }
        let answers = self.performer.answers.of(&key).await;
        for answer in answers.map_err(HandleEventError::Answers)? {
            if decided.iter().any(|known| known == answer.hook_id()) {
                continue;
            }
            if let StoredAnswer::Fired { hook_id, result } = &answer {
                wishes.push(wish(hook_id, result));
            }
            decided.push(answer.hook_id().to_owned());
        }
        Ok((wishes, decided))
    }

    /// Stores that hooks passed, failed or were not called that might fire another time, before others fire because
    /// of it.
    async fn keep_passes(
        &self,
        task: &Task,
        choice: &Choice,
        set: &HookSet,
        course: &Course<'_>,
    ) -> Result<(), HandleEventError> {
        let uncertain = choice.uncertain(set, &course.signs.failed);
        let passes: Vec<StoredAnswer> = uncertain
            .filter(|hook_id| !course.has_fired(hook_id))
            .map(|hook_id| StoredAnswer::Passed {
                hook_id: hook_id.to_owned(),
            })
            .collect();
        if !passes.is_empty() {
            let kept = self.performer.answers.keep(&task.key(), &passes).await;
            kept.map_err(HandleEventError::Answers)?;
        }
        Ok(())
    }

    /// Stores the done-marker; without what makes it large where it is too large.
    async fn store(&self, task: &Task, record: EventInvocations, carrier: &Carrier) -> Result<(), HandleEventError> {
        let id = task.key();
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
