//! Questions that replicas without a copy of the read model ask one that has it: `nexus.svc.model.{instance}.…`. *Pure.*

use serde::{Deserialize, Serialize};
use shared::model::event::EventId;
use shared::model::hook_api::InvocationRow;
use shared::model::position::StreamPosition;
use shared::projection::api::SearchRequest;
use shared::projection::script_query::{ModelQuery, ModelQueryError};

/// Name of the service.
pub(crate) const SERVICE: &str = "model";

/// Returns the subject of `endpoint` at the replica `instance`, a token.
pub(crate) fn subject_of(instance: &str, endpoint: &str) -> String {
    format!("nexus.svc.{SERVICE}.{instance}.{endpoint}")
}

/// Question `query`: one query of a script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct QueryQuestion {
    /// Process that asks, unique among all replicas; it has one query at a time, and its queries on one event share a
    /// transaction.
    pub(crate) asker: String,
    /// The query; its `sequence` is the event's.
    pub(crate) query: ModelQuery,
    /// Sequence of `EVENTS` that the copy must have reached: the event's, or that of an earlier answer for it.
    pub(crate) at_least: u64,
}

/// Answer to `query`, before its JSON: a byte of its kind, and the position of the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueryReply {
    /// Rows, as `{"page": …}`, from a transaction at this position.
    Page(u64, Vec<u8>),
    /// The query's own error.
    Failed(ModelQueryError),
    /// The copy cannot answer now; another one may.
    Away(String),
}

const PAGE: u8 = 0;
const REFUSED: u8 = 1;
const FAILED: u8 = 2;
const TIMED_OUT: u8 = 3;
const TOO_LARGE: u8 = 4;
const AWAY: u8 = 5;

/// Length of the bytes before the JSON.
const HEAD: usize = 9;

/// Text of a page that does not fit; the copy's own text is not known here.
const LARGE: &str = "a row of more than 4 MiB";

impl QueryReply {
    /// Returns the reply as bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (kind, position, body): (u8, u64, &[u8]) = match self {
            Self::Page(position, body) => (PAGE, *position, body),
            Self::Failed(ModelQueryError::Refused(text)) => (REFUSED, 0, text.as_bytes()),
            Self::Failed(ModelQueryError::Failed(text)) => (FAILED, 0, text.as_bytes()),
            Self::Failed(ModelQueryError::TimedOut) => (TIMED_OUT, 0, &[]),
            Self::Failed(ModelQueryError::TooLarge(_)) => (TOO_LARGE, 0, &[]),
            Self::Failed(ModelQueryError::Unavailable(text)) | Self::Away(text) => (AWAY, 0, text.as_bytes()),
        };

        let mut bytes = Vec::with_capacity(HEAD + body.len());
        bytes.push(kind);
        bytes.extend_from_slice(&position.to_be_bytes());
        bytes.extend_from_slice(body);

        bytes
    }

    /// Returns the reply that `bytes` hold; bytes that cannot be read are no answer.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let Some((head, body)) = bytes.split_at_checked(HEAD) else {
            return Self::Away("the answer is too short".to_owned());
        };
        let text = || String::from_utf8_lossy(body).into_owned();
        let position = head[1..].iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));

        match head[0] {
            PAGE => Self::Page(position, body.to_vec()),
            REFUSED => Self::Failed(ModelQueryError::Refused(text())),
            FAILED => Self::Failed(ModelQueryError::Failed(text())),
            TIMED_OUT => Self::Failed(ModelQueryError::TimedOut),
            TOO_LARGE => Self::Failed(ModelQueryError::TooLarge(LARGE)),
            _ => Self::Away(text()),
        }
    }
}

/// Question `reached`: how far the copy has come. It is answered as soon as the copy is beyond `beyond`, or after a
/// moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReachedQuestion {
    /// Sequence of `EVENTS`; 0 for an answer at once.
    pub(crate) beyond: u64,
}

/// Answer to `reached`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReachedReply {
    /// Sequence of the last event in the copy.
    pub(crate) position: u64,
    /// Whether the copy is far behind the streams, and is being built.
    #[serde(default)]
    pub(crate) building: bool,
}

/// Question `first`: which events occur for the first time. Answered only by a copy that lags less than the server's
/// duplicate window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstQuestion {
    /// Ids, each with the sequence at which the event is now.
    pub(crate) events: Vec<(EventId, u64)>,
}

/// Answer to `first`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstReply {
    /// Whether each event occurs for the first time, in the order of the question.
    pub(crate) is_first: Vec<bool>,
}

/// Question `find_first`: where an event occurred first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FindFirstQuestion {
    /// Id of the event.
    pub(crate) id: EventId,
    /// Sequence of `EVENTS` that the copy must have reached.
    pub(crate) reached: u64,
}

/// Answer to `find_first`, or the same from a file of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FoundFirst {
    /// Sequence of the event's first occurrence, if it has occurred.
    pub(crate) sequence: Option<u64>,
    /// Position of the copy, which names the stream that it is of.
    pub(crate) mark: Option<StreamPosition>,
}

/// Question `invocations`: the last invocations of a hook that did more than pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InvocationsQuestion {
    /// Id of the hook.
    pub(crate) hook: String,
    /// Maximum number of rows.
    pub(crate) limit: u32,
}

/// Answer to `invocations`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InvocationsReply {
    /// Invocations, the newest first.
    pub(crate) invocations: Vec<InvocationRow>,
}

/// Question `search`: events similar to a text, answered with a [`SearchReply`](shared::projection::api::SearchReply).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SearchQuestion {
    /// Text, and the events that are searched.
    pub(crate) request: SearchRequest,
    /// Sequence of `EVENTS` that the copy must have reached: the event's for which a script asks.
    pub(crate) at_least: u64,
}

/// Question `file`: begins a loan of the copy's file, or joins the one that lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileQuestion {}

/// Answer to `file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LentFile {
    /// Name of the loan, by which parts are asked for.
    pub(crate) file: String,
    /// Format of the file, as in the names of snapshots.
    pub(crate) format: String,
    /// Sequence of the last event in the file.
    pub(crate) position: u64,
    /// Size of the file in bytes.
    pub(crate) bytes: u64,
}

/// Question `file_part`, answered with the bytes from an offset on; none beyond the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilePartQuestion {
    /// Name of the loan.
    pub(crate) file: String,
    /// Offset in bytes.
    pub(crate) offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_survives_its_way() {
        let text = || "no such table: x".to_owned();
        for reply in [
            QueryReply::Page(u64::MAX - 7, br#"{"page":{}}"#.to_vec()),
            QueryReply::Failed(ModelQueryError::Refused(text())),
            QueryReply::Failed(ModelQueryError::Failed(text())),
            QueryReply::Failed(ModelQueryError::TimedOut),
            QueryReply::Failed(ModelQueryError::TooLarge(LARGE)),
            QueryReply::Away(text()),
        ] {
            assert_eq!(QueryReply::from_bytes(&reply.to_bytes()), reply);
        }
    }

    #[test]
    fn an_answer_that_is_none_is_no_page() {
        for bytes in [&b""[..], &[PAGE; 8], &[77; 20]] {
            assert!(matches!(QueryReply::from_bytes(bytes), QueryReply::Away(_)));
        }
    }
}
