//! Refusals of a caller's request: a status, and `{"error": {"code", "message", "where"}}`.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use shared::bus::PublishError;
use shared::error_chain::describe_error;
use shared::model::event::EventId;

use crate::gateway::bodies::MIN_BYTES_PER_SECOND;
use crate::normalize::RefuseEventError;
use crate::source::events::ReadEventsError;
use crate::source::webchat::owner::ClaimOwnerError;
use crate::source::webhook::payload::ReadPayloadError;
use crate::source::webhook::signature::SignatureError;

/// `Retry-After` of a refusal because of a full limit, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// The reason why events were not accepted. No event is lost, because the caller still has them.
#[derive(Debug, thiserror::Error)]
pub enum AcceptEventsError {
    /// The spool has reached its maximum size.
    #[error("the spool is full: {held} of {max} bytes are used")]
    SpoolFull {
        /// Size of the spool, in bytes.
        held: u64,
        /// Maximum size, `adapter.spool_max_bytes`.
        max: u64,
    },
    /// The spool's disk failed; the spool is being opened again.
    #[error("failed to write to the spool: {0}")]
    SpoolFailed(String),
    /// The queue is full, or the service is shutting down.
    #[error("too many events are being accepted at once, or the service is shutting down")]
    Busy,
    /// An event is larger than the maximum message size.
    #[error("event {id} has {size} bytes; at most {max} are allowed")]
    TooLarge {
        /// Id of the event.
        id: EventId,
        /// Encoded size of the event, in bytes.
        size: usize,
        /// Maximum size, in bytes.
        max: usize,
    },
    /// An event violates a bound between its fields.
    #[error("event {id}: {detail}")]
    Invalid {
        /// Id of the event.
        id: EventId,
        /// Field and error, for people.
        detail: String,
    },
    /// JetStream refused an event.
    #[error("event {id} was not stored")]
    NotStored {
        /// Id of the event.
        id: EventId,
        /// Error of the publish.
        #[source]
        source: PublishError,
    },
}

impl AcceptEventsError {
    /// Returns the id of the event that can never be accepted, because it violates a bound; `None` if another try may
    /// succeed.
    #[must_use]
    pub const fn refused_event(&self) -> Option<&EventId> {
        match self {
            Self::Invalid { id, .. } | Self::TooLarge { id, .. } => Some(id),
            Self::SpoolFull { .. } | Self::SpoolFailed(_) | Self::Busy | Self::NotStored { .. } => None,
        }
    }
}

