//! What goes wrong in this crate, where callers match.

use shared::bus::{CasError, PublishError, ReadStreamError};

/// `identities.yaml` or `personas.yaml` is not as it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}", faults.join("; "))]
pub struct LoadIdentitiesError {
    /// Each names file, key and expectation.
    pub faults: Vec<String>,
}

/// The hooks directory could not be read; what is in the registry stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ScanDirectoryError {
    /// A directory or file cannot be read.
    #[error("failed to read {path}")]
    Read {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// More files than are taken.
    #[error("{path} holds more than {limit} hook files")]
    TooMany {
        /// The directory.
        path: std::path::PathBuf,
        /// The bound.
        limit: usize,
    },
}

/// An event could not be brought to its end now; nothing of it is acked, and it comes again.
#[derive(Debug, thiserror::Error)]
pub enum HandleEventError {
    /// What hooks answered could not be stored or read.
    #[error("failed to store hook results")]
    Answers(#[source] CasError),
    /// The stream that holds done-markers could not be read.
    #[error("failed to find out if the event is done")]
    Marker(#[from] ReadStreamError),
    /// A message of it was refused.
    #[error("failed to publish the dispatches of an event")]
    Publish(#[from] PublishError),
    /// A hook's last fire could not be decided.
    #[error("failed to decide the fire of one-shot hook {hook_id}")]
    LastFire {
        /// Which hook.
        hook_id: String,
        /// Why.
        #[source]
        source: CasError,
    },
    /// It could not be noted that the event is about to be tried.
    #[error("failed to record the attempt")]
    Attempt(#[source] CasError),
    /// Its worker's keeper was lost before every hook had answered.
    #[error("no worker has the event any more")]
    Lost,
    /// The workers were stopped before every hook had answered.
    #[error("the workers were stopped before the evaluation ended")]
    Stopped,
}

impl HandleEventError {
    /// Whether this replica is coming to its end: the event is left to the next owner.
    #[must_use]
    pub const fn is_stop(&self) -> bool {
        match self {
            Self::Stopped | Self::Publish(PublishError::Closed { .. }) => true,
            Self::Marker(_)
            | Self::Publish(_)
            | Self::LastFire { .. }
            | Self::Answers(_)
            | Self::Attempt(_)
            | Self::Lost => false,
        }
    }

    /// Whether the bus did not answer, which says nothing about the event.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        match self {
            Self::Marker(ReadStreamError::Unavailable { .. })
            | Self::LastFire {
                source: CasError::Read(ReadStreamError::Unavailable { .. }),
                ..
            }
            | Self::Answers(CasError::Read(ReadStreamError::Unavailable { .. }))
            | Self::Attempt(CasError::Read(ReadStreamError::Unavailable { .. })) => true,
            Self::Marker(_)
            | Self::Publish(_)
            | Self::LastFire { .. }
            | Self::Answers(_)
            | Self::Attempt(_)
            | Self::Lost
            | Self::Stopped => false,
        }
    }

    /// The error and its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// `error` and its causes in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
