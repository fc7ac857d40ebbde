//! Channel `webhook`, and the bridged ones: a part is a signed `POST` of JSON to the account's URL.
//!
//! Signed by Standard Webhooks; `webhook-id` is the delivery's id (`{delivery}/{part}` from the second part on), so that
//! the receiver recognises a repetition. Redirects are followed only to the same origin and only where the method and
//! the body stay (307, 308): any other answer to a `POST` would be a `GET` of something else.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::{Action, Attempt, Policy};
use serde::Serialize;
use serde_json::Value;
use shared::clock::run_for;
use shared::model::event::Attachment;
use shared::wire::envelope::{Format, payload};
use shared::wire::headers::{TRACEPARENT, TRACESTATE};

use super::signature::SigningKey;
use super::{Channel, Shipment};
use crate::attempt::Call;
use crate::chunk::Limit;

/// The channel's name.
pub const NAME: &str = "webhook";

/// Redirects that are followed for one call.
const MAX_REDIRECTS: usize = 3;

/// How much of an answer is kept as the reason, bytes.
const MAX_REASON_BYTES: usize = 512;

/// Where an account's replies go.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `http` or `https`.
    pub url: reqwest::Url,
    /// Signs each call.
    pub key: SigningKey,
    /// Largest part; none = any size.
    pub limit: Option<Limit>,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until the connection stands.
    pub connect: Duration,
    /// Until the answer is there.
    pub whole: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct WebhookChannel {
    client: reqwest::Client,
    endpoints: HashMap<String, Endpoint>,
    /// Until the answer is there.
    whole: Duration,
}

impl WebhookChannel {
    /// Calling `endpoints`, by account.
    ///
    /// # Errors
    /// The client's word where it cannot be set up (no TLS, e.g.).
    pub fn new(endpoints: HashMap<String, Endpoint>, timeouts: Timeouts) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("nexus/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeouts.connect)
            .redirect(Policy::custom(redirect))
            .build()?;

        Ok(Self {
            client,
            endpoints,
            whole: timeouts.whole,
        })
    }
}

fn redirect(attempt: Attempt<'_>) -> Action {
    let keeps_body = matches!(attempt.status().as_u16(), 307 | 308);
    let same_origin = attempt
        .previous()
        .last()
        .is_some_and(|from| from.origin() == attempt.url().origin());
    if keeps_body && same_origin && attempt.previous().len() <= MAX_REDIRECTS {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// What is posted.
#[derive(Debug, Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    /// When the turn's dispatch was made, Unix milliseconds: the same in every attempt.
    timestamp: u64,
    data: Data<'a>,
}

#[derive(Debug, Serialize)]
struct Data<'a> {
    delivery: String,
    part: u32,
    parts: u32,
    event_id: &'a str,
    persona: &'a str,
    session: &'a str,
    peer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    reply_to: &'a str,
    content: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    attachments: &'a [Attachment],
    #[serde(skip_serializing_if = "Option::is_none")]
    interactive: Option<&'a Value>,
}

impl<'a> Body<'a> {
    fn of(shipment: &'a Shipment<'_>) -> Self {
        let reply = shipment.reply;
        let target = &reply.delivery_context;
        let data = Data {
            delivery: reply.id.to_string(),
            part: shipment.part.index,
            parts: shipment.parts,
            event_id: shipment.event_id.as_str(),
            persona: &reply.session.persona,
            session: &reply.session.session,
            peer: shipment.peer(),
            thread: target.thread_id.as_deref(),
            reply_to: target.reply_to_id.as_deref().unwrap_or(reply.causation.event.as_str()),
            content: &shipment.part.content,
            attachments: &reply.attachments,
            interactive: reply.interactive.as_ref(),
        };

        Self {
            kind: "nexus.reply",
            timestamp: reply.id.timestamp_ms(),
            data,
        }
    }
}

/// The receiver's idempotency key.
fn webhook_id(shipment: &Shipment<'_>) -> String {
    match shipment.part.index {
        0 => shipment.reply.id.to_string(),
        part => format!("{}/{part}", shipment.reply.id),
    }
}

#[async_trait]
impl Channel for WebhookChannel {
    fn limit(&self, account: &str) -> Option<Limit> {
        self.endpoints.get(account).and_then(|endpoint| endpoint.limit)
    }

    fn lasts(&self) -> bool {
        true
    }

    async fn send(&self, shipment: &Shipment<'_>) -> Call {
        let Some(endpoint) = self.endpoints.get(shipment.account()) else {
            return Call::Impossible {
                reason: format!(
                    "channel {} has no account `{}`",
                    shipment.reply.delivery_context.channel,
                    shipment.account()
                ),
            };
        };

        let body = payload(&Body::of(shipment), Format::Json);
        let (id, timestamp) = (webhook_id(shipment), shipment.now.seconds());
        let mut request = self
            .client
            .post(endpoint.url.clone())
            .header(CONTENT_TYPE, Format::Json.content_type())
            .header("webhook-signature", endpoint.key.sign(&id, timestamp, &body))
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp);

        if let Some(parent) = &shipment.carrier.traceparent {
            request = request.header(TRACEPARENT, parent);
        }

        if let Some(state) = &shipment.carrier.tracestate {
            request = request.header(TRACESTATE, state);
        }

        let call = async {
            match request.body(body).send().await {
                Ok(response) => read(response).await,
                Err(error) => Call::Unreachable { reason: chain(&error) },
            }
        };

        // The answer first, and time for which this process was stopped does not count: it may lie in the socket.
        tokio::select! {
            biased;
            ended = call => ended,
            () = run_for(self.whole) => Call::Unreachable { reason: "timed out".to_owned() },
        }
    }
}

async fn read(mut response: reqwest::Response) -> Call {
    let code = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);

    let mut said = Vec::new();
    // What fails after the status has come changes nothing: the receiver has decided.
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = MAX_REASON_BYTES.saturating_sub(said.len());
        if room == 0 {
            break;
        }
        said.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }

    Call::Status {
        code,
        retry_after,
        body: String::from_utf8_lossy(&said).into_owned(),
    }
}

/// The error and what caused it, in one line, without the URL: it may hold a secret.
fn chain(error: &reqwest::Error) -> String {
    let what = if error.is_timeout() {
        "timed out"
    } else if error.is_connect() {
        "no connection"
    } else {
        "no answer"
    };

    let mut line = what.to_owned();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        source = cause.source();
    }

    line
}
