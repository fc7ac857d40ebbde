//! Errors of the bus: one type per family of operations. Questions about an error are methods on its type.

/// Connecting to NATS failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectBusError {
    /// An address of a server cannot be parsed.
    #[error("nats.servers: `{0}` is not a NATS address")]
    Address(String),
    /// What the user is shown by cannot be used.
    #[error("nats.{key}: {problem}")]
    Credentials {
        /// Key of the configuration: `credentials`, `nkey`, `ca`, `certificate` or `key`.
        key: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// No server answers at the configured addresses.
    #[error("cannot connect to NATS at {servers}: {detail}")]
    Unreachable {
        /// Addresses that were tried, separated by commas.
        servers: String,
        /// Error text of the client.
        detail: String,
    },
}

/// A publish did not end with an ack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The last sequence of the subject is not the expected one (10071).
    #[error("publish to {subject}: unexpected last sequence")]
    WrongLastSequence {
        /// Subject of the publish.
        subject: String,
    },
    /// The subject is full (10077): a claim is held already.
    #[error("publish to {subject}: the subject already has a message")]
    SubjectFull {
        /// Subject of the publish.
        subject: String,
    },
    /// The message is larger than the server accepts.
    #[error("publish to {subject}: {size} bytes exceed the server's limit")]
    TooLarge {
        /// Subject of the publish.
        subject: String,
        /// Size of the message, in bytes.
        size: usize,
    },
    /// No stream listens on the subject.
    #[error("publish to {subject}: no stream has this subject")]
    NoStream {
        /// Subject of the publish.
        subject: String,
    },
    /// The server rejects the message for good.
    #[error("publish to {subject}: refused with {code}: {text}")]
    Rejected {
        /// Subject of the publish.
        subject: String,
        /// Error code of the server.
        code: u64,
        /// Error text of the server.
        text: String,
    },
    /// It is unknown whether the server stored the message.
    #[error("publish to {subject}: no answer in time, the outcome is unknown")]
    Unknown {
        /// Subject of the publish.
        subject: String,
    },
    /// The bus was closed.
    #[error("publish to {subject}: the bus is closed")]
    Closed {
        /// Subject of the publish.
        subject: String,
    },
}

impl PublishError {
    /// Whether a publish of the same bytes may succeed later.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::NoStream { .. } | Self::Unknown { .. } => true,
            Self::WrongLastSequence { .. }
            | Self::SubjectFull { .. }
            | Self::TooLarge { .. }
            | Self::Rejected { .. }
            | Self::Closed { .. } => false,
        }
    }
}

/// Reading a stored message failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadStreamError {
    /// The server did not answer.
    #[error("read {stream}: {detail}")]
    Unavailable {
        /// Name of the stream.
        stream: String,
        /// Error text of the client.
        detail: String,
    },
    /// The stored message cannot be decoded, now or later.
    #[error("read {stream}: {detail}")]
    Unreadable {
        /// Name of the stream.
        stream: String,
        /// Entry that cannot be decoded, and the reason.
        detail: String,
    },
    /// The server returned an error.
    #[error("read {stream}: the server answered {code}: {text}")]
    Refused {
        /// Name of the stream.
        stream: String,
        /// Error code of the server.
        code: u64,
        /// Error text of the server.
        text: String,
    },
}

/// A consumer cannot be created or pulled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("consume {consumer} of {stream}: {detail}")]
pub struct ConsumeError {
    /// Name of the stream.
    pub stream: String,
    /// Name of the consumer.
    pub consumer: String,
    /// Error text of the client.
    pub detail: String,
}

/// A compare-and-set of a key failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// Another writer changed the key first.
    #[error("key {key} of bucket {bucket} has another revision")]
    Conflict {
        /// Name of the bucket.
        bucket: String,
        /// Key that was to be changed.
        key: String,
    },
    /// The publish of the value failed.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The read before the write failed.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
}

/// The topology cannot be created or does not match.
#[derive(Debug, thiserror::Error)]
pub enum EnsureTopologyError {
    /// The server rejects a stream or a consumer.
    #[error("create {what} {name}: {detail}")]
    Create {
        /// `stream` or `consumer`.
        what: &'static str,
        /// Name of the stream or consumer.
        name: String,
        /// Error text of the server.
        detail: String,
    },
    /// An existing stream or consumer cannot be looked up.
    #[error("look up {what} {name}: {detail}")]
    Lookup {
        /// `stream` or `consumer`.
        what: &'static str,
        /// Name of the stream or consumer.
        name: String,
        /// Error text of the server.
        detail: String,
    },
    /// An existing stream or consumer differs in a setting that must not differ.
    #[error(
        "the streams and consumers on the server differ from those of this version ({count} differences, the first: {first}); see `nexus topology plan`"
    )]
    Incompatible {
        /// Number of differences that were found.
        count: usize,
        /// Description of one difference.
        first: String,
    },
    /// The configured durability is not provided by the servers.
    #[error("nats.durability: {0}")]
    Durability(String),
}

/// A request to a service failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No service listens on the subject.
    #[error("request {subject}: no service is running")]
    NoResponder {
        /// Subject of the request.
        subject: String,
    },
    /// No response arrived in time.
    #[error("request {subject}: timed out")]
    Timeout {
        /// Subject of the request.
        subject: String,
    },
    /// The service returned an error.
    #[error("request {subject}: {code}: {text}")]
    Service {
        /// Subject of the request.
        subject: String,
        /// Error code of the service.
        code: u16,
        /// Error text of the service.
        text: String,
    },
    /// The response cannot be decoded.
    #[error("request {subject}: {detail}")]
    Answer {
        /// Subject of the request.
        subject: String,
        /// Reason why the response cannot be decoded.
        detail: String,
    },
}
