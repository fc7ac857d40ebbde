//! Changes of the registry by tools and pushes: create, push, list, get, disable, enable, delete.
//!
//! Every change is a compare-and-set of one entry, and repeating a request has no further effect; the decisions are in
//! [`crate::registry::authored`]. Every replica serves the requests, and every replica's watch of the registry applies the
//! changes.

use std::collections::HashMap;

use shared::breaker::{Breaker, key_of};
use shared::bus::{Bus, CasError, Kv, ReadStreamError};
use shared::clock::SharedClock;
use shared::model::channel::{ConfiguredChannels, DELIVERED};
use shared::model::hook::{HookOrigin, HookRecord, HookState};
use shared::model::hook_api::{
    CreateHook, DEFAULT_INVOCATIONS, DisableHook, GetHook, HookDetails, HookList, HookView, ListHooks, MAX_INVOCATIONS,
    NameHook, PushHook,
};
use shared::wire::subject::token;
use shared::wire::topology::buckets::{BREAKERS, CHANNELS, HOOK_STATE, HOOKS};

use crate::read_model::access::{AskModelError, ModelAccess};
use crate::registry::authored::{AuthorHookError, AuthoredHook};
use crate::registry::{authored, change_state};

/// Most retries of a compare-and-set after a conflict.
const MAX_TRIES: u32 = 20;

