//! The listener: connections within bounds, ended in order.
//!
//! It stands in for `axum::serve`, which bounds neither how long a request's head may take nor its size, nor how
//! many connections there are.

use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use shared::clock::pause;
use shared::process::Shutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::gateway::Peer;

/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Wait after the system refused a connection (it has no more file handles).
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How many connections, and how patient.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Open at once.
    pub connections: usize,
    /// For a request's head to arrive.
    pub head: Duration,
    /// For the connections to end after `shutdown`.
    pub drain: Duration,
}

/// Serves `router` on `listener` until `shutdown`, then lets open requests end within `bounds.drain`.
pub async fn serve(listener: TcpListener, router: Router, bounds: Bounds, shutdown: Shutdown) {
    let places = Arc::new(Semaphore::new(bounds.connections));
    let ending = GracefulShutdown::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            break;
        };
        let (stream, from) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => (stream, Peer(from.ip())),
                Err(error) => {
                    tracing::warn!(%error, "connection was not accepted");
                    pause(ACCEPT_AGAIN_AFTER).await;
                    continue;
                }
            },
            () = shutdown.requested() => break,
        };
        let router = router.clone().layer(Extension(from));
        let connection = converse(stream, router, bounds.head, &ending);
        tokio::spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(bounds.drain, ending.shutdown()).await.is_err() {
        tracing::warn!("connections were still open at the end of the drain");
    }
}

/// One connection, HTTP/1 or HTTP/2, with upgrades.
fn converse(
    stream: TcpStream,
    router: Router,
    head: Duration,
    ending: &GracefulShutdown,
) -> impl Future<Output = ()> + Send + use<> {
    // Answers are small; waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(MAX_HEAD_BYTES);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(65_536);
    let service = TowerToHyperService::new(router);
    let connection = builder
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .into_owned();
    let watched = ending.watch(connection);
    async move {
        if let Err(error) = watched.await {
            tracing::debug!(%error, "connection ended early");
        }
    }
}
