//! Extent and identity of streams, their subjects, and the backlogs of consumers, as the leader has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use crate::model::position::StreamLineage;

use super::connect::Bus;
use super::error::ReadStreamError;
use super::position::{INCARNATION, LINEAGE};

/// Extent of a stream's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct StreamState {
    /// Sequence of the first message.
    #[serde(rename = "first_seq")]
    pub first: u64,
    /// Sequence of the last message.
    #[serde(rename = "last_seq")]
    pub last: u64,
    /// Number of stored messages.
    pub messages: u64,
    /// Size of the stored messages, in bytes.
    pub bytes: u64,
    /// Number of consumers.
    #[serde(rename = "consumer_count", default)]
    pub consumers: u64,
}

/// Extent and identity of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamInfo {
    /// Extent of the stream's messages.
    pub state: StreamState,
    /// Incarnation ([`super::position`]); empty if the stream was not created by us.
    pub incarnation: String,
    /// Time of its creation, as the server writes it (RFC 3339).
    pub created: String,
    /// Former incarnations of a restored stream.
    pub lineage: StreamLineage,
}

#[derive(Deserialize)]
struct InfoAnswer {
    state: StreamState,
    config: InfoConfig,
    #[serde(default)]
    created: String,
}

#[derive(Deserialize)]
struct InfoConfig {
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

/// Backlog of a durable consumer, in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct ConsumerLag {
    /// Number of messages not delivered yet.
    #[serde(rename = "num_pending")]
    pub waiting: u64,
    /// Number of messages delivered and not acked.
    #[serde(rename = "num_ack_pending")]
    pub in_hand: u64,
}

impl ConsumerLag {
    /// Sum of waiting and unacked messages.
    #[must_use]
    pub const fn total_lag(self) -> u64 {
        self.waiting + self.in_hand
    }
}

impl Bus {
    /// Returns the bytes that the streams take on the server, and the account's limit; `None` if it has no limit.
    ///
    /// # Errors
    /// Returns the server's error text if it cannot be asked.
    pub async fn storage_use(&self) -> Result<(u64, Option<u64>), String> {
        let account = self
            .jetstream
            .query_account()
            .await
            .map_err(|error| error.to_string())?;
        let limit = account.limits.max_storage.and_then(|limit| u64::try_from(limit).ok());
        Ok((account.storage, limit.filter(|limit| *limit > 0)))
    }

    /// Returns the extent of `stream`.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be asked.
    pub async fn stream_state(&self, stream: &str) -> Result<StreamState, ReadStreamError> {
        Ok(self.stream_info(stream).await?.state)
    }

    /// Returns the extent and the identity of `stream`.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be asked.
    pub async fn stream_info(&self, stream: &str) -> Result<StreamInfo, ReadStreamError> {
        let answer = self
            .call_api::<InfoAnswer>(stream, &format!("STREAM.INFO.{stream}"), &json!({}))
            .await?;
        let of = |key: &str| answer.config.metadata.get(key).cloned().unwrap_or_default();

        Ok(StreamInfo {
            state: answer.state,
            created: answer.created,
            incarnation: of(INCARNATION),
            lineage: StreamLineage::parse(&of(LINEAGE)),
        })
    }

    /// Returns the subjects of `stream` that match `filter`, with the number of messages of each. The server returns
    /// 100,000 subjects at a time, so that of more than these one that comes or goes meanwhile may be missing.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be asked.
    pub async fn list_subjects(&self, stream: &str, filter: &str) -> Result<BTreeMap<String, u64>, ReadStreamError> {
        #[derive(Deserialize)]
        struct Listed {
            #[serde(default)]
            subjects: BTreeMap<String, u64>,
        }

        #[derive(Deserialize)]
        struct Info {
            state: Listed,
            /// Number of subjects in all pages.
            #[serde(default)]
            total: usize,
        }

        let (mut found, mut offset) = (BTreeMap::new(), 0);
        loop {
            let query = json!({ "subjects_filter": filter, "offset": offset });
            let page: Info = self.call_api(stream, &format!("STREAM.INFO.{stream}"), &query).await?;

            offset += page.state.subjects.len();
            let is_last = page.state.subjects.is_empty() || offset >= page.total;
            found.extend(page.state.subjects);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Returns the backlog of a durable consumer.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the consumer cannot be asked.
    pub async fn consumer_lag(&self, stream: &str, consumer: &str) -> Result<ConsumerLag, ReadStreamError> {
        self.call_api(stream, &format!("CONSUMER.INFO.{stream}.{consumer}"), &json!({}))
            .await
    }
}
