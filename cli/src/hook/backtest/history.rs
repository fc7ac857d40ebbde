//! The read model of a replayed hook: in step with the events that the hook is shown, never ahead of them.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use hook_svc::dry_run::DryRun;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::identity::Identities;
use shared::model::time::UnixMillis;
use shared::projection::Projection;
use shared::projection::step::SteppedProjection;
use tokio::sync::Mutex;

use crate::complain;

/// Read model of one replay; empty if the hook's file never names `dbPath`.
pub(super) struct History {
    folder: tempfile::TempDir,
    open: Option<(Projection, Mutex<SteppedProjection>)>,
}

impl History {
    /// Returns an empty read model for `trial`'s hook, with the persons of `identities`.
    ///
    /// # Errors
    /// Fails if no file can be made, or if the streams cannot be read.
    pub(super) async fn of(bus: &Bus, trial: &DryRun, identities: &Identities) -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a temporary directory")?;
        let mut history = Self { folder, open: None };
        if trial.hook.source.contains("dbPath") {
            complain!("the hook reads dbPath: the read model is built in step with history, one event after the other");
            let projection = Projection::open(&history.path())?;
            projection.set_identities(identities.clone(), SystemClock.now()).await?;
            let stepped = SteppedProjection::begin_at_position(bus, projection.clone()).await?;
            history.open = Some((projection, Mutex::new(stepped)));
        }

        Ok(history)
    }

    /// Returns whether the hook reads the model, so that events must run one after the other.
    pub(super) const fn is_read(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the path of the read model's file.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("read-model.sqlite")
    }

    /// Brings the read model to the state at which the event at `sequence`, stored at `at`, was new.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) async fn bring_to(&self, sequence: u64, at: UnixMillis) -> Result<()> {
        if let Some((_, stepped)) = &self.open {
            stepped.lock().await.take_in(sequence, at).await?;
        }
        Ok(())
    }

    /// Closes the read model and removes its file.
    pub(super) async fn close(self) {
        if let Some((projection, _)) = self.open {
            projection.close().await;
        }
    }
}
