//! HTTP client of the models: sends a request in the provider's format, and reads the bytes of the response.
//!
//! An attempt ends if the wire marks the end, if the body ends, or shortly after the provider has stated why it stops:
//! some providers do not close a finished response. The limit on silence counts bytes of any kind: busy providers send
//! comments.

mod fault;
mod request;

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response};

use super::answer::ModelReply;
use super::ask::ModelRequest;
use super::config::{LlmConfig, LlmFault, ModelProvider};
use super::error::AskModelError;
use super::wire::{AnswerReader, HeardAnswer};
use crate::clock::SharedClock;
use crate::platform::http_answer::read_start;

/// Timeout of a connection: a caller learns within ten seconds that the provider cannot be reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for usage, or more of the answer, after the provider has stated why it stops.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Maximum number of bytes read of an error response.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Version of Anthropic's interface.
const ANTHROPIC_VERSION: &str = "2023-06-01";
/// Number of idle connections to the provider that are kept.
const IDLE_CONNECTIONS: usize = 4;
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(10);

/// HTTP client, bound to one provider.
pub(super) struct ProviderClient {
    client: Client,
    provider: ModelProvider,
    endpoint: String,
    headers: HeaderMap,
    idle: Duration,
    clock: SharedClock,
}

// By hand: the headers hold the key.
impl std::fmt::Debug for ProviderClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderClient")
            .field("provider", &self.provider)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl ProviderClient {
    pub(super) fn new(config: &LlmConfig, clock: SharedClock) -> Result<Self, LlmFault> {
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .gzip(true)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .http2_keep_alive_timeout(KEEP_ALIVE_WITHIN)
            .http2_keep_alive_while_idle(true)
            .http2_adaptive_window(true)
            .build();

        // A self-hosted server that needs no key ignores it.
        let key = config.api_key.as_ref().map_or("none", |key| key.reveal());
        Ok(Self {
            client: client.map_err(|_| LlmFault::NoClient)?,
            provider: config.provider,
            endpoint: config.endpoint(),
            headers: auth_headers(config.provider, key).ok_or(LlmFault::NoClient)?,
            idle: Duration::from_millis(config.idle_timeout_ms),
            clock,
        })
    }

    /// Returns scheme, host and port of the provider; the rest of its address may contain a key.
    fn address(&self) -> String {
        let url = reqwest::Url::parse(&self.endpoint);
        url.map_or_else(
            |_| "an invalid address".to_owned(),
            |url| url.origin().ascii_serialization(),
        )
    }

    /// Makes one attempt at an answer.
    pub(super) async fn attempt_once(
        &self,
        model: &str,
        ask: &ModelRequest,
        hear: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<ModelReply, AskModelError> {
        let url = format!("{}{}", self.endpoint, request::path(model, self.provider));
        let question = request::request_body(model, ask, self.provider);
        let request = self.client.post(url).headers(self.headers.clone()).json(&question);
        let response = match tokio::time::timeout(self.idle, request.send()).await {
            Ok(Ok(response)) => response,
            // The address may contain a key, and errors are logged.
            Ok(Err(error)) => {
                let sent = !error.is_connect() && !error.is_builder();
                return Err(fault::of_connection(&error.without_url(), &self.address(), sent));
            }
            Err(_) => return Err(silent_error(self.idle)),
        };

        if !response.status().is_success() {
            return Err(self.refusal_error(response).await);
        }

        let heard = self.read(response, hear).await?;
        Ok(ModelReply {
            content: heard.text,
            tool_calls: heard.calls,
            finish: heard.finish,
            usage: heard.usage,
            cost: None,
            model: model.to_owned(),
            opaque: heard.opaque.into_kept(self.provider),
        })
    }

    /// Reads the body to its end; its text is passed to `hear` as it arrives.
    async fn read(
        &self,
        mut response: Response,
        hear: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<HeardAnswer, AskModelError> {
        let mut reading = AnswerReader::new(self.provider);
        while !reading.has_ended() {
            // After the model's stop only the usage may follow, which not every provider sends: the wait is short.
            let stopped = reading.has_stopped();
            let wait = if stopped { self.idle.min(LAST_WORDS) } else { self.idle };
            let bytes = match tokio::time::timeout(wait, response.chunk()).await {
                Ok(Ok(Some(bytes))) => bytes,
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    // The provider was unreachable if the answer's body had not begun; else the answer is truncated.
                    let error = error.without_url();
                    return Err(match reading.has_begun() {
                        true => fault::of_body(&error, reading.received_bytes()),
                        false => fault::of_connection(&error, &self.address(), true),
                    });
                }
                Err(_) if stopped => break,
                Err(_) => return Err(silent_error(self.idle)),
            };

            let received = reading.received_bytes();
            let text = reading.take(&bytes).map_err(|error| fault::of_wire(error, received))?;
            if !text.is_empty() {
                hear(text);
            }
        }

        // A body may end without an error and still be no complete answer.
        let received = reading.received_bytes();
        let heard = reading
            .finish_answer()
            .map_err(|error| fault::of_wire(error, received))?;

        // The text of a response that is no stream is passed on at its end.
        if received < heard.text.len() {
            hear(&heard.text[received..]);
        }

        Ok(heard)
    }

    async fn refusal_error(&self, mut response: Response) -> AskModelError {
        let mut body = Vec::new();
        // The status says it already: what arrives in time of the words is enough.
        let words = read_start(&mut response, &mut body, MAX_ERROR_BYTES);
        let _ = tokio::time::timeout(self.idle, words).await;

        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        fault::of_answer(
            response.status().as_u16(),
            &String::from_utf8_lossy(&body),
            header("retry-after-ms"),
            header("retry-after"),
            self.clock.now(),
        )
    }
}

/// Returns the headers with the key, or `None` if the key is not valid in a header.
fn auth_headers(provider: ModelProvider, key: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let (name, value) = match provider {
        ModelProvider::OpenAi => ("authorization", format!("Bearer {key}")),
        ModelProvider::Gemini => ("x-goog-api-key", key.to_owned()),
        ModelProvider::Anthropic => {
            let version = HeaderValue::from_static(ANTHROPIC_VERSION);
            headers.insert(HeaderName::from_static("anthropic-version"), version);
            ("x-api-key", key.to_owned())
        }
    };

    let mut value = HeaderValue::from_str(&value).ok()?;
    value.set_sensitive(true);
    headers.insert(HeaderName::from_static(name), value);

    Some(headers)
}

fn silent_error(idle: Duration) -> AskModelError {
    AskModelError::Silent {
        silent_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
    }
}
