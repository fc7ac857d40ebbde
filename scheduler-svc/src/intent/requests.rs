//! Requests about intents from agents, operators and approvers: propose, cancel, reschedule, list, get, decide.
//!
//! An admission writes the reservation and the timer first, then the value, then the audit records. If it is cut off
//! before the value is written, a repetition under the same id reuses the reservation. If no repetition comes, the
//! reconciler frees the reservation (a reservation for one day lapses with that day), and the timer fires without an
//! effect.

use std::sync::Arc;

use shared::bus::KvEntry;
use shared::clock::SharedIds;
use shared::model::approval::ApprovalStatus;
use shared::model::intent::service::{
    CancelIntent, DecideIntent, GetIntent, IntentAnswer, IntentHistory, IntentList, ListIntents, MAX_LISTED,
    ProposeIntent, RescheduleIntent, TellReset,
};
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{
    ApprovalRequirement, Intent, IntentCode, IntentRejection, IntentSchedule, IntentStatus, firing_of,
};
use shared::model::position::StreamPosition;
use shared::wire::envelope::WireMessage as _;
use shared::wire::topology::streams::EVENTS;
use tokio::sync::watch;

use super::admission::{AdmissibleIntent, check_entitled, delivery_target, record};
use super::approvals::IntentDecision;
use super::budget_ledger::{ReservationRequest, VersionedBook};
use super::error::HandleIntentError;
use super::executor::{IntentExecutor, RUNTIME};
use super::machine::{self, AdmissionContext, StepCause};
use super::{approvals, conditions, idle_check, timers};

/// Attempts at one request while other writers change the same intent.
const MAX_TRIES: u32 = 16;
/// Name of the caller that holds the installation's credentials.
const OPERATOR: &str = "operator";
/// Intents in a response to `list` if the request has no limit.
const DEFAULT_LISTED: usize = 50;

/// Handles the requests about intents.
#[derive(Debug)]
pub struct IntentService {
    /// Executor of the steps of existing intents.
    pub clerk: Arc<IntentExecutor>,
    /// Source of ids for intents that are proposed without one.
    pub ids: SharedIds,
    /// Id of the person who decides, besides the operator; absent if there is no owner.
    pub owner: watch::Receiver<Option<String>>,
}

/// Returns the name of the caller: the agent, or the operator.
fn asker_name(agent: Option<&str>, by: Option<&str>) -> String {
    agent.map_or_else(|| by.unwrap_or("operator").to_owned(), |agent| format!("agent:{agent}"))
}

