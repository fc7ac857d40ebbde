//! The errors of an attempt at a delivery.

use shared::bus::{HoldError, PublishError, ReadStreamError};
use shared::model::event::ParseEventIdError;

use crate::receipts::WriteReceiptError;

/// The reason why a delivery could not be advanced; its state is that of its last receipt.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// A receipt could not be written.
    #[error(transparent)]
    Receipt(#[from] WriteReceiptError),
    /// A receipt could not be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// An event, a dead letter or a parked copy could not be stored.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Another replica owns the partition.
    #[error("the partition has another owner now")]
    Lost,
    /// A delivery with an unknown outcome could not be held.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// An id is invalid, which never happens for ids made of a ULID and a number.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
    /// Other owners settled the delivery at every step.
    #[error("deliver {delivery}: {times} concurrent updates in a row")]
    Overtaken {
        /// Id of the delivery.
        delivery: String,
        /// Number of times that another owner was faster.
        times: u32,
    },
}
