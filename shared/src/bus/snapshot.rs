//! Streams as files: the server's own snapshots, which keep every message's sequence and time, and the consumers.
//!
//! The client has no call for snapshots; the requests are those of the server's API (`STREAM.SNAPSHOT`,
//! `STREAM.RESTORE`). A snapshot arrives in chunks, each acked so that the server sends more; the last one is empty.
//! Restoring is the reverse: each chunk is a request, and the response to the empty one describes the restored stream.

use std::time::Duration;

use async_nats::RequestErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::clock::pause;
use crate::model::position::StreamLineage;

use super::connect::Bus;
use super::position::{INCARNATION, LINEAGE};
use super::publish::ApiError;
use super::stream_info::StreamState;

/// Size of a snapshot's chunks, in bytes.
const PIECE_BYTES: usize = 256 * 1024;
/// Longest wait for a snapshot or a restore to start: the server may have to write its indexes first.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for the next chunk, or for the response to one.
const PIECE_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for the rejection of a probe, which checks whether the server would respond at all.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
/// Number of times that a request which no server listens for is sent again, ten seconds in all.
const UNHEARD_TRIES: u32 = 50;
/// Pause before it is sent again.
const UNHEARD_PAUSE: Duration = Duration::from_millis(200);
/// Status that the server sends at the end of a complete snapshot, if it sends one.
const WHOLE: u16 = 204;

/// Name of the stream that exists while a restore is in progress: services wait until it is gone.
const RESTORING: &str = "RESTORING";
/// Key of that stream's metadata with the id of the backup that is restored.
const BACKUP: &str = "nexus_backup";

/// Configuration and state of a stream, without its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamHead {
    /// Configuration of the stream, as the server writes it.
    pub config: Value,
    /// State of the stream when its snapshot started, as the server writes it.
    pub state: Value,
}

impl StreamHead {
    /// Returns the incarnation that was copied; empty if the stream was not created by us.
    #[must_use]
    pub fn incarnation(&self) -> &str {
        self.config["metadata"][INCARNATION].as_str().unwrap_or_default()
    }

    /// Sets another incarnation for the stream that is restored from this head. Positions in the copied incarnation
    /// stay valid in it as far as the copy reaches.
    pub fn renew_incarnation(&mut self, incarnation: &str) {
        if !self.config["metadata"].is_object() {
            self.config["metadata"] = json!({});
        }
        let known = self.config["metadata"][LINEAGE].as_str().unwrap_or_default();
        let lineage = StreamLineage::parse(known).restored_from(self.incarnation(), self.position().last);
        self.config["metadata"][LINEAGE] = lineage.to_string().into();
        self.config["metadata"][INCARNATION] = incarnation.into();
    }

    /// Returns the extent of the stream's messages.
    #[must_use]
    pub fn position(&self) -> StreamState {
        serde_json::from_value(self.state.clone()).unwrap_or_default()
    }
}

/// A snapshot was not taken, or not restored.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The server rejects the request.
    #[error("stream {stream}: the server refused: {detail}")]
    Refused {
        /// Name of the stream.
        stream: String,
        /// Error text of the server.
        detail: String,
    },
    /// The server does not respond, or stops in the middle.
    #[error("stream {stream}: {detail}")]
    Interrupted {
        /// Name of the stream.
        stream: String,
        /// Description of the interruption.
        detail: String,
    },
    /// Reading or writing the snapshot's file failed.
    #[error("stream {stream}: the snapshot's file: {source}")]
    File {
        /// Name of the stream.
        stream: String,
        /// Error of the file system.
        source: std::io::Error,
    },
}

/// The rights of this user are not enough for a restore, or no server responds.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the server about {}; check the permissions of this user", subjects.join(", "))]
pub struct RestoreRightsError {
    /// Subjects of the server's API that got no response.
    pub subjects: Vec<String>,
}

#[derive(Deserialize)]
struct Answer<T> {
    error: Option<ApiError>,
    #[serde(flatten)]
    value: Option<T>,
}

#[derive(Deserialize)]
struct RestoreBegun {
    deliver_subject: String,
}

/// Response to a chunk.
#[derive(Deserialize)]
struct PieceAnswer {
    error: Option<ApiError>,
}

impl Bus {
    /// Returns the names of all streams on the server, in alphabetical order.
    ///
    /// # Errors
    /// Returns the server's error text if it cannot be asked.
    pub async fn stream_names(&self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let mut listed = self.jetstream.stream_names();
        while let Some(name) = listed.next().await {
            names.push(name.map_err(|error| error.to_string())?);
        }
        names.sort();
        Ok(names)
    }

