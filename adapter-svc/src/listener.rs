//! The listener: it accepts connections within limits, and ends them in order.
//!
//! This module replaces `axum::serve`, which limits neither the time and size of a request's head nor the number of
//! connections. The limits apply to every protocol, from the moment a connection is accepted.

pub mod connections;
pub mod line;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use shared::clock::{Clock, SystemClock, pause};
use shared::process::ShutdownSignal;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use crate::gateway::client_address::{ConnectionPeer, TrustedNetworks};
use connections::ConnectionLimits;
use line::{ConnectionRequests, InHand, OpenConnection, SharedConnections};

/// Maximum size of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum amount of a connection's HTTP/2 bodies that may be in transit to a handler, in bytes.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// Maximum number of open requests on an HTTP/2 connection.
const HTTP2_REQUESTS: u32 = 64;
/// Maximum amount of a response that may wait in memory for an HTTP/2 client, in bytes.
const HTTP2_SEND_BYTES: usize = 64 * 1024;
/// Maximum number of connections that wait in the system until they are accepted.
const BACKLOG: u32 = 4_096;
/// Wait after the system refused a connection and no other could be ended for it.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Maximum time for a connection to end after it was asked to, if it has no request in progress.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The limits of the listener.
#[derive(Debug, Clone)]
pub struct ListenerLimits {
    /// Limits of the table of connections.
    pub limits: ConnectionLimits,
    /// Proxies, whose connections have no limit per address.
    pub trusted: TrustedNetworks,
    /// Maximum time for connections to end after `shutdown`.
    pub drain: Duration,
}

/// Binds a listener to `address`.
///
/// # Errors
/// Returns the system's error if the address cannot be bound.
pub fn bind_listener(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Without it, a restarted service could not bind its port while old connections are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router` on `listener` until `shutdown`, then waits for open requests, at most for `bounds.drain`.
pub async fn serve(listener: TcpListener, router: Router, bounds: ListenerLimits, shutdown: ShutdownSignal) {
    let lines = SharedConnections::new(bounds.limits);
    // Every connection holds a sender, so the receiver ends with the last one.
    let (alive, mut all_ended) = mpsc::channel::<Infallible>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.requested() => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there is no file handle left: an idle connection is ended to free one.
                if !lines.evict_connection() {
                    tracing::warn!(%error, "failed to accept a connection");
                }
                pause(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };

        let address = from.ip().to_canonical();
        let peer = ConnectionPeer {
            address,
            trusted: bounds.trusted.contains(address),
        };

        let Some(line) = lines.admit_connection(peer.address, peer.trusted) else {
            tracing::debug!(address = %peer.address, "connection closed: all open connections are serving requests");
            continue;
        };
        let connection = serve_connection(stream, line, router.clone(), peer, shutdown.clone());
        let alive = alive.clone();
        tokio::spawn(async move {
            connection.await;
            drop(alive);
        });
    }

    drop((listener, alive));

    if tokio::time::timeout(bounds.drain, all_ended.recv()).await.is_err() {
        tracing::warn!("drain ended with open connections");
    }
}

/// Serves one connection, HTTP/1 or HTTP/2, with upgrades, until it ends or must end.
async fn serve_connection(
    stream: TcpStream,
    line: OpenConnection,
    router: Router,
    peer: ConnectionPeer,
    shutdown: ShutdownSignal,
) {
    // Responses are small; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    let requests = line.new_requests();
    let service = service_fn(move |request| answer_request(router.clone(), requests.clone(), peer, request));
    let builder = http_builder();
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));

    // Whether the connection was asked to end, by the shutdown or because it was late.
    let mut ending = false;
    loop {
        let left = line.connection_deadline().map_or(END_WITHIN, |deadline| {
            deadline.saturating_duration_since(SystemClock.monotonic())
        });
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, address = %peer.address, "connection ended early");
                }
                return;
            }
            () = line.wait_ended() => return,
            () = shutdown.requested(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = pause(if ending { END_WITHIN } else { left }) => {
                let now = SystemClock.monotonic();
                let is_late = line.connection_deadline().is_some_and(|deadline| deadline <= now);
                if is_late && ending {
                    return;
                }
                if is_late {
                    ending = true;
                    line.count_late();
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Returns a builder with the limits of each protocol.
fn http_builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The table of connections has the deadline, which is the same for every protocol.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD_BYTES);

    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(65_536)
        .max_concurrent_streams(HTTP2_REQUESTS)
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_WINDOW_BYTES)
        .max_send_buf_size(HTTP2_SEND_BYTES);

    builder
}

/// Handles one request, and reports its progress to the table of connections.
async fn answer_request(
    router: Router,
    requests: ConnectionRequests,
    peer: ConnectionPeer,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let in_hand: InHand = requests.begin_request();
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(in_hand.clone());
    let response = TowerToHyperService::new(router).call(request).await?;
    Ok(response.map(|body| in_hand.track_answer(body)))
}
