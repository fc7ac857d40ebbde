//! What can go wrong with an intent, and what follows from it.

use shared::bus::{CasError, ConsumeError, PublishError, ReadStreamError};
use shared::model::event::ParseEventIdError;
use ulid::Ulid;

use super::machine::TakeStepError;

/// An intent could not be brought further.
#[derive(Debug, thiserror::Error)]
pub enum HandleIntentError {
    /// Somebody else was first; what stands there now decides anew.
    #[error("intent {0}: concurrent update")]
    Conflict(Ulid),
    /// There is none of this name.
    #[error("intent {0} does not exist")]
    Unknown(Ulid),
    /// The lifecycle does not have that step.
    #[error(transparent)]
    Step(#[from] TakeStepError),
    /// Its approval was decided otherwise.
    #[error("{0}")]
    Decided(String),
    /// Who is not the owner decides nothing.
    #[error("{0} is not the owner")]
    NotTheOwner(String),
    /// What is asked for cannot be kept.
    #[error("{0}")]
    Unreadable(String),
    /// The bus refuses, or does not answer.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The bus cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The bus cannot be read in order.
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// An id that cannot be.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
}

impl HandleIntentError {
    /// As the answer of a service: code and text.
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

    /// A compare-and-set on `intent` that did not happen.
    #[must_use]
    pub fn from_cas(intent: Ulid, error: CasError) -> Self {
        match error {
            CasError::Conflict { .. } => Self::Conflict(intent),
            CasError::Publish(error) => Self::Publish(error),
            CasError::Read(error) => Self::Read(error),
        }
    }
}