/// The reason why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestRejection {
    /// The webhook source does not exist.
    #[error("no webhook source `{0}` is configured")]
    UnknownSource(String),
    /// The account does not exist, or does not receive over HTTP.
    #[error("no account `{0}` receives over HTTP")]
    UnknownAccount(String),
    /// The platform has not said yet who the account is.
    #[error("the platform has not confirmed the account's token yet; see /readyz")]
    UnknownIdentity,
    /// Whether the sender is paired cannot be found out now.
    #[error("the server does not answer whether the sender is paired; try again")]
    UnknownPairings,
    /// Files that are still to be fetched cannot be noted now.
    #[error("the server does not take the note of files that are still to be fetched; try again")]
    UnnotedFiles,
    /// The path does not exist.
    #[error("not found")]
    UnknownPath,
    /// The signature is missing or wrong.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The bearer token is missing or unknown.
    #[error("expected `authorization: Bearer TOKEN` with a token of [[adapter.http.tokens]] or this machine's own")]
    Unauthorized,
    /// The request comes from a page of another site.
    #[error("origin `{0}` is not allowed")]
    ForeignOrigin(String),
    /// The host name is not allowed: a site may have pointed its own name at this machine.
    #[error("host `{0}` is not allowed; add it to adapter.hosts")]
    ForeignHost(String),
    /// The body is too large.
    #[error("the body exceeds {max} bytes")]
    TooLarge {
        /// Maximum size of the body, in bytes.
        max: usize,
    },
    /// The body ended early.
    #[error("the body is incomplete: {0}")]
    BrokenBody(String),
    /// The request took too long; the value is the limit in milliseconds.
    #[error("the request took longer than {0} ms")]
    Timeout(u64),
    /// The body arrives too slowly.
    #[error("the body arrives too slowly; send at least {MIN_BYTES_PER_SECOND} bytes a second")]
    SlowBody,
    /// Too many requests are in progress.
    #[error("too many requests at once")]
    Overloaded,
    /// The address makes too many requests; the value is the time to wait.
    #[error("too many requests from this address; retry in {} ms", .0.as_millis())]
    TooFast(Duration),
    /// The body of a webhook cannot be parsed.
    #[error(transparent)]
    Payload(#[from] ReadPayloadError),
    /// The events of a request cannot be parsed.
    #[error(transparent)]
    Events(#[from] ReadEventsError),
    /// Another part of the request is malformed.
    #[error("{detail}")]
    Malformed {
        /// Expected value, for people.
        detail: String,
        /// Place in the request.
        place: &'static str,
    },
    /// The request cannot become an event.
    #[error(transparent)]
    Event(#[from] RefuseEventError),
    /// A page could not become the owner's.
    #[error(transparent)]
    OwnerLink(#[from] ClaimOwnerError),
    /// The events were parsed, but could not be accepted.
    #[error(transparent)]
    Accept(#[from] AcceptEventsError),
}

impl RequestRejection {
    /// Returns the status, and the code for programs.
    #[must_use]
    pub const fn kind(&self) -> (StatusCode, &'static str) {
        // The codes are part of the interface: clients decide by them, not by the texts.
        match self {
            Self::UnknownSource(_) => (StatusCode::NOT_FOUND, "unknown_source"),
            Self::UnknownAccount(_) => (StatusCode::NOT_FOUND, "unknown_account"),
            Self::UnknownIdentity => (StatusCode::SERVICE_UNAVAILABLE, "unknown_identity"),
            Self::UnknownPairings => (StatusCode::SERVICE_UNAVAILABLE, "unknown_pairings"),
            Self::UnnotedFiles => (StatusCode::SERVICE_UNAVAILABLE, "unnoted_files"),
            Self::UnknownPath => (StatusCode::NOT_FOUND, "unknown_path"),
            Self::Signature(_) => (StatusCode::UNAUTHORIZED, "bad_signature"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::ForeignOrigin(_) => (StatusCode::FORBIDDEN, "foreign_origin"),
            Self::ForeignHost(_) => (StatusCode::MISDIRECTED_REQUEST, "foreign_host"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::BrokenBody(_) => (StatusCode::BAD_REQUEST, "broken_body"),
            Self::Timeout(_) => (StatusCode::SERVICE_UNAVAILABLE, "timeout"),
            Self::SlowBody => (StatusCode::REQUEST_TIMEOUT, "slow_body"),
            Self::TooFast(_) => (StatusCode::TOO_MANY_REQUESTS, "too_fast"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Self::Events(ReadEventsError::ContentType(_)) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type"),
            Self::Events(ReadEventsError::Channel { .. }) | Self::Event(RefuseEventError::Channel { .. }) => {
                (StatusCode::FORBIDDEN, "channel_not_allowed")
            }
            Self::Events(ReadEventsError::TooMany(_)) => (StatusCode::PAYLOAD_TOO_LARGE, "too_many"),
            Self::Payload(_) | Self::Malformed { .. } => (StatusCode::BAD_REQUEST, "malformed"),
            Self::Events(ReadEventsError::Malformed { .. }) => (StatusCode::BAD_REQUEST, "malformed"),
            Self::Events(ReadEventsError::Event { .. }) | Self::Event(_) => (StatusCode::BAD_REQUEST, "invalid"),
            Self::OwnerLink(ClaimOwnerError::Link(_)) => (StatusCode::FORBIDDEN, "owner_link"),
            Self::OwnerLink(ClaimOwnerError::Read(_) | ClaimOwnerError::Store(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "not_stored")
            }
            Self::Accept(error) => accept_kind(error),
        }
    }

    /// Returns the place in the request; empty if there is none.
    #[must_use]
    pub fn place(&self) -> &str {
        match self {
            Self::Events(error) => error.place(),
            Self::Malformed { place, .. } => place,
            Self::OwnerLink(_) => "link",
            Self::Signature(SignatureError::Missing { header } | SignatureError::Malformed { header, .. }) => header,
            Self::Signature(_) | Self::ForeignOrigin(_) => "headers",
            Self::ForeignHost(_) => "host",
            Self::Unauthorized => "authorization",
            Self::UnknownSource(_) | Self::UnknownAccount(_) | Self::UnknownPath => "path",
            Self::TooLarge { .. } | Self::BrokenBody(_) | Self::SlowBody | Self::Payload(_) | Self::Event(_) => "body",
            Self::Accept(error) if error.refused_event().is_some() => "body",
            Self::UnknownIdentity
            | Self::UnknownPairings
            | Self::UnnotedFiles
            | Self::Accept(_)
            | Self::Timeout(_)
            | Self::Overloaded
            | Self::TooFast(_) => "",
        }
    }

    /// Returns the `error` object of the response.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        json!({ "code": self.kind().1, "message": describe_error(self), "where": self.place() })
    }
}

const fn accept_kind(error: &AcceptEventsError) -> (StatusCode, &'static str) {
    match error {
        AcceptEventsError::SpoolFull { .. } => (StatusCode::SERVICE_UNAVAILABLE, "spool_full"),
        AcceptEventsError::SpoolFailed(_) => (StatusCode::SERVICE_UNAVAILABLE, "spool_failed"),
        AcceptEventsError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        AcceptEventsError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
        AcceptEventsError::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid"),
        AcceptEventsError::NotStored { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_stored"),
    }
}

/// A rejection for the log, carried by its response to where the request's path is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectionNote {
    /// Code of the rejection.
    pub code: &'static str,
    /// Description of the error.
    pub error: String,
    /// Place in the request; empty if there is none.
    pub place: String,
}

impl IntoResponse for RequestRejection {
    fn into_response(self) -> Response {
        let (status, code) = self.kind();
        // The header counts whole seconds, so the wait is rounded up.
        let wait_s = if let Self::TooFast(wait) = &self {
            u64::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX)
        } else {
            RETRY_AFTER_S
        };

        metrics::counter!("nexus_adapter_refused_total", "code" => code).increment(1);

        let mut response = (status, axum::Json(json!({ "error": self.to_json() }))).into_response();
        response.extensions_mut().insert(RejectionNote {
            code,
            error: describe_error(&self),
            place: self.place().to_owned(),
        });

        // The client may try again only after these.
        if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(wait_s));
        }

        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }

        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path, which the log line has beside it, is known only where the response is.
    #[test]
    fn a_response_carries_its_rejection_for_the_log() {
        let header = "x-hub-signature-256".to_owned();
        let response = RequestRejection::Signature(SignatureError::Missing { header }).into_response();
        let note = response.extensions().get::<RejectionNote>().expect("a note");
        assert_eq!(note.code, "bad_signature");
        assert_eq!(note.error, "header `x-hub-signature-256` is missing");
        assert_eq!(note.place, "x-hub-signature-256");
    }
}