impl IntentService {
    /// Admits the intent, or rejects it with a reason. A proposal whose id exists already gets the existing intent.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if neither outcome could be written.
    pub async fn propose_intent(&self, question: ProposeIntent) -> Result<IntentAnswer, HandleIntentError> {
        let clerk = &self.clerk;
        let id = question.id.unwrap_or_else(|| self.ids.ulid());
        let agent = question.agent.as_str();
        // Both reads are needed in most cases, so they run together.
        let (found, book) = tokio::try_join!(clerk.store.get(Some(agent), id), clerk.books.read(agent))?;

        // The request was handled before: the answer is the decision made then.
        if let Some(entry) = found {
            return self.settled_answer(&entry.value).await;
        }

        let depth = self.chain_depth(&question).await?;
        let intent = record(&clerk.registry, &question, id);
        let entitled = check_entitled(&clerk.registry, &intent, &question, depth);
        let to = delivery_target(&intent, &question);
        let by = asker_name(Some(&question.agent), None);
        let cause = StepCause {
            by: &by,
            why: &intent.reason.clone(),
            at: clerk.clock.now(),
        };

        // The conversation of the request is stored only if it is not the destination.
        let setting = AdmissionContext {
            permissions: question.permissions.clone(),
            asked_in: to
                .as_ref()
                .is_ok_and(|to| *to != question.delivery_context)
                .then(|| question.delivery_context.clone()),
            delivery_context: to.unwrap_or_default(),
            depth,
        };

        let value = machine::new_intent(intent, setting, cause);
        // A value that cannot be stored is the request's fault.
        if let Err(detail) = value.check() {
            return Err(HandleIntentError::Unreadable(detail));
        }

        let written = match entitled {
            Err(rejection) => {
                let refused = reject_intent(clerk, None, value, rejection, IntentCode::Refused, RUNTIME);
                Box::pin(refused).await
            }
            // A human decides whether the intent exists at all: nothing is reserved before.
            Ok(()) if value.intent.approval == ApprovalRequirement::BeforeAdmission => {
                clerk.approvals.ask_approval(&value, cause.at).await?;
                clerk.store.create_intent(value).await
            }
            Ok(()) => Box::pin(admit_intent(clerk, None, value, Some(book), (RUNTIME, ""))).await,
        };

        match written {
            Ok(entry) => self.settled_answer(&entry.value).await,
            // Another replica has handled the same request: the value that it wrote is the response.
            Err(HandleIntentError::Conflict(_)) => {
                let entry = clerk.store.find(Some(&question.agent), id).await?;
                self.settled_answer(&entry.value).await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the response about `intent`, after the intent that it supersedes is canceled.
    async fn settled_answer(&self, intent: &Intent) -> Result<IntentAnswer, HandleIntentError> {
        self.clerk.supersede_intent(intent).await?;
        Ok(answer_of(intent))
    }

    /// Returns the number of intents that precede an intent of this turn in its chain.
    async fn chain_depth(&self, question: &ProposeIntent) -> Result<u8, HandleIntentError> {
        let Some((parent, _)) = question.causation.as_ref().and_then(firing_of) else {
            return Ok(0);
        };
        let parent = self.clerk.store.get(None, parent).await?;
        Ok(parent.map_or(1, |entry| entry.value.depth.saturating_add(1)))
    }

    /// Cancels an intent. Canceling a canceled intent succeeds.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the intent does not exist or has ended.
    pub async fn cancel_intent(&self, question: CancelIntent) -> Result<IntentAnswer, HandleIntentError> {
        let agent = question.agent.as_deref();
        let by = asker_name(agent, question.by.as_deref());
        let (id, code, why) = (question.id, IntentCode::Withdrawn, &question.reason);
        let withdrawn = self.clerk.withdraw_intent(agent, id, code, why, &by, question.turn);

        match withdrawn.await {
            Ok(entry) => Ok(answer_of(&entry.value)),
            Err(HandleIntentError::Step(error)) if error.from == IntentStatus::Canceled => {
                Ok(answer_of(&self.clerk.store.find(agent, question.id).await?.value))
            }
            Err(error) => Err(error),
        }
    }

    /// Changes the schedule of a pending intent, if the new schedule is admitted.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the intent does not exist or is not pending.
    pub async fn reschedule_intent(&self, question: RescheduleIntent) -> Result<IntentAnswer, HandleIntentError> {
        let agent = question.agent.as_deref();
        let by = asker_name(agent, question.by.as_deref());
        for _ in 0..MAX_TRIES {
            let entry = self.clerk.store.find(agent, question.id).await?;
            match Box::pin(self.apply_reschedule(&entry, &question.schedule, &question.reason, &by)).await {
                Err(HandleIntentError::Conflict(_)) => {}
                other => return other,
            }
        }

        Err(HandleIntentError::Conflict(question.id))
    }

    async fn apply_reschedule(
        &self,
        entry: &KvEntry<Intent>,
        schedule: &IntentSchedule,
        why: &str,
        by: &str,
    ) -> Result<IntentAnswer, HandleIntentError> {
        let (clerk, intent) = (&self.clerk, &entry.value);
        let now = clerk.clock.now();

        // Checked first, so that a refused change reserves nothing.
        let to = IntentStatus::Rescheduled;
        if !intent.status.may_become(to) {
            let from = intent.status;
            return Err(machine::TakeStepError { from, to }.into());
        }

        let from = events_from(clerk, schedule).await?;
        let moved = |fit: AdmissibleIntent| -> Result<Intent, HandleIntentError> {
            let mut next = machine::next_value(intent);
            machine::reschedule_intent(
                &mut next,
                schedule.clone(),
                &fit.plan,
                &from,
                StepCause { by, why, at: now },
            )?;

            Ok(next)
        };

        let record = &intent.intent;
        let wanted = ReservationRequest {
            intent: record,
            schedule,
            now,
        };

        let armed = |fit| async move { arm_intent(clerk, &moved(fit)?, &fit).await };
        // The budget and the wake-up of the new schedule are stored before the value that relies on them.
        let next = match clerk.books.reserve_budget(&clerk.registry, wanted, None, armed).await? {
            Ok(fit) => moved(fit)?,
            Err(rejection) => {
                let mut answer = answer_of(intent);
                answer.rejection = Some(rejection);
                return Ok(answer);
            }
        };

        let written = clerk.store.advance_intent(entry, next).await?;
        // Stopping the old timer only saves work: it would find another time and do nothing.
        if let Some(due) = intent.due.filter(|due| Some(*due) != written.value.due) {
            timers::stop(&clerk.bus, &timers::new_timer(intent, TimerPurpose::Fire, due)).await;
        }

        if intent.deadline.is_some() && conditions::mark_of(&written.value).is_none() {
            conditions::remove_mark(&clerk.bus, intent).await;
        }

        Ok(answer_of(&written.value))
    }

    /// Lists the intents that match the request.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket cannot be read.
    pub async fn list(&self, question: ListIntents) -> Result<IntentList, HandleIntentError> {
        let limit = question.limit.unwrap_or(DEFAULT_LISTED).clamp(1, MAX_LISTED);
        let wanted = |intent: &Intent| {
            let of_session = question.session.as_ref();
            of_session.is_none_or(|session| *session == intent.intent.session)
                && question.status.is_none_or(|status| status == intent.status)
        };
        let agent = question.agent.as_deref();
        self.clerk.store.list(agent, question.after, limit, wanted).await
    }

    /// Returns one intent and its history.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the intent does not exist or cannot be read.
    pub async fn get(&self, question: GetIntent) -> Result<IntentHistory, HandleIntentError> {
        let store = &self.clerk.store;
        for _ in 0..MAX_TRIES {
            let intent = store.find(question.agent.as_deref(), question.id).await?.value;
            match store.ensure_audited(&intent).await {
                // The intent has changed since it was read: the newer value is returned.
                Err(HandleIntentError::Conflict(_)) => continue,
                audited => audited?,
            };
            let mut history = store.read_history(question.id).await?;
            history.retain(|record| record.n <= intent.n);

            return Ok(IntentHistory { intent, history });
        }

        Err(HandleIntentError::Conflict(question.id))
    }

    /// Handles the reset of a session: the intents that were requested in it before the reset and wait for the end of
    /// its chat are due.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]. The caller repeats the notification; the next check of the condition finds the
    /// reset as well.
    pub async fn session_reset(&self, question: TellReset) -> Result<IntentList, HandleIntentError> {
        let clerk = &self.clerk;
        let waits = |intent: &Intent| {
            intent.status == IntentStatus::Pending
                && intent.intent.session == question.session
                && matches!(intent.intent.schedule, IntentSchedule::ChatEnded { .. })
                && idle_check::quiet_since(intent) < question.at
        };

        let list = clerk.store.list(Some(&question.agent), 0, MAX_LISTED, waits).await?;
        for intent in &list.intents {
            let met = Some(IntentCode::ConditionMet);
            clerk
                .handle_due(&question.agent, intent.intent.id, question.at, met)
                .await?;
        }

        Ok(list)
    }

    /// Records the decision of an approver and continues the intent.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the intent does not exist, needs no decision, or was decided differently.
    pub async fn decide_intent(&self, question: DecideIntent) -> Result<IntentAnswer, HandleIntentError> {
        let clerk = &self.clerk;
        let entry = clerk.store.find(None, question.id).await?;
        let intent = &entry.value;

        let open = match intent.status {
            IntentStatus::Proposed => true,
            IntentStatus::Pending => intent.intent.approval == ApprovalRequirement::BeforeFire,
            IntentStatus::Running
            | IntentStatus::Completed
            | IntentStatus::Failed
            | IntentStatus::Canceled
            | IntentStatus::Rescheduled
            | IntentStatus::Rejected => false,
        };

        // Rights come before the state: a stranger learns nothing about the intent.
        if question.by != OPERATOR && self.owner.borrow().as_ref() != Some(&question.by) {
            return Err(HandleIntentError::NotTheOwner(question.by));
        }

        if !open {
            return Err(HandleIntentError::Decided(format!(
                "no decision is needed: the intent is {}",
                intent.status
            )));
        }

        let decision = IntentDecision {
            approve: question.approve,
            by: &question.by,
            response: question.response.as_deref(),
        };
        let now = clerk.clock.now();

        // An approver is asked about an intent without a time of its own only after its condition is met.
        let asked = clerk.approvals.was_asked(intent).await?;
        clerk.approvals.decide_approval(intent, decision, now).await?;

        // Work that waits for the decision continues at once; else it continues at its own time.
        let waits = intent.due.map_or(asked, |due| due <= now) || !question.approve;
        if waits || intent.status == IntentStatus::Proposed {
            let nominal = intent.due.unwrap_or(now);
            let met = (asked || !question.approve).then_some(IntentCode::ConditionMet);
            clerk
                .handle_due(&intent.intent.agent, question.id, nominal, met)
                .await?;
        }

        Ok(answer_of(&clerk.store.find(None, question.id).await?.value))
    }
}

fn answer_of(intent: &Intent) -> IntentAnswer {
    let mut answer = IntentAnswer::from_intent(intent);
    if intent.status == IntentStatus::Proposed {
        answer.approval = Some(approvals::key(intent));
    }
    answer
}

/// Admits `value`: the next value of `entry`, or the first one of its intent. Rejects it if it does not fit.
async fn admit_intent(
    clerk: &IntentExecutor,
    entry: Option<&KvEntry<Intent>>,
    value: Intent,
    book: Option<VersionedBook>,
    (by, why): (&str, &str),
) -> Result<KvEntry<Intent>, HandleIntentError> {
    let (record, now) = (&value.intent, clerk.clock.now());
    let from = events_from(clerk, &record.schedule).await?;
    // A function, because the value is made twice: for the wake-up and for the store.
    let admitted = |fit: AdmissibleIntent| -> Result<Intent, HandleIntentError> {
        let mut next = value.clone();
        machine::admit_intent(&mut next, &fit.plan, &from, StepCause { by, why, at: now })?;
        Ok(next)
    };

    let wanted = ReservationRequest {
        intent: record,
        schedule: &record.schedule,
        now,
    };
    let armed = |fit| async move { arm_intent(clerk, &admitted(fit)?, &fit).await };
    match clerk.books.reserve_budget(&clerk.registry, wanted, book, armed).await? {
        Ok(fit) => write(clerk, entry, admitted(fit)?).await,
        Err(rejection) => reject_intent(clerk, entry, value, rejection, IntentCode::Refused, RUNTIME).await,
    }
}

async fn reject_intent(
    clerk: &IntentExecutor,
    entry: Option<&KvEntry<Intent>>,
    mut value: Intent,
    rejection: IntentRejection,
    code: IntentCode,
    by: &str,
) -> Result<KvEntry<Intent>, HandleIntentError> {
    tracing::info!(intent = %value.intent.id, agent = value.intent.agent, %rejection, "intent rejected");
    metrics::counter!("nexus_scheduler_intents_rejected_total", "code" => rejection.code()).increment(1);
    let why = rejection.to_string();
    let at = clerk.clock.now();
    machine::reject_intent(&mut value, rejection, code, StepCause { by, why: &why, at })?;
    write(clerk, entry, value).await
}

async fn write(
    clerk: &IntentExecutor,
    entry: Option<&KvEntry<Intent>>,
    value: Intent,
) -> Result<KvEntry<Intent>, HandleIntentError> {
    match entry {
        Some(entry) => clerk.store.advance_intent(entry, value).await,
        None => clerk.store.create_intent(value).await,
    }
}

/// Stores the wake-up of `value`: its timer, and its mark if it waits for an event.
async fn arm_intent(clerk: &IntentExecutor, value: &Intent, fit: &AdmissibleIntent) -> Result<(), HandleIntentError> {
    let rings = fit.plan.rings;
    match value.due {
        Some(due) => clerk.set_wakeups(value, due).await?,
        None => timers::set_timer(&clerk.bus, &timers::new_timer(value, TimerPurpose::Fire, rings), rings).await?,
    }
    if let Some(mark) = conditions::mark_of(value) {
        conditions::store_mark(&clerk.bus, &mark).await?;
    }
    Ok(())
}

/// Returns the position in `EVENTS` after which events count for `schedule`.
async fn events_from(clerk: &IntentExecutor, schedule: &IntentSchedule) -> Result<StreamPosition, HandleIntentError> {
    match schedule {
        IntentSchedule::EventMatches { .. } => Ok(clerk.bus.end_of(EVENTS).await?),
        IntentSchedule::At { .. }
        | IntentSchedule::After { .. }
        | IntentSchedule::Cron { .. }
        | IntentSchedule::Rrule { .. }
        | IntentSchedule::UserIdle { .. }
        | IntentSchedule::ChatEnded { .. } => Ok(StreamPosition::default()),
    }
}

impl IntentExecutor {
    /// Moves an intent that waits for its admission to the state that its approval demands. Changes nothing while the
    /// approval is pending.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; a conflict if another writer has changed the intent.
    pub(super) async fn decide_admission(&self, entry: &KvEntry<Intent>) -> Result<(), HandleIntentError> {
        let confirmation = self.approvals.ask_approval(&entry.value, self.clock.now()).await?;
        let by = confirmation.decided_by.as_deref().unwrap_or(RUNTIME);
        let next = machine::next_value(&entry.value);

        let (why, code) = match confirmation.status {
            ApprovalStatus::Pending => return Ok(()),
            ApprovalStatus::Approved | ApprovalStatus::Consumed => {
                let said = confirmation.response.as_deref().unwrap_or_default();
                let admitted = Box::pin(admit_intent(self, Some(entry), next, None, (by, said))).await?;
                return self.supersede_intent(&admitted.value).await;
            }
            ApprovalStatus::Denied => (format!("denied by {by}"), IntentCode::Denied),
            ApprovalStatus::Expired | ApprovalStatus::Canceled | ApprovalStatus::Superseded => {
                ("not approved in time".to_owned(), IntentCode::ApprovalExpired)
            }
        };

        let rejection = IntentRejection::Sensitivity { why };
        let refused = reject_intent(self, Some(entry), next, rejection, code, by).await?;

        self.settle_intent(&refused.value, self.clock.now()).await
    }
}
