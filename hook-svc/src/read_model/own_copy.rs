//! Keeps this replica's own copy of the read model while it holds one of the slots for copies: opens the file, feeds
//! it, answers others from it, and closes it when other replicas have taken the slots.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use shared::bus::{Bus, ServiceHandle, SlotLeases, SlotRole, StreamTap};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::model::identity::Identities;
use shared::process::Health;
use shared::process::lifecycle::ShutdownSignal;
use shared::projection::{ApplyBatchError, Projection, feed};
use shared::wire::subject::token;
use shared::wire::topology::streams::EVENTS;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::access::{ModelAccess, OwnCopy};
use super::copy_service::CopyService;
use super::lent_vectors::LentVectors;
use super::{events_api, identities, log_size, peer_file, snapshot};
use crate::config::HooksConfig;
use crate::health::admission::{JOIN_BELOW, LEAVE_ABOVE};
use crate::health::breakers::HookBreakers;
use crate::health::participation::list_hooks;
use crate::host::embedder;
use crate::registry::HookRegistry;
use crate::routing::RoutingRules;

/// Name of the slots in KV `leases`.
pub(crate) const GROUP: &str = "copy";

/// Interval at which the slot is refreshed.
const TICK: Duration = Duration::from_millis(700);

/// Pause before a write that failed is tried again.
const WRITE_AGAIN: Duration = Duration::from_millis(500);

/// Interval at which an open copy is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Time for which a copy is kept although other replicas hold all slots: a replica that was cut off for a moment must
/// not begin anew.
const LINGER: Duration = Duration::from_secs(60);

/// Parts that a copy is made of, and those that hear of it.
#[derive(Debug)]
pub(crate) struct CopyKeeper {
    pub(crate) bus: Bus,
    pub(crate) clock: SharedClock,
    pub(crate) health: Health,
    pub(crate) config: HooksConfig,
    /// Name of this replica.
    pub(crate) name: String,
    pub(crate) access: ModelAccess,
    pub(crate) rules: watch::Receiver<Arc<RoutingRules>>,
    pub(crate) registry: HookRegistry,
    pub(crate) breakers: HookBreakers,
    /// Receives the messages of `EVENTS` that the copy reads.
    pub(crate) tap: StreamTap,
}

/// A copy that is open.
#[derive(Debug)]
struct OpenCopy {
    projection: Projection,
    feeding: ShutdownSignal,
    feed: JoinHandle<Result<(), ApplyBatchError>>,
    background: JoinSet<()>,
    served: Vec<ServiceHandle>,
    is_ready: bool,
}

/// State of this replica's copy.
#[derive(Debug)]
enum CopyState {
    Closed,
    Opening(JoinHandle<anyhow::Result<OpenCopy>>),
    Open(Box<OpenCopy>),
}

impl CopyState {
    fn is_ready(&self) -> bool {
        match self {
            Self::Open(open) => open.is_ready,
            Self::Closed | Self::Opening(_) => false,
        }
    }

    /// Returns the copy once it is open.
    ///
    /// # Errors
    /// Returns the reason why it cannot be opened, or why an open one is fed no more.
    async fn next_state(&mut self) -> anyhow::Result<OpenCopy> {
        match self {
            Self::Closed => std::future::pending().await,
            Self::Opening(opening) => opening.await.context("failed to open the read model")?,
            Self::Open(open) => match (&mut open.feed).await {
                Ok(Err(error)) => Err(error).context("the feed of the read model failed"),
                Ok(Ok(())) | Err(_) => Err(anyhow::anyhow!("the feed of the read model ended")),
            },
        }
    }
}

