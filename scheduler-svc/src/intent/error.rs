//! Errors of steps on intents, and the service response to each.

use shared::bus::{CasError, ConsumeError, PublishError, ReadStreamError};
use shared::model::event::ParseEventIdError;
use ulid::Ulid;

use super::machine::TakeStepError;

/// Error of a step on an intent.
#[derive(Debug, thiserror::Error)]
pub enum HandleIntentError {
    /// Another writer was first; the caller must read the new value and decide again.
    #[error("intent {0}: concurrent update")]
    Conflict(Ulid),
    /// There is no intent with this id.
    #[error("intent {0} does not exist")]
    Unknown(Ulid),
    /// The lifecycle does not have this step.
    #[error(transparent)]
    Step(#[from] TakeStepError),
    /// The approval was decided differently, or there is nothing to decide.
    #[error("{0}")]
    Decided(String),
    /// The caller is not the owner and must not decide.
    #[error("{0} is not the owner")]
    NotTheOwner(String),
    /// The request or a stored record has invalid contents.
    #[error("{0}")]
    Unreadable(String),
    /// The server rejects the message, or does not answer.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// A stream or bucket cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// A stream cannot be read in order.
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// The id of an event cannot be formed.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
}

impl HandleIntentError {
    /// Returns the code and the text of the service response.
    #[must_use]
    pub fn to_answer(&self) -> (usize, String) {
        let code = match self {
            Self::Unknown(_) => 404,
            Self::Conflict(_) | Self::Step(_) | Self::Decided(_) => 409,
            Self::Unreadable(_) => 400,
            Self::NotTheOwner(_) => 403,
            Self::Publish(_) | Self::Read(_) | Self::Consume(_) => 503,
            Self::Id(_) => 500,
        };
        (code, self.to_string())
    }

    /// Converts the error of a compare-and-set on `intent`.
    #[must_use]
    pub fn from_cas(intent: Ulid, error: CasError) -> Self {
        match error {
            CasError::Conflict { .. } => Self::Conflict(intent),
            CasError::Publish(error) => Self::Publish(error),
            CasError::Read(error) => Self::Read(error),
        }
    }
}
