//! `nexus.svc.hook.*`: hooks for operators, agents and other services, answered by any replica.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, ServiceSpec};
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::model::event::{Event, EventId};
use shared::model::hook::{HookRecord, HookStatus};
use shared::model::hook_api::{HookRun, RunHook, TestHook};
use shared::wire::envelope::WireMessage as _;
use shared::wire::topology::streams::EVENTS;

use crate::dry_run::{DryRun, DryRunner};
use crate::read_model::access::ModelAccess;
use crate::registry::active_hooks::source_of;
use crate::registry::authored::AuthorHookError;
use crate::registry::hook_commands::{HookCommands, KeepHookError};
use crate::registry::{HookRegistry, metadata};
use crate::runner::HookCounters;

/// Error code of an invalid request.
const WRONG: usize = 400;
/// Error code of a hook or event that does not exist.
const ABSENT: usize = 404;
/// Error code of a hook that belongs to another author, or is disabled.
const CONFLICT: usize = 409;
/// Error code of a request that cannot be answered now.
const UNAVAILABLE: usize = 503;

/// Time limit for the read model to apply the stored events.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Id that a hook under test reads as its own.
const TEST_ID: &str = "test";

/// Code and text of a rejected request.
type Refusal = (usize, String);

/// Dependencies of the service.
#[derive(Debug, Clone)]
pub struct HookApi {
    /// Commands that change the registry.
    pub keeper: HookCommands,
    /// Registry, used for hooks that ask to be disabled.
    pub registry: HookRegistry,
    /// Runner for hooks under test.
    pub lab: DryRunner,
    /// Bus, to read stored events.
    pub bus: Bus,
    /// Read model, to find the sequences of events.
    pub(crate) model: ModelAccess,
    /// Clock for the evaluation time.
    pub clock: SharedClock,
}

macro_rules! endpoint {
    ($spec:expr, $api:expr, $name:literal, $method:ident) => {{
        let keeper = $api.keeper.clone();
        $spec.endpoint($name, move |request| {
            let keeper = keeper.clone();
            async move { keeper.$method(request).await.map_err(|error| keep_refusal(&error)) }
        })
    }};
}

/// Returns the `hook` service.
#[must_use]
pub fn service_spec(api: HookApi) -> ServiceSpec {
    let spec = ServiceSpec::new("hook", "hooks: create, list, enable, test");
    let spec = endpoint!(spec, api, "create", create_hook);
    let spec = endpoint!(spec, api, "push", push);
    let spec = endpoint!(spec, api, "list", list);
    let spec = endpoint!(spec, api, "get", get);
    let spec = endpoint!(spec, api, "disable", disable_hook);
    let spec = endpoint!(spec, api, "enable", enable_hook);
    let spec = endpoint!(spec, api, "delete", delete_hook);

    let api = Arc::new(api);
    let test = Arc::clone(&api);

    spec.endpoint("run", move |request: RunHook| {
        let api = Arc::clone(&api);
        async move { api.run(request).await }
    })
    .endpoint("test", move |request: TestHook| {
        let api = Arc::clone(&test);
        async move { api.test_hook(request).await }
    })
}

impl HookApi {
    async fn run(&self, request: RunHook) -> Result<HookRun, Refusal> {
        let record = self
            .keeper
            .record(&request.hook)
            .await
            .map_err(|error| keep_refusal(&error))?;
        let state = self
            .keeper
            .state(&record.id)
            .await
            .map_err(|error| keep_refusal(&error))?;

        // A hook that asked to be disabled is disabled in its state, not in its record.
        if !record.enabled || record.source.is_empty() || state.status == HookStatus::Disabled {
            return Err((
                CONFLICT,
                format!("hook {} does not run: it is disabled or errored", record.id),
            ));
        }

        let trial = DryRun {
            hook: source_of(&record),
            author: record.created_by.clone(),
            counters: HookCounters {
                trigger_count: state.trigger_count,
                last_triggered: state.last_triggered,
            },
        };

        let run = self.try_it(trial, request.event, request.now).await?;
        self.retire_hook(&record, &run).await;

        Ok(run)
    }

