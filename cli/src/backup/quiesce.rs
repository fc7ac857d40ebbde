//! A pause of the services while a backup is made, so that all copies are of one moment. The supervisor of a `nexus up`
//! pauses its services if a file in its data directory asks for it. Without a `nexus up`, the operator stops the
//! services, and this checks that they stay stopped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::process::status::ask_replicas;
use shared::wire::topology::streams;

use super::manifest::CopiedStream;
use crate::launch::hold::holder;
use crate::launch::process::ProcessName;

/// File that asks for a pause, below the data directory; it names the process that asks.
pub(crate) const ASKED: &str = "run/quiesce";
/// File that confirms that the services are paused; it names the process that asked.
pub(crate) const STANDING: &str = "run/quiesced";
/// Longest time of a pause, from the moment at which it was asked for.
pub(crate) const MOST: Duration = Duration::from_secs(30);
/// Interval at which it is checked whether the services are paused.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest time that services may take to report that they run.
const REPLICAS_WITHIN: Duration = Duration::from_secs(3);

/// Reason why a backup is not of one moment.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuiesceError {
    /// Services run that no `nexus up` stops.
    #[error(
        "--quiesce: no `nexus up` runs in {data}, and services run on the server: stop {replicas} first (in Kubernetes: scale \
         them to 0), or make the backup without --quiesce"
    )]
    ServicesRun {
        /// Data directory without a running `nexus up`.
        data: String,
        /// Instances of the running services.
        replicas: String,
    },
    /// The same `nexus up` is paused for another backup.
    #[error("--quiesce: another backup of {data} is being made")]
    Busy {
        /// Data directory of the `nexus up`.
        data: String,
    },
    /// The services of the `nexus up` run again.
    #[error("the pause ended after {} s; run the backup without --quiesce", MOST.as_secs())]
    Over,
    /// A stream was written to after it was copied.
    #[error(
        "stream {stream} grew from message {from} to {to} after it was copied: a program that --quiesce does not pause is publishing; stop it, or run the backup without --quiesce"
    )]
    Moved {
        /// Name of the stream.
        stream: String,
        /// Sequence of its last message when it was copied.
        from: u64,
        /// Sequence of its last message now.
        to: u64,
    },
}

/// Evidence that the services do not work.
#[derive(Debug)]
pub(super) enum Standstill {
    /// The services of a `nexus up` are paused until this is dropped, at most for [`MOST`].
    Asked {
        /// File that asks for the pause.
        asked: PathBuf,
        /// Time at which the pause was asked for.
        begun: Instant,
    },
    /// No service runs on the server.
    Stopped {
        /// Data directory without a running `nexus up`.
        data: String,
    },
}

impl Standstill {
    /// Asks the `nexus up` that holds `data` for a pause, and waits until its services have finished their work in
    /// progress. If no `nexus up` holds it, no service may run on `bus`.
    pub(super) async fn begin(bus: &Bus, data: &Path) -> Result<Self> {
        let shown = data.display().to_string();
        if holder(data).is_none() {
            none_runs(bus, &shown).await?;
            return Ok(Self::Stopped { data: shown });
        }

        let own = ProcessName::own()?;
        let asked = data.join(ASKED);
        if read(&asked).is_some_and(|other| other.is_running()) {
            return Err(QuiesceError::Busy { data: shown }.into());
        }

        std::fs::write(&asked, format!("{own}\n")).context("failed to request the pause")?;
        let standstill = Self::Asked {
            asked,
            begun: SystemClock.monotonic(),
        };

        let standing = data.join(STANDING);
        while read(&standing).as_ref() != Some(&own) {
            let in_time = standstill.in_time();
            in_time.with_context(|| format!("the services did not finish their work in {} s", MOST.as_secs()))?;
            pause(LOOK_EVERY).await;
        }

        Ok(standstill)
    }

    fn in_time(&self) -> Result<(), QuiesceError> {
        match self {
            Self::Asked { begun, .. } if SystemClock.monotonic().saturating_duration_since(*begun) >= MOST => {
                Err(QuiesceError::Over)
            }
            Self::Asked { .. } | Self::Stopped { .. } => Ok(()),
        }
    }

    /// Fails if the pause is over, or if a stream of `copied` was written to: then the backup is not of one moment.
    pub(super) async fn check(&self, bus: &Bus, copied: &[CopiedStream]) -> Result<()> {
        self.in_time()?;

        if let Self::Stopped { data } = self {
            none_runs(bus, data).await?;
        }

        // Timers that the server itself fires are written only into SCHEDULES, and no service has read them.
        for stream in copied.iter().filter(|stream| stream.name != streams::SCHEDULES) {
            let (from, to) = (stream.head.position().last, bus.stream_state(&stream.name).await?.last);
            if from != to {
                let stream = stream.name.clone();
                return Err(QuiesceError::Moved { stream, from, to }.into());
            }
        }

        Ok(())
    }
}

async fn none_runs(bus: &Bus, data: &str) -> Result<()> {
    let running = ask_replicas(bus, REPLICAS_WITHIN).await.map_err(anyhow::Error::msg)?;
    if running.is_empty() {
        return Ok(());
    }

    let names: Vec<&str> = running.iter().map(|replica| replica.instance.as_str()).collect();
    Err(QuiesceError::ServicesRun {
        data: data.to_owned(),
        replicas: names.join(", "),
    }
    .into())
}

impl Drop for Standstill {
    fn drop(&mut self) {
        if let Self::Asked { asked, .. } = self {
            // The supervisor starts the services again when the time is over or this process has ended.
            let _ = std::fs::remove_file(asked);
        }
    }
}

/// Returns the process that is named in the file at `path`.
pub(crate) fn read(path: &Path) -> Option<ProcessName> {
    ProcessName::parse(&std::fs::read_to_string(path).ok()?)
}
