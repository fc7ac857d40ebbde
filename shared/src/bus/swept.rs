//! The sequence up to which sweepers have found every dispatch handled.

use crate::model::position::StreamPosition;
use crate::wire::session_mark::{SettledFloor, sweeper_key};
use crate::wire::topology::{SESSION_PARTS, buckets, streams};

use super::connect::Bus;
use super::error::ReadStreamError;

impl Bus {
    /// Returns the lowest floor that the sweepers of all parts have left: every dispatch through it is handled. Returns
    /// `None` if a part has no floor, or one that the leader does not confirm.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn swept_floor(&self) -> Result<Option<StreamPosition>, ReadStreamError> {
        let floors = self.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
        let mut lowest: Option<StreamPosition> = None;
        for part in 0..SESSION_PARTS {
            let (floor, _) = floors.find(&sweeper_key(part)).await?;
            let Some(position) = floor.and_then(|floor| floor.position) else {
                return Ok(None);
            };

            // A restore may have replaced the stream: a floor of the former one proves nothing about the messages
            // waiting in this one.
            if !self.check_position(streams::DISPATCHES, &position).await?.holds() {
                return Ok(None);
            }
            if lowest.as_ref().is_none_or(|lowest| position.sequence < lowest.sequence) {
                lowest = Some(position);
            }
        }

        Ok(lowest)
    }
}
