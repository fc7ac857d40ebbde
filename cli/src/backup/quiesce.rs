//! A standstill of the services while a backup is made, so that it is of one moment. The supervisor of a `nexus up` keeps it,
//! asked for by a file in its data directory; elsewhere whoever runs the services stops them, and it is checked that they
//! stay so.

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

/// The file that asks for a standstill, below the data directory: the process that wants it.
pub(crate) const ASKED: &str = "run/quiesce";
/// The file that says that the services stand still: the process that asked.
pub(crate) const STANDING: &str = "run/quiesced";
/// How long a standstill lasts at most, from the moment at which it was asked for.
pub(crate) const MOST: Duration = Duration::from_secs(30);
/// How often is looked whether the services stand still.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long services may take to say that they run.
const REPLICAS_WITHIN: Duration = Duration::from_secs(3);

/// A backup is not of one moment.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuiesceError {
    /// Services run that no `nexus up` stops.
    #[error(
        "--quiesce: no `nexus up` runs in {data}, and services run on the server: stop {replicas} first (in Kubernetes: scale \
         them to 0), or make the backup without --quiesce"
    )]
    ServicesRun {
        /// The data directory that was looked into.
        data: String,
        /// Their instances.
        replicas: String,
    },
    /// The same `nexus up` stands still for another backup.
    #[error("--quiesce: another backup of {data} is being made")]
    Busy {
        /// The data directory.
        data: String,
    },
    /// The services of a `nexus up` go on.
    #[error("the pause ended after {} s; run the backup without --quiesce", MOST.as_secs())]
    Over,
    /// Something was written meanwhile.
    #[error(
        "stream {stream} has come from message {from} to {to} since it was copied: something writes that --quiesce does not \
         stop; stop it, or make the backup without --quiesce"
    )]
    Moved {
        /// The stream.
        stream: String,
        /// Its last message when it was copied.
        from: u64,
        /// Its last message now.
        to: u64,
    },
}

/// The services stand still.
#[derive(Debug)]
pub(super) enum Standstill {
    /// Those of a `nexus up`, until this is dropped, at most [`MOST`].
    Asked {
        /// The file that asks.
        asked: PathBuf,
        /// When it was asked for.
        begun: Instant,
    },
    /// None runs on the server.
    Stopped {
        /// The data directory in which no `nexus up` runs.
        data: String,
    },
}

impl Standstill {
    /// Asks the `nexus up` that holds `data`, and waits until its services have finished what was under way; where none
    /// holds it, no service may run on `bus`.
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

        std::fs::write(&asked, format!("{own}\n")).context("ask for a standstill")?;
        let standstill = Self::Asked {
            asked,
            begun: SystemClock.monotonic(),
        };

        let standing = data.join(STANDING);
        while read(&standing).as_ref() != Some(&own) {
            let in_time = standstill.in_time();
            in_time.context("the services have not finished what is under way")?;
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

    /// Fails if the standstill is over, or something was written to what was `copied`: it is not of one moment then.
    pub(super) async fn check(&self, bus: &Bus, copied: &[CopiedStream]) -> Result<()> {
        self.in_time()?;

        if let Self::Stopped { data } = self {
            none_runs(bus, data).await?;
        }

        // Timers that the server itself lets go off are written into SCHEDULES alone, and nobody has heard them.
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
            // The supervisor goes on without it when the time is over, or this process has ended.
            let _ = std::fs::remove_file(asked);
        }
    }
}

/// The process that is named in the file at `path`.
pub(crate) fn read(path: &Path) -> Option<ProcessName> {
    ProcessName::parse(&std::fs::read_to_string(path).ok()?)
}
