//! The reason why a request about a dead letter fails.

use shared::bus::{PublishError, ReadStreamError};

/// The reason why a request about a dead letter fails.
#[derive(Debug, thiserror::Error)]
pub enum LetterError {
    /// There is no dead letter with this number.
    #[error("no dead letter {0}; see `nexus dlq list`")]
    Absent(u64),
    /// The number belongs to another letter than the one that was listed.
    #[error("dead letter {0} is not the one that was listed: DLQ was restored or created again; list them again")]
    Another(u64),
    /// Its message is held.
    #[error("dead letter {0} is of a held message: `nexus recover list`, then redo or skip")]
    Held(u64),
    /// It cannot be read.
    #[error("dead letter {number} cannot be read: {error}")]
    Unreadable {
        /// Number of the dead letter.
        number: u64,
        /// Error of its payload.
        error: String,
    },
    /// Nothing in Nexus reads its message.
    #[error("dead letter {0} cannot be redriven: Nexus cannot read the platform's data (`nexus dlq show {0}`)")]
    Foreign(u64),
    /// It does not hold its message.
    #[error("dead letter {number} cannot be redriven: it does not hold the message; see {stream} at {sequence}")]
    WithoutMessage {
        /// Number of the dead letter.
        number: u64,
        /// Stream that has the message.
        stream: String,
        /// Sequence of the message there.
        sequence: u64,
    },
    /// Its payload is no base64.
    #[error("dead letter {0} has no payload")]
    Payload(u64),
    /// No stream has its subject.
    #[error("dead letter {number} cannot be redriven: no stream has the subject {subject}")]
    NoStream {
        /// Number of the dead letter.
        number: u64,
        /// Subject of its message.
        subject: String,
    },
    /// The server refuses its message.
    #[error("dead letter {number} cannot be redriven: {error}")]
    Refused {
        /// Number of the dead letter.
        number: u64,
        /// Error of the server.
        error: PublishError,
    },
    /// It was dropped.
    #[error("dead letter {number} was dropped by {by} at {at}")]
    Dropped {
        /// Number of the dead letter.
        number: u64,
        /// Operator that asked for that.
        by: String,
        /// When, as an instant.
        at: String,
    },
    /// A redrive was begun and not ended.
    #[error("dead letter {0} was being redriven, and its message may be published: `nexus dlq redrive {0}` ends that")]
    Redriving(u64),
    /// The name of the operator is not valid.
    #[error("{0}")]
    Speaker(String),
    /// Others change it all the time.
    #[error("dead letter {0}: too many concurrent requests; ask again")]
    Contended(u64),
    /// The server did not store something in time.
    #[error("dead letter {0}: the server does not answer; the same request again does the rest")]
    Late(u64),
    /// A stream cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// A record cannot be written.
    #[error("failed to write the record: {0}")]
    Record(PublishError),
}