impl CopyKeeper {
    /// Keeps a copy while that is this replica's part, until `shutdown`.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be opened or written: this replica cannot go on then.
    pub(crate) async fn run(self: Arc<Self>, mut slots: SlotLeases, shutdown: ShutdownSignal) -> anyhow::Result<()> {
        let mut copy = CopyState::Closed;
        let mut spare_since: Option<Instant> = None;
        let mut refresh_at = self.clock.monotonic();
        let mut role = SlotRole::Spare;
        // Without a copy, only the events of the own partitions are read.
        let mut own_events = JoinSet::new();
        // Also of a replica that keeps no copy any more.
        snapshot::remove_unfinished(self.access.path());

        // The holders of the slots must be known first, or every replica of a cluster that starts would open its file.
        tokio::select! {
            () = slots.wait_complete() => {}
            () = shutdown.requested() => return Ok(()),
        }

        let ended = loop {
            let now = self.clock.monotonic();
            if now >= refresh_at {
                role = self.refresh(&mut slots, role, copy.is_ready()).await;
                refresh_at = now + TICK;
            }

            spare_since = match role {
                SlotRole::Holder | SlotRole::Heir => None,
                SlotRole::Spare => spare_since.or(Some(now)),
            };
            let is_spare = spare_since.is_some_and(|since| now.saturating_duration_since(since) >= LINGER);
            self.note_long_opening(&copy, &slots);
            copy = match (role, copy) {
                // Fetching a file may take many minutes, in which the slot has to be refreshed.
                (SlotRole::Holder | SlotRole::Heir, CopyState::Closed) => {
                    own_events.shutdown().await;
                    let keeper = Arc::clone(&self);
                    CopyState::Opening(tokio::spawn(async move { keeper.open().await }))
                }
                (SlotRole::Spare, CopyState::Open(unused)) if is_spare => {
                    self.close(*unused).await;
                    CopyState::Closed
                }
                (SlotRole::Spare, CopyState::Closed) => {
                    self.access.decide_none();
                    if own_events.is_empty() {
                        let (tap, bus) = (self.tap.clone(), self.bus.clone());
                        own_events.spawn(async move { tap.read_held(&bus, EVENTS).await });
                    }
                    CopyState::Closed
                }
                (_, kept) => kept,
            };

            if let CopyState::Open(open) = &mut copy {
                self.look(open, &slots).await;
            }

            let refresh_in = refresh_at.saturating_duration_since(self.clock.monotonic());
            let wait = if matches!(copy, CopyState::Open(_)) {
                LOOK
            } else {
                refresh_in
            };
            tokio::select! {
                () = shutdown.requested() => break Ok(()),
                opened = copy.next_state() => match opened {
                    Ok(opened) => copy = CopyState::Open(Box::new(opened)),
                    Err(error) => break Err(error),
                },
                () = pause(wait.min(refresh_in)) => {}
                () = slots.wait_changed() => refresh_at = self.clock.monotonic(),
            }
        };

        match copy {
            CopyState::Open(open) => self.close(*open).await,
            CopyState::Opening(opening) => opening.abort(),
            CopyState::Closed => {}
        }
        slots.give_back().await;
        ended
    }

    /// Beside other copies, lets the replica take part while its own is being opened, which may take many minutes.
    fn note_long_opening(&self, copy: &CopyState, slots: &SlotLeases) {
        if matches!(copy, CopyState::Opening(_)) && !self.is_alone(slots) {
            self.access.decide_none();
        }
    }

    async fn refresh(&self, slots: &mut SlotLeases, role: SlotRole, is_prepared: bool) -> SlotRole {
        // A replica that may keep no copy takes no slot, neither a free one nor one that it had before it was
        // configured so.
        if !self.config.read_model.keep {
            return SlotRole::Spare;
        }

        // Until the server answers, everything stays as it is.
        let Ok(refreshed) = tokio::time::timeout(TICK, slots.refresh(is_prepared)).await else {
            return role;
        };

        refreshed.unwrap_or_else(|error| {
            let error = describe_error(&error);
            tracing::debug!(error, "slot of the read model's copy was not refreshed");
            role
        })
    }

    async fn open(&self) -> anyhow::Result<OpenCopy> {
        let path = self.access.path();
        peer_file::bootstrap_from_peer(&self.bus, &self.access, path).await;
        snapshot::bootstrap_model(&self.bus, path).await;
        snapshot::remove_unfinished(path);
        let projection = self.open_file(path).await?;

        let persons = self.rules.borrow().identities.clone();
        while let Err(error) = projection.set_identities(persons.clone(), self.clock.now()).await {
            // A file that is locked and a disk that is full pass, and the replica takes part meanwhile.
            if !matches!(error, ApplyBatchError::Passing(_)) {
                return Err(error).context("failed to name the identities in the read model");
            }
            let error = describe_error(&error);
            tracing::warn!(error, "failed to name the identities in the read model; retrying");
            self.access.note_unopened(Some(error));
            pause(WRITE_AGAIN).await;
        }
        self.access.note_unopened(None);

        let feeding = ShutdownSignal::default();
        let feed = feed::run_tapped(self.bus.clone(), projection.clone(), self.tap.clone(), feeding.clone());
        let mut background = JoinSet::new();
        self.tend(&projection, persons, &mut background);
        self.access.set_own(OwnCopy::Building(projection.clone()));
        tracing::info!(path = %path.display(), "this replica keeps a copy of the read model");

        Ok(OpenCopy {
            feed: tokio::spawn(feed),
            projection,
            feeding,
            background,
            served: Vec::new(),
            is_ready: false,
        })
    }

