//! Files of messages in the object store (bucket `attachments`): by the SHA-256 of their bytes, each stored once.
//!
//! An object's name follows from its bytes, so that two replicas that store one file, or one that was killed and does it
//! again, store the same. Source: `docs/design/wire.md` §3.4.

mod file_type;

use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

pub use self::file_type::{FileType, find_image_type, find_recording_type, recording_type};

use crate::bus::{BucketSpace, Bus, ObjectBucket, StoreObjectError};
use crate::clock::SharedClock;
use crate::model::time::millis_of;
use crate::wire::topology::objects;

/// Time for which a file is kept after it was stored last. A file that is stored again is kept anew.
///
/// It is longer than a dispatch and a delivery can wait together, so that no file needs to be held for them.
pub const KEPT: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Age from which a file that is stored again is written again, so that it is kept anew.
const WRITE_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3_600);
/// Age from which the pieces of a file that is not whole are left by a writer that is gone. Each writer has far less
/// time.
const UNFINISHED_AFTER: Duration = Duration::from_secs(3_600);

/// The files of all messages. Clones share the connection.
#[derive(Debug, Clone)]
pub struct AttachmentStore {
    objects: ObjectBucket,
    clock: SharedClock,
}

/// What a sweep removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweptFiles {
    /// Number of files that were kept for as long as they are kept.
    pub expired: usize,
    /// Number of writers that had left pieces of a file.
    pub unfinished: usize,
}

impl AttachmentStore {
    /// Returns the store on `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock) -> Self {
        Self {
            objects: bus.objects(objects::ATTACHMENTS),
            clock,
        }
    }

    /// Stores `bytes`, if they are not stored already. Returns their SHA-256 in hex. After an error, and after a future
    /// that was dropped, the same bytes may be stored again.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Full`] if the bucket has no room, or [`StoreObjectError::Bucket`].
    pub async fn store(&self, bytes: Bytes) -> Result<String, StoreObjectError> {
        let hash = HEXLOWER.encode(&Sha256::digest(&bytes));
        let known = self.objects.find(&hash).await?;
        let is_fresh = known.is_some_and(|known| {
            let age = self.clock.now().since(known.stored_at);
            age < millis_of(WRITE_AGAIN_AFTER)
        });
        if !is_fresh {
            self.objects.write(&hash, bytes).await?;
        }
        Ok(hash)
    }

    /// Returns the bytes whose SHA-256 in hex is `hash`; `None` if they are not stored, or are more than `max`.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked, or holds them damaged or others in their place.
    pub async fn load(&self, hash: &str, max: u64) -> Result<Option<Vec<u8>>, StoreObjectError> {
        let Some(bytes) = self.objects.read(hash, max).await? else {
            return Ok(None);
        };
        // The bucket proves that the bytes are those that were written under the name, which need not be the hash.
        if HEXLOWER.encode(&Sha256::digest(&bytes)) != hash {
            return Err(StoreObjectError::Bucket {
                bucket: objects::ATTACHMENTS,
                detail: format!("object {hash} holds other bytes"),
            });
        }
        Ok(Some(bytes))
    }

    /// Removes the files that were kept for [`KEPT`], and the pieces that writers have left. Several replicas may do it
    /// at once.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn sweep(&self) -> Result<SweptFiles, StoreObjectError> {
        let now = self.clock.now();
        Ok(SweptFiles {
            expired: self.objects.remove_older(now.plus(-millis_of(KEPT))).await?,
            unfinished: self.objects.sweep_older(now.plus(-millis_of(UNFINISHED_AFTER))).await?,
        })
    }

    /// Returns the space of the bucket.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn space(&self) -> Result<BucketSpace, StoreObjectError> {
        self.objects.space().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::topology::{streams, topology};

    /// A file is stored at most [`WRITE_AGAIN_AFTER`] before the message that has it. The message's dispatch and its
    /// answer's delivery then wait for at most as long as their streams keep them.
    #[test]
    fn a_file_is_kept_for_longer_than_a_turn_or_a_delivery_can_refer_to_it() {
        let kept = |name: &str| {
            let topology = topology(1);
            let stream = topology.streams.iter().find(|stream| stream.name == name);
            stream.expect("a stream of the topology").max_age
        };

        // A delivery for a channel without an owner waits among the parked ones instead.
        let delivery = kept(streams::DELIVERIES).max(kept(streams::PARKED));
        let referred_to = kept(streams::DISPATCHES) + delivery;
        assert!(WRITE_AGAIN_AFTER + referred_to < KEPT);
    }
}
