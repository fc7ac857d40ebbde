//! A model provider on loopback: it implements OpenAI's chat completions, Gemini's `streamGenerateContent` and
//! Anthropic's messages, all three as streams of events, byte for byte as the real ones send them.
//!
//! Its answers come from a script or a rule; each answer sets how its bytes are cut into packets. It records and
//! counts every request, so that a test can check how often a model was asked.
//!
//! ```no_run
//! # async fn example() {
//! use shared::testing::model_server::{ModelServer, ScriptedAnswer};
//! let server = ModelServer::scripted([ScriptedAnswer::text("hello")]).await;
//! // provider = "openai", base_url = server.base_url("openai"), model = "any"
//! # }
//! ```

mod anthropic;
mod gemini;
mod openai;
mod script;
mod wires;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use futures_util::stream::{self, StreamExt as _};
use serde_json::Value;
use tokio::task::JoinHandle;

pub use script::{AnswerEnding, CutPoint, ScriptedAnswer, ScriptedCall, ScriptedSpeech};
pub use wires::ModelWire;

/// A recorded request.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// Wire format of the request.
    pub wire: ModelWire,
    /// Path of the request, with its query.
    pub path: String,
    /// Headers of the request.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Value,
}

impl RecordedRequest {
    /// Returns the text of the newest user message, on any wire; empty if the message holds something else.
    #[must_use]
    pub fn last_user_text(&self) -> String {
        self.wire.last_user_text(&self.body)
    }

    /// Returns the results of tools, oldest first, as text.
    #[must_use]
    pub fn tool_results(&self) -> Vec<String> {
        self.wire.tool_results(&self.body)
    }

    /// Returns the names of the tools that were offered.
    #[must_use]
    pub fn offered_tools(&self) -> Vec<String> {
        self.wire.offered_tools(&self.body)
    }
}

/// Rule that returns the answer to a request; the number counts requests from 0.
type Rule = Arc<dyn Fn(&RecordedRequest, usize) -> ScriptedAnswer + Send + Sync>;

#[derive(Clone)]
struct Shared {
    rule: Rule,
    recorded: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Shared {
    fn recorded(&self) -> MutexGuard<'_, Vec<RecordedRequest>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running provider; stopped when dropped.
pub struct ModelServer {
    address: SocketAddr,
    shared: Shared,
    serving: JoinHandle<()>,
}

// By hand: the requests that it has taken may be large.
impl std::fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ModelServer {
    /// Starts a provider that answers requests with `script` in order, and with status 500 after its end.
    pub async fn scripted(script: impl IntoIterator<Item = ScriptedAnswer>) -> Self {
        let left: Mutex<VecDeque<ScriptedAnswer>> = Mutex::new(script.into_iter().collect());
        Self::ruled(move |_, _| {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            next.unwrap_or_else(|| ScriptedAnswer::status(500, "the script is at its end"))
        })
        .await
    }

    /// Starts a provider that answers each request by `rule`, given the request and its number, counted from 0.
    ///
    /// # Panics
    /// Panics if no port is free.
    pub async fn ruled(rule: impl Fn(&RecordedRequest, usize) -> ScriptedAnswer + Send + Sync + 'static) -> Self {
        Self::ruled_at(0, rule).await
    }

    /// Starts the same at `port`, to which a test's provider can return; 0 for any port.
    ///
    /// # Panics
    /// Panics if the port is in use.
    pub async fn ruled_at(
        port: u16,
        rule: impl Fn(&RecordedRequest, usize) -> ScriptedAnswer + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            rule: Arc::new(rule),
            recorded: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("its address");

        let router = Router::new().fallback(answer).with_state(shared.clone());
        let serving = tokio::spawn(async move {
            let ended = axum::serve(listener, router).await;
            ended.expect("serving");
        });

        Self {
            address,
            shared,
            serving,
        }
    }

    /// Returns the value of `llm.base_url` for `provider` (`openai`, `gemini`, `anthropic`).
    #[must_use]
    pub fn base_url(&self, provider: &str) -> String {
        let version = if provider == "gemini" { "v1beta" } else { "v1" };
        format!("http://{}/{version}", self.address)
    }

    /// Port of the provider.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.shared.recorded().len()
    }

    /// Returns every request, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.recorded().clone()
    }
}

async fn answer(State(shared): State<Shared>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let Some(wire) = ModelWire::of(uri.path()) else {
        return plain(404, "no such path", &[]);
    };

    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return plain(400, "the body is no JSON", &[]);
    };

    let request = RecordedRequest {
        wire,
        path: uri.to_string(),
        headers,
        body,
    };

    let number = {
        let mut recorded = shared.recorded();
        recorded.push(request.clone());
        recorded.len() - 1
    };

    match (shared.rule)(&request, number) {
        ScriptedAnswer::Status { code, headers, body } => plain(code, &body, &headers),
        ScriptedAnswer::Say { speech, cut, ending } => {
            let whole = wire.stream(&speech);
            let kept = match &ending {
                AnswerEnding::Whole | AnswerEnding::Held => whole.len(),
                AnswerEnding::Dropped { after } | AnswerEnding::Closed { after } => (*after).min(whole.len()),
            };
            events(cut.packets(&whole[..kept]), &ending)
        }
        ScriptedAnswer::Raw { bytes, cut, ending } => events(cut.packets(&bytes), &ending),
    }
}

fn plain(code: u16, body: &str, headers: &[(String, String)]) -> Response {
    let mut response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(Body::from(body.to_owned())).expect("a response")
}

/// Returns the packets as the body of an event stream. Each is flushed before the next is made, so that each is a
/// packet.
fn events(packets: Vec<Vec<u8>>, ending: &AnswerEnding) -> Response {
    let packets = stream::iter(
        packets
            .into_iter()
            .map(|packet| Ok::<_, std::io::Error>(Bytes::from(packet))),
    );
    let paced = packets.then(|packet| async move {
        tokio::task::yield_now().await;
        packet
    });

    let body = match ending {
        AnswerEnding::Whole | AnswerEnding::Closed { .. } => Body::from_stream(paced),
        AnswerEnding::Held => Body::from_stream(paced.chain(stream::pending())),
        AnswerEnding::Dropped { .. } => {
            let broken = stream::once(async { Err(std::io::Error::other("the connection is dropped")) });
            Body::from_stream(paced.chain(broken))
        }
    };

    let response = Response::builder()
        .header("content-type", "text/event-stream")
        .body(body);
    response.expect("a response")
}