/// Reason why a request about a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum KeepHookError {
    /// The request is invalid.
    #[error(transparent)]
    Author(#[from] AuthorHookError),
    /// The registry cannot be read.
    #[error("failed to read the hook registry")]
    Read(#[from] ReadStreamError),
    /// The registry cannot be written.
    #[error("failed to write the hook registry")]
    Write(#[from] CasError),
    /// The read model cannot be queried.
    #[error("failed to read invocations")]
    Query(#[from] AskModelError),
}

/// Commands on the registry; cheap to clone. See the module.
#[derive(Debug, Clone)]
pub struct HookCommands {
    hooks: Kv<HookRecord>,
    states: Kv<HookState>,
    breakers: Kv<Breaker>,
    channels: Kv<ConfiguredChannels>,
    model: ModelAccess,
    clock: SharedClock,
}

impl HookCommands {
    /// Opens the registry on `bus`.
    #[must_use]
    pub(crate) fn new(bus: &Bus, model: &ModelAccess, clock: SharedClock) -> Self {
        Self {
            hooks: bus.kv(HOOKS),
            states: bus.kv(HOOK_STATE),
            breakers: bus.kv(BREAKERS),
            channels: bus.kv(CHANNELS),
            model: model.clone(),
            clock,
        }
    }

    /// Creates a hook.
    ///
    /// # Errors
    /// Returns [`KeepHookError`] if the request is invalid or the registry is unavailable; no hook is created then.
    pub async fn create_hook(&self, request: CreateHook) -> Result<HookView, KeepHookError> {
        let source = authored::file_of(&request)?;
        let hook = AuthoredHook {
            id: &request.name,
            source: &source,
            created_by: &request.created_by,
            origin: &HookOrigin::Tool,
            made_in: request.made_in.as_deref(),
        };
        self.write(hook).await
    }

    /// Stores a pushed hook file.
    ///
    /// # Errors
    /// Returns [`KeepHookError`] if the request is invalid or the registry is unavailable; the former entry stays.
    pub async fn push(&self, request: PushHook) -> Result<HookView, KeepHookError> {
        authored::check_id(&request.id)?;
        let hook = AuthoredHook {
            id: &request.id,
            source: &request.source,
            created_by: &request.created_by,
            origin: &HookOrigin::Pushed,
            made_in: None,
        };
        self.write(hook).await
    }

    async fn write(&self, hook: AuthoredHook<'_>) -> Result<HookView, KeepHookError> {
        let now = self.clock.now();
        let record = self
            .change_record(hook.id, |current| authored::written_record(hook, current, now))
            .await?;
        tracing::info!(hook_id = hook.id, created_by = hook.created_by, "hook written");
        self.view_record(record).await
    }

    /// Returns all hooks that match `request`, ordered by id.
    ///
    /// # Errors
    /// Returns [`KeepHookError`] if the registry cannot be read.
    pub async fn list(&self, request: ListHooks) -> Result<HookList, KeepHookError> {
        let states: HashMap<_, _> = self.states.entries().await?.into_iter().collect();
        let breakers: HashMap<_, _> = self.breakers.entries().await?.into_iter().collect();
        let channels = self.configured_channels().await?;
        let now = self.clock.now();
        let mut hooks: Vec<HookView> = self
            .hooks
            .entries()
            .await?
            .into_iter()
            .filter(|(_, entry)| !authored::is_deleted(&entry.value))
            .map(|(key, entry)| {
                let state = states.get(&key).map(|state| &state.value);
                let breaker = breakers.get(&key_of(&entry.value.id)).map(|breaker| &breaker.value);
                authored::hook_view(&entry.value, state, breaker, &channels, now)
            })
            .filter(|view| request.status.is_none_or(|status| view.status == status))
            .filter(|view| request.created_by.as_ref().is_none_or(|by| view.created_by == *by))
            .collect();

        hooks.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(HookList { hooks })
    }

    /// Returns one hook with its last invocations, even if it is deleted.
    ///
    /// # Errors
    /// Returns [`KeepHookError`] if the hook does not exist or cannot be read.
    pub async fn get(&self, request: GetHook) -> Result<HookDetails, KeepHookError> {
        let record = self.record(&request.name).await?;
        let limit = request.invocations.unwrap_or(DEFAULT_INVOCATIONS).min(MAX_INVOCATIONS);
        Ok(HookDetails {
            source: record.source.clone(),
            invocations: self.model.invocations(record.id.clone(), limit).await?,
            hook: self.view_record(record).await?,
        })
    }

    /// Returns the registry's entry of `id`.
    ///
    /// # Errors
    /// Returns [`KeepHookError`] if there is none or it cannot be read.
    pub async fn record(&self, id: &str) -> Result<HookRecord, KeepHookError> {
        let entry = self.hooks.get(&token(id)).await?;
        let entry = entry.ok_or_else(|| AuthorHookError::Absent(id.to_owned()))?;
        Ok(entry.value)
    }

    /// Returns the run-time state of `id`.
    ///
    /// # Errors
    /// Returns [`KeepHookError::Read`] if the state cannot be read.
    pub async fn state(&self, id: &str) -> Result<HookState, KeepHookError> {
        let entry = self.states.get(&token(id)).await?;
        Ok(entry.map(|entry| entry.value).unwrap_or_default())
    }

    /// Disables a hook of any origin; a deleted one stays deleted.
    ///
    /// # Errors
    /// Returns [`KeepHookError`] if the hook does not exist, the requester may not change it, or the registry cannot be
    /// written.
    pub async fn disable_hook(&self, request: DisableHook) -> Result<HookView, KeepHookError> {
        let record = self
            .change_present(&request.name, |record| {
                authored::may_change(record, request.asked_by.as_deref())?;
                Ok((!authored::is_deleted(record))
                    .then(|| authored::disabled_record(record, request.reason.as_deref())))
            })
            .await?;
        self.view_record(record).await
    }

    /// Enables a hook, even a deleted one; a one-shot hook that has fired may fire once more.
    ///
    /// # Errors
    /// As [`HookCommands::disable_hook`].
    pub async fn enable_hook(&self, request: NameHook) -> Result<HookView, KeepHookError> {
        authored::may_change(&self.record(&request.name).await?, request.asked_by.as_deref())?;
        self.restart_state(&request.name).await?;
        let record = self
            .change_present(&request.name, |record| {
                Ok((!record.enabled).then(|| authored::enabled_record(record)))
            })
            .await?;
        self.view_record(record).await
    }

    /// Deletes a hook that was created or pushed; its file is removed, its history stays.
    ///
    /// # Errors
    /// As [`HookCommands::disable_hook`], and also if the hook belongs to a directory.
    pub async fn delete_hook(&self, request: NameHook) -> Result<HookView, KeepHookError> {
        let record = self
            .change_present(&request.name, |record| {
                authored::may_change(record, request.asked_by.as_deref())?;
                authored::deleted_record(record).map(Some)
            })
            .await?;
        self.view_record(record).await
    }

    async fn view_record(&self, record: HookRecord) -> Result<HookView, KeepHookError> {
        let state = self.states.get(&token(&record.id)).await?;
        let breaker = self.breakers.get(&key_of(&record.id)).await?;
        let channels = self.configured_channels().await?;

        Ok(authored::hook_view(
            &record,
            state.as_ref().map(|entry| &entry.value),
            breaker.as_ref().map(|entry| &entry.value),
            &channels,
            self.clock.now(),
        ))
    }

    /// Returns the channels to which replies can be delivered.
    async fn configured_channels(&self) -> Result<ConfiguredChannels, KeepHookError> {
        Ok(self.channels.find(DELIVERED).await?.0.unwrap_or_default())
    }

    async fn change_present(
        &self,
        id: &str,
        next: impl Fn(&HookRecord) -> Result<Option<HookRecord>, AuthorHookError>,
    ) -> Result<HookRecord, KeepHookError> {
        self.change_record(id, |current| match current {
            Some(record) => next(record),
            None => Err(AuthorHookError::Absent(id.to_owned())),
        })
        .await
    }

    /// Changes the entry of `id` by compare-and-set until it succeeds or `next` returns no change. Returns the
    /// resulting record.
    async fn change_record(
        &self,
        id: &str,
        mut next: impl FnMut(Option<&HookRecord>) -> Result<Option<HookRecord>, AuthorHookError>,
    ) -> Result<HookRecord, KeepHookError> {
        let key = token(id);
        let mut tries = 0;
        loop {
            let entry = self.hooks.get(&key).await?;
            let Some(record) = next(entry.as_ref().map(|entry| &entry.value))? else {
                let standing = entry.ok_or_else(|| AuthorHookError::Absent(id.to_owned()))?;
                return Ok(standing.value);
            };

            let current = entry.as_ref().map(|entry| &entry.value);
            if authored::begins_anew(current, &record) {
                // The state is written before the entry, so that no crash leaves a hook that never runs: a former one
                // of this name may have fired its one shot. Nothing runs under the name yet, except on replicas that
                // have not seen its end.
                if current.is_some() {
                    change_state(&self.states, id, |state| Some(authored::next_life(state))).await?;
                } else {
                    self.restart_state(id).await?;
                }
            }

            let written = match &entry {
                None => self.hooks.create(&key, &record).await,
                Some(entry) => self.hooks.update(&key, &record, entry.revision).await,
            };
            match written {
                Ok(_) => return Ok(record),
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn restart_state(&self, id: &str) -> Result<(), KeepHookError> {
        Ok(change_state(&self.states, id, authored::restarted_state).await?)
    }
}
