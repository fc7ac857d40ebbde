//! Steps of one fired hook: its turn in the conversation, its last fire if it is one, the dispatch, the claim.
//!
//! Every step may be repeated after a crash at any line: the last fire is decided once and returns the same result
//! afterwards, the dispatch has the same message id, and a claim that is already held stays held.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use shared::bus::{Bus, OutgoingMessage, PublishError, claim};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventId, MAX_HOPS};
use shared::model::hook::{HookResult, StoredAnswer};
use shared::model::invocation::{HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::envelope::WireMessage as _;
use shared::wire::headers::{CAUSATION, HOPS, REDRIVE, TraceCarrier};
use shared::wire::subject;
use shared::wire::topology::streams;
use tokio::sync::watch;

use crate::error::HandleEventError;
use crate::evaluation::bot_loops::{COUNTED_MS, answers_bot, is_loop};
use crate::evaluation::dispatch::build_dispatch;
use crate::evaluation::record::{
    DECIDED_BEFORE, TOO_MANY_BOT_ANSWERS, TOO_MANY_HOPS, billed_invocation, failed_outcome, new_invocation,
};
use crate::evaluation::task::EventTask;
use crate::evaluation::transcripts::transcript_fault;
use crate::health::metrics::ServiceMeters;
use crate::host::answers::AnswerStore;
use crate::registry::active_hooks::{HookAuthor, HookTraits};
use crate::registry::rights::{fire_refusal, opens_main};
use crate::registry::{HookRegistry, LastFire};
use crate::routing::{HookFire, RoutingRules};
use crate::runner::CallUsage;

/// Action that a hook requests.
#[derive(Debug)]
pub(crate) struct HookAction {
    /// Id of the hook.
    pub(crate) hook_id: String,
    /// Evaluation time in microseconds.
    pub(crate) latency_us: u64,
    /// Traits of the hook from the roster.
    pub(crate) traits: HookTraits,
    /// Result of the hook: a fire, or a request to be disabled without one.
    pub(crate) result: Box<HookResult>,
    /// Whether an earlier delivery of this event decided the fire.
    pub(crate) decided: bool,
    /// Whether the hook might answer differently in another run.
    pub(crate) volatile: bool,
    /// Usage of the hook's calls to the host.
    pub(crate) spent: CallUsage,
}

impl HookAction {
    /// Returns the fire `result` of the operator's own `hook_id`, which is no script: `traits` are its further
    /// properties.
    pub(crate) fn of_operator(hook_id: &str, latency_us: u64, mut traits: HookTraits, result: HookResult) -> Self {
        traits.author = Arc::new(HookAuthor::Operator);

        Self {
            hook_id: hook_id.to_owned(),
            latency_us,
            traits,
            result: Box::new(result),
            decided: false,
            volatile: false,
            spent: CallUsage::default(),
        }
    }
}

/// Decision about a fire.
enum Decided {
    /// This result is dispatched.
    Counts(Box<HookResult>),
    /// The fire is suppressed, for this reason.
    Nothing(&'static str),
}

/// Performs the actions of hooks.
#[derive(Debug)]
pub(crate) struct FireExecutor {
    pub(crate) bus: Bus,
    pub(crate) registry: HookRegistry,
    pub(crate) answers: AnswerStore,
    /// Current rules from the configuration files.
    pub(crate) rules: watch::Receiver<Arc<RoutingRules>>,
    pub(crate) meters: ServiceMeters,
    /// Ids of the hooks that were warned about because they open the owner's session to others.
    pub(crate) warned: Mutex<BTreeSet<String>>,
}

/// Number of messages of a conversation in a minute from which no bot is answered there.
const MAX_COUNTED: usize = 500;

/// Most hooks that are warned about.
const MAX_WARNED: usize = 1_024;

impl FireExecutor {
    /// Performs `wish` for `task`'s event, evaluated at `now`. Returns the record of the outcome.
    pub(crate) async fn perform_action(
        &self,
        task: &EventTask,
        wish: HookAction,
        now: UnixMillis,
        carrier: &TraceCarrier,
    ) -> Result<HookInvocation, HandleEventError> {
        let outcome = if wish.result.fire {
            // Earlier events of the conversation come first for each hook.
            if !task.place.is_clear(&wish.hook_id) {
                task.lent.waits_for_its_turn();
                task.place.clear(&wish.hook_id).await;
            }
            self.fire_action(task, &wish, now, carrier).await?
        } else {
            self.registry
                .retire_hook(&wish.hook_id, wish.traits.made_at)
                .await
                .map_err(|source| undecided_error(&wish, source))?;
            HookOutcome::Passed
        };

        task.place.mark_done(&wish.hook_id);

        if let HookOutcome::Suppressed { reason } = &outcome {
            self.meters.suppressed.increment(1);
            tracing::info!(event_id = %task.event.id, hook_id = wish.hook_id, reason, "hook fired, but its action was suppressed");
        }

        Ok(billed_invocation(
            new_invocation(&wish.hook_id, wish.latency_us, outcome),
            wish.spent,
        ))
    }

    async fn fire_action(
        &self,
        task: &EventTask,
        wish: &HookAction,
        now: UnixMillis,
        carrier: &TraceCarrier,
    ) -> Result<HookOutcome, HandleEventError> {
        let event = &task.event;
        if event.hops >= MAX_HOPS {
            return Ok(HookOutcome::Suppressed {
                reason: TOO_MANY_HOPS.to_owned(),
            });
        }

        // The dispatch is built before the decision: a result without a valid dispatch spends no shot and is not
        // stored.
        let mut made = self.build_dispatch(task, wish, &wish.result, now);
        if let Ok((dispatch, _)) = &made
            && !wish.decided
            && self.goes_on_with_loop(task, dispatch).await?
        {
            return Ok(HookOutcome::Suppressed {
                reason: TOO_MANY_BOT_ANSWERS.to_owned(),
            });
        }

        let mut result = wish.result.clone();
        if made.is_ok() {
            match self.decide_result(task, wish, now).await? {
                Decided::Counts(decided) if decided == wish.result => {}
                Decided::Counts(decided) => {
                    made = self.build_dispatch(task, wish, &decided, now);
                    result = decided;
                }
                Decided::Nothing(reason) => {
                    let reason = reason.to_owned();
                    return Ok(HookOutcome::Suppressed { reason });
                }
            }
        }

        // A last fire is counted together with the decision that it is the last.
        let is_last = wish.traits.one_shot || wish.result.disable_hook;
        if made.is_ok() && wish.traits.reads_counters && !is_last {
            let counted = self.registry.count_fire(&wish.hook_id, &task.key, now).await;
            counted.map_err(|source| undecided_error(wish, source))?;
        }

        let published = match made {
            Ok((dispatch, out)) => self.publish(&dispatch, out, carrier).await?.map(|()| dispatch),
            Err(detail) => Err(detail),
        };
        match published {
            Ok(dispatch) => Ok(HookOutcome::Fired {
                dispatch: dispatch.id,
                result,
                target: Some(dispatch.target),
            }),
            Err(detail) => {
                self.meters.failures.increment(1);
                tracing::warn!(event_id = %event.id, hook_id = wish.hook_id, error = detail, "hook result is not a valid dispatch");
                Ok(failed_outcome(&detail, None))
            }
        }
    }

    /// Returns whether `dispatch` would go on with a loop of another bot and Nexus, if `task`'s event is that bot's.
    async fn goes_on_with_loop(&self, task: &EventTask, dispatch: &Dispatch) -> Result<bool, HandleEventError> {
        if !answers_bot(&task.event, &dispatch.delivery_context) {
            return Ok(false);
        }
        let known = task.is_in_loop.get_or_try_init(|| self.find_loop(task)).await?;
        Ok(*known)
    }

    /// Reads from the conversation of `task`'s event whether an answer there would go on with a loop.
    ///
    /// Its messages are read by direct get: one that a replica of the server lacks at this moment counts with the next event.
    async fn find_loop(&self, task: &EventTask) -> Result<bool, HandleEventError> {
        let since = task.incoming.published_at.plus(-COUNTED_MS);
        let subject = &task.incoming.subject;
        let stored = self
            .bus
            .history_since(streams::EVENTS, subject, since, MAX_COUNTED)
            .await;
        let mut stored = stored.map_err(HandleEventError::Conversation)?;
        stored.retain(|earlier| earlier.sequence < task.sequence);
        // So much in a minute is no talk.
        if stored.len() >= MAX_COUNTED {
            return Ok(true);
        }

        let trust = self.bus.trust();
        let earlier = stored.iter().filter_map(|earlier| earlier.read_event(trust).ok());
        Ok(is_loop(&task.event, &earlier.collect::<Vec<Event>>()))
    }

    /// Decides which result of the hook counts. If another run might differ, the result is stored before it is used.
    async fn decide_result(
        &self,
        task: &EventTask,
        wish: &HookAction,
        now: UnixMillis,
    ) -> Result<Decided, HandleEventError> {
        // Decided at an earlier attempt: it holds.
        if wish.decided {
            return Ok(Decided::Counts(wish.result.clone()));
        }

        // A last fire is decided once for all replicas, by the registry.
        if wish.traits.one_shot || wish.result.disable_hook {
            let key = &task.key;
            let hook = (wish.hook_id.as_str(), wish.traits.made_at);
            let decision = self.registry.last_fire(hook, key, &wish.result, now).await;

            return Ok(match decision.map_err(|source| undecided_error(wish, source))? {
                LastFire::Won(result) => Decided::Counts(result),
                LastFire::Lost(reason) => Decided::Nothing(reason),
            });
        }

        // Another run of the script might answer differently: the first answer counts.
        if wish.volatile {
            let first = self.first_answer(&task.key, wish).await?;
            return Ok(first.map_or(Decided::Nothing(DECIDED_BEFORE), Decided::Counts));
        }

        Ok(Decided::Counts(wish.result.clone()))
    }

    /// Builds the dispatch of `result` and the message that stores it. Returns the reason if it is refused or invalid.
    fn build_dispatch(
        &self,
        task: &EventTask,
        wish: &HookAction,
        result: &HookResult,
        now: UnixMillis,
    ) -> Result<(Dispatch, OutgoingMessage), String> {
        let (dispatch, out) = self.letter_of(HookFire {
            event: &task.event,
            event_seq: task.sequence,
            hook_id: &wish.hook_id,
            traits: &wish.traits,
            result,
            evaluated_at: now,
        })?;
        if !task.is_redriven() {
            return Ok((dispatch, out));
        }

        // The server may remember the message id of a dispatch that its stream has lost since, and would drop this one.
        // The broker recognises a dispatch that it has consumed by its own id.
        let id = format!("{REDRIVE}{}:{}", task.sequence, dispatch.id);
        Ok((dispatch, out.msg_id(id)))
    }

    /// Builds the dispatch of `fire` and the message that stores it. Returns the reason if it is refused or invalid.
    pub(crate) fn letter_of(&self, fire: HookFire<'_>) -> Result<(Dispatch, OutgoingMessage), String> {
        let rules = Arc::clone(&self.rules.borrow());
        // Rights are checked when the dispatch is made: they may have changed since the hook was saved.
        if let Some(refused) = fire_refusal(&fire, &rules) {
            return Err(refused);
        }
        if let Some(fault) = transcript_fault(fire.event, fire.result) {
            return Err(fault);
        }

        if opens_main(&fire, &rules) {
            self.warn_of_main(fire.hook_id);
        }

        let dispatch = build_dispatch(fire, &rules);
        dispatch.check()?;
        let out = OutgoingMessage::new(subject::dispatch(&dispatch.target), &dispatch)
            .msg_id(dispatch.id.to_string())
            .header(HOPS, dispatch.causation.hops.to_string())
            .header(CAUSATION, dispatch.event_id.as_str());

        let (size, limit) = (out.payload.len(), self.bus.max_payload().min(Dispatch::MAX_BYTES));
        if size > limit {
            return Err(format!("the dispatch has {size} bytes; at most {limit} are allowed"));
        }

        Ok((dispatch, out))
    }

    /// Warns about an operator's hook that routes strangers into the owner's session, once per process and hook.
    fn warn_of_main(&self, hook_id: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MAX_WARNED && warned.insert(hook_id.to_owned()) {
            tracing::warn!(
                hook_id,
                "hook routes a person other than the owner to session `main`: they share the owner's history"
            );
        }
    }

    /// Returns the stored answer of a volatile hook, which counts; `None` if the hook passed then.
    async fn first_answer(
        &self,
        key: &EventId,
        wish: &HookAction,
    ) -> Result<Option<Box<HookResult>>, HandleEventError> {
        let fired = StoredAnswer::Fired {
            hook_id: wish.hook_id.clone(),
            result: wish.result.clone(),
        };
        let kept = self
            .answers
            .store_answers(key, &[fired])
            .await
            .map_err(HandleEventError::Answers)?;

        let counts = kept.into_iter().find(|answer| answer.hook_id() == wish.hook_id);
        Ok(match counts {
            Some(StoredAnswer::Fired { result, .. }) => Some(result),
            Some(StoredAnswer::Passed { .. }) | None => None,
        })
    }

    /// Stores `dispatch`, then its session's claim. The inner error is the hook's own: its result makes a dispatch that
    /// is too large.
    async fn publish(
        &self,
        dispatch: &Dispatch,
        out: OutgoingMessage,
        carrier: &TraceCarrier,
    ) -> Result<Result<(), String>, HandleEventError> {
        // Before the claim, so that the owner that takes the claim finds the message.
        match self.bus.publish(out.carrier(carrier)).await {
            Ok(_) => {}
            Err(error @ PublishError::TooLarge { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error.into()),
        }

        self.meters.dispatches.increment(1);
        tracing::debug!(
            event_id = %dispatch.event_id, dispatch_id = %dispatch.id, session = %dispatch.target,
            hook_id = dispatch.hook_id, "dispatch stored"
        );

        claim::publish(&self.bus, &dispatch.target, carrier).await?;
        Ok(Ok(()))
    }
}

fn undecided_error(wish: &HookAction, source: shared::bus::CasError) -> HandleEventError {
    HandleEventError::LastFire {
        hook_id: wish.hook_id.clone(),
        source,
    }
}
