//! The read model that a replayed hook sees: in step with the events that it is shown, never ahead of them.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use hook_svc::lab::Trial;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::identity::Identities;
use shared::model::time::UnixMillis;
use shared::projection::Projection;
use shared::projection::step::Stepped;
use tokio::sync::Mutex;

use crate::complain;

/// A read model of this replay alone; none where the hook's file never names it.
pub(super) struct History {
    folder: tempfile::TempDir,
    open: Option<(Projection, Mutex<Stepped>)>,
}

impl History {
    /// An empty one for `trial`'s hook, in which persons are those of `identities`.
    ///
    /// # Errors
    /// Fails if no file can be made or the streams cannot be read.
    pub(super) async fn of(bus: &Bus, trial: &Trial, identities: &Identities) -> Result<Self> {
        let folder = tempfile::tempdir().context("make a directory")?;
        let mut history = Self { folder, open: None };
        if trial.hook.source.contains("dbPath") {
            complain!("the hook reads dbPath: the read model is built in step with history, one event after the other");
            let projection = Projection::open(&history.path())?;
            projection.identify(identities.clone(), SystemClock.now()).await?;
            let stepped = Stepped::begin(bus, projection.clone()).await?;
            history.open = Some((projection, Mutex::new(stepped)));
        }

        Ok(history)
    }

    /// Whether the hook reads it, so that events go one after the other.
    pub(super) const fn is_read(&self) -> bool {
        self.open.is_some()
    }

    /// Where it lies.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("read-model.sqlite")
    }

    /// Makes it what it was when the event at `sequence`, stored at `at`, was new.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) async fn bring_to(&self, sequence: u64, at: UnixMillis) -> Result<()> {
        if let Some((_, stepped)) = &self.open {
            stepped.lock().await.take_in(sequence, at).await?;
        }
        Ok(())
    }

    /// Closes and removes it.
    pub(super) async fn close(self) {
        if let Some((projection, _)) = self.open {
            projection.close().await;
        }
    }
}
