//! Objects that several processes write at once, and that are read into memory.
//!
//! The form is that of the client's own object store, so its tools read them: the pieces of a writer have a subject of
//! their own, and the description, which names that subject, makes the object visible. It is written last, so a writer
//! that was killed leaves pieces that nothing names. The client's own writer is not used, because it repeats no piece,
//! waits without end for room in a full bucket, and does not say which pieces a failed try has left.

use std::collections::BTreeSet;

use bytes::Bytes;
use data_encoding::BASE64URL;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::{ObjectBucket, PIECE_BYTES, StoreObjectError};
use crate::bus::message::StoredMessage;
use crate::bus::publish::OutgoingMessage;
use crate::bus::writer;
use crate::model::time::UnixMillis;
use crate::wire::headers::Headers;

/// Number of messages that are read at once.
const PAGE: usize = 64;
/// Space that a message takes beside its payload, in bytes, rounded up.
const MESSAGE_OVERHEAD: u64 = 256;

/// An object that is stored completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundObject {
    /// Size of the object, in bytes.
    pub bytes: u64,
    /// Time at which it was stored, by the server's clock.
    pub stored_at: UnixMillis,
}

/// The space of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSpace {
    /// Bytes that are used, unfinished objects included.
    pub used: u64,
    /// Maximum number of bytes; `None` = unlimited.
    pub max: Option<u64>,
}

/// The description of an object, in the form of the client's object store.
#[derive(Debug, Serialize, Deserialize)]
struct ObjectDescription {
    name: String,
    bucket: String,
    /// Name of the writer, with which the subject of its pieces ends.
    #[serde(default)]
    nuid: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    chunks: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
}

#[derive(Deserialize)]
struct SpaceAnswer {
    config: SpaceLimit,
    state: SpaceState,
}

#[derive(Deserialize)]
struct SpaceLimit {
    #[serde(default)]
    max_bytes: i64,
}

#[derive(Deserialize)]
struct SpaceState {
    #[serde(default)]
    bytes: u64,
}

impl ObjectBucket {
    fn stream(&self) -> String {
        format!("OBJ_{}", self.bucket)
    }

    fn pieces_subject(&self, writer: &str) -> String {
        format!("$O.{}.C.{writer}", self.bucket)
    }

