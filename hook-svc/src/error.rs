//! Error types of this crate that callers match.

use shared::bus::{CasError, PublishError, ReadStreamError};

/// Error for a faulty `identities.yaml` or `personas.yaml`.
#[derive(Debug, thiserror::Error)]
#[error("{}", faults.join("; "))]
pub struct LoadIdentitiesError {
    /// Faults, each with file, key and expectation.
    pub faults: Vec<String>,
}

/// Error for a hooks directory that could not be read; the registry stays unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ScanDirectoryError {
    /// A directory or file cannot be read.
    #[error("failed to read {path}")]
    Read {
        /// Path of the directory or file.
        path: std::path::PathBuf,
        /// Cause of the failure.
        #[source]
        source: std::io::Error,
    },
    /// The directory holds more hook files than are allowed.
    #[error("{path} holds more than {limit} hook files")]
    TooMany {
        /// Path of the directory.
        path: std::path::PathBuf,
        /// Most hook files that are allowed.
        limit: usize,
    },
}

/// Error for an event that could not be completed now; it is not acked, and is redelivered.
#[derive(Debug, thiserror::Error)]
pub enum HandleEventError {
    /// Answers of hooks could not be stored or read.
    #[error("failed to store hook results")]
    Answers(#[source] CasError),
    /// The stream that holds the done-markers could not be read.
    #[error("failed to find out if the event is done")]
    Marker(#[from] ReadStreamError),
    /// The conversation of the event could not be read.
    #[error("failed to read what was said before the event")]
    Conversation(#[source] ReadStreamError),
    /// A message of the event could not be published.
    #[error("failed to publish the dispatches of an event")]
    Publish(#[from] PublishError),
    /// The last fire of a hook could not be decided.
    #[error("failed to decide the fire of one-shot hook {hook_id}")]
    LastFire {
        /// Id of the hook.
        hook_id: String,
        /// Cause of the failure.
        #[source]
        source: CasError,
    },
    /// The attempt to evaluate the event could not be recorded.
    #[error("failed to record the attempt")]
    Attempt(#[source] CasError),
    /// The worker's supervisor was lost before every hook had answered.
    #[error("no worker has the event any more")]
    Lost,
    /// A hook failed that had asked the read model while no copy of it answered.
    #[error("a hook failed because no copy of the read model answers")]
    NoCopy,
    /// The workers were stopped before every hook had answered.
    #[error("the workers were stopped before the evaluation ended")]
    Stopped,
}

impl HandleEventError {
    /// Returns whether this replica is stopping, so that the event is left to the next owner.
    #[must_use]
    pub const fn is_stop(&self) -> bool {
        match self {
            Self::Stopped | Self::Publish(PublishError::Closed { .. }) => true,
            Self::Marker(_)
            | Self::Conversation(_)
            | Self::Publish(_)
            | Self::LastFire { .. }
            | Self::Answers(_)
            | Self::Attempt(_)
            | Self::NoCopy
            | Self::Lost => false,
        }
    }

    /// Returns whether the bus or the read model was unavailable, which says nothing about the event.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        match self {
            Self::NoCopy
            | Self::Marker(ReadStreamError::Unavailable { .. })
            | Self::Conversation(ReadStreamError::Unavailable { .. })
            | Self::LastFire {
                source: CasError::Read(ReadStreamError::Unavailable { .. }),
                ..
            }
            | Self::Answers(CasError::Read(ReadStreamError::Unavailable { .. }))
            | Self::Attempt(CasError::Read(ReadStreamError::Unavailable { .. })) => true,
            Self::Marker(_)
            | Self::Conversation(_)
            | Self::Publish(_)
            | Self::LastFire { .. }
            | Self::Answers(_)
            | Self::Attempt(_)
            | Self::Lost
            | Self::Stopped => false,
        }
    }
}
