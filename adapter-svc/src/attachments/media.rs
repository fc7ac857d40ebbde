//! The media port: how the files of an account's messages are fetched.

use async_trait::async_trait;
use bytes::Bytes;
use shared::model::event::{Attachment, RefusedAttachment};

/// Fetches the files of one account's messages.
#[async_trait]
pub trait Media: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the bytes of `file`, at most `max`. What its handle names is asked for again if it is void by now. The
    /// future may be dropped at any await.
    ///
    /// # Errors
    /// Returns [`FetchFileError`], which says whether trying again may help.
    async fn fetch(&self, file: &Attachment, max: u64) -> Result<Bytes, FetchFileError>;
}

/// The reason why a file was not fetched. None has a token or a URL in its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchFileError {
    /// The file is larger than is allowed here, or than the platform hands out.
    #[error("the file has more than {max} bytes")]
    TooLarge {
        /// Bytes that are allowed.
        max: u64,
    },
    /// The handle is void, and the platform gives no other one.
    #[error("the handle is void")]
    Expired,
    /// The platform, or a redirect, names an address that must not be asked.
    #[error("the address is not one of the platform's")]
    ForbiddenAddress,
    /// The platform does not hand out the file.
    #[error("not handed out: {0}")]
    Unavailable(String),
    /// The file cannot be fetched at the moment.
    #[error("not now: {0}")]
    NotNow(String),
}

impl FetchFileError {
    /// Returns the reason for which the file is not fetched any more; `None` if trying again may help.
    #[must_use]
    pub const fn refusal(&self) -> Option<RefusedAttachment> {
        match self {
            Self::TooLarge { .. } => Some(RefusedAttachment::TooLarge),
            Self::Expired => Some(RefusedAttachment::Expired),
            Self::ForbiddenAddress => Some(RefusedAttachment::ForbiddenAddress),
            Self::Unavailable(_) => Some(RefusedAttachment::Unavailable),
            Self::NotNow(_) => None,
        }
    }
}