    fn description_subject(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.bucket, BASE64URL.encode(name.as_bytes()))
    }

    /// Returns the description of `name` with the message that holds it, from the leader; `None` if there is no such
    /// object.
    async fn describe(&self, name: &str) -> Result<Option<(ObjectDescription, StoredMessage)>, StoreObjectError> {
        let found = self
            .bus
            .last_on_subject(&self.stream(), &self.description_subject(name))
            .await
            .map_err(|error| self.store_error(&error))?;
        let Some(message) = found else { return Ok(None) };
        let description: ObjectDescription =
            serde_json::from_slice(&message.payload).map_err(|error| self.store_error(&error))?;
        Ok((!description.deleted).then_some((description, message)))
    }

    /// Returns what is known of the object `name`; `None` if there is none.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn find(&self, name: &str) -> Result<Option<FoundObject>, StoreObjectError> {
        let found = self.describe(name).await?;
        Ok(found.map(|(description, message)| FoundObject {
            bytes: description.size,
            stored_at: message.published_at,
        }))
    }

    /// Returns the space of the bucket.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn space(&self) -> Result<BucketSpace, StoreObjectError> {
        let stream = self.stream();
        let (call, query) = (format!("STREAM.INFO.{stream}"), json!({}));
        let answer = self.bus.call_api::<SpaceAnswer>(&stream, &call, &query).await;
        let answer = answer.map_err(|error| self.store_error(&error))?;
        Ok(BucketSpace {
            used: answer.state.bytes,
            max: u64::try_from(answer.config.max_bytes).ok().filter(|max| *max > 0),
        })
    }

    /// Stores `bytes` as `name`, in place of an object of this name. Others may write the same name at the same time, if
    /// they write the same bytes. The object becomes visible only as a whole.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Full`] if the bucket has no room, or [`StoreObjectError::Bucket`].
    pub async fn write(&self, name: &str, bytes: Bytes) -> Result<(), StoreObjectError> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let chunks = bytes.len().div_ceil(PIECE_BYTES);
        let messages = u64::try_from(chunks + 1).unwrap_or(u64::MAX);

        // A server without room refuses with an error that may pass, which would be waited for without end.
        let space = self.space().await?;
        let needed = size.saturating_add(messages.saturating_mul(MESSAGE_OVERHEAD));
        if space.max.is_some_and(|max| space.used.saturating_add(needed) > max) {
            return Err(StoreObjectError::Full { bucket: self.bucket });
        }

        let former = self.describe(name).await?;
        let description = ObjectDescription {
            name: name.to_owned(),
            bucket: self.bucket.to_owned(),
            nuid: writer::random_name(),
            size,
            chunks: u64::try_from(chunks).unwrap_or(u64::MAX),
            digest: Some(format!("SHA-256={}", BASE64URL.encode(&Sha256::digest(&bytes)))),
            deleted: false,
        };

        // A task, because a piece that is on its way when the caller no longer waits would be stored after the
        // others are removed.
        let (waited_for, _waiting) = oneshot::channel();
        let bucket = self.clone();
        let writing = tokio::spawn(async move { bucket.write_whole(bytes, &description, &waited_for).await });
        writing.await.unwrap_or_else(|error| Err(self.store_error(&error)))?;

        if let Some((former, _)) = former {
            self.drop_pieces(&former.nuid).await;
        }
        Ok(())
    }

    /// Writes the pieces of `bytes`, and then `description`. Removes the pieces if one cannot be written, or if the
    /// other end of `waited_for` is gone.
    async fn write_whole(
        &self,
        mut bytes: Bytes,
        description: &ObjectDescription,
        waited_for: &oneshot::Sender<()>,
    ) -> Result<(), StoreObjectError> {
        let writer = &description.nuid;
        let (subject, mut number) = (self.pieces_subject(writer), 0_u64);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            // A publish whose ack was lost is repeated, and must not be a second piece.
            let out = OutgoingMessage::raw(subject.clone(), Headers::new(), piece).msg_id(format!("{writer}-{number}"));
            let published = self.publish_part(out).await;
            if published.is_err() || waited_for.is_closed() {
                self.drop_pieces(writer).await;
                return published;
            }
            number += 1;
        }

        // If this fails, an object may be there that names the pieces: they stay, and are swept if there is none.
        let payload = serde_json::to_vec(description).map_err(|error| self.store_error(&error))?;
        let headers: Headers = [("Nats-Rollup", "sub")].into_iter().collect();
        let out = OutgoingMessage::raw(self.description_subject(&description.name), headers, payload.into());
        self.publish_part(out.msg_id(format!("{writer}-whole"))).await
    }

    async fn publish_part(&self, out: OutgoingMessage) -> Result<(), StoreObjectError> {
        let published = self.bus.publish(out).await;
        published.map(drop).map_err(|error| self.store_error(&error))
    }

    /// Removes the pieces of a writer. If that fails, they are swept later.
    async fn drop_pieces(&self, writer: &str) {
        if let Err(error) = self
            .bus
            .purge_subject(&self.stream(), &self.pieces_subject(writer))
            .await
        {
            tracing::debug!(bucket = self.bucket, writer, %error, "failed to remove pieces of an object");
        }
    }

    /// Reads the object `name` of at most `max` bytes; `None` if there is no such object, or a larger one.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked, or holds the object damaged.
    pub async fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, StoreObjectError> {
        loop {
            let Some((description, message)) = self.describe(name).await?.filter(|(found, _)| found.size <= max) else {
                return Ok(None);
            };
            let bytes = self.read_pieces(&description).await?;
            let digest = format!("SHA-256={}", BASE64URL.encode(&Sha256::digest(&bytes)));
            if description.digest.as_ref() == Some(&digest) {
                return Ok(Some(bytes));
            }

            // Another writer may have replaced the object meanwhile, by one of the same bytes.
            let newest = self.describe(name).await?;
            if newest.is_some_and(|(_, newest)| newest.sequence == message.sequence) {
                return Err(self.store_error(&format!("object {name} is damaged")));
            }
        }
    }

    async fn read_pieces(&self, description: &ObjectDescription) -> Result<Vec<u8>, StoreObjectError> {
        let (stream, subject) = (self.stream(), self.pieces_subject(&description.nuid));
        let whole = usize::try_from(description.size).unwrap_or(usize::MAX);
        let (mut bytes, mut from) = (Vec::new(), 1);
        while bytes.len() < whole {
            let page = self.bus.read_history(&stream, &subject, from, PAGE).await;
            let mut page = page.map_err(|error| self.store_error(&error))?;
            if page.is_empty() {
                // A replica that lags does not have all of them yet.
                let next = self.bus.next_on_subject(&stream, &subject, from).await;
                page.extend(next.map_err(|error| self.store_error(&error))?);
            }

            let Some(last) = page.last() else { break };
            from = last.sequence + 1;
            page.iter().for_each(|piece| bytes.extend_from_slice(&piece.payload));
        }
        Ok(bytes)
    }

    /// Removes the objects that were stored before `before`. An object that is written again at the same time stays.
    /// Returns the number of objects removed.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn remove_older(&self, before: UnixMillis) -> Result<usize, StoreObjectError> {
        let (stream, mut from, mut removed) = (self.stream(), 1, 0);
        loop {
            let page = self.descriptions_from(from).await?;
            let Some(last) = page.last() else { return Ok(removed) };
            from = last.sequence + 1;

            for message in &page {
                // In the order in which they were stored.
                if message.published_at >= before {
                    return Ok(removed);
                }
                // By its sequence: a newer description of the same name stays, with the pieces that it names.
                let deleted = self.bus.delete_message(&stream, message.sequence).await;
                deleted.map_err(|error| self.store_error(&error))?;
                // Without a description that can be read, the pieces belong to no object, and are swept.
                if let Some(description) = self.read_description(message) {
                    self.drop_pieces(&description.nuid).await;
                }
                removed += 1;
            }
        }
    }

    /// Returns the description in `message`; `None`, which is logged, if it cannot be read.
    fn read_description(&self, message: &StoredMessage) -> Option<ObjectDescription> {
        let (bucket, subject) = (self.bucket, &message.subject);
        serde_json::from_slice(&message.payload)
            .inspect_err(|error| tracing::warn!(bucket, subject, %error, "unreadable description of an object"))
            .ok()
    }

    async fn descriptions_from(&self, from: u64) -> Result<Vec<StoredMessage>, StoreObjectError> {
        let subject = format!("$O.{}.M.>", self.bucket);
        let page = self.bus.read_history(&self.stream(), &subject, from, PAGE).await;
        page.map_err(|error| self.store_error(&error))
    }

    /// Removes the pieces that no object names, as a killed writer leaves them, if the newest of a writer was stored
    /// before `before`: others may be writing. Returns the number of writers whose pieces were removed.
    ///
    /// # Errors
    /// Returns [`StoreObjectError::Bucket`] if the bucket cannot be asked.
    pub async fn sweep_older(&self, before: UnixMillis) -> Result<usize, StoreObjectError> {
        let (stream, prefix) = (self.stream(), self.pieces_subject(""));
        let subjects = self.bus.list_subjects(&stream, &format!("{prefix}>")).await;
        let subjects = subjects.map_err(|error| self.store_error(&error))?;

        // After the pieces: those of an object that was finished in between have their description.
        let (mut whole, mut from) = (BTreeSet::new(), 1);
        loop {
            let page = self.descriptions_from(from).await?;
            let Some(last) = page.last() else { break };
            from = last.sequence + 1;
            let descriptions = page.iter().filter_map(|message| self.read_description(message));
            whole.extend(descriptions.map(|description| description.nuid));
        }

        let mut swept = 0;
        let writers = subjects.keys().filter_map(|subject| subject.strip_prefix(&prefix));
        for writer in writers.filter(|writer| !whole.contains(*writer)) {
            let newest = self.bus.last_on_subject(&stream, &self.pieces_subject(writer)).await;
            let newest = newest.map_err(|error| self.store_error(&error))?;
            if newest.is_some_and(|piece| piece.published_at < before) {
                self.drop_pieces(writer).await;
                swept += 1;
            }
        }
        Ok(swept)
    }
}