    /// Opens the file, and waits while its disk is full or fails: the end of the process would not mend that.
    async fn open_file(&self, path: &Path) -> anyhow::Result<Projection> {
        loop {
            match Projection::open(path) {
                Err(error) if error.is_of_disk() => {
                    let error = describe_error(&error);
                    tracing::warn!(error, "failed to open the read model; retrying");
                    self.access.note_unopened(Some(error));
                    pause(WRITE_AGAIN).await;
                }
                opened => {
                    self.access.note_unopened(None);
                    return opened.context("failed to open the read model");
                }
            }
        }
    }

    /// Starts the tasks that keep the persons, hooks and vectors of `projection` up to date, its log short and a
    /// snapshot of it stored.
    fn tend(&self, projection: &Projection, persons: Identities, background: &mut JoinSet<()>) {
        let (own, clock) = (projection.clone(), Arc::clone(&self.clock));
        background.spawn(embedder::run(
            self.config.clone(),
            own.clone(),
            Arc::new(LentVectors::new(self.access.clone())),
            Arc::clone(&clock),
            self.health.clone(),
        ));
        background.spawn(log_size::watch_log(own.clone()));
        background.spawn(snapshot::keep_copies(self.bus.clone(), own.clone(), Arc::clone(&clock)));
        background.spawn(list_hooks(
            self.registry.watch_hooks(),
            self.breakers.clone(),
            own.clone(),
        ));
        background.spawn(identities::follow_links(persons, self.rules.clone(), own, clock));
    }

    /// Looks how far the copy is, and lets it answer others once it may.
    async fn look(&self, open: &mut OpenCopy, slots: &SlotLeases) {
        let lag = open.projection.lag(self.clock.now());
        let bound = if open.is_ready { LEAVE_ABOVE } else { JOIN_BELOW };
        let is_ready = lag.is_some_and(|lag| lag < bound);
        if is_ready != open.is_ready {
            open.is_ready = is_ready;
            open.projection.set_caught_up(is_ready);
            let own = open.projection.clone();
            self.access.set_own(if is_ready {
                OwnCopy::Ready(own)
            } else {
                OwnCopy::Building(own)
            });
        }

        // The only copy answers operators while it is being built, as far as it has come; others would be told old
        // states.
        if open.served.is_empty() && (is_ready || self.is_alone(slots)) {
            match self.serve(&open.projection, &mut open.background).await {
                Ok(served) => {
                    open.served = served;
                    self.access.note_served(true);
                }
                Err(error) => tracing::warn!(error, "the read model's copy cannot be asked; retrying"),
            }
        }
    }

    /// Returns whether no other replica holds a slot.
    fn is_alone(&self, slots: &SlotLeases) -> bool {
        slots.holders().borrow().iter().all(|holder| *holder == self.name)
    }

    async fn serve(&self, projection: &Projection, background: &mut JoinSet<()>) -> Result<Vec<ServiceHandle>, String> {
        let copy = CopyService::new(projection.clone(), Arc::clone(&self.clock));
        let served = vec![
            self.bus.serve(copy.service_spec(&self.name)).await?,
            self.bus.serve(events_api::service_spec(projection, &self.bus)).await?,
        ];
        background.spawn(async move { copy.end_old().await });
        Ok(served)
    }

    async fn close(&self, open: OpenCopy) {
        self.access.note_served(false);
        self.access.set_own(OwnCopy::None);
        for served in open.served {
            served.stop().await;
        }

        let mut background = open.background;
        background.shutdown().await;
        open.feeding.trigger();
        open.projection.close().await;
        tracing::info!("this replica keeps no copy of the read model any more");

        if self.config.data_dir.is_empty() {
            remove_temporary(open.projection.path());
        }
    }
}

/// Removes the folder of a read model that no configured directory keeps.
fn remove_temporary(path: &Path) {
    if let Some(folder) = path.parent()
        && let Err(error) = std::fs::remove_dir_all(folder)
    {
        tracing::debug!(folder = %folder.display(), %error, "failed to remove a temporary read model");
    }
}

/// Returns the path of the read model's file of the replica `name`: each has a folder of its own, since the file
/// belongs to one process.
pub(crate) fn path_of(config: &HooksConfig, name: &str) -> PathBuf {
    let folder = if config.data_dir.is_empty() {
        std::env::temp_dir().join("nexus-hook-svc")
    } else {
        PathBuf::from(&config.data_dir)
    };
    folder.join(token(name)).join("read-model.sqlite")
}
