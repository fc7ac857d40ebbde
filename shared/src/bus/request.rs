//! Requests to a service or a remote agent, and their responses.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::{Serialize, de::DeserializeOwned};

use crate::clock::pause;
use crate::wire::envelope::{PayloadFormat, encode_payload};
use crate::wire::headers::{CONTENT_TYPE, Headers};

use super::connect::Bus;
use super::core_message::CoreMessage;
use super::error::RequestError;
use super::message::{header_map, headers_of};

/// Header of a NATS service's error response with the error code.
pub(super) const SERVICE_ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Header of a NATS service's error response with the error text.
pub(super) const SERVICE_ERROR: &str = "Nats-Service-Error";

/// Time without a response after which a question is sent again; each further one is half as long again, because replicas
/// that are only slow have the more to do the more often they are asked.
const ASK_AGAIN: Duration = Duration::from_millis(700);
/// Number of times that it is sent.
const MOST_ASKED: u32 = 6;

impl Bus {
    /// Sends `question` in JSON to `subject`, with the additional `headers`, and decodes the JSON response.
    ///
    /// # Errors
    /// Returns [`RequestError`] if no service listens, if no response arrives in time, or if the response is an error
    /// or cannot be decoded.
    pub async fn request<Q: Serialize, A: DeserializeOwned>(
        &self,
        subject: &str,
        headers: Headers,
        question: &Q,
        timeout: Duration,
    ) -> Result<A, RequestError> {
        let mut headers = headers;
        headers.insert(CONTENT_TYPE, PayloadFormat::Json.content_type());
        let answer = self
            .request_bytes(
                subject,
                &headers,
                encode_payload(question, PayloadFormat::Json),
                timeout,
            )
            .await?;

        serde_json::from_slice(&answer.payload).map_err(|error| RequestError::Answer {
            subject: subject.to_owned(),
            detail: error.to_string(),
        })
    }

    /// Sends `question`, which changes nothing, as [`Bus::request`] does. While no response arrives it is sent again, to
    /// the replica that the server chooses then, and the first answer counts: a replica that was stopped gets its share of
    /// the requests, and answers none. An error counts if no replica that was asked is still to answer.
    ///
    /// # Errors
    /// As [`Bus::request`].
    pub async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        subject: &str,
        question: &Q,
        timeout: Duration,
    ) -> Result<A, RequestError> {
        let send = || self.request::<Q, A>(subject, Headers::new(), question, timeout);
        let mut sent = FuturesUnordered::new();
        sent.push(send());
        let (mut asked, mut wait) = (1, ASK_AGAIN);

        loop {
            tokio::select! {
                Some(response) = sent.next() => match response {
                    // A replica that is ending, or that is asked when none is left, must not speak for one that works.
                    Err(error) if !sent.is_empty() && !matches!(error, RequestError::Timeout { .. }) => {
                        tracing::debug!(subject, %error, "another replica has still to answer");
                    }
                    response => return response,
                },
                () = pause(wait), if asked < MOST_ASKED => {
                    sent.push(send());
                    asked += 1;
                    wait += wait / 2;
                }
            }
        }
    }

    /// Sends a request to all listeners of `subject`, and returns their responses. All of them must arrive within
    /// `patience`, and each within a third of it after the one before.
    ///
    /// # Errors
    /// Returns the client's error text if the request cannot be sent.
    pub async fn gather_answers(&self, subject: &str, patience: Duration) -> Result<Vec<bytes::Bytes>, String> {
        let inbox = self.client.new_inbox();
        let mut heard = self.core_subscribe(&inbox).await?;
        let asked = self
            .client
            .publish_with_reply(subject.to_owned(), inbox, bytes::Bytes::new())
            .await;

        asked.map_err(|error| error.to_string())?;
        let mut answers = Vec::new();
        let all = async {
            let mut wait = patience;
            while let Ok(Some(answer)) = tokio::time::timeout(wait, heard.next()).await {
                if answer.payload.is_empty() {
                    // The server's status that no client listens.
                    return;
                }
                answers.push(answer.payload);
                wait = patience / 3;
            }
        };

        // Only responses that have arrived by then count.
        let _ = tokio::time::timeout(patience, all).await;
        Ok(answers)
    }

    /// Sends `payload` to `subject`, and returns the response as it is.
    ///
    /// # Errors
    /// As [`Bus::request`].
    pub async fn request_bytes(
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

        // The kinds of error have different remedies: no service listens, or it is slow.
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
        // A service reports its errors in the headers of a normal response.
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
