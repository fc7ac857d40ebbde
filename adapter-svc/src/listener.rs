//! The listener: connections within bounds, ended in order.
//!
//! It stands in for `axum::serve`, which bounds neither how long a request's head may take nor its size, nor how
//! many connections there are. The bounds hold for every protocol, from the moment in which a connection is accepted.

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
use shared::process::Shutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use crate::gateway::client::{Networks, Peer};
use connections::Limits;
use line::{InHand, Line, Lines, Requests};

/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How much of a connection's HTTP/2 bodies may be on its way to a handler, in bytes.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// How many requests an HTTP/2 connection may have open at once.
const HTTP2_REQUESTS: u32 = 64;
/// How much of an answer may wait in memory for an HTTP/2 client, in bytes.
const HTTP2_SEND_BYTES: usize = 64 * 1024;
/// Connections that may wait in the system until they are accepted.
const BACKLOG: u32 = 4_096;
/// Wait after the system refused a connection and none could be ended for it.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long a connection that is asked to end may take, where no request is in hand.
const END_WITHIN: Duration = Duration::from_secs(1);

/// How many connections there may be, and how patient the listener is.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The bounds of the table of connections.
    pub limits: Limits,
    /// Proxies, whose connections are not bounded by address.
    pub trusted: Networks,
    /// For the connections to end after `shutdown`.
    pub drain: Duration,
}

/// Binds `address`.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A service that restarts takes its port although old connections are not forgotten yet.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router` on `listener` until `shutdown`, then lets open requests end within `bounds.drain`.
pub async fn serve(listener: TcpListener, router: Router, bounds: Bounds, shutdown: Shutdown) {
    let lines = Lines::new(bounds.limits);
    // Every connection holds a sender: the receiver ends with the last of them.
    let (alive, mut all_ended) = mpsc::channel::<Infallible>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.requested() => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there is no file handle left: whoever says nothing gives one back.
                if !lines.evict() {
                    tracing::warn!(%error, "cannot accept a connection");
                }
                pause(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };

        let address = from.ip().to_canonical();
        let peer = Peer {
            address,
            trusted: bounds.trusted.contains(address),
        };

        let Some(line) = lines.admit(peer.address, peer.trusted) else {
            tracing::debug!(address = %peer.address, "connection is closed: every open one has a request in work");
            continue;
        };
        let connection = converse(stream, line, router.clone(), peer, shutdown.clone());
        let alive = alive.clone();
        tokio::spawn(async move {
            connection.await;
            drop(alive);
        });
    }

    drop((listener, alive));

    if tokio::time::timeout(bounds.drain, all_ended.recv()).await.is_err() {
        tracing::warn!("connections were still open at the end of the drain");
    }
}

/// Serves one connection, HTTP/1 or HTTP/2, with upgrades, until it ends or must end.
async fn converse(stream: TcpStream, line: Line, router: Router, peer: Peer, shutdown: Shutdown) {
    // Answers are small; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    let requests = line.requests();
    let service = service_fn(move |request| answer(router.clone(), requests.clone(), peer, request));
    let builder = builder();
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));

    // The connection was asked to end: by the shutdown, or because it was late.
    let mut ending = false;
    loop {
        let left = line.deadline().map_or(END_WITHIN, |deadline| {
            deadline.saturating_duration_since(SystemClock.monotonic())
        });
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, address = %peer.address, "connection ended early");
                }
                return;
            }
            () = line.ended() => return,
            () = shutdown.requested(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = pause(if ending { END_WITHIN } else { left }) => {
                let now = SystemClock.monotonic();
                let is_late = line.deadline().is_some_and(|deadline| deadline <= now);
                if is_late && ending {
                    return;
                }
                if is_late {
                    ending = true;
                    line.late();
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Returns the bounds of each protocol.
fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The table of connections knows the deadline, for every protocol alike.
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

/// Answers one request; the table of connections follows how far it is.
async fn answer(
    router: Router,
    requests: Requests,
    peer: Peer,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let in_hand: InHand = requests.begin();
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(in_hand.clone());
    let response = TowerToHyperService::new(router).call(request).await?;
    Ok(response.map(|body| in_hand.answering(body)))
}