    async fn test_hook(&self, request: TestHook) -> Result<HookRun, Refusal> {
        let metadata = metadata::parse(TEST_ID, &request.source).map_err(|error| (WRONG, error.to_string()))?;
        let now = request.now.unwrap_or_else(|| self.clock.now());
        let trial = DryRun::from_file(TEST_ID, &request.source, &metadata, now);
        self.try_it(trial, request.event, Some(now)).await
    }

    async fn try_it(
        &self,
        trial: DryRun,
        event: serde_json::Value,
        now: Option<shared::model::time::UnixMillis>,
    ) -> Result<HookRun, Refusal> {
        let event = self.requested_event(event).await?;
        let now = now.unwrap_or_else(|| self.clock.now());
        self.lab.run(trial, &event, now).await.map_err(|error| {
            tracing::warn!(error = describe_error(&error), "failed to test a hook");
            (UNAVAILABLE, describe_error(&error))
        })
    }

    /// Disables a hook that asked for it, as after any event.
    async fn retire_hook(&self, record: &HookRecord, run: &HookRun) {
        if run.result.as_ref().is_some_and(|result| result.disable_hook)
            && let Err(error) = self.registry.retire_hook(&record.id, record.created_at).await
        {
            tracing::warn!(
                hook_id = record.id,
                error = describe_error(&error),
                "failed to disable a hook at its own request"
            );
        }
    }

    /// Returns the given event, or the stored event with the given id.
    async fn requested_event(&self, given: serde_json::Value) -> Result<Event, Refusal> {
        let serde_json::Value::String(id) = given else {
            let event: Event = serde_json::from_value(given).map_err(|error| (WRONG, format!("event: {error}")))?;
            event.check().map_err(|fault| (WRONG, format!("event: {fault}")))?;
            return Ok(event);
        };
        let absent = || (ABSENT, format!("there is no event {id}"));
        let id = EventId::parse(id.clone()).map_err(|error| (WRONG, format!("event: {error}")))?;

        let sequence = match self.first_sequence(&id, 0).await? {
            Some(sequence) => sequence,
            None => {
                // The event may be newer than the read model.
                let state = self.bus.stream_state(EVENTS).await;
                let last = state.map_err(|error| (UNAVAILABLE, describe_error(&error)))?.last;
                self.first_sequence(&id, last).await?.ok_or_else(absent)?
            }
        };

        let stored = self.bus.at_sequence(EVENTS, sequence).await;
        let stored = stored
            .map_err(|error| (UNAVAILABLE, describe_error(&error)))?
            .ok_or_else(absent)?;

        stored
            .read_event(self.bus.trust())
            .map_err(|error| (UNAVAILABLE, format!("event {id} cannot be read: {error}")))
    }

    /// Returns the sequence at which the event `id` occurred first, in a read model that has reached the event
    /// `reached`. Fails after [`CATCH_UP`].
    async fn first_sequence(&self, id: &EventId, reached: u64) -> Result<Option<u64>, Refusal> {
        let found = self.model.find_first(id, reached, CATCH_UP).await;
        found
            .map(|found| found.sequence)
            .map_err(|error| (UNAVAILABLE, describe_error(&error)))
    }
}

fn keep_refusal(error: &KeepHookError) -> Refusal {
    let code = match error {
        KeepHookError::Author(AuthorHookError::Absent(_)) => ABSENT,
        KeepHookError::Author(
            AuthorHookError::Taken { .. } | AuthorHookError::Filed { .. } | AuthorHookError::Foreign { .. },
        ) => CONFLICT,
        KeepHookError::Author(AuthorHookError::Name(_) | AuthorHookError::Id(_) | AuthorHookError::Source(_)) => WRONG,
        KeepHookError::Read(_) | KeepHookError::Write(_) | KeepHookError::Query(_) => {
            tracing::warn!(error = describe_error(error), "hook request failed");
            UNAVAILABLE
        }
    };

    (code, describe_error(error))
}