    /// Returns the id of the backup that is being restored, or whose restore was interrupted; `None` if no restore is
    /// in progress.
    ///
    /// # Errors
    /// Returns the server's error text if it cannot be asked.
    pub async fn restore_under_way(&self) -> Result<Option<String>, String> {
        match self.jetstream.get_stream(RESTORING).await {
            Ok(found) => {
                let backup = found.cached_info().config.metadata.get(BACKUP).cloned();
                Ok(Some(backup.unwrap_or_default()))
            }
            Err(error) if super::ensure::is_not_found(&error.to_string()) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Marks the server: `backup` is being restored onto it, and its streams are incomplete until
    /// [`Bus::end_restore`]. The mark has the number of `replicas` that the streams get.
    ///
    /// # Errors
    /// Returns the server's error text if it rejects the mark.
    pub async fn begin_restore(&self, backup: &str, replicas: usize) -> Result<(), String> {
        let config = async_nats::jetstream::stream::Config {
            name: RESTORING.to_owned(),
            subjects: vec!["nexus.restoring".to_owned()],
            num_replicas: replicas,
            metadata: [(BACKUP.to_owned(), backup.to_owned())].into(),
            ..async_nats::jetstream::stream::Config::default()
        };
        let made = self.jetstream.create_or_update_stream(config).await;
        made.map(drop).map_err(|error| error.to_string())
    }

    /// Removes the mark of [`Bus::begin_restore`].
    ///
    /// # Errors
    /// Returns the server's error text if it rejects the removal.
    pub async fn end_restore(&self) -> Result<(), String> {
        self.delete_stream(RESTORING).await.map(drop)
    }

    /// Checks that this user may delete the streams `there` and restore `wanted`, without doing either. Each request
    /// has a payload that the server rejects before it does anything; a request without permission gets no response at
    /// all.
    ///
    /// # Errors
    /// Returns [`RestoreRightsError`] with the subjects that got no response.
    pub async fn may_restore(&self, there: &[String], wanted: &[String]) -> Result<(), RestoreRightsError> {
        // A valid delete has an empty payload and a valid restore a configuration, so each probe has the opposite.
        let deletes = there
            .iter()
            .map(|name| (format!("STREAM.DELETE.{name}"), "{\"probe\":true}"));
        let restores = wanted.iter().map(|name| (format!("STREAM.RESTORE.{name}"), ""));
        let asked = deletes.chain(restores).map(|(name, payload)| async move {
            let subject = format!("$JS.API.{name}");
            let request = async_nats::Request::new()
                .payload(Bytes::from_static(payload.as_bytes()))
                .timeout(Some(PROBE_WITHIN));
            let answered = self.client.send_request(subject.clone(), request).await;
            answered.is_err().then_some(subject)
        });

        let subjects: Vec<String> = join_all(asked).await.into_iter().flatten().collect();
        if subjects.is_empty() {
            Ok(())
        } else {
            Err(RestoreRightsError { subjects })
        }
    }

    /// Deletes `stream` with all its messages. Returns whether it existed.
    ///
    /// # Errors
    /// Returns the server's error text if it rejects the delete.
    pub async fn delete_stream(&self, stream: &str) -> Result<bool, String> {
        match self.jetstream.delete_stream(stream).await {
            Ok(_) => Ok(true),
            Err(error) if super::ensure::is_not_found(&error.to_string()) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes a snapshot of `stream`, with its consumers, to `file`. Returns the stream's head at the start.
    ///
    /// # Errors
    /// Returns [`SnapshotError`]; `file` is incomplete then.
    pub async fn write_snapshot(
        &self,
        stream: &str,
        file: &mut (impl AsyncWrite + Unpin + Send),
    ) -> Result<StreamHead, SnapshotError> {
        let interrupted = |detail: String| SnapshotError::Interrupted {
            stream: stream.to_owned(),
            detail,
        };
        // Subscribed before the request, so that no chunk is missed.
        let inbox = self.client.new_inbox();
        let subscribed = self.client.subscribe(inbox.clone()).await;
        let mut pieces = subscribed.map_err(|error| interrupted(error.to_string()))?;

        let question = json!({ "deliver_subject": inbox, "chunk_size": PIECE_BYTES });
        let head: StreamHead = self
            .ask_api(stream, &format!("STREAM.SNAPSHOT.{stream}"), &question)
            .await?;

        loop {
            let next = tokio::time::timeout(PIECE_WITHIN, pieces.next()).await;
            let piece = next.map_err(|_| interrupted(format!("no piece within {} s", PIECE_WITHIN.as_secs())))?;
            let piece = piece.ok_or_else(|| interrupted("the connection ended".to_owned()))?;
            if piece.payload.is_empty() {
                let status = piece.status.map_or(WHOLE, |status| status.as_u16());
                if status != WHOLE {
                    let why = piece.description.unwrap_or_default();
                    return Err(interrupted(format!("the server broke off: {status} {why}")));
                }
                break;
            }

            let written = file.write_all(&piece.payload).await;
            written.map_err(|source| SnapshotError::File {
                stream: stream.to_owned(),
                source,
            })?;

            // The server sends more only after the ack.
            if let Some(reply) = piece.reply {
                let acked = self.client.publish(reply, Bytes::new()).await;
                acked.map_err(|error| interrupted(error.to_string()))?;
            }
        }

        let flushed = file.flush().await;
        flushed.map_err(|source| SnapshotError::File {
            stream: stream.to_owned(),
            source,
        })?;

        Ok(head)
    }

    /// Creates `stream`, which must not exist, from the snapshot in `file`, with the configuration and state of
    /// `head`. Returns the extent of the restored stream.
    ///
    /// # Errors
    /// Returns [`SnapshotError`]. The stream does not exist then, or only in part, and must be deleted before the next
    /// attempt.
    pub async fn restore_stream(
        &self,
        stream: &str,
        head: &StreamHead,
        file: &mut (impl AsyncRead + Unpin + Send),
    ) -> Result<StreamState, SnapshotError> {
        let question = json!({ "config": head.config, "state": head.state });
        let begun: RestoreBegun = self
            .ask_api(stream, &format!("STREAM.RESTORE.{stream}"), &question)
            .await?;

        // The piece is also bounded by the server's own limit of a message.
        let mut buffer = vec![0; PIECE_BYTES.min(self.max_payload())];
        loop {
            let count = read_full(file, &mut buffer)
                .await
                .map_err(|source| SnapshotError::File {
                    stream: stream.to_owned(),
                    source,
                })?;

            let piece = Bytes::copy_from_slice(&buffer[..count]);
            let answer = self.ask_piece(stream, &begun.deliver_subject, piece).await?;
            // The response to a chunk is an error or empty; the one to the last, empty chunk describes the stream.
            if count > 0 {
                let told: Option<PieceAnswer> = serde_json::from_slice(&answer).ok();
                if let Some(error) = told.and_then(|told| told.error) {
                    return Err(snapshot_error(stream, &error));
                }
                continue;
            }

            let made: StreamHead = read_answer(stream, &answer)?;
            return Ok(made.position());
        }
    }

    async fn ask_piece(&self, stream: &str, subject: &str, piece: Bytes) -> Result<Bytes, SnapshotError> {
        self.ask_server(stream, subject, piece, PIECE_WITHIN).await
    }

    async fn ask_api<T: DeserializeOwned>(
        &self,
        stream: &str,
        name: &str,
        question: &Value,
    ) -> Result<T, SnapshotError> {
        let (subject, question) = (format!("$JS.API.{name}"), question.to_string().into());
        let answer = self.ask_server(stream, &subject, question, BEGIN_WITHIN).await?;

        read_answer(stream, &answer)
    }

    /// Sends `payload` to `subject`, on which a server listens for what concerns `stream`. Other servers of a cluster may learn
    /// a moment later that it does: nobody has received the request then, and it is sent again.
    async fn ask_server(
        &self,
        stream: &str,
        subject: &str,
        payload: Bytes,
        within: Duration,
    ) -> Result<Bytes, SnapshotError> {
        let mut tries = 0;
        loop {
            let request = async_nats::Request::new()
                .payload(payload.clone())
                .timeout(Some(within));
            match self.client.send_request(subject.to_owned(), request).await {
                Ok(answered) => return Ok(answered.payload),
                Err(error) if error.kind() == RequestErrorKind::NoResponders && tries < UNHEARD_TRIES => tries += 1,
                Err(error) => {
                    return Err(SnapshotError::Interrupted {
                        stream: stream.to_owned(),
                        detail: error.to_string(),
                    });
                }
            }
            pause(UNHEARD_PAUSE).await;
        }
    }
}

fn read_answer<T: DeserializeOwned>(stream: &str, payload: &[u8]) -> Result<T, SnapshotError> {
    let interrupted = |detail: String| SnapshotError::Interrupted {
        stream: stream.to_owned(),
        detail,
    };
    let answer: Answer<T> =
        serde_json::from_slice(payload).map_err(|error| interrupted(format!("the answer cannot be read: {error}")))?;
    match answer {
        Answer { error: Some(error), .. } => Err(snapshot_error(stream, &error)),
        Answer { value: Some(value), .. } => Ok(value),
        Answer {
            error: None,
            value: None,
        } => Err(interrupted("the answer says nothing".to_owned())),
    }
}

fn snapshot_error(stream: &str, error: &ApiError) -> SnapshotError {
    SnapshotError::Refused {
        stream: stream.to_owned(),
        detail: format!("{} ({}, {})", error.description, error.code, error.err_code),
    }
}

/// Fills `buffer` as far as `file` goes. Returns the number of bytes read.
async fn read_full(file: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]).await? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
