//! One error per family of operations on the bus; `disposition`-like questions are methods.

/// Connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectBusError {
    /// An address cannot be read.
    #[error("nats.servers: `{0}` is not a NATS address")]
    Address(String),
    /// A credential file cannot be read.
    #[error("nats.credentials: `{path}` cannot be read")]
    Credentials {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nobody answers.
    #[error("no NATS server answers at {servers}: {detail}")]
    Unreachable {
        /// Where was tried.
        servers: String,
        /// What the client said.
        detail: String,
    },
}

/// A publish did not end with an ack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The expected last sequence of the subject is another (10071).
    #[error("publish to {subject}: the subject's last sequence is another than expected")]
    WrongLastSequence {
        /// Where to.
        subject: String,
    },
    /// The subject is full (10077): a claim is held already.
    #[error("publish to {subject}: the subject holds a message already")]
    SubjectFull {
        /// Where to.
        subject: String,
    },
    /// Larger than the server takes.
    #[error("publish to {subject}: {size} bytes are more than the server takes")]
    TooLarge {
        /// Where to.
        subject: String,
        /// Bytes.
        size: usize,
    },
    /// No stream listens there.
    #[error("publish to {subject}: no stream listens there")]
    NoStream {
        /// Where to.
        subject: String,
    },
    /// The server says no for good.
    #[error("publish to {subject}: refused with {code}: {text}")]
    Rejected {
        /// Where to.
        subject: String,
        /// The server's error code.
        code: u64,
        /// What it says.
        text: String,
    },
    /// Nobody knows whether the server has it.
    #[error("publish to {subject}: no answer in time, the outcome is unknown")]
    Unknown {
        /// Where to.
        subject: String,
    },
    /// The bus was closed.
    #[error("publish to {subject}: the bus is closed")]
    Closed {
        /// Where to.
        subject: String,
    },
}

impl PublishError {
    /// Whether the same bytes may be published again in the hope of another answer.
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
        /// The stream.
        stream: String,
        /// What happened.
        detail: String,
    },
    /// What is stored there cannot be read, and will not be later.
    #[error("read {stream}: {detail}")]
    Unreadable {
        /// The stream.
        stream: String,
        /// Which entry, and what is wrong with it.
        detail: String,
    },
    /// It answered something else.
    #[error("read {stream}: the server answered {code}: {text}")]
    Refused {
        /// The stream.
        stream: String,
        /// The server's error code.
        code: u64,
        /// What it says.
        text: String,
    },
}

/// Consuming cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("consume {consumer} of {stream}: {detail}")]
pub struct ConsumeError {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// What happened.
    pub detail: String,
}

/// A compare-and-set did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// Somebody else was first.
    #[error("key {key} of bucket {bucket} has another revision")]
    Conflict {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// The publish failed.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The read before it failed.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
}

/// The topology cannot be made or is not fitting.
#[derive(Debug, thiserror::Error)]
pub enum EnsureTopologyError {
    /// The server refuses a stream or a consumer.
    #[error("create {what} {name}: {detail}")]
    Create {
        /// `stream` or `consumer`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What the server says.
        detail: String,
    },
    /// What is there cannot be told.
    #[error("look up {what} {name}: {detail}")]
    Lookup {
        /// `stream` or `consumer`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What the server says.
        detail: String,
    },
    /// What is there differs where it must not.
    #[error(
        "the topology on the server is not ours ({count} differences, the first: {first}); see `nexus topology plan`"
    )]
    Incompatible {
        /// How many differences.
        count: usize,
        /// One of them.
        first: String,
    },
    /// The configured promise does not hold here.
    #[error("nats.durability: {0}")]
    Durability(String),
}

/// A request was not answered as hoped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nobody serves it.
    #[error("request {subject}: nobody serves it")]
    NoResponder {
        /// The subject.
        subject: String,
    },
    /// No answer in time.
    #[error("request {subject}: no answer in time")]
    Timeout {
        /// The subject.
        subject: String,
    },
    /// The service says that it cannot.
    #[error("request {subject}: {code}: {text}")]
    Service {
        /// The subject.
        subject: String,
        /// Its code.
        code: u16,
        /// What it says.
        text: String,
    },
    /// The answer cannot be read.
    #[error("request {subject}: {detail}")]
    Answer {
        /// The subject.
        subject: String,
        /// What is wrong.
        detail: String,
    },
}
