//! A collector of traces: OTLP over gRPC (`TraceService/Export`), just enough of it to read what services export.
//!
//! gRPC is HTTP/2 with a five-byte prefix per message and the status in the trailers; with the protocol's own messages
//! that is all a unary call needs. Source: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Length of the prefix of a gRPC message: one byte for compression, four for the length.
const PREFIX_BYTES: usize = 5;

/// A span as it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// `service.name` of its process.
    pub service: String,
    /// Its name.
    pub name: String,
    /// Its trace, in hex.
    pub trace: String,
    /// Itself, in hex.
    pub id: String,
    /// Its parent, in hex; empty = none.
    pub parent: String,
    /// Spans that it links to, in hex.
    pub links: Vec<String>,
    /// Its attribute `event_id`, or nothing.
    pub event_id: String,
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    address: std::net::SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    server: JoinHandle<()>,
}

impl Collector {
    /// Listens on a free port of loopback.
    ///
    /// # Panics
    /// Where there is none.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let kept = Arc::clone(&spans);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&kept)));
            }
        });

        Self { address, spans, server }
    }

    /// What `telemetry.otlp_endpoint` is to say.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that has come in.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// One exporter's connection, until it ends.
async fn serve(stream: TcpStream, kept: Arc<Mutex<Vec<Span>>>) {
    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
    while let Some(Ok((request, answer))) = connection.accept().await {
        let kept = Arc::clone(&kept);
        tokio::spawn(async move {
            if let Some(body) = body(request.into_body()).await {
                let request = ExportTraceServiceRequest::decode(body.slice(PREFIX_BYTES..)).expect("an OTLP request");
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(spans(request));
                // An exporter that went away needs no answer.
                let _ = accept(answer);
            }
        });
    }
}

async fn body(mut stream: h2::RecvStream) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk.ok()?;
        stream.flow_control().release_capacity(chunk.len()).ok()?;
        whole.extend_from_slice(&chunk);
    }
    Some(whole.freeze())
}

/// Status 0 and an empty `ExportTraceServiceResponse`.
fn accept(mut answer: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let head = http::Response::builder()
        .header("content-type", "application/grpc")
        .body(())
        .expect("a head");
    let mut body = answer.send_response(head, false)?;
    body.send_data(Bytes::from_static(&[0; PREFIX_BYTES]), false)?;
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    body.send_trailers(trailers)
}

fn text(attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    let value = found
        .and_then(|attribute| attribute.value.as_ref())
        .and_then(|value| value.value.as_ref());
    if let Some(Value::StringValue(text)) = value {
        text.clone()
    } else {
        String::new()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn spans(request: ExportTraceServiceRequest) -> Vec<Span> {
    let mut found = Vec::new();
    for of_process in request.resource_spans {
        let service = of_process
            .resource
            .map(|resource| text(&resource.attributes, "service.name"))
            .unwrap_or_default();
        for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            found.push(Span {
                service: service.clone(),
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                event_id: text(&span.attributes, "event_id"),
                name: span.name,
            });
        }
    }

    found
}
