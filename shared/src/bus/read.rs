//! Reading stored messages: from the leader if a decision depends on them, by direct get if history is enough.
//!
//! Direct get and KV get may return stale data on replicas (`docs/contribute/nats-facts.md` "Reading": up to 12 %
//! right after a publish). Only the leader serves `STREAM.MSG.GET`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;

use crate::model::time::UnixMillis;
use crate::wire::headers::Headers;

use super::connect::{API_TIMEOUT, Bus};
use super::error::ReadStreamError;
use super::header_block;
use super::message::{StoredMessage, headers_of};
use super::publish::ApiError;

/// The server's error code for "no such message".
const NO_MESSAGE: u64 = 10_037;
/// Number of tries without a leader before the caller gets the error.
const READ_TRIES: u32 = 6;
/// Maximum number of messages in a direct batch.
const MAX_BATCH: usize = 1_000;

#[derive(Deserialize)]
struct ApiAnswer<T> {
    error: Option<ApiError>,
    #[serde(flatten)]
    value: Option<T>,
}

#[derive(Deserialize)]
struct GetAnswer {
    message: RawStored,
}

/// A stored message in the JSON API's form.
#[derive(Deserialize)]
pub(super) struct RawStored {
    pub(super) subject: String,
    pub(super) seq: u64,
    /// Payload of the message, base64.
    #[serde(default)]
    pub(super) data: String,
    #[serde(default)]
    hdrs: String,
    time: String,
}

impl RawStored {
    /// Bytes of the header block; empty if there is none, or if the server's base64 is invalid.
    pub(super) fn header_block(&self) -> Vec<u8> {
        STANDARD.decode(&self.hdrs).unwrap_or_default()
    }

    /// Headers of the message that can be decoded.
    pub(super) fn headers(&self) -> Headers {
        header_block::readable_headers(&self.header_block())
    }
}

