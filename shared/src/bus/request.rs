//! Asking a service or a remote agent, and answering.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use crate::wire::envelope::{Format, payload};
use crate::wire::headers::{CONTENT_TYPE, Headers};

use super::connect::Bus;
use super::error::RequestError;
use super::message::{CoreMessage, header_map, headers_of};

/// Header of a NATS service's error answer: its code.
pub(super) const SERVICE_ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Header of a NATS service's error answer: its text.
pub(super) const SERVICE_ERROR: &str = "Nats-Service-Error";

impl Bus {
    /// Asks `subject` with `question` in JSON, with `headers` besides, and reads the JSON answer.
    ///
    /// # Errors
    /// [`RequestError`] says whether nobody serves it, nobody answered in time, or what the answer was.
    pub async fn request<Q: Serialize, A: DeserializeOwned>(
        &self,
        subject: &str,
        headers: Headers,
        question: &Q,
        timeout: Duration,
    ) -> Result<A, RequestError> {
        let mut headers = headers;
        headers.insert(CONTENT_TYPE, Format::Json.content_type());
        let answer = self
            .ask(subject, &headers, payload(question, Format::Json), timeout)
            .await?;
        serde_json::from_slice(&answer.payload).map_err(|error| RequestError::Answer {
            subject: subject.to_owned(),
            detail: error.to_string(),
        })
    }

    /// Asks `subject` with bare bytes.
    ///
    /// # Errors
    /// As [`Bus::request`].
    pub async fn ask(
        &self,
        subject: &str,
        headers: &Headers,
        payload: bytes::Bytes,
        timeout: Duration,
    ) -> Result<CoreMessage, RequestError> {
        let named = || subject.to_owned();
        let request = async_nats::Request::new()
            .headers(header_map(headers))
            .payload(payload)
            .timeout(Some(timeout));
        let answer = self
            .client
            .send_request(named(), request)
            .await
            .map_err(|error| match error.kind() {
                async_nats::RequestErrorKind::NoResponders => RequestError::NoResponder { subject: named() },
                async_nats::RequestErrorKind::TimedOut => RequestError::Timeout { subject: named() },
                async_nats::RequestErrorKind::InvalidSubject
                | async_nats::RequestErrorKind::MaxPayloadExceeded
                | async_nats::RequestErrorKind::Other => RequestError::Answer {
                    subject: named(),
                    detail: error.to_string(),
                },
            })?;
        let headers = headers_of(answer.headers.as_ref());
        if let Some(code) = headers.get(SERVICE_ERROR_CODE) {
            return Err(RequestError::Service {
                subject: named(),
                code: code.parse().unwrap_or(500),
                text: headers.get(SERVICE_ERROR).unwrap_or_default().to_owned(),
            });
        }
        Ok(CoreMessage {
            subject: answer.subject.to_string(),
            headers,
            payload: answer.payload,
            reply: None,
        })
    }
}
