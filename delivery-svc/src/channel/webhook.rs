//! Channel `webhook`, and bridged channels: each part is a signed `POST` of JSON to the account's URL.
//!
//! Calls are signed by Standard Webhooks. `webhook-id` is the delivery's id (`{delivery}/{part}` from the second part
//! on), so that the receiver can detect a repeated call. A redirect is followed only if it has the same origin and
//! keeps the method and body (307, 308); any other redirect of a `POST` would become a `GET` of another resource.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::{Action, Attempt, Policy};
use serde::Serialize;
use serde_json::Value;
use shared::clock::run_for;
use shared::model::event::Attachment;
use shared::model::time::UnixMillis;
use shared::platform::http_answer::read_start;
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::{TRACEPARENT, TRACESTATE};

use super::http::{CallTimeouts, failed_outcome, late_outcome, status_outcome};
use super::signature::SigningKey;
use super::{Channel, ChannelTraits, SendRequest};
use crate::attempt::{CallOutcome, Repetition};
use crate::plan::{PartLayout, TextFormat};

/// Name of the channel.
pub const NAME: &str = "webhook";

/// Maximum number of redirects in one call.
const MAX_REDIRECTS: usize = 3;

/// Maximum length of a response that is kept as the reason, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// Maximum time to wait for the response's body once the status has arrived.
const MAX_BODY_WAIT: Duration = Duration::from_secs(1);

/// The endpoint to which an account's replies are sent.
#[derive(Debug, Clone)]
pub struct WebhookEndpoint {
    /// URL with the scheme `http` or `https`.
    pub url: reqwest::Url,
    /// Key that signs each call.
    pub key: SigningKey,
    /// Form and maximum size of a part.
    pub layout: PartLayout,
}

/// Channel `webhook`; see the module.
#[derive(Debug)]
pub struct WebhookChannel {
    client: reqwest::Client,
    endpoints: HashMap<String, WebhookEndpoint>,
    /// Maximum time until the status of the response arrives.
    whole: Duration,
}

impl WebhookChannel {
    /// Creates the channel with `endpoints` by account.
    ///
    /// # Errors
    /// Returns the HTTP client's error if it cannot be set up, for example without TLS.
    pub fn new(endpoints: HashMap<String, WebhookEndpoint>, timeouts: CallTimeouts) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("nexus/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeouts.connect)
            .redirect(Policy::custom(judge_redirect))
            .build()?;

        Ok(Self {
            client,
            endpoints,
            whole: timeouts.whole,
        })
    }
}

fn judge_redirect(attempt: Attempt<'_>) -> Action {
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

/// The body of a call.
#[derive(Debug, Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Time of the turn's dispatch, in Unix milliseconds; the same in every attempt.
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
    /// Form of `content`; absent if it is the reply's own Markdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<TextFormat>,
    /// The part as plain text, if `content` has a form.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<&'a str>,
    /// Styles of `content`, as `start:length:STYLE` in UTF-16 units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    styles: Vec<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    attachments: &'a [Attachment],
    #[serde(skip_serializing_if = "Option::is_none")]
    interactive: Option<&'a Value>,
}

impl<'a> Body<'a> {
    fn from_shipment(shipment: &'a SendRequest<'_>) -> Self {
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
            format: Some(shipment.part.format).filter(|format| *format != TextFormat::Markdown),
            plain: shipment.part.plain.as_deref(),
            styles: shipment.part.styles.iter().map(ToString::to_string).collect(),
            attachments: &reply.attachments,
            interactive: reply.interactive.as_ref(),
        };

        Self {
            kind: "nexus.reply",
            // Derived from the id, so that every attempt has the same body.
            timestamp: reply.id.timestamp_ms(),
            data,
        }
    }
}

/// Returns the receiver's idempotency key.
fn webhook_id(shipment: &SendRequest<'_>) -> String {
    match shipment.part.index {
        0 => shipment.reply.id.to_string(),
        part => format!("{}/{part}", shipment.reply.id),
    }
}

#[async_trait]
impl Channel for WebhookChannel {
    fn traits(&self, account: &str) -> ChannelTraits {
        let endpoint = self.endpoints.get(account);
        ChannelTraits {
            layout: endpoint.map(|endpoint| endpoint.layout).unwrap_or_default(),
            waits_for_remote: true,
            // By `webhook-id`.
            repetition: Repetition::Recognised,
            finds_parts: false,
            typing_lasts: None,
            previews: false,
            max_file_bytes: None,
        }
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
        let Some(endpoint) = self.endpoints.get(shipment.account()) else {
            return shipment.unknown_account();
        };

        let body = encode_payload(&Body::from_shipment(shipment), PayloadFormat::Json);
        let (id, timestamp) = (webhook_id(shipment), shipment.now.seconds());
        let mut request = self
            .client
            .post(endpoint.url.clone())
            .header(CONTENT_TYPE, PayloadFormat::Json.content_type())
            .header("webhook-signature", endpoint.key.sign(&id, timestamp, &body))
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp);

        if let Some(parent) = &shipment.carrier.traceparent {
            request = request.header(TRACEPARENT, parent);
        }

        if let Some(state) = &shipment.carrier.tracestate {
            request = request.header(TRACESTATE, state);
        }

        // The response is polled first, and time for which this process was stopped does not count: the response may
        // already be in the socket.
        let sent = tokio::select! {
            biased;
            sent = request.body(body).send() => sent,
            () = run_for(self.whole) => return late_outcome(),
        };

        match sent {
            Ok(response) => read(response, shipment.now).await,
            Err(error) => failed_outcome(error),
        }
    }
}

/// Returns the outcome of a call made at `now` whose status has arrived. The receiver has decided: a body that fails or
/// stalls changes nothing.
async fn read(mut response: reqwest::Response, now: UnixMillis) -> CallOutcome {
    let code = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);

    let mut said = Vec::new();
    let reason = read_start(&mut response, &mut said, MAX_REASON_BYTES);

    tokio::select! {
        biased;
        // What was said before the body broke off is a reason too.
        _ = reason => {}
        () = run_for(MAX_BODY_WAIT) => {}
    }

    status_outcome(code, retry_after.as_deref(), &String::from_utf8_lossy(&said), now)
}