impl Bus {
    /// Returns the newest message on `subject` (wildcards allowed), from the leader.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn last_on_subject(&self, stream: &str, subject: &str) -> Result<Option<StoredMessage>, ReadStreamError> {
        self.get(stream, json!({ "last_by_subj": subject })).await
    }

    /// Returns the first message on `subject` (wildcards allowed) at or after sequence `from`, from the leader.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn next_on_subject(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
    ) -> Result<Option<StoredMessage>, ReadStreamError> {
        self.get(stream, json!({ "seq": from.max(1), "next_by_subj": subject }))
            .await
    }

    /// As [`Bus::next_on_subject`], in the API's form.
    pub(super) async fn next_raw(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
    ) -> Result<Option<RawStored>, ReadStreamError> {
        self.get_raw(stream, json!({ "seq": from.max(1), "next_by_subj": subject }))
            .await
    }

    /// Returns the message at `sequence`, from the leader.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn at_sequence(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, ReadStreamError> {
        self.get(stream, json!({ "seq": sequence })).await
    }

    /// Returns the message of `stream` that the writer of `stored` expected before it, from the leader; `None` if
    /// `stored` is the first on its subject or states no expectation.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn previous_message(
        &self,
        stream: &str,
        stored: &StoredMessage,
    ) -> Result<Option<StoredMessage>, ReadStreamError> {
        match stored.previous_sequence() {
            None | Some(0) => Ok(None),
            Some(upon) => self.at_sequence(stream, upon).await,
        }
    }

    async fn get(&self, stream: &str, query: serde_json::Value) -> Result<Option<StoredMessage>, ReadStreamError> {
        let unreadable = |detail: &str| ReadStreamError::Unavailable {
            stream: stream.to_owned(),
            detail: detail.to_owned(),
        };
        let Some(raw) = self.get_raw(stream, query).await? else {
            return Ok(None);
        };

        to_stored(raw)
            .map(Some)
            .ok_or_else(|| unreadable("the answer cannot be read"))
    }

    async fn get_raw(&self, stream: &str, query: serde_json::Value) -> Result<Option<RawStored>, ReadStreamError> {
        let call = format!("STREAM.MSG.GET.{stream}");
        match self.call_api::<GetAnswer>(stream, &call, &query).await {
            Ok(answer) => Ok(Some(answer.message)),
            Err(ReadStreamError::Refused { code: NO_MESSAGE, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns at most `limit` messages on `subject` at or after sequence `from`, oldest first. They may be stale on
    /// replicas: if a decision depends on them, ask [`Bus::next_on_subject`] as well.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be asked.
    pub async fn read_history(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, ReadStreamError> {
        let query = json!({ "seq": from.max(1), "next_by_subj": subject, "batch": limit.clamp(1, MAX_BATCH) });
        self.direct_batch(stream, &query).await
    }

    /// As [`Bus::read_history`], and ends with the message with which `most_bytes` are reached, headers included.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be asked.
    pub async fn read_history_within(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
        limit: usize,
        most_bytes: usize,
    ) -> Result<Vec<StoredMessage>, ReadStreamError> {
        let query = json!({
            "seq": from.max(1), "next_by_subj": subject, "batch": limit.clamp(1, MAX_BATCH), "max_bytes": most_bytes,
        });
        self.direct_batch(stream, &query).await
    }

    /// Returns at most `limit` messages on `subject` stored at or after `since`, oldest first. They may be stale.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be asked.
    pub async fn history_since(
        &self,
        stream: &str,
        subject: &str,
        since: UnixMillis,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, ReadStreamError> {
        let nanos = i128::from(since.0.max(0)) * 1_000_000;
        let start = time::OffsetDateTime::from_unix_timestamp_nanos(nanos)
            .ok()
            .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
            .unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned());

        let query = json!({ "start_time": start, "next_by_subj": subject, "batch": limit.clamp(1, MAX_BATCH) });
        self.direct_batch(stream, &query).await
    }

    async fn direct_batch(
        &self,
        stream: &str,
        query: &serde_json::Value,
    ) -> Result<Vec<StoredMessage>, ReadStreamError> {
        retry_unanswered(|| self.direct_once(stream, query)).await
    }

    async fn direct_once(
        &self,
        stream: &str,
        query: &serde_json::Value,
    ) -> Result<Vec<StoredMessage>, ReadStreamError> {
        let unavailable = |detail: String| ReadStreamError::Unavailable {
            stream: stream.to_owned(),
            detail,
        };
        // A batch comes as several messages, which a plain request could not receive.
        let inbox = self.client.new_inbox();
        let mut answers = self
            .client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| unavailable(error.to_string()))?;

        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        self.client
            .publish_with_reply(subject, inbox, query.to_string().into())
            .await
            .map_err(|error| unavailable(error.to_string()))?;

        let mut found = Vec::new();
        loop {
            // The bound holds for each message, so a long batch that makes progress is not cut.
            let next = tokio::time::timeout(API_TIMEOUT, answers.next());
            let Ok(Some(message)) = next.await else {
                return Err(unavailable("no answer in time".to_owned()));
            };

            let headers = headers_of(message.headers.as_ref());
            let Some(sequence) = headers.get("Nats-Sequence").and_then(|s| s.parse().ok()) else {
                // 204 ends a batch, 404 means that there is no message; 503 is the client's status for "no responder".
                return match message.status.map(|status| status.as_u16()) {
                    Some(204 | 404) => Ok(found),
                    other => Err(unavailable(format!("status {other:?}"))),
                };
            };

            let stored_at_ns = parse_time(headers.get("Nats-Time-Stamp").unwrap_or_default());
            let stored = StoredMessage {
                subject: headers.get("Nats-Subject").unwrap_or_default().to_owned(),
                published_at: UnixMillis(stored_at_ns / 1_000_000),
                stored_at_ns,
                payload: message.payload,
                sequence,
                headers: stored_headers(&headers),
            };

            found.push(stored);
        }
    }

    /// Deletes the message at `sequence`. Returns false if there was none.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn delete_message(&self, stream: &str, sequence: u64) -> Result<bool, ReadStreamError> {
        #[derive(Deserialize)]
        struct Deleted {
            success: bool,
        }

        let query = json!({ "seq": sequence, "no_erase": true });
        match self
            .call_api::<Deleted>(stream, &format!("STREAM.MSG.DELETE.{stream}"), &query)
            .await
        {
            Ok(answer) => Ok(answer.success),
            Err(ReadStreamError::Refused {
                code: NO_MESSAGE | 10_043 | 10_057,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes every message on `subject` from `stream`. Returns the number of messages removed.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn purge_subject(&self, stream: &str, subject: &str) -> Result<u64, ReadStreamError> {
        #[derive(Deserialize)]
        struct Purged {
            purged: u64,
        }
        let answer = self
            .call_api::<Purged>(stream, &format!("STREAM.PURGE.{stream}"), &json!({ "filter": subject }))
            .await?;
        Ok(answer.purged)
    }

    /// Sends a request to the JetStream API, and repeats it a few times if there is no leader.
    pub(super) async fn call_api<T: serde::de::DeserializeOwned>(
        &self,
        stream: &str,
        call: &str,
        query: &serde_json::Value,
    ) -> Result<T, ReadStreamError> {
        retry_unanswered(|| self.api_once(stream, call, query)).await
    }

    async fn api_once<T: serde::de::DeserializeOwned>(
        &self,
        stream: &str,
        call: &str,
        query: &serde_json::Value,
    ) -> Result<T, ReadStreamError> {
        let unavailable = |detail: String| ReadStreamError::Unavailable {
            stream: stream.to_owned(),
            detail,
        };
        let request = async_nats::Request::new()
            .payload(query.to_string().into())
            .timeout(Some(API_TIMEOUT));
        let answer = self.client.send_request(format!("$JS.API.{call}"), request).await;
        let message = answer.map_err(|error| unavailable(error.to_string()))?;

        let answer: ApiAnswer<T> =
            serde_json::from_slice(&message.payload).map_err(|error| unavailable(error.to_string()))?;
        match answer {
            // The stream has no leader at present, so the caller may retry.
            ApiAnswer { error: Some(error), .. } if error.code == 503 => Err(unavailable(error.description)),
            ApiAnswer { error: Some(error), .. } => Err(ReadStreamError::Refused {
                stream: stream.to_owned(),
                code: error.err_code,
                text: error.description,
            }),
            ApiAnswer { value: Some(value), .. } => Ok(value),
            ApiAnswer { .. } => Err(unavailable("the answer cannot be read".to_owned())),
        }
    }
}

/// Repeats `ask` a few times if no server answered.
async fn retry_unanswered<T, A>(mut ask: impl FnMut() -> A) -> Result<T, ReadStreamError>
where
    A: Future<Output = Result<T, ReadStreamError>>,
{
    let mut tries = 0;
    loop {
        tries += 1;

        match ask().await {
            Err(ReadStreamError::Unavailable { .. }) if tries < READ_TRIES => {
                crate::clock::pause(API_TIMEOUT / 25 * tries).await;
            }
            answer => return answer,
        }
    }
}

fn to_stored(raw: RawStored) -> Option<StoredMessage> {
    let stored_at_ns = parse_time(&raw.time);
    Some(StoredMessage {
        headers: raw.headers(),
        subject: raw.subject,
        payload: Bytes::from(STANDARD.decode(&raw.data).ok()?),
        sequence: raw.seq,
        published_at: UnixMillis(stored_at_ns / 1_000_000),
        stored_at_ns,
    })
}

/// Returns the message's own headers: a direct response adds some of the server's.
fn stored_headers(answered: &Headers) -> Headers {
    const SERVERS: [&str; 6] = [
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Last-Sequence",
        "Nats-Num-Pending",
    ];
    answered.iter().filter(|(name, _)| !SERVERS.contains(name)).collect()
}

/// Parses an RFC 3339 time into nanoseconds since 1970; 0 if it is invalid.
pub(super) fn parse_time(text: &str) -> i64 {
    let parsed = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
    parsed.map_or(0, |at| i64::try_from(at.unix_timestamp_nanos()).unwrap_or(0))
}
